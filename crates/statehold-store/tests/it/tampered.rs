//! Whatever somebody changes in the file of a store that runs, a verification names it; also where
//! everything that is left agrees with itself, and only a root knows better.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use statehold_core::digest::PayloadKey;
use statehold_core::root::SignedHead;
use statehold_core::tenant::{NewRoot, TenantRecord};
use statehold_core::time::Timestamp;
use statehold_store::keys::{KeyOwner, KnownKeys};
use statehold_store::seal::{SealKey, SealKeyId, SealKeys};
use statehold_store::signing::RootSigner;
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::suite::fixture;
use statehold_store::{CheckReport, PageLimit, ProblemKind, Store, TenantCommit};

/// The keys of a server that signs; payloads are the business of other tests.
struct Keys;

fn secret() -> PayloadKey {
    PayloadKey::from_bytes([9; 32])
}

impl SealKeys for Keys {
    fn seal_key(&self, _id: SealKeyId) -> Option<Arc<SealKey>> {
        None
    }

    fn key_of(&self, _owner: &KeyOwner) -> Option<Arc<SealKey>> {
        None
    }

    fn seals(&self) -> bool {
        false
    }
}

impl KnownKeys for Keys {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        (*owner == KeyOwner::Signer).then(secret)
    }

    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        (*owner == KeyOwner::Signer).then(|| fixture::seconds(0))
    }
}

/// A store with two sessions and a root that names both.
struct Scene {
    directory: tempfile::TempDir,
    store: Arc<dyn Store>,
    first: Driver,
    second: Driver,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = SqliteStore::open(directory.path(), SqliteOptions::default());
        let store: Arc<dyn Store> = Arc::new(store.expect("a new store opens"));
        block_on(async {
            let mut first = Driver::begin(&store, 1).await;
            first.turn("planner").await;
            for n in 0..3 {
                first.put(&[("n", &n.to_string())]).await;
            }
            let second = Driver::begin(&store, 2).await;
            let mut scene = Self {
                directory,
                store,
                first,
                second,
            };
            scene.sign().await;
            scene
        })
    }

    async fn sign(&mut self) {
        let tenant = fixture::name("north");
        let signer = RootSigner::new(&secret());
        let mut heads = [&self.first, &self.second].map(|driver| {
            let last = &driver.log[driver.log.len() - 1].record;
            SignedHead {
                hash: last.hash,
                revision: last.content.seq,
                session: driver.session(),
            }
        });
        heads.sort_by_key(|head| head.session);
        let root = NewRoot {
            heads: heads.to_vec(),
            public_key: signer.public_key(),
            until: 0,
        };
        let head = self.store.tenant_head(tenant.clone()).await;
        let head = head.expect("the store answers");
        let now = fixture::seconds(5);
        let record = TenantRecord::root_after(&head, tenant, now, root, |bytes| signer.sign(bytes));
        let commit = TenantCommit {
            record,
            change: None,
        };
        let taken = self.store.commit_tenant(commit).await;
        taken.expect("it follows");
    }

    fn verify(&self) -> CheckReport {
        let report = self
            .store
            .verify(fixture::name("north"), None, Arc::new(Keys));
        block_on(report).expect("it can be read")
    }

    /// Changes the file behind the back of the store.
    #[track_caller]
    fn tamper(&self, sql: &str) {
        tamper(self.directory.path(), sql);
    }
}

#[track_caller]
fn tamper(directory: &Path, sql: &str) {
    let conn = Connection::open(directory.join(FILE_NAME)).expect("it opens");
    conn.execute_batch(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Changes a sound store, and says what the first problem is: kind, revision, entry.
#[track_caller]
fn check(sql: &str, kind: ProblemKind, revision: Option<u64>, entry: Option<u64>) {
    let scene = Scene::new();
    assert_eq!(scene.verify().problems, []);
    scene.tamper(sql);
    let report = scene.verify();
    let first = report.problems.first();
    let first = first.unwrap_or_else(|| panic!("not noticed: {sql}"));
    println!("{sql}\n    {first}");
    assert_eq!(
        (first.kind, first.revision, first.entry),
        (kind, revision, entry),
        "{sql}: {report:#?}"
    );
    if first.revision.is_some() {
        assert!(first.session.is_some(), "{first}");
    }
}

#[test]
fn a_changed_record_is_named() {
    let sql = "UPDATE log SET record = (SELECT record FROM log WHERE session = 1 AND seq = 4)
               WHERE session = 1 AND seq = 3";
    check(sql, ProblemKind::Record, Some(3), None);
}

#[test]
fn the_first_of_several_changed_records_is_named() {
    let sql = "UPDATE log SET record = x'00' WHERE session = 1 AND seq IN (2, 4)";
    check(sql, ProblemKind::Record, Some(2), None);
}

#[test]
fn a_missing_record_is_named() {
    let sql = "DELETE FROM log WHERE session = 1 AND seq = 3";
    check(sql, ProblemKind::Record, Some(3), None);
}

#[test]
fn a_cut_off_record_is_named() {
    let last = "SELECT max(seq) FROM log WHERE session = 1";
    let sql = format!("DELETE FROM log WHERE session = 1 AND seq = ({last})");
    let scene = Scene::new();
    let revision = scene.first.log.len() as u64;
    drop(scene);
    check(&sql, ProblemKind::MissingTail, Some(revision), None);
}

#[test]
fn an_unreadable_payload_is_named() {
    let sql = "UPDATE log SET bodies = x'ffff' WHERE session = 1 AND seq = 2";
    check(sql, ProblemKind::Payload, Some(2), None);
}

#[test]
fn a_changed_table_is_named() {
    let sql = "UPDATE session SET requests_started = requests_started + 1 WHERE pk = 1";
    check(sql, ProblemKind::Projection, None, None);
}

#[test]
fn a_changed_entry_is_named() {
    let sql = "UPDATE tenant_log SET record = x'00' WHERE seq = 1";
    check(sql, ProblemKind::Entry, None, Some(1));
}

#[test]
fn a_changed_signature_is_named() {
    let scene = Scene::new();
    let tenant = fixture::name("north");
    let stream = block_on(scene.store.tenant_records(tenant, 0, 1)).expect("a stream");
    let text = String::from_utf8(stream[0].as_bytes().to_vec()).expect("text");
    let (start, rest) = text.split_once("\"signature\":\"").expect("it is signed");
    let forged = format!("{start}\"signature\":\"{}{}", "0".repeat(128), &rest[128..]);
    let packed = statehold_store::codec::pack(forged.as_bytes());
    let conn = Connection::open(scene.directory.path().join(FILE_NAME)).expect("it opens");
    conn.execute("UPDATE tenant_log SET record = ?1", [packed])
        .expect("it is changed");
    let report = scene.verify();
    let kinds: Vec<_> = report.problems.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [ProblemKind::Root], "{report:?}");
    assert_eq!(report.problems[0].entry, Some(1));
}

/// The last record goes with everything that it wrote: what is left is a sound, shorter session.
#[test]
fn a_tail_that_is_gone_without_a_trace_is_missed_by_its_root() {
    let mut scene = Scene::new();
    let before = block_on(scene.store.load(scene.second.session()));
    let before = before.expect("it loads").expect("it is there");
    block_on(scene.second.delete_session());
    block_on(async {
        while scene
            .store
            .erase_some(PageLimit::entries(100))
            .await
            .expect("it erases")
        {}
        scene.sign().await;
    });
    let (revision, head) = (before.revision, before.head);
    scene.tamper(&format!(
        "DELETE FROM log WHERE session = 2 AND seq > {revision};
         UPDATE session SET revision = {revision}, head = x'{head}', closed = 0, deleted = 0,
           listed = 1, status = 'idle', last_at = {}, last_log = (SELECT max(id) FROM log WHERE session = 2)
           WHERE pk = 2;",
        before.last_at.as_micros()
    ));
    let report = scene.verify();
    let found: Vec<_> = report
        .problems
        .iter()
        .map(|one| (one.kind, one.session, one.revision, one.entry))
        .collect();
    let session = Some(scene.second.session());
    let gone = scene.second.log.len() as u64;
    assert_eq!(
        found,
        [(ProblemKind::MissingTail, session, Some(gone), Some(2))],
        "nothing else knows: {report:#?}"
    );
}

#[test]
fn a_session_that_is_gone_without_a_trace_is_missed_by_its_root() {
    let scene = Scene::new();
    scene.tamper(
        "DELETE FROM log WHERE session = 2; DELETE FROM session WHERE pk = 2;
         DELETE FROM waypoint WHERE session = 2; DELETE FROM state WHERE session = 2;",
    );
    let report = scene.verify();
    let found: Vec<_> = report
        .problems
        .iter()
        .map(|one| (one.kind, one.session, one.entry))
        .collect();
    let session = Some(scene.second.session());
    assert_eq!(
        found,
        [(ProblemKind::MissingSession, session, Some(1))],
        "nothing else knows: {report:#?}"
    );
}

#[test]
fn a_rewritten_chain_is_not_the_one_that_was_signed() {
    let mut scene = Scene::new();
    block_on(scene.second.put(&[("n", "1")]));
    block_on(scene.sign());
    // Another second record, as sound as the one that was signed, in a chain that is whole.
    let other = Scene::new();
    let mut rewritten = other.second;
    block_on(rewritten.put(&[("n", "2")]));
    let record = &rewritten.log[1].record;
    let packed = statehold_store::codec::pack(record.as_bytes());
    let conn = Connection::open(scene.directory.path().join(FILE_NAME)).expect("it opens");
    let hash = record.hash.as_bytes().as_slice();
    conn.execute(
        "UPDATE log SET record = ?1 WHERE session = 2 AND seq = 2",
        [packed],
    )
    .and_then(|_| conn.execute("UPDATE session SET head = ?1 WHERE pk = 2", [hash]))
    .expect("it is changed");
    let report = scene.verify();
    let signed = report.problems.iter().find(|one| one.entry.is_some());
    let signed = signed.expect("the root knows");
    assert_eq!(
        (signed.kind, signed.session, signed.revision, signed.entry),
        (
            ProblemKind::Record,
            Some(scene.second.session()),
            Some(2),
            Some(2)
        ),
    );
}

#[test]
fn a_verification_while_others_write_raises_no_alarm() {
    let mut scene = Scene::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (10..13)
        .map(|n| {
            let (store, is_over) = (Arc::clone(&scene.store), Arc::clone(&is_over));
            std::thread::spawn(move || {
                block_on(async {
                    let mut written = 0;
                    let mut session = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        session += 1;
                        let mut driver = Driver::begin(&store, n * 1_000 + session).await;
                        driver.turn("planner").await;
                        driver.put(&[("n", "1")]).await;
                        if session % 3 == 0 {
                            driver.delete_session().await;
                            store
                                .erase_some(PageLimit::entries(10))
                                .await
                                .expect("it erases");
                        }
                        written += driver.log.len();
                    }
                    written
                })
            })
        })
        .collect();
    let (mut sessions, mut rounds) = (0, 0);
    let began = std::time::Instant::now();
    // Two sessions were there before.
    while rounds < 12 || sessions <= 2 {
        assert!(began.elapsed().as_secs() < 120, "nobody else writes");
        rounds += 1;
        block_on(scene.sign());
        let report = scene.verify();
        assert_eq!(report.problems, []);
        assert!(report.sessions >= sessions, "time goes on");
        sessions = report.sessions;
    }
    is_over.store(true, Ordering::Relaxed);
    let written = writers
        .into_iter()
        .map(|writer| writer.join().expect("it writes"));
    assert!(written.sum::<usize>() > 0);
    assert_eq!(scene.verify().problems, []);
}

#[test]
fn a_store_that_closes_ends_a_verification_that_nobody_waits_for() {
    let Scene {
        directory,
        store,
        first,
        second,
    } = Scene::new();
    let mut verifying = store.verify(fixture::name("north"), None, Arc::new(Keys));
    block_on(std::future::poll_fn(|context| {
        // It has begun, whether or not it is over already.
        drop(verifying.as_mut().poll(context));
        std::task::Poll::Ready(())
    }));
    drop(verifying);
    drop((first, second, store));
    let report = SqliteStore::check(directory.path(), &mut |_, _| {});
    assert_eq!(report.expect("nobody has it open").problems, []);
}
