//! Every column of every table is damaged, and `check` names each of them.

use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, params};
use statehold_core::digest::{Digest, PayloadKey};
use statehold_core::time::Timestamp;
use statehold_store::keys::{KeyFile, KeyOwner, PayloadKeys, UserKey};
use statehold_store::sqlite::FILE_NAME;
use statehold_store::suite::fixture;

use crate::check::{check, fill, put_back};

/// Numbers that are not compared.
const HARMLESS: [(&str, &str); 3] = [
    // The place of a hold in lists. No record says it.
    ("open_hold", "pk"),
    ("closed_hold", "pk"),
    // An erasure that goes on further back finds payloads that it has erased already.
    ("erasure", "log"),
];

/// How many bytes of a value are flipped, one after the other.
const FLIPS: usize = 3;

/// The payload key that the suite uses for a user.
fn keep_payload_key(directory: &Path) {
    let user = fixture::user(1);
    let secret = Digest::sha256(user.to_string().as_bytes());
    let key = PayloadKey::from_bytes(*secret.as_bytes());
    let key = UserKey::of(key, Timestamp::from_micros(0));
    let keys = KeyFile::open(directory).expect("keys can be kept");
    let kept = keys.keep(&KeyOwner::User(user), &key);
    kept.expect("the key is written");
}

/// The columns of all tables, each with whether it is the key of its rows.
fn columns(conn: &Connection) -> Vec<(String, String, bool)> {
    let sql = "SELECT tables.name, columns.name, columns.type = 'INTEGER' AND columns.pk > 0
               FROM sqlite_schema AS tables JOIN pragma_table_info(tables.name) AS columns
               WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite_%'";
    let mut statement = conn.prepare(sql).expect("it is read");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let rows = rows
        .expect("it is read")
        .map(|row| row.expect("it is read"));
    rows.collect()
}

/// The value with one bit flipped, for some of its bytes.
fn flipped(value: &Value) -> Vec<Value> {
    let at_each = |bytes: &[u8]| {
        let step = bytes.len().div_ceil(FLIPS).max(1);
        let places = (0..bytes.len()).step_by(step);
        let flipped = places.map(|at| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1;
            bytes
        });
        flipped.collect::<Vec<_>>()
    };
    match value {
        Value::Integer(number) => vec![
            Value::Integer(number ^ 1),
            Value::Integer(number ^ (1 << 20)),
        ],
        Value::Text(text) => {
            let texts = at_each(text.as_bytes()).into_iter();
            texts
                .map(|bytes| Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
                .collect()
        }
        Value::Blob(bytes) => at_each(bytes).into_iter().map(Value::Blob).collect(),
        Value::Null | Value::Real(_) => Vec::new(),
    }
}

/// A value of another type.
fn of_another_type(value: &Value) -> Value {
    match value {
        Value::Text(_) | Value::Integer(_) => Value::Blob(vec![0xff, 0x00]),
        _ => Value::Integer(7),
    }
}

#[test]
fn every_damaged_column_of_every_table_is_noticed() {
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    keep_payload_key(directory.path());
    assert_eq!(check(directory.path()), [], "the file is sound");
    let path = directory.path().join(FILE_NAME);
    let sound = std::fs::read(&path).expect("one tidy file");
    let open = || Connection::open(&path).expect("it opens");
    let (mut damaged, mut unnoticed) = (0, Vec::new());
    let columns = columns(&open());
    for (table, column, is_rowid) in columns {
        // A row that has a value there, if one has.
        let sql =
            format!("SELECT rowid, {column} FROM {table} ORDER BY {column} IS NULL, rowid LIMIT 1");
        let row = open().query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)));
        let (row, value): (i64, Value) =
            row.unwrap_or_else(|error| panic!("{table}.{column}: {error}"));
        let mut values = flipped(&value);
        // SQLite itself refuses another type for the key of a row.
        values.extend((!is_rowid).then(|| of_another_type(&value)));
        for value in values {
            let sql = format!("UPDATE {table} SET {column} = ?1 WHERE rowid = ?2");
            let changed = open().execute(&sql, params![value, row]);
            // Another row has that value.
            if matches!(&changed, Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation))
            {
                continue;
            }
            assert_eq!(changed.expect("it is damaged"), 1);
            damaged += 1;
            let is_harmless =
                HARMLESS.contains(&(&*table, &*column)) && matches!(value, Value::Integer(_));
            if check(directory.path()).is_empty() && !is_harmless {
                unnoticed.push(format!("{table}.{column}: {value:?}"));
            }
            put_back(directory.path(), &sound);
        }
    }
    println!("{damaged} values damaged");
    assert!(
        unnoticed.is_empty(),
        "{} of {damaged} not noticed: {unnoticed:#?}",
        unnoticed.len()
    );
}

#[test]
fn one_damaged_row_hides_no_other() {
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let conn = Connection::open(directory.path().join(FILE_NAME)).expect("it opens");
    for sql in [
        "UPDATE user SET name = x'ff'",
        "UPDATE api_key SET body = x'00' WHERE rowid = 1",
        "UPDATE answer SET body = CAST('another' AS BLOB)",
        "UPDATE resume_address SET body = x'00'",
        "UPDATE session SET id = 7 WHERE pk = 3",
        "UPDATE session SET head = zeroblob(32) WHERE pk = 1",
        "UPDATE tenant_log SET record = x'00' WHERE seq = 5",
    ] {
        assert_eq!(conn.execute(sql, []).expect("it is damaged"), 1, "{sql}");
    }
    drop(conn);
    let problems = check(directory.path());
    let first = fixture::session(1).to_string();
    for place in [
        "row 1 of the table `user`",
        "row 1 of the table `api_key`",
        "row 1 of the table `answer`",
        "row 1 of the table `resume_address`",
        "row 3 of the table `session`",
        "the audit stream of north",
        first.as_str(),
    ] {
        let is_named = problems.iter().any(|problem| problem.place.contains(place));
        assert!(is_named, "{place} is not named: {problems:#?}");
    }
}
