//! Compares all tables of the file with its log.
//!
//! The pages are checked by the engine, the log by its hash chain and by the roots that were signed,
//! payloads by their digests (where the owner's key still exists), every record by the promises of
//! the core, and every projection by folding the log again.

mod beside;
mod columns;
mod erased;
mod memories;
mod sums;
mod tenant;
mod updates;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use statehold_core::ids::SessionId;
use statehold_core::invariant::{Facts, RecordStep};
use statehold_core::name::Name;
use statehold_core::projection::{Changes, ClosedHold, project};
use statehold_core::record::Event;
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::tenant::TenantHead;

use erased::ErasureCheck;
use memories::Memories;

use super::log::{self, OpenedBody, PayloadReader, SessionRow, Uuid16};
use super::snapshot::KeyedConnection;
use super::sql::{corrupt_or_unavailable, damaged};
use super::{read, schema};
use crate::check::{Anchors, CheckReport, Problem, ProblemKind, check_payloads, check_record};
use crate::commit::results_in;
use crate::keys::{KeyFile, KnownKeys};
use crate::port::{PageLimit, StoreError, StoredRecord};
use crate::seal::{NoKeys, SealKeys};

/// How many records are held in memory at a time.
const PAGE: usize = 1_000;

/// The extent of a check: the whole store, or the data of one tenant.
#[derive(Clone, Copy, Default)]
pub(super) struct Extent<'a> {
    pub(super) tenant: Option<&'a Name>,
    /// An entry of the tenant's audit stream that must be there.
    pub(super) expected: Option<TenantHead>,
    /// Whether the file is a backup, which no server may open.
    pub(super) is_backup: bool,
}

pub(super) fn check(
    path: &Path,
    directory: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CheckReport, StoreError> {
    let conn = schema::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    schema::require_ours(&conn)?;
    schema::require_writable(&conn)?;
    schema::require_length(&conn, path)?;
    check_with_keys(&conn, Some(directory), Extent::default(), progress)
}

/// Checks a snapshot, payloads as far as the keys in a directory go.
pub(super) fn check_with_keys(
    conn: &Connection,
    directory: Option<&Path>,
    extent: Extent<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CheckReport, StoreError> {
    let directory = directory.filter(|directory| directory.join(KeyFile::NAME).is_file());
    let keys = directory.map(KeyFile::read).transpose()?;
    let keys = keys.as_ref().map(|keys| keys as &dyn KnownKeys);
    check_snapshot(conn, keys, extent, progress)
}

/// Checks the snapshot that a connection reads; it must stay the same during the check.
pub(super) fn check_snapshot(
    conn: &Connection,
    keys: Option<&dyn KnownKeys>,
    extent: Extent<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport::default();
    match check_all(conn, keys, extent, &mut report, progress) {
        // Damage is a finding, not a failure of the check.
        Err(error @ StoreError::Corrupt { .. }) => {
            report.add(Problem::of(ProblemKind::Projection, &error));
        }
        other => other?,
    }
    Ok(report)
}

fn check_all(
    conn: &Connection,
    keys: Option<&dyn KnownKeys>,
    extent: Extent<'_>,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), StoreError> {
    check_pages(conn, report)?;
    if !report.problems.is_empty() {
        // Data on damaged pages cannot be checked further.
        return Ok(());
    }
    let is_alone = is_alone(conn, extent.tenant)?;
    if is_alone {
        let checked = check_meta(conn, extent.is_backup, report);
        report.go_on(checked)?;
        let checked = sums::check(conn, report);
        report.go_on(checked)?;
    }
    let mut anchors = Anchors::default();
    let opened_by = keys.map_or(&NoKeys as &dyn SealKeys, |keys| keys);
    let sealed = KeyedConnection {
        conn,
        keys: opened_by,
    };
    let checked = tenant::check(conn, keys, extent, &mut anchors, report);
    report.go_on(checked)?;
    let beside_sessions = report.problems_total;
    let sessions = session_ids(conn, extent.tenant, report)?;
    let mut rows = RowCounts::new();
    for (done, session) in sessions.iter().enumerate() {
        progress(done, sessions.len());
        let known = report.problems.len();
        let checked = check_session(&sealed, *session, keys, &mut anchors, report, &mut rows);
        match checked {
            Err(error) if is_interrupted(&error) => return Err(error),
            Err(error) => report.add(damage_of(&sealed, *session, &error)),
            Ok(()) => {}
        }
        for problem in &mut report.problems[known..] {
            problem.session.get_or_insert(*session);
        }
        report.sessions += 1;
    }
    progress(sessions.len(), sessions.len());
    anchors.report_missing(report);
    if !is_alone {
        // The rest is about the whole file, and would tell one tenant of another.
        return Ok(());
    }
    rows.compare(conn, report)?;
    let checked = updates::check(conn, report);
    report.go_on(checked)?;
    // On a damaged log this would only say the same things again.
    if report.problems_total == beside_sessions {
        beside::check(&sealed, report)?;
    }
    Ok(())
}

/// Whether the check was interrupted: its caller dropped the future, or the store closes.
fn is_interrupted(error: &StoreError) -> bool {
    let StoreError::Unavailable(source) = error else {
        return false;
    };
    let code = source
        .downcast_ref::<rusqlite::Error>()
        .and_then(rusqlite::Error::sqlite_error_code);
    code == Some(ErrorCode::OperationInterrupted)
}

/// Whether no other tenant has data in the file.
fn is_alone(conn: &Connection, tenant: Option<&Name>) -> Result<bool, StoreError> {
    let Some(tenant) = tenant else {
        return Ok(true);
    };
    let sql = "SELECT EXISTS(SELECT 1 FROM session WHERE tenant < ?1 OR tenant > ?1)
               OR EXISTS(SELECT 1 FROM tenant_log WHERE tenant < ?1 OR tenant > ?1)";
    let has_others = read::first(conn, sql, [tenant.as_str()], |row| row.get(0))?;
    Ok(has_others == Some(false))
}

/// The first damaged record of a session, or else the error itself.
fn damage_of(conn: &KeyedConnection<'_>, session: SessionId, error: &StoreError) -> Problem {
    let row = log::session_row(conn, session).ok().flatten();
    let damage = row.and_then(|row| log::first_damage(conn, &row));
    let Some(damage) = damage else {
        return Problem::of(ProblemKind::Projection, error).in_session(session);
    };
    let kind = match damage.kind {
        log::DamageKind::Record => ProblemKind::Record,
        log::DamageKind::Payload => ProblemKind::Payload,
        log::DamageKind::Tail => ProblemKind::MissingTail,
    };
    let found = Problem::of(kind, &damage.error);
    Problem {
        place: format!(
            "record {} of session {session}, {}",
            damage.seq, found.place
        ),
        ..found.in_session(session).at(damage.seq)
    }
}

fn check_meta(
    conn: &Connection,
    is_backup: bool,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let expected = if is_backup { "backup" } else { "live" };
    let (kind, epoch) = (schema::meta(conn, "kind")?, schema::meta(conn, "epoch")?);
    if kind != expected || epoch.parse::<u64>().is_err() {
        let what = format!("says kind {kind:?} and epoch {epoch:?}");
        report.add(Problem::projection("the table `meta`", what));
    }
    Ok(())
}

fn check_pages(conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the pages of the file");
    let mut statement = conn.prepare("PRAGMA integrity_check").map_err(&place)?;
    let lines: Vec<String> = statement
        .query_map([], |row| row.get(0))
        .and_then(Iterator::collect)
        .map_err(&place)?;
    for what in lines.into_iter().filter(|line| line != "ok") {
        report.add(Problem::projection("the pages of the file", what));
    }
    Ok(())
}

/// The sessions. A row whose id cannot be read is named, and hides no other.
fn session_ids(
    conn: &Connection,
    tenant: Option<&Name>,
    report: &mut CheckReport,
) -> Result<Vec<SessionId>, StoreError> {
    let sql = "SELECT id, pk FROM session WHERE ?1 IS NULL OR tenant = ?1 ORDER BY pk";
    let rows = read::all(conn, sql, [tenant.map(Name::as_str)], |row| {
        Ok((row.get::<_, Uuid16>(0).ok(), row.get::<_, i64>(1)?))
    })?;
    let mut found = Vec::new();
    for (id, pk) in rows {
        if let Some(id) = id {
            found.push(SessionId::from_uuid(id.0));
        } else {
            let place = format!("row {pk} of the table `session`");
            report.add(Problem::projection(place, "has no id that can be read"));
        }
    }
    Ok(found)
}

/// How many rows the logs call for, over all sessions; more in the file means rows out of nowhere.
struct RowCounts {
    expected: BTreeMap<&'static str, usize>,
}

impl RowCounts {
    /// Without sessions there are no rows.
    fn new() -> Self {
        let tables = [
            "session",
            "log",
            "open_task",
            "closed_task",
            "live_request",
            "ended_request",
            "open_hold",
            "closed_hold",
            "state",
            "erasure",
            "memory",
        ];
        let expected = tables.map(|table| (table, 0)).into();
        Self { expected }
    }

    fn add(&mut self, table: &'static str, rows: usize) {
        *self.expected.entry(table).or_default() += rows;
    }

    fn compare(&self, conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
        for (table, expected) in &self.expected {
            let sql = format!("SELECT count(*) FROM {table}");
            let found: Option<i64> = read::first(conn, &sql, [], |row| row.get(0))?;
            let found = found.unwrap_or(0);
            if usize::try_from(found).ok() != Some(*expected) {
                let what = format!("has {found} rows where the logs call for {expected}");
                report.add(Problem::projection(format!("the table `{table}`"), what));
            }
        }
        Ok(())
    }
}

fn check_session(
    conn: &KeyedConnection<'_>,
    session: SessionId,
    keys: Option<&dyn KnownKeys>,
    anchors: &mut Anchors,
    report: &mut CheckReport,
    rows: &mut RowCounts,
) -> Result<(), StoreError> {
    let anchor = anchors.take(session);
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(());
    };
    let shortened = anchor.and_then(|anchor| anchor.compare_length(session, row.revision));
    report.add_all(shortened);
    let mut state: Option<SessionState> = None;
    let mut facts = Facts::default();
    let mut erased = ErasureCheck::default();
    let mut memories = Memories::default();
    let (mut decided, mut results) = (Vec::new(), BTreeMap::new());
    let mut first = 1;
    while first <= row.revision {
        let page = PageLimit::entries(PAGE);
        let page = log::read_rows(conn, &row, first - 1, page, |_| 0)?;
        if page.is_empty() {
            break;
        }
        first += page.len() as u64;
        for (log, record) in page {
            let whole = PayloadReader::of_file(row.user);
            let opened = log.opened(conn, whole, &record.bodies())?;
            let is_sealed = |body: &OpenedBody| *body == OpenedBody::KeyGone;
            let sealed: Vec<bool> = opened.iter().map(is_sealed).collect();
            let bodies = opened.into_iter().map(OpenedBody::bytes).collect();
            let stored = &StoredRecord { record, bodies };
            let begins = stored.record.content.session;
            let state = state.get_or_insert_with(|| SessionState::new(begins));
            check_record(stored, state, &mut facts, report);
            check_payloads(stored, &sealed, state, keys, report);
            erased.note(&row, log.id, stored, &sealed);
            let replaced = anchor.and_then(|anchor| anchor.compare(session, &stored.record));
            report.add_all(replaced);
            let (after, changes) = project(state, &stored.record);
            let before = std::mem::replace(state, after);
            memories.learn((log.id, &log.exchanges), &stored.record, &changes, report);
            // Records before a fork belong to the origin, and were counted there.
            let seq = stored.record.content.seq;
            if seq > row.origin_seq {
                let step = RecordStep {
                    before: &before,
                    record: &stored.record,
                    after: state,
                };
                check_ended(conn, row.pk, &step, changes, report, rows, &mut decided)?;
                results.extend(results_in(&stored.record));
                report.records += 1;
            }
            if seq == row.origin_seq + 1 {
                columns::compare_beginning(conn, &row, &stored.record, report)?;
            }
        }
    }
    let folded = state.ok_or_else(|| damaged(format!("session {session}"), "it has no records"))?;
    erased.report(conn, &row, &folded, report, rows)?;
    columns::compare_queues(conn, &folded, report)?;
    if let Some(owner) = &folded.owner {
        columns::compare_decided(conn, owner, &decided, &results, report)?;
    }
    columns::compare_life(conn, &row, &folded, report)?;
    memories.compare(conn, &row, &folded, report)?;
    compare_projections(conn, &row, &folded, report, rows)
}

/// Compares the requests, tasks and holds that a record ended with their rows.
fn check_ended(
    conn: &Connection,
    pk: i64,
    step: &RecordStep<'_>,
    changes: Changes,
    report: &mut CheckReport,
    rows: &mut RowCounts,
    decided: &mut Vec<(ClosedHold, Name)>,
) -> Result<(), StoreError> {
    let seq = step.record.content.seq;
    let session = step.record.content.session;
    let mut differs = |kind: &str, id: String| {
        let what = format!("is not as record {seq} of its session left it");
        let problem = Problem::projection(format!("{kind} {id}"), what);
        report.add(problem.in_session(session).at(seq));
    };
    let mut events = step.record.content.events.iter();
    if events.any(|event| matches!(event, Event::SessionForked { .. })) {
        return Ok(());
    }
    for ended in &changes.ended_requests {
        if read::by_id(conn, "ended_request", ended.id.as_uuid())?.as_ref() != Some(ended) {
            differs("ended request", ended.id.to_string());
        }
    }
    for closed in &changes.closed_tasks {
        if read::by_id(conn, "closed_task", closed.task.id.as_uuid())?.as_ref() != Some(closed) {
            differs("closed task", closed.task.id.to_string());
        }
    }
    for closed in &changes.closed_holds {
        if read::by_id(conn, "closed_hold", closed.hold.id.as_uuid())?.as_ref() != Some(closed) {
            differs("closed hold", closed.hold.id.to_string());
        }
    }
    columns::compare_ended(conn, pk, &changes, report)?;
    rows.add("ended_request", changes.ended_requests.len());
    rows.add("closed_task", changes.closed_tasks.len());
    rows.add("closed_hold", changes.closed_holds.len());
    for closed in changes.closed_holds {
        let agent = step.before.tasks.get(&closed.hold.task);
        let agent = agent.or_else(|| step.after.tasks.get(&closed.hold.task));
        decided.extend(agent.map(|task| (closed, task.agent.clone())));
    }
    Ok(())
}

fn compare_projections(
    conn: &KeyedConnection<'_>,
    row: &SessionRow,
    folded: &SessionState,
    report: &mut CheckReport,
    rows: &mut RowCounts,
) -> Result<(), StoreError> {
    let Some(stored) = read::load(conn, row.id)? else {
        return Ok(());
    };
    let mut differs = |what: &str| {
        let what = format!("{what} are not what the log says");
        let problem = Problem::projection(format!("session {}", row.id), what);
        report.add(problem.in_session(row.id));
    };
    for (what, is_same) in [
        ("the open tasks", stored.tasks == folded.tasks),
        ("the live requests", stored.requests == folded.requests),
        ("the open holds", stored.holds == folded.holds),
        ("the versions of its state", stored.keys == folded.keys),
        ("the memories", stored.memories == folded.memories),
    ] {
        if !is_same {
            differs(what);
        }
    }
    let bare = |state: &SessionState| SessionState {
        tasks: Arc::default(),
        requests: Arc::default(),
        holds: Arc::default(),
        keys: Arc::default(),
        memories: Arc::default(),
        ..state.clone()
    };
    if bare(&stored) != bare(folded) {
        differs("the counters, times or owner");
    }
    for key in folded.keys.keys() {
        if is_unlike_log(conn, row, key)? {
            let place = format!("`{key}` of session {}", row.id);
            let problem = Problem::projection(place, "is not the value that the log says");
            report.add(problem.in_session(row.id));
        }
    }
    rows.add("open_task", folded.tasks.len());
    rows.add("live_request", folded.requests.len());
    rows.add("open_hold", folded.holds.len());
    rows.add("state", folded.keys.len() + values_to_remove(conn, row)?);
    rows.add("memory", folded.memories.len());
    rows.add("session", 1);
    rows.add(
        "log",
        usize::try_from(row.revision.saturating_sub(row.origin_seq)).unwrap_or(usize::MAX),
    );
    Ok(())
}

fn is_unlike_log(
    conn: &KeyedConnection<'_>,
    row: &SessionRow,
    key: &StateKey,
) -> Result<bool, StoreError> {
    let Some(found) = read::state_value(conn, row.id, key)? else {
        return Ok(false);
    };
    // The version is the revision that wrote the value, so the log is read at one place only.
    let version = found.version.min(row.revision);
    let logged = read::state_at(conn, row.id, key, version)?;
    Ok(logged.is_some_and(|logged| logged != found.value))
}

/// How many values of a deleted session wait for their removal.
fn values_to_remove(conn: &Connection, row: &SessionRow) -> Result<usize, StoreError> {
    let sql = "SELECT count(*) FROM state WHERE session = ?1 AND ?2
               AND session IN (SELECT session FROM erasure)";
    let count: Option<i64> = read::first(conn, sql, (row.pk, row.deleted), |row| row.get(0))?;
    Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(0))
}
