//! Runs the agents that this server hosts: claims their requests, executes each turn in durable steps,
//! and ends it with an answer or an error.
//!
//! A turn keeps its lease while it runs and while it waits for other agents. When it waits for a person
//! it releases the lease and is dropped from memory. The next worker that claims the request, in this
//! process or a later one, resumes from the recorded steps.

mod child;
mod generation;
mod hold;
mod journal;
mod run;
mod tools;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use statehold_core::command::Rejection;
use statehold_core::ids::RequestId;
use statehold_core::name::Name;
use statehold_engine::bodies::{error_in, payload};
use statehold_engine::leased::{ClaimedTurn, LeasedRequest};
use statehold_engine::{Engine, EngineError, StoredRecord};
use tokio::time::Instant;

use crate::chat::ChatClient;
use crate::gateway::{ConversationsAgent, OpenaiAgent};
use crate::http::HttpPool;
use crate::llm::LlmAgent;
use crate::mcp::ToolServers;
use crate::message::raw;
use crate::model::ModelClient;
use crate::router::RouterAgent;
use crate::spec::{AgentBook, AgentKind, AgentSpec};
use crate::turn::{Agent, TurnError, TurnFailure};

use generation::{AgentResources, Generation, LocalAgent, RunnerShared, TurnPermit};

pub(crate) use child::ChildAnswer;
pub(crate) use hold::HoldDecision;
pub use journal::StepKind;
pub(crate) use journal::recorded_step;
use run::WaitingParent;
pub(crate) use run::{AgentRun, StepExtras};
pub use run::{CommitPhase, SimulatedCrash, StepHook};
pub(crate) use tools::{CallReport, SkippedCall, Toolbox, render_for_model};

/// Lease duration, and the interval between heartbeats.
const LEASE: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Default limit of concurrent turns per agent. Further requests stay in the queue.
const TURNS_MAX: usize = 1_024;
/// Longest error code that is copied from another agent's failure, in bytes.
const CODE_BYTES_MAX: usize = 64;

/// Why a runner cannot start or cannot load a configuration.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The store fails.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The HTTP client cannot be built.
    #[error("agents cannot be called: {0}")]
    Clients(String),
    /// A declaration refers to something that is not declared.
    #[error("agent {agent} cannot work: {what}")]
    Declaration {
        /// The agent.
        agent: Name,
        /// The reason.
        what: String,
    },
}

/// Settings of a runner.
pub struct RunnerOptions {
    /// Called before and after each step is committed.
    pub on_step: StepHook,
    /// Maximum number of concurrent turns per agent. A turn that waits for another turn of the same
    /// session does not count.
    pub turns_max: usize,
    /// Whether agents may open holds. Off for engines in memory, because they are dropped before a
    /// person could decide.
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

/// Claims and executes requests of the hosted agents until it is stopped.
pub struct Runner {
    shared: Arc<RunnerShared>,
}

/// Validated declarations that no turn uses yet.
pub struct PreparedAgents(Arc<Generation>);

impl Runner {
    /// Starts to execute requests for every hosted agent in the book.
    ///
    /// # Errors
    ///
    /// If the store fails, or a declaration is invalid.
    pub async fn start(
        engine: Engine,
        tenant: Name,
        book: Arc<AgentBook>,
        options: RunnerOptions,
    ) -> Result<Self, RunnerError> {
        let http = HttpPool::new().map_err(|error| RunnerError::Clients(error.to_string()))?;
        let shared = RunnerShared::new(engine, tenant, http, options);
        let runner = Self {
            shared: Arc::new(shared),
        };
        let first = runner.prepare(book).await?;
        runner.switch(first).await;
        Ok(runner)
    }

    /// Validates new declarations and builds their agents. Running turns are not affected.
    ///
    /// # Errors
    ///
    /// If the store fails, or a declaration is invalid. The current declarations stay active.
    pub async fn prepare(&self, book: Arc<AgentBook>) -> Result<PreparedAgents, RunnerError> {
        let shared = &self.shared;
        let tools = Arc::new(ToolServers::new(&book));
        let (mut local_agents, mut new) = (BTreeMap::new(), BTreeMap::new());
        for (name, spec) in &book.agents {
            let known = shared.resources(name);
            let resources = known.clone().unwrap_or_else(|| shared.new_resources());
            if let Some(agent) = build_agent(spec, &book, (&shared.http, &tools), &resources)? {
                let (spec, turns) = (Arc::clone(spec), Arc::clone(&resources.turns));
                local_agents.insert(name.clone(), LocalAgent { spec, agent, turns });
                if known.is_none() {
                    new.insert(name.clone(), resources);
                }
            }
        }
        // Release the leases of an earlier process for all new agents before claiming anything: a
        // request of one may wait for a request of another. Leases of an agent that this process ran
        // before are its own, so they are not released.
        for name in new.keys() {
            let lost = shared.engine.give_back_lost_work(&shared.tenant, name);
            let given_back = lost.await?;
            if given_back > 0 {
                tracing::info!(agent = %name, given_back, "resuming requests of an earlier process");
            }
        }
        shared.remember_agents(new);
        let next = Generation::new(&self.shared, book, local_agents, tools);
        Ok(PreparedAgents(Arc::new(next)))
    }

    /// Activates new declarations. Running turns finish under the declarations they started with, and
    /// each request that is already started is claimed exactly once, by the old or the new generation.
    /// Returns when every request started afterwards goes to the new generation.
    pub async fn switch(&self, next: PreparedAgents) {
        let _one_at_a_time = self.shared.switching.lock().await;
        let next = next.0;
        let old = self.shared.active().replace(Arc::clone(&next));
        next.start_claiming();
        if let Some(old) = old {
            old.retire(&next, &self.shared.retiring).await;
        }
    }

    /// Signals the runner to stop, without waiting.
    pub fn begin_stop(&self) {
        self.shared.stop.cancel();
    }

    /// Stops the runner. After a restart, interrupted turns resume from their last recorded step.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        let last = self.shared.active().take();
        if let Some(last) = last {
            last.drain().await;
        }
        self.shared.retiring.close();
        self.shared.retiring.wait().await;
    }
}

/// Builds the agent that executes the turns. None for workers, which claim their own requests.
fn build_agent(
    spec: &Arc<AgentSpec>,
    book: &AgentBook,
    (http, tools): (&HttpPool, &Arc<ToolServers>),
    resources: &AgentResources,
) -> Result<Option<Arc<dyn Agent>>, RunnerError> {
    let chat = ChatClient::sharing(http.clone());
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
        Ok::<_, RunnerError>(ModelClient::new(chat.clone(), found))
    };
    match &spec.kind {
        AgentKind::Router(router) => {
            let router = RouterAgent::new(Arc::clone(router), book, model)?;
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
            let llm = LlmAgent::new(Arc::clone(llm), model(&llm.model)?, Arc::clone(tools));
            Ok(Some(Arc::new(llm)))
        }
        AgentKind::Openai(openai) => {
            let locks = Arc::clone(&resources.conversations);
            let agent = OpenaiAgent::new(Arc::clone(openai), chat.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Conversations(service) => {
            let locks = Arc::clone(&resources.conversations);
            let agent = ConversationsAgent::new(Arc::clone(service), http.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Worker => Ok(None),
    }
}

impl Generation {
    /// Executes one turn until it ends or waits.
    async fn execute_turn(
        self: Arc<Self>,
        local: LocalAgent,
        claimed: (ClaimedTurn, Instant),
        permit: TurnPermit,
        parent: Option<WaitingParent>,
    ) {
        let (request, agent) = (claimed.0.request.clone(), &local.spec.name);
        let ended = self.try_turn(&local, claimed, permit, parent).await;
        let ended = match ended {
            Err(TurnError::Failed(failure)) => fail(&request, &failure).await,
            other => other,
        };
        match ended {
            Ok(()) | Err(TurnError::Paused | TurnError::Gone) => {}
            // The lease expires, then the request is claimed again.
            Err(error) => {
                tracing::warn!(%agent, request = %request.ids.request, %error, "a turn stopped; it is retried later");
            }
        }
    }

    async fn try_turn(
        self: &Arc<Self>,
        LocalAgent { spec, agent, .. }: &LocalAgent,
        (claimed, claimed_at): (ClaimedTurn, Instant),
        permit: TurnPermit,
        parent: Option<WaitingParent>,
    ) -> Result<(), TurnError> {
        let request = &claimed.request.clone();
        // Steps are durable before a model, an agent or a tool is asked. The lease is the only thing that a
        // turn begins with and that may not be: each write of a turn returns when it is durable.
        if !agent.starts_with_commit() {
            request.durable().await?;
        }
        // A request that waited in memory for a heartbeat interval may have been claimed by another
        // worker.
        if claimed_at.elapsed() >= HEARTBEAT {
            request.heartbeat().await?;
        }
        let id = request.ids.request;
        // Keep the draft open until this turn ends, also if it panics.
        let _draft = self.engine.open_draft(id);
        let mut run = AgentRun::open(Arc::clone(self), Arc::clone(spec), claimed, permit).await?;
        run.parent = Mutex::new(parent);
        let turn = AssertUnwindSafe(agent.turn(&mut run)).catch_unwind();
        let outcome = tokio::select! {
            biased;
            outcome = turn => outcome,
            () = keep_lease(request) => Ok(Err(TurnError::Gone)),
            () = self.stop.cancelled() => return Err(TurnError::Gone),
        };
        let outcome = outcome.unwrap_or_else(|panic| {
            if panic.is::<SimulatedCrash>() {
                return Err(TurnError::Gone);
            }
            tracing::error!(agent = %spec.name, request = %id, "a turn panicked");
            let message = "the server has a bug here; only recorded steps have taken effect";
            Err(TurnError::failed("internal", message))
        });
        match outcome {
            Ok(answer) => tokio::select! {
                biased;
                completed = run.complete(&answer) => completed,
                () = keep_lease(request) => Err(TurnError::Gone),
            },
            Err(error) => {
                if let TurnError::Failed(_) = &error {
                    run.record_deferred().await?;
                }
                Err(error)
            }
        }
    }
}

/// Fails a request with an error.
async fn fail(request: &LeasedRequest, failure: &TurnFailure) -> Result<(), TurnError> {
    let failed = match request.fail(&raw(failure)).await {
        // Open holds prevent the request from failing now. Release the lease, so that a later claim
        // fails it after the decisions. A decision made meanwhile must not look like work that a lost
        // worker had started.
        Err(EngineError::Rejected(Rejection::HoldsOpen { .. })) => request.release(None).await,
        failed => failed,
    };
    failed.map_err(TurnError::from)
}

/// Sends heartbeats. Returns when the lease is lost.
async fn keep_lease(request: &LeasedRequest) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if let Err(error) = request.heartbeat().await
            && matches!(TurnError::from(error), TurnError::Gone)
        {
            return;
        }
    }
}

fn lease_ms() -> u64 {
    u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the error of a failed request from its record.
fn read_error(stored: &StoredRecord, id: RequestId) -> Option<TurnFailure> {
    let error = error_in(&stored.record.content.events, id)?;
    let value: serde_json::Value = serde_json::from_slice(payload(stored, error)?).ok()?;
    let text = |name: &str| value.get(name).and_then(serde_json::Value::as_str);
    let message = value.as_str().or_else(|| text("message"));
    // Workers choose their own error codes, so bound the length.
    let code = text("code").filter(|code| code.len() <= CODE_BYTES_MAX);
    Some(TurnFailure {
        code: code.unwrap_or("agent_failed").to_owned(),
        message: message.unwrap_or("the agent gave no reason").to_owned(),
    })
}
