//! Histories: the items of a session or a task, newest first, without verifying the chain again.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::Connection;
use statehold_core::digest::BodyRef;
use statehold_core::ids::{SessionId, TaskId, UserId};
use statehold_core::item::PlacedItem;
use statehold_core::projection::ClosedTask;
use statehold_core::record::Event;
use statehold_core::task::Task;
use statehold_core::view::View;

use super::log::{self, LogRow, SessionRow};
use super::read::{all, by_id, first};
use super::sql::{from_sql, id_bytes, to_sql};
use super::tail::RowReader;
use crate::commit::WrittenItems;
use crate::port::{ItemQuery, StoreError, StoredItem};

/// How many records a page of the transcript looks at.
const TRANSCRIPT_RECORDS_MAX: usize = 2_000;

/// A page of items, newest first.
pub(super) fn items(
    conn: &RowReader<'_>,
    session: SessionId,
    query: ItemQuery,
) -> Result<Vec<StoredItem>, StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(Vec::new());
    };
    let mut placing = Placing::of(conn, &row)?;
    let mut found = Vec::new();
    let before = query.before.unwrap_or(u64::MAX);
    let (mut at, mut task) = match (query.task, query.before) {
        (Some(task), None) => (last_log_of(conn, &row, &placing.names, task)?, Some(task)),
        (Some(task), Some(before)) => {
            let (at, task) = log_of_page(conn, &row, &placing.names, task, before)?;
            (at, Some(task))
        }
        (None, Some(before)) if before > 1 => (log::seek_item(conn, &row, before - 1)?.id, None),
        (None, Some(_)) => (0, None),
        (None, None) => (row.last_log, None),
    };
    // Payloads of other items are not unpacked.
    let is_asked = |item: &PlacedItem| {
        item.item.seq < before && query.task.is_none_or(|wanted| item.task == wanted)
    };
    while at != 0 && found.len() < query.limit {
        let log = conn.row(at)?;
        let next = match task {
            Some(id) => {
                let (prev, earlier) = log.link(id).unwrap_or((0, id));
                task = Some(earlier);
                prev
            }
            None => log.prev,
        };
        let page = read_items(conn, &log, row.user, &mut placing, is_asked)?;
        placing.walk(conn, &row, &log);
        found.extend(page.into_iter().rev());
        at = next;
    }
    found.truncate(query.limit);
    Ok(found)
}

/// A page of the transcript, newest first, and the start of the next page. Payloads of hidden items
/// are not unpacked.
pub(super) fn transcript(
    conn: &RowReader<'_>,
    session: SessionId,
    before: Option<u64>,
    limit: usize,
) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok((Vec::new(), None));
    };
    let mut placing = Placing::of(conn, &row)?;
    let mut at = match before {
        Some(before) if before > 1 => log::seek_item(conn, &row, before - 1)?.id,
        Some(_) => 0,
        None => row.last_log,
    };
    let before = before.unwrap_or(u64::MAX);
    let is_asked = |item: &PlacedItem| item.item.seq < before && View::Client.shows(item);
    let mut found = Vec::new();
    // One item more than the limit shows whether there is a next page.
    for _ in 0..TRANSCRIPT_RECORDS_MAX {
        if at == 0 || found.len() > limit {
            break;
        }
        let log = conn.row(at)?;
        at = log.prev;
        let page = read_items(conn, &log, row.user, &mut placing, is_asked)?;
        placing.walk(conn, &row, &log);
        found.extend(page.into_iter().rev());
    }
    let next = if found.len() > limit {
        found.truncate(limit);
        found.last().map(|last| last.placed.item.seq)
    } else if at != 0 {
        // The read limit came before the page was full; the next page continues at this record.
        let below = log::row(conn, at)?;
        let last = last_item_until(conn, below)?;
        (last > 0).then_some(last + 1)
    } else {
        None
    };
    Ok((found, next))
}

/// The last item at or before a row of the log.
fn last_item_until(conn: &Connection, from: LogRow) -> Result<u64, StoreError> {
    let mut row = from;
    loop {
        let items = row.read_items()?;
        let last = items
            .groups
            .last()
            .and_then(|(_, group)| group.items.last());
        if let Some(last) = last {
            return Ok(last.seq);
        }
        if row.prev == 0 {
            return Ok(0);
        }
        row = log::row(conn, row.prev)?;
    }
}

/// The facts that locate an item: rewinds, renamed tasks and root tasks.
#[derive(Default)]
pub(super) struct Placing {
    /// The ranges of items that rewinds removed.
    rewinds: Vec<(u64, u64)>,
    /// The ids that inherited tasks have here, by the ids they had before.
    names: BTreeMap<TaskId, TaskId>,
    /// Which tasks are root tasks.
    roots: BTreeMap<TaskId, bool>,
}

impl Placing {
    pub(super) fn of(conn: &Connection, session: &SessionRow) -> Result<Self, StoreError> {
        Ok(Self {
            rewinds: rewinds(conn, session)?,
            names: inherited_names(conn, session)?,
            roots: BTreeMap::new(),
        })
    }

    /// Hands a row to the tail, unless it was inherited or a rewind took it back.
    fn walk(&self, conn: &RowReader<'_>, session: &SessionRow, row: &Arc<LogRow>) {
        let rewound = self.rewinds.iter().map(|(_, until)| *until).max();
        let groups = row.known_items().map_or(&[][..], |items| &items.groups);
        let mut items = groups.iter().flat_map(|group| &group.written.items);
        if row.session == session.pk && items.all(|item| Some(item.seq) > rewound) {
            conn.walk(row);
        }
    }

    /// Whether a task is a root task.
    fn is_root(&mut self, conn: &Connection, task: TaskId) -> Result<bool, StoreError> {
        if let Some(known) = self.roots.get(&task) {
            return Ok(*known);
        }
        let known = is_root(conn, task)?;
        self.roots.insert(task, known);
        Ok(known)
    }

    /// The id that a task has in the session.
    pub(super) fn name(&self, task: TaskId) -> TaskId {
        self.names.get(&task).copied().unwrap_or(task)
    }
}

/// The ids that a fork, and the forks it comes from, gave to inherited tasks.
fn inherited_names(
    conn: &Connection,
    session: &SessionRow,
) -> Result<BTreeMap<TaskId, TaskId>, StoreError> {
    let mut names: BTreeMap<TaskId, TaskId> = BTreeMap::new();
    let mut at = session.clone();
    while at.origin != 0 {
        let first = log::seek(conn, &at, at.origin_seq + 1)?.record()?;
        for event in &first.content.events {
            if let Event::TaskRenamed { from, to } = event {
                let here = names.get(to).copied().unwrap_or(*to);
                names.insert(*from, here);
            }
        }
        match log::session_by_pk(conn, at.origin)? {
            Some(origin) => at = origin,
            None => break,
        }
    }
    Ok(names)
}

/// The newest log row that added to a task, seen from a session.
fn last_log_of(
    conn: &Connection,
    session: &SessionRow,
    names: &BTreeMap<TaskId, TaskId>,
    task: TaskId,
) -> Result<i64, StoreError> {
    for table in ["open_task", "closed_task"] {
        let sql = format!("SELECT last_log FROM {table} WHERE id = ?1 AND session = ?2");
        let key = (id_bytes(task.as_uuid()), session.pk);
        if let Some(found) = first(conn, &sql, key, |row| row.get(0))? {
            return Ok(found);
        }
    }
    if session.origin_seq == 0 || names.contains_key(&task) {
        return Ok(0);
    }
    // A task that was final before the fork keeps its id, and its history lies before it.
    let shared = log::seek(conn, session, session.origin_seq)?;
    log::last_growth(conn, shared.id, task)
}

/// Finds the start of a page of a task's history, and the name of the task there. Pages follow each
/// other, so the start is usually near the `before` item; a walk from the newest record would read
/// all earlier pages again.
fn log_of_page(
    conn: &Connection,
    session: &SessionRow,
    names: &BTreeMap<TaskId, TaskId>,
    task: TaskId,
    before: u64,
) -> Result<(i64, TaskId), StoreError> {
    let from = log::seek_item(conn, session, before)?.id;
    let is_wanted = |known: TaskId| names.get(&known).copied().unwrap_or(known) == task;
    match log::growth_near(conn, from, is_wanted)? {
        Some(found) => Ok(found),
        None => Ok((last_log_of(conn, session, names, task)?, task)),
    }
}

/// The requested items of a row with their payloads, oldest first.
pub(super) fn read_items(
    conn: &RowReader<'_>,
    row: &LogRow,
    user: UserId,
    placing: &mut Placing,
    is_asked: impl Fn(&PlacedItem) -> bool,
) -> Result<Vec<StoredItem>, StoreError> {
    let written = written_items(conn, row, placing)?;
    place_items(written, placing, is_asked, |first, named| {
        row.some_bodies(conn, user, first, named)
    })
}

/// The items that a row has, with or without payloads.
pub(super) fn written_items<'r>(
    conn: &Connection,
    row: &'r LogRow,
    placing: &mut Placing,
) -> Result<&'r WrittenItems, StoreError> {
    if let Some(known) = row.known_items() {
        return Ok(known);
    }
    let items = WrittenItems::of(row.read_items()?, |task| placing.is_root(conn, task))?;
    Ok(row.items.get_or_init(|| items))
}

/// The requested items of a record, oldest first. `bodies` reads payloads, from the place of the first.
pub(super) fn place_items<E>(
    written: &WrittenItems,
    placing: &Placing,
    is_asked: impl Fn(&PlacedItem) -> bool,
    mut bodies: impl FnMut(usize, &[BodyRef]) -> Result<Vec<Option<Vec<u8>>>, E>,
) -> Result<Vec<StoredItem>, E> {
    let mut placed = Vec::new();
    for group in &written.groups {
        let task = placing.name(group.written.task);
        let mut next_body = group.first_body;
        for item in &group.written.items {
            let body_at = next_body;
            next_body += 1 + item.attachments.len();
            let is_in = |(kept, until): &(u64, u64)| item.seq > *kept && item.seq <= *until;
            let item = PlacedItem {
                task,
                request: group.written.request,
                is_root: group.is_root,
                rewound: placing.rewinds.iter().any(is_in),
                item: item.clone(),
            };
            if !is_asked(&item) {
                continue;
            }
            let attached = item.item.attachments.iter().map(|file| file.body);
            let named: Vec<BodyRef> = std::iter::once(item.item.body).chain(attached).collect();
            let mut bodies = bodies(body_at, &named)?.into_iter();
            placed.push(StoredItem {
                placed: item,
                at: written.at,
                body: bodies.next().flatten(),
                attachments: bodies.collect(),
            });
        }
    }
    Ok(placed)
}

fn is_root(conn: &Connection, task: TaskId) -> Result<bool, StoreError> {
    if let Some(open) = by_id::<Task>(conn, "open_task", task.as_uuid())? {
        return Ok(open.parent.is_none());
    }
    let closed = by_id::<ClosedTask>(conn, "closed_task", task.as_uuid())?;
    Ok(closed.is_some_and(|closed| closed.task.parent.is_none()))
}

/// The ranges of items that rewinds removed, including ranges that a fork inherited.
fn rewinds(conn: &Connection, session: &SessionRow) -> Result<Vec<(u64, u64)>, StoreError> {
    let mut ranges = Vec::new();
    let (mut pk, mut until, mut inherited) = (session.pk, u64::MAX, session.clone());
    loop {
        let sql = "SELECT items_kept, items_until FROM rewind WHERE session = ?1 AND seq <= ?2";
        let found = all(conn, sql, (pk, to_sql(until)), |row| {
            Ok((from_sql(row.get(0)?), from_sql(row.get(1)?)))
        })?;
        ranges.extend(found);
        if inherited.origin == 0 {
            return Ok(ranges);
        }
        until = until.min(inherited.origin_seq);
        pk = inherited.origin;
        match log::session_by_pk(conn, pk)? {
            Some(origin) => inherited = origin,
            None => return Ok(ranges),
        }
    }
}
