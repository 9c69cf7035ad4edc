//! The rows beside the log: links, waypoints, rewinds, names, shared values, private states. One pass
//! over the log in the order in which it was written makes them all again.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use serde_json::Value;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::merge::merge;
use statehold_core::record::{Change, ErasedPayloads, Event, Record, RecordContent};
use statehold_core::scope::{MergePolicy, StateKey};
use statehold_core::session::Owner;
use uuid::Uuid;

use super::super::log::{
    self, Link, LogRow, PayloadReader, SessionRow, Uuid16, WAYPOINT_EVERY, pack_links,
};
use super::super::sealing::{is_name_lookup, open_text};
use super::super::snapshot::KeyedConnection;
use super::super::sql::{from_sql, id_bytes, to_sql};
use super::super::{chats, memory, read};
use crate::check::{CheckReport, Problem, bad_payload};
use crate::codec;
use crate::port::{SharedOwner, StoreError};

/// Whose shared key it is, as the table names it.
type SharedKey = (String, String, Vec<u8>, String);

/// The expected row of a shared key.
#[derive(Debug, Default, PartialEq, Eq)]
struct ExpectedValue {
    version: u64,
    /// The value, or nothing if the key was removed.
    value: Option<Vec<u8>>,
    by: WrittenBy,
}

/// Session, revision, principal, time and request of the last write.
type WrittenBy = (Vec<u8>, i64, String, i64, Option<Vec<u8>>);

/// The write of a record to a shared key.
enum Operand {
    Remove,
    Write(MergePolicy, Vec<u8>),
    /// The payload was erased on purpose.
    Erased,
}

/// The facts collected in one pass over the log.
#[derive(Default)]
struct Pass {
    sessions: BTreeMap<i64, SessionRow>,
    last_rows: BTreeMap<i64, i64>,
    items: BTreeMap<i64, u64>,
    grown: BTreeMap<TaskId, i64>,
    waypoints: BTreeSet<(i64, i64, i64, i64)>,
    rewinds: BTreeSet<(i64, i64, i64, i64)>,
    names: BTreeMap<i64, (Option<String>, Option<String>)>,
    shared: BTreeMap<SharedKey, ExpectedValue>,
    /// The newest value of the key that was merged last; `shared` has none of it until another key is
    /// merged. Many small writes to one long value then cost no more than they bring.
    merging: Option<(SharedKey, Value)>,
    /// Shared keys with an erased payload, whose expected value is therefore unknown.
    unknown: BTreeSet<SharedKey>,
    /// Who last wrote the private state of a task, the log row of that, and the task's session.
    private: BTreeMap<TaskId, (RequestId, i64, i64)>,
    children: Vec<(Vec<u8>, Vec<u8>)>,
    /// The sessions that were closed, and the log row up to which hidden payloads of each were removed.
    closed: BTreeSet<i64>,
    erased: BTreeMap<i64, i64>,
    /// The digest and the log row of each request that chat clients are found by.
    chats: BTreeMap<i64, (i64, i64)>,
    /// How many payloads of the log are kept in each blob.
    blobs: BTreeMap<(Vec<u8>, Vec<u8>), i64>,
    problems: Vec<Problem>,
}

/// Compares every row beside the log with the log.
pub(super) fn check(
    conn: &KeyedConnection<'_>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut pass = Pass::default();
    let mut last = 0;
    loop {
        let sql = "SELECT id FROM log WHERE id > ?1 ORDER BY id LIMIT 1000";
        let ids: Vec<i64> = read::all(conn, sql, [last], |row| row.get(0))?;
        let Some(newest) = ids.last() else { break };
        last = *newest;
        for id in ids {
            let row = log::row(conn, id)?;
            let record = row.record()?;
            pass.learn(conn, &row, &record)?;
        }
    }
    pass.compare_sets(conn)?;
    pass.compare_tails(conn)?;
    pass.compare_names(conn)?;
    pass.compare_shared(conn)?;
    pass.compare_private(conn)?;
    pass.compare_children(conn)?;
    pass.compare_blobs(conn)?;
    report.add_all(pass.problems);
    Ok(())
}

impl Pass {
    fn wrong(&mut self, place: impl Into<String>, what: &str) {
        self.problems.push(Problem::projection(place, what));
    }

    fn learn(
        &mut self,
        conn: &KeyedConnection<'_>,
        row: &LogRow,
        record: &Record,
    ) -> Result<(), StoreError> {
        let content = &record.content;
        let Some(session) = log::session_row(conn, content.session)? else {
            self.wrong(format!("log row {}", row.id), "belongs to no session");
            return Ok(());
        };
        let pk = session.pk;
        if row.session != pk {
            self.wrong(
                format!("log row {}", row.id),
                "is filed under another session",
            );
        }
        let before = match self.last_rows.insert(pk, row.id) {
            Some(before) => before,
            None if session.origin == 0 => 0,
            None => log::seek(conn, &session, session.origin_seq)?.id,
        };
        if row.prev != before {
            self.wrong(
                format!("log row {}", row.id),
                "does not follow the record before it",
            );
        }
        if pack_links(&self.links(conn, row, record, before)?) != row.links {
            self.wrong(
                format!("log row {}", row.id),
                "has links that the log does not call for",
            );
        }
        let items = self.count_items(conn, pk, record, before)?;
        if content.seq.is_multiple_of(WAYPOINT_EVERY) {
            self.waypoints
                .insert((pk, to_sql(content.seq), to_sql(items), row.id));
        }
        self.sessions.insert(pk, session);
        self.learn_events(conn, row, record, pk)
    }

    fn links(
        &mut self,
        conn: &Connection,
        row: &LogRow,
        record: &Record,
        before: i64,
    ) -> Result<Vec<Link>, StoreError> {
        let mut links: Vec<Link> = Vec::new();
        let mut renamed = Vec::new();
        for event in &record.content.events {
            match event {
                Event::ItemsAppended { task, .. }
                    if links.iter().all(|link| link.task != *task) =>
                {
                    let prev = self.grown.insert(*task, row.id).unwrap_or(0);
                    links.push(Link {
                        task: *task,
                        prev,
                        before: *task,
                    });
                }
                Event::TaskRenamed { from, to } => {
                    let prev = log::last_growth(conn, before, *from)?;
                    self.grown.insert(*to, row.id);
                    renamed.push(Link {
                        task: *to,
                        prev,
                        before: *from,
                    });
                }
                _ => {}
            }
        }
        links.extend(renamed);
        Ok(links)
    }

    /// How many items the session has after this record.
    fn count_items(
        &mut self,
        conn: &Connection,
        pk: i64,
        record: &Record,
        before: i64,
    ) -> Result<u64, StoreError> {
        let mut at = before;
        let mut found = last_item(record);
        if found.is_none() {
            found = self.items.get(&pk).copied();
        }
        // Only the first records of a fork get here: they continue the item numbers of the origin.
        while found.is_none() && at != 0 {
            let row = log::row(conn, at)?;
            found = last_item(&row.record()?);
            at = row.prev;
        }
        let items = found.unwrap_or(0);
        self.items.insert(pk, items);
        Ok(items)
    }

    fn learn_events(
        &mut self,
        conn: &KeyedConnection<'_>,
        row: &LogRow,
        record: &Record,
        pk: i64,
    ) -> Result<(), StoreError> {
        let (user, seq) = (self.sessions[&pk].user, record.content.seq);
        let bodies = row.bodies(conn, PayloadReader::of_file(user), record)?;
        for digest in row.blobs(record)?.into_iter().flatten() {
            let key = (bytes(user.as_uuid()), digest.as_bytes().to_vec());
            *self.blobs.entry(key).or_default() += 1;
        }
        self.learn_references(conn, row, record)?;
        let chat = chats::row_of(record, pk);
        self.chats
            .extend(chat.map(|(key, digest)| (key, (digest, row.id))));
        let mut index = 0;
        for event in &record.content.events {
            let own = &bodies[index..index + event.bodies().len()];
            index += own.len();
            match event {
                Event::SessionCreated { name, labels, .. } => {
                    let mut own = own.iter().map(|body| text(body.as_deref()));
                    let name = name.and_then(|_| own.next()).flatten();
                    let labels = labels.and_then(|_| own.next()).flatten();
                    self.names.insert(pk, (name, labels));
                }
                Event::SessionPatched { labels, name, .. } => {
                    let mut own = own.iter().map(|body| text(body.as_deref()));
                    let kept = self.names.entry(pk).or_default();
                    if labels.is_some() {
                        kept.1 = own.next().flatten();
                    }
                    match name {
                        Some(Change::Set(_)) => kept.0 = own.next().flatten(),
                        Some(Change::Clear) => kept.0 = None,
                        None => {}
                    }
                }
                Event::PayloadsErased { payloads } => {
                    self.private.retain(|_, (_, _, session)| *session != pk);
                    self.erased.insert(pk, row.id);
                    if self.closed.contains(&pk) {
                        let places = chats::places_of(pk);
                        self.chats.retain(|key, _| !places.contains(key));
                    }
                    if *payloads == ErasedPayloads::All {
                        self.names.insert(pk, (None, None));
                    }
                }
                Event::SessionForked { through, .. } => self.learn_fork(conn, row, pk, *through)?,
                Event::SessionClosed => {
                    self.closed.insert(pk);
                }
                Event::RequestStarted {
                    request,
                    parent: Some(parent),
                    ..
                } => {
                    let child = (bytes(parent.as_uuid()), bytes(request.as_uuid()));
                    self.children.push(child);
                }
                Event::Rewound {
                    items_kept,
                    items_until,
                    ..
                } => {
                    let range = (to_sql(*items_kept), to_sql(*items_until));
                    self.rewinds.insert((pk, to_sql(seq), range.0, range.1));
                }
                Event::TaskStatePut { task, request, .. } => {
                    self.private.insert(*task, (*request, row.id, pk));
                }
                Event::TaskRenamed { from, to } => {
                    let state = read::task_state_at(conn, row.prev, *from)?;
                    let erased = self.erased.get(&pk).copied().unwrap_or(0);
                    let state = state.filter(|state| state.log > erased);
                    let filed = state.map(|state| (*to, (state.request, state.log, pk)));
                    self.private.extend(filed);
                }
                Event::SharedStatePut {
                    key,
                    merge,
                    operand,
                    request,
                    ..
                } => {
                    let operand = match operand {
                        None => Operand::Remove,
                        Some(_) => match own.first().cloned().flatten() {
                            Some(value) => Operand::Write(*merge, value),
                            None => Operand::Erased,
                        },
                    };
                    let by = written_by(&record.content, *request);
                    self.learn_shared(conn, pk, key, operand, by)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A fork begins without the payloads that were removed before from the sessions it copies.
    fn learn_fork(
        &mut self,
        conn: &Connection,
        row: &LogRow,
        pk: i64,
        through: Option<SessionId>,
    ) -> Result<(), StoreError> {
        let mut copied = vec![self.sessions[&pk].origin];
        if let Some(through) = through {
            copied.extend(self.copied_through(conn, row, through)?);
        }
        let erased = copied.iter().filter_map(|copied| self.erased.get(copied));
        let erased = erased.map(|erased| row.prev.min(*erased)).max();
        self.erased.extend(erased.map(|erased| (pk, erased)));
        Ok(())
    }

    /// The fork that another fork was copied through, which must share the row before that one began.
    fn copied_through(
        &mut self,
        conn: &Connection,
        row: &LogRow,
        through: SessionId,
    ) -> Result<Option<i64>, StoreError> {
        let found = log::session_row(conn, through)?;
        let found = found.filter(|found| found.pk != row.session && row.seq <= found.revision + 1);
        let shared = match &found {
            Some(found) => Some(log::seek(conn, found, row.seq - 1)?.id),
            None => None,
        };
        if shared != Some(row.prev) {
            let what = "was copied through a session that does not share its history";
            self.wrong(format!("log row {}", row.id), what);
            return Ok(None);
        }
        Ok(found.map(|found| found.pk))
    }

    /// A payload that is stored elsewhere must have the same digest there. That its bytes are there was seen
    /// before.
    fn learn_references(
        &mut self,
        conn: &Connection,
        row: &LogRow,
        record: &Record,
    ) -> Result<(), StoreError> {
        for (index, place) in row.references()? {
            let there = log::row(conn, place.row)?.record()?.bodies();
            if there.get(place.index as usize) != record.bodies().get(index) {
                let (session, seq) = (record.content.session, record.content.seq);
                let what = "refers to another payload than its own";
                self.problems.push(bad_payload(session, seq, what));
            }
        }
        Ok(())
    }

    fn learn_shared(
        &mut self,
        conn: &Connection,
        pk: i64,
        key: &StateKey,
        operand: Operand,
        by: WrittenBy,
    ) -> Result<(), StoreError> {
        let Some(owner) = owner_of(conn, &self.sessions[&pk])? else {
            return Ok(());
        };
        let key = shared_key(&owner, key);
        let old = self.shared.get(&key);
        let has_value = old.is_some_and(|old| old.value.is_some());
        match operand {
            Operand::Remove if !has_value => return Ok(()),
            Operand::Remove => self.set_shared(&key, None),
            Operand::Write(MergePolicy::KeepFirst, _) if has_value => {}
            Operand::Write(MergePolicy::Replace | MergePolicy::KeepFirst, value) => {
                self.set_shared(&key, Some(value));
            }
            Operand::Write(policy, operand) if self.merge_shared(&key, policy, &operand) => {}
            Operand::Write(..) | Operand::Erased => {
                self.unknown.insert(key);
                return Ok(());
            }
        }
        let shared = self.shared.entry(key).or_default();
        (shared.version, shared.by) = (shared.version + 1, by);
        Ok(())
    }

    fn set_shared(&mut self, key: &SharedKey, value: Option<Vec<u8>>) {
        self.merging.take_if(|(merging, _)| merging == key);
        self.shared.entry(key.clone()).or_default().value = value;
    }

    /// Repeats the merge of a past write. False if that is impossible.
    fn merge_shared(&mut self, key: &SharedKey, policy: MergePolicy, operand: &[u8]) -> bool {
        let Ok(operand) = serde_json::from_slice(operand) else {
            return false;
        };
        let old = if let Some((_, value)) = self.merging.take_if(|(merging, _)| merging == key) {
            Some(value)
        } else {
            self.finish_merging();
            let old = self.shared.get(key).and_then(|old| old.value.as_deref());
            match old.map(serde_json::from_slice).transpose() {
                Ok(old) => old,
                Err(_) => return false,
            }
        };
        let Ok(merged) = merge(policy, old, operand) else {
            return false;
        };
        self.set_shared(key, Some(Vec::new()));
        self.merging = Some((key.clone(), merged));
        true
    }

    fn finish_merging(&mut self) {
        if let Some((key, merged)) = self.merging.take() {
            self.set_shared(&key, Some(merged.to_string().into_bytes()));
        }
    }

    fn compare_sets(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let waypoints = quadruples(conn, "SELECT session, seq, items_until, log FROM waypoint")?;
        if !waypoints.iter().eq(&self.waypoints) {
            self.wrong("the table `waypoint`", "is not what the log says");
        }
        let sql = "SELECT session, seq, items_kept, items_until FROM rewind";
        if !quadruples(conn, sql)?.iter().eq(&self.rewinds) {
            self.wrong("the table `rewind`", "is not what the log says");
        }
        let sql = "SELECT pk, digest, log FROM chat_request ORDER BY pk";
        let chats = read::all(conn, sql, [], |row| {
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))
        })?;
        if !chats.into_iter().eq(std::mem::take(&mut self.chats)) {
            self.wrong("the table `chat_request`", "is not what the log says");
        }
        Ok(())
    }

    /// Where reading the items of a task begins.
    fn compare_tails(&mut self, conn: &Connection) -> Result<(), StoreError> {
        for table in ["open_task", "closed_task"] {
            let sql = format!("SELECT id, last_log FROM {table}");
            let tails = read::all(conn, &sql, [], |row| {
                Ok((row.get::<_, Uuid16>(0)?.0, row.get::<_, i64>(1)?))
            })?;
            for (task, tail) in tails {
                let task = TaskId::from_uuid(task);
                if tail != self.grown.get(&task).copied().unwrap_or(0) {
                    let place = format!("`{table}` {task}");
                    self.wrong(place, "does not end where the log says");
                }
            }
        }
        Ok(())
    }

    fn compare_names(&mut self, conn: &KeyedConnection<'_>) -> Result<(), StoreError> {
        for (pk, session) in self.sessions.clone() {
            if session.erased_log != self.erased.get(&pk).copied().unwrap_or(0) {
                let place = format!("session {}", session.id);
                self.wrong(place, "lost payloads at another record than the log says");
            }
            let sql = "SELECT name_lookup, name, labels FROM session WHERE pk = ?1";
            let columns: Option<[Option<Vec<u8>>; 3]> = read::first(conn, sql, [pk], |row| {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?])
            })?;
            let [lookup, name, labels] = columns.unwrap_or_default();
            let place = format!("session {}", session.id);
            let text = |column: &Option<Vec<u8>>| open_text(column.as_deref(), conn.keys, &place);
            let (kept, labels) = (text(&name)?, text(&labels)?);
            let is_found = match &kept {
                Some(kept) => is_name_lookup(conn.keys, session.user, kept, lookup.as_deref()),
                // A name that cannot be opened cannot be compared either.
                None => lookup.is_some() == name.is_some(),
            };
            // A fork inherits neither the name nor the labels of its origin.
            let logged = self.names.remove(&pk).unwrap_or_default();
            if (kept, labels) != logged || !is_found {
                self.wrong(place, "has another name or other labels than the log says");
            }
        }
        Ok(())
    }

    fn compare_shared(&mut self, conn: &KeyedConnection<'_>) -> Result<(), StoreError> {
        self.finish_merging();
        let sql = "SELECT tenant, app, user, key, version, value,
                   session, revision, principal, at, request FROM shared";
        let rows = read::all(conn, sql, [], |row| {
            let key: SharedKey = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            let (session, revision, principal) = (row.get(6)?, row.get(7)?, row.get(8)?);
            let by: WrittenBy = (session, revision, principal, row.get(9)?, row.get(10)?);
            let (version, packed): (i64, Option<Vec<u8>>) = (row.get(4)?, row.get(5)?);
            Ok((key, version, packed, by))
        })?;
        for (key, version, packed, by) in rows {
            let expected = self.shared.remove(&key);
            if self.unknown.contains(&key) {
                continue;
            }
            let value = packed.map(|packed| codec::open(&packed, conn.keys));
            let found = value
                .transpose()
                .map(|value| ExpectedValue {
                    version: from_sql(version),
                    value: value.flatten(),
                    by,
                })
                .ok();
            if found != expected {
                self.wrong(
                    format!("shared key `{}`", key.3),
                    "is not what the log says",
                );
            }
        }
        let missing: Vec<String> = self.shared.keys().map(|key| key.3.clone()).collect();
        for key in missing {
            self.wrong(format!("shared key `{key}`"), "is missing");
        }
        Ok(())
    }

    fn compare_private(&mut self, conn: &KeyedConnection<'_>) -> Result<(), StoreError> {
        // Rows that a removal has taken stay until it comes to them.
        let sql = "SELECT count(*) FROM task_state WHERE NOT EXISTS(
                   SELECT 1 FROM session JOIN erasure ON erasure.session = session.pk
                   WHERE session.pk = task_state.session AND task_state.log <= session.erased_log)";
        let found: Option<i64> = read::first(conn, sql, [], |row| row.get(0))?;
        if found.and_then(|found| usize::try_from(found).ok()) != Some(self.private.len()) {
            self.wrong(
                "the table `task_state`",
                "has more or fewer rows than the log calls for",
            );
        }
        for (task, (request, written, pk)) in std::mem::take(&mut self.private) {
            let sql = "SELECT request, log, session FROM task_state WHERE task = ?1";
            let filed = read::first(conn, sql, [id_bytes(task.as_uuid())], |row| {
                let request = RequestId::from_uuid(row.get::<_, Uuid16>(0)?.0);
                Ok((request, row.get(1)?, row.get(2)?))
            })?;
            if filed != Some((request, written, pk)) {
                self.wrong(
                    format!("the private state of {task}"),
                    "is missing, or filed under another session or record",
                );
            }
            let Some(user) = self.sessions.get(&pk).map(|session| session.user) else {
                continue;
            };
            let logged = memory::state_in(conn, PayloadReader::of_file(user), written)?;
            if logged.is_some() && read::task_state(conn, task)? != logged {
                self.wrong(
                    format!("the private state of {task}"),
                    "is not what the log says",
                );
            }
        }
        Ok(())
    }

    fn compare_children(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let sql = "SELECT parent, child FROM child_request ORDER BY rowid";
        let found: Vec<(Vec<u8>, Vec<u8>)> =
            read::all(conn, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if found != self.children {
            self.wrong("the table `child_request`", "is not what the log says");
        }
        Ok(())
    }

    fn compare_blobs(&mut self, conn: &Connection) -> Result<(), StoreError> {
        // The parts of a blob that is split count for nothing.
        let sql = "SELECT user, substr(digest, 1, 32), sum(refs) FROM blob GROUP BY 1, 2";
        let found = read::all(conn, sql, [], |row| {
            Ok(((row.get(0)?, row.get(1)?), row.get(2)?))
        })?;
        let found: BTreeMap<_, _> = found.into_iter().collect();
        if found != self.blobs {
            self.wrong("the table `blob`", "is not what the log refers to");
        }
        Ok(())
    }
}

fn text(body: Option<&[u8]>) -> Option<String> {
    body.map(|body| String::from_utf8_lossy(body).into_owned())
}

fn bytes(id: &Uuid) -> Vec<u8> {
    id.as_bytes().to_vec()
}

fn last_item(record: &Record) -> Option<u64> {
    record
        .content
        .events
        .iter()
        .rev()
        .find_map(|event| match event {
            Event::ItemsAppended { items, .. } => items.last().map(|item| item.seq),
            _ => None,
        })
}

fn written_by(content: &RecordContent, request: Option<RequestId>) -> WrittenBy {
    (
        bytes(content.session.as_uuid()),
        to_sql(content.seq),
        content.principal.to_string(),
        content.at.as_micros(),
        request.map(|id| bytes(id.as_uuid())),
    )
}

fn owner_of(conn: &Connection, session: &SessionRow) -> Result<Option<Owner>, StoreError> {
    Ok(read::load(conn, session.id)?.and_then(|state| state.owner))
}

fn shared_key(owner: &Owner, key: &StateKey) -> SharedKey {
    let shared = SharedOwner::of(owner, key.scope());
    (
        shared.tenant.to_string(),
        shared.app.to_string(),
        read::user_of(&shared),
        key.to_string(),
    )
}

/// All rows of a query, in order, duplicates included.
fn quadruples(conn: &Connection, sql: &str) -> Result<Vec<(i64, i64, i64, i64)>, StoreError> {
    let sql = format!("{sql} ORDER BY 1, 2, 3, 4");
    read::all(conn, &sql, [], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })
}
