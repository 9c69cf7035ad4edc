//! Beginning a fork costs what the origin has at the fork point, not how long its log is. Counted in
//! instructions of the engine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use statehold_store::sqlite::{FILE_NAME, Meter, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::{KeyRange, PageLimit, Store};

const KEYS: usize = 200;
/// The fork points lie at the same distance from a waypoint.
const EARLY: u64 = 10;
const LATE: u64 = EARLY + 64 * 80;

fn values(text: &str) -> Vec<(String, String)> {
    let value = |n| (format!("key-{n}"), format!("\"{text} {n}\""));
    (0..KEYS).map(value).collect()
}

async fn put(driver: &mut Driver, values: &[(String, String)]) {
    let values: Vec<_> = values
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    driver.put(&values).await;
}

/// The writer's steps for a fork behind so many turns. Half of the keys and the private state of the open task
/// have changed since the fork point; nothing was written to either for all those turns.
async fn steps(store: &Arc<dyn Store>, meter: &Meter, n: u64, turns: u64) -> u64 {
    let mut driver = Driver::begin(store, n).await;
    driver.run("planner", 86_400_000).await;
    let remember = driver.remember(1, "early");
    driver.by_worker(remember).await;
    put(&mut driver, &values("early")).await;
    for _ in 0..turns {
        driver.turn("writer").await;
    }
    let point = driver.state.revision;
    let remember = driver.remember(1, "late");
    driver.by_worker(remember).await;
    put(&mut driver, &values("late")[..KEYS / 2]).await;
    let before = meter.steps.load(Ordering::Relaxed);
    let fork = driver.fork(n + 1, point).await;
    let taken = meter.steps.load(Ordering::Relaxed) - before;
    let state = store.task_state(fork.tasks[0]).await;
    assert_eq!(
        state.expect("the store answers").as_deref(),
        Some(&b"early"[..])
    );
    let page = store.state(
        fork.session(),
        KeyRange::default(),
        PageLimit::entries(KEYS + 1),
    );
    let page = page.await.expect("the store answers");
    let found = page.values.into_iter().map(|(key, found)| {
        let value = String::from_utf8(found.value).expect("JSON is text");
        (key.to_string(), value)
    });
    let mut expected = values("early");
    expected.sort();
    assert_eq!(found.collect::<Vec<_>>(), expected);
    taken
}

#[test]
fn a_fork_behind_many_turns_costs_the_writer_what_one_behind_few_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        sync: false,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(directory.path(), options);
    let store: Arc<dyn Store> = Arc::new(store.expect("a new store opens"));
    block_on(async {
        let few = steps(&store, &meter, 1, EARLY).await;
        let many = steps(&store, &meter, 3, LATE).await;
        println!("{few} instructions behind {EARLY} turns, {many} behind {LATE}");
        assert!(few.abs_diff(many) * 10 <= few, "{few} early, {many} late");
    });
}

/// The bytes that rows and their indexes take in the file, without what is free in its pages.
fn used_bytes(directory: &Path) -> u64 {
    let conn = Connection::open(directory.join(FILE_NAME)).expect("it opens");
    let sql = "SELECT sum(pgsize - unused) FROM dbstat";
    let used: i64 = conn.query_row(sql, [], |row| row.get(0)).expect("a sum");
    u64::try_from(used).expect("a length")
}

#[test]
fn a_fork_of_10_000_turns_writes_less_than_10_kb() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions {
        sync: false,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(directory.path(), options);
    let store: Arc<dyn Store> = Arc::new(store.expect("a new store opens"));
    block_on(async {
        let mut driver = Driver::begin(&store, 1).await;
        put(&mut driver, &values("early")[..10]).await;
        for _ in 0..10_000 {
            driver.turn("writer").await;
        }
        let before = used_bytes(directory.path());
        let fork = driver.fork(2, driver.state.revision).await;
        let written = used_bytes(directory.path()) - before;
        println!("{written} bytes for a fork of 10,000 turns in {before} bytes");
        assert_eq!(fork.state.keys.len(), 10);
        assert!(written < 10_000, "{written}");
    });
}
