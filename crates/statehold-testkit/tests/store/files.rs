//! Files that are not what they should be are refused, and left as they are. Copies are told apart
//! from the store they were copied from.

mod copies;
mod locks;

use std::path::Path;

use rusqlite::Connection;
use statehold_store::StoreError;
use statehold_store::sqlite::SqliteStore;
use statehold_testkit::workload::Random;

use crate::scene::{
    Author, chain, check, data_file, directory, open, options, require_clean, wait,
};

/// A store with a few commits, closed; returns the bytes of its file.
fn write_store(directory: &Path) -> Vec<u8> {
    let store = open(directory);
    wait(async {
        let mut author = Author::begin(&store, 0).await;
        author.turn(&store).await;
    });
    drop(store);
    std::fs::read(data_file(directory)).expect("reads")
}

fn change(directory: &Path, sql: &str) {
    let conn = Connection::open(data_file(directory)).expect("a database");
    conn.execute_batch(sql).expect("a statement");
}

/// Opening and checking must refuse, say why, and change nothing.
fn require_refused(directory: &Path, name: &str, words: &[&str]) {
    let before = std::fs::read(data_file(directory)).expect("reads");
    let refusals = [
        SqliteStore::open(directory, options()).map(drop),
        check(directory).map(drop),
    ];
    for refusal in refusals {
        let error = refusal.expect_err(name);
        let text = chain(&error);
        println!("{name}: {text}");
        assert!(
            matches!(error, StoreError::Unusable(_) | StoreError::Corrupt { .. }),
            "{name}: {error:?}"
        );
        assert!(
            words.iter().any(|word| text.contains(word)),
            "{name}: {text}"
        );
        assert!(!error.is_transient(), "{name}: trying again does not help");
    }
    let after = std::fs::read(data_file(directory)).expect("reads");
    assert!(before == after, "{name}: the file was changed");
    for name in ["-wal", "-journal"] {
        let mut beside = data_file(directory).into_os_string();
        beside.push(name);
        assert!(!Path::new(&beside).exists(), "something was left behind");
    }
}

#[test]
fn what_is_no_database_is_refused() {
    let text = b"To whom it may concern: this is a letter.\n".repeat(200);
    let mut random = Random::new(29);
    let noise: Vec<u8> = (0..2_000)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    let header = [b"SQLite format 3\0", &noise[..]].concat();
    for (name, bytes) in [
        ("a letter", text),
        ("noise", noise),
        ("a header and noise", header),
    ] {
        let directory = directory();
        std::fs::write(data_file(directory.path()), bytes).expect("writes");
        require_refused(directory.path(), name, &["not a database"]);
    }
}

#[test]
fn an_empty_file_is_a_store_that_was_never_begun() {
    // A loss of power can leave one before the first commit, so it must not be in the way.
    let directory = directory();
    std::fs::write(data_file(directory.path()), b"").expect("writes");
    let refused = check(directory.path()).expect_err("there is nothing to check");
    assert!(
        refused.to_string().contains("not a Statehold store"),
        "{refused}"
    );
    write_store(directory.path());
    assert_eq!(require_clean(directory.path()).records, 2);
}

#[test]
fn the_file_of_another_application_is_refused_and_left_alone() {
    for mode in ["DELETE", "WAL"] {
        let directory = directory();
        let conn = Connection::open(data_file(directory.path())).expect("a new database");
        conn.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |_| Ok(()))
            .expect("a setting");
        conn.execute_batch("CREATE TABLE note(text TEXT); INSERT INTO note VALUES('mine');")
            .expect("a statement");
        drop(conn);
        let name = format!("another application's file ({mode})");
        require_refused(directory.path(), &name, &["not a Statehold store"]);
    }
    let directory = directory();
    change(
        directory.path(),
        "PRAGMA user_version = 1; PRAGMA application_id = 7;",
    );
    require_refused(
        directory.path(),
        "tables to come",
        &["not a Statehold store"],
    );
}

#[test]
fn what_somebody_added_or_took_away_is_refused() {
    for (sql, word) in [
        (
            "PRAGMA user_version = 1",
            "layout 1, which an earlier version writes",
        ),
        (
            "PRAGMA user_version = 7",
            "layout 7, which a newer version writes",
        ),
        ("PRAGMA user_version = 2147483647", "layout 2147483647"),
        ("PRAGMA user_version = -1", "layout"),
        ("PRAGMA user_version = 0", "layout"),
        ("PRAGMA application_id = 1", "not a Statehold store"),
        (
            "CREATE TRIGGER evil AFTER INSERT ON log BEGIN DELETE FROM log; END",
            "trigger `evil`",
        ),
        ("CREATE VIEW evil AS SELECT * FROM log", "view `evil`"),
        ("CREATE INDEX evil ON log(seq)", "index `evil`"),
        (
            "CREATE INDEX evil ON log(abs(seq)) WHERE seq > 5",
            "index `evil`",
        ),
        ("CREATE TABLE evil(x)", "table `evil`"),
        ("CREATE VIRTUAL TABLE evil USING fts5(x)", "`evil"),
        ("ALTER TABLE log ADD COLUMN evil TEXT", "table `log`"),
        ("ALTER TABLE log RENAME COLUMN seq TO number", "table `log`"),
        ("DROP TABLE blob", "`blob`"),
        ("DROP INDEX waypoint_by_seq", "index `waypoint_by_seq`"),
        (
            "PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = replace(sql, 'seq INTEGER NOT NULL', 'seq INTEGER')
             WHERE name = 'log'",
            "table `log`",
        ),
        (
            "DROP TABLE blob; CREATE VIEW blob AS SELECT 1 AS user, 2 AS digest, 3 AS data",
            "`blob`",
        ),
        ("ANALYZE", "sqlite_stat1"),
    ] {
        let directory = directory();
        write_store(directory.path());
        change(directory.path(), sql);
        require_refused(directory.path(), sql, &[word]);
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let directory = directory();
    let whole = write_store(directory.path());
    let page_size = |bytes: &mut Vec<u8>, size: u16| {
        bytes[16..18].copy_from_slice(&size.to_be_bytes());
    };
    let damage = ["not a database", "malformed", "is not as it should be"];
    for size in [0, 1, 3, 100, 512, 1024, 2048, 8192, 32_768, 4095, 65_535] {
        let mut bytes = whole.clone();
        page_size(&mut bytes, size);
        std::fs::write(data_file(directory.path()), bytes).expect("writes");
        require_refused(directory.path(), &format!("page size {size}"), &damage);
    }
    // Magic, versions, reserved space, payload fractions, page count, encoding.
    for (at, value) in [
        (0, 0),
        (18, 9),
        (19, 9),
        (20, 255),
        (21, 0),
        (30, 200),
        (59, 2),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        std::fs::write(data_file(directory.path()), bytes).expect("writes");
        let words = [
            "not a database",
            "malformed",
            "only be read",
            "is not as it",
        ];
        require_refused(directory.path(), &format!("byte {at} is {value}"), &words);
    }
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let directory = directory();
    let whole = write_store(directory.path());
    for length in [
        2,
        99,
        100,
        4095,
        4096,
        whole.len() / 2,
        whole.len() - 4096,
        whole.len() - 1,
    ] {
        std::fs::write(data_file(directory.path()), &whole[..length]).expect("writes");
        let words = ["not a database", "malformed", "the end of the file"];
        require_refused(directory.path(), &format!("{length} bytes"), &words);
    }
}

#[test]
fn what_somebody_put_behind_the_last_page_is_refused() {
    let directory = directory();
    let whole = write_store(directory.path());
    for garbage in [1, 100, 4096, 3 * 4096 + 5] {
        let bytes = [&whole[..], &vec![0xa5; garbage]].concat();
        std::fs::write(data_file(directory.path()), bytes).expect("writes");
        let name = format!("{garbage} bytes of garbage");
        require_refused(directory.path(), &name, &["the end of the file"]);
    }
}
