//! Beginning a fork. Its rows are those of its origin at the fork point, which may lie far behind the head. A
//! reading thread looks up in which rows of the log they are, so that the writer copies rows and walks none.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::record::Event;
use statehold_core::scope::StateKey;

use super::log::{self, LogRow, PayloadReader, SessionRow};
use super::read;
use super::sql::{damaged, from_sql, id_bytes, to_sql};
use super::write::{put_state, run, write_task_state};
use crate::commit::{Commit, ForkWrite};
use crate::port::{FORK_LEVELS_MAX, StoreError};

/// Where the rows are that a fork takes from its origin. The log before a fork point never changes, so places
/// stay true while the origin goes on.
#[derive(Debug)]
pub(super) struct ForkPlaces {
    /// The row of the fork point.
    point: i64,
    tasks: BTreeMap<TaskId, TaskPlace>,
    /// The rows that wrote the values of keys which have changed since.
    values: BTreeMap<StateKey, i64>,
}

/// Where a task is at the fork point.
#[derive(Debug, Clone, Copy, Default)]
struct TaskPlace {
    /// The newest row that added to it; 0 for none.
    grown: i64,
    /// The row with its private state, and the request that wrote it.
    state: Option<(i64, RequestId)>,
}

/// The session that a commit forks, with the row of the fork point. None if it forks none, or that is not there.
fn point_of(
    conn: &Connection,
    commit: &Commit,
) -> Result<Option<(SessionRow, LogRow)>, StoreError> {
    let Some(fork) = commit.writes.fork else {
        return Ok(None);
    };
    let origin = log::session_row(conn, fork.origin)?;
    let Some(origin) = origin.filter(|origin| fork.at <= origin.revision) else {
        return Ok(None);
    };
    let row = log::seek(conn, &origin, fork.at)?;
    Ok(Some((origin, row)))
}

/// Refuses a fork that would lie too deep.
pub(super) fn require_shallow(conn: &Connection, origin: &SessionRow) -> Result<(), StoreError> {
    let (mut levels, mut at) = (1, origin.origin);
    while let Some(session) = log::session_by_pk(conn, at)? {
        levels += 1;
        if levels > FORK_LEVELS_MAX {
            return Err(StoreError::ForkTooDeep);
        }
        at = session.origin;
    }
    Ok(())
}

impl ForkPlaces {
    /// Looks up the places for a commit. None if it begins no fork, or its fork point is not there.
    pub(super) fn find(conn: &Connection, commit: &Commit) -> Result<Option<Self>, StoreError> {
        let Some((origin, point)) = point_of(conn, commit)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            point: point.id,
            tasks: task_places(conn, commit, &origin, point.id)?,
            values: value_places(conn, commit, &origin)?,
        }))
    }

    /// Whether they are those of this fork point.
    pub(super) fn are_of(&self, point: i64) -> bool {
        self.point == point
    }

    /// The newest row that added to a task of the origin; 0 for none.
    pub(super) fn grown(&self, task: TaskId) -> i64 {
        self.tasks.get(&task).map_or(0, |place| place.grown)
    }
}

/// Where the tasks are that a fork takes over or in which it ends a request.
fn task_places(
    conn: &Connection,
    commit: &Commit,
    origin: &SessionRow,
    point: i64,
) -> Result<BTreeMap<TaskId, TaskPlace>, StoreError> {
    let renamed = commit.changes.renamed_tasks.iter().map(|(old, _)| *old);
    let ended = commit.changes.exchanges.iter().map(|ended| ended.task);
    // The rows of an expired session no longer say which tasks had a private state.
    let sql = "SELECT closed FROM session WHERE pk = ?1";
    let is_closed = read::first(conn, sql, [origin.pk], |row| row.get(0))?.unwrap_or(true);
    let mut walk = TaskWalk::default();
    for task in renamed.chain(ended).collect::<BTreeSet<_>>() {
        let id = id_bytes(task.as_uuid());
        let mut grown = None;
        for table in ["open_task", "closed_task"] {
            let sql = format!("SELECT last_log FROM {table} WHERE id = ?1");
            grown = grown.or(read::first(conn, &sql, [id], |row| row.get::<_, i64>(0))?);
        }
        let sql = "SELECT log, request FROM task_state WHERE task = ?1";
        let state = read::first(conn, sql, [id], |row| {
            let request = row.get::<_, log::Uuid16>(1)?.0;
            Ok((row.get::<_, i64>(0)?, RequestId::from_uuid(request)))
        })?;
        walk.tasks.push(WantedTask {
            task,
            name: task,
            grown: grown.filter(|grown| *grown <= point),
            state: state.filter(|(log, _)| *log <= point),
            is_state_known: state.map_or(!is_closed, |(log, _)| log <= point),
        });
    }
    walk.back(conn, point)?;
    let place = |wanted: WantedTask| {
        let (grown, state) = (wanted.grown.unwrap_or(0), wanted.state);
        (wanted.task, TaskPlace { grown, state })
    };
    Ok(walk.tasks.into_iter().map(place).collect())
}

/// A task whose place is looked for.
struct WantedTask {
    task: TaskId,
    /// Its id further back.
    name: TaskId,
    /// None if it is not known yet.
    grown: Option<i64>,
    state: Option<(i64, RequestId)>,
    is_state_known: bool,
}

impl WantedTask {
    fn is_found(&self) -> bool {
        self.grown.is_some() && self.is_state_known
    }
}

/// One walk back in the log for all tasks that have moved on since the fork point.
#[derive(Default)]
struct TaskWalk {
    tasks: Vec<WantedTask>,
}

impl TaskWalk {
    fn back(&mut self, conn: &Connection, from: i64) -> Result<(), StoreError> {
        let mut at = from;
        while at != 0 && !self.tasks.iter().all(WantedTask::is_found) {
            let row = log::row(conn, at)?;
            self.learn(&row)?;
            at = row.prev;
        }
        Ok(())
    }

    fn learn(&mut self, row: &LogRow) -> Result<(), StoreError> {
        let record = row.record()?;
        for wanted in self.tasks.iter_mut().filter(|wanted| !wanted.is_found()) {
            if wanted.grown.is_none() && row.link(wanted.name).is_some() {
                wanted.grown = Some(row.id);
            }
            let (mut put, mut is_opened) = (None, false);
            for event in &record.content.events {
                match event {
                    Event::TaskStatePut { task, request, .. } if *task == wanted.name => {
                        put = Some((row.id, *request));
                    }
                    Event::TaskRenamed { from, to } if *to == wanted.name => wanted.name = *from,
                    Event::TaskOpened { task, .. } if *task == wanted.name => is_opened = true,
                    _ => {}
                }
            }
            if !wanted.is_state_known && (put.is_some() || is_opened) {
                (wanted.state, wanted.is_state_known) = (put, true);
            }
            if is_opened {
                wanted.grown.get_or_insert(0);
            }
        }
        Ok(())
    }
}

/// Where the values are of keys that were changed or removed after the fork point.
fn value_places(
    conn: &Connection,
    commit: &Commit,
    origin: &SessionRow,
) -> Result<BTreeMap<StateKey, i64>, StoreError> {
    let sql = "SELECT key, version FROM state WHERE session = ?1";
    let now = read::all(conn, sql, [origin.pk], |row| {
        Ok((row.get::<_, String>(0)?, from_sql(row.get(1)?)))
    })?;
    let now: BTreeMap<String, u64> = now.into_iter().collect();
    let mut places = BTreeMap::new();
    for (key, version) in commit.after.keys.iter() {
        let version = version.revision;
        if now.get(key.as_str()) != Some(&version) {
            places.insert(key.clone(), value_row(conn, origin, key, version)?);
        }
    }
    Ok(places)
}

fn value_row(
    conn: &Connection,
    origin: &SessionRow,
    key: &StateKey,
    version: u64,
) -> Result<i64, StoreError> {
    let put = read::state_put(conn, origin, key, version)?;
    let put = put.ok_or_else(|| damaged(format!("`{key}` at revision {version}"), "no value"))?;
    Ok(put.row.id)
}

/// The row of a session that must be there.
fn row_of(conn: &Connection, pk: i64) -> Result<SessionRow, StoreError> {
    let row = log::session_by_pk(conn, pk)?;
    row.ok_or_else(|| damaged("the table `session`", "a fork or its origin is missing"))
}

/// Gives the tasks of a fork the private states that the tasks of its origin had, as far as no removal has taken
/// them from the fork.
pub(super) fn copy_task_states(
    conn: &Connection,
    commit: &Commit,
    places: &ForkPlaces,
    pk: i64,
) -> Result<(), StoreError> {
    let fork = row_of(conn, pk)?;
    for (old, new) in &commit.changes.renamed_tasks {
        let sql = "INSERT INTO task_state SELECT ?1, ?2, request, log, value FROM task_state
                   WHERE task = ?3 AND log <= ?4 AND log > ?5";
        let (old_id, new_id) = (id_bytes(old.as_uuid()), id_bytes(new.as_uuid()));
        let key = (new_id, pk, old_id, places.point, fork.erased_log);
        if run(conn, sql, key)? > 0 {
            continue;
        }
        let state = places.tasks.get(old).and_then(|place| place.state);
        if let Some((log, request)) = state
            && let Some(packed) = private_state(conn, fork.reader(), log, request)?
        {
            write_task_state(conn, *new, pk, request, log, &packed)?;
        }
    }
    Ok(())
}

/// The private state that a request wrote in a row, as the table stores it. None if a removal has taken
/// it from the reader.
fn private_state(
    conn: &Connection,
    reader: PayloadReader,
    log: i64,
    by: RequestId,
) -> Result<Option<Vec<u8>>, StoreError> {
    let row = log::row(conn, log)?;
    let record = row.record()?;
    let (mut index, mut found) = (0, None);
    for event in &record.content.events {
        let bodies = event.bodies();
        if matches!(event, Event::TaskStatePut { request, .. } if *request == by) {
            found = bodies.first().map(|name| (index, *name));
        }
        index += bodies.len();
    }
    let found = found.ok_or_else(|| damaged(row.place(), "it has no private state"))?;
    row.packed_body(conn, reader, found.0, found.1)
}

/// Gives a fork the state that its origin had.
pub(super) fn copy_state(
    conn: &Connection,
    commit: &Commit,
    places: &ForkPlaces,
    pk: i64,
) -> Result<(), StoreError> {
    let Some(ForkWrite { at, .. }) = commit.writes.fork else {
        return Ok(());
    };
    let fork = row_of(conn, pk)?;
    let origin = row_of(conn, fork.origin)?;
    let sql = "INSERT INTO state SELECT ?1, key, version, bytes, value FROM state
               WHERE session = ?2 AND version <= ?3";
    let copied = run(conn, sql, (pk, origin.pk, to_sql(at)))?;
    if copied == commit.after.keys.len() {
        return Ok(());
    }
    let sql = "SELECT key FROM state WHERE session = ?1";
    let there = read::all(conn, sql, [pk], |row| row.get::<_, String>(0))?;
    let there: BTreeSet<String> = there.into_iter().collect();
    let keys = commit.after.keys.iter();
    for (key, version) in keys.filter(|(key, _)| !there.contains(key.as_str())) {
        let log = match places.values.get(key) {
            Some(log) => *log,
            // It was changed after the places were looked up.
            None => value_row(conn, &origin, key, version.revision)?,
        };
        let value = read::put_in(log::row(conn, log)?, key)?;
        let packed = value
            .map(|put| put.packed(conn, fork.reader()))
            .transpose()?;
        let packed = packed.flatten();
        let packed = packed.ok_or_else(|| damaged(format!("`{key}` in row {log}"), "no value"))?;
        put_state(conn, pk, key, *version, &packed)?;
    }
    Ok(())
}
