//! Works for the agents that this server has itself: claims their requests, takes each turn in durable
//! steps, and ends it with an answer or a reason.
//!
//! A turn keeps its lease while it runs and while it waits for other agents; where it waits for a person
//! it gives the lease back and is forgotten. Whoever claims it later, in this process or the next, goes on
//! from what is recorded.

mod child;
mod clients;
mod hold;
mod journal;
mod run;
mod tools;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use statehold_core::command::{Command, Rejection};
use statehold_core::ids::RequestId;
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_engine::{
    Begun, Call, Caller, Claim, ClaimedRequest, Engine, EngineError, Reply, StoredRecord,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::gateway::{Conversations, Openai};
use crate::llm::Llm;
use crate::mcp::ToolServers;
use crate::model::Model;
use crate::router::Router;
use crate::spec::{AgentBook, AgentKind, AgentSpec};
use crate::turn::{Agent, TurnError, TurnFailure};
use crate::words::raw;

pub(crate) use child::ChildAnswer;
pub(crate) use clients::Clients;
pub(crate) use hold::Decided;
pub use journal::StepKind;
pub(crate) use journal::recorded_step;
pub(crate) use run::{Beside, Place, Run, StepDone};
pub use run::{Lost, Moment, OnStep};
pub(crate) use tools::{NotMade, Told, Toolbox, told_of};

/// How long a turn is ours without a sign of life, and how often we give one.
const LEASE: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long one look for work waits, and how many requests it takes.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
const CLAIM_MAX: usize = 64;
/// How long to rest when the store fails.
const REST: Duration = Duration::from_secs(1);
/// How many turns of one agent are under way at once, as a rule. The others wait in line.
const TURNS_MAX: usize = 1_024;
/// The longest name of an error that is passed on, in bytes.
const CODE_BYTES_MAX: usize = 64;

/// Why no work can be done.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The store fails.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Nobody can be called.
    #[error("agents cannot be called: {0}")]
    Clients(String),
    /// A declaration names something that is not declared.
    #[error("agent {agent} cannot work: {what}")]
    Declaration {
        /// The agent.
        agent: Name,
        /// What is wrong.
        what: String,
    },
}

/// How a runner works.
pub struct RunnerOptions {
    /// Told of every step.
    pub on_step: OnStep,
    /// How many turns of one agent are under way at once. Those that only wait until another turn of their
    /// session ends do not count.
    pub turns_max: usize,
    /// Whether people can be asked something. Where nothing is kept, nobody could answer.
    pub asks_people: bool,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            on_step: Arc::new(|_, _| ()),
            turns_max: TURNS_MAX,
            asks_people: true,
        }
    }
}

impl std::fmt::Debug for RunnerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerOptions")
            .field("turns_max", &self.turns_max)
            .field("asks_people", &self.asks_people)
            .finish_non_exhaustive()
    }
}

/// Works until it is stopped.
pub struct Runner {
    tasks: TaskTracker,
    stop: CancellationToken,
    tools: Arc<ToolServers>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

/// What all turns share.
pub(crate) struct Shared {
    engine: Engine,
    caller: Caller,
    on_step: OnStep,
    asks_people: bool,
    ours: BTreeMap<Name, Ours>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// An agent that this server works for.
#[derive(Clone)]
struct Ours {
    spec: Arc<AgentSpec>,
    agent: Arc<dyn Agent>,
    /// How many more turns may be under way.
    turns: Arc<Semaphore>,
}

/// The seat of one turn among those that are under way.
pub(crate) struct Seat {
    turns: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Seat {
    /// Waits for something that another turn ends, and leaves the seat to others meanwhile.
    pub(crate) async fn left_for<T>(&mut self, wait: impl Future<Output = T>) -> T {
        self.permit = None;
        let done = wait.await;
        // Whoever has a seat waits for nobody who has none, so there will be one.
        self.permit = Arc::clone(&self.turns).acquire_owned().await.ok();
        done
    }
}

impl Runner {
    /// Begins to work for every agent in the book that is ours.
    ///
    /// # Errors
    ///
    /// If the store fails, or a declaration makes no sense.
    pub async fn start(
        engine: Engine,
        tenant: Name,
        book: Arc<AgentBook>,
    ) -> Result<Self, RunnerError> {
        Self::start_with(engine, tenant, book, RunnerOptions::default()).await
    }

    /// The same, telling somebody of every step.
    ///
    /// # Errors
    ///
    /// As [`Runner::start`].
    pub async fn start_watched(
        engine: Engine,
        tenant: Name,
        book: Arc<AgentBook>,
        on_step: OnStep,
    ) -> Result<Self, RunnerError> {
        let options = RunnerOptions {
            on_step,
            ..RunnerOptions::default()
        };
        Self::start_with(engine, tenant, book, options).await
    }

    /// The same, working as is said.
    ///
    /// # Errors
    ///
    /// As [`Runner::start`].
    pub async fn start_with(
        engine: Engine,
        tenant: Name,
        book: Arc<AgentBook>,
        options: RunnerOptions,
    ) -> Result<Self, RunnerError> {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let clients =
            Clients::new(&book).map_err(|error| RunnerError::Clients(error.to_string()))?;
        let mut ours = BTreeMap::new();
        for (name, spec) in &book.agents {
            if let Some(agent) = agent_of(spec, &book, &clients)? {
                let (spec, turns) = (
                    Arc::clone(spec),
                    Arc::new(Semaphore::new(options.turns_max)),
                );
                ours.insert(name.clone(), Ours { spec, agent, turns });
            }
        }
        let shared = Arc::new(Shared {
            engine,
            caller: Caller::worker_of_server(tenant.clone()),
            on_step: options.on_step,
            asks_people: options.asks_people,
            ours,
            tasks: tasks.clone(),
            stop: stop.clone(),
        });
        // All of them, before anything is claimed: a request of one may wait for that of another.
        for name in shared.ours.keys() {
            let given_back = shared.engine.give_back_lost_work(&tenant, name).await?;
            if given_back > 0 {
                tracing::info!(agent = %name, given_back, "going on with what an earlier process began");
            }
        }
        for (name, ours) in &shared.ours {
            let room = Arc::clone(&ours.turns);
            let begun = shared.engine.take_begun(&tenant, name, room, lease_ms());
            tasks.spawn(Arc::clone(&shared).take_begun(ours.clone(), begun));
            tasks.spawn(Arc::clone(&shared).work_for(ours.clone()));
        }
        let tools = clients.tools;
        Ok(Self { tasks, stop, tools })
    }

    /// Begins to stop, without waiting for it.
    pub fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Stops. Turns that are under way go on from their last step when the server starts again.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        // Programs that were started for their tools end before this process does.
        if let Some(tools) = Arc::into_inner(self.tools) {
            tools.close().await;
        }
    }
}

/// What does the turns of an agent. None for those that work elsewhere.
fn agent_of(
    spec: &Arc<AgentSpec>,
    book: &AgentBook,
    clients: &Clients,
) -> Result<Option<Arc<dyn Agent>>, RunnerError> {
    let undeclared = |what: String| RunnerError::Declaration {
        agent: spec.name.clone(),
        what,
    };
    let model = |name: &Name| {
        let found = book.models.get(name);
        let found = found.ok_or_else(|| {
            undeclared(format!(
                "the model `{name}` is not declared; add [models.{name}]"
            ))
        })?;
        Ok::<_, RunnerError>(Model::new(clients.chat.clone(), found))
    };
    match &spec.kind {
        AgentKind::Router(router) => {
            let router = Router::new(Arc::clone(router), book, model)?;
            Ok(Some(Arc::new(router)))
        }
        AgentKind::Llm(llm) => {
            let mut servers = llm.tool_servers.iter();
            if let Some(server) = servers.find(|name| !book.tool_servers.contains_key(*name)) {
                let what = format!(
                    "the tool server `{server}` is not declared; add [tool_servers.{server}]"
                );
                return Err(undeclared(what));
            }
            let tools = Arc::clone(&clients.tools);
            let llm = Llm::new(Arc::clone(llm), model(&llm.model)?, tools);
            Ok(Some(Arc::new(llm)))
        }
        AgentKind::Openai(openai) => {
            let agent = Openai::new(Arc::clone(openai), clients.chat.clone());
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Conversations(service) => {
            let agent = Conversations::new(Arc::clone(service), clients.http.clone());
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Worker => Ok(None),
    }
}

impl Shared {
    /// Claims the requests of one agent, and takes their turns.
    async fn work_for(self: Arc<Self>, ours: Ours) {
        let agent = &ours.spec.name;
        loop {
            // What is claimed begins at once: a lease that waits for its turn runs out meanwhile.
            let Some(mut room) = room(&ours.turns).await else {
                return;
            };
            let claim = Claim {
                agent: agent.clone(),
                max: room.num_permits(),
                wait: CLAIM_WAIT,
                lease_ms: lease_ms(),
                request: None,
            };
            let claimed = tokio::select! {
                claimed = self.engine.claim(&self.caller, &claim) => claimed,
                () = self.stop.cancelled() => return,
                () = self.engine.stopping() => return,
            };
            let claimed = match claimed {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!(%agent, %error, "cannot claim work; trying again");
                    tokio::select! {
                        () = tokio::time::sleep(REST) => continue,
                        () = self.stop.cancelled() => return,
                    }
                }
            };
            for request in claimed {
                // No more are claimed than there is room for.
                if let Some(permit) = room.split(1) {
                    self.spawn_turn(&ours, request, permit);
                }
            }
        }
    }

    /// Takes the turns of requests that are claimed for one agent as they are started.
    async fn take_begun(self: Arc<Self>, ours: Ours, mut begun: mpsc::UnboundedReceiver<Begun>) {
        loop {
            let one = tokio::select! {
                one = begun.recv() => one,
                () = self.stop.cancelled() => return,
                () = self.engine.stopping() => return,
            };
            let Some(one) = one else {
                return;
            };
            let (shared, ours) = (Arc::clone(&self), ours.clone());
            self.tasks.spawn(async move {
                let (session, request) = (one.session, one.request);
                let claimed = shared.engine.handed_over(&shared.caller, session, request, 1);
                match claimed.await {
                    Ok(claimed) => shared.spawn_turn(&ours, claimed, one.room),
                    // It has ended already, or is claimed again once its lease has lapsed.
                    Err(error) => {
                        let agent = &ours.spec.name;
                        tracing::warn!(%agent, %request, %error, "a request waits to be claimed again");
                    }
                }
            });
        }
    }

    fn spawn_turn(
        self: &Arc<Self>,
        ours: &Ours,
        request: ClaimedRequest,
        permit: OwnedSemaphorePermit,
    ) {
        let (shared, ours) = (Arc::clone(self), ours.clone());
        let claimed = (request, Instant::now());
        let seat = Seat {
            turns: ours.turns,
            permit: Some(permit),
        };
        let turn = shared.take_turn(ours.spec, ours.agent, claimed, seat);
        self.tasks.spawn(turn);
    }

    /// Room for one more turn of an agent that is ours.
    fn room_for(&self, agent: &Name) -> Option<(&Ours, OwnedSemaphorePermit)> {
        let ours = self.ours.get(agent)?;
        let permit = Arc::clone(&ours.turns).try_acquire_owned().ok()?;
        Some((ours, permit))
    }

    /// Takes one turn, to its end or to where it waits.
    async fn take_turn(
        self: Arc<Self>,
        spec: Arc<AgentSpec>,
        agent: Arc<dyn Agent>,
        (claimed, claimed_at): (ClaimedRequest, Instant),
        seat: Seat,
    ) {
        let Some(place) = Place::of(&claimed) else {
            return;
        };
        let ended = self
            .try_turn(place, &spec, &*agent, (claimed, claimed_at), seat)
            .await;
        let ended = match ended {
            Err(TurnError::Failed(failure)) => self.fail(place, &failure).await,
            other => other,
        };
        match ended {
            Ok(()) | Err(TurnError::Paused | TurnError::Gone) => {}
            // The lease lapses, and the turn is claimed again.
            Err(error) => {
                tracing::warn!(agent = %spec.name, request = %place.request, %error, "a turn stopped; it goes on later");
            }
        }
    }

    async fn try_turn(
        self: &Arc<Self>,
        place: Place,
        spec: &Arc<AgentSpec>,
        agent: &dyn Agent,
        (claimed, claimed_at): (ClaimedRequest, Instant),
        seat: Seat,
    ) -> Result<(), TurnError> {
        self.require_ours(place, claimed_at).await?;
        // There as long as this turn is, however it ends.
        let _draft = self.engine.open_draft(place.request);
        let mut run = Run::open(Arc::clone(self), Arc::clone(spec), claimed, seat).await?;
        let turn = AssertUnwindSafe(agent.turn(&mut run)).catch_unwind();
        let outcome = tokio::select! {
            biased;
            outcome = turn => outcome,
            () = self.stay_alive(place.session, place.request, place.fence) => Ok(Err(TurnError::Gone)),
            () = self.stop.cancelled() => return Err(TurnError::Gone),
        };
        let outcome = outcome.unwrap_or_else(|panic| {
            if panic.is::<Lost>() {
                return Err(TurnError::Gone);
            }
            tracing::error!(agent = %spec.name, request = %place.request, "a turn panicked");
            let message = "the server has a bug here; nothing that was not recorded has happened";
            Err(TurnError::failed("internal", message))
        });
        match outcome {
            Ok(answer) => run.complete(&answer).await,
            Err(error) => {
                if let TurnError::Failed(_) = &error {
                    run.record_waiting().await?;
                }
                Err(error)
            }
        }
    }

    /// What was claimed a while ago may be somebody else's by now: that is asked before anything is done.
    async fn require_ours(&self, place: Place, claimed_at: Instant) -> Result<(), TurnError> {
        if claimed_at.elapsed() < HEARTBEAT {
            return Ok(());
        }
        let Place {
            session,
            request,
            fence,
            ..
        } = place;
        let alive = self.engine.heartbeat(&self.caller, session, request, fence);
        alive.await.map(drop).map_err(TurnError::from)
    }

    /// Ends a request with what went wrong.
    async fn fail(&self, place: Place, failure: &TurnFailure) -> Result<(), TurnError> {
        let owner = self.engine.owner(place.session).await?;
        let payloads = self.engine.payloads_for(&owner.tenant, owner.user).await;
        let mut payloads = payloads?;
        let error = payloads.put(raw(failure).get().as_bytes().to_vec());
        let command = Command::FailRequest {
            by: place.fenced(),
            error,
            cancel_children: true,
        };
        let call = Call::by(self.caller.clone());
        let reply: Reply = Arc::new(|_| Vec::new());
        let done = self
            .engine
            .submit(place.session, &call, &command, &payloads, &reply)
            .await;
        if !matches!(
            done,
            Err(EngineError::Rejected(Rejection::HoldsOpen { .. }))
        ) {
            return done.map(drop).map_err(TurnError::from);
        }
        // People are being asked, so it cannot end yet. Given back, it ends once they have decided; what
        // they decide meanwhile must not look like something that a lost worker was about to do.
        let command = Command::ReleaseLease { by: place.fenced() };
        let left = self
            .engine
            .submit(place.session, &call, &command, &payloads, &reply)
            .await;
        left.map(drop).map_err(TurnError::from)
    }

    /// Keeps a lease alive. Ends when there is nothing to keep.
    async fn stay_alive(
        &self,
        session: statehold_core::ids::SessionId,
        request: RequestId,
        fence: u64,
    ) {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            let alive = self
                .engine
                .heartbeat(&self.caller, session, request, fence)
                .await;
            match alive {
                Ok(_) => {}
                Err(error) => {
                    if matches!(TurnError::from(error), TurnError::Gone) {
                        return;
                    }
                }
            }
        }
    }
}

/// Room for as many turns as may be claimed at once, at least one. None if there are no more turns.
async fn room(turns: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let mut room = Arc::clone(turns).acquire_owned().await.ok()?;
    let more = turns.available_permits().min(CLAIM_MAX - 1);
    let more = u32::try_from(more).unwrap_or_default();
    if let Ok(more) = Arc::clone(turns).try_acquire_many_owned(more) {
        room.merge(more);
    }
    Some(room)
}

fn lease_ms() -> u64 {
    u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX)
}

/// What a record says went wrong with a request.
fn error_of(stored: &StoredRecord, id: RequestId) -> Option<TurnFailure> {
    let named = stored.record.bodies();
    let events = &stored.record.content.events;
    let error = events.iter().find_map(|event| match event {
        Event::RequestEnded { request, error, .. } if *request == id => *error,
        _ => None,
    })?;
    let index = named.iter().position(|body| *body == error)?;
    let bytes = stored.bodies.get(index)?.as_deref()?;
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let text = |name: &str| value.get(name).and_then(serde_json::Value::as_str);
    let message = value.as_str().or_else(|| text("message"));
    // A worker may call it what it likes.
    let code = text("code").filter(|code| code.len() <= CODE_BYTES_MAX);
    Some(TurnFailure {
        code: code.unwrap_or("agent_failed").to_owned(),
        message: message.unwrap_or("the agent gave no reason").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_room_for_everything_that_is_claimed() {
        let turns = Arc::new(Semaphore::new(CLAIM_MAX + 2));
        let mut first = room(&turns).await.expect("room");
        assert_eq!(first.num_permits(), CLAIM_MAX);
        let second = room(&turns).await.expect("room");
        assert_eq!((second.num_permits(), turns.available_permits()), (2, 0));
        // What begins keeps its room, and what is not used is given back.
        let turn = first.split(1);
        drop((first, second));
        assert_eq!(turns.available_permits(), CLAIM_MAX + 1);
        drop(turn);
        assert_eq!(turns.available_permits(), CLAIM_MAX + 2);
    }
}
