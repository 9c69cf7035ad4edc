//! A store whose commits wait at a gate, so that a test can look at the moment in between.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, KeyId, RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::Record;
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::tenant::{TenantHead, TenantRecord};
use statehold_core::time::Timestamp;
use statehold_store::keys::KnownKeys;
use statehold_store::memory::MemoryStore;
use statehold_store::{
    Answer, ApiKey, ChangedHead, CheckReport, Commit, Committed, DamageLog, Due, DuePage, DuePlace,
    HoldChange, HoldQuery, HoldSummary, ItemQuery, KeyRange, LineageStep, LiveWork, MemoryPage,
    MemoryQuery, PageLimit, PastItemQuery, PastStateQuery, PastValue, PendingCommit, ResumeAddress,
    SessionQuery, SessionSummary, SharedOwner, SharedValue, StatePage, StateValue, Store,
    StoreError, StoreMeasures, StoredItem, StoredRecord, TenantCommit, ValueSize, WorkTotals,
};
use tokio::sync::{Mutex, watch};

/// A store behind a gate: a commit is written only when the gate is open, in the order in which commits
/// were put in line.
pub(crate) struct GatedStore {
    inner: Arc<dyn Store>,
    gate: watch::Sender<bool>,
    /// How many commits are in line.
    waiting: watch::Sender<usize>,
    bug: Option<StoreBug>,
    /// The answers that [`StoreBug::KeepsAnswersInMemory`] keeps.
    in_memory: Arc<std::sync::Mutex<HashMap<Digest, Answer>>>,
    line: Arc<Mutex<()>>,
    /// Which commit from now fails: 1 is the next, 0 is none.
    fails_at: Arc<AtomicUsize>,
    has_room: AtomicBool,
    begun: AtomicUsize,
    questions: AtomicUsize,
    /// How often the log of a session was folded up to a revision.
    folds: AtomicUsize,
    /// Whether shared values may be read.
    reads: watch::Sender<bool>,
    /// Whether payloads may be erased.
    erases: watch::Sender<bool>,
    /// How often payloads were to be erased.
    erasures: watch::Sender<usize>,
    /// How many readers of one shared value there were.
    readers: AtomicUsize,
    /// The sessions whose data is damaged.
    damaged: std::sync::Mutex<BTreeSet<SessionId>>,
    /// The sessions whose commits meet damaged data.
    unwritable: Arc<std::sync::Mutex<BTreeSet<SessionId>>>,
    /// How many of the next reads of one value tell a version that is not there.
    stale_reads: AtomicUsize,
    /// How many bytes of single values were read.
    value_bytes: AtomicUsize,
    /// How many sessions lists have read.
    sessions_read: AtomicUsize,
}

/// A bug in how a store keeps answers, so that a test can show that it would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreBug {
    /// Answers are not kept.
    LosesAnswers,
    /// Answers are kept beside the transaction of their commit, and lost in a crash.
    KeepsAnswersInMemory,
    /// Another answer comes back than was kept.
    GarblesAnswers,
    /// Answers are kept for ever.
    KeepsAnswersForEver,
}

/// Damage that was met.
fn flipped() -> StoreError {
    StoreError::Corrupt {
        session: None,
        place: "a row".to_owned(),
        source: "bits have flipped".into(),
    }
}

/// Far from every version that a test comes to.
const STALE: u64 = 1_000_000;

impl GatedStore {
    pub(crate) fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new()), None)
    }

    /// A gate before a store, which may have a bug.
    pub(crate) fn over(inner: Arc<dyn Store>, bug: Option<StoreBug>) -> Self {
        Self {
            inner,
            gate: watch::Sender::new(true),
            waiting: watch::Sender::new(0),
            bug,
            in_memory: Arc::default(),
            line: Arc::default(),
            fails_at: Arc::default(),
            has_room: AtomicBool::new(true),
            begun: AtomicUsize::new(0),
            questions: AtomicUsize::new(0),
            folds: AtomicUsize::new(0),
            reads: watch::Sender::new(true),
            erases: watch::Sender::new(true),
            erasures: watch::Sender::new(0),
            readers: AtomicUsize::new(0),
            damaged: std::sync::Mutex::default(),
            unwritable: Arc::default(),
            stale_reads: AtomicUsize::new(0),
            value_bytes: AtomicUsize::new(0),
            sessions_read: AtomicUsize::new(0),
        }
    }

    fn note_read(&self, bytes: Option<usize>) {
        let bytes = bytes.unwrap_or(0);
        self.value_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// How many sessions lists have read since this was asked last.
    pub(crate) fn take_sessions_read(&self) -> usize {
        self.sessions_read.swap(0, Ordering::SeqCst)
    }

    /// How many bytes of single values were read.
    pub(crate) fn value_bytes_read(&self) -> usize {
        self.value_bytes.load(Ordering::SeqCst)
    }

    /// Lets commits through, or holds them back.
    pub(crate) fn set_open(&self, open: bool) {
        self.gate.send_replace(open);
    }

    /// Damages the data of a session, or repairs it.
    pub(crate) fn set_damaged(&self, session: SessionId, is_damaged: bool) {
        let damaged = self.damaged.lock();
        let mut damaged = damaged.unwrap_or_else(PoisonError::into_inner);
        if is_damaged {
            damaged.insert(session);
        } else {
            damaged.remove(&session);
        }
    }

    /// Damages data of a session that only its commits need, or repairs it.
    pub(crate) fn set_unwritable(&self, session: SessionId, is_damaged: bool) {
        let unwritable = self.unwritable.lock();
        let mut unwritable = unwritable.unwrap_or_else(PoisonError::into_inner);
        if is_damaged {
            unwritable.insert(session);
        } else {
            unwritable.remove(&session);
        }
    }

    /// Waits until so many commits are in line.
    pub(crate) async fn in_line(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        drop(waiting.wait_for(|waiting| *waiting == count).await);
    }

    /// Lets erasing through, or holds it back.
    pub(crate) fn set_erases_open(&self, open: bool) {
        self.erases.send_replace(open);
    }

    /// Waits until payloads were to be erased so often.
    pub(crate) async fn erased(&self, count: usize) {
        let mut erasures = self.erasures.subscribe();
        drop(erasures.wait_for(|erasures| *erasures >= count).await);
    }

    /// Lets readers of one shared value through, or holds them back.
    pub(crate) fn set_reads_open(&self, open: bool) {
        self.reads.send_replace(open);
    }

    /// How many readers of one shared value there were since the last time.
    pub(crate) fn take_readers(&self) -> usize {
        self.readers.swap(0, Ordering::SeqCst)
    }

    /// Makes the next reads of one value tell a version that is not there, as if another writer were
    /// faster each time.
    pub(crate) fn set_stale_reads(&self, count: usize) {
        self.stale_reads.store(count, Ordering::SeqCst);
    }

    fn is_next_read_stale(&self) -> bool {
        let order = Ordering::SeqCst;
        let taken = self
            .stale_reads
            .fetch_update(order, order, |left| left.checked_sub(1));
        taken.is_ok()
    }

    /// How often the store was asked for anything since the last time.
    pub(crate) fn take_questions(&self) -> usize {
        self.questions.swap(0, Ordering::SeqCst)
    }

    /// How often the log of a session was folded up to a revision since the last call.
    pub(crate) fn take_folds(&self) -> usize {
        self.folds.swap(0, Ordering::SeqCst)
    }

    fn asked(&self) -> &dyn Store {
        self.questions.fetch_add(1, Ordering::SeqCst);
        &*self.inner
    }

    /// Waits until no commit is in line.
    pub(crate) async fn drained(&self) {
        let mut waiting = self.waiting.subscribe();
        drop(waiting.wait_for(|waiting| *waiting == 0).await);
    }

    /// How many commits were put in line since the last time.
    pub(crate) fn take_begun(&self) -> usize {
        self.begun.swap(0, Ordering::SeqCst)
    }

    /// Makes the next commit that is written fail for want of room.
    pub(crate) fn fail_next(&self) {
        self.fail_at(1);
    }

    /// Whether a small write fits.
    pub(crate) fn set_room(&self, has_room: bool) {
        self.has_room.store(has_room, Ordering::SeqCst);
    }

    /// Makes the n-th commit from now fail for want of room.
    pub(crate) fn fail_at(&self, nth: usize) {
        self.fails_at.store(nth, Ordering::SeqCst);
    }
}

/// Writes a commit, with the bug that the store has.
async fn write(
    inner: &dyn Store,
    mut commit: Commit,
    bug: Option<StoreBug>,
    in_memory: &std::sync::Mutex<HashMap<Digest, Answer>>,
) -> Result<u64, StoreError> {
    let mut beside = None;
    match (bug, &mut commit.answer) {
        (Some(StoreBug::LosesAnswers), answer) => *answer = None,
        (Some(StoreBug::KeepsAnswersInMemory), answer) => beside = answer.take(),
        (Some(StoreBug::KeepsAnswersForEver), Some(answer)) => {
            answer.expires_at = Timestamp::from_micros(i64::MAX);
        }
        (Some(StoreBug::GarblesAnswers | StoreBug::KeepsAnswersForEver) | None, _) => {}
    }
    let revision = inner.commit(commit).await?;
    if let Some(answer) = beside {
        let kept = in_memory.lock();
        let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
        kept.insert(answer.key, answer);
    }
    Ok(revision)
}

#[async_trait]
impl Store for GatedStore {
    async fn work_totals(&self, tenant: Name, agents: usize) -> Result<WorkTotals, StoreError> {
        self.inner.work_totals(tenant, agents).await
    }

    fn check_room(&self) -> Result<(), StoreError> {
        if self.has_room.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(StoreError::Full)
    }

    fn measures(&self) -> StoreMeasures {
        self.inner.measures()
    }

    async fn copy(&self) -> Result<std::fs::File, StoreError> {
        self.inner.copy().await
    }

    fn damage(&self) -> &DamageLog {
        self.inner.damage()
    }

    async fn begin_commit(&self, commit: Commit) -> Result<PendingCommit, StoreError> {
        let (inner, line) = (Arc::clone(&self.inner), Arc::clone(&self.line));
        let (mut gate, fails_at) = (self.gate.subscribe(), Arc::clone(&self.fails_at));
        self.begun.fetch_add(1, Ordering::SeqCst);
        let (bug, in_memory) = (self.bug, Arc::clone(&self.in_memory));
        let (waiting, unwritable) = (self.waiting.clone(), Arc::clone(&self.unwritable));
        waiting.send_modify(|waiting| *waiting += 1);
        // The place in line is taken now, whenever the caller waits for it.
        let turn = line.lock_owned();
        let written = tokio::spawn(async move {
            let _turn = turn.await;
            drop(gate.wait_for(|open| *open).await);
            let order = Ordering::SeqCst;
            let is_full = fails_at.fetch_update(order, order, |nth| nth.checked_sub(1)) == Ok(1);
            let session = commit.session();
            let is_damaged = {
                let unwritable = unwritable.lock();
                unwritable.is_ok_and(|unwritable| unwritable.contains(&session))
            };
            let written = if is_full {
                Err(StoreError::Full)
            } else if is_damaged {
                Err(flipped().in_session(session))
            } else {
                write(&*inner, commit, bug, &in_memory).await
            };
            waiting.send_modify(|waiting| *waiting -= 1);
            written
        });
        // The task has begun to stand in line before anything else of this thread goes on.
        tokio::task::yield_now().await;
        Ok(Box::pin(async move {
            written.await.unwrap_or(Err(StoreError::Stopped))
        }))
    }

    async fn heads_after(&self, after: u64, limit: usize) -> Result<Vec<ChangedHead>, StoreError> {
        self.inner.heads_after(after, limit).await
    }

    async fn tenants(&self) -> Result<Vec<Name>, StoreError> {
        self.inner.tenants().await
    }

    async fn verify(
        &self,
        tenant: Name,
        expected: Option<TenantHead>,
        keys: Arc<dyn KnownKeys>,
    ) -> Result<CheckReport, StoreError> {
        self.inner.verify(tenant, expected, keys).await
    }

    async fn load(&self, session: SessionId) -> Result<Option<SessionState>, StoreError> {
        let damaged = self.damaged.lock();
        if damaged.is_ok_and(|damaged| damaged.contains(&session)) {
            return Err(flipped());
        }
        self.asked().load(session).await
    }

    async fn load_at(
        &self,
        session: SessionId,
        revision: u64,
    ) -> Result<Option<SessionState>, StoreError> {
        self.folds.fetch_add(1, Ordering::SeqCst);
        self.asked().load_at(session, revision).await
    }

    async fn records(
        &self,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        self.asked().records(session, after, limit).await
    }

    async fn chain(
        &self,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<Record>, StoreError> {
        self.asked().chain(session, after, limit).await
    }

    async fn items(
        &self,
        session: SessionId,
        query: ItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.asked().items(session, query).await
    }

    async fn transcript(
        &self,
        session: SessionId,
        before: Option<u64>,
        limit: PageLimit,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.asked().transcript(session, before, limit).await
    }

    async fn items_at(
        &self,
        session: SessionId,
        query: PastItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.asked().items_at(session, query).await
    }

    async fn state_value(
        &self,
        session: SessionId,
        key: StateKey,
    ) -> Result<Option<StateValue>, StoreError> {
        let mut found = self.asked().state_value(session, key).await?;
        self.note_read(found.as_ref().map(|there| there.value.len()));
        if self.is_next_read_stale()
            && let Some(there) = &mut found
        {
            there.version += STALE;
        }
        Ok(found)
    }

    async fn state_sizes(
        &self,
        session: SessionId,
        keys: Vec<StateKey>,
        bytes_max: u64,
    ) -> Result<Vec<Option<ValueSize>>, StoreError> {
        let store = self.asked();
        store.state_sizes(session, keys, bytes_max).await
    }

    async fn shared_sizes(
        &self,
        owner: SharedOwner,
        keys: Vec<StateKey>,
        bytes_max: u64,
    ) -> Result<Vec<Option<ValueSize>>, StoreError> {
        let store = self.asked();
        store.shared_sizes(owner, keys, bytes_max).await
    }

    async fn shared_value(
        &self,
        owner: SharedOwner,
        key: StateKey,
    ) -> Result<Option<SharedValue>, StoreError> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        drop(self.reads.subscribe().wait_for(|open| *open).await);
        let mut found = self.asked().shared_value(owner, key).await?;
        self.note_read(found.as_ref().map(|there| there.value.len()));
        if self.is_next_read_stale()
            && let Some(there) = &mut found
        {
            there.version += STALE;
        }
        Ok(found)
    }

    async fn state(
        &self,
        session: SessionId,
        range: KeyRange,
        limit: PageLimit,
    ) -> Result<StatePage<StateValue>, StoreError> {
        self.asked().state(session, range, limit).await
    }

    async fn state_at(
        &self,
        session: SessionId,
        key: StateKey,
        revision: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.asked().state_at(session, key, revision).await
    }

    async fn past_state(
        &self,
        session: SessionId,
        query: PastStateQuery,
    ) -> Result<StatePage<StateValue>, StoreError> {
        self.asked().past_state(session, query).await
    }

    async fn past_values(
        &self,
        session: SessionId,
        places: Vec<(StateKey, u64)>,
        bytes_max: u64,
    ) -> Result<Vec<Option<PastValue>>, StoreError> {
        let store = self.asked();
        store.past_values(session, places, bytes_max).await
    }

    async fn kept_revision(&self, session: SessionId, revision: u64) -> Result<u64, StoreError> {
        self.asked().kept_revision(session, revision).await
    }
    async fn last_rewind(&self, session: SessionId) -> Result<u64, StoreError> {
        self.asked().last_rewind(session).await
    }
    async fn memory(
        &self,
        session: SessionId,
        query: MemoryQuery,
    ) -> Result<MemoryPage, StoreError> {
        self.asked().memory(session, query).await
    }
    async fn task_state(&self, task: TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        self.asked().task_state(task).await
    }

    async fn shared(
        &self,
        owner: SharedOwner,
        range: KeyRange,
        limit: PageLimit,
    ) -> Result<StatePage<SharedValue>, StoreError> {
        self.asked().shared(owner, range, limit).await
    }

    async fn ended_request(&self, id: RequestId) -> Result<Option<EndedRequest>, StoreError> {
        self.asked().ended_request(id).await
    }

    async fn closed_task(&self, id: TaskId) -> Result<Option<ClosedTask>, StoreError> {
        self.asked().closed_task(id).await
    }

    async fn closed_hold(&self, id: HoldId) -> Result<Option<ClosedHold>, StoreError> {
        self.asked().closed_hold(id).await
    }

    async fn session_of_request(&self, id: RequestId) -> Result<Option<SessionId>, StoreError> {
        self.asked().session_of_request(id).await
    }

    async fn session_of_task(&self, id: TaskId) -> Result<Option<SessionId>, StoreError> {
        self.asked().session_of_task(id).await
    }

    async fn session_of_hold(&self, id: HoldId) -> Result<Option<SessionId>, StoreError> {
        self.asked().session_of_hold(id).await
    }

    async fn answer(&self, key: Digest) -> Result<Option<Answer>, StoreError> {
        let mut found = self.asked().answer(key).await?;
        if self.bug == Some(StoreBug::KeepsAnswersInMemory) {
            let kept = self.in_memory.lock();
            let kept = kept.unwrap_or_else(PoisonError::into_inner);
            found = kept.get(&key).cloned();
        }
        if let (Some(StoreBug::GarblesAnswers), Some(answer)) = (self.bug, &mut found) {
            answer.body.push(b' ');
        }
        Ok(found)
    }

    async fn answers_kept(&self) -> Result<u64, StoreError> {
        self.asked().answers_kept().await
    }

    async fn forget_answers(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.asked().forget_answers(now, limit).await
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionSummary>, StoreError> {
        self.asked().session(session).await
    }

    async fn holds_of(&self, request: RequestId) -> Result<Vec<HoldId>, StoreError> {
        self.asked().holds_of(request).await
    }

    async fn children_of(&self, request: RequestId) -> Result<Vec<RequestId>, StoreError> {
        self.asked().children_of(request).await
    }

    async fn chat_requests(
        &self,
        digest: Digest,
        limit: usize,
    ) -> Result<Vec<(SessionId, RequestId)>, StoreError> {
        self.asked().chat_requests(digest, limit).await
    }

    async fn committed(&self, after: u64, limit: usize) -> Result<Vec<Committed>, StoreError> {
        self.asked().committed(after, limit).await
    }

    async fn last_place(&self) -> Result<u64, StoreError> {
        self.asked().last_place().await
    }

    async fn erase_some(&self, limit: PageLimit) -> Result<bool, StoreError> {
        self.erasures.send_modify(|erasures| *erasures += 1);
        let mut open = self.erases.subscribe();
        drop(open.wait_for(|open| *open).await);
        self.asked().erase_some(limit).await
    }

    async fn intern_user(
        &self,
        tenant: Name,
        name: String,
        fresh: UserId,
    ) -> Result<UserId, StoreError> {
        self.asked().intern_user(tenant, name, fresh).await
    }

    async fn user(&self, tenant: Name, name: String) -> Result<Option<UserId>, StoreError> {
        self.asked().user(tenant, name).await
    }

    async fn user_name(&self, user: UserId) -> Result<Option<String>, StoreError> {
        self.asked().user_name(user).await
    }

    async fn commit_tenant(&self, commit: TenantCommit) -> Result<(), StoreError> {
        self.asked().commit_tenant(commit).await
    }

    async fn tenant_head(&self, tenant: Name) -> Result<TenantHead, StoreError> {
        self.asked().tenant_head(tenant).await
    }

    async fn tenant_records(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<TenantRecord>, StoreError> {
        self.asked().tenant_records(tenant, after, limit).await
    }

    async fn api_key(&self, secret: Digest) -> Result<Option<ApiKey>, StoreError> {
        self.asked().api_key(secret).await
    }

    async fn api_keys(
        &self,
        tenant: Name,
        after: Option<KeyId>,
        limit: usize,
    ) -> Result<Vec<ApiKey>, StoreError> {
        self.asked().api_keys(tenant, after, limit).await
    }

    async fn api_key_of(&self, tenant: Name, key: KeyId) -> Result<Option<ApiKey>, StoreError> {
        self.asked().api_key_of(tenant, key).await
    }

    async fn api_key_count(&self, tenant: Name) -> Result<usize, StoreError> {
        self.asked().api_key_count(tenant).await
    }

    async fn resume_addresses(&self) -> Result<Vec<ResumeAddress>, StoreError> {
        self.inner.resume_addresses().await
    }

    async fn live_work(
        &self,
        tenant: Name,
        agent: Name,
        after: Option<RequestId>,
        limit: usize,
    ) -> Result<Vec<LiveWork>, StoreError> {
        self.inner.live_work(tenant, agent, after, limit).await
    }

    async fn has_api_keys(&self) -> Result<bool, StoreError> {
        self.asked().has_api_keys().await
    }

    async fn sessions_of_user(
        &self,
        tenant: Name,
        user: UserId,
        is_listed: bool,
        after: u64,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, StoreError> {
        let found = self
            .asked()
            .sessions_of_user(tenant, user, is_listed, after, limit);
        found.await
    }

    async fn session_named(
        &self,
        tenant: Name,
        app: Name,
        user: UserId,
        name: String,
    ) -> Result<Option<SessionSummary>, StoreError> {
        self.asked().session_named(tenant, app, user, name).await
    }

    async fn sessions(&self, query: SessionQuery) -> Result<Vec<SessionSummary>, StoreError> {
        let found = self.asked().sessions(query).await?;
        self.sessions_read.fetch_add(found.len(), Ordering::SeqCst);
        Ok(found)
    }

    async fn open_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError> {
        self.asked().open_holds(query).await
    }

    async fn decided_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError> {
        self.asked().decided_holds(query).await
    }

    async fn holds(&self, ids: Vec<HoldId>) -> Result<Vec<HoldSummary>, StoreError> {
        self.asked().holds(ids).await
    }

    async fn held_by(&self, requests: Vec<RequestId>) -> Result<Vec<HoldSummary>, StoreError> {
        self.asked().held_by(requests).await
    }

    async fn hold_changes(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<HoldChange>, u64), StoreError> {
        self.asked().hold_changes(tenant, after, limit).await
    }

    async fn lineages(
        &self,
        requests: Vec<RequestId>,
    ) -> Result<Vec<Vec<LineageStep>>, StoreError> {
        self.asked().lineages(requests).await
    }

    async fn records_at(
        &self,
        places: Vec<(SessionId, u64)>,
        bytes_max: u64,
    ) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        self.asked().records_at(places, bytes_max).await
    }

    async fn user_names(&self, users: Vec<UserId>) -> Result<Vec<Option<String>>, StoreError> {
        self.asked().user_names(users).await
    }

    async fn open_holds_of_user(
        &self,
        tenant: Name,
        user: UserId,
        limit: usize,
    ) -> Result<usize, StoreError> {
        self.asked().open_holds_of_user(tenant, user, limit).await
    }

    async fn claimable(
        &self,
        tenant: Name,
        agent: Name,
        user: Option<UserId>,
        after: Option<RequestId>,
        limit: usize,
    ) -> Result<Vec<(SessionId, RequestId)>, StoreError> {
        let asked = self.asked();
        asked.claimable(tenant, agent, user, after, limit).await
    }

    async fn due(
        &self,
        now: Timestamp,
        after: Option<DuePlace>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        self.asked().due(now, after, limit).await
    }

    async fn due_in(&self, sessions: Vec<(SessionId, Timestamp)>) -> Result<Vec<Due>, StoreError> {
        self.asked().due_in(sessions).await
    }

    async fn sessions_ahead(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(SessionId, Timestamp)>, StoreError> {
        self.asked().sessions_ahead(now, limit).await
    }
}
