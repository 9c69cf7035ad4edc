//! Runs the agents that this server hosts: claims their requests, executes each turn in durable steps,
//! and ends it with an answer or an error.
//!
//! A turn keeps its lease while it runs and while it waits for other agents. When it waits for a person
//! it releases the lease and is dropped from memory. The next worker that claims the request, in this
//! process or a later one, resumes from the recorded steps.

mod child;
mod execute;
mod generation;
mod hold;
mod journal;
mod run;
mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use statehold_core::name::Name;
use statehold_engine::api::caller::ReadToken;
use statehold_engine::debug_log::DebugLog;
use statehold_engine::{Credential, Engine, EngineError};

use crate::chat::ChatClient;
use crate::gateway::{AnalyticsAgent, ChatAgent, ChatService, ConversationsAgent, McpAgent};
use crate::http::HttpPool;
use crate::llm::LlmAgent;
use crate::mcp::ToolServers;
use crate::model::ModelClient;
use crate::pipeline::PipelineAgent;
use crate::router::RouterAgent;
use crate::spec::{AgentBook, AgentKind, AgentSpec};
use crate::turn::Agent;

use generation::{AgentResources, Generation, LocalAgent, RunnerShared};

pub(crate) use child::{ChildAnswer, step_mismatch};
pub(crate) use hold::HoldDecision;
pub use journal::StepKind;
pub(crate) use journal::recorded_step;
pub(crate) use run::{AgentRun, StepExtras};
pub use run::{CommitPhase, SimulatedCrash, StepHook};
pub(crate) use tools::{CallReport, SkippedCall, Toolbox, render_for_model};

/// How long a lease lasts without a heartbeat.
const LEASE_MS: u64 = 30_000;
/// Default limit of concurrent turns per agent. Further requests stay in the queue.
const TURNS_MAX: usize = 1_024;

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
    /// Lets tools that are agents read the conversation. Without it, they get no address.
    pub conversation_reader: Option<ConversationReader>,
    /// Where the exchanges of turns with models, agents and tools are logged, if they are.
    pub debug_log: Option<Arc<DebugLog>>,
}

/// Where tools read conversations, and how their tokens are sealed.
#[derive(Clone)]
pub struct ConversationReader {
    /// The address of this server's MCP endpoint, as tool servers reach it.
    pub mcp_url: String,
    /// Makes the text of a read token.
    pub seal: Arc<dyn Fn(&ReadToken) -> Credential + Send + Sync>,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            on_step: Arc::new(|_, _| ()),
            turns_max: TURNS_MAX,
            asks_people: true,
            conversation_reader: None,
            debug_log: None,
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
        let active = shared.active().clone();
        let before = active.as_ref().map(|active| active.tools());
        let tools = Arc::new(ToolServers::new(&book, before));
        drop(active);
        let (mut local_agents, mut new) = (BTreeMap::new(), BTreeMap::new());
        for (name, spec) in &book.agents {
            let known = shared.resources(name);
            let resources = known.clone().unwrap_or_else(|| shared.new_resources());
            if let Some(agent) = build_agent(spec, &book, (&shared.http, &tools), &resources)? {
                let (spec, turns) = (Arc::clone(spec), resources.turns.clone());
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
    let require_tool_servers = |names: &[Name]| {
        let mut names = names.iter();
        match names.find(|name| !book.tool_servers.contains_key(*name)) {
            Some(server) => Err(undeclared(format!(
                "the tool server `{server}` is not declared; add [tool_servers.{server}]"
            ))),
            None => Ok(()),
        }
    };
    match &spec.kind {
        AgentKind::Router(router) => {
            let router = RouterAgent::new(Arc::clone(router), book, model)?;
            Ok(Some(Arc::new(router)))
        }
        AgentKind::Pipeline(pipeline) => {
            let pipeline = PipelineAgent::new(Arc::clone(pipeline), book);
            Ok(Some(Arc::new(pipeline)))
        }
        AgentKind::Llm(llm) => {
            require_tool_servers(&llm.tool_servers)?;
            let llm = LlmAgent::new(Arc::clone(llm), model(&llm.model)?, Arc::clone(tools));
            Ok(Some(Arc::new(llm)))
        }
        AgentKind::Openai(openai) => {
            let locks = Arc::clone(&resources.conversations);
            let service = ChatService::Openai(Arc::clone(openai));
            let agent = ChatAgent::new(service, chat.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Dial(dial) => {
            let locks = Arc::clone(&resources.conversations);
            let service = ChatService::Dial(Arc::clone(dial));
            let agent = ChatAgent::new(service, chat.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Conversations(service) => {
            let locks = Arc::clone(&resources.conversations);
            let agent = ConversationsAgent::new(Arc::clone(service), http.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Analytics(service) => {
            let locks = Arc::clone(&resources.conversations);
            let agent = AnalyticsAgent::new(Arc::clone(service), http.clone(), locks);
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Mcp(mcp) => {
            require_tool_servers(std::slice::from_ref(&mcp.tool_server))?;
            let agent = McpAgent::new(Arc::clone(mcp), Arc::clone(tools));
            Ok(Some(Arc::new(agent)))
        }
        AgentKind::Worker => Ok(None),
    }
}
