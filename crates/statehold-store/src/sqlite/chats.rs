//! Requests that chat calls started, found by the digest of their input.
//!
//! A row costs the same for every message, and a session has a fixed number of places for its rows: a new
//! request takes the place of an old one.

use rusqlite::Connection;
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::record::Record;

use super::snapshot::Snapshot;
use super::sql::to_sql;
use super::{log, read, write};
use crate::commit::{CHAT_REQUESTS_MAX, chat_request_in};
use crate::port::StoreError;

/// The row of a request: its key, and the part of its digest that is indexed.
pub(super) fn row_of(record: &Record, session: i64) -> Option<(i64, i64)> {
    let (number, _, digest) = chat_request_in(record)?;
    let key = places_of(session).start + to_sql(number % CHAT_REQUESTS_MAX);
    Some((key, indexed(digest)))
}

/// The keys of a session's rows.
pub(super) fn places_of(session: i64) -> std::ops::Range<i64> {
    let most = to_sql(CHAT_REQUESTS_MAX);
    session * most..(session + 1) * most
}

fn indexed(digest: Digest) -> i64 {
    let bytes = digest.as_bytes().first_chunk();
    i64::from_be_bytes(*bytes.expect("a digest has 32 bytes"))
}

/// Writes the row of the request that a record starts.
pub(super) fn write(
    conn: &Connection,
    record: &Record,
    session: i64,
    log: i64,
) -> Result<(), StoreError> {
    let Some((key, digest)) = row_of(record, session) else {
        return Ok(());
    };
    let sql = "INSERT OR REPLACE INTO chat_request VALUES(?1, ?2, ?3)";
    write::run(conn, sql, (key, digest, log)).map(drop)
}

/// Removes the rows of a session.
pub(super) fn remove(conn: &Connection, session: i64) -> Result<(), StoreError> {
    let places = places_of(session);
    let sql = "DELETE FROM chat_request WHERE pk >= ?1 AND pk < ?2";
    write::run(conn, sql, (places.start, places.end)).map(drop)
}

/// Requests with this digest, newest first.
pub(super) fn find(
    from: &Snapshot<'_>,
    digest: Digest,
    limit: usize,
) -> Result<Vec<(SessionId, RequestId)>, StoreError> {
    let sql = "SELECT log FROM chat_request WHERE digest = ?1 ORDER BY log DESC LIMIT ?2";
    let key = (indexed(digest), to_sql(limit as u64));
    let rows: Vec<i64> = read::all(from, sql, key, |row| row.get(0))?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let record = log::row(from, row).and_then(|row| row.record());
        let Some(record) = from.sound(record)? else {
            continue;
        };
        let started = chat_request_in(&record).filter(|(.., whole)| *whole == digest);
        found.extend(started.map(|(_, request, _)| (record.content.session, request)));
    }
    Ok(found)
}
