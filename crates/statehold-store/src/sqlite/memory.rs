//! Memories of agents: exchanges are linked backwards along their path, beside the links of tasks.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::Connection;
use statehold_core::digest::BodyRef;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::item::PlacedItem;
use statehold_core::memory::{AgentPath, Memory};
use statehold_core::name::NameError;
use statehold_core::projection::EndedExchange;
use statehold_core::record::{Event, Record};
use statehold_core::request::RequestOutcome;
use statehold_core::time::Timestamp;

use super::fork::ForkPlaces;
use super::history::{Placing, read_items, written_items};
use super::log::{self, ExchangeLink, LogRow, PayloadReader, SessionRow, Uuid16};
use super::read::{all, first, open_task_state};
use super::snapshot::KeyedConnection;
use super::sql::{damaged, from_sql, id_bytes, to_sql};
use super::tail::RowReader;
use super::write::{last_log_of_task, run};
use crate::commit::Commit;
use crate::port::{MemoryPage, MemoryQuery, StoreError, StoredExchange, StoredItem};

/// Where the newest exchange of a memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExchangePlace {
    /// The row that ended it.
    pub(super) log: i64,
    /// The row with the private state that the memory gives back; 0 for none.
    pub(super) state: i64,
}

/// The memories of a session.
pub(super) fn load(conn: &Connection, pk: i64) -> Result<BTreeMap<AgentPath, Memory>, StoreError> {
    let sql = "SELECT path, exchanges, record, request FROM memory WHERE session = ?1";
    let rows = all(conn, sql, [pk], |row| {
        Ok((
            row.get::<_, String>(0)?,
            Memory {
                exchanges: from_sql(row.get(1)?),
                record: from_sql(row.get(2)?),
                request: RequestId::from_uuid(row.get::<_, Uuid16>(3)?.0),
            },
        ))
    })?;
    let path = |text: &str| {
        text.parse()
            .map_err(|error: NameError| damaged(format!("the memory of {text:?}"), error))
    };
    rows.into_iter()
        .map(|(text, memory)| Ok((path(&text)?, memory)))
        .collect()
}

/// Where each memory of a session is.
pub(super) fn places(
    conn: &Connection,
    pk: i64,
) -> Result<BTreeMap<String, ExchangePlace>, StoreError> {
    let sql = "SELECT path, log, state FROM memory WHERE session = ?1";
    let rows = all(conn, sql, [pk], |row| {
        let (log, state) = (row.get(1)?, row.get(2)?);
        Ok((row.get(0)?, ExchangePlace { log, state }))
    })?;
    Ok(rows.into_iter().collect())
}

/// Where a memory is that is not, or not yet, in the table.
fn seek(
    conn: &Connection,
    session: &SessionRow,
    memory: &Memory,
) -> Result<ExchangePlace, StoreError> {
    let row = log::seek(conn, session, memory.record)?;
    let link = row.exchange(memory.request, memory.exchanges)?;
    Ok(ExchangePlace {
        log: row.id,
        state: link.state.map_or(0, |state| row.named(state)),
    })
}

/// The links of the exchanges that a commit ends, before its row is written.
pub(super) fn links(
    conn: &Connection,
    commit: &Commit,
    found: Option<&SessionRow>,
    places: Option<&ForkPlaces>,
) -> Result<Vec<ExchangeLink>, StoreError> {
    let mut links: Vec<ExchangeLink> = Vec::new();
    for ended in &commit.changes.exchanges {
        let before = ended.before;
        let same = |link: &&ExchangeLink| Some(link.request) == before.map(|known| known.request);
        let (prev_log, inherited) = match (&before, links.iter().rev().find(same)) {
            (None, _) => (0, None),
            (Some(_), Some(link)) => (0, link.state),
            (Some(known), None) => {
                let place = place_before(conn, commit, found, ended, known)?;
                (place.log, Some(place.state).filter(|state| *state != 0))
            }
        };
        let own = own_state(conn, commit, ended)?;
        links.push(ExchangeLink {
            request: ended.request,
            task: ended.task,
            started_by: ended.started_by,
            grown: grown(conn, commit, ended.task, places)?,
            number: Memory::count(before) + 1,
            prev: prev_log,
            before: before.map(|known| known.request),
            state: own.or(inherited),
            wrote_state: own.is_some(),
            outcome: ended.outcome,
        });
    }
    Ok(links)
}

/// Where the memory was that an exchange is added to.
fn place_before(
    conn: &Connection,
    commit: &Commit,
    found: Option<&SessionRow>,
    ended: &EndedExchange,
    known: &Memory,
) -> Result<ExchangePlace, StoreError> {
    if let Some(session) = found {
        let sql = "SELECT log, state FROM memory WHERE session = ?1 AND path = ?2";
        let place = first(conn, sql, (session.pk, ended.path.as_str()), |row| {
            let (log, state) = (row.get(0)?, row.get(1)?);
            Ok(ExchangePlace { log, state })
        })?;
        return place.ok_or_else(|| damaged(format!("the memory of {}", ended.path), "no row"));
    }
    let origin = commit.writes.fork.map(|fork| fork.origin);
    let origin = origin
        .map(|origin| log::session_row(conn, origin))
        .transpose()?;
    let origin = origin.flatten();
    let origin =
        origin.ok_or_else(|| damaged(format!("session {}", commit.session()), "no origin"))?;
    seek(conn, &origin, known)
}

/// The row with the private state that a completed exchange wrote last; 0 for the row of the commit.
fn own_state(
    conn: &Connection,
    commit: &Commit,
    ended: &EndedExchange,
) -> Result<Option<i64>, StoreError> {
    if ended.outcome != RequestOutcome::Completed {
        return Ok(None);
    }
    let mut written = commit.writes.task_states.iter();
    if written.any(|(_, request, _)| *request == ended.request) {
        return Ok(Some(0));
    }
    if ended.started_by == commit.record.content.seq {
        return Ok(None);
    }
    let sql = "SELECT log FROM task_state WHERE task = ?1 AND request = ?2";
    let key = (
        id_bytes(ended.task.as_uuid()),
        id_bytes(ended.request.as_uuid()),
    );
    first(conn, sql, key, |row| row.get(0))
}

/// The newest row that added to a task; 0 for the row of the commit.
fn grown(
    conn: &Connection,
    commit: &Commit,
    task: TaskId,
    places: Option<&ForkPlaces>,
) -> Result<i64, StoreError> {
    if commit.writes.grown_tasks.contains(&task) {
        Ok(0)
    } else if let Some(places) = places {
        // The origin may have newer rows.
        Ok(places.grown(task))
    } else {
        Ok(last_log_of_task(conn, task)?.unwrap_or(0))
    }
}

/// Writes the memories that a commit changes; of a fork, all that it has.
pub(super) fn write(
    conn: &Connection,
    commit: &Commit,
    pk: i64,
    log: i64,
    links: &[ExchangeLink],
) -> Result<(), StoreError> {
    if commit.writes.fork.is_some() {
        for (path, memory) in commit.after.memories.iter() {
            write_one(conn, commit, (pk, log), links, path, memory)?;
        }
        return Ok(());
    }
    for (path, memory) in &commit.changes.memories {
        if let Some(memory) = memory {
            write_one(conn, commit, (pk, log), links, path, memory)?;
        } else {
            let sql = "DELETE FROM memory WHERE session = ?1 AND path = ?2";
            run(conn, sql, (pk, path.as_str()))?;
        }
    }
    Ok(())
}

fn write_one(
    conn: &Connection,
    commit: &Commit,
    (pk, log): (i64, i64),
    links: &[ExchangeLink],
    path: &AgentPath,
    memory: &Memory,
) -> Result<(), StoreError> {
    let is_new = |link: &&ExchangeLink| {
        memory.record == commit.record.content.seq && link.request == memory.request
    };
    let place = if let Some(link) = links.iter().find(is_new) {
        let state = link
            .state
            .map_or(0, |state| if state == 0 { log } else { state });
        ExchangePlace { log, state }
    } else {
        let session = log::session_by_pk(conn, pk)?;
        let session = session.ok_or_else(|| damaged("the table `session`", "no row"))?;
        match inherited(conn, &session, path, memory)? {
            Some(place) => place,
            None => seek(conn, &session, memory)?,
        }
    };
    let row = (
        pk,
        path.as_str(),
        to_sql(memory.exchanges),
        to_sql(memory.record),
        id_bytes(memory.request.as_uuid()),
        place.log,
        place.state,
    );
    let sql = "INSERT INTO memory VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)
               ON CONFLICT(session, path) DO UPDATE SET exchanges = excluded.exchanges,
               record = excluded.record, request = excluded.request, log = excluded.log,
               state = excluded.state";
    run(conn, sql, row).map(drop)
}

/// Where the memory of a fork is, if its origin has the same one still.
fn inherited(
    conn: &Connection,
    fork: &SessionRow,
    path: &AgentPath,
    memory: &Memory,
) -> Result<Option<ExchangePlace>, StoreError> {
    let sql = "SELECT log, state FROM memory
               WHERE session = ?1 AND path = ?2 AND record = ?3 AND request = ?4";
    let request = id_bytes(memory.request.as_uuid());
    let key = (fork.origin, path.as_str(), to_sql(memory.record), request);
    first(conn, sql, key, |row| {
        let (log, state) = (row.get(0)?, row.get(1)?);
        Ok(ExchangePlace { log, state })
    })
}

/// Where a page of a memory is read from.
pub(super) trait MemoryRows {
    /// Why it cannot be read.
    type Error: From<StoreError>;

    /// The row that ended the newest exchange of a memory.
    fn newest(&self, path: &AgentPath, memory: &Memory) -> Result<Arc<LogRow>, Self::Error>;
    /// A row, by its id.
    fn row(&self, id: i64) -> Result<Arc<LogRow>, Self::Error>;
    /// When the record of a row was committed.
    fn committed_at(&mut self, row: &LogRow) -> Result<Timestamp, Self::Error>;
    /// The requested items of a row, oldest first.
    fn items(
        &mut self,
        row: &LogRow,
        is_asked: &dyn Fn(&PlacedItem) -> bool,
    ) -> Result<Vec<StoredItem>, Self::Error>;
    /// The id that a task has in the session.
    fn task(&self, task: TaskId) -> TaskId;
    /// The private state of a task, if this request was the last to write it.
    fn state_by(&mut self, task: TaskId, by: RequestId) -> Result<Option<Vec<u8>>, Self::Error>;
    /// The private state that a row has. None if it was erased.
    fn state_in(&mut self, row: i64) -> Result<Option<Vec<u8>>, Self::Error>;
}

/// The rows of a session in the file.
struct FileRows<'a> {
    conn: &'a RowReader<'a>,
    session: SessionRow,
    placing: Placing,
}

impl MemoryRows for FileRows<'_> {
    type Error = StoreError;

    fn newest(&self, path: &AgentPath, memory: &Memory) -> Result<Arc<LogRow>, StoreError> {
        let sql = "SELECT log FROM memory WHERE session = ?1 AND path = ?2 AND record = ?3";
        let key = (self.session.pk, path.as_str(), to_sql(memory.record));
        match first(self.conn, sql, key, |row| row.get(0))? {
            Some(log) => self.conn.row(log),
            // Another exchange has ended since.
            None => log::seek(self.conn, &self.session, memory.record).map(Arc::new),
        }
    }

    fn row(&self, id: i64) -> Result<Arc<LogRow>, StoreError> {
        self.conn.row(id)
    }

    fn committed_at(&mut self, row: &LogRow) -> Result<Timestamp, StoreError> {
        Ok(written_items(self.conn, row, &mut self.placing)?.at)
    }

    fn items(
        &mut self,
        row: &LogRow,
        is_asked: &dyn Fn(&PlacedItem) -> bool,
    ) -> Result<Vec<StoredItem>, StoreError> {
        read_items(
            self.conn,
            row,
            self.session.reader(),
            &mut self.placing,
            is_asked,
        )
    }

    fn task(&self, task: TaskId) -> TaskId {
        self.placing.name(task)
    }

    fn state_by(&mut self, task: TaskId, by: RequestId) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT value FROM task_state WHERE task = ?1 AND request = ?2
                   AND log > (SELECT erased_log FROM session WHERE pk = task_state.session)";
        let key = (id_bytes(task.as_uuid()), id_bytes(by.as_uuid()));
        let packed = first(self.conn, sql, key, |row| row.get(0))?;
        open_task_state(self.conn, task, packed)
    }

    fn state_in(&mut self, row: i64) -> Result<Option<Vec<u8>>, StoreError> {
        state_in(self.conn, self.session.reader(), row)
    }
}

/// A page of a memory from the file, newest exchange first.
pub(super) fn page(
    conn: &RowReader<'_>,
    session: SessionId,
    query: &MemoryQuery,
) -> Result<MemoryPage, StoreError> {
    let Some(session) = log::session_row(conn, session)? else {
        return Ok(MemoryPage::default());
    };
    let placing = Placing::of(conn, &session)?;
    let mut rows = FileRows {
        conn,
        session,
        placing,
    };
    page_of(&mut rows, query)
}

/// A page of a memory, newest exchange first.
pub(super) fn page_of<R: MemoryRows>(
    rows: &mut R,
    query: &MemoryQuery,
) -> Result<MemoryPage, R::Error> {
    let mut page = MemoryPage::default();
    if let Some((task, request)) = query.reader {
        page.task_state = rows.state_by(task, request)?;
    }
    let Some(newest) = query.memory else {
        return Ok(page);
    };
    let row = rows.newest(&query.path, &newest)?;
    let link = row.exchange(newest.request, newest.exchanges)?;
    let first = At { row, link };
    if page.task_state.is_none() {
        page.task_state = first.state(rows)?;
    }
    let mut at = Some(first);
    let mut left = query.bytes;
    while let Some(here) = at.take_if(|_| page.exchanges.len() < query.exchanges) {
        let items = here.items(rows, &mut left)?;
        let too_large = items.is_none();
        if too_large && !page.exchanges.is_empty() {
            at = Some(here);
            break;
        }
        if too_large {
            left = 0;
        }
        let task_state = if here.link.wrote_state {
            here.state(rows)?
        } else {
            None
        };
        page.exchanges.push(StoredExchange {
            number: here.link.number,
            request: here.link.request,
            task: rows.task(here.link.task),
            outcome: here.link.outcome,
            ended_at: rows.committed_at(&here.row)?,
            items: items.unwrap_or_default(),
            too_large,
            task_state,
        });
        at = here.back(rows)?;
    }
    page.rest = at.map(|at| at.memory());
    Ok(page)
}

/// An exchange in the log.
struct At {
    row: Arc<LogRow>,
    link: ExchangeLink,
}

impl At {
    /// The exchange before.
    fn back<R: MemoryRows>(self, rows: &R) -> Result<Option<Self>, R::Error> {
        let Some(before) = self.link.before else {
            return Ok(None);
        };
        let row = match self.link.prev {
            0 => self.row,
            prev => rows.row(prev)?,
        };
        let link = row.exchange(before, self.link.number.saturating_sub(1))?;
        Ok(Some(Self { row, link }))
    }

    /// The memory whose newest exchange it is.
    fn memory(&self) -> Memory {
        Memory {
            exchanges: self.link.number,
            record: self.row.seq,
            request: self.link.request,
        }
    }

    /// The private state that the memory gives back.
    fn state<R: MemoryRows>(&self, rows: &mut R) -> Result<Option<Vec<u8>>, R::Error> {
        let Some(state) = self.link.state else {
            return Ok(None);
        };
        rows.state_in(self.row.named(state))
    }

    /// The items of the request, oldest first. None if their payloads have more than `left` bytes.
    fn items<R: MemoryRows>(
        &self,
        rows: &mut R,
        left: &mut u64,
    ) -> Result<Option<Vec<StoredItem>>, R::Error> {
        let request = self.link.request;
        let used = Cell::new(0_u64);
        let fits = |item: &PlacedItem| {
            let files = item.item.attachments.iter().map(|file| file.body.bytes);
            let bytes = files.chain([item.item.body.bytes]).map(u64::from);
            item.request == request && {
                used.set(used.get().saturating_add(bytes.sum()));
                used.get() <= *left
            }
        };
        let (mut at, mut task) = (self.row.named(self.link.grown), self.link.task);
        let mut found = Vec::new();
        loop {
            let row = rows.row(at)?;
            let page = rows.items(&row, &fits)?;
            if used.get() > *left {
                return Ok(None);
            }
            found.extend(page.into_iter().rev());
            if row.seq <= self.link.started_by {
                break;
            }
            let before = row.link(task).filter(|(prev, _)| *prev != 0);
            (at, task) = before
                .ok_or_else(|| damaged(row.place(), "the history ends before its request began"))?;
        }
        *left -= used.get();
        found.reverse();
        Ok(Some(found))
    }
}

/// The private state that a row of the log has. None if it was erased.
pub(super) fn state_in(
    conn: &KeyedConnection<'_>,
    reader: PayloadReader,
    log: i64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let row = log::row(conn, log)?;
    let record = row.record()?;
    let (place, name) = private_state(&row, &record)?;
    row.body(conn, reader, place, name)
}

/// The private state in the record of a row: its place among the payloads, and its name.
pub(super) fn private_state(row: &LogRow, record: &Record) -> Result<(usize, BodyRef), StoreError> {
    let (mut place, mut found) = (0, None);
    for event in &record.content.events {
        let bodies = event.bodies();
        if matches!(event, Event::TaskStatePut { .. }) {
            found = bodies.first().map(|name| (place, *name));
        }
        place += bodies.len();
    }
    found.ok_or_else(|| damaged(row.place(), "it has no private state"))
}

/// The revision of the newest rewind of a session; 0 if there is none.
pub(super) fn last_rewind(conn: &Connection, session: SessionId) -> Result<u64, StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(0);
    };
    let sql = "SELECT seq FROM rewind WHERE session = ?1 ORDER BY seq DESC LIMIT 1";
    let found = first(conn, sql, [row.pk], |row| row.get(0).map(from_sql))?;
    Ok(found.unwrap_or(0))
}

/// The newest revision at or before one that no rewind has taken back.
pub(super) fn kept_revision(
    conn: &Connection,
    session: SessionId,
    revision: u64,
) -> Result<u64, StoreError> {
    let Some(session) = log::session_row(conn, session)? else {
        return Ok(revision);
    };
    let (mut kept, mut until, mut at) = (revision, u64::MAX, Some(session.clone()));
    while let Some(part) = at.filter(|_| until > kept) {
        let sql = "SELECT seq FROM rewind WHERE session = ?1 AND seq > ?2 AND seq <= ?3
                   ORDER BY seq DESC";
        let key = (part.pk, to_sql(kept), to_sql(until));
        let rewinds = all(conn, sql, key, |row| row.get(0).map(from_sql))?;
        for seq in rewinds {
            let record = log::seek(conn, &session, seq)?.record()?;
            let went_back = record.content.events.iter().find_map(|event| match event {
                Event::Rewound { to, .. } => Some(*to),
                _ => None,
            });
            if seq > kept {
                kept = went_back.map_or(kept, |to| kept.min(to));
            }
        }
        until = part.origin_seq;
        at = log::session_by_pk(conn, part.origin)?;
    }
    Ok(kept)
}
