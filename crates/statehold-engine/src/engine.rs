//! The engine itself: its settings, its parts, its start and its end.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::session::Owner;
use statehold_core::time::Timestamp;
use statehold_store::keys::KeyOwner;
use statehold_store::{ApiKey, ResumeAddress, Store, StoreError};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::Audit;
use crate::background::drafts::Drafts;
use crate::background::due::DueWalk;
use crate::background::session_time::SessionTimes;
use crate::commit::auto_claim::OwnWorkers;
use crate::commit::kept_answers::KeptAnswers;
use crate::commit::mailbox::Mailbox;
use crate::commit::merge::Merges;
use crate::commit::payloads::{Payloads, StoredRedaction};
use crate::error::EngineError;
use crate::guard::credentials::{Credential, Credentials};
use crate::guard::policy::Policies;
use crate::guard::redact::RedactionCounts;
use crate::guard::sealed::SealedCalls;
use crate::holds::by_key::HoldsByKey;
use crate::locks::{KeyedLocks, Lock};
use crate::long_reads::LongReads;
use crate::measures::Measures;
use crate::ports::{Clock, HoldKeys, MemoryHoldKeys, PayloadKeys, random};
use crate::shares::Shares;
use crate::starters::Starters;
use crate::swap::Swap;
use crate::temp::Temps;
use crate::trace::{self, Traces};
use crate::turn_memory::TurnMemories;
use crate::users::Users;
use crate::watch::Watches;

/// How many sessions stay in memory, unless more are in use at once.
const HOT_SESSIONS: usize = 20_000;

/// The maximum number of open holds in the sessions of one user.
const USER_HOLDS_MAX: usize = 8_192;

/// How many searches for the session of a chat call run at once.
const SESSION_SEARCHES_MAX: usize = 16;

/// Settings of an engine.
#[derive(Clone)]
pub struct EngineOptions {
    /// How many sessions stay in memory, unless more are in use at once.
    pub hot_sessions: usize,
    /// How often timers check for due work.
    pub tick: std::time::Duration,
    /// How often the heads of sessions are signed, if anything changed.
    pub sign_every: std::time::Duration,
    /// The maximum number of open holds in the sessions of one user.
    pub user_holds_max: usize,
    /// The policies of agents and their tools at the start.
    pub policies: Arc<Policies>,
    /// The keys of sealed arguments. They must live as long as the store; the default is for stores in
    /// memory.
    pub hold_keys: Arc<dyn HoldKeys>,
    /// The numbers for operators, which all engines of a process share.
    pub measures: Arc<Measures>,
    /// The traces of the process, if there are any.
    pub traces: Option<Arc<Traces>>,
    /// The memory for the answers of turns, which all engines of a process share.
    pub turn_memories: TurnMemories,
}

impl std::fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineOptions")
            .field("hot_sessions", &self.hot_sessions)
            .field("tick", &self.tick)
            .field("policies", &self.policies)
            .finish_non_exhaustive()
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            hot_sessions: HOT_SESSIONS,
            tick: std::time::Duration::from_millis(100),
            sign_every: std::time::Duration::from_mins(1),
            user_holds_max: USER_HOLDS_MAX,
            policies: Arc::default(),
            hold_keys: Arc::new(MemoryHoldKeys::default()),
            measures: Arc::default(),
            traces: None,
            turn_memories: TurnMemories::default(),
        }
    }
}

/// Decides and commits commands, serves feeds, and runs timers. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) payload_keys: Arc<dyn PayloadKeys>,
    pub(crate) options: EngineOptions,
    pub(crate) policies: Swap<Policies>,
    /// Leases granted by an earlier process last one full ttl from here.
    pub(crate) started_at: Timestamp,
    pub(crate) mailboxes: Lock<HashMap<SessionId, Arc<Mailbox>>>,
    pub(crate) calls: AtomicU64,
    /// The value of `calls` at the last eviction of idle sessions.
    pub(crate) calls_before: AtomicU64,
    /// How many history items were read.
    pub(crate) items_read: AtomicU64,
    pub(crate) heartbeats: Lock<BTreeMap<RequestId, Timestamp>>,
    pub(crate) session_times: SessionTimes,
    /// Calls in flight by idempotency key, and turns by session.
    pub(crate) in_flight: KeyedLocks,
    pub(crate) merges: Merges,
    pub(crate) long_reads: LongReads,
    pub(crate) list_steps: LongReads,
    /// One backup at a time.
    pub(crate) backups: Arc<tokio::sync::Semaphore>,
    pub(crate) searches: LongReads,
    pub(crate) answers_kept: KeptAnswers,
    pub(crate) temps: Temps,
    pub(crate) starters: Arc<Starters>,
    pub(crate) holds_by_key: HoldsByKey,
    pub(crate) watches: Arc<Watches>,
    pub(crate) drafts: Arc<Drafts>,
    /// How often each rule has redacted something.
    pub(crate) redactions: Arc<RedactionCounts>,
    pub(crate) hold_keys: Arc<dyn HoldKeys>,
    pub(crate) sealed_calls: SealedCalls,
    pub(crate) credentials: Arc<Credentials>,
    /// Searches for the session of a chat call, which read messages of several sessions into memory.
    pub(crate) session_searches: Shares,
    pub(crate) own_workers: OwnWorkers,
    pub(crate) users: Users,
    pub(crate) due_walk: DueWalk,
    /// All API keys, by the digest of their secret. Only this process changes them.
    pub(crate) api_keys: RwLock<HashMap<Digest, Arc<ApiKey>>>,
    /// When the next key in memory expires, in microseconds.
    pub(crate) next_key_end: AtomicI64,
    /// Keys that have expired, which the audit stream does not say yet.
    pub(crate) ended_keys: Lock<Vec<ApiKey>>,
    /// Counts changes of API keys: a long-running call checks its key again when this changes.
    pub(crate) keys_changed: watch::Sender<u64>,
    /// The addresses to push decisions to, by tenant and agent.
    pub(crate) addresses: RwLock<BTreeMap<(Name, Name), ResumeAddress>>,
    /// Counts changes of addresses.
    pub(crate) addresses_changed: watch::Sender<u64>,
    /// Locked while an address changes: one at a time.
    pub(crate) addresses_turn: tokio::sync::Mutex<()>,
    pub(crate) audit: Audit,
    /// Wakes waiting workers, by the tenant and agent they wait for.
    queues: Lock<HashMap<(Name, Name), Arc<Notify>>>,
    /// Incremented by every commit of any session.
    pub(crate) any_commit: watch::Sender<u64>,
    pub(crate) has_erasures: AtomicBool,
    /// Whether the last write found the disk full.
    pub(crate) is_full: AtomicBool,
    /// When the store was last asked for room because of that, in microseconds.
    pub(crate) room_checked: AtomicI64,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Engine {
    /// Starts an engine on a store, with its timers.
    ///
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the keys cannot be read.
    pub async fn start(
        store: Arc<dyn Store>,
        payload_keys: Arc<dyn PayloadKeys>,
        clock: Arc<dyn Clock>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let started_at = clock.now();
        let answers_kept = KeptAnswers::new(store.answers_kept().await?);
        let inner = Inner {
            store,
            clock,
            payload_keys,
            hold_keys: Arc::clone(&options.hold_keys),
            sealed_calls: SealedCalls::default(),
            credentials: Arc::default(),
            session_searches: Shares::new(SESSION_SEARCHES_MAX),
            own_workers: OwnWorkers::default(),
            policies: Swap::new(Arc::clone(&options.policies)),
            options,
            started_at,
            mailboxes: Lock::default(),
            calls: AtomicU64::new(0),
            calls_before: AtomicU64::new(0),
            items_read: AtomicU64::new(0),
            heartbeats: Lock::default(),
            session_times: SessionTimes::default(),
            in_flight: KeyedLocks::default(),
            merges: Merges::default(),
            long_reads: LongReads::default(),
            list_steps: LongReads::default(),
            backups: Arc::new(tokio::sync::Semaphore::new(1)),
            searches: LongReads::default(),
            answers_kept,
            temps: Temps::default(),
            starters: Arc::default(),
            holds_by_key: HoldsByKey::default(),
            watches: Arc::default(),
            drafts: Arc::default(),
            redactions: Arc::default(),
            users: Users::default(),
            due_walk: DueWalk::default(),
            api_keys: RwLock::default(),
            next_key_end: AtomicI64::new(i64::MAX),
            ended_keys: Lock::default(),
            keys_changed: watch::Sender::new(0),
            addresses: RwLock::default(),
            addresses_changed: watch::Sender::new(0),
            addresses_turn: tokio::sync::Mutex::new(()),
            audit: Audit::default(),
            queues: Lock::default(),
            any_commit: watch::Sender::new(0),
            // An earlier process may have left erasures.
            has_erasures: AtomicBool::new(true),
            is_full: AtomicBool::new(false),
            room_checked: AtomicI64::new(i64::MIN),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let engine = Self {
            inner: Arc::new(inner),
        };
        engine.sweep_hold_keys().await?;
        engine.start_timers();
        Ok(engine)
    }

    /// Begins to stop: timers end, and waiting callers and feed readers are released.
    pub fn begin_stop(&self) {
        self.inner.stop.cancel();
    }

    /// Begins to stop, and waits until all work in flight is durable and signed.
    pub async fn shut_down(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        if let Err(error) = self.sign_heads().await {
            tracing::warn!(error = %error, "the last changes are not signed; the next start does it");
        }
    }

    /// Sets the configured credentials of agents, for requests without a credential of their caller.
    pub fn set_service_credentials(&self, credentials: BTreeMap<Name, Credential>) {
        self.inner.credentials.set_service(credentials);
    }

    /// The memory for the answers of turns.
    pub fn turn_memories(&self) -> &TurnMemories {
        &self.inner.options.turn_memories
    }

    /// The numbers for operators.
    pub fn measures(&self) -> &Arc<Measures> {
        &self.inner.options.measures
    }

    /// The traces of the process, if there are any.
    pub fn traces(&self) -> Option<&Arc<Traces>> {
        self.inner.options.traces.as_ref()
    }

    /// The engine's current time.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// A snapshot of the policies of agents and their tools.
    pub fn policies(&self) -> Arc<Policies> {
        self.inner.policies.get()
    }

    /// Replaces the policies of agents and their tools. Open holds and recorded calls keep the policy
    /// they were made under.
    pub fn set_policies(&self, policies: impl Into<Arc<Policies>>) {
        self.inner.policies.set(policies);
    }

    /// How many history items were read since the start.
    pub fn items_read(&self) -> u64 {
        self.inner.items_read.load(Ordering::Relaxed)
    }

    /// Runs a use case that commits more than once to its end, also if its call goes away.
    pub(crate) async fn run_to_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let work = trace::within(trace::current(), work);
        match self.inner.tasks.spawn(work).await {
            Ok(result) => result,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime stops, and this caller with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Payloads for a command to this session.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub(crate) async fn payloads_of(&self, session: SessionId) -> Result<Payloads, EngineError> {
        let owner = self.owner(session).await?;
        self.payloads_for(&owner).await
    }

    /// Payloads for a command to a session of this owner.
    ///
    /// # Errors
    ///
    /// If a new key cannot be stored.
    pub(crate) async fn payloads_for(&self, owner: &Owner) -> Result<Payloads, EngineError> {
        let user = self.payload_key(KeyOwner::User(owner.user)).await?;
        let tenant = KeyOwner::Tenant(owner.tenant.clone());
        let tenant = self.payload_key(tenant).await?;
        let mut payloads = Payloads::new(user, tenant);
        payloads.redact_by(self.redaction_for(&owner.agent));
        Ok(payloads)
    }

    /// How what this agent writes is redacted.
    pub(crate) fn redaction_for(&self, agent: &Name) -> StoredRedaction {
        StoredRedaction {
            policies: self.policies(),
            agent: agent.clone(),
            counts: Arc::clone(&self.inner.redactions),
        }
    }

    pub(crate) async fn payload_key(
        &self,
        owner: KeyOwner,
    ) -> Result<statehold_core::digest::PayloadKey, EngineError> {
        if let Some(key) = self.inner.payload_keys.get(&owner) {
            return Ok(key);
        }
        if let Some(key) = self.new_payload_key(&owner) {
            return Ok(key);
        }
        if let KeyOwner::User(user) = owner
            && !self.inner.users.takes_commits_of(user)
        {
            return Err(EngineError::UserErased);
        }
        // A new key is written to disk before it is used.
        let keys = Arc::clone(&self.inner.payload_keys);
        let made = tokio::task::spawn_blocking(move || keys.get_or_create(&owner)).await;
        Ok(made.map_err(|_| EngineError::Stopping)??)
    }
}

impl Inner {
    /// The notifier on which workers wait for requests of an agent.
    pub(crate) fn queue(&self, tenant: &Name, agent: &Name) -> Arc<Notify> {
        let mut queues = self.queues.lock();
        // Evict queues without waiting workers.
        if queues.len() > 1_024 {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        Arc::clone(queues.entry((tenant.clone(), agent.clone())).or_default())
    }
}

/// Randomness that keeps ids of the same millisecond distinct.
pub(crate) fn entropy() -> Result<u64, StoreError> {
    Ok(u64::from_le_bytes(random()?))
}
