//! `check` says nothing about a sound file, and names the place of everything that is not.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use statehold_store::Store;
use statehold_store::sqlite::{FILE_NAME, Problem, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::suite::{fixture, story};

/// A file with everything in it that can happen, two sessions and a fork of one of them.
fn fill(directory: &Path) {
    let store = SqliteStore::open(directory, SqliteOptions::default()).expect("a new store opens");
    let store: Arc<dyn Store> = Arc::new(store);
    block_on(async {
        let mut first = Driver::new(Arc::clone(&store), fixture::owner(), 1);
        story::tell(&mut first, story::OPEN).await;
        let mut fork = first.fork(2, story::NESTED).await;
        for _ in 0..70 {
            let note = fork.client();
            let patch = statehold_core::command::StatePatch::default();
            let nothing = statehold_core::command::Command::PutState { patch, by: None };
            fork.ok(&note, nothing).await;
        }
    });
}

fn check(directory: &Path) -> Vec<Problem> {
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
    for sql in [
        "UPDATE session SET revision = revision - 1 WHERE pk = 1",
        "UPDATE session SET head = zeroblob(32) WHERE pk = 1",
        "UPDATE session SET last_at = last_at + 1 WHERE pk = 1",
        "UPDATE session SET items_appended = items_appended + 1 WHERE pk = 1",
        "UPDATE session SET closed = 1 WHERE pk = 1",
        "UPDATE session SET agent = 'other' WHERE pk = 1",
        "UPDATE session SET name = 'other' WHERE pk = 1",
        "UPDATE session SET labels = '{\"forged\":true}' WHERE pk = 1",
        "DELETE FROM log WHERE id = 5",
        "UPDATE log SET record = (SELECT record FROM log WHERE id = 4) WHERE id = 5",
        "UPDATE log SET bodies = zeroblob(3) WHERE id = 2",
        "UPDATE log SET prev = 1 WHERE id = 5",
        "UPDATE log SET links = zeroblob(0) WHERE id = 2",
        "UPDATE log SET session = 2 WHERE id = 3",
        "UPDATE waypoint SET items_until = items_until + 1",
        "DELETE FROM waypoint",
        "INSERT INTO rewind VALUES(1, 3, 0, 2)",
        "DELETE FROM rewind",
        "DELETE FROM open_task WHERE session = 1",
        "UPDATE open_task SET body = replace(body, 'idle', 'paused')",
        "DELETE FROM closed_task",
        "UPDATE closed_task SET body = replace(body, 'cancelled', 'completed')",
        "DELETE FROM live_request",
        "DELETE FROM ended_request WHERE rowid = 1",
        "UPDATE ended_request SET body = replace(body, 'completed', 'cancelled')",
        "DELETE FROM closed_hold WHERE rowid = 1",
        "UPDATE closed_hold SET body = replace(body, 'approved', 'rejected')",
        "INSERT INTO closed_hold SELECT zeroblob(16), session, body FROM closed_hold LIMIT 1",
        "UPDATE state SET version = version - 1",
        "UPDATE state SET value = x'000078'",
        "DELETE FROM state",
        "UPDATE task_state SET value = x'000078'",
        "DELETE FROM task_state",
        "UPDATE shared SET value = x'000078' WHERE value IS NOT NULL",
        "UPDATE shared SET version = version + 1",
        "DELETE FROM shared",
        "DELETE FROM blob",
    ] {
        let changed = Connection::open(directory.path().join(FILE_NAME))
            .and_then(|conn| conn.execute(sql, []))
            .expect("the statement runs");
        if changed == 0 {
            // The story has none of these at its end; saying so keeps the list honest.
            println!("nothing to change: {sql}");
            continue;
        }
        let problems = check(directory.path());
        assert!(!problems.is_empty(), "not noticed: {sql}");
        println!("{sql}\n    {}: {}", problems[0].place, problems[0].what);
        std::fs::write(directory.path().join(FILE_NAME), &sound).expect("the file is put back");
        for rest in ["db-wal", "db-shm"] {
            let path = directory.path().join(FILE_NAME).with_extension(rest);
            if path.exists() {
                std::fs::remove_file(path).expect("the rest is removed");
            }
        }
    }
    assert_eq!(check(directory.path()), []);
}
