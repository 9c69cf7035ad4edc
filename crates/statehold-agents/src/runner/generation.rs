//! The hosted agents as declared at one time, with their running turns. Loading a new configuration
//! starts a new generation: the old one stops claiming, drains its turns, and then closes its tool
//! servers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use statehold_core::ids::RequestId;
use statehold_core::name::Name;
use statehold_engine::debug_log::DebugLog;
use statehold_engine::leased::ClaimedTurn;
use statehold_engine::{AutoClaim, Caller, Claim, Engine, Share, Shares};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::run::WaitingParent;
use super::{ConversationReader, LEASE_MS, RunnerOptions, StepHook};
use crate::gateway::ConversationLocks;
use crate::http::HttpPool;
use crate::mcp::ToolServers;
use crate::spec::{AgentBook, AgentSpec, StageDetail};
use crate::turn::Agent;

/// Long-poll timeout of a claim, and the maximum number of requests per claim.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
const CLAIM_MAX: usize = 64;
/// Delay before the next claim after the store failed.
const REST: Duration = Duration::from_secs(1);

/// State shared by all generations of a runner.
pub(super) struct RunnerShared {
    pub(super) engine: Engine,
    pub(super) tenant: Name,
    pub(super) http: HttpPool,
    on_step: StepHook,
    asks_people: bool,
    conversation_reader: Option<ConversationReader>,
    debug_log: Option<Arc<DebugLog>>,
    turns_max: usize,
    pub(super) stop: CancellationToken,
    /// Retired generations that still have running turns.
    pub(super) retiring: TaskTracker,
    /// Serializes switches: one generation replaces another at a time.
    pub(super) switching: tokio::sync::Mutex<()>,
    /// The active generation. A std mutex, like the next field: it is never held across an await.
    active: Mutex<Option<Arc<Generation>>>,
    /// Resources of every agent that this process has hosted.
    resources: Mutex<BTreeMap<Name, AgentResources>>,
}

/// Resources of an agent that survive a new declaration.
#[derive(Clone)]
pub(super) struct AgentResources {
    /// Permits for concurrent turns.
    pub(super) turns: Shares,
    /// Locks that allow one turn at a time in each remote conversation, across generations.
    pub(super) conversations: Arc<ConversationLocks>,
}

impl RunnerShared {
    pub(super) fn new(
        engine: Engine,
        tenant: Name,
        http: HttpPool,
        options: RunnerOptions,
    ) -> Self {
        Self {
            engine,
            tenant,
            http,
            on_step: options.on_step,
            asks_people: options.asks_people,
            conversation_reader: options.conversation_reader,
            debug_log: options.debug_log,
            turns_max: options.turns_max,
            stop: CancellationToken::new(),
            retiring: TaskTracker::new(),
            switching: tokio::sync::Mutex::default(),
            active: Mutex::default(),
            resources: Mutex::default(),
        }
    }

    pub(super) fn active(&self) -> MutexGuard<'_, Option<Arc<Generation>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The resources of an agent that this process has hosted before.
    pub(super) fn resources(&self, agent: &Name) -> Option<AgentResources> {
        let known = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.get(agent).cloned()
    }

    pub(super) fn new_resources(&self) -> AgentResources {
        AgentResources {
            turns: Shares::of_turns(self.turns_max),
            conversations: Arc::default(),
        }
    }

    /// Stores the resources of newly hosted agents.
    pub(super) fn remember_agents(&self, new: BTreeMap<Name, AgentResources>) {
        let mut known = self
            .resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.extend(new);
    }
}

/// One set of declarations, and the turns that run under it.
pub(crate) struct Generation {
    pub(super) engine: Engine,
    pub(super) caller: Caller,
    pub(super) on_step: StepHook,
    pub(super) asks_people: bool,
    pub(super) conversation_reader: Option<ConversationReader>,
    pub(super) debug_log: Option<Arc<DebugLog>>,
    tenant: Name,
    book: Arc<AgentBook>,
    agents: BTreeMap<Name, LocalAgent>,
    tools: Arc<ToolServers>,
    shared: Weak<RunnerShared>,
    /// Tasks that claim requests.
    claimers: TaskTracker,
    /// Tasks that execute turns.
    tasks: TaskTracker,
    /// Cancelled when the whole server stops.
    pub(super) stop: CancellationToken,
    /// Cancelled when this generation stops claiming, or when the runner stops.
    retired: CancellationToken,
}

/// An agent that this server hosts.
#[derive(Clone)]
pub(super) struct LocalAgent {
    pub(super) spec: Arc<AgentSpec>,
    pub(super) agent: Arc<dyn Agent>,
    /// Permits for concurrent turns.
    pub(super) turns: Shares,
}

/// Permit of one running turn.
pub(crate) struct TurnPermit(Option<Share>);

impl TurnPermit {
    pub(super) fn new(permit: Share) -> Self {
        Self(Some(permit))
    }

    /// Waits for another turn, and releases the permit meanwhile.
    pub(crate) async fn release_while<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let released = self.0.take().map(Share::release);
        let done = wait.await;
        // No deadlock: a turn with a permit never waits for a turn without one.
        if let Some(released) = released {
            self.0 = released.line_up().await.ok();
        }
        done
    }
}

/// A reserved permit for one turn of a hosted agent.
pub(super) struct TurnSlot {
    local: LocalAgent,
    permit: Share,
    generation: Arc<Generation>,
    /// Keeps the generation from draining before the turn has started. Dropped last.
    _token: TaskTrackerToken,
}

impl TurnSlot {
    /// Whether a turn of the agent begins before its claim is durable.
    pub(super) fn starts_with_commit(&self) -> bool {
        self.local.agent.starts_with_commit()
    }

    /// Starts the turn. `parent` waits for its answer.
    pub(super) fn start(self, turn: ClaimedTurn, parent: Option<WaitingParent>) {
        self.generation
            .spawn_turn(&self.local, turn, self.permit, parent);
    }
}

impl Generation {
    pub(super) fn new(
        shared: &Arc<RunnerShared>,
        book: Arc<AgentBook>,
        agents: BTreeMap<Name, LocalAgent>,
        tools: Arc<ToolServers>,
    ) -> Self {
        Self {
            engine: shared.engine.clone(),
            caller: Caller::worker_of_server(shared.tenant.clone()),
            on_step: Arc::clone(&shared.on_step),
            asks_people: shared.asks_people,
            conversation_reader: shared.conversation_reader.clone(),
            debug_log: shared.debug_log.clone(),
            tenant: shared.tenant.clone(),
            book,
            agents,
            tools,
            shared: Arc::downgrade(shared),
            claimers: TaskTracker::new(),
            tasks: TaskTracker::new(),
            stop: shared.stop.clone(),
            retired: shared.stop.child_token(),
        }
    }

    pub(super) fn tools(&self) -> &ToolServers {
        &self.tools
    }

    /// Starts to claim requests. From now on the engine hands new requests to this generation.
    pub(super) fn start_claiming(self: &Arc<Self>) {
        for (name, local) in &self.agents {
            let permits = local.turns.clone();
            let how = (LEASE_MS, local.agent.starts_with_commit());
            let begun = self.engine.claim_on_start(&self.tenant, name, permits, how);
            let auto_claimed = Arc::clone(self).run_auto_claimed(local.clone(), begun);
            self.claimers.spawn(auto_claimed);
            self.claimers
                .spawn(Arc::clone(self).claim_requests(local.clone()));
        }
    }

    /// Stops claiming, now that the next generation claims. Requests already handed over or being
    /// claimed are still executed.
    pub(super) async fn retire(self: Arc<Self>, next: &Self, retiring: &TaskTracker) {
        for gone in self
            .agents
            .keys()
            .filter(|name| !next.agents.contains_key(*name))
        {
            self.engine.stop_claiming(&self.tenant, gone);
        }
        let claimers = self.claimers.clone();
        retiring.spawn(self.drain());
        claimers.wait().await;
    }

    /// Stops claiming and waits until all turns have ended, then closes the tool servers and ends their
    /// programs.
    pub(super) async fn drain(self: Arc<Self>) {
        self.retired.cancel();
        self.claimers.close();
        self.claimers.wait().await;
        self.tasks.close();
        self.tasks.wait().await;
        let tools = Arc::clone(&self.tools);
        drop(self);
        if let Some(tools) = Arc::into_inner(tools) {
            tools.close().await;
        }
    }

    /// Claims requests of one agent and executes their turns.
    async fn claim_requests(self: Arc<Self>, local: LocalAgent) {
        let agent = &local.spec.name;
        while !self.retired.is_cancelled() {
            // A request takes its permit before it is claimed, because a lease would expire while its turn waits
            // for a permit.
            let claim = Claim {
                agent: agent.clone(),
                max: CLAIM_MAX,
                wait: CLAIM_WAIT,
                lease_ms: LEASE_MS,
                request: None,
            };
            // When this generation retires, let a claim in flight finish and execute its requests. Only
            // a stop cancels it.
            let enough = self.retired.cancelled();
            let claimed = tokio::select! {
                claimed = self.engine.claim_turns(&self.caller, &claim, &local.turns, enough) => claimed,
                () = self.stop.cancelled() => return,
                () = self.engine.stopping() => return,
            };
            let claimed = match claimed {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!(%agent, %error, "cannot claim work; trying again");
                    tokio::select! {
                        () = tokio::time::sleep(REST) => continue,
                        () = self.retired.cancelled() => return,
                    }
                }
            };
            for (claimed, permit) in claimed {
                if let Some(turn) = ClaimedTurn::of(&self.engine, &self.caller, claimed) {
                    self.spawn_turn(&local, turn, permit, None);
                }
            }
        }
    }

    /// Executes requests that the engine claimed for one agent when they were started, until the engine
    /// hands them to another generation.
    async fn run_auto_claimed(
        self: Arc<Self>,
        local: LocalAgent,
        mut begun: mpsc::UnboundedReceiver<AutoClaim>,
    ) {
        loop {
            let one = tokio::select! {
                one = begun.recv() => one,
                () = self.stop.cancelled() => return,
                () = self.engine.stopping() => return,
            };
            let Some(AutoClaim { turn, room }) = one else {
                return;
            };
            self.spawn_turn(&local, turn, room, None);
        }
    }

    fn spawn_turn(
        self: &Arc<Self>,
        local: &LocalAgent,
        turn: ClaimedTurn,
        permit: Share,
        parent: Option<WaitingParent>,
    ) {
        let (generation, local) = (Arc::clone(self), local.clone());
        let claimed = (turn, Instant::now());
        let permit = TurnPermit::new(permit);
        self.tasks
            .spawn(generation.execute_turn(local, claimed, permit, parent));
    }

    /// Whether clients see the text of an agent's stages.
    pub(super) fn shows_text_of(&self, agent: &Name) -> bool {
        let spec = self.book.agent(agent);
        spec.is_some_and(|spec| spec.stages == StageDetail::Full)
    }

    /// Starts a turn as soon as it has a permit.
    pub(super) fn start_turn(
        self: &Arc<Self>,
        agent: Name,
        turn: ClaimedTurn,
        parent: Option<WaitingParent>,
    ) {
        let generation = Arc::clone(self);
        self.tasks.spawn(async move {
            let request = turn.request.ids.request;
            match generation.reserve_turn(&agent, request).await {
                Some(slot) => slot.start(turn, parent),
                // Another worker claims it. If this fails, it is claimed after its lease has lapsed.
                None => drop(turn.request.release(None).await),
            }
        });
    }

    /// Reserves a permit for one turn of a hosted agent, for a request or a child of it. A new turn uses the active generation. If the
    /// agent is no longer declared there, it uses this generation, so that running requests can finish.
    pub(super) async fn reserve_turn(
        self: &Arc<Self>,
        agent: &Name,
        request: RequestId,
    ) -> Option<TurnSlot> {
        let current = self.shared.upgrade().and_then(|shared| {
            // Take the token under the lock, so that a generation replaced later waits for this turn.
            let active = shared.active();
            let active = active.as_ref()?;
            let has_it = active.book.agents.contains_key(agent);
            has_it.then(|| (Arc::clone(active), active.tasks.token()))
        });
        let is_gone = current.is_none();
        let (generation, token) = current.unwrap_or_else(|| (Arc::clone(self), self.tasks.token()));
        let local = generation.agents.get(agent)?.clone();
        let permit = match self.engine.take_turn(&local.turns, request) {
            Some(permit) => permit,
            // The agent is no longer declared, so no generation would claim a queued request. Wait for
            // a permit.
            None if is_gone => {
                let permit = self.engine.line_up_for_turn(&local.turns, request);
                permit.await.ok()?
            }
            None => return None,
        };
        Some(TurnSlot {
            local,
            permit,
            generation,
            _token: token,
        })
    }
}
