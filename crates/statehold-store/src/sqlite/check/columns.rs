//! Columns that a body or a record says too, kept apart so that things are found by them.

use rusqlite::Connection;
use statehold_core::projection::Changes;
use statehold_core::record::{Event, Record};
use statehold_core::request::RequestStatus;
use statehold_core::session::SessionState;
use statehold_core::time::Timestamp;

use super::super::log::{self, SessionRow};
use super::super::read;
use super::super::sql::id_bytes;
use super::super::write::LifeColumns;
use crate::check::{CheckReport, Problem};
use crate::port::StoreError;

fn wrong(report: &mut CheckReport, place: String, what: &str) {
    report.add(Problem::projection(place, what));
}

/// Compares the row of a session with the first record that is its own.
pub(super) fn compare_beginning(
    conn: &Connection,
    row: &SessionRow,
    first: &Record,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let place = || format!("the row of session {}", row.id);
    let sql = "SELECT created_at FROM session WHERE pk = ?1";
    let created_at: Option<i64> = read::first(conn, sql, [row.pk], |row| row.get(0))?;
    if created_at != Some(first.content.at.as_micros()) {
        wrong(report, place(), "has another time than its first record");
    }
    let fork = first.content.events.iter().find_map(|event| match event {
        Event::SessionForked { origin, at, .. } => Some((*origin, *at)),
        _ => None,
    });
    let origin = log::session_by_pk(conn, row.origin)?.map(|origin| (origin.id, row.origin_seq));
    if origin != fork {
        wrong(report, place(), "has another origin than its first record");
    }
    Ok(())
}

/// Compares what lists find a session by.
pub(super) fn compare_life(
    conn: &Connection,
    row: &SessionRow,
    folded: &SessionState,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let sql = "SELECT status FROM session WHERE pk = ?1";
    let status: Option<String> = read::first(conn, sql, [row.pk], |row| row.get(0))?;
    if status.as_deref() != Some(LifeColumns::of(folded).status) {
        let place = format!("the row of session {}", row.id);
        wrong(report, place, "has another status than the log says");
    }
    Ok(())
}

/// Compares which session the rows that a record ended belong to.
pub(super) fn compare_ended(
    conn: &Connection,
    pk: i64,
    tenant: &str,
    changes: &Changes,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let requests = changes.ended_requests.iter();
    let tasks = changes.closed_tasks.iter();
    let holds = changes.closed_holds.iter();
    let ended = requests
        .map(|ended| ("ended_request", ended.id.as_uuid()))
        .chain(tasks.map(|closed| ("closed_task", closed.task.id.as_uuid())))
        .chain(holds.map(|closed| ("closed_hold", closed.hold.id.as_uuid())));
    for (table, id) in ended {
        let sql = format!("SELECT session FROM {table} WHERE id = ?1");
        let found: Option<i64> = read::first(conn, &sql, [id_bytes(id)], |row| row.get(0))?;
        if found != Some(pk) {
            let place = format!("`{table}` {id}");
            wrong(
                report,
                place,
                "does not belong to the session that ended it",
            );
        }
    }
    for closed in &changes.closed_holds {
        let sql = "SELECT request, tenant FROM closed_hold WHERE id = ?1";
        let id = id_bytes(closed.hold.id.as_uuid());
        let found: Option<(Vec<u8>, String)> =
            read::first(conn, sql, [id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let request = closed.hold.request.as_uuid().as_bytes().as_slice();
        if !found.is_some_and(|(of, owner)| of == request && owner == tenant) {
            let place = format!("closed hold {}", closed.hold.id);
            wrong(report, place, "is filed under another request or tenant");
        }
    }
    Ok(())
}

/// Compares what workers, approvers and timers are found by.
pub(super) fn compare_queues(
    conn: &Connection,
    folded: &SessionState,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let tenant = folded.owner.as_ref().map(|owner| owner.tenant.as_str());
    let what = "waits elsewhere or for another time than the log says";
    for live in folded.requests.values() {
        let sql = "SELECT tenant, agent, queued, lease_until FROM live_request WHERE id = ?1";
        let id = id_bytes(live.id.as_uuid());
        let found: Option<([String; 2], bool, Option<i64>)> =
            read::first(conn, sql, [id], |row| {
                Ok(([row.get(0)?, row.get(1)?], row.get(2)?, row.get(3)?))
            })?;
        let agent = folded.tasks.get(&live.task).map(|task| task.agent.as_str());
        let lease = live.lease.filter(|_| live.status == RequestStatus::Running);
        let is_same = found.is_some_and(|(names, queued, until)| {
            [tenant, agent] == [Some(names[0].as_str()), Some(names[1].as_str())]
                && queued == (live.status == RequestStatus::Queued)
                && until == lease.map(|lease| lease.until.as_micros())
        });
        if !is_same {
            wrong(report, format!("live request {}", live.id), what);
        }
    }
    for hold in folded.holds.values() {
        let sql = "SELECT tenant, deadline, request FROM open_hold WHERE id = ?1";
        let id = id_bytes(hold.id.as_uuid());
        let found: Option<(String, Option<i64>, Vec<u8>)> = read::first(conn, sql, [id], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        let is_same = found.is_some_and(|(found, deadline, request)| {
            Some(found.as_str()) == tenant
                && deadline == hold.deadline.map(Timestamp::as_micros)
                && request == hold.request.as_uuid().as_bytes()
        });
        if !is_same {
            wrong(report, format!("open hold {}", hold.id), what);
        }
    }
    Ok(())
}
