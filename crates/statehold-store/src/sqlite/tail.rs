//! The hot tail: the newest durable rows of the log, by session, so that reading the end of a session needs
//! no disk. Bounded in bytes for all sessions together; the session that was not used for longest goes first.
//!
//! A session enters when it is read; from then on a row enters when its commit is durable, or when a reader has
//! read it. Sessions that are only written cost nothing. Rows change by erasure only, so
//! three rules keep the tail true: the rows of a session have no gap and end with its newest; none is older
//! than its last rewind, its fork or an erasure; and a reader adds rows only to the entry that was there
//! before it began to read, which a rewind or an erasure removes.
//!
//! The file shows a commit to readers a moment before the tail has its row. Between the two the tail does not
//! answer for the session, so that a reader who saw the commit never sees the session without it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use statehold_core::digest::{BodyRef, Digest};
use statehold_core::ids::{RequestId, SessionId, UserId};
use statehold_core::projection::EndedRequest;
use statehold_core::record::{Change, Event};

use super::log::{self, LogRow, RowColumns};
use super::snapshot::KeyedConnection;
use super::sql::{corrupt_or_unavailable, damaged, from_sql};
use crate::codec::{self, BodyPlace, StoredBody};
use crate::commit::{Commit, ForkWrite};
use crate::port::{SessionSummary, StoreError};
use crate::seal::SealKeys;

/// The rows of one session: what a page of the largest size needs.
const ROWS_MAX: usize = 256;
/// One session takes at most this part of the limit.
const SESSION_SHARE: usize = 16;
/// One long payload takes at most this part of the limit.
const PAYLOAD_SHARE: usize = 256;
/// The requests that are remembered after they ended: together less than 1 MiB.
const ENDED_MAX: usize = 2_048;
/// Bytes of an entry beside its rows, and of a row beside its columns: tables, pointers and rounding.
const ENTRY_BYTES: usize = 320;
const ROW_BYTES: usize = 192;

type Rows = Arc<Vec<Arc<LogRow>>>;

/// The newest rows of sessions.
pub(super) struct Tail {
    bytes_max: usize,
    keys: Arc<dyn SealKeys>,
    kept: Mutex<TailState>,
}

#[derive(Default)]
struct TailState {
    sessions: HashMap<SessionId, HotSession>,
    /// The sessions that the writer is committing to, and whether each had an entry when it began.
    committing: HashMap<SessionId, bool>,
    /// The requests that ended last, which never change, and their order.
    ended: HashMap<RequestId, EndedRequest>,
    ended_order: VecDeque<RequestId>,
    /// The sessions by their last use.
    order: BTreeMap<u64, SessionId>,
    /// Counts uses; entries and uses are numbered by it.
    uses: u64,
    bytes: usize,
    /// Rows that were taken out. They are freed after the lock is released.
    gone: Vec<Rows>,
}

struct HotSession {
    /// Tells it from earlier entries of the session.
    made: u64,
    used: u64,
    /// The newest is the last one. A reader may keep the list while a commit makes the next.
    rows: Rows,
    /// Of the newest row, or of the newest commit if no row is known.
    summary: Option<Arc<SessionSummary>>,
    bytes: usize,
}

fn bytes_of(row: &LogRow) -> usize {
    row.memory_bytes() + ROW_BYTES
}

impl Tail {
    /// A tail that takes at most `bytes_max` bytes. With 0 it keeps nothing.
    pub(super) fn new(bytes_max: usize, keys: Arc<dyn SealKeys>) -> Self {
        Self {
            bytes_max,
            keys,
            kept: Mutex::default(),
        }
    }

    /// The newest rows of a session, if they are known.
    pub(super) fn hot(&self, session: SessionId) -> Option<Hot> {
        let mut kept = self.lock();
        let rows = Arc::clone(&kept.settled(session)?.rows);
        let keys = Arc::clone(&self.keys);
        (!rows.is_empty()).then_some(Hot { rows, keys })
    }

    /// A session as lists show it, if it is known.
    pub(super) fn summary(&self, session: SessionId) -> Option<SessionSummary> {
        let summary = self.lock().settled(session)?.summary.clone()?;
        Some(SessionSummary::clone(&summary))
    }

    /// A request that ended a moment ago, if it is known.
    pub(super) fn ended_request(&self, id: RequestId) -> Option<EndedRequest> {
        self.lock().ended.get(&id).cloned()
    }

    /// How many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Stops answering for the sessions of a group of commits, which the file is about to show.
    pub(super) fn begin_group(&self, sessions: impl Iterator<Item = SessionId>) {
        if self.bytes_max > 0 {
            let mut kept = self.lock();
            for session in sessions {
                let is_read = kept.sessions.contains_key(&session);
                kept.committing.insert(session, is_read);
            }
        }
    }

    /// Takes over the rows of a group of commits that are durable now, of sessions that have an entry, and
    /// answers for its sessions again. Returns the commits that it does not take over, in their order.
    pub(super) fn end_group(
        &self,
        durable: Vec<(Box<Commit>, RowColumns)>,
    ) -> Vec<Option<Box<Commit>>> {
        if self.bytes_max == 0 {
            return durable
                .into_iter()
                .map(|(commit, _)| Some(commit))
                .collect();
        }
        let kept = self.lock();
        let is_read = |commit: &Commit| kept.committing.get(&commit.session()) == Some(&true);
        let is_read: Vec<bool> = durable.iter().map(|(commit, _)| is_read(commit)).collect();
        drop(kept);
        let (mut rows, mut unread, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = Vec::with_capacity(durable.len());
        for ((mut commit, columns), is_read) in durable.into_iter().zip(is_read) {
            // A fork ends copies; the requests of the origin do not change.
            if commit.writes.fork.is_none() {
                ended.append(&mut commit.changes.ended_requests);
            }
            if is_read {
                rows.push(self.new_row(commit, columns));
                left.push(None);
            } else {
                unread.push(commit.session());
                left.push(Some(commit));
            }
        }
        self.change(|kept| {
            kept.committing.clear();
            kept.note_ended(ended);
            for row in rows {
                kept.learn(row, self.session_max());
            }
            // A reader may have made an entry meanwhile, without the new row.
            for session in unread {
                kept.remove(session);
            }
        });
        left
    }

    fn new_row(&self, mut commit: Box<Commit>, columns: RowColumns) -> NewRow {
        let content = &commit.record.content;
        let session = content.session;
        let mut events = content.events.iter();
        let is_rewind = events.any(|event| matches!(event, Event::Rewound { .. }));
        let is_erasure = commit.writes.erased.is_some();
        let summary = NextSummary::of(&mut commit, columns.session);
        let mut row = LogRow::written(*commit, columns);
        let payload_max = self.bytes_max / PAYLOAD_SHARE;
        row.blobs.retain(|(_, packed)| packed.len() <= payload_max);
        NewRow {
            session,
            is_rewind,
            is_kept: !is_erasure && ENTRY_BYTES + bytes_of(&row) <= self.session_max(),
            summary,
            row: Arc::new(row),
        }
    }

    /// Drops the rows of sessions whose payloads were removed, and answers for them again.
    pub(super) fn end_erasure(&self, sessions: BTreeSet<SessionId>) {
        self.change(|kept| {
            for session in sessions {
                kept.committing.remove(&session);
                kept.remove(session);
            }
        });
    }

    /// Drops the rows of a session.
    fn forget(&self, session: SessionId) {
        self.change(|kept| kept.remove(session));
    }

    /// A source of rows for one reader. With `fills`, the tail keeps the rows that the reader hands back.
    pub(super) fn reader<'a>(
        &'a self,
        conn: &'a Connection,
        session: SessionId,
        fills: bool,
    ) -> Result<RowReader<'a>, StoreError> {
        let fills = fills && self.bytes_max > 0;
        let made = fills.then(|| self.change(|kept| kept.touch_or_make(session).made));
        // The snapshot comes before the rows of the tail: rows from before an erasure must not meet a file
        // from after it.
        conn.prepare_cached("SELECT 1 FROM sqlite_schema LIMIT 1")
            .and_then(|mut begin| begin.query_row([], |_| Ok(())))
            .map_err(corrupt_or_unavailable("reading"))?;
        let keys = &*self.keys;
        Ok(RowReader {
            conn: KeyedConnection { conn, keys },
            hot: self.hot(session),
            tail: self,
            session,
            made,
            walked: RefCell::default(),
            blobs: RefCell::default(),
        })
    }

    /// Adds a summary that was read to the entry that has the number `made`.
    fn fill_summary(&self, made: u64, summary: SessionSummary) {
        let (session, revision) = (summary.id, summary.revision);
        let summary = Some(Arc::new(summary));
        self.change(|kept| {
            let entry = kept.sessions.get(&session);
            let Some(entry) = entry.filter(|entry| entry.made == made) else {
                return;
            };
            // A commit may have come meanwhile.
            let newest = entry.rows.last();
            if newest.is_none_or(|newest| newest.seq == revision) {
                kept.summarise(session, |_| summary);
            }
        });
    }

    /// Adds older rows, from the newest to the oldest, to the entry that has the number `made`.
    fn fill(&self, session: SessionId, made: u64, walked: Vec<Arc<LogRow>>) {
        let sized = walked.into_iter().take(ROWS_MAX);
        let sized: Vec<_> = sized.map(|row| (bytes_of(&row), row)).collect();
        self.change(|kept| {
            let entry = kept.sessions.get_mut(&session);
            let Some(entry) = entry.filter(|entry| entry.made == made) else {
                return;
            };
            let before = entry.bytes;
            let mut next = entry.rows.first().map(|oldest| oldest.prev);
            let mut rows = Vec::with_capacity(sized.len() + entry.rows.len());
            for (bytes, row) in sized {
                if next.is_some_and(|next| row.id > next) {
                    // A commit has brought it, or it was here.
                    continue;
                }
                let fits = entry.bytes + bytes <= self.session_max()
                    && rows.len() + entry.rows.len() < ROWS_MAX;
                if !fits || next.is_some_and(|next| row.id != next) {
                    break;
                }
                next = Some(row.prev);
                entry.bytes += bytes;
                rows.push(row);
            }
            rows.reverse();
            rows.extend(entry.rows.iter().cloned());
            entry.rows = Arc::new(rows);
            kept.bytes += entry.bytes - before;
        });
    }

    fn session_max(&self) -> usize {
        self.bytes_max / SESSION_SHARE
    }

    /// Changes what is kept, and makes room. What goes is freed without the lock.
    fn change<T>(&self, change: impl FnOnce(&mut TailState) -> T) -> T {
        let mut kept = self.lock();
        let changed = change(&mut kept);
        while kept.bytes > self.bytes_max
            && let Some((_, oldest)) = kept.order.pop_first()
        {
            kept.remove(oldest);
        }
        let gone = std::mem::take(&mut kept.gone);
        drop(kept);
        drop(gone);
        changed
    }

    fn lock(&self) -> MutexGuard<'_, TailState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A row that a commit wrote.
struct NewRow {
    session: SessionId,
    is_rewind: bool,
    is_kept: bool,
    summary: Option<NextSummary>,
    row: Arc<LogRow>,
}

impl TailState {
    /// The entry of a session that no commit is being written to.
    fn settled(&mut self, session: SessionId) -> Option<&mut HotSession> {
        let is_settled = !self.committing.contains_key(&session);
        is_settled.then(|| self.touch(session)).flatten()
    }

    fn note_ended(&mut self, requests: Vec<EndedRequest>) {
        for ended in requests {
            self.ended_order.push_back(ended.id);
            self.ended.insert(ended.id, ended);
        }
        while self.ended_order.len() > ENDED_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    fn learn(&mut self, new: NewRow, session_max: usize) {
        let NewRow {
            session,
            summary,
            row,
            ..
        } = new;
        let entry = self.sessions.get(&session);
        let newest = entry.and_then(|entry| entry.rows.last());
        let follows = newest.is_none_or(|newest| newest.id == row.prev);
        // Without its newest row a session must have no entry: older rows would pass for its end.
        if !new.is_kept || new.is_rewind || !follows {
            self.remove(session);
        }
        if new.is_kept {
            self.push(session, row, session_max);
            self.summarise(session, |known| summary?.after(known));
        }
    }

    /// The entry of a session, which becomes the last to go.
    fn touch(&mut self, session: SessionId) -> Option<&mut HotSession> {
        let entry = self.sessions.get_mut(&session)?;
        self.uses += 1;
        self.order.remove(&entry.used);
        self.order.insert(self.uses, session);
        entry.used = self.uses;
        Some(entry)
    }

    fn touch_or_make(&mut self, session: SessionId) -> &mut HotSession {
        if !self.sessions.contains_key(&session) {
            self.uses += 1;
            let entry = HotSession {
                made: self.uses,
                used: self.uses,
                rows: Rows::default(),
                summary: None,
                bytes: ENTRY_BYTES,
            };
            self.bytes += entry.bytes;
            self.sessions.insert(session, entry);
        }
        self.touch(session).expect("it is there, or was just made")
    }

    fn push(&mut self, session: SessionId, row: Arc<LogRow>, session_max: usize) {
        let entry = self.touch_or_make(session);
        let before = entry.bytes;
        entry.bytes += bytes_of(&row);
        let rows = Arc::make_mut(&mut entry.rows);
        rows.push(row);
        let mut extra = 0;
        while extra + 1 < rows.len() && (entry.bytes > session_max || rows.len() - extra > ROWS_MAX)
        {
            entry.bytes -= bytes_of(&rows[extra]);
            extra += 1;
        }
        let oldest: Vec<_> = rows.drain(..extra).collect();
        let after = entry.bytes;
        if !oldest.is_empty() {
            self.gone.push(Arc::new(oldest));
        }
        self.bytes = self.bytes + after - before;
    }

    /// Changes the summary of an entry that is there.
    fn summarise(
        &mut self,
        session: SessionId,
        change: impl FnOnce(Option<Arc<SessionSummary>>) -> Option<Arc<SessionSummary>>,
    ) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            let before = summary_bytes(entry.summary.as_deref());
            entry.summary = change(entry.summary.take());
            let after = summary_bytes(entry.summary.as_deref());
            entry.bytes = entry.bytes + after - before;
            self.bytes = self.bytes + after - before;
        }
    }

    fn remove(&mut self, session: SessionId) {
        if let Some(entry) = self.sessions.remove(&session) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
            self.gone.push(entry.rows);
        }
    }
}

/// The bytes of a summary on the heap.
fn summary_bytes(summary: Option<&SessionSummary>) -> usize {
    summary.map_or(0, |summary| {
        let texts = [&summary.name, &summary.labels].into_iter().flatten();
        let names = [
            &summary.owner.tenant,
            &summary.owner.app,
            &summary.owner.agent,
        ];
        size_of::<SessionSummary>()
            + texts.map(String::capacity).sum::<usize>()
            + names.map(|name| name.as_str().len()).iter().sum::<usize>()
    })
}

/// The summary of a session after a commit.
struct NextSummary {
    /// Without name and labels, unless the commit is the first of the session.
    summary: SessionSummary,
    is_first: bool,
    has_new_texts: bool,
}

impl NextSummary {
    /// Takes over what it needs from a commit to the session with this primary key.
    fn of(commit: &mut Commit, pk: i64) -> Option<Self> {
        let (content, after) = (&commit.record.content, &mut commit.after);
        let (name, labels) = (commit.writes.name.take(), commit.writes.labels.take());
        Some(Self {
            is_first: content.seq == 1 || commit.writes.fork.is_some(),
            has_new_texts: name.is_some() || labels.is_some(),
            summary: SessionSummary {
                place: from_sql(pk),
                id: content.session,
                status: after.status(),
                owner: after.owner.take()?,
                name: name.and_then(Change::value),
                labels: labels.and_then(Change::value),
                deleted: after.deleted,
                ttl: after.ttl,
                expires_at: after.expires_at,
                hidden_ttl_ms: after.hidden_ttl_ms,
                hidden_expires_at: after.hidden_expires_at,
                revision: after.revision,
                created_at: content.at,
                updated_at: content.at,
                forked_from: commit.writes.fork.map(ForkWrite::point),
            },
        })
    }

    /// The summary, if the one before the commit is known and has the same name and labels.
    fn after(mut self, known: Option<Arc<SessionSummary>>) -> Option<Arc<SessionSummary>> {
        if self.is_first {
            return Some(Arc::new(self.summary));
        }
        let is_before = |known: &Arc<SessionSummary>| known.revision + 1 == self.summary.revision;
        let mut known = known.filter(is_before).filter(|_| !self.has_new_texts)?;
        let before = Arc::make_mut(&mut known);
        self.summary.name = before.name.take();
        self.summary.labels = before.labels.take();
        self.summary.created_at = before.created_at;
        self.summary.forked_from = before.forked_from;
        *before = self.summary;
        Some(known)
    }
}

/// The newest rows of a session, as they were at one moment.
pub(super) struct Hot {
    rows: Rows,
    keys: Arc<dyn SealKeys>,
}

impl Hot {
    /// The rows, the newest first. Each leads to the next.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Arc<LogRow>> {
        self.rows.iter().rev()
    }

    pub(super) fn row(&self, id: i64) -> Option<&Arc<LogRow>> {
        let at = self.rows.binary_search_by_key(&id, |row| row.id).ok()?;
        Some(&self.rows[at])
    }

    /// Some payloads of a row, the first of them at place `first`. None if not all of them are here.
    pub(super) fn bodies(
        &self,
        row: &LogRow,
        first: usize,
        named: &[BodyRef],
    ) -> Option<Vec<Option<Vec<u8>>>> {
        let keys = &*self.keys;
        let stored = codec::unpack_some(&row.bodies, first, named, keys).ok()?;
        // The row of an answer that a router passed on refers to a blob that an older row brought.
        let blob = |name: &BodyRef| {
            let here = row.blob(&name.digest);
            let older = || self.newest_first().find_map(|row| row.blob(&name.digest));
            codec::open(here.or_else(older)?, keys).ok()
        };
        let refer = |place: BodyPlace, name: &BodyRef| {
            let (bodies, index) = (&self.row(place.row)?.bodies, place.index as usize);
            let stored = codec::unpack_some(bodies, index, std::slice::from_ref(name), keys);
            match stored.ok()?.pop()? {
                StoredBody::Inline(bytes) => Some(Some(bytes)),
                StoredBody::KeyGone => Some(None),
                _ => None,
            }
        };
        let open = |(body, name): (StoredBody, &BodyRef)| match body {
            StoredBody::Inline(bytes) => Some(Some(bytes)),
            StoredBody::Erased | StoredBody::KeyGone => Some(None),
            StoredBody::Blob => blob(name),
            StoredBody::Reference(place) => refer(place, name),
        };
        stored.into_iter().zip(named).map(open).collect()
    }
}

/// A reading connection that looks for rows of one session in the tail first.
pub(super) struct RowReader<'a> {
    conn: KeyedConnection<'a>,
    hot: Option<Hot>,
    tail: &'a Tail,
    session: SessionId,
    /// The entry that gets the rows. None if they are not kept.
    made: Option<u64>,
    walked: RefCell<Vec<Arc<LogRow>>>,
    /// Long payloads that were read, each with its row.
    blobs: RefCell<Vec<(i64, Digest, Vec<u8>)>>,
}

impl<'a> Deref for RowReader<'a> {
    type Target = KeyedConnection<'a>;

    fn deref(&self) -> &KeyedConnection<'a> {
        &self.conn
    }
}

impl RowReader<'_> {
    /// One row of the log, by its id.
    pub(super) fn row(&self, id: i64) -> Result<Arc<LogRow>, StoreError> {
        let hot = self.hot.as_ref().and_then(|hot| hot.row(id));
        match hot {
            Some(row) => Ok(Arc::clone(row)),
            None => log::row(&self.conn, id).map(Arc::new),
        }
    }

    /// A long payload of a row. None if its key is gone.
    pub(super) fn blob(
        &self,
        row: &LogRow,
        user: UserId,
        name: &BodyRef,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let open = |packed: &[u8]| {
            codec::open(packed, self.conn.keys).map_err(|error| damaged(row.place(), error))
        };
        if let Some(packed) = row.blob(&name.digest) {
            return open(packed);
        }
        let packed = log::packed_blob(&self.conn, user, &name.digest, &row.place())?;
        let bytes = open(&packed)?;
        if self.made.is_some() && packed.len() <= self.tail.bytes_max / PAYLOAD_SHARE {
            self.blobs.borrow_mut().push((row.id, name.digest, packed));
        }
        Ok(bytes)
    }

    /// Notes a row that the tail may keep. Rows come from the newest to the oldest.
    pub(super) fn walk(&self, row: &Arc<LogRow>) {
        if self.made.is_some() {
            self.walked.borrow_mut().push(Arc::clone(row));
        }
    }

    /// Hands the summary of the session to the tail. A session that does not exist takes no room there.
    pub(super) fn keep_summary(&self, found: Option<&SessionSummary>) {
        match (self.made, found) {
            (Some(made), Some(found)) => self.tail.fill_summary(made, found.clone()),
            (Some(_), None) => self.tail.forget(self.session),
            (None, _) => {}
        }
    }

    /// Hands the rows that were walked to the tail.
    pub(super) fn keep_walked(self) {
        let mut walked = self.walked.into_inner();
        let Some(made) = self.made.filter(|_| !walked.is_empty()) else {
            return;
        };
        for (row, digest, packed) in self.blobs.into_inner() {
            let mut read = walked.iter_mut().filter(|known| known.id == row);
            if let Some(row) = read.next().and_then(Arc::get_mut) {
                row.blobs.push((digest, packed));
            }
        }
        self.tail.fill(self.session, made, walked);
    }
}
