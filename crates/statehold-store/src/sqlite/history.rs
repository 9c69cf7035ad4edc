//! Histories: the items of a session or a task, newest first, without verifying the chain again.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::Connection;
use statehold_core::digest::BodyRef;
use statehold_core::ids::{SessionId, TaskId};
use statehold_core::item::PlacedItem;
use statehold_core::projection::ClosedTask;
use statehold_core::record::Event;
use statehold_core::task::Task;
use statehold_core::time::Timestamp;
use statehold_core::view::View;

use super::log::{self, LogRow, PayloadReader, SessionRow};
use super::read::{all, by_id, first};
use super::sql::{from_sql, id_bytes, to_sql};
use super::tail::RowReader;
use crate::commit::WrittenItems;
use crate::port::{ItemQuery, PageLimit, PageRoom, PastItemQuery, StoreError, StoredItem};

/// How many records a page of the transcript looks at.
const TRANSCRIPT_RECORDS_MAX: usize = 2_000;

/// A page of items, newest first, and the start of the next page.
pub(super) fn items(
    conn: &RowReader<'_>,
    session: SessionId,
    query: ItemQuery,
) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok((Vec::new(), None));
    };
    let mut placing = Placing::of(conn, &row)?;
    let mut page = ItemPage::new(query.limit);
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
    let is_asked = |item: &PlacedItem| {
        item.item.seq < before && query.task.is_none_or(|wanted| item.task == wanted)
    };
    while at != 0 && !page.is_used_up() {
        let log = conn.row(at)?;
        let next = match task {
            Some(id) => {
                let (prev, earlier) = log.link(id).unwrap_or((0, id));
                task = Some(earlier);
                prev
            }
            None => log.prev,
        };
        page.read_row(conn, &log, row.reader(), &mut placing, is_asked)?;
        placing.walk(conn, &row, &log);
        at = next;
    }
    let next = page.last_seq().filter(|_| page.is_used_up());
    Ok((page.found, next))
}

/// A page of the transcript, newest first, and the start of the next page.
pub(super) fn transcript(
    conn: &RowReader<'_>,
    session: SessionId,
    before: Option<u64>,
    limit: PageLimit,
) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok((Vec::new(), None));
    };
    let placing = Placing::of(conn, &row)?;
    let at = match before {
        Some(before) if before > 1 => log::seek_item(conn, &row, before - 1)?.id,
        Some(_) => 0,
        None => row.last_log,
    };
    let before = before.unwrap_or(u64::MAX);
    let is_asked = |item: &PlacedItem| item.item.seq < before && View::Client.shows(item);
    walk_page(conn, &row, at, placing, limit, is_asked)
}

/// A page of the items that a session had at a revision, newest first, and the start of the next page.
pub(super) fn items_at(
    conn: &RowReader<'_>,
    session: SessionId,
    query: PastItemQuery,
) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
    let row = log::session_row(conn, session)?;
    let Some(row) = row.filter(|row| (1..=row.revision).contains(&query.revision)) else {
        return Ok((Vec::new(), None));
    };
    let head = log::seek(conn, &row, query.revision)?.id;
    let at = match query.before {
        // Rows are numbered in the order of the log, so the smaller number is the earlier row of the session.
        Some(before) if before > 1 => head.min(log::seek_item(conn, &row, before - 1)?.id),
        Some(_) => 0,
        None => head,
    };
    let before = query.before.unwrap_or(u64::MAX);
    let is_asked = |item: &PlacedItem| item.item.seq < before && query.view.shows(item);
    let placing = Placing::at(conn, &row, query.revision)?;
    walk_page(conn, &row, at, placing, query.limit, is_asked)
}

/// A page of the requested items at and before a row, and the start of the next page. Looks at a bounded number
/// of records.
fn walk_page(
    conn: &RowReader<'_>,
    row: &SessionRow,
    mut at: i64,
    mut placing: Placing,
    limit: PageLimit,
    is_asked: impl Fn(&PlacedItem) -> bool,
) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
    let mut page = ItemPage::new(limit);
    // One item more than the page has room for shows that there is a next page.
    for _ in 0..TRANSCRIPT_RECORDS_MAX {
        if at == 0 || page.has_more {
            break;
        }
        let log = conn.row(at)?;
        at = log.prev;
        page.read_row(conn, &log, row.reader(), &mut placing, &is_asked)?;
        placing.walk(conn, row, &log);
    }
    let next = if page.has_more {
        page.last_seq()
    } else if at != 0 {
        // The read limit came before the page was full; the next page continues at this record.
        let below = log::row(conn, at)?;
        let last = last_item_until(conn, below)?;
        (last > 0).then_some(last + 1)
    } else {
        None
    };
    Ok((page.found, next))
}

/// A page in the making, newest item first. Payloads of items that are not asked for, or do not fit, are not
/// unpacked.
pub(super) struct ItemPage {
    pub(super) found: Vec<StoredItem>,
    room: PageRoom,
    /// Whether an item was left out for want of room.
    pub(super) has_more: bool,
}

impl ItemPage {
    pub(super) fn new(limit: PageLimit) -> Self {
        Self {
            found: Vec::new(),
            room: PageRoom::new(limit),
            has_more: false,
        }
    }

    /// Whether no further item has a place.
    pub(super) fn is_used_up(&self) -> bool {
        self.has_more || self.room.is_used_up()
    }

    /// The number of the last item, from which the next page goes on. None if no item can be before it.
    pub(super) fn last_seq(&self) -> Option<u64> {
        let last = self.found.last()?.placed.item.seq;
        (last > 1).then_some(last)
    }

    fn read_row(
        &mut self,
        conn: &RowReader<'_>,
        row: &LogRow,
        reader: PayloadReader,
        placing: &mut Placing,
        is_asked: impl Fn(&PlacedItem) -> bool,
    ) -> Result<(), StoreError> {
        let written = written_items(conn, row, placing)?;
        self.add(written, placing, is_asked, |first, named| {
            row.some_bodies(conn, reader, first, named)
        })
    }

    /// Adds the requested items of a record, the newest first, as long as there is room.
    pub(super) fn add<E: From<StoreError>>(
        &mut self,
        written: &WrittenItems,
        placing: &Placing,
        is_asked: impl Fn(&PlacedItem) -> bool,
        mut bodies: impl FnMut(usize, &[BodyRef]) -> Result<Vec<Option<Vec<u8>>>, E>,
    ) -> Result<(), E> {
        let asked: Vec<_> = asked_items(written, placing, is_asked).collect();
        for (first_body, item) in asked.into_iter().rev() {
            let named = bodies_of(&item);
            if self.has_more || !self.room.take(total_bytes(&named))? {
                self.has_more = true;
                return Ok(());
            }
            let bodies = bodies(first_body, &named)?;
            self.found.push(with_bodies(item, written.at, bodies));
        }
        Ok(())
    }
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
        Self::at(conn, session, u64::MAX)
    }

    /// Without the rewinds after a revision.
    fn at(conn: &Connection, session: &SessionRow, revision: u64) -> Result<Self, StoreError> {
        Ok(Self {
            rewinds: rewinds(conn, session, revision)?,
            names: inherited_names(conn, session)?,
            roots: BTreeMap::new(),
        })
    }

    /// Hands a row to the tail, unless it was inherited, a rewind took it back, or a removal its hidden payloads.
    fn walk(&self, conn: &RowReader<'_>, session: &SessionRow, row: &Arc<LogRow>) {
        let rewound = self.rewinds.iter().map(|(_, until)| *until).max();
        let groups = row.known_items().map_or(&[][..], |items| &items.groups);
        let mut items = groups.iter().flat_map(|group| &group.written.items);
        let is_whole = row.id > session.erased_log;
        if is_whole && row.session == session.pk && items.all(|item| Some(item.seq) > rewound) {
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
    reader: PayloadReader,
    placing: &mut Placing,
    is_asked: impl Fn(&PlacedItem) -> bool,
) -> Result<Vec<StoredItem>, StoreError> {
    let written = written_items(conn, row, placing)?;
    place_items(written, placing, is_asked, |first, named| {
        row.some_bodies(conn, reader, first, named)
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
    let asked = asked_items(written, placing, is_asked);
    asked
        .map(|(first_body, item)| {
            let bodies = bodies(first_body, &bodies_of(&item))?;
            Ok(with_bodies(item, written.at, bodies))
        })
        .collect()
}

/// The requested items of a record, oldest first, each with the place of its first payload.
fn asked_items(
    written: &WrittenItems,
    placing: &Placing,
    is_asked: impl Fn(&PlacedItem) -> bool,
) -> impl Iterator<Item = (usize, PlacedItem)> {
    let placed = written.groups.iter().flat_map(move |group| {
        let task = placing.name(group.written.task);
        let mut next_body = group.first_body;
        group.written.items.iter().map(move |item| {
            let first_body = next_body;
            next_body += 1 + item.attachments.len();
            let is_in = |(kept, until): &(u64, u64)| item.seq > *kept && item.seq <= *until;
            let placed = PlacedItem {
                task,
                request: group.written.request,
                is_root: group.is_root,
                rewound: placing.rewinds.iter().any(is_in),
                item: item.clone(),
            };
            (first_body, placed)
        })
    });
    placed.filter(move |(_, item)| is_asked(item))
}

/// The payloads of an item: its content, then its attachments.
fn bodies_of(item: &PlacedItem) -> Vec<BodyRef> {
    let attached = item.item.attachments.iter().map(|file| file.body);
    std::iter::once(item.item.body).chain(attached).collect()
}

fn with_bodies(placed: PlacedItem, at: Timestamp, bodies: Vec<Option<Vec<u8>>>) -> StoredItem {
    let mut bodies = bodies.into_iter();
    StoredItem {
        placed,
        at,
        body: bodies.next().flatten(),
        attachments: bodies.collect(),
    }
}

/// The length of some payloads, unpacked.
pub(super) fn total_bytes(named: &[BodyRef]) -> u64 {
    named.iter().map(|name| u64::from(name.bytes)).sum()
}

fn is_root(conn: &Connection, task: TaskId) -> Result<bool, StoreError> {
    if let Some(open) = by_id::<Task>(conn, "open_task", task.as_uuid())? {
        return Ok(open.parent.is_none());
    }
    let closed = by_id::<ClosedTask>(conn, "closed_task", task.as_uuid())?;
    Ok(closed.is_some_and(|closed| closed.task.parent.is_none()))
}

/// The ranges of items that rewinds up to a revision removed, including ranges that a fork inherited.
fn rewinds(
    conn: &Connection,
    session: &SessionRow,
    until: u64,
) -> Result<Vec<(u64, u64)>, StoreError> {
    let mut ranges = Vec::new();
    let (mut pk, mut until, mut inherited) = (session.pk, until, session.clone());
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
