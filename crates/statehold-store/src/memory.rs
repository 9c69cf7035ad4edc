//! The reference adapter: plain collections behind one lock.
//!
//! It keeps each session as its log and the fold of it, and answers every question by walking the
//! log. That is slow for long sessions and obviously correct, so the suite compares the other
//! adapters with it. Nothing survives the process.

mod erase;
mod exchanges;
mod history;
mod holds;
mod listing;
mod tenant;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use statehold_core::apply::apply;
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, ItemId, KeyId, RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::{Change, Event, Record};
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::tenant::{TenantHead, TenantRecord};
use statehold_core::time::Timestamp;

use crate::check::CheckReport;
use crate::codec::{self, StoredBody};
use crate::commit::{
    Answer, CHAT_REQUESTS_MAX, Commit, ForkWrite, SharedWrite, chat_request_in, results_in,
};
use crate::keys::KnownKeys;
use crate::port::{
    ApiKey, BoxError, CallResult, ChangedHead, Committed, DamageLog, Due, DuePage, DuePlace,
    FORK_LEVELS_MAX, HoldChange, HoldQuery, HoldSummary, ItemQuery, KeyRange, LineageStep,
    LiveWork, MemoryPage, MemoryQuery, PageLimit, PastItemQuery, PastStateQuery, PastValue,
    PendingCommit, ReadLine, ResumeAddress, SessionQuery, SessionSummary, SharedOwner, SharedValue,
    StatePage, StateValue, Store, StoreError, StoredItem, StoredRecord, TenantCommit, ValueSize,
    WorkTotals, impl_store,
};
use crate::seal::NoKeys;

/// A store in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    /// A plain mutex: it is held while collections are read or written, never over an await.
    tables: Mutex<Tables>,
    /// Always empty.
    damage: DamageLog,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// A thread that panicked in the middle of a commit may have left half of it.
    fn lock(&self) -> Result<MutexGuard<'_, Tables>, StoreError> {
        self.tables.lock().map_err(|_| StoreError::Stopped)
    }

    fn read<T>(
        &self,
        _: ReadLine,
        query: impl FnOnce(&Tables) -> T,
    ) -> Ready<Result<T, StoreError>> {
        ready(self.lock().map(|tables| query(&tables)))
    }

    /// A page of a session; an empty one if there is no such session.
    fn page_of<T: Default>(
        &self,
        session: SessionId,
        query: impl FnOnce(&Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let page = self.lock()?.of(session, query);
        page.unwrap_or_else(|| Ok(T::default()))
    }
}

#[derive(Debug, Default)]
struct Tables {
    sessions: BTreeMap<SessionId, Session>,
    names: BTreeMap<(Name, Name, UserId, String), SessionId>,
    shared: BTreeMap<SharedOwner, BTreeMap<StateKey, Shared>>,
    answers: BTreeMap<Digest, Answer>,
    session_of_request: BTreeMap<RequestId, SessionId>,
    session_of_task: BTreeMap<TaskId, SessionId>,
    session_of_hold: BTreeMap<HoldId, SessionId>,
    ended_requests: BTreeMap<RequestId, EndedRequest>,
    closed_tasks: BTreeMap<TaskId, ClosedTask>,
    closed_holds: BTreeMap<HoldId, ClosedHold>,
    /// The place of every hold that was ever opened.
    hold_places: BTreeMap<HoldId, u64>,
    /// When each hold was decided, in the order of decisions.
    decided_places: BTreeMap<u64, HoldId>,
    /// The result of every tool call that has one.
    call_results: BTreeMap<ItemId, CallResult>,
    holds_of: BTreeMap<RequestId, Vec<HoldId>>,
    children_of: BTreeMap<RequestId, Vec<RequestId>>,
    /// Requests that chat calls started, by digest and place, and where each session has them.
    chat_requests: BTreeMap<(Digest, u64), (SessionId, RequestId)>,
    chat_places: BTreeMap<(SessionId, u64), (Digest, u64)>,
    /// All commits in the order of arrival; place n is at n - 1.
    committed: Vec<(SessionId, u64)>,
    /// Deleted sessions whose payloads are to be removed.
    erasing: BTreeSet<SessionId>,
    tenants: tenant::Tenants,
    last_place: u64,
}

#[derive(Debug)]
struct Session {
    place: u64,
    name: Option<String>,
    labels: Option<String>,
    created_at: Timestamp,
    /// Where a fork comes from, and the last revision both share.
    origin: Option<(SessionId, u64)>,
    /// All records, including the records a fork shares with its origin: record n is at n - 1.
    log: Vec<Arc<Entry>>,
    /// Invariant: the fold of `log`.
    state: SessionState,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    /// None where one was erased.
    bodies: Vec<Option<Vec<u8>>>,
}

/// A shared key. It stays when its value is removed, so that a version never comes back.
#[derive(Debug, Clone)]
struct Shared {
    version: u64,
    value: Option<SharedValue>,
}

impl Tables {
    /// First everything that can be refused, then everything that is written.
    fn commit(&mut self, commit: Commit) -> Result<u64, StoreError> {
        let entry = Entry::of(&commit)?;
        let (mut log, mut state) = self.require_head(&commit)?;
        self.require_free_key(&commit)?;
        let name = self.require_free_name(&commit)?;
        let shared = self.shared_after(&commit)?;
        if let (Some(name), Some(owner)) = (&commit.new_user, &commit.after.owner) {
            self.tenants.keep_user(owner, name)?;
        }

        apply(&mut state, &entry.record);
        let (session, at, revision) = (commit.session(), entry.record.content.at, state.revision);
        self.index(&commit);
        log.push(Arc::new(entry));
        let place = self.next_place();
        let kept = self.sessions.entry(session).or_insert_with(|| Session {
            place,
            name: None,
            labels: None,
            created_at: at,
            origin: commit.writes.fork.map(ForkWrite::point),
            log: Vec::new(),
            state: SessionState::new(session),
        });
        (kept.log, kept.state) = (log, state);
        if let Some(labels) = commit.writes.labels {
            kept.labels = labels.value();
        }
        if let Some(name) = commit.writes.name {
            kept.name = name.value();
            self.names.retain(|_, named| *named != session);
        }
        self.names.extend(name.map(|name| (name, session)));
        self.committed.push((session, revision));
        let erased = commit.writes.erased;
        for (owner, key, written) in shared {
            self.shared.entry(owner).or_default().insert(key, written);
        }
        self.answers
            .extend(commit.answer.map(|answer| (answer.key, answer)));
        if let Some(payloads) = erased {
            self.begin_erasure(session, payloads);
        }
        Ok(revision)
    }

    /// The log and the state that the commit builds on.
    fn require_head(&self, commit: &Commit) -> Result<(Vec<Arc<Entry>>, SessionState), StoreError> {
        let (session, expected) = (commit.session(), commit.expected());
        let conflict = |session, found| StoreError::Conflict {
            session,
            expected,
            found,
        };
        let kept = self.sessions.get(&session);
        let prev_hash = commit.record.content.prev_hash;
        match (kept, commit.writes.fork) {
            (Some(kept), None)
                if kept.state.revision == expected && kept.state.head == prev_hash =>
            {
                Ok((kept.log.clone(), kept.state.clone()))
            }
            (Some(kept), _) => Err(conflict(session, kept.state.revision)),
            (
                None,
                Some(ForkWrite {
                    origin,
                    at,
                    through,
                }),
            ) => {
                let origin_found = |found| conflict(origin, found);
                let living = |kept: &&Session| !kept.state.deleted;
                let shared = self.sessions.get(&origin).filter(living);
                let shared = shared.ok_or(origin_found(0))?;
                let state = shared.state_at(at);
                let state = state.filter(|state| at == expected && state.head == prev_hash);
                let state = state.ok_or(origin_found(shared.state.revision))?;
                self.require_shallow(shared)?;
                let mut log = shared.log_until(at).to_vec();
                if let Some(through) = through {
                    let asked = self.sessions.get(&through).filter(living);
                    let asked = asked.ok_or(conflict(through, 0))?;
                    let own = asked.log_until(at);
                    if own.last().map(|last| last.record.hash) != Some(prev_hash) {
                        return Err(conflict(through, asked.state.revision));
                    }
                    for (entry, asked) in log.iter_mut().zip(own) {
                        *entry = Arc::new(entry.shown_by(asked));
                    }
                }
                Ok((log, state))
            }
            (None, None) if expected == 0 && prev_hash == Digest::ZERO => {
                Ok((Vec::new(), SessionState::new(session)))
            }
            (None, None) => Err(conflict(session, 0)),
        }
    }

    /// Refuses a fork of a session that is too many forks away from its first origin.
    fn require_shallow(&self, origin: &Session) -> Result<(), StoreError> {
        let origin_of = |session: &&Session| {
            let (origin, _) = session.origin?;
            self.sessions.get(&origin)
        };
        let levels = std::iter::successors(Some(origin), origin_of).count();
        if levels > FORK_LEVELS_MAX {
            return Err(StoreError::ForkTooDeep);
        }
        Ok(())
    }

    fn require_free_key(&self, commit: &Commit) -> Result<(), StoreError> {
        let taken = commit
            .answer
            .as_ref()
            .and_then(|answer| self.answers.get(&answer.key));
        match taken {
            Some(first) => Err(StoreError::KeyTaken {
                session: first.session,
                revision: first.revision,
            }),
            None => Ok(()),
        }
    }

    /// The name to enter, if the commit gives one.
    fn require_free_name(
        &self,
        commit: &Commit,
    ) -> Result<Option<(Name, Name, UserId, String)>, StoreError> {
        let (Some(Change::Set(name)), Some(owner)) = (&commit.writes.name, &commit.after.owner)
        else {
            return Ok(None);
        };
        let name = (
            owner.tenant.clone(),
            owner.app.clone(),
            owner.user,
            name.clone(),
        );
        match self.names.get(&name) {
            Some(&session) if session != commit.session() => Err(StoreError::NameTaken { session }),
            _ => Ok(Some(name)),
        }
    }

    /// The shared keys as they are after the commit.
    fn shared_after(
        &self,
        commit: &Commit,
    ) -> Result<Vec<(SharedOwner, StateKey, Shared)>, StoreError> {
        let Some(owner) = &commit.after.owner else {
            return Ok(Vec::new());
        };
        let mut changed = Vec::new();
        for write in &commit.writes.shared {
            let owner = SharedOwner::of(owner, write.key.scope());
            let there = self
                .shared
                .get(&owner)
                .and_then(|keys| keys.get(&write.key));
            if let Some(shared) = shared_after(there, write, commit)? {
                changed.push((owner, write.key.clone(), shared));
            }
        }
        Ok(changed)
    }

    /// Enters everything that is found by its own id.
    fn index(&mut self, commit: &Commit) {
        let session = commit.session();
        for event in &commit.record.content.events {
            match event {
                Event::RequestStarted {
                    request, parent, ..
                } => {
                    self.session_of_request.insert(*request, session);
                    if let Some(parent) = parent {
                        self.children_of.entry(*parent).or_default().push(*request);
                    }
                }
                Event::TaskOpened { task, .. } | Event::TaskRenamed { to: task, .. } => {
                    self.session_of_task.insert(*task, session);
                }
                Event::HoldOpened { hold, request, .. } => {
                    self.session_of_hold.insert(*hold, session);
                    self.holds_of.entry(*request).or_default().push(*hold);
                    let place = self.next_place();
                    self.hold_places.insert(*hold, place);
                }
                _ => {}
            }
        }
        if let Some((number, request, digest)) = chat_request_in(&commit.record) {
            let key = (digest, self.next_place());
            self.chat_requests.insert(key, (session, request));
            let slot = (session, number % CHAT_REQUESTS_MAX);
            if let Some(replaced) = self.chat_places.insert(slot, key) {
                self.chat_requests.remove(&replaced);
            }
        }
        self.call_results.extend(results_in(&commit.record));
        // A fork ends copies: the ids still stand for the requests and holds of the origin.
        if commit.writes.fork.is_none() {
            let changes = &commit.changes;
            let ended = changes.ended_requests.iter().cloned();
            self.ended_requests
                .extend(ended.map(|ended| (ended.id, ended)));
            for closed in &changes.closed_holds {
                let place = self.next_place();
                self.decided_places.insert(place, closed.hold.id);
            }
            let closed = changes.closed_holds.iter().cloned();
            self.closed_holds
                .extend(closed.map(|closed| (closed.hold.id, closed)));
            let closed = changes.closed_tasks.iter().cloned();
            self.closed_tasks
                .extend(closed.map(|closed| (closed.task.id, closed)));
        }
    }

    fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }
}

/// A shared key after `write`, which finds `there`. None leaves it unchanged.
fn shared_after(
    there: Option<&Shared>,
    write: &SharedWrite,
    commit: &Commit,
) -> Result<Option<Shared>, StoreError> {
    let old = there.and_then(|shared| shared.value.as_ref());
    let packed = write.packed_at(old.map_or(0, |value| value.version))?;
    let version = there.map_or(0, |shared| shared.version) + 1;
    let content = &commit.record.content;
    let value = match packed {
        None if old.is_none() => return Ok(None),
        None => None,
        Some(packed) => Some(SharedValue {
            value: codec::unpack(packed).map_err(|error| commit_damaged(commit, error))?,
            version,
            session: content.session,
            revision: content.seq,
            by: content.principal,
            at: content.at,
            request: write.request,
        }),
    };
    Ok(Some(Shared { version, value }))
}

fn commit_damaged(commit: &Commit, source: impl Into<BoxError>) -> StoreError {
    StoreError::Corrupt {
        session: Some(commit.session()),
        place: format!("the commit of session {}", commit.session()),
        source: source.into(),
    }
}

impl Entry {
    /// The record and its payloads, read back from the bytes that a store is given.
    fn of(commit: &Commit) -> Result<Self, StoreError> {
        let damaged = |source: BoxError| commit_damaged(commit, source);
        let bytes = codec::unpack(&commit.packed_record).map_err(|error| damaged(error.into()))?;
        let record = Record::from_bytes(&bytes).map_err(|error| damaged(error.into()))?;
        let named = record.bodies();
        let stored = codec::unpack_bodies(&commit.packed_bodies, &named, &NoKeys)
            .map_err(|error| damaged(error.into()))?;
        let blob = |digest: Digest| commit.blobs.iter().find(|(named, _)| *named == digest);
        let bodies = stored
            .into_iter()
            .zip(&named)
            .map(|(body, named)| match body {
                StoredBody::Inline(bytes) => Ok(Some(bytes)),
                StoredBody::Blob => match blob(named.digest) {
                    Some((_, packed)) => codec::unpack(packed)
                        .map(Some)
                        .map_err(|error| damaged(error.into())),
                    None => Err(damaged("a blob is missing".into())),
                },
                StoredBody::Erased | StoredBody::Reference(_) | StoredBody::KeyGone => {
                    Err(damaged("a new payload is not there".into()))
                }
            });
        let bodies = bodies.collect::<Result<_, _>>()?;
        Ok(Self { record, bodies })
    }
}

impl_store! {
    for MemoryStore, reads with tables {
        fn load(session: SessionId) -> Option<SessionState> =
            Some(tables.sessions.get(&session)?.state.clone());
        fn load_at(session: SessionId, revision: u64) -> Option<SessionState> =
            tables.sessions.get(&session)?.state_at(revision);
        fn kept_revision(session: SessionId, revision: u64) -> u64 =
            tables.of(session, |kept| kept.kept_revision(revision)).unwrap_or(revision);
        fn last_rewind(session: SessionId) -> u64 =
            tables.of(session, Session::last_rewind).unwrap_or(0);
        fn records_at(places: Vec<(SessionId, u64)>, bytes_max: u64) -> Vec<Option<StoredRecord>> =
            tables.records_at(&places, bytes_max);

        fn memory(session: SessionId, query: MemoryQuery) -> MemoryPage =
            tables.of(session, |kept| kept.memory(&query)).unwrap_or_default();

        fn state_value(session: SessionId, key: StateKey) -> Option<StateValue> =
            tables.sessions.get(&session)?.state_value(&key);
        fn state_sizes(session: SessionId, keys: Vec<StateKey>, bytes_max: u64)
            -> Vec<Option<ValueSize>> = {
            // All values are in memory.
            let _ = bytes_max;
            let value = |key| tables.sessions.get(&session)?.state_value(key);
            keys.iter().map(|key| value(key).map(|value| value.size())).collect()
        };
        fn state_at(session: SessionId, key: StateKey, revision: u64) -> Option<Vec<u8>> =
            tables.sessions.get(&session)?.value_at(&key, revision);
        fn past_values(session: SessionId, places: Vec<(StateKey, u64)>, bytes_max: u64)
            -> Vec<Option<PastValue>> = {
            let values = |kept: &Session| kept.past_values(&places, bytes_max);
            tables.of(session, values).unwrap_or_else(|| vec![None; places.len()])
        };
        fn task_state(task: TaskId) -> Option<Vec<u8>> =
            tables.sessions.get(tables.session_of_task.get(&task)?)?.task_state(task);
        fn shared_value(owner: SharedOwner, key: StateKey) -> Option<SharedValue> =
            tables.shared.get(&owner)?.get(&key)?.value.clone();
        fn shared_sizes(owner: SharedOwner, keys: Vec<StateKey>, bytes_max: u64)
            -> Vec<Option<ValueSize>> = {
            // All values are in memory.
            let _ = bytes_max;
            let value = |key| tables.shared.get(&owner)?.get(key)?.value.clone();
            let size = |value| StateValue::from(value).size();
            keys.iter().map(|key| value(key).map(size)).collect()
        };

        fn ended_request(id: RequestId) -> Option<EndedRequest> =
            tables.ended_requests.get(&id).cloned();
        fn closed_task(id: TaskId) -> Option<ClosedTask> = tables.closed_tasks.get(&id).cloned();
        fn closed_hold(id: HoldId) -> Option<ClosedHold> = tables.closed_holds.get(&id).cloned();
        fn session_of_request(id: RequestId) -> Option<SessionId> =
            tables.session_of_request.get(&id).copied();
        fn session_of_task(id: TaskId) -> Option<SessionId> =
            tables.session_of_task.get(&id).copied();
        fn session_of_hold(id: HoldId) -> Option<SessionId> =
            tables.session_of_hold.get(&id).copied();

        fn answer(key: Digest) -> Option<Answer> = tables.answers.get(&key).cloned();
        fn answers_kept() -> u64 = tables.answers.len() as u64;

        fn session(session: SessionId) -> Option<SessionSummary> = tables.summary_of(session);
        fn sessions(query: SessionQuery) -> Vec<SessionSummary> = tables.list_sessions(&query);
        fn sessions_of_user(tenant: Name, user: UserId, is_listed: bool, after: u64, limit: usize)
            -> Vec<SessionSummary> =
            tables.sessions_of_user((&tenant, user), is_listed, after, limit);
        fn session_named(tenant: Name, app: Name, user: UserId, name: String)
            -> Option<SessionSummary> = {
            let named = tables.names.get(&(tenant, app, user, name));
            named.and_then(|session| tables.summary_of(*session))
        };
        fn children_of(request: RequestId) -> Vec<RequestId> =
            tables.children_of.get(&request).cloned().unwrap_or_default();
        fn chat_requests(digest: Digest, limit: usize) -> Vec<(SessionId, RequestId)> = {
            let found = tables.chat_requests.range((digest, 0)..=(digest, u64::MAX));
            found.rev().take(limit).map(|(_, at)| *at).collect()
        };
        fn committed(after: u64, limit: usize) -> Vec<Committed> =
            tables.commits_after(after).take(limit).collect();
        fn last_place() -> u64 = tables.committed.len() as u64;
        fn heads_after(after: u64, limit: usize) -> Vec<ChangedHead> =
            tables.commits_after(after).take(limit).filter_map(|at| tables.head_at(at)).collect();
        fn claimable(tenant: Name, agent: Name, user: Option<UserId>, after: Option<RequestId>, limit: usize)
            -> Vec<(SessionId, RequestId)> = tables.list_claimable(&tenant, &agent, user, after, limit);
        fn live_work(tenant: Name, agent: Name, after: Option<RequestId>, limit: usize)
            -> Vec<LiveWork> = tables.list_live(&tenant, &agent, after, limit);
        fn work_totals(tenant: Name, agents: usize) -> WorkTotals = tables.work_totals(&tenant, agents);
        fn due(now: Timestamp, after: Option<DuePlace>, limit: usize) -> DuePage =
            tables.due_page(now, after, limit);
        fn due_in(sessions: Vec<(SessionId, Timestamp)>) -> Vec<Due> = {
            let sessions: BTreeMap<SessionId, Timestamp> = sessions.into_iter().collect();
            tables.list_due(|session| sessions.get(&session).copied())
        };
        fn sessions_ahead(now: Timestamp, limit: usize) -> Vec<(SessionId, Timestamp)> =
            tables.list_ahead(now, limit);

        fn holds_of(request: RequestId) -> Vec<HoldId> =
            tables.holds_of.get(&request).cloned().unwrap_or_default();
        fn open_holds(query: HoldQuery) -> Vec<HoldSummary> = tables.list_open_holds(&query);
        fn decided_holds(query: HoldQuery) -> Vec<HoldSummary> = tables.list_decided_holds(&query);
        fn holds(ids: Vec<HoldId>) -> Vec<HoldSummary> = tables.holds_by_id(&ids);
        fn held_by(requests: Vec<RequestId>) -> Vec<HoldSummary> = tables.held_by(&requests);
        fn hold_changes(tenant: Name, after: u64, limit: usize) -> (Vec<HoldChange>, u64) =
            tables.list_hold_changes(&tenant, after, limit);
        fn lineages(requests: Vec<RequestId>) -> Vec<Vec<LineageStep>> =
            requests.iter().map(|id| tables.lineage(*id)).collect();
        fn open_holds_of_user(tenant: Name, user: UserId, limit: usize) -> usize =
            tables.count_open_holds(&tenant, user).min(limit);

        fn tenants() -> Vec<Name> = tables.tenant_names();
        fn user(tenant: Name, name: String) -> Option<UserId> = tables.tenants.user(tenant, name);
        fn user_name(user: UserId) -> Option<String> = tables.tenants.user_name(user);
        fn user_names(users: Vec<UserId>) -> Vec<Option<String>> =
            users.iter().map(|user| tables.tenants.user_name(*user)).collect();
        fn tenant_head(tenant: Name) -> TenantHead = tables.tenants.head(&tenant);
        fn tenant_records(tenant: Name, after: u64, limit: usize) -> Vec<TenantRecord> =
            tables.tenants.records(&tenant, after, limit);
        fn api_key(secret: Digest) -> Option<ApiKey> =
            tables.tenants.keys().find(|key| key.secret == secret).cloned();
        fn api_keys(tenant: Name, after: Option<KeyId>, limit: usize) -> Vec<ApiKey> =
            tables.tenants.keys_of(&tenant).filter(|key| Some(key.id) > after).take(limit).cloned().collect();
        fn api_key_of(tenant: Name, key: KeyId) -> Option<ApiKey> =
            tables.tenants.keys_of(&tenant).find(|one| one.id == key).cloned();
        fn api_key_count(tenant: Name) -> usize = tables.tenants.keys_of(&tenant).count();
        fn has_api_keys() -> bool =
            tables.tenants.keys().any(|key| key.revoked_at.is_none());
        fn resume_addresses() -> Vec<ResumeAddress> = tables.tenants.addresses();
    }

    fn damage(&self) -> &DamageLog {
        &self.damage
    }

    async fn begin_commit(&self, commit: Commit) -> Result<PendingCommit, StoreError> {
        let done = self.lock()?.commit(commit);
        Ok(Box::pin(ready(done)))
    }

    async fn records(
        &self,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        self.page_of(session, |kept| kept.records(after, limit))
    }

    async fn chain(
        &self,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<Record>, StoreError> {
        self.page_of(session, |kept| kept.chain(after, limit))
    }

    async fn items(
        &self,
        session: SessionId,
        query: ItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.page_of(session, |kept| kept.items(query))
    }

    async fn transcript(
        &self,
        session: SessionId,
        before: Option<u64>,
        limit: PageLimit,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.page_of(session, |kept| kept.transcript(before, limit))
    }

    async fn items_at(
        &self,
        session: SessionId,
        query: PastItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.page_of(session, |kept| kept.items_at(query))
    }

    async fn state(
        &self,
        session: SessionId,
        range: KeyRange,
        limit: PageLimit,
    ) -> Result<StatePage<StateValue>, StoreError> {
        self.page_of(session, |kept| {
            let values = history::values(&kept.log);
            listing::page_of_keys(values, &range, limit, |value| value.value.len())
        })
    }

    async fn past_state(
        &self,
        session: SessionId,
        query: PastStateQuery,
    ) -> Result<StatePage<StateValue>, StoreError> {
        self.page_of(session, |kept| {
            let values = kept.values_at(query.revision);
            let length = |value: &StateValue| value.value.len();
            let range = KeyRange::default().after(query.after.as_ref());
            listing::page_of_keys(values, &range, query.limit, length)
        })
    }

    async fn shared(
        &self,
        owner: SharedOwner,
        range: KeyRange,
        limit: PageLimit,
    ) -> Result<StatePage<SharedValue>, StoreError> {
        let values = self.lock()?.shared_of(&owner);
        listing::page_of_keys(values, &range, limit, |value| value.value.len())
    }

    async fn verify(
        &self,
        tenant: Name,
        expected: Option<TenantHead>,
        keys: Arc<dyn KnownKeys>,
    ) -> Result<CheckReport, StoreError> {
        let snapshot = verify::TenantSnapshot::take(&*self.lock()?, &tenant);
        // The check works on a copy and yields now and then, so commits continue meanwhile.
        Ok(snapshot.check(&tenant, expected, &*keys).await)
    }

    async fn erase_some(&self, _limit: PageLimit) -> Result<bool, StoreError> {
        self.lock()?.erase_all();
        Ok(false)
    }

    async fn intern_user(
        &self,
        tenant: Name,
        name: String,
        fresh: UserId,
    ) -> Result<UserId, StoreError> {
        Ok(self.lock()?.tenants.intern_user(tenant, name, fresh))
    }

    async fn commit_tenant(&self, commit: TenantCommit) -> Result<(), StoreError> {
        self.lock()?.tenants.commit(commit)
    }

    async fn forget_answers(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let answers = &mut self.lock()?.answers;
        let expired = answers.values().filter(|kept| kept.expires_at <= now);
        let keys: Vec<Digest> = expired.take(limit).map(|answer| answer.key).collect();
        for key in &keys {
            answers.remove(key);
        }
        Ok(keys.len())
    }
}
