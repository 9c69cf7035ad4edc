//! Commits that are written in one transaction do not depend on each other.

use std::sync::Arc;

use rusqlite::Connection;
use statehold_core::command::{Command, StartRequest};
use statehold_core::digest::Digest;
use statehold_core::time::Timestamp;
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::{Answer, Store, StoreError};

const SESSIONS: u64 = 8;
const DAMAGED: usize = 4;
const ROUNDS: usize = 20;

#[test]
fn a_commit_that_is_refused_after_its_first_rows_leaves_none_and_the_others_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(directory.path(), SqliteOptions::default());
    let store: Arc<dyn Store> = Arc::new(store.expect("the store opens"));
    let file = Connection::open(directory.path().join(FILE_NAME)).expect("a database");
    let key = Digest::sha256(b"a key");
    block_on(async {
        let mut drivers = Vec::new();
        for n in 1..=SESSIONS {
            let mut driver = Driver::begin(&store, n).await;
            driver.turn("planner").await;
            drivers.push(driver);
        }
        // The next turn of this session keeps its answer, then does not find where its memory is.
        let id = drivers[DAMAGED].session();
        let sql = "DELETE FROM memory WHERE session = (SELECT pk FROM session WHERE id = ?1)";
        let removed = file.execute(sql, [id.as_uuid().as_bytes().as_slice()]);
        assert_eq!(removed.expect("it can be damaged"), 1);
        let before = drivers[DAMAGED].state.revision;
        for round in 0..ROUNDS {
            let mut pending = Vec::new();
            for (at, driver) in drivers.iter_mut().enumerate() {
                let start = StartRequest {
                    output: Some(driver.output("answer")),
                    ..driver.leased("planner")
                };
                let worker = driver.worker(1);
                let record = driver.record(&worker, Command::StartRequest(start)).await;
                let mut commit = driver.commit_of(&record);
                commit.answer = (at == DAMAGED).then(|| Answer {
                    key,
                    fingerprint: key,
                    session: driver.session(),
                    revision: record.content.seq,
                    body: b"told".to_vec(),
                    expires_at: Timestamp::from_micros(i64::MAX),
                });
                let begun = store.begin_commit(commit).await.expect("there is room");
                pending.push((record, begun));
            }
            for (at, (record, begun)) in pending.into_iter().enumerate() {
                let told = begun.await;
                if at == DAMAGED {
                    let is_damage = matches!(told, Err(StoreError::Corrupt { .. }));
                    assert!(is_damage, "round {round}: {told:?}");
                } else {
                    assert_eq!(told.expect("it is sound"), record.content.seq);
                    drivers[at].absorb(&record);
                }
            }
            let kept = store.answer(key).await.expect("the store answers");
            assert_eq!(kept, None, "round {round}");
        }
        for driver in &drivers {
            let rows = "SELECT count(*) FROM log JOIN session ON log.session = session.pk
                        WHERE session.id = ?1";
            let id = driver.session();
            let rows = file.query_row(rows, [id.as_uuid().as_bytes().as_slice()], |row| {
                row.get::<_, i64>(0)
            });
            let rows = rows.expect("a count").unsigned_abs();
            assert_eq!(rows, driver.state.revision);
        }
        assert_eq!(drivers[DAMAGED].state.revision, before);
    });
}
