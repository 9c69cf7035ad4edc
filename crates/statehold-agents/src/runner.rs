//! Works for the agents that this server has itself: claims their requests, takes each turn in durable
//! steps, and ends it with an answer or a reason.
//!
//! A turn keeps its lease while it runs and while it waits for other agents; where it waits for a person
//! it gives the lease back and is forgotten. Whoever claims it later, in this process or the next, goes on
//! from what is recorded.

mod child;
mod clients;
mod generation;
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
use statehold_engine::{Call, ClaimedRequest, Engine, EngineError, Reply, StoredRecord};
use tokio::time::Instant;

use crate::gateway::{Conversations, Openai};
use crate::http::HttpClient;
use crate::llm::Llm;
use crate::model::Model;
use crate::router::Router;
use crate::spec::{AgentBook, AgentKind, AgentSpec};
use crate::turn::{Agent, TurnError, TurnFailure};
use crate::words::raw;

use generation::{Generation, Lasting, Ours, Seat, Works};

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
    works: Arc<Works>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

/// Declarations that can be worked by, and by which nobody works yet.
pub struct Prepared(Arc<Generation>);

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
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
        let http = HttpClient::new().map_err(|error| RunnerError::Clients(error.to_string()))?;
        let works = Works::new(engine, tenant, http, options);
        let runner = Self {
            works: Arc::new(works),
        };
        let first = runner.prepare(book).await?;
        runner.switch(first).await;
        Ok(runner)
    }

    /// Gets ready to work by other declarations. Nobody works by them yet, and whoever works goes on.
    ///
    /// # Errors
    ///
    /// If the store fails, or a declaration makes no sense. Then nothing has changed.
    pub async fn prepare(&self, book: Arc<AgentBook>) -> Result<Prepared, RunnerError> {
        let works = &self.works;
        let clients = Clients::new(&works.http, &book);
        let (mut ours, mut new) = (BTreeMap::new(), BTreeMap::new());
        for (name, spec) in &book.agents {
            let known = works.lasting(name);
            let lasting = known.clone().unwrap_or_else(|| works.new_lasting());
            if let Some(agent) = agent_of(spec, &book, &clients, &lasting)? {
                let (spec, turns) = (Arc::clone(spec), Arc::clone(&lasting.turns));
                ours.insert(name.clone(), Ours { spec, agent, turns });
                if known.is_none() {
                    new.insert(name.clone(), lasting);
                }
            }
        }
        // All of them, before anything is claimed: a request of one may wait for that of another. What is
        // claimed for an agent that was ours before is in our own hands, also if it is not ours just now.
        for name in new.keys() {
            let lost = works.engine.give_back_lost_work(&works.tenant, name);
            let given_back = lost.await?;
            if given_back > 0 {
                tracing::info!(agent = %name, given_back, "going on with what an earlier process began");
            }
        }
        works.keep(new);
        let next = Generation::new(&self.works, book, ours, clients.tools);
        Ok(Prepared(Arc::new(next)))
    }

    /// Works by other declarations from now on. Turns that are under way end by those that they began with,
    /// and what was started until now is taken once, by the one or the other. Done when whatever is started
    /// afterwards is taken by the new ones.
    pub async fn switch(&self, next: Prepared) {
        let _one_at_a_time = self.works.switching.lock().await;
        let next = next.0;
        let old = self.works.replace(&next);
        next.begin();
        if let Some(old) = old {
            old.leave(&next, &self.works.leaving).await;
        }
    }

    /// Begins to stop, without waiting for it.
    pub fn begin_stop(&self) {
        self.works.stop.cancel();
    }

    /// Stops. Turns that are under way go on from their last step when the server starts again.
    pub async fn stop(&self) {
        self.works.stop.cancel();
        if let Some(last) = self.works.take() {
            last.end().await;
        }
        self.works.leaving.close();
        self.works.leaving.wait().await;
    }
}

/// What does the turns of an agent. None for those that work elsewhere.
fn agent_of(
    spec: &Arc<AgentSpec>,
    book: &AgentBook,
    clients: &Clients,
    lasting: &Lasting,
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
            let locks = Arc::clone(&lasting.conversations);
            let agent = Openai::new(Arc::clone(openai), clients.chat.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Conversations(service) => {
            let locks = Arc::clone(&lasting.conversations);
            let agent = Conversations::new(Arc::clone(service), clients.http.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Worker => Ok(None),
    }
}

impl Generation {
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
            () = self.stopped() => return Err(TurnError::Gone),
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
