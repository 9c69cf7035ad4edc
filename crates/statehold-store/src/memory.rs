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
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use statehold_core::apply::apply;
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, ItemId, RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::{Change, ErasedPayloads, Event, Record};
use statehold_core::root::SignedHead;
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::tenant::{TenantHead, TenantRecord};
use statehold_core::time::Timestamp;
use statehold_core::view::View;

use crate::check::CheckReport;
use crate::codec::{self, StoredBody};
use crate::commit::{Answer, Commit, SharedWrite, results_in};
use crate::keys::KnownKeys;
use crate::port::{
    ApiKey, BoxError, CallResult, ChangedHead, Committed, DueDeadlines, HoldChange, HoldQuery,
    HoldSummary, ItemQuery, LineageStep, LiveWork, MemoryPage, MemoryQuery, PendingCommit,
    ResumeAddress, SessionQuery, SessionSummary, SharedOwner, SharedValue, StateValue, Store,
    StoreError, StoredItem, StoredRecord, TenantCommit,
};

/// A store in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    /// A plain mutex: it is held while collections are read or written, never over an await.
    tables: Mutex<Tables>,
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
    /// All commits in the order of arrival; place n is at n - 1.
    committed: Vec<(SessionId, u64)>,
    /// Sessions whose payloads are to be removed.
    erasing: BTreeMap<SessionId, ErasedPayloads>,
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
            origin: commit.writes.fork,
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
            (None, Some((origin, at))) => {
                let origin_found = |found| conflict(origin, found);
                let living = |kept: &&Session| !kept.state.deleted;
                let shared = self.sessions.get(&origin).filter(living);
                let shared = shared.ok_or(origin_found(0))?;
                let state = shared.state_at(at);
                state
                    .filter(|state| at == expected && state.head == prev_hash)
                    .map(|state| (shared.log_until(at).to_vec(), state))
                    .ok_or(origin_found(shared.state.revision))
            }
            (None, None) if expected == 0 && prev_hash == Digest::ZERO => {
                Ok((Vec::new(), SessionState::new(session)))
            }
            (None, None) => Err(conflict(session, 0)),
        }
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
        let stored = codec::unpack_bodies(&commit.packed_bodies, &named)
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
                StoredBody::Erased => Err(damaged("a new payload is erased".into())),
            });
        let bodies = bodies.collect::<Result<_, _>>()?;
        Ok(Self { record, bodies })
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn begin_commit(&self, commit: Commit) -> Result<PendingCommit, StoreError> {
        let done = self.lock()?.commit(commit);
        Ok(Box::pin(std::future::ready(done)))
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionSummary>, StoreError> {
        Ok(self.lock()?.summary_of(session))
    }

    async fn holds_of(&self, request: RequestId) -> Result<Vec<HoldId>, StoreError> {
        let tables = self.lock()?;
        Ok(tables.holds_of.get(&request).cloned().unwrap_or_default())
    }

    async fn children_of(&self, request: RequestId) -> Result<Vec<RequestId>, StoreError> {
        let tables = self.lock()?;
        Ok(tables
            .children_of
            .get(&request)
            .cloned()
            .unwrap_or_default())
    }

    async fn committed(&self, after: u64, limit: usize) -> Result<Vec<Committed>, StoreError> {
        let tables = self.lock()?;
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        let later = tables.committed.iter().zip(1..).skip(skipped).take(limit);
        let commits = later.map(|(&(session, revision), place)| Committed {
            place,
            session,
            revision,
        });
        Ok(commits.collect())
    }

    async fn last_place(&self) -> Result<u64, StoreError> {
        Ok(self.lock()?.committed.len() as u64)
    }

    async fn heads_after(&self, after: u64, limit: usize) -> Result<Vec<ChangedHead>, StoreError> {
        let tables = self.lock()?;
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        let later = tables.committed.iter().zip(1..).skip(skipped).take(limit);
        let heads = later.filter_map(|((session, _), place)| {
            let state = &tables.sessions.get(session)?.state;
            Some(ChangedHead {
                place,
                tenant: state.owner.as_ref()?.tenant.clone(),
                head: SignedHead {
                    hash: state.head,
                    revision: state.revision,
                    session: *session,
                },
            })
        });
        Ok(heads.collect())
    }

    async fn tenants(&self) -> Result<Vec<Name>, StoreError> {
        let tables = self.lock()?;
        let owners = tables.sessions.values();
        let owners = owners.filter_map(|session| session.state.owner.as_ref());
        let names: BTreeSet<&Name> = owners
            .map(|owner| &owner.tenant)
            .chain(tables.tenants.names())
            .collect();
        Ok(names.into_iter().cloned().collect())
    }

    async fn verify(
        &self,
        tenant: Name,
        expected: Option<TenantHead>,
        keys: Arc<dyn KnownKeys>,
    ) -> Result<CheckReport, StoreError> {
        let snapshot = verify::Snapshot::take(&*self.lock()?, &tenant);
        // The check works on a copy and yields now and then, so commits continue meanwhile.
        Ok(snapshot.check(&tenant, expected, &*keys).await)
    }

    async fn erase_some(&self, _limit: usize) -> Result<bool, StoreError> {
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

    async fn user(&self, tenant: Name, name: String) -> Result<Option<UserId>, StoreError> {
        Ok(self.lock()?.tenants.user(tenant, name))
    }

    async fn user_name(&self, user: UserId) -> Result<Option<String>, StoreError> {
        Ok(self.lock()?.tenants.user_name(user))
    }

    async fn user_names(&self, users: Vec<UserId>) -> Result<Vec<Option<String>>, StoreError> {
        let tables = self.lock()?;
        let name = |user: &UserId| tables.tenants.user_name(*user);
        Ok(users.iter().map(name).collect())
    }

    async fn commit_tenant(&self, commit: TenantCommit) -> Result<(), StoreError> {
        self.lock()?.tenants.commit(commit)
    }

    async fn tenant_head(&self, tenant: Name) -> Result<TenantHead, StoreError> {
        Ok(self.lock()?.tenants.head(&tenant))
    }

    async fn tenant_records(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<TenantRecord>, StoreError> {
        Ok(self.lock()?.tenants.records(&tenant, after, limit))
    }

    async fn api_key(&self, secret: Digest) -> Result<Option<ApiKey>, StoreError> {
        Ok(self
            .lock()?
            .tenants
            .keys()
            .find(|key| key.secret == secret)
            .cloned())
    }

    async fn api_keys(&self, tenant: Name) -> Result<Vec<ApiKey>, StoreError> {
        let tables = self.lock()?;
        let keys = tables.tenants.keys().filter(|key| key.tenant == tenant);
        Ok(keys.cloned().collect())
    }

    async fn resume_addresses(&self) -> Result<Vec<ResumeAddress>, StoreError> {
        Ok(self.lock()?.tenants.addresses())
    }

    async fn live_work(
        &self,
        tenant: Name,
        agent: Name,
        after: Option<RequestId>,
        limit: usize,
    ) -> Result<Vec<LiveWork>, StoreError> {
        Ok(self.lock()?.list_live(&tenant, &agent, after, limit))
    }

    async fn has_api_keys(&self) -> Result<bool, StoreError> {
        let tables = self.lock()?;
        Ok(tables.tenants.keys().any(|key| key.revoked_at.is_none()))
    }

    async fn decided_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError> {
        Ok(self.lock()?.list_decided_holds(&query))
    }

    async fn load(&self, session: SessionId) -> Result<Option<SessionState>, StoreError> {
        let tables = self.lock()?;
        Ok(tables.sessions.get(&session).map(|kept| kept.state.clone()))
    }

    async fn load_at(
        &self,
        session: SessionId,
        revision: u64,
    ) -> Result<Option<SessionState>, StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        Ok(kept.and_then(|kept| kept.state_at(revision)))
    }

    async fn records(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        Ok(kept.map_or_else(Vec::new, |kept| kept.records(after, limit)))
    }

    async fn items(
        &self,
        session: SessionId,
        query: ItemQuery,
    ) -> Result<Vec<StoredItem>, StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        Ok(kept.map_or_else(Vec::new, |kept| kept.items(query)))
    }

    async fn transcript(
        &self,
        session: SessionId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        let query = ItemQuery {
            task: None,
            before,
            limit: usize::MAX,
        };
        let mut items = kept.map_or_else(Vec::new, |kept| kept.items(query));
        items.retain(|stored| View::Client.shows(&stored.placed));
        let next = items.get(limit).map(|_| items[limit - 1].placed.item.seq);
        items.truncate(limit);
        Ok((items, next))
    }

    async fn state(
        &self,
        session: SessionId,
    ) -> Result<BTreeMap<StateKey, StateValue>, StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        Ok(kept.map_or_else(BTreeMap::new, |kept| history::values(&kept.log)))
    }

    async fn state_value(
        &self,
        session: SessionId,
        key: StateKey,
    ) -> Result<Option<StateValue>, StoreError> {
        let tables = self.lock()?;
        let Some(kept) = tables.sessions.get(&session) else {
            return Ok(None);
        };
        let version = kept.state.keys.get(&key).copied();
        let value = history::newest_value(&kept.log, &key);
        Ok(value
            .zip(version)
            .map(|(value, version)| StateValue { value, version }))
    }

    async fn state_at(
        &self,
        session: SessionId,
        key: StateKey,
        revision: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        let kept = kept.filter(|kept| revision <= kept.state.revision);
        Ok(kept.and_then(|kept| history::value(kept.log_until(revision), &key)))
    }

    async fn kept_revision(&self, session: SessionId, revision: u64) -> Result<u64, StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        Ok(kept.map_or(revision, |kept| kept.kept_revision(revision)))
    }

    async fn memory(
        &self,
        session: SessionId,
        query: MemoryQuery,
    ) -> Result<MemoryPage, StoreError> {
        let tables = self.lock()?;
        let kept = tables.sessions.get(&session);
        Ok(kept.map_or_else(MemoryPage::default, |kept| kept.memory(&query)))
    }

    async fn task_state(&self, task: TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        let tables = self.lock()?;
        let session = tables.session_of_task.get(&task);
        let kept = session.and_then(|session| tables.sessions.get(session));
        Ok(kept.and_then(|kept| kept.task_state(task)))
    }

    async fn shared(
        &self,
        owner: SharedOwner,
    ) -> Result<BTreeMap<StateKey, SharedValue>, StoreError> {
        let tables = self.lock()?;
        let keys = tables.shared.get(&owner).into_iter().flatten();
        let values = keys.filter_map(|(key, shared)| Some((key.clone(), shared.value.clone()?)));
        Ok(values.collect())
    }

    async fn shared_value(
        &self,
        owner: SharedOwner,
        key: StateKey,
    ) -> Result<Option<SharedValue>, StoreError> {
        let tables = self.lock()?;
        let shared = tables.shared.get(&owner).and_then(|keys| keys.get(&key));
        Ok(shared.and_then(|shared| shared.value.clone()))
    }

    async fn ended_request(&self, id: RequestId) -> Result<Option<EndedRequest>, StoreError> {
        Ok(self.lock()?.ended_requests.get(&id).cloned())
    }

    async fn closed_task(&self, id: TaskId) -> Result<Option<ClosedTask>, StoreError> {
        Ok(self.lock()?.closed_tasks.get(&id).cloned())
    }

    async fn closed_hold(&self, id: HoldId) -> Result<Option<ClosedHold>, StoreError> {
        Ok(self.lock()?.closed_holds.get(&id).cloned())
    }

    async fn session_of_request(&self, id: RequestId) -> Result<Option<SessionId>, StoreError> {
        Ok(self.lock()?.session_of_request.get(&id).copied())
    }

    async fn session_of_task(&self, id: TaskId) -> Result<Option<SessionId>, StoreError> {
        Ok(self.lock()?.session_of_task.get(&id).copied())
    }

    async fn session_of_hold(&self, id: HoldId) -> Result<Option<SessionId>, StoreError> {
        Ok(self.lock()?.session_of_hold.get(&id).copied())
    }

    async fn answer(&self, key: Digest) -> Result<Option<Answer>, StoreError> {
        Ok(self.lock()?.answers.get(&key).cloned())
    }

    async fn answers_kept(&self) -> Result<u64, StoreError> {
        Ok(self.lock()?.answers.len() as u64)
    }

    async fn forget_answers(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut tables = self.lock()?;
        let expired = tables
            .answers
            .values()
            .filter(|kept| kept.expires_at <= now);
        let keys: Vec<Digest> = expired.take(limit).map(|answer| answer.key).collect();
        for key in &keys {
            tables.answers.remove(key);
        }
        Ok(keys.len())
    }

    async fn sessions(&self, query: SessionQuery) -> Result<Vec<SessionSummary>, StoreError> {
        Ok(self.lock()?.list_sessions(&query))
    }

    async fn open_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError> {
        Ok(self.lock()?.list_open_holds(&query))
    }

    async fn holds(&self, ids: Vec<HoldId>) -> Result<Vec<HoldSummary>, StoreError> {
        Ok(self.lock()?.holds_by_id(&ids))
    }

    async fn held_by(&self, requests: Vec<RequestId>) -> Result<Vec<HoldSummary>, StoreError> {
        let tables = self.lock()?;
        let ids = requests.iter().filter_map(|id| tables.holds_of.get(id));
        let ids: Vec<HoldId> = ids.flatten().copied().collect();
        Ok(tables.holds_by_id(&ids))
    }

    async fn hold_changes(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<HoldChange>, u64), StoreError> {
        Ok(self.lock()?.list_hold_changes(&tenant, after, limit))
    }

    async fn lineages(
        &self,
        requests: Vec<RequestId>,
    ) -> Result<Vec<Vec<LineageStep>>, StoreError> {
        let tables = self.lock()?;
        Ok(requests.iter().map(|id| tables.lineage(*id)).collect())
    }

    async fn records_at(
        &self,
        places: Vec<(SessionId, u64)>,
    ) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        let tables = self.lock()?;
        let record = |(session, revision): &(SessionId, u64)| {
            let kept = tables.sessions.get(session)?;
            kept.records(revision.checked_sub(1)?, 1).into_iter().next()
        };
        Ok(places.iter().map(record).collect())
    }

    async fn open_holds_of_user(
        &self,
        tenant: Name,
        user: UserId,
        limit: usize,
    ) -> Result<usize, StoreError> {
        Ok(self.lock()?.count_open_holds(&tenant, user).min(limit))
    }

    async fn claimable(
        &self,
        tenant: Name,
        agent: Name,
        user: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(SessionId, RequestId)>, StoreError> {
        Ok(self.lock()?.list_claimable(&tenant, &agent, user, limit))
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<DueDeadlines, StoreError> {
        Ok(self.lock()?.list_due(|_| Some(now)).share(limit))
    }

    async fn due_in(
        &self,
        sessions: Vec<(SessionId, Timestamp)>,
    ) -> Result<DueDeadlines, StoreError> {
        let sessions: BTreeMap<SessionId, Timestamp> = sessions.into_iter().collect();
        Ok(self
            .lock()?
            .list_due(|session| sessions.get(&session).copied()))
    }

    async fn sessions_ahead(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(SessionId, Timestamp)>, StoreError> {
        Ok(self.lock()?.list_ahead(now, limit))
    }
}
