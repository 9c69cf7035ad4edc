//! `check` says nothing about a sound file, and names the place of everything that is not.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use statehold_core::command::{Command, StatePatch};
use statehold_core::digest::Digest;
use statehold_core::principal::Principal;
use statehold_core::session::TtlMode;
use statehold_core::tenant::{TenantEvent, TenantRecord};
use statehold_store::sqlite::{FILE_NAME, Problem, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::suite::{fixture, story};
use statehold_store::{
    AddressChange, Answer, PageLimit, ResumeAddress, Store, TenantChange, TenantCommit,
};

/// A file with everything in it that can happen: a session and a fork of it, one that will expire,
/// one that was deleted and one that is being deleted, keys, users and an audit stream.
pub(crate) fn fill(directory: &Path) {
    let store = SqliteStore::open(directory, SqliteOptions::default()).expect("a new store opens");
    let store: Arc<dyn Store> = Arc::new(store);
    block_on(async {
        let mut first = Driver::new(Arc::clone(&store), fixture::owner(), 1);
        story::tell(&mut first, story::OPEN).await;
        let mut fork = first.fork(2, story::NESTED).await;
        // Enough for waypoints, and for the order of sessions by their last change.
        for _ in 0..260 {
            let note = fork.client();
            let patch = StatePatch::default();
            let nothing = Command::PutState { patch, by: None };
            fork.ok(&note, nothing).await;
        }
        let mut limited = Driver::new(Arc::clone(&store), fixture::owner(), 3);
        let create = limited.create_for(TtlMode::Sliding, 3_600_000);
        limited.ok(&limited.client(), create).await;
        write_much(&mut limited).await;
        for n in 4..6 {
            let mut deleted = Driver::begin(&store, n).await;
            write_much(&mut deleted).await;
            deleted.delete_session().await;
            let limit = if n == 4 { 1_000 } else { 2 };
            let is_left = store
                .erase_some(PageLimit::entries(limit))
                .await
                .expect("the store erases");
            assert_eq!(is_left, n == 5);
        }
        keep_answer(&store).await;
        let known = "bob".to_owned();
        let user = store.intern_user(fixture::name("north"), known, fixture::user(1));
        user.await.expect("the store knows users");
        keep_keys(&*store).await;
    });
}

/// The answer to a call with an idempotency key.
async fn keep_answer(store: &Arc<dyn Store>) {
    let mut driver = Driver::begin(store, 6).await;
    let patch = StatePatch::default();
    let nothing = Command::PutState { patch, by: None };
    let record = driver.record(&driver.client(), nothing).await;
    let mut commit = driver.commit_of(&record);
    commit.answer = Some(Answer {
        key: Digest::sha256(b"a key"),
        fingerprint: Digest::sha256(b"a call"),
        session: driver.session(),
        revision: 2,
        body: b"what the caller was told".to_vec(),
        expires_at: fixture::seconds(1_000),
    });
    store.commit(commit).await.expect("it follows");
}

/// Long payloads, some of them again, private state, and children.
async fn write_much(driver: &mut Driver) {
    driver.run("planner", 60_000).await;
    for fill in [b'a', b'b', b'a', b'b'] {
        let note = driver.note([fill; 2_000]);
        let append = driver.append(1, vec![note]);
        driver.by_worker(append).await;
    }
    let long = vec![b'x'; 70_000];
    let note = driver.note(&long);
    let append = driver.append(1, vec![note]);
    driver.by_worker(append).await;
    let remember = driver.remember(1, "much");
    driver.by_worker(remember).await;
    for agent in ["booker", "checker"] {
        let child = driver.spawn(1, agent);
        driver.by_worker(Command::StartRequest(child)).await;
    }
    // The answer of a child, too odd to be packed into one row.
    let odd = (0..2_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]);
    let mut done = driver.complete(2);
    if let Command::CompleteRequest { output, .. } = &mut done {
        output.body = driver.body(odd.collect::<Vec<u8>>());
    }
    driver.by_worker(done).await;
}

/// Two keys, one of them taken back, and somebody who looked at a trace.
async fn keep_keys(store: &dyn Store) {
    let (kept, mut revoked) = (fixture::api_key("north", 1), fixture::api_key("north", 2));
    let made = [&kept, &revoked].map(|key| (fixture::key_created(key), Some(key.clone())));
    revoked.revoked_at = Some(fixture::seconds(9));
    let session = fixture::session(1);
    let later = [
        (TenantEvent::TraceRead { session }, None),
        (TenantEvent::KeyRevoked { key: revoked.id }, Some(revoked)),
    ];
    for (event, key) in made.into_iter().chain(later) {
        let tenant = fixture::name("north");
        let head = store.tenant_head(tenant.clone()).await.expect("a head");
        let (who, now) = (Principal::Local, fixture::seconds(1));
        let record = TenantRecord::after(&head, tenant, who, now, event);
        let commit = TenantCommit {
            record,
            change: key.map(TenantChange::Key),
        };
        store.commit_tenant(commit).await.expect("it follows");
    }
    keep_address(store).await;
}

/// Where the decisions for one agent are pushed to.
async fn keep_address(store: &dyn Store) {
    let tenant = fixture::name("north");
    let address = ResumeAddress {
        tenant: tenant.clone(),
        agent: fixture::name("payer"),
        url: "https://worker.example/resume".to_owned(),
        salt: Digest::sha256(b"salt"),
        set_at: fixture::seconds(1),
    };
    let event = TenantEvent::ResumeAddressSet {
        address: address.commitment(),
        agent: address.agent.clone(),
    };
    let head = store.tenant_head(tenant.clone()).await.expect("a head");
    let (who, now) = (Principal::Local, fixture::seconds(1));
    let commit = TenantCommit {
        record: TenantRecord::after(&head, tenant, who, now, event),
        change: Some(TenantChange::Address(AddressChange::Set(address))),
    };
    store.commit_tenant(commit).await.expect("it follows");
}

pub(crate) fn check(directory: &Path) -> Vec<Problem> {
    SqliteStore::check(directory, &mut |_, _| {})
        .expect("the file opens")
        .problems
}

#[test]
fn a_sound_file_has_no_problems() {
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    assert_eq!(check(directory.path()), []);
}

#[test]
fn every_row_that_somebody_changed_is_noticed() {
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let sound = std::fs::read(directory.path().join(FILE_NAME)).expect("one tidy file");
    let mut unnoticed = Vec::new();
    for sql in TAMPERED {
        let changed = Connection::open(directory.path().join(FILE_NAME))
            .and_then(|conn| conn.execute(sql, []))
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert!(changed > 0, "nothing to change: {sql}");
        let problems = check(directory.path());
        match problems.first() {
            Some(first) => println!("{sql}\n    {}: {}", first.place, first.what),
            None => unnoticed.push(sql),
        }
        put_back(directory.path(), &sound);
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:#?}");
    assert_eq!(check(directory.path()), []);
}

#[test]
fn what_only_a_table_knows_cannot_be_noticed() {
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let sound = std::fs::read(directory.path().join(FILE_NAME)).expect("one tidy file");
    for sql in [
        // Records have the pseudonym only, so that whoever forgets the name has forgotten it.
        "DELETE FROM user",
        "DELETE FROM answer",
    ] {
        let changed = Connection::open(directory.path().join(FILE_NAME))
            .and_then(|conn| conn.execute(sql, []))
            .expect("the statement runs");
        assert!(changed > 0, "nothing to change: {sql}");
        assert_eq!(check(directory.path()), [], "{sql}");
        put_back(directory.path(), &sound);
    }
}

pub(crate) fn put_back(directory: &Path, sound: &[u8]) {
    std::fs::write(directory.join(FILE_NAME), sound).expect("the file is put back");
    for rest in ["db-wal", "db-shm"] {
        let path = directory.join(FILE_NAME).with_extension(rest);
        if path.exists() {
            std::fs::remove_file(path).expect("the rest is removed");
        }
    }
}

/// Changes that the log contradicts. Each has something to change in a file that was filled.
const TAMPERED: &[&str] = &[
    // Sessions.
    "UPDATE session SET revision = revision - 1 WHERE pk = 1",
    "UPDATE session SET head = zeroblob(32) WHERE pk = 1",
    "UPDATE session SET created_at = created_at + 1 WHERE pk = 1",
    "UPDATE session SET last_at = last_at + 1 WHERE pk = 1",
    "UPDATE session SET items_appended = items_appended + 1 WHERE pk = 1",
    "UPDATE session SET closed = 1 WHERE pk = 1",
    "UPDATE session SET agent = 'other' WHERE pk = 1",
    "UPDATE session SET name = 'other' WHERE pk = 1",
    "UPDATE session SET labels = '{\"forged\":true}' WHERE pk = 1",
    "UPDATE session SET name = 'other' WHERE pk = 4",
    "UPDATE session SET labels = '{}' WHERE deleted",
    "UPDATE session SET status = 'running' WHERE pk = 2",
    "UPDATE session SET status = 'paused' WHERE closed",
    "UPDATE session SET status = 'asleep' WHERE pk = 3",
    "UPDATE session SET deleted = 1 WHERE pk = 1",
    "UPDATE session SET deleted = 0 WHERE deleted",
    "UPDATE session SET listed = 0 WHERE pk = 1",
    "UPDATE session SET listed = 1 WHERE deleted",
    "DELETE FROM session_update WHERE session = 1",
    "UPDATE session_update SET at = at - 1 WHERE session = 1",
    "UPDATE session_update SET app = 'other' WHERE session = 2",
    "INSERT INTO session_update SELECT pk + 100, tenant, app, user, last_at FROM session WHERE pk = 1",
    "UPDATE meta SET value = '1' WHERE key = 'updates_until'",
    "DELETE FROM meta WHERE key = 'updates_until'",
    "UPDATE session SET ttl_mode = 'fixed' WHERE ttl_mode IS NOT NULL",
    "UPDATE session SET ttl_mode = NULL WHERE ttl_mode IS NOT NULL",
    "UPDATE session SET ttl_ms = ttl_ms + 1 WHERE ttl_ms IS NOT NULL",
    "UPDATE session SET expires_at = expires_at + 1 WHERE expires_at IS NOT NULL",
    "UPDATE session SET expires_at = NULL WHERE expires_at IS NOT NULL",
    "UPDATE session SET expires_at = last_at WHERE pk = 1",
    "UPDATE session SET ttl_mode = 'fixed', ttl_ms = 1000 WHERE pk = 1",
    "UPDATE session SET origin = 0, origin_seq = 0 WHERE pk = 2",
    "UPDATE session SET origin_seq = origin_seq - 1 WHERE pk = 2",
    // The log.
    "DELETE FROM log WHERE id = 5",
    "UPDATE log SET record = (SELECT record FROM log WHERE id = 4) WHERE id = 5",
    "UPDATE log SET bodies = zeroblob(3) WHERE id = 2",
    "UPDATE log SET prev = 1 WHERE id = 5",
    "UPDATE log SET links = zeroblob(0) WHERE id = 2",
    "UPDATE log SET exchanges = x'' WHERE exchanges <> x''",
    "UPDATE log SET exchanges = zeroblob(89) WHERE id = 2",
    "UPDATE log SET exchanges = (SELECT exchanges FROM log WHERE exchanges <> x'' ORDER BY id LIMIT 1)
     WHERE id = (SELECT max(id) FROM log WHERE exchanges <> x'')",
    "UPDATE log SET session = 2 WHERE id = 3",
    "UPDATE waypoint SET items_until = items_until + 1",
    "DELETE FROM waypoint",
    "INSERT INTO rewind VALUES(1, 3, 0, 2)",
    "DELETE FROM rewind",
    // Payloads that are gone, as the codec says it, and that nobody removed.
    "UPDATE log SET bodies = CAST(x'030000000000030000000000030000000000'
     || x'030000000000030000000000030000000000' AS BLOB) WHERE id = 1",
    // Payloads that are elsewhere: in another session, later, not there, erased, or another one.
    "UPDATE log SET bodies = CAST(x'04000C000000010000000000000000000000' AS BLOB)
     WHERE substr(bodies, 1, 2) = x'0400'",
    "UPDATE log SET bodies = CAST(x'04000C000000FF0000000000000000000000' AS BLOB)
     WHERE substr(bodies, 1, 2) = x'0400'",
    "UPDATE log SET bodies = CAST(substr(bodies, 1, 14) || x'01000000' AS BLOB)
     WHERE substr(bodies, 1, 2) = x'0400'",
    "UPDATE log SET bodies = CAST(substr(bodies, 1, 17) AS BLOB) WHERE substr(bodies, 1, 2) = x'0400'",
    "UPDATE log SET bodies = x'030000000000' WHERE id = (SELECT min(id) - 1 FROM log
     WHERE substr(bodies, 1, 2) = x'0400')",
    "UPDATE log SET bodies = (SELECT bodies FROM log WHERE substr(bodies, 1, 2) = x'0400' ORDER BY id)
     WHERE id = 1 + (SELECT min(id) FROM log WHERE substr(bodies, 1, 2) = x'0400')",
    // Tasks.
    "DELETE FROM open_task WHERE session = 1",
    "UPDATE open_task SET body = CAST(replace(body, 'idle', 'paused') AS BLOB)",
    "UPDATE open_task SET last_log = last_log - 1",
    "DELETE FROM closed_task",
    "UPDATE closed_task SET body = CAST(replace(body, 'cancelled', 'completed') AS BLOB)",
    "UPDATE closed_task SET session = 2",
    "UPDATE task_state SET value = x'000078'",
    "UPDATE task_state SET session = session + 1",
    "UPDATE task_state SET task = zeroblob(16) WHERE rowid = 1",
    "DELETE FROM task_state",
    "INSERT INTO task_state VALUES(zeroblob(16), 1, zeroblob(16), 2, x'000078')",
    "UPDATE task_state SET request = zeroblob(16)",
    "UPDATE task_state SET log = log - 1",
    // Memories.
    "DELETE FROM memory",
    "UPDATE memory SET session = session + 1000",
    "UPDATE memory SET path = path || '.x'",
    "UPDATE memory SET path = path || ' x'",
    "UPDATE memory SET exchanges = exchanges + 1",
    "UPDATE memory SET record = record - 1",
    "UPDATE memory SET request = zeroblob(16)",
    "UPDATE memory SET log = log - 1",
    "UPDATE memory SET state = state + 1",
    "INSERT INTO memory SELECT 99, path, exchanges, record, request, log, state FROM memory LIMIT 1",
    // Requests.
    "DELETE FROM live_request",
    "UPDATE live_request SET queued = NOT queued",
    "UPDATE live_request SET lease_until = 1",
    "UPDATE live_request SET tenant = 'south'",
    "UPDATE live_request SET body = CAST(replace(body, '\"started_by\":2', '\"started_by\":1')
     AS BLOB)",
    "DELETE FROM ended_request WHERE rowid = 1",
    "UPDATE ended_request SET body = CAST(replace(body, 'completed', 'cancelled') AS BLOB)",
    "UPDATE ended_request SET session = 2",
    "DELETE FROM child_request WHERE rowid = 1",
    "UPDATE child_request SET parent = child",
    "UPDATE child_request SET child = parent",
    "UPDATE child_request SET rowid = rowid + 1000 WHERE rowid = 1",
    "INSERT INTO child_request SELECT parent, zeroblob(16) FROM child_request LIMIT 1",
    "DELETE FROM chat_request",
    "UPDATE chat_request SET digest = digest + 1",
    "UPDATE chat_request SET log = log + 1",
    "UPDATE chat_request SET pk = pk + 1",
    "INSERT INTO chat_request SELECT pk + 1, digest, log FROM chat_request LIMIT 1",
    // Holds.
    "DELETE FROM open_hold",
    "UPDATE open_hold SET request = zeroblob(16)",
    "UPDATE open_hold SET tenant = 'south'",
    "UPDATE open_hold SET user = zeroblob(16)",
    "UPDATE open_hold SET agent = 'other'",
    "UPDATE open_hold SET risk = risk - 1",
    "UPDATE open_hold SET deadline = deadline - 1",
    "DELETE FROM closed_hold WHERE rowid = 1",
    "UPDATE closed_hold SET body = CAST(replace(body, 'approved', 'rejected') AS BLOB)",
    "UPDATE closed_hold SET request = zeroblob(16) WHERE pk = 1",
    "UPDATE closed_hold SET tenant = 'south' WHERE pk = 1",
    "UPDATE closed_hold SET session = 2 WHERE pk = 1",
    "UPDATE closed_hold SET user = zeroblob(16) WHERE pk = 1",
    "UPDATE closed_hold SET agent = 'other' WHERE pk = 1",
    "UPDATE closed_hold SET call = zeroblob(16) WHERE call IS NOT NULL",
    "UPDATE closed_hold SET result = NULL WHERE result IS NOT NULL",
    "UPDATE closed_hold SET result = CAST(replace(result, 'ran', 'refused') AS BLOB)
     WHERE result IS NOT NULL",
    "INSERT INTO closed_hold SELECT 1000, zeroblob(16), session, request, tenant, user, agent, call,
     body, result FROM closed_hold LIMIT 1",
    // State.
    "UPDATE state SET version = version - 1",
    "UPDATE state SET value = x'000078'",
    "DELETE FROM state",
    "UPDATE state SET bytes = bytes + 1",
    "INSERT INTO state SELECT pk, 'late', 1, 1, x'000078' FROM session WHERE deleted",
    "UPDATE shared SET value = x'000078' WHERE value IS NOT NULL",
    "UPDATE shared SET version = version + 1",
    "DELETE FROM shared",
    // Long payloads, and those that are being removed.
    "DELETE FROM blob",
    "UPDATE blob SET refs = refs + 1",
    "UPDATE blob SET refs = refs - 1",
    "UPDATE blob SET user = zeroblob(16)",
    "INSERT INTO blob VALUES(zeroblob(16), zeroblob(32), 1, x'000078')",
    "INSERT INTO blob VALUES(zeroblob(16), zeroblob(33), 0, x'000078')",
    "DELETE FROM blob WHERE substr(digest, 33) = x'01'",
    "DELETE FROM blob WHERE length(digest) = 33",
    "UPDATE blob SET refs = 1 WHERE length(digest) = 33",
    "UPDATE blob SET data = CAST(data || x'00' AS BLOB) WHERE substr(digest, 33) = x'01'",
    "DELETE FROM erasure",
    "UPDATE erasure SET payloads = 'hidden'",
    "UPDATE erasure SET log = (SELECT min(id) FROM log WHERE session = erasure.session)",
    "UPDATE erasure SET log = 1000000",
    "UPDATE session SET erased_log = 0 WHERE erased_log > 0",
    "UPDATE session SET hidden_ttl_ms = 1000 WHERE pk = 1",
    "UPDATE session SET hidden_expires_at = 1000 WHERE pk = 1",
    "UPDATE erasure SET floor = 1",
    "INSERT INTO erasure VALUES(1, 'all', 1, 0)",
    "INSERT INTO erasure VALUES(1000, 'all', 1, 0)",
    // Rows that only their checksums speak of.
    "UPDATE user SET name = 'eve'",
    "UPDATE user SET sum = zeroblob(8)",
    "UPDATE api_key SET body = CAST(replace(body, 'key 1', 'key 9') AS BLOB) WHERE rowid = 1",
    "UPDATE answer SET body = CAST('another' AS BLOB)",
    "UPDATE answer SET fingerprint = zeroblob(32)",
    "UPDATE meta SET value = '3' WHERE key = 'epoch'",
    // Keys and the audit stream.
    "DELETE FROM api_key WHERE rowid = 1",
    "UPDATE api_key SET tenant = 'south' WHERE rowid = 1",
    "UPDATE api_key SET secret = zeroblob(32) WHERE rowid = 1",
    "UPDATE api_key SET id = zeroblob(16) WHERE rowid = 1",
    "UPDATE api_key SET body = CAST(replace(body, 'worker', 'admin') AS BLOB) WHERE rowid = 1",
    "UPDATE api_key SET tenant = 'south', body = CAST(replace(body, 'north', 'south') AS BLOB)
     WHERE rowid = 1",
    "UPDATE api_key SET body = CAST(json_set(CAST(body AS TEXT), '$.revoked_at', NULL) AS BLOB)",
    "INSERT INTO api_key SELECT zeroblob(16), tenant, zeroblob(32), body, sum FROM api_key LIMIT 1",
    "DELETE FROM resume_address",
    "UPDATE resume_address SET agent = 'booker'",
    "UPDATE resume_address SET tenant = 'south'",
    "UPDATE resume_address SET body = CAST(replace(body, 'worker.example', 'evil.example') AS BLOB)",
    "INSERT INTO resume_address SELECT 'south', agent, CAST(replace(body, 'north', 'south') AS BLOB), sum
     FROM resume_address",
    "DELETE FROM tenant_log",
    "DELETE FROM tenant_log WHERE seq = 1",
    "DELETE FROM tenant_log WHERE seq = 5",
    "UPDATE tenant_log SET seq = seq + 1 WHERE seq = 5",
    "UPDATE tenant_log SET tenant = 'south'",
    "UPDATE tenant_log SET tenant = 'no name'",
    "UPDATE tenant_log SET record = (SELECT record FROM tenant_log WHERE seq = 1) WHERE seq = 2",
];
