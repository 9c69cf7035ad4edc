//! Commits that are written in one transaction do not depend on each other.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use statehold_core::command::{Command, StartRequest};
use statehold_core::digest::Digest;
use statehold_core::record::Record;
use statehold_core::time::Timestamp;
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::{Answer, Commit, Store, StoreError};

const SESSIONS: u64 = 8;
const DAMAGED: usize = 4;
const ROUNDS: usize = 20;

/// How many transactions the log of the engine below has: each ends with a frame that names the length of the
/// file.
fn transactions(directory: &Path) -> usize {
    let wal = directory.join(FILE_NAME).with_extension("db-wal");
    let wal = std::fs::read(wal).expect("the log is there");
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let page = usize::try_from(number(&wal[8..12])).expect("the length of a page");
    let (salts, frames) = (&wal[16..24], wal[32..].chunks_exact(24 + page));
    let frames = frames.take_while(|frame| frame[8..16] == *salts);
    frames.filter(|frame| number(&frame[4..8]) != 0).count()
}

/// A turn; in the damaged session a rewind, with an answer to keep.
async fn next(driver: &mut Driver, at: usize, to: u64, key: Digest) -> (Record, Commit) {
    let record = if at == DAMAGED {
        let client = driver.client();
        driver.record(&client, Command::Rewind { to }).await
    } else {
        let start = StartRequest {
            output: Some(driver.output("answer")),
            ..driver.leased("planner")
        };
        let worker = driver.worker(1);
        driver.record(&worker, Command::StartRequest(start)).await
    };
    let mut commit = driver.commit_of(&record);
    commit.answer = (at == DAMAGED).then(|| Answer {
        key,
        fingerprint: key,
        session: driver.session(),
        revision: record.content.seq,
        body: b"told".to_vec(),
        expires_at: Timestamp::from_micros(i64::MAX),
    });
    (record, commit)
}

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
            driver.put(&[("topic", "1")]).await;
            driver.put(&[("topic", "2")]).await;
            drivers.push(driver);
        }
        // A rewind of this session writes its record, then does not find the value that it restores.
        let (id, to) = (drivers[DAMAGED].session(), 2);
        let sql = "UPDATE log SET bodies = x'' WHERE seq = ?2
                   AND session = (SELECT pk FROM session WHERE id = ?1)";
        let damaged = file.execute(sql, (id.as_uuid().as_bytes().as_slice(), to));
        assert_eq!(damaged.expect("it can be damaged"), 1);
        let before = drivers[DAMAGED].state.revision;
        let begun_with = transactions(directory.path());
        let mut sound = 0;
        for round in 0..ROUNDS {
            let mut decided = Vec::new();
            for (at, driver) in drivers.iter_mut().enumerate() {
                decided.push(next(driver, at, 2, key).await);
            }
            // One right after the other: the writer still waits for the disk with the first.
            let mut pending = Vec::new();
            for (record, commit) in decided {
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
                    sound += 1;
                }
            }
            let kept = store.answer(key).await.expect("the store answers");
            assert_eq!(kept, None, "round {round}");
        }
        let damaged = store.damage().counts();
        assert_eq!(damaged.sessions, 1, "the damage that a write met is known");
        let groups = transactions(directory.path()) - begun_with;
        assert!(groups < sound, "{sound} commits in {groups} transactions");
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

#[test]
fn the_log_of_many_small_commits_is_folded_before_it_is_long() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(directory.path(), SqliteOptions::default());
    let store: Arc<dyn Store> = Arc::new(store.expect("the store opens"));
    let log = directory.path().join(FILE_NAME).with_extension("db-wal");
    let (mut length, mut n) = (0, 0);
    block_on(async {
        // The log begins anew in its file once all of it is folded, so its length stays then.
        while n < 20_000 {
            for _ in 0..500 {
                n += 1;
                Driver::begin(&store, n).await;
            }
            let before = length;
            length = std::fs::metadata(&log).expect("the log is there").len();
            if length == before {
                break;
            }
        }
    });
    let is_bounded = (64 << 20..160 << 20).contains(&length);
    assert!(is_bounded, "{length} bytes after {n} sessions");
}
