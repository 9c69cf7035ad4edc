//! Removing payloads from the log, a few rows at a time. Records and their digests stay.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension};
use statehold_core::digest::Digest;
use statehold_core::ids::{SessionId, UserId};
use statehold_core::record::ErasedPayloads;

use super::log::{self, LogRow, SessionRow};
use super::read;
use super::sql::{corrupt_or_unavailable, damaged, from_sql, id_bytes};
use super::tail::Tail;
use crate::codec;
use crate::port::{DamageLog, PageLimit, StoreError};

/// How the table spells it.
pub(super) fn name_of(payloads: ErasedPayloads) -> &'static str {
    match payloads {
        ErasedPayloads::Hidden => "hidden",
        ErasedPayloads::All => "all",
    }
}

/// How much there was to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErasedRows {
    /// Nothing.
    Nothing,
    /// Some, and there may be more.
    Some,
    /// Some, and it was the last.
    Last,
}

/// Whether pages that fall free are overwritten too.
pub(super) fn overwrite_pages(conn: &Connection, always: bool) -> Result<(), StoreError> {
    let sql = if always {
        "PRAGMA secure_delete = ON"
    } else {
        "PRAGMA secure_delete = FAST"
    };
    conn.execute_batch(sql)
        .map_err(corrupt_or_unavailable("the settings"))
}

/// Removes payloads within the limit, but of at least one row of the log, in one transaction, and the rows from
/// the tail. Also returns the bytes of the payloads.
pub(super) fn some(
    conn: &mut Connection,
    limit: PageLimit,
    tail: &Tail,
    noted: &DamageLog,
) -> Result<(ErasedRows, u64), StoreError> {
    overwrite_pages(conn, true)?;
    let erased = some_rows(conn, limit, tail, noted);
    overwrite_pages(conn, false)?;
    erased
}

fn some_rows(
    conn: &mut Connection,
    limit: PageLimit,
    tail: &Tail,
    noted: &DamageLog,
) -> Result<(ErasedRows, u64), StoreError> {
    let place = corrupt_or_unavailable("removing payloads");
    let mut transaction = conn.transaction().map_err(&place)?;
    let mut changed = BTreeSet::new();
    let (mut rows, mut bytes) = (0, 0_u64);
    let mut forks = KnownForks::default();
    // The last session that is damaged: its payloads stay, and those of the sessions after it go.
    let mut damage: Option<(i64, StoreError)> = None;
    while rows < limit.entries
        && let Some(pk) = next(&transaction, damage.as_ref())?
    {
        let step = transaction.savepoint().map_err(&place)?;
        let left = limit.bytes.saturating_sub(bytes);
        match one(
            &step,
            pk,
            if rows == 0 { u64::MAX } else { left },
            &mut forks,
        ) {
            Ok(Some(removed)) => {
                step.commit().map_err(&place)?;
                changed.extend(removed.session);
                bytes = bytes.saturating_add(removed.bytes);
                rows += 1;
            }
            Ok(None) => break,
            Err(error @ StoreError::Corrupt { .. }) => {
                let error = in_session(&step, pk, error);
                noted.note(&error);
                damage = Some((pk, error));
            }
            Err(error) => return Err(error),
        }
    }
    let erased = match rows {
        0 => ErasedRows::Nothing,
        _ if next(&transaction, damage.as_ref())?.is_none() => ErasedRows::Last,
        _ => ErasedRows::Some,
    };
    // A reader may have filled the tail since the record that removes them.
    tail.begin_group(changed.iter().copied());
    let committed = transaction.commit().map_err(&place);
    tail.end_erasure(changed);
    committed?;
    match damage {
        Some((_, error)) if erased == ErasedRows::Nothing => Err(error),
        _ => Ok((erased, bytes)),
    }
}

/// Damage with the session that it is in, if that has a row which can be read.
fn in_session(conn: &Connection, pk: i64, error: StoreError) -> StoreError {
    match log::session_by_pk(conn, pk) {
        Ok(Some(session)) => error.in_session(session.id),
        _ => error,
    }
}

/// The first session with payloads to remove, after the one that is damaged.
fn next(conn: &Connection, damage: Option<&(i64, StoreError)>) -> Result<Option<i64>, StoreError> {
    let after = damage.map_or(0, |(pk, _)| *pk);
    let sql = "SELECT session FROM erasure WHERE session > ?1 ORDER BY session LIMIT 1";
    read::first(conn, sql, [after], |row| row.get(0))
}

/// The payloads that went with one row of the log.
struct RemovedRow {
    session: Option<SessionId>,
    bytes: u64,
}

/// Goes one row back in a session. None if its payloads have more than `bytes_max` bytes.
fn one(
    conn: &Connection,
    pk: i64,
    bytes_max: u64,
    forks: &mut KnownForks,
) -> Result<Option<RemovedRow>, StoreError> {
    let place = corrupt_or_unavailable("the table `erasure`");
    let (payloads, at, floor): (String, i64, i64) = conn
        .prepare_cached("SELECT payloads, log, floor FROM erasure WHERE session = ?1")
        .and_then(|mut statement| {
            statement.query_row([pk], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        })
        .map_err(&place)?;
    let payloads = match payloads.as_str() {
        "hidden" => ErasedPayloads::Hidden,
        "all" => ErasedPayloads::All,
        _ => {
            return Err(damaged(
                "the table `erasure`",
                "it names no kind of payloads",
            ));
        }
    };
    let session = log::session_by_pk(conn, pk)?;
    if let Some(session) = &session {
        match row_beside(conn, session, bytes_max)? {
            RowBeside::Removed(bytes) => {
                let session = Some(session.id);
                return Ok(Some(RemovedRow { session, bytes }));
            }
            RowBeside::TooLong => return Ok(None),
            RowBeside::None => {}
        }
    }
    let (before, bytes) = match &session {
        Some(session) if at != 0 => {
            let forks = forks.of(conn, pk)?;
            let Some(removed) = row(conn, (session, forks), payloads, at, bytes_max)? else {
                return Ok(None);
            };
            removed
        }
        _ => (0, 0),
    };
    let before = if before <= floor { 0 } else { before };
    let sql = match before {
        0 => "DELETE FROM erasure WHERE session = ?1 AND ?2 = 0",
        _ => "UPDATE erasure SET log = ?2 WHERE session = ?1",
    };
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.execute((pk, before)))
        .map_err(&place)?;
    let session = session.map(|session| session.id);
    Ok(Some(RemovedRow { session, bytes }))
}

/// The outcome for a row beside the log.
enum RowBeside {
    /// It had so many bytes.
    Removed(u64),
    TooLong,
    /// There is none to remove.
    None,
}

/// Removes one row with a private state or a value that the session has lost, if it has at most `bytes_max` bytes.
fn row_beside(
    conn: &Connection,
    session: &SessionRow,
    bytes_max: u64,
) -> Result<RowBeside, StoreError> {
    let private =
        "SELECT rowid, length(value) FROM task_state WHERE session = ?1 AND log <= ?2 LIMIT 1";
    let value = "SELECT rowid, length(value) FROM state WHERE session = ?1 LIMIT 1";
    let columns = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, from_sql(row.get(1)?)));
    let key = (session.pk, session.erased_log);
    let mut found = read::first(conn, private, key, columns)?.map(|row| ("task_state", row));
    if found.is_none() && session.deleted {
        found = read::first(conn, value, [session.pk], columns)?.map(|row| ("state", row));
    }
    match found {
        None => Ok(RowBeside::None),
        Some((_, (_, bytes))) if bytes > bytes_max => Ok(RowBeside::TooLong),
        Some((table, (row, bytes))) => {
            let sql = format!("DELETE FROM {table} WHERE rowid = ?1");
            conn.prepare_cached(&sql)
                .and_then(|mut statement| statement.execute([row]))
                .map_err(corrupt_or_unavailable(table))?;
            Ok(RowBeside::Removed(bytes))
        }
    }
}

/// Removes the payloads of one row; returns the row before it, or 0 at the end, and the bytes of the payloads.
/// None if these are more than `bytes_max`.
fn row(
    conn: &Connection,
    (session, forks): (&SessionRow, &Forks),
    payloads: ErasedPayloads,
    at: i64,
    bytes_max: u64,
) -> Result<Option<(i64, u64)>, StoreError> {
    let row = log::row(conn, at)?;
    if row.session != session.pk {
        return Ok(Some((0, 0)));
    }
    if let Some(after) = forks.needed_after(row.id, row.seq) {
        return Ok(Some((own_row(conn, session.pk, after)?, 0)));
    }
    let is_shared = row.seq <= forks.shared_until();
    let payloads = if is_shared {
        ErasedPayloads::Hidden
    } else {
        payloads
    };
    let record = row.record()?;
    let erased = record.erased(payloads);
    let named = record.bodies().into_iter().zip(&erased);
    let bytes = named.filter(|(_, gone)| **gone);
    let bytes = bytes.map(|(body, _)| u64::from(body.bytes)).sum();
    if bytes > bytes_max {
        return Ok(None);
    }
    let moved = moved(conn, &row, payloads, &erased)?;
    if erased.contains(&true) || !moved.is_empty() {
        let digests = row.blobs(&record)?;
        for (digest, _) in digests.into_iter().zip(&erased).filter(|(_, gone)| **gone) {
            if let Some(digest) = digest {
                release_blob(conn, session.user, &digest)?;
            }
        }
        let gone = codec::erased();
        let bodies = codec::split_bodies(&row.bodies);
        let mut bodies = bodies.map_err(|error| damaged(row.place(), error))?;
        for (body, _) in bodies.iter_mut().zip(&erased).filter(|(_, gone)| **gone) {
            *body = &gone;
        }
        for (index, stored) in &moved {
            bodies[*index] = stored;
        }
        conn.prepare_cached("UPDATE log SET bodies = ?2 WHERE id = ?1")
            .and_then(|mut statement| statement.execute((at, bodies.concat())))
            .map_err(corrupt_or_unavailable("the table `log`"))?;
    }
    Ok(Some((row.prev, bytes)))
}

/// Counts one payload less that is kept as a blob, and removes the blob after the last.
fn release_blob(conn: &Connection, user: UserId, digest: &Digest) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the table `blob`");
    let (user, first) = (id_bytes(user.as_uuid()), digest.as_bytes().as_slice());
    let sql = "UPDATE blob SET refs = refs - 1 WHERE user = ?1 AND digest = ?2 RETURNING refs";
    let left: Option<i64> = conn
        .prepare_cached(sql)
        .and_then(|mut statement| {
            let left = statement.query_row((user, first), |row| row.get(0));
            left.optional()
        })
        .map_err(&place)?;
    if left.is_some_and(|left| left <= 0) {
        let sql = format!("DELETE FROM blob {}", log::BLOB_PARTS);
        conn.prepare_cached(&sql)
            .and_then(|mut statement| statement.execute((user, first, log::after_parts(digest))))
            .map_err(&place)?;
    }
    Ok(())
}

/// Payloads that stay and refer to payloads that go: the bytes of those. Rows are erased from the newest to
/// the oldest, and a reference leads to an older one, so the bytes are still there.
fn moved(
    conn: &Connection,
    row: &LogRow,
    payloads: ErasedPayloads,
    erased: &[bool],
) -> Result<Vec<(usize, Vec<u8>)>, StoreError> {
    let mut moved = Vec::new();
    for (index, place) in row.references()? {
        if erased.get(index) == Some(&false) {
            let stored = row.referred(conn, place)?;
            let there = log::row(conn, place.row)?.record()?;
            if there.erased(payloads).get(place.index as usize) == Some(&true) {
                moved.push((index, stored));
            }
        }
    }
    Ok(moved)
}

/// The forks of a session, and theirs, each with the last record that both share. A fork is younger than its origin,
/// so this ends also where the table is damaged.
const FORKS: &str = "WITH RECURSIVE fork(pk, until, deleted, erased_log) AS (
     SELECT pk, origin_seq, deleted, erased_log FROM session WHERE origin = ?1 AND pk > ?1
     UNION ALL
     SELECT session.pk, min(fork.until, session.origin_seq), session.deleted, session.erased_log
     FROM fork JOIN session ON session.origin = fork.pk AND session.pk > fork.pk
   )";

/// The living sessions that share rows of one session: its forks, and theirs.
#[derive(Default)]
pub(super) struct Forks {
    /// The last record that a fork shares, and the row down to which that fork, or one which shares more, needs the
    /// hidden payloads. The fork that shares most comes first, so neither number grows.
    needs: Vec<(u64, i64)>,
}

impl Forks {
    pub(super) fn read(conn: &Connection, pk: i64) -> Result<Self, StoreError> {
        let sql = format!("{FORKS} SELECT until, erased_log FROM fork WHERE NOT deleted");
        let mut needs = read::all(conn, &sql, [pk], |row| {
            Ok((from_sql(row.get(0)?), row.get(1)?))
        })?;
        needs.sort_unstable_by(|one, other| other.cmp(one));
        let mut lowest = i64::MAX;
        for (_, erased_log) in &mut needs {
            lowest = lowest.min(*erased_log);
            *erased_log = lowest;
        }
        Ok(Self { needs })
    }

    /// The last record that a living session shares.
    pub(super) fn shared_until(&self) -> u64 {
        self.needs.first().map_or(0, |(until, _)| *until)
    }

    /// Whether a living session shares a row, given with the number of its record, and needs the hidden payloads: no
    /// removal of its own, or before it began, has taken them. If so, the row down to which it needs those of all
    /// older rows too.
    pub(super) fn needed_after(&self, row: i64, seq: u64) -> Option<i64> {
        let sharing = self.needs.partition_point(|(until, _)| *until >= seq);
        let (_, lowest) = self.needs[..sharing].last()?;
        (*lowest < row).then_some(*lowest)
    }
}

/// The forks of the session that was looked at last: a transaction reads those of a session once.
#[derive(Default)]
struct KnownForks {
    pk: i64,
    forks: Forks,
}

impl KnownForks {
    fn of(&mut self, conn: &Connection, pk: i64) -> Result<&Forks, StoreError> {
        if self.pk != pk {
            self.forks = Forks::read(conn, pk)?;
            self.pk = pk;
        }
        Ok(&self.forks)
    }
}

/// The row, if it is one of the session; else 0.
fn own_row(conn: &Connection, pk: i64, row: i64) -> Result<i64, StoreError> {
    let sql = "SELECT session FROM log WHERE id = ?1";
    let session: Option<i64> = read::first(conn, sql, [row], |found| found.get(0))?;
    Ok(if session == Some(pk) { row } else { 0 })
}

/// Takes the hidden payloads that a session has up to its row `last_log` from all who read it, and schedules the
/// erasure of the bytes, and of payloads that its origins had to keep because this session shared them.
pub(super) fn begin(
    conn: &Connection,
    pk: i64,
    payloads: ErasedPayloads,
    last_log: i64,
) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the table `session`");
    let Some(session) = log::session_by_pk(conn, pk)? else {
        return Ok(());
    };
    conn.prepare_cached("UPDATE session SET erased_log = ?2 WHERE pk = ?1")
        .and_then(|mut statement| statement.execute((pk, last_log)))
        .map_err(place)?;
    let former = session.erased_log;
    let floor = match payloads {
        ErasedPayloads::Hidden => own_row(conn, pk, former)?,
        ErasedPayloads::All => 0,
    };
    note(conn, pk, payloads, (last_log, floor))?;
    let mut shared = session;
    while let Some(origin) = log::session_by_pk(conn, shared.origin)? {
        // This session read the origin up to the fork point only, and no hidden payload up to `former`.
        let point = log::seek_id(conn, &origin, shared.origin_seq)?;
        let is_all = payloads == ErasedPayloads::All;
        if point <= former && !is_all {
            break;
        }
        note_origin(conn, &origin, (point, former), is_all)?;
        shared = origin;
    }
    Ok(())
}

/// Schedules the removal of payloads that an origin had to keep because a session shared it up to the row `point`, and
/// its hidden payloads behind the row `former`.
fn note_origin(
    conn: &Connection,
    origin: &SessionRow,
    (point, former): (i64, i64),
    is_deleted: bool,
) -> Result<(), StoreError> {
    let last_log = own_row(conn, origin.pk, origin.erased_log.min(point))?;
    let (payloads, after) = if origin.deleted && is_deleted {
        let until = Forks::read(conn, origin.pk)?.shared_until();
        // Up to here the living ones need the visible payloads, which no removal of theirs takes.
        let visible = if until > origin.origin_seq {
            log::seek_id(conn, origin, until.min(origin.revision))?
        } else {
            0
        };
        (ErasedPayloads::All, visible.min(former))
    } else if origin.deleted {
        (ErasedPayloads::All, former)
    } else {
        (ErasedPayloads::Hidden, former)
    };
    if last_log <= after {
        return Ok(());
    }
    let floor = own_row(conn, origin.pk, after)?;
    note(conn, origin.pk, payloads, (last_log, floor))
}

/// Schedules the removal of payloads from a row of a session back to another one, with what is scheduled already.
fn note(
    conn: &Connection,
    pk: i64,
    payloads: ErasedPayloads,
    (last_log, floor): (i64, i64),
) -> Result<(), StoreError> {
    let sql = "INSERT INTO erasure VALUES(?1, ?2, ?3, ?4)
               ON CONFLICT(session) DO UPDATE SET payloads = excluded.payloads,
               log = max(log, excluded.log), floor = min(floor, excluded.floor)";
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.execute((pk, name_of(payloads), last_log, floor)))
        .map(drop)
        .map_err(corrupt_or_unavailable("the table `erasure`"))
}
