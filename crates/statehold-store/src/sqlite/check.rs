//! Everything the file says, compared with what its log says.
//!
//! The pages are checked by the engine, the log by its hash chain, payloads by their digests (where
//! the owner's key still exists), every record by the promises of the core, and every projection by
//! folding the log again.

mod beside;
mod columns;
mod erased;
mod tenant;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use statehold_core::apply::apply;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::invariant::{Facts, Observation, RecordStep, judge_all};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, changes};
use statehold_core::record::Event;
use statehold_core::scope::{Scope, StateKey};
use statehold_core::session::SessionState;

use erased::Erased;

use super::log::{self, SessionRow, Uuid16};
use super::sql::{corrupt_or_unavailable, damaged};
use super::{read, schema};
use crate::commit::results_in;
use crate::keys::{KeyFile, KeyOwner};
use crate::port::{StateValue, StoreError, StoredRecord};

/// How many records are held in memory at a time.
const PAGE: u64 = 1_000;

/// What a check found.
#[derive(Debug, Default, Serialize)]
pub struct CheckReport {
    /// Sessions looked at.
    pub sessions: usize,
    /// Records verified.
    pub records: usize,
    /// Payloads whose digest was verified.
    pub payloads: usize,
    /// Payloads that were erased.
    pub erased: usize,
    /// Payloads whose key is gone, deleted on purpose or lost: nobody can say what they must be.
    pub unverified: usize,
    /// What is wrong, with its place.
    pub problems: Vec<Problem>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where.
    pub place: String,
    /// What.
    pub what: String,
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
    let keys = directory
        .join(KeyFile::NAME)
        .is_file()
        .then(|| KeyFile::open(directory));
    let keys = keys.transpose()?;
    let mut report = CheckReport::default();
    match check_all(&conn, keys.as_ref(), &mut report, progress) {
        // Damage is what a check is there to report.
        Err(error @ StoreError::Corrupt { .. }) => report.problems.push(problem_of(&error)),
        other => other?,
    }
    Ok(report)
}

fn check_all(
    conn: &Connection,
    keys: Option<&KeyFile>,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), StoreError> {
    check_pages(conn, report)?;
    if !report.problems.is_empty() {
        // What lies on damaged pages cannot be judged any further.
        return Ok(());
    }
    check_meta(conn, report)?;
    let sessions = session_ids(conn)?;
    let mut rows = RowCounts::new();
    for (done, session) in sessions.iter().enumerate() {
        progress(done, sessions.len());
        if let Err(error) = check_session(conn, *session, keys, report, &mut rows) {
            report.problems.push(problem_of(&error));
        }
        report.sessions += 1;
    }
    progress(sessions.len(), sessions.len());
    rows.compare(conn, report)?;
    tenant::check(conn, report)?;
    // On a damaged log this would only say the same things again.
    if report.problems.is_empty() {
        beside::check(conn, report)?;
    }
    Ok(())
}

fn check_meta(conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
    let (kind, epoch) = (schema::meta(conn, "kind")?, schema::meta(conn, "epoch")?);
    if kind != "live" || epoch.parse::<u64>().is_err() {
        report.problems.push(Problem {
            place: "the table `meta`".to_owned(),
            what: format!("says kind {kind:?} and epoch {epoch:?}"),
        });
    }
    Ok(())
}

fn problem_of(error: &StoreError) -> Problem {
    match error {
        StoreError::Corrupt { place, source } => Problem {
            place: place.clone(),
            what: source.to_string(),
        },
        other => Problem {
            place: "the file".to_owned(),
            what: other.to_string(),
        },
    }
}

fn check_pages(conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the pages of the file");
    let mut statement = conn.prepare("PRAGMA integrity_check").map_err(&place)?;
    let lines: Vec<String> = statement
        .query_map([], |row| row.get(0))
        .and_then(Iterator::collect)
        .map_err(&place)?;
    for what in lines.into_iter().filter(|line| line != "ok") {
        report.problems.push(Problem {
            place: "the pages of the file".to_owned(),
            what,
        });
    }
    Ok(())
}

fn session_ids(conn: &Connection) -> Result<Vec<SessionId>, StoreError> {
    let place = corrupt_or_unavailable("the table `session`");
    let mut statement = conn
        .prepare("SELECT id FROM session ORDER BY pk")
        .map_err(&place)?;
    let ids = statement
        .query_map([], |row| row.get::<_, Uuid16>(0))
        .map_err(&place)?;
    ids.map(|id| id.map(|id| SessionId::from_uuid(id.0)).map_err(&place))
        .collect()
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
        ];
        let expected = tables.map(|table| (table, 0)).into();
        Self { expected }
    }

    fn add(&mut self, table: &'static str, rows: usize) {
        *self.expected.entry(table).or_default() += rows;
    }

    fn compare(&self, conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
        for (table, expected) in &self.expected {
            let found: i64 = conn
                .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
                    row.get(0)
                })
                .map_err(corrupt_or_unavailable(&format!("the table `{table}`")))?;
            if usize::try_from(found).ok() != Some(*expected) {
                report.problems.push(Problem {
                    place: format!("the table `{table}`"),
                    what: format!("has {found} rows where the logs call for {expected}"),
                });
            }
        }
        Ok(())
    }
}

fn check_session(
    conn: &Connection,
    session: SessionId,
    keys: Option<&KeyFile>,
    report: &mut CheckReport,
    rows: &mut RowCounts,
) -> Result<(), StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(());
    };
    let mut state: Option<SessionState> = None;
    let mut facts = Facts::default();
    let mut erased = Erased::default();
    let (mut decided, mut results) = (Vec::new(), BTreeMap::new());
    let mut first = 1;
    while first <= row.revision {
        let page = log::read_range(conn, &row, first, first + PAGE - 1)?;
        if page.is_empty() {
            break;
        }
        for stored in &page {
            let begins = stored.record.content.session;
            let state = state.get_or_insert_with(|| SessionState::new(begins));
            check_record(stored, state, &mut facts, report);
            check_payloads(stored, state, keys, report);
            erased.note(session, stored);
            // Records before a fork belong to the origin, and were counted there.
            let seq = stored.record.content.seq;
            if seq > row.origin_seq {
                check_ended(conn, row.pk, stored, state, report, rows, &mut decided)?;
                results.extend(results_in(&stored.record));
                report.records += 1;
            }
            if seq == row.origin_seq + 1 {
                columns::compare_beginning(conn, &row, &stored.record, report)?;
            }
            apply(state, &stored.record);
        }
        first += PAGE;
    }
    let folded = state.ok_or_else(|| damaged(format!("session {session}"), "it has no records"))?;
    erased.report(conn, &row, &folded, report, rows)?;
    columns::compare_queues(conn, &folded, report)?;
    if let Some(owner) = &folded.owner {
        columns::compare_decided(conn, owner, &decided, &results, report)?;
    }
    columns::compare_life(conn, &row, &folded, report)?;
    compare_projections(conn, &row, &folded, report, rows)
}

fn check_record(
    stored: &StoredRecord,
    before: &SessionState,
    facts: &mut Facts,
    report: &mut CheckReport,
) {
    let record = &stored.record;
    let mut after = before.clone();
    apply(&mut after, record);
    let seen = Observation::Record(RecordStep {
        before,
        record,
        after: &after,
    });
    for invariant in judge_all(facts, &seen).broken() {
        report.problems.push(Problem {
            place: format!(
                "record {} of session {}",
                record.content.seq, record.content.session
            ),
            what: format!("breaks the promise \"{}\"", invariant.name()),
        });
    }
    facts.absorb(record);
}

/// Compares payloads with the digests in the record, as far as their keys still exist.
fn check_payloads(
    stored: &StoredRecord,
    before: &SessionState,
    keys: Option<&KeyFile>,
    report: &mut CheckReport,
) {
    let mut bodies = stored.bodies.iter();
    let mut owner = before.owner.clone();
    for event in &stored.record.content.events {
        if let Event::SessionCreated { owner: new, .. } = event {
            owner = Some(new.clone());
        }
        let key_owner = owner.as_ref().map(|owner| match event {
            Event::SharedStatePut { key, .. } if key.scope() == Scope::App => {
                KeyOwner::Tenant(owner.tenant.clone())
            }
            _ => KeyOwner::User(owner.user),
        });
        let content = &stored.record.content;
        let key = key_owner.as_ref().zip(keys);
        let key = key.and_then(|(owner, keys)| Some((keys.get(owner)?, keys.since(owner)?)));
        for name in event.bodies() {
            match (bodies.next(), &key) {
                (Some(Some(payload)), Some((key, since))) => {
                    if Digest::keyed(key, payload) == name.digest {
                        report.payloads += 1;
                    } else if *since > content.at {
                        // It was digested under a key that is gone: the one there is younger.
                        report.unverified += 1;
                    } else {
                        report.problems.push(Problem {
                            place: format!(
                                "a payload of record {} of session {}",
                                content.seq, content.session
                            ),
                            what: "is not what its digest says".to_owned(),
                        });
                    }
                }
                (Some(Some(_)), None) => report.unverified += 1,
                (Some(None) | None, _) => report.erased += 1,
            }
        }
    }
}

/// Compares what a record ended with the rows kept for it.
fn check_ended(
    conn: &Connection,
    pk: i64,
    stored: &StoredRecord,
    before: &SessionState,
    report: &mut CheckReport,
    rows: &mut RowCounts,
    decided: &mut Vec<(ClosedHold, Name)>,
) -> Result<(), StoreError> {
    let mut after = before.clone();
    apply(&mut after, &stored.record);
    let changes = changes(before, &stored.record, &after);
    let seq = stored.record.content.seq;
    let mut differs = |kind: &str, id: String| {
        report.problems.push(Problem {
            place: format!("{kind} {id}"),
            what: format!("is not as record {seq} of its session left it"),
        });
    };
    if stored
        .record
        .content
        .events
        .iter()
        .any(|event| matches!(event, Event::SessionForked { .. }))
    {
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
        let agent = before.tasks.get(&closed.hold.task);
        let agent = agent.or_else(|| after.tasks.get(&closed.hold.task));
        decided.extend(agent.map(|task| (closed, task.agent.clone())));
    }
    Ok(())
}

fn compare_projections(
    conn: &Connection,
    row: &SessionRow,
    folded: &SessionState,
    report: &mut CheckReport,
    rows: &mut RowCounts,
) -> Result<(), StoreError> {
    let Some(stored) = read::load(conn, row.id)? else {
        return Ok(());
    };
    let mut differs = |what: &str| {
        report.problems.push(Problem {
            place: format!("session {}", row.id),
            what: format!("{what} are not what the log says"),
        });
    };
    for (what, is_same) in [
        ("the open tasks", stored.tasks == folded.tasks),
        ("the live requests", stored.requests == folded.requests),
        ("the open holds", stored.holds == folded.holds),
        ("the versions of its state", stored.keys == folded.keys),
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
        ..state.clone()
    };
    if bare(&stored) != bare(folded) {
        differs("the counters, times or owner");
    }
    let values = read::state(conn, row.id)?;
    let unlike = values_unlike_log(conn, row, &values)?;
    for key in unlike {
        report.problems.push(Problem {
            place: format!("`{key}` of session {}", row.id),
            what: "is not the value that the log says".to_owned(),
        });
    }
    rows.add("open_task", folded.tasks.len());
    rows.add("live_request", folded.requests.len());
    rows.add("open_hold", folded.holds.len());
    rows.add("state", folded.keys.len());
    rows.add("session", 1);
    rows.add(
        "log",
        usize::try_from(row.revision - row.origin_seq).unwrap_or(usize::MAX),
    );
    Ok(())
}

fn values_unlike_log(
    conn: &Connection,
    row: &SessionRow,
    values: &BTreeMap<StateKey, StateValue>,
) -> Result<BTreeSet<StateKey>, StoreError> {
    let mut unlike = BTreeSet::new();
    for (key, value) in values {
        // The version is the revision that wrote the value, so the log is read at one place only.
        let version = value.version.min(row.revision);
        let logged = read::state_at(conn, row.id, key, version)?;
        if logged.is_some_and(|logged| logged != value.value) {
            unlike.insert(key.clone());
        }
    }
    Ok(unlike)
}
