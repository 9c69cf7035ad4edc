//! Sessions in the order of their last change: after a restart, after a restore, and in damaged files.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use statehold_core::command::{Command, StatePatch};
use statehold_core::ids::SessionId;
use statehold_store::memory::MemoryStore;
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::suite::fixture::{self, seconds, session};
use statehold_store::{SessionOrder, SessionQuery, Store, StoreError};

fn open(directory: &Path) -> Arc<dyn Store> {
    let options = SqliteOptions {
        sync: false,
        ..SqliteOptions::default()
    };
    Arc::new(SqliteStore::open(directory, options).expect("the store opens"))
}

async fn listed(store: &Arc<dyn Store>, order: SessionOrder) -> Result<Vec<SessionId>, StoreError> {
    let query = SessionQuery {
        tenant: fixture::owner().tenant,
        app: None,
        user: None,
        order,
        after: None,
        limit: 100,
    };
    let found = store.sessions(query).await?;
    Ok(found.iter().map(|summary| summary.id).collect())
}

async fn by_change(store: &Arc<dyn Store>) -> Vec<SessionId> {
    let found = listed(store, SessionOrder::Updated).await;
    found.expect("the store answers")
}

async fn touch(driver: &mut Driver, times: usize) {
    for _ in 0..times {
        let patch = StatePatch::default();
        let nothing = Command::PutState { patch, by: None };
        driver.ok(&driver.client(), nothing).await;
    }
}

/// Three sessions, of which the first changed last, and often.
fn fill(directory: &Path) -> Driver {
    let store = open(directory);
    block_on(async {
        let mut first = Driver::begin(&store, 1).await;
        for n in 2..=3 {
            Driver::begin(&store, n).await;
        }
        first.now = seconds(1_000);
        touch(&mut first, 300).await;
        first.store = nowhere();
        first
    })
}

/// The store of a driver while its own is closed.
fn nowhere() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn tamper(directory: &Path, sql: &str) {
    let conn = Connection::open(directory.join(FILE_NAME)).expect("it opens");
    conn.execute_batch(sql).expect("it is damaged");
}

#[test]
fn the_order_of_changes_survives_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut first = fill(directory.path());
    for rounds in 0..3 {
        let store = open(directory.path());
        block_on(async {
            assert_eq!(by_change(&store).await, [1, 3, 2].map(session));
            first.store = Arc::clone(&store);
            touch(&mut first, 100 + rounds).await;
            assert_eq!(by_change(&store).await, [1, 3, 2].map(session));
        });
        first.store = nowhere();
        drop(store);
        let report = SqliteStore::check(directory.path(), &mut |_, _| {});
        assert_eq!(report.expect("the file opens").problems, []);
    }
}

#[test]
fn a_restored_store_lists_the_requests_that_it_took_from_their_workers() {
    let directory = tempfile::tempdir().expect("a directory");
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let backup = directory.path().join("backup");
    let options = SqliteOptions::default();
    let store = Arc::new(SqliteStore::open(&from, options).expect("the store opens"));
    block_on(async {
        let port: Arc<dyn Store> = Arc::<SqliteStore>::clone(&store);
        for n in 1..=300 {
            let mut driver = Driver::begin(&port, n).await;
            driver.queue("planner").await;
        }
        store.backup(backup.clone()).await.expect("it is copied");
    });
    drop(store);
    SqliteStore::restore(&backup, &to, &mut |_, _| {}).expect("it is restored");
    let report = SqliteStore::check(&to, &mut |_, _| {});
    assert_eq!(report.expect("the file opens").problems, []);
    let restored = open(&to);
    let found = block_on(by_change(&restored));
    assert_eq!(found.len(), 100);
    assert_eq!(found[0], session(300));
}

#[test]
fn a_list_leaves_out_a_session_whose_place_is_damaged() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(fill(directory.path()));
    tamper(
        directory.path(),
        "UPDATE session_update SET at = at + 1 WHERE session = 2",
    );
    let store = open(directory.path());
    assert_eq!(block_on(by_change(&store)), [1, 3].map(session));
    assert_eq!(store.damage().counts().sessions, 1);
}

#[test]
fn damage_in_the_order_of_changes_fails_its_list_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    for sql in [
        "UPDATE meta SET value = 'many' WHERE key = 'updates_until'",
        "UPDATE meta SET value = '1' WHERE key = 'updates_until'",
        "DELETE FROM meta WHERE key = 'updates_until'",
    ] {
        let path = directory.path().join(sql.len().to_string());
        let mut first = fill(&path);
        tamper(&path, sql);
        let store = open(&path);
        block_on(async {
            first.store = Arc::clone(&store);
            touch(&mut first, 300).await;
            let refused = listed(&store, SessionOrder::Updated).await;
            assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{sql}");
            let found = listed(&store, SessionOrder::Created).await;
            let found = found.expect("the other list is sound");
            assert_eq!(found, [3, 2, 1].map(session), "{sql}");
        });
    }
}
