//! A data directory belongs to one process, and to one store in it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use statehold_store::StoreError;
use statehold_store::sqlite::SqliteStore;

use crate::scene::{check, directory, open, options, require_clean, wait};

fn require_in_use(result: Result<(), StoreError>, pid: u32) {
    let Err(StoreError::Unusable(text)) = result else {
        panic!("not refused: {result:?}");
    };
    let words = format!("in use by process {pid}; stop it first");
    assert!(text.contains(&words), "{text}");
}

#[test]
fn a_second_store_in_the_same_process_is_refused() {
    let directory = directory();
    let store = open(directory.path());
    let backup = directory.path().join("backup.db");
    wait(store.backup(backup.clone())).expect("backed up");
    let pid = std::process::id();
    require_in_use(
        SqliteStore::open(directory.path(), options()).map(drop),
        pid,
    );
    require_in_use(check(directory.path()).map(drop), pid);
    require_in_use(
        SqliteStore::restore(&backup, directory.path(), &mut |_, _| {}).map(drop),
        pid,
    );
    drop(store);
    require_clean(directory.path());
    drop(open(directory.path()));
}

#[test]
fn a_store_of_another_process_is_refused_until_that_has_ended() {
    let directory = directory();
    let mut writer = Command::new(env!("CARGO_BIN_EXE_crash"))
        .arg("writer")
        .arg(directory.path())
        .args(["1", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the writer starts");
    let output = writer.stdout.take().expect("it was asked for");
    let first = BufReader::new(output).lines().next();
    let first = first.expect("it writes").expect("and says so");
    assert!(first.starts_with("ses_"), "{first}");
    require_in_use(
        SqliteStore::open(directory.path(), options()).map(drop),
        writer.id(),
    );
    require_in_use(check(directory.path()).map(drop), writer.id());
    writer.kill().expect("it can be ended");
    writer.wait().expect("it has ended");
    drop(open(directory.path()));
    assert!(require_clean(directory.path()).records > 0);
}
