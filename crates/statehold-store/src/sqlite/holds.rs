//! Holds: lists, changes, and the lineage from the root request to the request that waits.

use rusqlite::{Connection, Row, params};
use statehold_core::hold::Hold;
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::Record;
use statehold_core::request::LiveRequest;
use statehold_core::task::Task;
use uuid::Uuid;

use super::log::{self, Uuid16};
use super::read::{SUMMARY_COLUMNS, SUMMARY_WIDTH, SummaryRow, all, by_id, first, parse};
use super::snapshot::{KeyedConnection, Snapshot};
use super::sql::{damaged, from_sql, id_bytes, to_sql};
use crate::codec;
use crate::commit::hold_changes_in;
use crate::port::{
    HoldChange, HoldOrder, HoldPlace, HoldQuery, HoldSummary, LineageStep, PageLimit, StoreError,
    StoredRecord,
};
use crate::seal::SealKeys;

/// The tables of holds.
const OPEN: &str = "open_hold";
const DECIDED: &str = "closed_hold";

/// The holds that a request ever opened, in the order of opening.
pub(super) fn holds_of(
    conn: &KeyedConnection<'_>,
    request: RequestId,
) -> Result<Vec<HoldId>, StoreError> {
    let held = held_by(conn, &[request])?;
    Ok(held.into_iter().map(|row| row.hold.id).collect())
}

/// A page of open holds.
pub(super) fn open_holds(
    from: &Snapshot<'_>,
    query: &HoldQuery,
) -> Result<Vec<HoldSummary>, StoreError> {
    // One index each for the session, the user and the tenant; the first two hold few rows.
    let (by, narrowed) = match (query.session, query.user, query.order) {
        (Some(_), _, _) => (
            "open_hold_by_session",
            "AND open_hold.session = (SELECT pk FROM session WHERE id = ?6)
             AND (?5 IS NULL OR open_hold.user = ?5)",
        ),
        (None, Some(_), _) => (
            "open_hold_by_user",
            "AND open_hold.user = ?5 AND ?6 IS NULL",
        ),
        (None, None, HoldOrder::Urgency) => {
            ("open_hold_by_urgency", "AND ?5 IS NULL AND ?6 IS NULL")
        }
        (None, None, _) => ("open_hold_by_tenant", "AND ?5 IS NULL AND ?6 IS NULL"),
    };
    let (beyond, order) = match query.order {
        HoldOrder::Urgency => (
            "(open_hold.risk, open_hold.deadline, open_hold.pk) > (?2, ?3, ?4)",
            "open_hold.risk, open_hold.deadline, open_hold.pk",
        ),
        HoldOrder::Oldest => (
            "?2 IS NOT NULL AND ?3 IS NOT NULL AND open_hold.pk > ?4",
            "open_hold.pk",
        ),
        HoldOrder::Newest => (
            "?2 IS NOT NULL AND ?3 IS NOT NULL AND open_hold.pk < ?4",
            "open_hold.pk DESC",
        ),
    };
    let rest = format!("open_hold.tenant = ?1 AND {beyond} {narrowed} ORDER BY {order}");
    let (user, session) = narrowing(query);
    let after = query.after;
    let begin = match query.order {
        HoldOrder::Urgency | HoldOrder::Oldest => 0,
        HoldOrder::Newest => i64::MAX,
    };
    let key = params![
        query.tenant.as_str(),
        after.map_or(-1, |place| i64::from(place.risk)),
        after.map_or(0, |place| place.deadline.as_micros()),
        after.map_or(begin, |place| to_sql(place.number)),
        user,
        session,
    ];
    let sql = hold_sql(OPEN, &format!("INDEXED BY {by}"), &rest);
    from.list(&sql, key, query.limit, |row| {
        Ok(HoldRow::read(row)?.into_summary(OPEN, from.keys)?)
    })
}

/// How many open holds a user's sessions have, along an index and no further than `limit`.
pub(super) fn count_of_user(
    conn: &Connection,
    tenant: &Name,
    user: UserId,
    limit: usize,
) -> Result<usize, StoreError> {
    let sql = "SELECT count(*) FROM
                 (SELECT 1 FROM open_hold WHERE tenant = ?1 AND user = ?2 LIMIT ?3)";
    let user = user.as_uuid().as_bytes().as_slice();
    let key = (tenant.as_str(), user, to_sql(limit as u64));
    let counted = first(conn, sql, key, |row| row.get::<_, i64>(0))?;
    let counted = counted.map_or(0, from_sql);
    Ok(usize::try_from(counted).unwrap_or(usize::MAX))
}

fn narrowing(query: &HoldQuery) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let user = query.user.map(|user| user.as_uuid().as_bytes().to_vec());
    let session = query.session;
    let session = session.map(|session| session.as_uuid().as_bytes().to_vec());
    (user, session)
}

/// A page of decided holds in the order of their decisions.
pub(super) fn decided_holds(
    from: &Snapshot<'_>,
    query: &HoldQuery,
) -> Result<Vec<HoldSummary>, StoreError> {
    let (by, narrowed) = match (query.session, query.user) {
        (Some(_), _) => (
            "closed_hold_by_session",
            "AND closed_hold.session = (SELECT pk FROM session WHERE id = ?4)
             AND (?3 IS NULL OR closed_hold.user = ?3)",
        ),
        (None, Some(_)) => (
            "closed_hold_by_user",
            "AND closed_hold.user = ?3 AND ?4 IS NULL",
        ),
        (None, None) => ("closed_hold_by_tenant", "AND ?3 IS NULL AND ?4 IS NULL"),
    };
    let (beyond, order, begin) = match query.order {
        HoldOrder::Oldest => ("closed_hold.pk > ?2", "closed_hold.pk", 0),
        HoldOrder::Newest | HoldOrder::Urgency => {
            ("closed_hold.pk < ?2", "closed_hold.pk DESC", i64::MAX)
        }
    };
    let rest = format!("closed_hold.tenant = ?1 AND {beyond} {narrowed} ORDER BY {order}");
    let (user, session) = narrowing(query);
    let key = params![
        query.tenant.as_str(),
        query.after.map_or(begin, |place| to_sql(place.number)),
        user,
        session,
    ];
    let sql = hold_sql(DECIDED, &format!("INDEXED BY {by}"), &rest);
    from.list(&sql, key, query.limit, |row| {
        Ok(HoldRow::read(row)?.into_summary(DECIDED, from.keys)?)
    })
}

/// Holds by their ids, open or decided.
pub(super) fn by_ids(
    conn: &KeyedConnection<'_>,
    ids: &[HoldId],
) -> Result<Vec<HoldSummary>, StoreError> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let mut rows = select_by(conn, OPEN, "id", id.as_uuid())?;
        if rows.is_empty() {
            rows = select_by(conn, DECIDED, "id", id.as_uuid())?;
        }
        found.append(&mut rows);
    }
    Ok(found)
}

/// All holds that some requests ever opened, those of each in the order of opening.
pub(super) fn held_by(
    conn: &KeyedConnection<'_>,
    requests: &[RequestId],
) -> Result<Vec<HoldSummary>, StoreError> {
    let mut found = Vec::new();
    for request in requests {
        let mut own = select_by(conn, OPEN, "request", request.as_uuid())?;
        own.append(&mut select_by(conn, DECIDED, "request", request.as_uuid())?);
        // Sort by number: ids have no order, because the worker that opens a hold chooses its id.
        own.sort_unstable_by_key(|row| row.hold.number);
        found.append(&mut own);
    }
    Ok(found)
}

fn select_by(
    conn: &KeyedConnection<'_>,
    table: &str,
    column: &str,
    id: &Uuid,
) -> Result<Vec<HoldSummary>, StoreError> {
    let sql = hold_sql(table, "", &format!("{table}.{column} = ?1"));
    let rows = all(conn, &sql, [id_bytes(id)], HoldRow::read)?.into_iter();
    rows.map(|row| row.into_summary(table, conn.keys)).collect()
}

/// Selects holds of one table, each with its session.
fn hold_sql(table: &str, index: &str, rest: &str) -> String {
    let result = if table == OPEN { "NULL" } else { "result" };
    format!(
        "SELECT {SUMMARY_COLUMNS}, {table}.pk, {table}.agent, {table}.body, {result}
         FROM {table} {index} JOIN session ON session.pk = {table}.session WHERE {rest}"
    )
}

/// A hold with its session, before it is understood.
struct HoldRow {
    session: SummaryRow,
    pk: i64,
    agent: String,
    body: Vec<u8>,
    /// The result of the action of a decided hold.
    result: Option<Vec<u8>>,
}

impl HoldRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            session: SummaryRow::read(row)?,
            pk: row.get(SUMMARY_WIDTH)?,
            agent: row.get(SUMMARY_WIDTH + 1)?,
            body: row.get(SUMMARY_WIDTH + 2)?,
            result: row.get(SUMMARY_WIDTH + 3)?,
        })
    }

    fn into_summary(self, table: &str, keys: &dyn SealKeys) -> Result<HoldSummary, StoreError> {
        let session = self.session.session();
        self.parse(table, keys)
            .map_err(|error| error.in_session(session))
    }

    fn parse(self, table: &str, keys: &dyn SealKeys) -> Result<HoldSummary, StoreError> {
        let place = format!("the table `{table}`");
        let (hold, decision): (Hold, _) = if table == OPEN {
            (parse(&place, &self.body)?, None)
        } else {
            let closed: ClosedHold = parse(&place, &self.body)?;
            (closed.hold, Some((closed.decision, closed.decided_by)))
        };
        let result = self.result.as_deref();
        Ok(HoldSummary {
            place: HoldPlace::of(&hold, from_sql(self.pk)),
            session: self.session.into_summary(keys)?,
            agent: name(&place, &self.agent)?,
            hold,
            decision,
            result: result.map(|result| parse(&place, result)).transpose()?,
        })
    }
}

fn name(place: &str, text: &str) -> Result<Name, StoreError> {
    text.parse().map_err(|error| damaged(place, error))
}

/// The words that every record about a hold has in it. Others need not be understood.
const HOLD_WORDS: [&[u8]; 2] = [b"hold_", b"vote_recorded"];

/// The changes of a tenant's holds after a place, and the last place that was read.
pub(super) fn changes(
    from: &Snapshot<'_>,
    tenant: &Name,
    after: u64,
    limit: usize,
) -> Result<(Vec<HoldChange>, u64), StoreError> {
    let sql = "SELECT log.id, session.tenant, log.record, session.id
               FROM log JOIN session ON session.pk = log.session
               WHERE log.id > ?1 ORDER BY log.id LIMIT ?2";
    let key = (to_sql(after), to_sql(limit as u64));
    let rows = all(from, sql, key, |row| {
        let is_own = row.get_ref(1)?.as_str() == Ok(tenant.as_str());
        let session = row.get::<_, Uuid16>(3);
        // Bytes of another type are damage, and are no record.
        let packed = is_own.then(|| row.get::<_, Vec<u8>>(2).unwrap_or_default());
        Ok((from_sql(row.get(0)?), session.ok(), packed))
    })?;
    let mut found = Vec::new();
    let mut seen = after;
    for (place, session, packed) in rows {
        seen = place;
        let Some(packed) = packed else {
            continue;
        };
        let changes = changes_in(place, &packed).map_err(|error| match session {
            Some(session) => error.in_session(SessionId::from_uuid(session.0)),
            None => error,
        });
        found.extend(from.sound(changes)?.into_iter().flatten());
    }
    Ok((found, seen))
}

/// The changes of holds in one record.
fn changes_in(place: u64, packed: &[u8]) -> Result<Vec<HoldChange>, StoreError> {
    let at = || format!("log row {place}");
    let bytes = codec::unpack(packed).map_err(|error| damaged(at(), error))?;
    let has = |word: &&[u8]| bytes.windows(word.len()).any(|part| part == *word);
    if !HOLD_WORDS.iter().any(has) {
        return Ok(Vec::new());
    }
    let record = Record::from_bytes(&bytes).map_err(|error| damaged(at(), error))?;
    Ok(hold_changes_in(&record, place))
}

/// The lineage of a request, from the root request down.
pub(super) fn lineage(
    conn: &Connection,
    request: RequestId,
) -> Result<Vec<LineageStep>, StoreError> {
    let mut steps: Vec<LineageStep> = Vec::new();
    let mut above = Some(request);
    while let Some(id) = above {
        let live: Option<LiveRequest> = by_id(conn, "live_request", id.as_uuid())?;
        let (number, task, parent) = if let Some(live) = live {
            (live.number, live.task, live.parent)
        } else {
            let ended: Option<EndedRequest> = by_id(conn, "ended_request", id.as_uuid())?;
            match ended {
                Some(ended) => (ended.number, ended.task, ended.parent),
                None if steps.is_empty() => return Ok(steps),
                None => return Err(damaged(format!("request {id}"), "it is missing")),
            }
        };
        // A parent has a lower number than its child, so the walk upwards ends even in a damaged
        // file.
        if steps.last().is_some_and(|below| below.number <= number) {
            return Err(damaged(format!("request {id}"), "it waits for itself"));
        }
        let (task_number, agent) = task_of(conn, task)?;
        steps.push(LineageStep {
            request: id,
            number,
            task,
            task_number,
            agent,
        });
        above = parent;
    }
    steps.reverse();
    Ok(steps)
}

fn task_of(conn: &Connection, id: TaskId) -> Result<(u64, Name), StoreError> {
    let open: Option<Task> = by_id(conn, "open_task", id.as_uuid())?;
    let task = match open {
        Some(task) => Some(task),
        None => by_id::<ClosedTask>(conn, "closed_task", id.as_uuid())?.map(|closed| closed.task),
    };
    let task = task.ok_or_else(|| damaged(format!("task {id}"), "it is missing"))?;
    Ok((task.number, task.agent))
}

/// Single records of any sessions, in the requested order, as many as fit and one at least.
pub(super) fn records_at(
    conn: &KeyedConnection<'_>,
    places: &[(SessionId, u64)],
    bytes_max: u64,
) -> Result<Vec<Option<StoredRecord>>, StoreError> {
    let (mut found, mut left) = (Vec::with_capacity(places.len()), bytes_max);
    for (session, revision) in places {
        let record = match revision.checked_sub(1) {
            Some(after) => {
                let read = |bytes| {
                    let limit = PageLimit { entries: 1, bytes };
                    log::records(conn, *session, after, limit)
                };
                let records = match read(left) {
                    Err(StoreError::PageTooSmall { .. }) if !found.is_empty() => break,
                    Err(StoreError::PageTooSmall { bytes }) => read(bytes),
                    records => records,
                };
                records.map_err(|error| error.in_session(*session))?.pop()
            }
            None => None,
        };
        left = left.saturating_sub(record.as_ref().map_or(0, StoredRecord::bytes));
        found.push(record);
    }
    Ok(found)
}
