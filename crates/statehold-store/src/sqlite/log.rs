//! Reading the log: rows are found by waypoint and walked backwards, from a record to the one before.

use std::collections::VecDeque;
use std::sync::OnceLock;

use rusqlite::{Connection, OptionalExtension, Row};
use statehold_core::digest::{BodyRef, Digest};
use statehold_core::ids::{RequestId, SessionId, TaskId, UserId};
use statehold_core::record::{ErasedPayloads, Record, RecordItems};
use statehold_core::request::RequestOutcome;
use statehold_core::session::SessionState;
use uuid::Uuid;

use super::snapshot::KeyedConnection;
use super::sql::{corrupt_or_unavailable, damaged, digest, from_sql, id_bytes, to_sql};
use super::tail::RowReader;
use crate::codec::{self, BodyPlace, CodecError, StoredBody};
use crate::commit::{Commit, ItemFacts, WrittenItems};
use crate::port::{BoxError, PageLimit, StoreError, StoredRecord, record_bytes};

/// How many records lie between two waypoints of a session.
pub(super) const WAYPOINT_EVERY: u64 = 64;

const NOT_THERE: &str = "it refers to a payload that is not there";

/// The row of a session.
#[derive(Debug, Clone)]
pub(super) struct SessionRow {
    pub(super) pk: i64,
    pub(super) id: SessionId,
    pub(super) user: UserId,
    pub(super) revision: u64,
    pub(super) head: Digest,
    pub(super) last_log: i64,
    /// The row up to which hidden payloads were removed for the session, whether or not others keep the bytes: that
    /// of its newest record that removed payloads, or else what a fork inherited. Zero means none.
    pub(super) erased_log: i64,
    /// When the session ends, and when its hidden payloads do.
    pub(super) ends: [Option<i64>; 2],
    pub(super) origin: i64,
    pub(super) origin_seq: u64,
    pub(super) deleted: bool,
}

/// For whom payloads are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct PayloadReader {
    user: UserId,
    /// Rows up to this one show no hidden payloads, also where another session keeps the bytes.
    erased_log: i64,
}

impl PayloadReader {
    /// Sees all that the file has of a user. For checks.
    pub(super) fn of_file(user: UserId) -> Self {
        let erased_log = 0;
        Self { user, erased_log }
    }
}

impl SessionRow {
    /// Reads for the session. Payloads that its removals have taken are gone for it.
    pub(super) fn reader(&self) -> PayloadReader {
        let (user, erased_log) = (self.user, self.erased_log);
        PayloadReader { user, erased_log }
    }
}

const SESSION_COLUMNS: &str = "pk, id, user, revision, head, last_log, origin, origin_seq, deleted, \
     erased_log, expires_at, hidden_expires_at";

/// The row of a session, if there is one.
pub(super) fn session_row(
    conn: &Connection,
    session: SessionId,
) -> Result<Option<SessionRow>, StoreError> {
    let sql = format!("SELECT {SESSION_COLUMNS} FROM session WHERE id = ?1");
    one_session(conn, &sql, id_bytes(session.as_uuid()))
}

pub(super) fn session_by_pk(conn: &Connection, pk: i64) -> Result<Option<SessionRow>, StoreError> {
    one_session(
        conn,
        &format!("SELECT {SESSION_COLUMNS} FROM session WHERE pk = ?1"),
        pk,
    )
}

fn one_session(
    conn: &Connection,
    sql: &str,
    key: impl rusqlite::ToSql,
) -> Result<Option<SessionRow>, StoreError> {
    let row = conn
        .prepare_cached(sql)
        .and_then(|mut statement| {
            statement
                .query_row([key], |row| {
                    Ok((
                        row.get::<_, i64>(0)?,
                        row.get::<_, Uuid16>(1)?.0,
                        row.get::<_, Uuid16>(2)?.0,
                        row.get::<_, i64>(3)?,
                        row.get::<_, Vec<u8>>(4)?,
                        row.get::<_, i64>(5)?,
                        row.get::<_, i64>(6)?,
                        row.get::<_, i64>(7)?,
                        row.get::<_, bool>(8)?,
                        row.get::<_, i64>(9)?,
                        [row.get::<_, Option<i64>>(10)?, row.get(11)?],
                    ))
                })
                .optional()
        })
        .map_err(corrupt_or_unavailable("the table `session`"))?;
    let Some((
        pk,
        id,
        user,
        revision,
        head,
        last_log,
        origin,
        origin_seq,
        deleted,
        erased_log,
        ends,
    )) = row
    else {
        return Ok(None);
    };
    let id = SessionId::from_uuid(id);
    let place = || format!("the row of session {id}");
    let head = digest(&head).ok_or_else(|| damaged(place(), "its head is not a hash"))?;
    // Walks along origins end only because of this.
    if origin >= pk {
        return Err(damaged(place(), "it is older than its origin"));
    }
    Ok(Some(SessionRow {
        pk,
        id,
        user: UserId::from_uuid(user),
        revision: from_sql(revision),
        head,
        last_log,
        erased_log,
        ends,
        origin,
        origin_seq: from_sql(origin_seq),
        deleted,
    }))
}

/// Sixteen bytes that are an id.
pub(super) struct Uuid16(pub(super) Uuid);

impl rusqlite::types::FromSql for Uuid16 {
    fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
        let bytes = value.as_blob()?;
        Uuid::from_slice(bytes)
            .map(Self)
            .map_err(|error| rusqlite::types::FromSqlError::Other(Box::new(error)))
    }
}

/// One row of the log.
#[derive(Debug)]
pub(super) struct LogRow {
    pub(super) id: i64,
    pub(super) session: i64,
    pub(super) seq: u64,
    pub(super) prev: i64,
    pub(super) links: Vec<u8>,
    pub(super) exchanges: Vec<u8>,
    record: Vec<u8>,
    pub(super) bodies: Vec<u8>,
    /// Which payloads are hidden ones, once somebody asked.
    hidden: OnceLock<Vec<bool>>,
    /// The items of the record, once they were read.
    pub(super) items: OnceLock<WrittenItems>,
    /// Known if the row was written by this process.
    own: Option<OwnRow>,
    /// Payloads in the table `blob`, packed. Only the tail has some.
    pub(super) blobs: Vec<(Digest, Vec<u8>)>,
}

/// A payload that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OpenedBody {
    Bytes(Vec<u8>),
    /// Removed on purpose.
    Erased,
    /// There, and sealed under a key that is gone.
    KeyGone,
}

impl OpenedBody {
    pub(super) fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Erased | Self::KeyGone => None,
        }
    }
}

/// The facts that a commit hands to its row in memory.
#[derive(Debug)]
struct OwnRow {
    hash: Digest,
    items: ItemFacts,
    started: Option<RequestId>,
    /// The tasks whose private state it wrote, each with the request that did.
    task_states: Vec<(TaskId, RequestId)>,
}

/// The columns of a log row that its commit does not know.
pub(super) struct RowColumns {
    pub(super) id: i64,
    pub(super) session: i64,
    pub(super) prev: i64,
    pub(super) links: Vec<u8>,
    pub(super) exchanges: Vec<u8>,
    /// Payloads with references in place of some. None if they are as in the commit.
    pub(super) bodies: Option<Vec<u8>>,
}

impl LogRow {
    /// The row that a commit wrote.
    pub(super) fn written(commit: Commit, columns: RowColumns) -> Self {
        Self {
            id: columns.id,
            session: columns.session,
            seq: commit.record.content.seq,
            prev: columns.prev,
            links: columns.links,
            exchanges: columns.exchanges,
            record: commit.packed_record,
            bodies: columns.bodies.unwrap_or(commit.packed_bodies),
            hidden: OnceLock::new(),
            items: OnceLock::new(),
            own: Some(OwnRow {
                hash: commit.record.hash,
                items: commit.items,
                started: commit.record.content.started_request(),
                task_states: commit
                    .writes
                    .task_states
                    .iter()
                    .map(|(task, request, _)| (*task, *request))
                    .collect(),
            }),
            blobs: commit.blobs,
        }
    }

    /// The bytes it takes in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        let columns = [&self.links, &self.exchanges, &self.record, &self.bodies];
        let blobs = self.blobs.iter().map(|(_, packed)| packed.capacity());
        size_of::<Self>()
            + columns.into_iter().map(Vec::capacity).sum::<usize>()
            + match &self.own {
                Some(own) => {
                    let states = own.task_states.capacity() * size_of::<(TaskId, RequestId)>();
                    own.items.heap_bytes + own.items.in_root_task.capacity() + states
                }
                None => self.items.get().map_or(0, WrittenItems::heap_bytes),
            }
            + self.blobs.capacity() * size_of::<(Digest, Vec<u8>)>()
            + blobs.sum::<usize>()
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            session: row.get(1)?,
            seq: from_sql(row.get(2)?),
            prev: row.get(3)?,
            links: row.get(4)?,
            exchanges: row.get(5)?,
            record: row.get(6)?,
            bodies: row.get(7)?,
            hidden: OnceLock::new(),
            items: OnceLock::new(),
            own: None,
            blobs: Vec::new(),
        })
    }

    /// The items of the record. None if they were not read yet and this needs more than the row.
    pub(super) fn known_items(&self) -> Option<&WrittenItems> {
        if self.items.get().is_none() {
            let mut in_root_task = self.own.as_ref()?.items.in_root_task.iter();
            let is_root = |_| in_root_task.next().copied().ok_or(());
            let items = WrittenItems::of(self.read_items().ok()?, is_root).ok()?;
            self.items.get_or_init(|| items);
        }
        self.items.get()
    }

    /// The length of the record, unpacked.
    pub(super) fn record_bytes(&self) -> u64 {
        codec::unpacked_bytes(&self.record) as u64
    }

    /// Whether this process wrote the record.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// The request that wrote the private state of a task last, if the record did and is [`LogRow::is_own`].
    pub(super) fn wrote_state(&self, task: TaskId) -> Option<RequestId> {
        let mut written = self.own.as_ref()?.task_states.iter().rev();
        let found = written.find(|(known, _)| *known == task);
        found.map(|(_, request)| *request)
    }

    /// Whether this process wrote the record that started a request.
    pub(super) fn has_started(&self, request: RequestId) -> bool {
        self.own
            .as_ref()
            .is_some_and(|own| own.started == Some(request))
    }

    /// The hash of the record, if this process wrote it.
    pub(super) fn own_hash(&self) -> Option<Digest> {
        self.own.as_ref().map(|own| own.hash)
    }

    pub(super) fn place(&self) -> String {
        format!("log row {} (record {})", self.id, self.seq)
    }

    /// Whether everything it names lies before it: walks backwards end only because of this.
    fn is_after_its_links(&self) -> bool {
        self.prev < self.id
            && self.links.len().is_multiple_of(LINK_BYTES)
            && parse_links(&self.links).all(|link| link.prev < self.id)
            && self.exchanges.len().is_multiple_of(EXCHANGE_BYTES)
            && parse_exchanges(&self.exchanges).all(|link| {
                [link.grown, link.prev, link.state.unwrap_or(0)]
                    .iter()
                    .max()
                    < Some(&self.id)
            })
    }

    /// The record. Its number must match the row.
    pub(super) fn record(&self) -> Result<Record, StoreError> {
        self.parse(Record::from_bytes, |record| record.content.seq)
    }

    /// The items that the record wrote, for reads that do not verify the chain.
    pub(super) fn read_items(&self) -> Result<RecordItems, StoreError> {
        self.parse(Record::read_items, |items| items.seq)
    }

    fn parse<T, E: Into<BoxError>>(
        &self,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
        seq: impl FnOnce(&T) -> u64,
    ) -> Result<T, StoreError> {
        let bytes = codec::unpack(&self.record).map_err(|error| damaged(self.place(), error))?;
        let parsed = parse(&bytes).map_err(|error| damaged(self.place(), error))?;
        if seq(&parsed) == self.seq {
            Ok(parsed)
        } else {
            let what = "the record has another number than its row";
            Err(damaged(self.place(), what))
        }
    }

    /// Some payloads of the record in a row, the first of them at place `first`.
    pub(super) fn some_bodies(
        &self,
        rows: &RowReader<'_>,
        reader: PayloadReader,
        first: usize,
        named: &[BodyRef],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let stored = codec::unpack_some(&self.bodies, first, named, rows.keys);
        let stored = self.show(stored, first, reader)?;
        let opened = self.open(rows, stored, named, |name| {
            rows.blob(self, reader.user, name)
        })?;
        Ok(opened.into_iter().map(OpenedBody::bytes).collect())
    }

    /// Stored payloads as a reader may see them, the first of them at place `first`.
    fn show(
        &self,
        stored: Result<Vec<StoredBody>, CodecError>,
        first: usize,
        reader: PayloadReader,
    ) -> Result<Vec<StoredBody>, StoreError> {
        let mut stored = stored.map_err(|error| damaged(self.place(), error))?;
        for (index, body) in (first..).zip(&mut stored) {
            if self.is_gone(index, reader)? {
                *body = StoredBody::Erased;
            }
        }
        Ok(stored)
    }

    /// Whether a removal has taken a payload from a reader, whatever bytes are there.
    fn is_gone(&self, index: usize, reader: PayloadReader) -> Result<bool, StoreError> {
        if self.id > reader.erased_log {
            return Ok(false);
        }
        let hidden = if let Some(known) = self.hidden.get() {
            known
        } else {
            let hidden = self.record()?.erased(ErasedPayloads::Hidden);
            self.hidden.get_or_init(|| hidden)
        };
        Ok(hidden.get(index) == Some(&true))
    }

    /// Stored payloads with their bytes. `blob` returns no bytes if the key of the blob is gone.
    fn open(
        &self,
        conn: &KeyedConnection<'_>,
        stored: Vec<StoredBody>,
        named: &[BodyRef],
        blob: impl Fn(&BodyRef) -> Result<Option<Vec<u8>>, StoreError>,
    ) -> Result<Vec<OpenedBody>, StoreError> {
        let bodies = stored.into_iter().zip(named);
        bodies
            .map(|(body, name)| match body {
                StoredBody::Inline(bytes) => Ok(OpenedBody::Bytes(bytes)),
                StoredBody::Erased => Ok(OpenedBody::Erased),
                StoredBody::KeyGone => Ok(OpenedBody::KeyGone),
                StoredBody::Blob => match blob(name)? {
                    Some(bytes) if bytes.len() == name.bytes as usize => {
                        Ok(OpenedBody::Bytes(bytes))
                    }
                    Some(_) => Err(damaged(self.place(), "a blob has another length")),
                    None => Ok(OpenedBody::KeyGone),
                },
                StoredBody::Reference(place) => self.follow(conn, place, name),
            })
            .collect()
    }

    /// The payload that one of this row refers to: an earlier row of the session has its bytes.
    fn follow(
        &self,
        conn: &KeyedConnection<'_>,
        place: BodyPlace,
        name: &BodyRef,
    ) -> Result<OpenedBody, StoreError> {
        let stored = self.referred(conn, place)?;
        let named = std::slice::from_ref(name);
        match codec::unpack_bodies(&stored, named, conn.keys).as_deref_mut() {
            Ok([StoredBody::Inline(bytes)]) => Ok(OpenedBody::Bytes(std::mem::take(bytes))),
            Ok([StoredBody::KeyGone]) => Ok(OpenedBody::KeyGone),
            _ => Err(damaged(self.place(), NOT_THERE)),
        }
    }

    /// The stored form of the payload at a place that this row refers to.
    pub(super) fn referred(
        &self,
        conn: &Connection,
        place: BodyPlace,
    ) -> Result<Vec<u8>, StoreError> {
        let not_there = || damaged(self.place(), NOT_THERE);
        let sql = "SELECT bodies FROM log WHERE id = ?1 AND session = ?2 AND id < ?3";
        let bodies: Option<Vec<u8>> = conn
            .prepare_cached(sql)
            .and_then(|mut statement| {
                let key = (place.row, self.session, self.id);
                statement.query_row(key, |row| row.get(0)).optional()
            })
            .map_err(corrupt_or_unavailable("the table `log`"))?;
        let bodies = bodies.ok_or_else(not_there)?;
        let stored = codec::split_bodies(&bodies).map_err(|error| damaged(self.place(), error))?;
        let stored = stored.get(place.index as usize);
        stored.map(|stored| stored.to_vec()).ok_or_else(not_there)
    }

    /// The payloads of the row that are stored elsewhere, each with its index.
    pub(super) fn references(&self) -> Result<Vec<(usize, BodyPlace)>, StoreError> {
        let damaged = |error| damaged(self.place(), error);
        let mut found = Vec::new();
        for (index, stored) in codec::split_bodies(&self.bodies)
            .map_err(damaged)?
            .into_iter()
            .enumerate()
        {
            let place = codec::place_of(stored).map_err(damaged)?;
            found.extend(place.map(|place| (index, place)));
        }
        Ok(found)
    }

    /// The payloads of the record. None where one was erased, or its key is gone.
    pub(super) fn bodies(
        &self,
        conn: &KeyedConnection<'_>,
        reader: PayloadReader,
        record: &Record,
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let opened = self.opened(conn, reader, &record.bodies())?;
        Ok(opened.into_iter().map(OpenedBody::bytes).collect())
    }

    /// The payloads of the record, and why one cannot be read.
    pub(super) fn opened(
        &self,
        conn: &KeyedConnection<'_>,
        reader: PayloadReader,
        named: &[BodyRef],
    ) -> Result<Vec<OpenedBody>, StoreError> {
        let stored = codec::unpack_bodies(&self.bodies, named, conn.keys);
        let stored = self.show(stored, 0, reader)?;
        self.open(conn, stored, named, |name| {
            self.open_blob(conn, reader.user, name)
        })
    }

    /// One payload of the record, without unpacking the others.
    pub(super) fn body(
        &self,
        conn: &KeyedConnection<'_>,
        reader: PayloadReader,
        index: usize,
        name: BodyRef,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let named = [name];
        let stored = codec::unpack_some(&self.bodies, index, &named, conn.keys);
        let stored = self.show(stored, index, reader)?;
        let opened = self.open(conn, stored, &named, |name| {
            self.open_blob(conn, reader.user, name)
        })?;
        Ok(opened.into_iter().next().and_then(OpenedBody::bytes))
    }

    fn open_blob(
        &self,
        conn: &KeyedConnection<'_>,
        user: UserId,
        name: &BodyRef,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let packed = packed_blob(conn, user, &name.digest, &self.place())?;
        codec::open(&packed, conn.keys).map_err(|error| damaged(self.place(), error))
    }

    /// One payload of the record as a value is stored, without opening it. None if it was erased.
    pub(super) fn packed_body(
        &self,
        conn: &Connection,
        reader: PayloadReader,
        index: usize,
        name: BodyRef,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let damaged = |error| damaged(self.place(), error);
        let stored = codec::split_bodies(&self.bodies).map_err(damaged)?;
        let stored = *stored
            .get(index)
            .ok_or_else(|| damaged(CodecError::Length))?;
        if codec::is_erased(stored) || self.is_gone(index, reader)? {
            return Ok(None);
        }
        if codec::is_blob(stored) {
            return packed_blob(conn, reader.user, &name.digest, &self.place()).map(Some);
        }
        let referred = match codec::place_of(stored).map_err(damaged)? {
            Some(place) => Some(self.referred(conn, place)?),
            None => None,
        };
        codec::value_of(referred.as_deref().unwrap_or(stored), name.bytes).map_err(damaged)
    }

    /// A long payload that the tail has, packed.
    pub(super) fn blob(&self, digest: &Digest) -> Option<&[u8]> {
        let mut blobs = self.blobs.iter().filter(|(known, _)| known == digest);
        blobs.next().map(|(_, packed)| packed.as_slice())
    }

    /// For each payload of the record, its digest if it is kept as a blob.
    pub(super) fn blobs(&self, record: &Record) -> Result<Vec<Option<Digest>>, StoreError> {
        let stored = codec::split_bodies(&self.bodies);
        let stored = stored.map_err(|error| damaged(self.place(), error))?;
        let named = record.bodies();
        if stored.len() != named.len() {
            return Err(damaged(self.place(), CodecError::Length));
        }
        let digest =
            |(stored, name): (&[u8], BodyRef)| codec::is_blob(stored).then_some(name.digest);
        Ok(stored.into_iter().zip(named).map(digest).collect())
    }

    /// The log row that added to `task` before this one, and the name the task has there.
    pub(super) fn link(&self, task: TaskId) -> Option<(i64, TaskId)> {
        parse_links(&self.links)
            .find(|link| link.task == task)
            .map(|link| (link.prev, link.before))
    }
}

impl LogRow {
    /// The exchange of a memory that this record ended.
    pub(super) fn exchange(
        &self,
        request: RequestId,
        number: u64,
    ) -> Result<ExchangeLink, StoreError> {
        parse_exchanges(&self.exchanges)
            .find(|link| link.request == request && link.number == number)
            .ok_or_else(|| {
                damaged(
                    self.place(),
                    "it has not ended the exchange that it should have",
                )
            })
    }

    /// A row that a link of this row names.
    pub(super) fn named(&self, row: i64) -> i64 {
        if row == 0 { self.id } else { row }
    }
}

/// A long payload, packed.
pub(super) fn packed_blob(
    conn: &Connection,
    user: UserId,
    digest: &Digest,
    place: &str,
) -> Result<Vec<u8>, StoreError> {
    let sql = format!("SELECT data FROM blob {BLOB_PARTS} ORDER BY digest");
    let key = (
        id_bytes(user.as_uuid()),
        digest.as_bytes(),
        after_parts(digest),
    );
    let parts: Vec<Vec<u8>> = conn
        .prepare_cached(&sql)
        .and_then(|mut statement| statement.query_map(key, |row| row.get(0))?.collect())
        .map_err(corrupt_or_unavailable("the table `blob`"))?;
    if parts.is_empty() {
        return Err(damaged(place, "a blob is missing"));
    }
    Ok(parts.concat())
}

/// The rows of a blob: one under its digest, and if it is split, others under the digest and a number.
pub(super) const BLOB_PARTS: &str = "WHERE user = ?1 AND digest >= ?2 AND digest < ?3";

/// A key behind all parts of a blob.
pub(super) fn after_parts(digest: &Digest) -> Vec<u8> {
    [digest.as_bytes().as_slice(), &[u8::MAX]].concat()
}

/// A backward link in the history of a task.
pub(super) struct Link {
    pub(super) task: TaskId,
    pub(super) prev: i64,
    /// The task's id further back: another one before a fork.
    pub(super) before: TaskId,
}

const LINK_BYTES: usize = 40;

/// The bytes of some links.
pub(super) fn pack_links(links: &[Link]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(links.len() * LINK_BYTES);
    for link in links {
        bytes.extend_from_slice(link.task.as_uuid().as_bytes());
        bytes.extend_from_slice(&link.prev.to_le_bytes());
        bytes.extend_from_slice(link.before.as_uuid().as_bytes());
    }
    bytes
}

fn parse_links(bytes: &[u8]) -> impl Iterator<Item = Link> + '_ {
    bytes.chunks_exact(LINK_BYTES).filter_map(|chunk| {
        let (task, rest) = chunk.split_at(16);
        let (prev, before) = rest.split_at(8);
        Some(Link {
            task: TaskId::from_uuid(Uuid::from_slice(task).ok()?),
            prev: i64::from_le_bytes(prev.try_into().ok()?),
            before: TaskId::from_uuid(Uuid::from_slice(before).ok()?),
        })
    })
}

/// An exchange that a record ended, and the one before it on its path. A row is 0 for the row that the link
/// is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExchangeLink {
    pub(super) request: RequestId,
    pub(super) task: TaskId,
    /// The record that started the request.
    pub(super) started_by: u64,
    /// The newest row that added to the task.
    pub(super) grown: i64,
    /// Its number on its path.
    pub(super) number: u64,
    /// The row that ended the exchange before it, and the request that this one was.
    pub(super) prev: i64,
    pub(super) before: Option<RequestId>,
    /// The row with the private state that a memory gives back after this exchange.
    pub(super) state: Option<i64>,
    /// Whether the exchange wrote that state itself.
    pub(super) wrote_state: bool,
    pub(super) outcome: RequestOutcome,
}

const EXCHANGE_BYTES: usize = 89;
const OUTCOMES: [RequestOutcome; 3] = [
    RequestOutcome::Completed,
    RequestOutcome::Failed,
    RequestOutcome::Cancelled,
];

/// The bytes of some exchanges.
pub(super) fn pack_exchanges(links: &[ExchangeLink]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(links.len() * EXCHANGE_BYTES);
    for link in links {
        let mut outcomes = (0..).zip(OUTCOMES);
        let outcome = outcomes.find(|(_, known)| *known == link.outcome);
        let flags = outcome.map_or(0_u8, |(number, _)| number)
            | u8::from(link.state.is_some()) << 2
            | u8::from(link.wrote_state) << 3;
        let before = link.before.map_or(Uuid::nil(), |before| *before.as_uuid());
        bytes.extend_from_slice(link.request.as_uuid().as_bytes());
        bytes.extend_from_slice(link.task.as_uuid().as_bytes());
        bytes.extend_from_slice(&link.started_by.to_le_bytes());
        bytes.extend_from_slice(&link.grown.to_le_bytes());
        bytes.extend_from_slice(&link.number.to_le_bytes());
        bytes.extend_from_slice(&link.prev.to_le_bytes());
        bytes.extend_from_slice(before.as_bytes());
        bytes.extend_from_slice(&link.state.unwrap_or(0).to_le_bytes());
        bytes.push(flags);
    }
    bytes
}

fn parse_exchanges(bytes: &[u8]) -> impl Iterator<Item = ExchangeLink> + '_ {
    bytes.chunks_exact(EXCHANGE_BYTES).filter_map(|chunk| {
        let id = |at: usize| Uuid::from_slice(&chunk[at..at + 16]).ok();
        let number = |at: usize| Some(i64::from_le_bytes(chunk[at..at + 8].try_into().ok()?));
        let flags = chunk[88];
        let before = id(64).filter(|before| !before.is_nil());
        Some(ExchangeLink {
            request: RequestId::from_uuid(id(0)?),
            task: TaskId::from_uuid(id(16)?),
            started_by: from_sql(number(32)?),
            grown: number(40)?,
            number: from_sql(number(48)?),
            prev: number(56)?,
            before: before.map(RequestId::from_uuid),
            state: number(80).filter(|_| flags & 4 != 0),
            wrote_state: flags & 8 != 0,
            outcome: *OUTCOMES.get(usize::from(flags & 3))?,
        })
    })
}

/// One row of the log, by its id.
pub(super) fn row(conn: &Connection, id: i64) -> Result<LogRow, StoreError> {
    let sql =
        "SELECT id, session, seq, prev, links, exchanges, record, bodies FROM log WHERE id = ?1";
    let place = || format!("log row {id}");
    let row = conn
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row([id], LogRow::read).optional())
        .map_err(|error| corrupt_or_unavailable(&place())(error))?
        .ok_or_else(|| damaged(place(), "the row is missing"))?;
    if row.is_after_its_links() {
        Ok(row)
    } else {
        Err(damaged(row.place(), "it follows a row that came later"))
    }
}

/// The newest log row at or before `from` that added to a task; 0 if there is none.
pub(super) fn last_growth(conn: &Connection, from: i64, task: TaskId) -> Result<i64, StoreError> {
    let mut at = from;
    while at != 0 {
        let row = row(conn, at)?;
        if row.link(task).is_some() {
            break;
        }
        at = row.prev;
    }
    Ok(at)
}

/// Where the history of a task passes close before a row of the log: the newest row at or before `from`
/// that added to it, and the name that the task has there. None if there is none nearby.
pub(super) fn growth_near(
    conn: &Connection,
    from: i64,
    is_wanted: impl Fn(TaskId) -> bool,
) -> Result<Option<(i64, TaskId)>, StoreError> {
    let place = |at: i64| move |error| corrupt_or_unavailable(&format!("log row {at}"))(error);
    let mut statement = conn
        .prepare_cached("SELECT prev, links FROM log WHERE id = ?1")
        .map_err(place(from))?;
    let mut at = from;
    for _ in 0..WAYPOINT_EVERY {
        if at == 0 {
            break;
        }
        let found = statement.query_row([at], |row| {
            let link = parse_links(row.get_ref(1)?.as_blob()?).find(|link| is_wanted(link.task));
            Ok((row.get::<_, i64>(0)?, link.map(|link| link.task)))
        });
        let (prev, task) = found.map_err(place(at))?;
        if let Some(task) = task {
            return Ok(Some((at, task)));
        }
        if prev >= at {
            return Err(damaged(
                format!("log row {at}"),
                "it follows a row that came later",
            ));
        }
        at = prev;
    }
    Ok(None)
}

/// The log row of record `seq` of a session, which must not be beyond its revision.
pub(super) fn seek(
    conn: &Connection,
    session: &SessionRow,
    seq: u64,
) -> Result<LogRow, StoreError> {
    row(conn, seek_id(conn, session, seq)?)
}

/// The id of the log row of record `seq` of a session. Reads no payload on the way.
pub(super) fn seek_id(
    conn: &Connection,
    session: &SessionRow,
    seq: u64,
) -> Result<i64, StoreError> {
    let mut owner = None;
    let mut session = session;
    while seq <= session.origin_seq
        && let Some(origin) = session_by_pk(conn, session.origin)?
    {
        session = owner.insert(origin);
    }
    let sql = "SELECT log FROM waypoint WHERE session = ?1 AND seq >= ?2 ORDER BY seq LIMIT 1";
    let mut at = waypoint(conn, sql, session, seq)?;
    let sql = "SELECT session, seq, prev FROM log WHERE id = ?1";
    let mut statement = conn
        .prepare_cached(sql)
        .map_err(corrupt_or_unavailable("the table `log`"))?;
    loop {
        let place = || format!("log row {at}");
        let found = statement.query_row([at], |row| {
            Ok((row.get::<_, i64>(0)?, from_sql(row.get(1)?), row.get(2)?))
        });
        let found = found.optional();
        let found = found.map_err(|error| corrupt_or_unavailable(&place())(error))?;
        let Some((owner, found, prev)) = found else {
            return Err(damaged(place(), "the row is missing"));
        };
        if found == seq && owner == session.pk {
            return Ok(at);
        }
        if found <= seq {
            return Err(damaged(
                format!("record {seq} of session {}", session.id),
                "the record is missing",
            ));
        }
        if prev >= at {
            return Err(damaged(place(), "it follows a row that came later"));
        }
        at = prev;
    }
}

/// A log row at or after the one that holds item `item`.
pub(super) fn seek_item(
    conn: &Connection,
    session: &SessionRow,
    item: u64,
) -> Result<LogRow, StoreError> {
    let sql = "SELECT log FROM waypoint WHERE session = ?1 AND items_until >= ?2
               ORDER BY items_until LIMIT 1";
    row(conn, waypoint(conn, sql, session, item)?)
}

fn waypoint(
    conn: &Connection,
    sql: &str,
    session: &SessionRow,
    at: u64,
) -> Result<i64, StoreError> {
    let found = conn
        .prepare_cached(sql)
        .and_then(|mut statement| {
            statement
                .query_row((session.pk, to_sql(at)), |row| row.get(0))
                .optional()
        })
        .map_err(corrupt_or_unavailable("the table `waypoint`"))?;
    Ok(found.unwrap_or(session.last_log))
}

/// A page of the records after a revision, with their payloads.
pub(super) fn records(
    conn: &KeyedConnection<'_>,
    session: SessionId,
    after: u64,
    limit: PageLimit,
) -> Result<Vec<StoredRecord>, StoreError> {
    let Some(session) = session_row(conn, session)? else {
        return Ok(Vec::new());
    };
    let rows = read_rows(conn, &session, after, limit, record_bytes)?;
    let stored = rows.into_iter().map(|(row, record)| {
        let bodies = row.bodies(conn, session.reader(), &record)?;
        Ok(StoredRecord { record, bodies })
    });
    stored.collect()
}

/// A page of the records after a revision, without payloads.
pub(super) fn chain(
    conn: &Connection,
    session: SessionId,
    after: u64,
    limit: PageLimit,
) -> Result<Vec<Record>, StoreError> {
    let Some(session) = session_row(conn, session)? else {
        return Ok(Vec::new());
    };
    let rows = read_rows(conn, &session, after, limit, own_bytes)?;
    Ok(rows.into_iter().map(|(_, record)| record).collect())
}

fn own_bytes(record: &Record) -> u64 {
    record.as_bytes().len() as u64
}

/// A page of the records of a session after a revision, in order, each with its row, verified against each
/// other and the next record. `bytes` tells how many bytes of the page a record takes.
pub(super) fn read_rows(
    conn: &Connection,
    session: &SessionRow,
    after: u64,
    limit: PageLimit,
    bytes: impl Fn(&Record) -> u64,
) -> Result<Vec<(LogRow, Record)>, StoreError> {
    let last = after.saturating_add(limit.entries as u64);
    let last = last.min(session.revision);
    if after >= last {
        return Ok(Vec::new());
    }
    // The record after the last one contains the last one's hash.
    let mut at = seek(conn, session, (last + 1).min(session.revision))?;
    let mut expected = session.head;
    if at.seq > last {
        expected = at.record()?.content.prev_hash;
        at = row(conn, at.prev)?;
    }
    let mut page = OldestRows::new(limit.bytes);
    loop {
        let record = at.record()?;
        if record.hash != expected {
            let place = format!("record {} of session {}", at.seq, session.id);
            return Err(damaged(
                place,
                "its hash is not the one that the chain continues from",
            ));
        }
        expected = record.content.prev_hash;
        let (seq, prev, bytes) = (at.seq, at.prev, bytes(&record));
        page.push((at, record), bytes);
        if seq <= after + 1 {
            return page.finish();
        }
        at = row(conn, prev)?;
        if at.seq + 1 != seq {
            let place = format!("record {} of session {}", seq - 1, session.id);
            return Err(damaged(place, "the record is missing"));
        }
    }
}

/// The oldest rows of a range that fit a page. Rows are walked from the newest to the oldest, so the newest
/// give way to older ones, and never more than a page is in memory.
pub(super) struct OldestRows<T> {
    /// The oldest is the first one.
    rows: VecDeque<(T, u64)>,
    bytes: u64,
    bytes_max: u64,
}

impl<T> OldestRows<T> {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            rows: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds the row before all others.
    pub(super) fn push(&mut self, row: T, bytes: u64) {
        self.rows.push_front((row, bytes));
        self.bytes += bytes;
        while self.bytes > self.bytes_max
            && self.rows.len() > 1
            && let Some((_, newest)) = self.rows.pop_back()
        {
            self.bytes -= newest;
        }
    }

    /// The rows of the page, the oldest first.
    pub(super) fn finish(self) -> Result<Vec<T>, StoreError> {
        if self.bytes > self.bytes_max {
            return Err(StoreError::PageTooSmall { bytes: self.bytes });
        }
        Ok(self.rows.into_iter().map(|(row, _)| row).collect())
    }
}

/// Damage of a record.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) seq: u64,
    pub(super) kind: DamageKind,
    pub(super) error: StoreError,
}

/// Which part of it.
#[derive(Debug)]
pub(super) enum DamageKind {
    /// The record itself.
    Record,
    /// One of its payloads.
    Payload,
    /// The row of the last record is not there.
    Tail,
}

/// The first record of a session that is damaged, as far back from its end as rows lead.
pub(super) fn first_damage(conn: &KeyedConnection<'_>, session: &SessionRow) -> Option<Damage> {
    let mut first = None;
    let mut expected = Some(session.head);
    let (mut seq, mut at) = (session.revision, session.last_log);
    while seq > 0 {
        let found = row(conn, at).and_then(|row| {
            let is_next = row.seq == seq;
            is_next
                .then_some(row)
                .ok_or_else(|| damaged(format!("log row {at}"), "the record is missing"))
        });
        let row = match found {
            Ok(row) => row,
            Err(error) => {
                let kind = if seq == session.revision {
                    DamageKind::Tail
                } else {
                    DamageKind::Record
                };
                return Some(Damage { seq, kind, error });
            }
        };
        let follows = row.record().and_then(|record| {
            if expected.is_none_or(|expected| expected == record.hash) {
                Ok(record)
            } else {
                let what = "its hash is not the one that the chain continues from";
                Err(damaged(row.place(), what))
            }
        });
        let (kind, bodies) = match &follows {
            Ok(record) => (
                DamageKind::Payload,
                row.bodies(conn, PayloadReader::of_file(session.user), record)
                    .map(drop),
            ),
            Err(_) => (DamageKind::Record, Ok(())),
        };
        expected = follows.as_ref().ok().map(|record| record.content.prev_hash);
        if let Err(error) = follows.map(drop).and(bodies) {
            first = Some(Damage { seq, kind, error });
        }
        (seq, at) = (seq - 1, row.prev);
    }
    first
}

/// The state a session had at a revision, folded from its log.
pub(super) fn load_at(
    conn: &Connection,
    session: SessionId,
    revision: u64,
) -> Result<Option<SessionState>, StoreError> {
    let row = session_row(conn, session)?;
    let Some(row) = row.filter(|row| revision <= row.revision) else {
        return Ok(None);
    };
    let mut state: Option<SessionState> = None;
    let mut after = 0;
    while after < revision {
        let entries = WAYPOINT_EVERY.min(revision - after);
        let page = PageLimit::entries(usize::try_from(entries).unwrap_or(usize::MAX));
        for (_, record) in read_rows(conn, &row, after, page, own_bytes)? {
            let first = record.content.session;
            let state = state.get_or_insert_with(|| SessionState::new(first));
            statehold_core::apply::apply(state, &record);
        }
        after += entries;
    }
    Ok(state)
}
