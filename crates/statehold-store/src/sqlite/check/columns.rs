//! Columns that a body or a record says too, kept apart so that things are found by them.

use std::collections::BTreeMap;

use rusqlite::Connection;
use statehold_core::ids::ItemId;
use statehold_core::name::Name;
use statehold_core::projection::{Changes, ClosedHold};
use statehold_core::record::{Event, Record};
use statehold_core::request::LiveStatus;
use statehold_core::session::{Owner, SessionState};

use super::super::log::{self, SessionRow};
use super::super::read;
use super::super::sql::id_bytes;
use super::super::write::{LifeColumns, is_listed};
use crate::check::{CheckReport, Problem};
use crate::port::{CallResult, HoldPlace, StoreError};

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

/// Compares the lookup columns of a session.
pub(super) fn compare_life(
    conn: &Connection,
    row: &SessionRow,
    folded: &SessionState,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let sql = "SELECT status, listed FROM session WHERE pk = ?1";
    let found = read::first(conn, sql, [row.pk], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
    })?;
    let place = || format!("the row of session {}", row.id);
    let (status, listed) = found.unzip();
    if status.as_deref() != Some(LifeColumns::of(folded).status) {
        wrong(report, place(), "has another status than the log says");
    }
    let owner = folded.owner.as_ref();
    if listed != owner.map(|owner| i64::from(is_listed(owner, folded))) {
        wrong(
            report,
            place(),
            "is in lists where the log says it is not, or the reverse",
        );
    }
    Ok(())
}

/// Compares which session the rows that a record ended belong to.
pub(super) fn compare_ended(
    conn: &Connection,
    pk: i64,
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
    Ok(())
}

/// Compares the lookup columns of decided holds, and the results of their calls.
pub(super) fn compare_decided(
    conn: &Connection,
    owner: &Owner,
    decided: &[(ClosedHold, Name)],
    results: &BTreeMap<ItemId, CallResult>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    for (closed, agent) in decided {
        let hold = &closed.hold;
        let sql =
            "SELECT request, tenant, user, agent, call, result FROM closed_hold WHERE id = ?1";
        let found = read::first(conn, sql, [id_bytes(hold.id.as_uuid())], |row| {
            Ok((
                [row.get::<_, Vec<u8>>(0)?, row.get(2)?],
                [row.get::<_, String>(1)?, row.get(3)?],
                row.get::<_, Option<Vec<u8>>>(4)?,
                row.get::<_, Option<Vec<u8>>>(5)?,
            ))
        })?;
        let Some((ids, names, call, result)) = found else {
            continue;
        };
        let place = || format!("closed hold {}", hold.id);
        let call_bytes = hold.call.map(|call| call.as_uuid().as_bytes().to_vec());
        let is_same = ids[0] == hold.request.as_uuid().as_bytes()
            && ids[1] == owner.user.as_uuid().as_bytes()
            && names == [owner.tenant.as_str(), agent.as_str()]
            && call == call_bytes;
        if !is_same {
            let what = "is filed under another request, tenant, user, agent or call";
            wrong(report, place(), what);
        }
        let result: Option<CallResult> = match result {
            Some(bytes) => Some(read::parse(&place(), &bytes)?),
            None => None,
        };
        if result != hold.call.and_then(|call| results.get(&call).copied()) {
            wrong(report, place(), "has another result than the log says");
        }
    }
    Ok(())
}

/// Compares the lookup columns that serve workers, approvers and timers.
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
        let found: Option<([String; 2], i64, Option<i64>)> = read::first(conn, sql, [id], |row| {
            Ok(([row.get(0)?, row.get(1)?], row.get(2)?, row.get(3)?))
        })?;
        let agent = folded.tasks.get(&live.task).map(|task| task.agent.as_str());
        let lease = live.lease.filter(|_| live.status == LiveStatus::Running);
        let is_same = found.is_some_and(|(names, queued, until)| {
            [tenant, agent] == [Some(names[0].as_str()), Some(names[1].as_str())]
                && queued == i64::from(live.status == LiveStatus::Queued)
                && until == lease.map(|lease| lease.until.as_micros())
        });
        if !is_same {
            wrong(report, format!("live request {}", live.id), what);
        }
    }
    for hold in folded.holds.values() {
        let sql =
            "SELECT tenant, agent, risk, deadline, request, user FROM open_hold WHERE id = ?1";
        let id = id_bytes(hold.id.as_uuid());
        let found = read::first(conn, sql, [id], |row| {
            Ok((
                [row.get::<_, String>(0)?, row.get(1)?],
                [row.get::<_, i64>(2)?, row.get(3)?],
                [row.get::<_, Vec<u8>>(4)?, row.get(5)?],
            ))
        })?;
        let place = HoldPlace::of(hold, 0);
        let agent = folded.tasks.get(&hold.task).map(|task| task.agent.as_str());
        let user = folded.owner.as_ref().map(|owner| *owner.user.as_uuid());
        let is_same = found.is_some_and(|(names, urgency, ids)| {
            [tenant, agent] == [Some(names[0].as_str()), Some(names[1].as_str())]
                && urgency == [i64::from(place.risk), place.deadline.as_micros()]
                && ids[0] == hold.request.as_uuid().as_bytes()
                && user.is_some_and(|user| ids[1] == user.as_bytes())
        });
        if !is_same {
            wrong(report, format!("open hold {}", hold.id), what);
        }
    }
    Ok(())
}
