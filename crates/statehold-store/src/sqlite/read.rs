//! Queries. Each sees one snapshot of the file: whole commits only.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use statehold_core::digest::Digest;
use statehold_core::hold::Hold;
use statehold_core::ids::{RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::record::{Event, Record};
use statehold_core::request::LiveRequest;
use statehold_core::root::SignedHead;
use statehold_core::scope::StateKey;
use statehold_core::session::{
    KeyVersion, Owner, SessionState, SessionStatus, TimeToLive, TtlMode,
};
use statehold_core::task::Task;
use statehold_core::time::Timestamp;
use uuid::Uuid;

use super::log::{self, LogRow, PayloadReader, SessionRow, Uuid16};
use super::memory;
use super::sealing::{name_lookup, open_text};
use super::snapshot::{KeyedConnection, Snapshot};
use super::sql::{corrupt_or_unavailable, damaged, digest, from_sql, id_bytes, to_sql};
use super::updates;
use crate::codec;
use crate::commit::{Answer, Commit, StateWrite};
use crate::port::{
    ChangedHead, Committed, KeyRange, LiveWork, PageLimit, PageRoom, SessionOrder, SessionPlace,
    SessionQuery, SessionSummary, SharedOwner, SharedValue, StatePage, StateValue, StoreError,
    ValueSize,
};
use crate::seal::SealKeys;

/// All rows of a query.
pub(super) fn all<T>(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.query_map(params, read)?.collect())
        .map_err(corrupt_or_unavailable(&place_of(sql)))
}

/// The first row of a query.
pub(super) fn first<T>(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, StoreError> {
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(params, read).optional())
        .map_err(corrupt_or_unavailable(&place_of(sql)))
}

/// The table that a query reads first, to say where damage is.
pub(super) fn place_of(sql: &str) -> String {
    let table = sql
        .split("FROM ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    format!("the table `{}`", table.unwrap_or_default())
}

pub(super) fn parse<T: DeserializeOwned>(place: &str, body: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(body).map_err(|error| damaged(place, error))
}

/// The row of kind `table` with this id, parsed.
pub(super) fn by_id<T: DeserializeOwned>(
    conn: &Connection,
    table: &str,
    id: &Uuid,
) -> Result<Option<T>, StoreError> {
    let sql = format!("SELECT body FROM {table} WHERE id = ?1");
    let body: Option<Vec<u8>> = first(conn, &sql, [id_bytes(id)], |row| row.get(0))?;
    body.map(|body| parse(&format!("`{table}` {id}"), &body))
        .transpose()
}

/// The session of a row in one of two tables.
pub(super) fn session_of(
    conn: &Connection,
    tables: [&str; 2],
    id: &Uuid,
) -> Result<Option<SessionId>, StoreError> {
    for table in tables {
        let sql = format!(
            "SELECT session.id FROM {table} JOIN session ON session.pk = {table}.session
             WHERE {table}.id = ?1"
        );
        if let Some(found) = first(conn, &sql, [id_bytes(id)], |row| row.get::<_, Uuid16>(0))? {
            return Ok(Some(SessionId::from_uuid(found.0)));
        }
    }
    Ok(None)
}

/// The state of a session, from its projections.
pub(super) fn load(
    conn: &Connection,
    session: SessionId,
) -> Result<Option<SessionState>, StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(None);
    };
    let sql = "SELECT tenant, app, agent, closed, last_at, tasks_opened, requests_started,
               items_appended, deleted, ttl_mode, ttl_ms, expires_at, hidden_ttl_ms, hidden_expires_at
               FROM session WHERE pk = ?1";
    let head = first(conn, sql, [row.pk], |row| {
        Ok((
            [row.get::<_, String>(0)?, row.get(1)?, row.get(2)?],
            [row.get::<_, bool>(3)?, row.get(8)?],
            [row.get::<_, i64>(4)?, row.get(5)?, row.get(6)?, row.get(7)?],
            row.get::<_, Option<String>>(9)?,
            [
                row.get::<_, Option<i64>>(10)?,
                row.get(11)?,
                row.get(12)?,
                row.get(13)?,
            ],
        ))
    })?;
    let Some((names, flags, numbers, ttl_mode, life)) = head else {
        return Ok(None);
    };
    let mut state = SessionState::new(session);
    state.revision = row.revision;
    state.head = row.head;
    state.owner = Some(owner(&row, &names)?);
    [state.closed, state.deleted] = flags;
    let place = format!("the row of session {session}");
    state.ttl = time_to_live(ttl_mode.as_deref(), life[0], &place)?;
    state.expires_at = life[1].map(Timestamp::from_micros);
    state.hidden_ttl_ms = life[2].map(from_sql);
    state.hidden_expires_at = life[3].map(Timestamp::from_micros);
    state.last_at = Timestamp::from_micros(numbers[0]);
    state.tasks_opened = from_sql(numbers[1]);
    state.requests_started = from_sql(numbers[2]);
    state.items_appended = from_sql(numbers[3]);
    let tasks: Vec<Task> = rows(conn, "open_task", row.pk)?;
    let requests: Vec<LiveRequest> = rows(conn, "live_request", row.pk)?;
    let holds: Vec<Hold> = rows(conn, "open_hold", row.pk)?;
    state.tasks = std::sync::Arc::new(tasks.into_iter().map(|task| (task.id, task)).collect());
    state.requests =
        std::sync::Arc::new(requests.into_iter().map(|live| (live.id, live)).collect());
    state.holds = std::sync::Arc::new(holds.into_iter().map(|hold| (hold.id, hold)).collect());
    let sql = "SELECT key, version, bytes FROM state WHERE session = ?1";
    // The values of a deleted session wait for their removal.
    let pk = if row.deleted { 0 } else { row.pk };
    let keys = all(conn, sql, [pk], |row| {
        let (revision, bytes) = (from_sql(row.get(1)?), row.get(2)?);
        Ok((row.get::<_, String>(0)?, KeyVersion { bytes, revision }))
    })?;
    let mut versions = BTreeMap::new();
    for (key, version) in keys {
        versions.insert(state_key(&key)?, version);
    }
    state.keys = std::sync::Arc::new(versions);
    state.memories = std::sync::Arc::new(memory::load(conn, row.pk)?);
    Ok(Some(state))
}

fn owner(row: &SessionRow, names: &[String; 3]) -> Result<Owner, StoreError> {
    let name = |text: &String| {
        text.parse::<Name>()
            .map_err(|error| damaged(format!("the row of session {}", row.id), error))
    };
    Ok(Owner {
        tenant: name(&names[0])?,
        app: name(&names[1])?,
        user: row.user,
        agent: name(&names[2])?,
    })
}

fn rows<T: DeserializeOwned>(
    conn: &Connection,
    table: &str,
    pk: i64,
) -> Result<Vec<T>, StoreError> {
    let sql = format!("SELECT body FROM {table} WHERE session = ?1");
    let bodies: Vec<Vec<u8>> = all(conn, &sql, [pk], |row| row.get(0))?;
    bodies
        .iter()
        .map(|body| parse(&format!("the table `{table}`"), body))
        .collect()
}

fn state_key(text: &str) -> Result<StateKey, StoreError> {
    StateKey::lenient(text).map_err(|error| damaged(format!("state key {text:?}"), error))
}

/// The session keys with their values.
pub(super) fn state(
    conn: &KeyedConnection<'_>,
    session: SessionId,
    range: &KeyRange,
    limit: PageLimit,
) -> Result<StatePage<StateValue>, StoreError> {
    let row = log::session_row(conn, session)?;
    let Some(row) = row.filter(|row| !row.deleted) else {
        return Ok(StatePage::default());
    };
    let KeyCondition {
        sql,
        begin,
        end,
        keys,
    } = KeyCondition::of(range, 2);
    let sql = format!("SELECT key, version, value FROM state WHERE session = ?1 AND {sql}");
    state_page(conn, &sql, (row.pk, begin, end, keys), limit, |row| {
        let (key, version): (String, i64) = (row.get(0)?, row.get(1)?);
        let packed: Vec<u8> = row.get(2)?;
        let keys = conn.keys;
        Ok(move || open_state(session, (&key, version, &packed), keys))
    })
}

/// The condition on the column `key` that a range is, with the order of the rows.
struct KeyCondition<'r> {
    sql: String,
    begin: &'r str,
    end: &'r str,
    /// Named keys, as a JSON array.
    keys: Option<String>,
}

impl<'r> KeyCondition<'r> {
    /// Its parameters are numbered from `first` on.
    fn of(range: &'r KeyRange, first: usize) -> Self {
        let order = if range.is_reverse() { "DESC" } else { "ASC" };
        let (begin, end) = range.bounds();
        let [second, third] = [first + 1, first + 2];
        let keys = range.keys().map(|keys| {
            let keys: Vec<&str> = keys.iter().map(StateKey::as_str).collect();
            serde_json::to_string(&keys).unwrap_or_default()
        });
        let condition = if keys.is_some() {
            // The plus signs keep the range from being walked: each named key is looked up.
            format!(
                "+key >= ?{first} AND +key < ?{second} AND key IN (SELECT value FROM json_each(?{third}))"
            )
        } else {
            format!("key >= ?{first} AND key < ?{second} AND ?{third} IS NULL")
        };
        Self {
            sql: format!("{condition} ORDER BY key {order}"),
            begin,
            end,
            keys,
        }
    }
}

fn open_state(
    session: SessionId,
    (key, version, packed): (&str, i64, &[u8]),
    keys: &dyn SealKeys,
) -> Result<Option<(StateKey, StateValue)>, StoreError> {
    let value = codec::open(packed, keys)
        .map_err(|error| damaged(format!("`{key}` of session {session}"), error))?;
    let (key, version) = (state_key(key)?, from_sql(version));
    Ok(value.map(|value| (key, StateValue { value, version })))
}

/// A page of a table of state, without values whose key is gone. The first column is the key, the third the value,
/// packed; `read` returns a function that unpacks the row.
fn state_page<V, F: FnOnce() -> Result<Option<(StateKey, V)>, StoreError>>(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    limit: PageLimit,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<F>,
) -> Result<StatePage<V>, StoreError> {
    let failed = |error| corrupt_or_unavailable(&place_of(sql))(error);
    let mut statement = conn.prepare_cached(sql).map_err(&failed)?;
    let mut rows = statement.query(params).map_err(&failed)?;
    let mut page = StatePage::default();
    let mut room = PageRoom::new(limit);
    while let Some(row) = rows.next().map_err(&failed)? {
        let length = |row: &Row<'_>| {
            let key = row.get_ref(0)?.as_str()?.len();
            Ok(key + codec::unpacked_bytes(row.get_ref(2)?.as_blob()?))
        };
        let bytes: rusqlite::Result<usize> = length(row);
        if !room.take(bytes.map_err(&failed)? as u64)? {
            page.has_more = true;
            break;
        }
        page.values.extend(read(row).map_err(&failed)?()?);
    }
    Ok(page)
}

/// One session key with its value.
pub(super) fn state_value(
    conn: &KeyedConnection<'_>,
    session: SessionId,
    key: &StateKey,
) -> Result<Option<StateValue>, StoreError> {
    let row = log::session_row(conn, session)?;
    let Some(row) = row.filter(|row| !row.deleted) else {
        return Ok(None);
    };
    let sql = "SELECT version, value FROM state WHERE session = ?1 AND key = ?2";
    let found = first(conn, sql, (row.pk, key.as_str()), |row| {
        Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?))
    })?;
    let Some((version, packed)) = found else {
        return Ok(None);
    };
    let opened = open_state(session, (key.as_str(), version, &packed), conn.keys)?;
    Ok(opened.map(|(_, value)| value))
}

/// The sizes of the values of session keys.
pub(super) fn state_sizes(
    conn: &Connection,
    session: SessionId,
    keys: &[StateKey],
    bytes_max: u64,
) -> Result<Vec<Option<ValueSize>>, StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(vec![None; keys.len()]);
    };
    let of = "FROM state WHERE session = ?1 AND key = ?2";
    sizes(conn, of, keys, bytes_max, |key| (row.pk, key.as_str()))
}

/// The sizes of shared values.
pub(super) fn shared_sizes(
    conn: &Connection,
    owner: &SharedOwner,
    keys: &[StateKey],
    bytes_max: u64,
) -> Result<Vec<Option<ValueSize>>, StoreError> {
    let of = "FROM shared
              WHERE tenant = ?1 AND app = ?2 AND user = ?3 AND key = ?4 AND value IS NOT NULL";
    let (tenant, app) = (owner.tenant.as_str(), owner.app.as_str());
    sizes(conn, of, keys, bytes_max, |key| {
        (tenant, app, user_of(owner), key.as_str())
    })
}

/// The sizes of the values in rows of `of`, a row for each key. The engine below knows the length of a packed value
/// without reading it; the length that it unpacks to is in its first bytes, but the engine reads all of them.
fn sizes<'k, P: rusqlite::Params>(
    conn: &Connection,
    of: &str,
    keys: &'k [StateKey],
    bytes_max: u64,
    params: impl Fn(&'k StateKey) -> P,
) -> Result<Vec<Option<ValueSize>>, StoreError> {
    let lengths = format!("SELECT version, length(value) {of}");
    let values = format!("SELECT value {of}");
    let mut left = bytes_max;
    let mut sizes = Vec::with_capacity(keys.len());
    for key in keys {
        let length = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let Some((version, packed)) = first(conn, &lengths, params(key), length)? else {
            sizes.push(None);
            continue;
        };
        let (version, packed) = (from_sql(version), from_sql(packed));
        let unpacked = |row: &Row<'_>| Ok(codec::unpacked_bytes(row.get_ref(0)?.as_blob()?));
        let read = match left.checked_sub(packed) {
            Some(rest) => {
                left = rest;
                first(conn, &values, params(key), unpacked)?
            }
            None => None,
        };
        let bytes = read.map_or(packed, |bytes| bytes as u64);
        sizes.push(Some(ValueSize { version, bytes }));
    }
    Ok(sizes)
}

/// The value that a session key had at a revision, from the log.
pub(super) fn state_at(
    conn: &KeyedConnection<'_>,
    session: SessionId,
    key: &StateKey,
    revision: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(None);
    };
    let put = state_put(conn, &row, key, revision)?;
    let value = put.map(|put| put.value(conn, row.reader())).transpose()?;
    Ok(value.flatten())
}

/// Finds the values that a commit restores, so that the writer reads none. A value that cannot be read here is left to
/// the writer, which refuses the commit if it is damaged.
pub(super) fn find_restored(conn: &Connection, commit: &mut Commit) {
    let session = commit.session();
    for write in &mut commit.writes.state {
        let StateWrite::Restore { key, bytes, from } = write else {
            continue;
        };
        if let Ok(Some(packed)) = packed_state_at(conn, session, key, *from) {
            let (key, bytes) = (key.clone(), *bytes);
            *write = StateWrite::Put { key, bytes, packed };
        }
    }
}

/// The same as the table stores it, without opening it.
pub(super) fn packed_state_at(
    conn: &Connection,
    session: SessionId,
    key: &StateKey,
    revision: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(None);
    };
    let put = state_put(conn, &row, key, revision)?;
    let value = put.map(|put| put.packed(conn, row.reader())).transpose()?;
    Ok(value.flatten())
}

/// A value of a session key in the log.
pub(super) struct LoggedValue {
    pub(super) row: LogRow,
    record: Record,
    /// Its place among the payloads of the record.
    index: usize,
}

impl LoggedValue {
    /// The length of the value, also if it was erased.
    pub(super) fn bytes(&self) -> u64 {
        let bodies = self.record.bodies();
        bodies
            .get(self.index)
            .map_or(0, |body| u64::from(body.bytes))
    }

    /// None if it was erased, or its key is gone.
    pub(super) fn value(
        &self,
        conn: &KeyedConnection<'_>,
        reader: PayloadReader,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self.record.bodies().get(self.index) {
            Some(name) => self.row.body(conn, reader, self.index, *name),
            None => Ok(None),
        }
    }

    /// The value as the table stores it. None if it was erased.
    pub(super) fn packed(
        &self,
        conn: &Connection,
        reader: PayloadReader,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self.record.bodies().get(self.index) {
            Some(name) => self.row.packed_body(conn, reader, self.index, *name),
            None => Ok(None),
        }
    }
}

/// The record that wrote the value which a session key had at a revision. A key that has that revision as its
/// version is found without a walk.
pub(super) fn state_put(
    conn: &Connection,
    session: &SessionRow,
    key: &StateKey,
    revision: u64,
) -> Result<Option<LoggedValue>, StoreError> {
    if revision == 0 || revision > session.revision {
        return Ok(None);
    }
    let mut at = log::seek(conn, session, revision)?;
    loop {
        let (seq, prev) = (at.seq, at.prev);
        at = match written(at, key)? {
            Written::Put(put) => return Ok(Some(*put)),
            Written::Deleted => return Ok(None),
            Written::Restored(from) if from >= seq => {
                let place = format!("record {seq} of session {}", session.id);
                return Err(damaged(place, "it restores a value of the future"));
            }
            Written::Restored(from) => log::seek(conn, session, from)?,
            Written::Nothing if prev == 0 => return Ok(None),
            Written::Nothing => log::row(conn, prev)?,
        };
    }
}

/// The value that a row wrote to a session key itself.
pub(super) fn put_in(row: LogRow, key: &StateKey) -> Result<Option<LoggedValue>, StoreError> {
    match written(row, key)? {
        Written::Put(put) => Ok(Some(*put)),
        Written::Deleted | Written::Restored(_) | Written::Nothing => Ok(None),
    }
}

/// The change of a session key in a record.
enum Written {
    Put(Box<LoggedValue>),
    Deleted,
    /// The key got the value of an earlier revision.
    Restored(u64),
    Nothing,
}

fn written(row: LogRow, key: &StateKey) -> Result<Written, StoreError> {
    let record = row.record()?;
    let mut index = 0;
    for event in &record.content.events {
        match event {
            Event::StatePut { key: put, .. } if put == key => {
                let put = LoggedValue { row, record, index };
                return Ok(Written::Put(Box::new(put)));
            }
            Event::StateDeleted { key: deleted, .. } if deleted == key => {
                return Ok(Written::Deleted);
            }
            Event::StateRestored {
                key: restored,
                from,
                ..
            } if restored == key => return Ok(Written::Restored(*from)),
            _ => index += event.bodies().len(),
        }
    }
    Ok(Written::Nothing)
}

/// The private state of a task.
pub(super) fn task_state(
    conn: &KeyedConnection<'_>,
    task: TaskId,
) -> Result<Option<Vec<u8>>, StoreError> {
    // Removals take a state at once, and delete its row later.
    let sql = "SELECT value FROM task_state WHERE task = ?1
               AND log > (SELECT erased_log FROM session WHERE pk = task_state.session)";
    let packed = first(conn, sql, [id_bytes(task.as_uuid())], |row| row.get(0))?;
    open_task_state(conn, task, packed)
}

/// The private state of a task, as its table has it.
pub(super) fn open_task_state(
    conn: &KeyedConnection<'_>,
    task: TaskId,
    packed: Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>, StoreError> {
    let opened = packed.map(|packed| codec::open(&packed, conn.keys));
    let opened = opened.transpose();
    let opened = opened.map_err(|error| damaged(format!("the state of {task}"), error))?;
    Ok(opened.flatten())
}

/// A private state in the log.
pub(super) struct LoggedState {
    /// The row that has it.
    pub(super) log: i64,
    /// The request that wrote it.
    pub(super) request: RequestId,
}

/// The private state that a task had at a log row, from the log.
pub(super) fn task_state_at(
    conn: &Connection,
    from: i64,
    task: TaskId,
) -> Result<Option<LoggedState>, StoreError> {
    let (mut at, mut task) = (from, task);
    while at != 0 {
        let row = log::row(conn, at)?;
        let record = row.record()?;
        let mut found = None;
        for event in &record.content.events {
            match event {
                Event::TaskStatePut {
                    task: put, request, ..
                } if *put == task => found = Some(*request),
                Event::TaskRenamed { from, to } if *to == task => task = *from,
                _ => {}
            }
        }
        if let Some(request) = found {
            return Ok(Some(LoggedState { log: at, request }));
        }
        at = row.prev;
    }
    Ok(None)
}

/// The shared keys of an app or a user.
pub(super) fn shared(
    conn: &KeyedConnection<'_>,
    owner: &SharedOwner,
    range: &KeyRange,
    limit: PageLimit,
) -> Result<StatePage<SharedValue>, StoreError> {
    let KeyCondition {
        sql,
        begin,
        end,
        keys,
    } = KeyCondition::of(range, 4);
    let sql = format!(
        "SELECT key, version, value, session, revision, principal, at, request FROM shared
         WHERE tenant = ?1 AND app = ?2 AND user = ?3 AND value IS NOT NULL AND {sql}"
    );
    let (tenant, app) = (owner.tenant.as_str(), owner.app.as_str());
    let params = (tenant, app, user_of(owner), begin, end, keys);
    state_page(conn, &sql, params, limit, |row| {
        let (row, keys) = (shared_row(row)?, conn.keys);
        Ok(move || row.open(keys))
    })
}

/// One shared key of an app or a user.
pub(super) fn shared_value(
    conn: &KeyedConnection<'_>,
    owner: &SharedOwner,
    key: &StateKey,
) -> Result<Option<SharedValue>, StoreError> {
    let sql = "SELECT key, version, value, session, revision, principal, at, request FROM shared
               WHERE tenant = ?1 AND app = ?2 AND user = ?3 AND key = ?4 AND value IS NOT NULL";
    let (tenant, app) = (owner.tenant.as_str(), owner.app.as_str());
    let params = (tenant, app, user_of(owner), key.as_str());
    let found = first(conn, sql, params, shared_row)?;
    let opened = found.map(|row| row.open(conn.keys)).transpose()?;
    Ok(opened.flatten().map(|(_, value)| value))
}

/// The user as the table names it: nothing for the values of the app.
pub(super) fn user_of(owner: &SharedOwner) -> Vec<u8> {
    let user = owner.user.map(|user| user.as_uuid().as_bytes().to_vec());
    user.unwrap_or_default()
}

/// A row of the table `shared`.
struct SharedRow {
    key: String,
    version: i64,
    packed: Vec<u8>,
    session: uuid::Uuid,
    revision: i64,
    by: String,
    at: i64,
    request: Option<Uuid16>,
}

fn shared_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<SharedRow> {
    Ok(SharedRow {
        key: row.get(0)?,
        version: row.get(1)?,
        packed: row.get(2)?,
        session: row.get::<_, Uuid16>(3)?.0,
        revision: row.get(4)?,
        by: row.get(5)?,
        at: row.get(6)?,
        request: row.get(7)?,
    })
}

impl SharedRow {
    /// None if the key that sealed it is gone.
    fn open(self, keys: &dyn SealKeys) -> Result<Option<(StateKey, SharedValue)>, StoreError> {
        let place = format!("shared key `{}`", self.key);
        let by = self.by.parse();
        let opened = codec::open(&self.packed, keys).map_err(|error| damaged(&place, error))?;
        let Some(value) = opened else {
            return Ok(None);
        };
        let value = SharedValue {
            value,
            version: from_sql(self.version),
            session: SessionId::from_uuid(self.session),
            revision: from_sql(self.revision),
            by: by.map_err(|error: statehold_core::ids::IdError| damaged(&place, error))?,
            at: Timestamp::from_micros(self.at),
            request: self.request.map(|id| RequestId::from_uuid(id.0)),
        };
        Ok(Some((state_key(&self.key)?, value)))
    }
}

/// How many answers are kept.
pub(super) fn answers_kept(conn: &Connection) -> Result<u64, StoreError> {
    let found = first(conn, "SELECT count(*) FROM answer", [], |row| row.get(0))?;
    Ok(found.map_or(0, from_sql))
}

/// The answer kept for an idempotency key, with its body as it is stored.
pub(super) fn kept_answer(conn: &Connection, key: Digest) -> Result<Option<Answer>, StoreError> {
    let sql = "SELECT fingerprint, session, revision, body, expires_at FROM answer WHERE key = ?1";
    let found = first(conn, sql, [key.as_bytes().as_slice()], |row| {
        Ok((
            row.get::<_, Vec<u8>>(0)?,
            row.get::<_, Uuid16>(1)?.0,
            row.get::<_, i64>(2)?,
            row.get::<_, Vec<u8>>(3)?,
            row.get::<_, i64>(4)?,
        ))
    })?;
    let Some((fingerprint, session, revision, body, expires_at)) = found else {
        return Ok(None);
    };
    let fingerprint = digest(&fingerprint)
        .ok_or_else(|| damaged("the table `answer`", "a fingerprint is not a digest"))?;
    Ok(Some(Answer {
        key,
        fingerprint,
        session: SessionId::from_uuid(session),
        revision: from_sql(revision),
        body,
        expires_at: Timestamp::from_micros(expires_at),
    }))
}

/// The answer kept for an idempotency key. Its body is empty if it was erased, or its key is gone.
pub(super) fn answer(
    conn: &KeyedConnection<'_>,
    key: Digest,
) -> Result<Option<Answer>, StoreError> {
    let Some(mut answer) = kept_answer(conn, key)? else {
        return Ok(None);
    };
    if !answer.body.is_empty() {
        let opened = codec::open(&answer.body, conn.keys);
        let opened = opened.map_err(|error| damaged("the table `answer`", error))?;
        answer.body = opened.unwrap_or_default();
    }
    Ok(Some(answer))
}

/// The session that has a name.
pub(super) fn session_named(
    conn: &KeyedConnection<'_>,
    (tenant, app, user): (&Name, &Name, UserId),
    name: &str,
) -> Result<Option<SessionSummary>, StoreError> {
    let sql = format!(
        "SELECT {SUMMARY_COLUMNS} FROM session
         WHERE tenant = ?1 AND app = ?2 AND user = ?3 AND name_lookup = ?4"
    );
    let key = (
        tenant.as_str(),
        app.as_str(),
        id_bytes(user.as_uuid()),
        name_lookup(conn.keys, user, name),
    );
    first(conn, &sql, key, SummaryRow::read)?
        .map(|row| row.into_summary(conn.keys))
        .transpose()
}

/// A page of sessions, newest first.
pub(super) fn sessions(
    from: &Snapshot<'_>,
    query: &SessionQuery,
) -> Result<Vec<SessionSummary>, StoreError> {
    if query.order == SessionOrder::Updated {
        return updates::sessions(from, query);
    }
    // One index each for the tenant, its apps and its users; the query filters by the rest.
    let by = match (&query.app, &query.user) {
        (_, Some(_)) => "session_by_user",
        (Some(_), None) => "session_by_app",
        (None, None) => "session_by_tenant",
    };
    let app = if query.app.is_some() {
        "AND app = ?3"
    } else {
        "AND ?3 IS NULL"
    };
    let user = if query.user.is_some() {
        "AND user = ?4"
    } else {
        "AND ?4 IS NULL"
    };
    let sql = format!(
        "SELECT {SUMMARY_COLUMNS} FROM session INDEXED BY {by}
         WHERE tenant = ?1 AND pk < ?2 AND listed = 1 {app} {user}
         ORDER BY pk DESC"
    );
    let key = params![
        query.tenant.as_str(),
        query.after.map_or(i64::MAX, |after| to_sql(after.number)),
        query.app.as_ref().map(Name::as_str),
        query.user.as_ref().map(|user| id_bytes(user.as_uuid())),
    ];
    from.list(&sql, key, query.limit, |row| {
        Ok(SummaryRow::read(row)?.into_summary(from.keys)?)
    })
}

/// Sessions of a user after a place, by place: those that lists show, or the others.
pub(super) fn sessions_of_user(
    from: &Snapshot<'_>,
    (tenant, user): (&Name, UserId),
    is_listed: bool,
    after: u64,
    limit: usize,
) -> Result<Vec<SessionSummary>, StoreError> {
    let sql = format!(
        "SELECT {SUMMARY_COLUMNS} FROM session INDEXED BY session_by_user
         WHERE tenant = ?1 AND user = ?2 AND listed = ?3 AND pk > ?4 ORDER BY pk"
    );
    let user = id_bytes(user.as_uuid());
    let key = params![tenant.as_str(), user, is_listed, to_sql(after)];
    from.list(&sql, key, limit, |row| {
        Ok(SummaryRow::read(row)?.into_summary(from.keys)?)
    })
}

/// One session as lists show it.
pub(super) fn session(
    conn: &KeyedConnection<'_>,
    session: SessionId,
) -> Result<Option<SessionSummary>, StoreError> {
    let sql = format!("SELECT {SUMMARY_COLUMNS} FROM session WHERE id = ?1");
    let key = [id_bytes(session.as_uuid())];
    first(conn, &sql, key, SummaryRow::read)?
        .map(|row| row.into_summary(conn.keys))
        .transpose()
}

/// The columns that [`SummaryRow::read`] reads, starting at the first.
pub(super) const SUMMARY_COLUMNS: &str = "session.id, session.pk, session.tenant, session.app, \
    session.user, session.agent, session.name, session.labels, session.status, session.deleted, \
    session.ttl_mode, session.ttl_ms, session.expires_at, session.revision, session.created_at, \
    session.last_at, session.hidden_ttl_ms, session.hidden_expires_at, session.origin_seq, \
    (SELECT origin.id FROM session AS origin WHERE origin.pk = session.origin)";
/// The number of `SUMMARY_COLUMNS`.
pub(super) const SUMMARY_WIDTH: usize = 20;

/// The columns of a session that lists show, before they are understood.
pub(super) struct SummaryRow {
    pk: i64,
    id: Uuid,
    user: Uuid,
    names: [String; 3],
    texts: [Option<Vec<u8>>; 2],
    status: String,
    deleted: bool,
    ttl: (Option<String>, Option<i64>),
    expires_at: Option<i64>,
    hidden: [Option<i64>; 2],
    numbers: [i64; 3],
    /// The last revision of the origin, and the origin of a fork.
    origin: (i64, Option<Uuid>),
}

impl SummaryRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get::<_, Uuid16>(0)?.0,
            pk: row.get(1)?,
            user: row.get::<_, Uuid16>(4)?.0,
            names: [row.get(2)?, row.get(3)?, row.get(5)?],
            texts: [row.get(6)?, row.get(7)?],
            status: row.get(8)?,
            deleted: row.get(9)?,
            ttl: (row.get(10)?, row.get(11)?),
            expires_at: row.get(12)?,
            numbers: [row.get(13)?, row.get(14)?, row.get(15)?],
            hidden: [row.get(16)?, row.get(17)?],
            origin: (
                row.get(18)?,
                row.get::<_, Option<Uuid16>>(19)?.map(|id| id.0),
            ),
        })
    }

    /// The session.
    pub(super) fn session(&self) -> SessionId {
        SessionId::from_uuid(self.id)
    }

    /// Its place in the order of the last change.
    pub(super) fn list_place(&self) -> SessionPlace {
        SessionPlace {
            updated_at: Timestamp::from_micros(self.numbers[2]),
            number: from_sql(self.pk),
        }
    }

    pub(super) fn into_summary(self, keys: &dyn SealKeys) -> Result<SessionSummary, StoreError> {
        let id = self.session();
        let place = || format!("the row of session {id}");
        let name = |text: &str| {
            text.parse::<Name>()
                .map_err(|error| damaged(place(), error))
        };
        let text = |column: &Option<Vec<u8>>| open_text(column.as_deref(), keys, &place());
        Ok(SessionSummary {
            place: from_sql(self.pk),
            id,
            owner: Owner {
                tenant: name(&self.names[0])?,
                app: name(&self.names[1])?,
                user: UserId::from_uuid(self.user),
                agent: name(&self.names[2])?,
            },
            name: text(&self.texts[0])?,
            labels: text(&self.texts[1])?,
            status: match self.status.as_str() {
                "running" => SessionStatus::Running,
                "paused" => SessionStatus::Paused,
                "idle" => SessionStatus::Idle,
                "closed" => SessionStatus::Closed,
                _ => return Err(damaged(place(), "it has no known status")),
            },
            deleted: self.deleted,
            ttl: time_to_live(self.ttl.0.as_deref(), self.ttl.1, &place())?,
            expires_at: self.expires_at.map(Timestamp::from_micros),
            hidden_ttl_ms: self.hidden[0].map(from_sql),
            hidden_expires_at: self.hidden[1].map(Timestamp::from_micros),
            revision: from_sql(self.numbers[0]),
            created_at: Timestamp::from_micros(self.numbers[1]),
            updated_at: Timestamp::from_micros(self.numbers[2]),
            forked_from: self
                .origin
                .1
                .map(|origin| (SessionId::from_uuid(origin), from_sql(self.origin.0))),
        })
    }
}

fn time_to_live(
    mode: Option<&str>,
    ms: Option<i64>,
    place: &str,
) -> Result<Option<TimeToLive>, StoreError> {
    let mode = match (mode, ms) {
        (None, None) => return Ok(None),
        (Some("sliding"), Some(_)) => TtlMode::Sliding,
        (Some("fixed"), Some(_)) => TtlMode::Fixed,
        _ => return Err(damaged(place, "its time to live makes no sense")),
    };
    Ok(ms.map(|ms| TimeToLive {
        mode,
        ms: from_sql(ms),
    }))
}

/// The requests that a request ever started, oldest first.
pub(super) fn children_of(
    conn: &Connection,
    request: RequestId,
) -> Result<Vec<RequestId>, StoreError> {
    let sql = "SELECT child FROM child_request WHERE parent = ?1 ORDER BY rowid";
    let key = [id_bytes(request.as_uuid())];
    let ids = all(conn, sql, key, |row| row.get::<_, Uuid16>(0))?;
    Ok(ids
        .into_iter()
        .map(|id| RequestId::from_uuid(id.0))
        .collect())
}

/// Commits after a place, in the order of arrival.
pub(super) fn committed(
    from: &Snapshot<'_>,
    after: u64,
    limit: usize,
) -> Result<Vec<Committed>, StoreError> {
    let sql = "SELECT session.id, log.id, log.seq FROM log JOIN session ON session.pk = log.session
               WHERE log.id > ?1 ORDER BY log.id";
    from.list(sql, [to_sql(after)], limit, |row| {
        Ok(Committed {
            session: SessionId::from_uuid(row.get::<_, Uuid16>(0)?.0),
            place: from_sql(row.get(1)?),
            revision: from_sql(row.get(2)?),
        })
    })
}

/// The newest heads of the sessions with a commit after a place.
pub(super) fn heads_after(
    from: &Snapshot<'_>,
    after: u64,
    limit: usize,
) -> Result<Vec<ChangedHead>, StoreError> {
    let sql = "SELECT session.id, session.revision, session.head, session.tenant, log.id
               FROM log JOIN session ON session.pk = log.session
               WHERE log.id > ?1 ORDER BY log.id";
    from.list(sql, [to_sql(after)], limit, |row| {
        let hash = digest(&row.get::<_, Vec<u8>>(2)?);
        Ok(ChangedHead {
            place: from_sql(row.get(4)?),
            tenant: row.get::<_, String>(3)?.parse()?,
            head: SignedHead {
                hash: hash.ok_or("its head is not a hash")?,
                revision: from_sql(row.get(1)?),
                session: SessionId::from_uuid(row.get::<_, Uuid16>(0)?.0),
            },
        })
    })
}

/// The place of the newest commit.
pub(super) fn last_place(conn: &Connection) -> Result<u64, StoreError> {
    let newest = first(conn, "SELECT max(id) FROM log", [], |row| {
        row.get::<_, Option<i64>>(0)
    })?;
    Ok(newest.flatten().map_or(0, from_sql))
}

/// Requests of an agent that wait for a worker, oldest first.
pub(super) fn claimable(
    from: &Snapshot<'_>,
    tenant: &Name,
    agent: &Name,
    user: Option<UserId>,
    after: Option<RequestId>,
    limit: usize,
) -> Result<Vec<(SessionId, RequestId)>, StoreError> {
    let sql = "SELECT session.id, live_request.id
               FROM live_request JOIN session ON session.pk = live_request.session
               WHERE live_request.tenant = ?1 AND live_request.agent = ?2 AND queued = 1
                 AND (?3 IS NULL OR session.user = ?3) AND live_request.id > ?4
               ORDER BY live_request.id";
    let user = user.map(|user| user.as_uuid().as_bytes().to_vec());
    let after = after.map_or([0; 16], |after| *after.as_uuid().as_bytes());
    let key = (tenant.as_str(), agent.as_str(), user, after.as_slice());
    from.list(sql, key, limit, |row| {
        let session = SessionId::from_uuid(row.get::<_, Uuid16>(0)?.0);
        Ok((session, RequestId::from_uuid(row.get::<_, Uuid16>(1)?.0)))
    })
}

pub(super) fn live_work(
    from: &Snapshot<'_>,
    tenant: &Name,
    agent: &Name,
    after: Option<RequestId>,
    limit: usize,
) -> Result<Vec<LiveWork>, StoreError> {
    // Both halves of the index are in the order of ids; a page has the first of either.
    let sql = "SELECT session.id, live_request.body
               FROM live_request JOIN session ON session.pk = live_request.session
               WHERE live_request.tenant = ?1 AND live_request.agent = ?2 AND queued = ?3
                 AND live_request.id > ?4
               ORDER BY live_request.id";
    let after = after.map_or([0; 16], |after| *after.as_uuid().as_bytes());
    let mut found = Vec::new();
    for queued in [0, 1] {
        let key = (tenant.as_str(), agent.as_str(), queued, after.as_slice());
        found.extend(from.list(sql, key, limit, |row| {
            Ok(LiveWork {
                session: SessionId::from_uuid(row.get::<_, Uuid16>(0)?.0),
                live: serde_json::from_slice(&row.get::<_, Vec<u8>>(1)?)?,
            })
        })?);
    }
    found.sort_by_key(|work| work.live.id);
    found.truncate(limit);
    Ok(found)
}
