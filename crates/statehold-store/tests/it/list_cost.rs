//! A page of a list of sessions costs the same wherever it begins, and its order costs commits next to nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use statehold_core::command::{Command, StatePatch};
use statehold_core::ids::UserId;
use statehold_store::sqlite::{FILE_NAME, Meter, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::suite::fixture;
use statehold_store::{SessionOrder, SessionPlace, SessionQuery, SessionSummary, Store};

const SESSIONS: i64 = 100_000;
const PAGE: usize = 50;
/// How many rows of the log the order of sessions lags behind at most.
const LAG_MAX: usize = 256;

fn open(directory: &Path) -> (Arc<dyn Store>, Arc<Meter>) {
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        sync: false,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(directory, options).expect("the store opens");
    (Arc::new(store), meter)
}

async fn touch(driver: &mut Driver) {
    let nothing = Command::PutState {
        patch: StatePatch::default(),
        by: None,
    };
    driver.ok(&driver.client(), nothing).await;
}

/// Makes copies of the first session, so that there are many. `at` says when the n-th last changed.
fn multiply(directory: &Path, at: &str) {
    let conn = Connection::open(directory.join(FILE_NAME)).expect("it opens");
    let columns = "tenant, app, user, agent, labels, status, closed, deleted, ttl_mode, ttl_ms, expires_at,
                   revision, head, created_at, tasks_opened, requests_started, items_appended, last_log,
                   erased_log, origin, origin_seq";
    // Sessions that no list shows lie between those that it shows, and in front of them.
    let sql = format!(
        "WITH RECURSIVE number(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM number WHERE n < 1000 + {SESSIONS})
         INSERT INTO session(pk, id, last_at, listed, {columns})
           SELECT n, randomblob(16), {at},
             n % 3 <> 0 AND n < 1000 + {SESSIONS} - 5000, {columns}
           FROM number, session WHERE pk = 1;
         INSERT INTO session_update SELECT pk, tenant, app, user, last_at FROM session
           WHERE pk >= 1000 AND listed = 1"
    );
    conn.execute_batch(&sql).expect("they are made");
}

/// The steps of a page, and its last place.
async fn steps(store: &Arc<dyn Store>, meter: &Meter, query: SessionQuery) -> (u64, SessionPlace) {
    let before = meter.read_steps.load(Ordering::Relaxed);
    let page = store.sessions(query).await.expect("the store answers");
    let taken = meter.read_steps.load(Ordering::Relaxed) - before;
    assert_eq!(page.len(), PAGE);
    let last = page.last().map(SessionSummary::list_place);
    (taken, last.expect("the page has entries"))
}

fn queries(user: UserId) -> Vec<SessionQuery> {
    let (app, user) = (Some(fixture::owner().app), Some(user));
    let of = |app: &Option<_>, user: Option<UserId>, order| SessionQuery {
        tenant: fixture::owner().tenant,
        app: app.clone(),
        user,
        order,
        after: None,
        limit: PAGE,
    };
    let orders = [SessionOrder::Created, SessionOrder::Updated].into_iter();
    let queries = orders.flat_map(|order| {
        [
            of(&None, None, order),
            of(&app, None, order),
            of(&None, user, order),
            of(&app, user, order),
        ]
    });
    queries.collect()
}

fn a_page_costs_the_same_at_both_ends(at: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        let (store, _) = open(directory.path());
        let mut first = Driver::begin(&store, 1).await;
        for _ in 0..LAG_MAX {
            touch(&mut first).await;
        }
    });
    multiply(directory.path(), at);
    let (store, meter) = open(directory.path());
    block_on(async {
        // As many rows of the log as the order may lag behind, of as many sessions as a page has and more.
        for n in 2..(LAG_MAX as u64 / 2) {
            Driver::begin(&store, n).await;
        }
        for query in queries(fixture::owner().user) {
            let what = format!("{query:?}");
            let (start, place) = steps(&store, &meter, query.clone()).await;
            let (second, _) = steps(
                &store,
                &meter,
                SessionQuery {
                    after: Some(place),
                    ..query.clone()
                },
            )
            .await;
            // Before the end, in the middle of a row of sessions with the same time.
            let after = match query.order {
                SessionOrder::Created => place_of(directory.path(), "pk DESC"),
                SessionOrder::Updated => place_of(directory.path(), "last_at DESC, pk DESC"),
            };
            let (end, _) = steps(
                &store,
                &meter,
                SessionQuery {
                    after: Some(after),
                    ..query
                },
            )
            .await;
            println!("{start} steps at the start, {second} then, {end} at the end: {what}");
            let (least, most) = (start.min(second).min(end), start.max(second).max(end));
            assert!(
                most <= least * 2 && most < 20_000,
                "{start}, {second}, {end}: {what}"
            );
        }
    });
}

/// The place before the last of the copied sessions in a list.
fn place_of(directory: &Path, order: &str) -> SessionPlace {
    let conn = Connection::open(directory.join(FILE_NAME)).expect("it opens");
    let copied = format!("listed = 1 AND pk BETWEEN 1000 AND 1000 + {SESSIONS}");
    let sql = format!(
        "SELECT last_at, pk FROM session WHERE {copied} ORDER BY {order}
         LIMIT 1 OFFSET (SELECT count(*) - 100 FROM session WHERE {copied})"
    );
    let found = conn.query_row(&sql, [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    });
    let (at, pk) = found.expect("there are many");
    SessionPlace {
        updated_at: statehold_core::time::Timestamp::from_micros(at),
        number: u64::try_from(pk).expect("a number"),
    }
}

#[test]
fn a_page_of_100_000_sessions_costs_the_same_wherever_it_begins() {
    a_page_costs_the_same_at_both_ends("last_at - 1000000 * (n * 7919 % 100003)");
}

#[test]
fn a_page_of_100_000_sessions_with_the_same_time_costs_the_same_wherever_it_begins() {
    a_page_costs_the_same_at_both_ends("last_at - 1000000");
}

#[test]
fn the_order_of_changes_costs_commits_to_a_hot_session_a_few_pages_in_256() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, _) = open(directory.path());
    let wal = directory.path().join(FILE_NAME).with_extension("db-wal");
    let pages = || std::fs::metadata(&wal).map_or(0, |wal| wal.len() / (4096 + 24));
    block_on(async {
        let mut driver = Driver::begin(&store, 1).await;
        // The order is brought up to date with the 257th commit, and so on.
        while driver.state.revision < LAG_MAX as u64 + 1 {
            touch(&mut driver).await;
        }
        let mut counted = Vec::new();
        for _ in 0..2 * (LAG_MAX + 1) {
            let before = pages();
            touch(&mut driver).await;
            // Waypoints, and the pages that the log grows by, are the same in both halves.
            counted.push(pages() - before);
        }
        let plain = counted.iter().min().copied().expect("some were counted");
        let more: Vec<_> = counted.iter().filter(|pages| **pages > plain + 3).collect();
        println!("{plain} pages for a commit; more for {more:?}");
        assert_eq!(more.len(), 2, "{counted:?}");
        assert!(more.iter().all(|pages| **pages <= plain + 8), "{counted:?}");
    });
}
