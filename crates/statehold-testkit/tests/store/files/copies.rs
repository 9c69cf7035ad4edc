//! A backup restored while the store it came from still runs: two histories that must not meet.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use statehold_core::command::{Command, Fenced, Rejection, StartRequest, StatePatch};
use statehold_core::hold::{DecisionKind, HoldStatus, NewDecision};
use statehold_core::record::Change;
use statehold_core::request::{CallState, FENCE_RAISE, LiveStatus};
use statehold_core::session::{TimeToLive, TtlMode};
use statehold_core::time::Timestamp;
use statehold_model::fixtures;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{CheckReport, SqliteOptions, SqliteStore};
use statehold_store::{DueKind, PageLimit, Store, StoreError};
use statehold_testkit::workload::ClientKeys;

use super::write_store;
use crate::scene::{
    Author, Ids, Picture, chain, data_file, directory, fill, open, options, require_clean, spelled,
    wait, write_keys,
};

fn meta(file: &Path, key: &str) -> String {
    let conn = Connection::open(file).expect("a database");
    let sql = "SELECT value FROM meta WHERE key = ?1";
    conn.query_row(sql, [key], |row| row.get(0))
        .expect("it is there")
}

fn refusal<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    let error = result.expect_err("refused");
    assert!(
        matches!(error, StoreError::Unusable(_) | StoreError::Corrupt { .. }),
        "{error:?}"
    );
    println!("{}", chain(&error));
    chain(&error)
}

fn restore(backup: &Path, directory: &Path) -> Result<CheckReport, StoreError> {
    SqliteStore::restore(backup, directory, &mut |_, _| {})
}

/// A directory with the keys in which a backup was restored.
fn restored(backup: &Path) -> tempfile::TempDir {
    let directory = directory();
    restore(backup, directory.path()).expect("restored");
    directory
}

#[test]
fn a_backup_says_what_the_store_said() {
    let directory = directory();
    let store = open(directory.path());
    wait(fill(&store));
    let backup = directory.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let fenced = |store: &SqliteStore| wait(store.due(Timestamp::from_micros(i64::MAX), None, 100));
    let due = fenced(&store).expect("reads").due;
    drop(store);
    let ids = Ids::of(directory.path());
    let copy = restored(&backup);
    let report = require_clean(copy.path());
    // Each live request has a new fence, which is a record.
    let live = ids.live_requests();
    assert!(live >= 3, "one runs, one waits and one is held");
    assert_eq!(
        report.records,
        require_clean(directory.path()).records + live
    );
    let (store, copied) = (open(directory.path()), open(copy.path()));
    let left = fenced(&copied).expect("reads").due;
    let is_hold = |due: &&statehold_store::Due| matches!(due.kind, DueKind::Hold(_));
    assert_eq!(due.len(), 2, "a lease and a deadline");
    assert_eq!(
        left.iter().collect::<Vec<_>>(),
        due.iter().filter(is_hold).collect::<Vec<_>>()
    );
    let [original, copied] = [&store, &copied].map(|store| wait(Picture::of(store, &ids)));
    let (original, copied) = (original.expect("reads"), copied.expect("reads"));
    let copied: Vec<_> = copied.records().collect();
    assert!(original.records().all(|record| copied.contains(&record)));
}

#[test]
fn a_worker_of_a_session_that_ends_before_its_lease_has_no_lease_in_a_copy() {
    let directory = directory();
    let store = open(directory.path());
    let mut author = wait(Author::begin(&store, 0));
    let ttl = TimeToLive {
        mode: TtlMode::Sliding,
        ms: 2_000,
    };
    let brief = Command::PatchSession {
        labels: None,
        name: None,
        ttl: Some(Change::Set(ttl)),
        hidden_ttl_ms: None,
    };
    wait(author.own(&store, &brief, fixtures::client()));
    let by = wait(author.run(&store, "leaf"));
    let backup = directory.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let copy = restored(&backup);
    require_clean(copy.path());
    let copied = open(copy.path());
    let due = wait(copied.due(Timestamp::from_micros(i64::MAX), None, 100))
        .expect("reads")
        .due;
    let is_lease = |due: &statehold_store::Due| matches!(due.kind, DueKind::Lease(_));
    assert!(!due.iter().any(is_lease), "{due:?}");
    let state = wait(copied.load(author.session())).expect("reads");
    let state = state.expect("it is there");
    let live = state.requests.get(&by.request);
    assert!(
        live.is_none_or(|live| live.lease.is_none()),
        "the worker of the original may still be at it: {live:?}"
    );
    assert!(!state.closed, "the session goes on");
}

#[test]
fn the_keys_are_not_in_a_backup() {
    let directory = directory();
    let store = open(directory.path());
    wait(fill(&store));
    let backup = directory.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let bytes = std::fs::read(&backup).expect("reads");
    let holds = |wanted: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
    assert!(holds(b"is anybody there?"), "the payloads are in it");
    let keys = ClientKeys::default();
    for key in [keys.user, keys.tenant] {
        assert!(!holds(key.expose()) && !holds(spelled(&key).as_bytes()));
    }
    let copy = tempfile::tempdir().expect("a directory");
    restore(&backup, copy.path()).expect("restored");
    assert!(!copy.path().join(KeyFile::NAME).exists());
    let report = require_clean(copy.path());
    assert_eq!(report.payloads, 0, "nothing can be verified without keys");
    write_keys(copy.path());
    assert!(require_clean(copy.path()).payloads > 100);
}

#[test]
fn a_copy_that_is_handed_out_has_no_name_and_is_named_when_it_is_checked() {
    let directory = directory();
    let store = open(directory.path());
    wait(fill(&store));
    let listed = || {
        let entries = std::fs::read_dir(directory.path()).expect("reads");
        entries
            .map(|entry| entry.expect("an entry").file_name())
            .collect::<BTreeSet<_>>()
    };
    let before = listed();
    // A copy that was cut off has left its beginning.
    std::fs::write(directory.path().join("statehold.backup.part"), "half").expect("writes");
    let mut bytes = Vec::new();
    let mut copy = wait(store.copy()).expect("copied");
    copy.read_to_end(&mut bytes).expect("reads");
    assert_eq!(listed(), before, "nothing is left beside the data");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let [part, named] = ["part", "named"].map(|name| elsewhere.path().join(name));
    let accept = |bytes: &[u8]| {
        std::fs::write(&part, bytes).expect("writes");
        SqliteStore::accept_backup((&part, &named), Some(directory.path()), &mut |_, _| {})
    };
    let middle = bytes.len() / 2;
    let mut flipped = bytes.clone();
    flipped[4096] ^= 1;
    for broken in [&bytes[..middle], &flipped] {
        refusal(accept(broken));
        assert!(!part.exists() && !named.exists(), "it is removed");
    }
    let report = accept(&bytes).expect("sound");
    assert!(report.payloads > 100, "the keys are beside the data");
    assert!(!part.exists() && named.exists(), "it has its name");
    refusal(accept(&bytes));
    restored(&named);
}

#[test]
fn a_backup_of_a_busy_store_ends_and_is_a_whole_prefix() {
    const WRITERS: u64 = 3;
    let directory = directory();
    let store = Arc::new(open(directory.path()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    // More than is copied in one go: a copy without a snapshot would begin again at each commit.
    let mut large = wait(Author::begin(&store, WRITERS));
    for n in 0..100 {
        let text = large.client.random.text(70_000);
        wait(large.put(&store, &format!("text{n}"), &format!("\"{text}\"")));
    }
    let (acknowledged, is_over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let (sender, mut ready) = tokio::sync::mpsc::unbounded_channel();
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| {
            let (store, is_over) = (Arc::clone(&store), Arc::clone(&is_over));
            let acknowledged: Arc<Mutex<Vec<_>>> = Arc::clone(&acknowledged);
            let sender = sender.clone();
            runtime.spawn(async move {
                let mut author = Author::begin(&store, n).await;
                while !is_over.load(Ordering::Relaxed) {
                    if author.client.random.below(2) == 0 {
                        author.count(&store).await;
                    } else {
                        author.turn(&store).await;
                    }
                    let state = &author.client.state;
                    let done = (state.session, state.revision, state.head);
                    acknowledged.lock().expect("no panic").push(done);
                    sender.send(()).expect("somebody listens");
                }
            })
        })
        .collect();
    let mut backups = Vec::new();
    for n in 0..4 {
        for _ in 0..10 {
            runtime.block_on(ready.recv()).expect("they write");
        }
        let before = acknowledged.lock().expect("no panic").clone();
        let to = directory.path().join(format!("backup-{n}.db"));
        runtime
            .block_on(store.backup(to.clone()))
            .expect("backed up");
        backups.push((before, to));
    }
    is_over.store(true, Ordering::Relaxed);
    for writer in writers {
        runtime.block_on(writer).expect("no panic");
    }
    for (before, backup) in backups {
        let copy = restored(&backup);
        require_clean(copy.path());
        let copied = open(copy.path());
        for n in 0..=WRITERS {
            let session = statehold_testkit::workload::session_id(crate::scene::RUN, n);
            let read =
                |store: &SqliteStore| wait(store.records(session, 0, PageLimit::entries(100_000)));
            let (all, some) = (read(&store).expect("reads"), read(&copied).expect("reads"));
            assert_eq!(some, all[..some.len()]);
            let mine = before.iter().filter(|(id, _, _)| *id == session);
            for (_, revision, head) in mine {
                let at = usize::try_from(revision - 1).expect("few");
                assert_eq!(some[at].record.hash, *head, "acknowledged before the call");
            }
        }
    }
}

#[test]
fn a_backup_is_not_a_data_file_and_a_data_file_is_not_a_backup() {
    let source = directory();
    write_store(source.path());
    let store = open(source.path());
    let backup = source.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let text = refusal(wait(store.backup(backup.clone())));
    assert!(text.contains("exists already"), "{text}");

    let target = directory();
    std::fs::copy(&backup, data_file(target.path())).expect("copied");
    let before = std::fs::read(&backup).expect("reads");
    let text = refusal(SqliteStore::open(target.path(), options()));
    assert!(text.contains("this is a backup; restore it"), "{text}");
    let after = std::fs::read(data_file(target.path())).expect("reads");
    assert!(before == after, "the backup was changed");
    let text = refusal(restore(&backup, target.path()));
    assert!(text.contains("exists already"), "{text}");

    let empty = directory();
    let live = data_file(source.path());
    let text = refusal(restore(&live, empty.path()));
    assert!(text.contains("not a backup; make one with"), "{text}");
    assert!(!data_file(empty.path()).exists());
    drop(store);
    let text = refusal(restore(&live, empty.path()));
    assert!(text.contains("not a backup"), "{text}");
    let text = refusal(restore(&backup, source.path()));
    assert!(text.contains("exists already"), "{text}");
    restore(&backup, empty.path()).expect("an empty directory takes it");
    assert!(
        before == std::fs::read(&backup).expect("reads"),
        "restoring changed the backup"
    );
}

#[test]
fn a_damaged_or_foreign_backup_is_refused_and_nothing_is_left() {
    let source = directory();
    write_store(source.path());
    let store = open(source.path());
    let backup = source.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let whole = std::fs::read(&backup).expect("reads");
    let half = &whole[..whole.len() / 2];
    for (bytes, word) in [
        (half, "malformed"),
        (b"a letter", "not a database"),
        (b"", "not a Stat"),
    ] {
        std::fs::write(&backup, bytes).expect("writes");
        let empty = directory();
        let text = refusal(restore(&backup, empty.path()));
        assert!(text.contains(word), "{text}");
        assert!(
            !data_file(empty.path()).exists(),
            "{word}: something was left"
        );
    }
    for (sql, word) in [
        (
            "PRAGMA user_version = 1",
            "layout 1, which an earlier version writes",
        ),
        (
            "PRAGMA user_version = 7",
            "layout 7, which a newer version writes",
        ),
        ("CREATE VIEW evil AS SELECT 1", "view `evil`"),
    ] {
        std::fs::write(&backup, &whole).expect("writes");
        let conn = Connection::open(&backup).expect("a database");
        conn.execute_batch(sql).expect("a statement");
        drop(conn);
        let empty = directory();
        let text = refusal(restore(&backup, empty.path()));
        assert!(text.contains(word), "{text}");
        assert!(
            !data_file(empty.path()).exists(),
            "{word}: something was left"
        );
    }
}

#[test]
fn a_worker_of_the_original_cannot_write_to_what_was_restored() {
    let source = directory();
    let store = open(source.path());
    let mut author = wait(Author::begin(&store, 0));
    let by = wait(author.run(&store, "leaf"));
    let backup = source.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let copy = restored(&backup);
    require_clean(copy.path());
    let epoch = |directory: &Path| -> u64 {
        let epoch = meta(&data_file(directory), "epoch");
        epoch.parse().expect("a number")
    };
    assert!(
        epoch(copy.path()) > epoch(source.path()),
        "the copy is later"
    );

    let copied = open(copy.path());
    let state = wait(copied.load(author.session())).expect("reads");
    let state = state.expect("the session was copied");
    assert_eq!(state.requests[&by.request].status, LiveStatus::Queued);
    assert_eq!(state.revision, author.client.state.revision + 1);
    let leaf = fixtures::name("leaf");
    let waiting =
        wait(copied.claimable(fixtures::name("t1"), leaf, None, None, 10)).expect("reads");
    assert_eq!(waiting, [(author.session(), by.request)]);

    let mut stranger = Author::new(0);
    stranger.client.state = state;
    let complete = complete(&mut stranger, by);
    let refused = stranger.prepare(&complete, fixtures::worker(1), None);
    let refused = refused.expect_err("the old fence is worth nothing");
    assert!(
        matches!(refused, Rejection::StaleFence { .. }),
        "{refused:?}"
    );
    // A commit that was decided on the original does not fit either.
    let decided = self::complete(&mut author, by);
    let decided = author
        .prepare(&decided, fixtures::worker(1), None)
        .expect("allowed there");
    let conflict = wait(copied.commit(decided)).expect_err("the copy went its own way");
    assert!(
        matches!(conflict, StoreError::Conflict { .. }),
        "{conflict:?}"
    );

    // Somebody takes it over here; the old worker is behind for good.
    let claim = Command::ClaimRequest {
        request: by.request,
        ttl_ms: 30_000,
    };
    wait(stranger.own(&copied, &claim, fixtures::worker(2)));
    let complete = self::complete(&mut stranger, by);
    let refused = stranger.prepare(&complete, fixtures::worker(1), None);
    assert!(
        matches!(refused, Err(Rejection::StaleFence { .. })),
        "{refused:?}"
    );

    // The original goes on as if nothing had happened.
    let complete = self::complete(&mut author, by);
    wait(author.own(&store, &complete, fixtures::worker(1)));
    drop((store, copied));
    require_clean(source.path());
    require_clean(copy.path());
}

/// Writes to the copy as the worker that shows a fence.
fn written_by(author: &mut Author, by: Fenced) -> Result<(), Rejection> {
    let complete = complete(author, by);
    let put = author.putting("mood", "\"tense\"");
    let Command::PutState { patch, .. } = put else {
        unreachable!("it writes state");
    };
    let put = Command::PutState {
        patch,
        by: Some(by),
    };
    let written = author.prepare(&put, fixtures::worker(1), None);
    let completed = author.prepare(&complete, fixtures::worker(1), None);
    assert_eq!(written.as_ref().err(), completed.as_ref().err());
    written.map(drop)
}

#[test]
fn fences_of_the_original_are_refused_in_a_copy_whatever_their_request_waits_for() {
    let source = directory();
    let store = open(source.path());
    let mut author = wait(Author::begin(&store, 0));
    let running = wait(author.run(&store, "leaf"));
    let held = wait(author.run(&store, "leaf"));
    wait(author.hold(&store, held));
    let waiting = wait(author.run(&store, "leaf"));
    let child = StartRequest {
        input: author.body("and you?"),
        parent: Some(waiting),
        ..fixtures::start("other")
    };
    let child = Command::StartRequest(child);
    wait(author.own(&store, &child, fixtures::worker(1)));
    let backup = source.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let copy = restored(&backup);
    require_clean(copy.path());
    let copied = open(copy.path());
    let mut stranger = Author::new(0);
    let state = wait(copied.load(author.session())).expect("reads");
    stranger.client.state = state.expect("the session was copied");

    // The original goes on: its running request gets another worker, with the next fence.
    let release = Command::ReleaseLease { by: running };
    wait(author.own(&store, &release, fixtures::worker(1)));
    let claim = Command::ClaimRequest {
        request: running.request,
        ttl_ms: 30_000,
    };
    wait(author.own(&store, &claim, fixtures::worker(1)));
    let later = Fenced {
        fence: author.client.state.requests[&running.request].fence,
        ..running
    };
    assert_eq!(later.fence, running.fence + 1);

    for (by, status) in [
        (running, LiveStatus::Queued),
        (later, LiveStatus::Queued),
        (held, LiveStatus::Held),
        (waiting, LiveStatus::Waiting),
    ] {
        let live = &stranger.client.state.requests[&by.request];
        assert_eq!((live.status, live.lease), (status, None));
        let refusal = Rejection::StaleFence {
            shown: by.fence,
            current: live.fence,
        };
        assert_eq!(written_by(&mut stranger, by), Err(refusal));
    }
    // Nor does a claim in the copy give out a fence of the original.
    wait(stranger.own(&copied, &claim, fixtures::worker(1)));
    for by in [running, later] {
        let refused = written_by(&mut stranger, by);
        assert!(matches!(refused, Err(Rejection::StaleFence { .. })));
    }
    // Every live request has a new fence, also the ones without a worker.
    let fences = stranger.client.state.requests.values();
    let fences: Vec<u64> = fences.map(|live| live.fence - FENCE_RAISE).collect();
    assert_eq!(fences, [2, 1, 1, 0]);
    drop((store, copied));
    require_clean(copy.path());
}

#[test]
fn a_decision_before_the_backup_that_no_worker_got_reaches_the_next_claim_in_a_copy() {
    let source = directory();
    let store = open(source.path());
    let mut author = wait(Author::begin(&store, 0));
    let by = wait(author.run(&store, "leaf"));
    wait(author.hold(&store, by));
    let release = Command::ReleaseLease { by };
    wait(author.own(&store, &release, fixtures::worker(1)));
    let hold = author.client.state.holds.values().next().expect("open");
    let (hold, digest) = (hold.id, hold.digest);
    let decision = NewDecision {
        key: fixtures::digest("a click"),
        fingerprint: fixtures::digest("yes"),
        kind: DecisionKind::Approve,
        digest,
        edited: None,
        body: None,
    };
    let approve = Command::DecideHold { hold, decision };
    wait(author.own(&store, &approve, fixtures::approver(1)));
    let backup = source.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let copy = restored(&backup);
    let copied = open(copy.path());
    let mut stranger = Author::new(0);
    let state = wait(copied.load(author.session())).expect("reads");
    stranger.client.state = state.expect("the session was copied");
    let call = |author: &Author| {
        let live = &author.client.state.requests[&by.request];
        live.calls.values().next().map(|call| call.state)
    };
    assert_eq!(call(&stranger), Some(CallState::Released));

    let claim = Command::ClaimRequest {
        request: by.request,
        ttl_ms: 30_000,
    };
    wait(stranger.own(&copied, &claim, fixtures::worker(2)));
    let fence = FENCE_RAISE + by.fence + 1;
    assert_eq!(call(&stranger), Some(CallState::Started { fence }));
    let closed = wait(copied.closed_hold(hold)).expect("reads");
    let closed = closed.expect("the decision was copied");
    assert_eq!(closed.decision.status, HoldStatus::Approved);
    drop((store, copied));
    require_clean(copy.path());
}

#[test]
fn a_backup_that_is_not_restored_leaves_no_directory() {
    let source = directory();
    write_store(source.path());
    let store = open(source.path());
    let backup = source.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let conn = Connection::open(&backup).expect("a database");
    let changed = conn.execute("UPDATE session SET revision = revision + 1", []);
    assert_eq!(changed.expect("a statement"), 1);
    drop(conn);
    let target = source.path().join("new");
    let text = refusal(restore(&backup, &target));
    assert!(text.contains("session ses_"), "{text}");
    assert!(!target.exists(), "something was left");
}

fn complete(author: &mut Author, by: Fenced) -> Command {
    let output = statehold_core::command::Output {
        body: author.body("forty-two"),
        attachments: Vec::new(),
    };
    Command::CompleteRequest {
        by,
        output,
        items: Vec::new(),
        state: StatePatch::default(),
        task_state: None,
        close_task: false,
        cancel_children: false,
    }
}

#[test]
fn a_store_whose_file_was_replaced_acknowledges_nothing_more() {
    let directory = directory();
    let stops: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&stops);
    let options = SqliteOptions {
        on_stop: Arc::new(move |error| seen.lock().expect("no panic").push(chain(error))),
        ..options()
    };
    let store = SqliteStore::open(directory.path(), options).expect("the data is fine");
    let mut author = wait(Author::begin(&store, 0));
    wait(author.turn(&store));
    let set_epoch = |epoch: &str| {
        let conn = Connection::open(data_file(directory.path())).expect("a database");
        let sql = "UPDATE meta SET value = ?1 WHERE key = 'epoch'";
        conn.execute(sql, [epoch]).expect("somebody else writes");
    };
    set_epoch("2");
    for _ in 0..3 {
        let turn = author.client.turn();
        let turn = author
            .client
            .prepare(&turn, fixtures::worker(1))
            .expect("allowed");
        let refused = wait(store.commit(turn)).expect_err("the file is not ours any more");
        assert!(matches!(refused, StoreError::Stopped), "{refused:?}");
    }
    let refused = wait(store.forget_answers(Timestamp::from_micros(i64::MAX), 10));
    assert!(matches!(refused, Err(StoreError::Stopped)), "{refused:?}");
    let refused = wait(store.fold_log());
    assert!(matches!(refused, Err(StoreError::Stopped)), "{refused:?}");
    let stops = stops.lock().expect("no panic").clone();
    assert_eq!(stops.len(), 1, "it stops once: {stops:?}");
    assert!(stops[0].contains("epoch 2, not 1"), "{stops:?}");
    let state = wait(store.load(author.session())).expect("reads go on");
    assert_eq!(state.as_ref(), Some(&author.client.state));
    drop(store);
    set_epoch("1");
    assert_eq!(require_clean(directory.path()).records, 2);
}
