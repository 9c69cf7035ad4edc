//! A store that counts its reads, and whose commits wait in line until the test writes them: a turn goes as
//! far as it can without a durable commit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, KeyId, RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::{CommandName, Record};
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
    StoreError, StoredItem, StoredRecord, TenantCommit, ValueSize, WorkTotals,
};
use tokio::sync::oneshot;

/// How often every other task may go on before the line counts as complete.
const IDLE_ROUNDS: usize = 500;

type Waiting = (Commit, oneshot::Sender<Result<u64, StoreError>>);

/// A store whose disk is written to by the test.
#[derive(Default)]
pub(crate) struct Disk {
    inner: MemoryStore,
    state: Mutex<DiskState>,
}

#[derive(Default)]
struct DiskState {
    /// Whether commits wait. If not, each is durable at once.
    is_slow: bool,
    line: VecDeque<Waiting>,
    /// How many commits were put in line.
    begun: usize,
    /// The reads, by the name of their method.
    reads: Vec<&'static str>,
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes commits wait from now on, and counts reads from now on.
    pub(crate) fn slow_down(&self) {
        let mut state = self.state();
        state.is_slow = true;
        state.reads.clear();
    }

    /// The reads since the last call.
    pub(crate) fn take_reads(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().reads)
    }

    /// The commands that are in line, when no task can go on without a durable commit.
    pub(crate) async fn line(&self) -> Vec<CommandName> {
        let (mut begun, mut idle) = (0, 0);
        while idle < IDLE_ROUNDS {
            // Let calls to agents, and timers, take their time.
            if idle % 50 == 49 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            tokio::task::yield_now().await;
            let now = self.state().begun;
            idle = if now == begun { idle + 1 } else { 0 };
            begun = now;
        }
        let state = self.state();
        let commands = state.line.iter();
        commands
            .map(|(commit, _)| commit.record.content.command)
            .collect()
    }

    /// Writes the line in one go. The commit at place `fails`, if any, fails so.
    pub(crate) async fn write(&self, fails: Option<(usize, StoreError)>) {
        let line = std::mem::take(&mut self.state().line);
        let (place, mut error) = fails.map_or((0, None), |(place, error)| (place, Some(error)));
        let mut results = Vec::new();
        for (n, (commit, tell)) in line.into_iter().enumerate() {
            let result = match error.take_if(|_| n == place) {
                Some(error) => Err(error),
                None => self.inner.commit(commit).await,
            };
            results.push((tell, result));
        }
        for (tell, result) in results {
            drop(tell.send(result));
        }
    }
}

macro_rules! store_of_disk {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for Disk {
            fn damage(&self) -> &DamageLog {
                self.inner.damage()
            }

            async fn begin_commit(&self, commit: Commit) -> Result<PendingCommit, StoreError> {
                let is_slow = self.state().is_slow;
                if !is_slow {
                    return self.inner.begin_commit(commit).await;
                }
                let (tell, told) = oneshot::channel();
                let mut state = self.state();
                state.begun += 1;
                state.line.push_back((commit, tell));
                Ok(Box::pin(async { told.await.unwrap_or(Err(StoreError::Stopped)) }))
            }

            $(
                async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                    self.state().reads.push(stringify!($name));
                    self.inner.$name($($argument),*).await
                }
            )*
        }
    };
}

store_of_disk! {
    fn load(session: SessionId) -> Option<SessionState>;
    fn load_at(session: SessionId, revision: u64) -> Option<SessionState>;
    fn kept_revision(session: SessionId, revision: u64) -> u64;
    fn last_rewind(session: SessionId) -> u64;
    fn records(session: SessionId, after: u64, limit: PageLimit) -> Vec<StoredRecord>;
    fn chain(session: SessionId, after: u64, limit: PageLimit) -> Vec<Record>;
    fn items(session: SessionId, query: ItemQuery) -> (Vec<StoredItem>, Option<u64>);
    fn transcript(session: SessionId, before: Option<u64>, limit: PageLimit) -> (Vec<StoredItem>, Option<u64>);
    fn items_at(session: SessionId, query: PastItemQuery) -> (Vec<StoredItem>, Option<u64>);
    fn memory(session: SessionId, query: MemoryQuery) -> MemoryPage;
    fn state(session: SessionId, range: KeyRange, limit: PageLimit) -> StatePage<StateValue>;
    fn state_value(session: SessionId, key: StateKey) -> Option<StateValue>;
    fn state_sizes(session: SessionId, keys: Vec<StateKey>, bytes_max: u64) -> Vec<Option<ValueSize>>;
    fn shared_sizes(owner: SharedOwner, keys: Vec<StateKey>, bytes_max: u64) -> Vec<Option<ValueSize>>;
    fn past_state(session: SessionId, query: PastStateQuery) -> StatePage<StateValue>;
    fn past_values(session: SessionId, places: Vec<(StateKey, u64)>, bytes_max: u64) -> Vec<Option<PastValue>>;
    fn state_at(session: SessionId, key: StateKey, revision: u64) -> Option<Vec<u8>>;
    fn task_state(task: TaskId) -> Option<Vec<u8>>;
    fn shared(owner: SharedOwner, range: KeyRange, limit: PageLimit) -> StatePage<SharedValue>;
    fn shared_value(owner: SharedOwner, key: StateKey) -> Option<SharedValue>;
    fn ended_request(id: RequestId) -> Option<EndedRequest>;
    fn closed_task(id: TaskId) -> Option<ClosedTask>;
    fn closed_hold(id: HoldId) -> Option<ClosedHold>;
    fn session_of_request(id: RequestId) -> Option<SessionId>;
    fn session_of_task(id: TaskId) -> Option<SessionId>;
    fn session_of_hold(id: HoldId) -> Option<SessionId>;
    fn answer(key: Digest) -> Option<Answer>;
    fn answers_kept() -> u64;
    fn forget_answers(now: Timestamp, limit: usize) -> usize;
    fn session(session: SessionId) -> Option<SessionSummary>;
    fn holds_of(request: RequestId) -> Vec<HoldId>;
    fn children_of(request: RequestId) -> Vec<RequestId>;
    fn chat_requests(digest: Digest, limit: usize) -> Vec<(SessionId, RequestId)>;
    fn committed(after: u64, limit: usize) -> Vec<Committed>;
    fn last_place() -> u64;
    fn work_totals(tenant: Name, agents: usize) -> WorkTotals;
    fn heads_after(after: u64, limit: usize) -> Vec<ChangedHead>;
    fn tenants() -> Vec<Name>;
    fn verify(tenant: Name, expected: Option<TenantHead>, keys: Arc<dyn KnownKeys>) -> CheckReport;
    fn erase_some(limit: PageLimit) -> bool;
    fn intern_user(tenant: Name, name: String, fresh: UserId) -> UserId;
    fn user(tenant: Name, name: String) -> Option<UserId>;
    fn user_name(user: UserId) -> Option<String>;
    fn user_names(users: Vec<UserId>) -> Vec<Option<String>>;
    fn commit_tenant(commit: TenantCommit) -> ();
    fn tenant_head(tenant: Name) -> TenantHead;
    fn tenant_records(tenant: Name, after: u64, limit: usize) -> Vec<TenantRecord>;
    fn api_key(secret: Digest) -> Option<ApiKey>;
    fn api_keys(tenant: Name, after: Option<KeyId>, limit: usize) -> Vec<ApiKey>;
    fn api_key_of(tenant: Name, key: KeyId) -> Option<ApiKey>;
    fn api_key_count(tenant: Name) -> usize;
    fn has_api_keys() -> bool;
    fn resume_addresses() -> Vec<ResumeAddress>;
    fn live_work(tenant: Name, agent: Name, after: Option<RequestId>, limit: usize) -> Vec<LiveWork>;
    fn sessions_of_user(tenant: Name, user: UserId, is_listed: bool, after: u64, limit: usize) -> Vec<SessionSummary>;
    fn session_named(tenant: Name, app: Name, user: UserId, name: String) -> Option<SessionSummary>;
    fn sessions(query: SessionQuery) -> Vec<SessionSummary>;
    fn open_holds(query: HoldQuery) -> Vec<HoldSummary>;
    fn decided_holds(query: HoldQuery) -> Vec<HoldSummary>;
    fn holds(ids: Vec<HoldId>) -> Vec<HoldSummary>;
    fn held_by(requests: Vec<RequestId>) -> Vec<HoldSummary>;
    fn hold_changes(tenant: Name, after: u64, limit: usize) -> (Vec<HoldChange>, u64);
    fn lineages(requests: Vec<RequestId>) -> Vec<Vec<LineageStep>>;
    fn records_at(places: Vec<(SessionId, u64)>, bytes_max: u64) -> Vec<Option<StoredRecord>>;
    fn open_holds_of_user(tenant: Name, user: UserId, limit: usize) -> usize;
    fn claimable(tenant: Name, agent: Name, user: Option<UserId>, after: Option<RequestId>, limit: usize) -> Vec<(SessionId, RequestId)>;
    fn due(now: Timestamp, after: Option<DuePlace>, limit: usize) -> DuePage;
    fn due_in(sessions: Vec<(SessionId, Timestamp)>) -> Vec<Due>;
    fn sessions_ahead(now: Timestamp, limit: usize) -> Vec<(SessionId, Timestamp)>;
}
