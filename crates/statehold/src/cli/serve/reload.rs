//! Reloads the configuration of a running server. Agents, models and tool servers change at once,
//! all of them or none. Every other setting needs a restart and is listed in the result.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use statehold_agents::runner::{ConversationReader, Runner, RunnerError, RunnerOptions, StepHook};
use statehold_agents::scratch::{EngineFactory, Scratch};
use statehold_agents::spec::{AgentBook, StateFormat};
use statehold_core::name::Name;
use statehold_engine::debug_log::DebugLog;
use statehold_engine::policy::Policies;
use statehold_engine::{Clock, Credential, Engine, Swap};
use statehold_server::{Reload, ReloadError, ReloadFuture, ReloadMistake, ReloadReport};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServePlan;
use crate::config::{
    Config, ConfigEnvironment, ConfigTables, DeclaredAgents, SourcedValue, agent_table,
    declare_agents, other_settings, policies, tool_table,
};
use crate::demo::EmbeddedDemo;
use crate::exit::Failure;
use crate::leftover_programs::mark_programs;
use crate::wire;

/// Builds the plan of a server from its flags, the current environment and the current file.
pub(super) type MakePlan =
    Arc<dyn Fn(&ConfigEnvironment) -> anyhow::Result<ServePlan> + Send + Sync>;

/// The declarations in force, with the demo agents added.
pub(super) struct ActiveConfig {
    tables: ConfigTables,
    pub(super) book: Arc<AgentBook>,
    pub(super) credentials: BTreeMap<Name, Credential>,
    pub(super) policies: Policies,
}

impl ActiveConfig {
    pub(super) fn new(
        mut config: Config,
        mut declared: DeclaredAgents,
        demo: &EmbeddedDemo,
        mark: Option<&str>,
    ) -> Self {
        mark_programs(&mut declared.book, mark);
        for name in demo.newly_declared(&config.agents) {
            config.agents.remove(&name);
            declared.credentials.remove(&name);
        }
        let config = &config;
        Self {
            tables: ConfigTables::of(config, &declared),
            book: Arc::new(demo.merge_into(declared.book)),
            credentials: declared.credentials,
            policies: demo.policies(policies(config)),
        }
    }

    /// A factory of in-memory engines with the same policies and credentials, for stateless calls.
    fn make_scratch(&self, clock: &Arc<dyn Clock>, engine: &Engine) -> EngineFactory {
        let (policies, credentials) = (self.policies.clone(), self.credentials.clone());
        wire::make_in_memory(Arc::clone(clock), policies, credentials, engine)
    }
}

/// The parts of a server that exist before its agents start.
pub(super) struct ReloadContext {
    pub(super) plan: MakePlan,
    /// The values that the server was started with.
    pub(super) started: Vec<SourcedValue>,
    /// The configuration file found at the start, if no flag names one.
    pub(super) file: Option<PathBuf>,
    /// The demo stays as it was at the start, also if later files declare its agents.
    pub(super) demo: Arc<EmbeddedDemo>,
    /// The mark of the programs that this server starts.
    pub(super) mark: Option<String>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) engine: Engine,
    pub(super) tenant: Name,
    pub(super) conversation_reader: ConversationReader,
    /// Where the exchanges of turns are logged, if they are.
    pub(super) debug_log: Option<Arc<DebugLog>>,
}

impl ReloadContext {
    /// Starts the runner for the declared agents.
    ///
    /// # Errors
    ///
    /// If the runner cannot start.
    pub(super) async fn start_agents(
        self,
        active: ActiveConfig,
        on_step: StepHook,
    ) -> Result<ConfigReloader, RunnerError> {
        let (book, tenant) = (Arc::clone(&active.book), self.tenant.clone());
        let make = active.make_scratch(&self.clock, &self.engine);
        let scratch = Scratch::new(make, tenant.clone(), Arc::clone(&book));
        let agents = Swap::new(Arc::clone(&book));
        let engine = self.engine.clone();
        let options = RunnerOptions {
            on_step,
            conversation_reader: Some(self.conversation_reader.clone()),
            debug_log: self.debug_log.clone(),
            ..RunnerOptions::default()
        };
        warn_of_plain_states(&book);
        let runner = Runner::start(engine, tenant, book, options).await?;
        let targets = ReloadTargets {
            context: self,
            agents,
            scratch: Arc::new(scratch),
            runner,
            active: tokio::sync::Mutex::new(active),
        };
        Ok(ConfigReloader {
            targets: Arc::new(targets),
            tasks: TaskTracker::new(),
        })
    }
}

/// Warns of agents whose clients carry states that they can read and change.
fn warn_of_plain_states(book: &AgentBook) {
    let specs = book.agents.values();
    for spec in specs.filter(|spec| spec.state_format == StateFormat::Plain) {
        tracing::warn!(
            agent = %spec.name,
            "clients of DIAL carry the states of agents in plain text (`state_format = \"plain\"`): they can read \
             them; leave it out for sealed references"
        );
    }
}

/// The components that a reload updates.
struct ReloadTargets {
    context: ReloadContext,
    agents: Swap<AgentBook>,
    scratch: Arc<Scratch>,
    runner: Runner,
    /// The configuration in force. The lock serializes reloads.
    active: tokio::sync::Mutex<ActiveConfig>,
}

/// SIGHUP signals. While this exists, SIGHUP does not end the process.
pub(super) struct HangupSignals {
    signals: Signal,
    /// Whether standard input was a terminal at the start.
    had_terminal: bool,
}

impl HangupSignals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            had_terminal: std::io::stdin().is_terminal(),
            signals: signal(SignalKind::hangup())?,
        })
    }
}

/// Reloads the configuration of a running server.
pub(super) struct ConfigReloader {
    targets: Arc<ReloadTargets>,
    tasks: TaskTracker,
}

impl std::fmt::Debug for ConfigReloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

impl Reload for ConfigReloader {
    fn reload(&self) -> ReloadFuture<'_> {
        // A reload runs to its end, also if the caller disconnects.
        let targets = Arc::clone(&self.targets);
        let done = self.tasks.spawn(async move { targets.reload().await });
        Box::pin(async move { done.await.unwrap_or(Err(ReloadError::Stopping)) })
    }
}

impl ConfigReloader {
    /// The declared agents.
    pub(super) fn agents(&self) -> Swap<AgentBook> {
        self.targets.agents.clone()
    }

    /// The engine for stateless calls.
    pub(super) fn scratch(&self) -> Arc<Scratch> {
        Arc::clone(&self.targets.scratch)
    }

    /// Finishes a running reload, then stops the runner.
    pub(super) async fn stop(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.targets.runner.stop().await;
        self.targets.scratch.close().await;
    }

    /// Reloads at every SIGHUP, until the server stops. A SIGHUP from a closed terminal asks for a
    /// stop instead, as for any program: it cancels `gone`.
    pub(super) async fn follow(
        self: Arc<Self>,
        mut hangups: HangupSignals,
        gone: CancellationToken,
        stop: CancellationToken,
    ) {
        while let Some(Some(())) = stop.run_until_cancelled(hangups.signals.recv()).await {
            if hangups.had_terminal && !std::io::stdin().is_terminal() {
                return gone.cancel();
            }
            // `reload` logs the result.
            drop(self.reload().await);
        }
    }
}

impl ReloadTargets {
    async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        let reloaded = self.read_and_apply().await;
        match &reloaded {
            Ok(done) => {
                let ReloadReport {
                    added,
                    changed,
                    removed,
                    needs_restart,
                } = done;
                tracing::info!(
                    ?added,
                    ?changed,
                    ?removed,
                    ?needs_restart,
                    "the configuration was read again"
                );
            }
            Err(ReloadError::Mistakes(mistakes)) => {
                for ReloadMistake { message, hint, .. } in mistakes {
                    let hint = Some(hint).filter(|hint| !hint.is_empty());
                    tracing::warn!(hint, "the configuration has a mistake: {message}");
                }
                tracing::warn!("nothing was changed; the server keeps its configuration");
            }
            Err(error) => {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                tracing::warn!(cause, "{error}");
            }
        }
        reloaded
    }

    async fn read_and_apply(&self) -> Result<ReloadReport, ReloadError> {
        let mut active = self.active.lock().await;
        let context = &self.context;
        let plan = Arc::clone(&context.plan);
        let file = context.file.clone();
        let read =
            tokio::task::spawn_blocking(move || read_configuration(&plan, file.as_deref())).await;
        let (plan, declared) = read.map_err(|_| ReloadError::Stopping)??;
        let new = ActiveConfig::new(
            plan.config.clone(),
            declared,
            &context.demo,
            context.mark.as_deref(),
        );
        let mut report = new.tables.since(&active.tables);
        let needs_restart = &mut report.needs_restart;
        needs_restart.extend(other_settings(&context.started, &plan.explained));
        let in_the_way = context.demo.newly_declared(&plan.config.agents);
        needs_restart.extend(in_the_way.iter().map(agent_table));
        let next = self.runner.prepare(Arc::clone(&new.book)).await;
        let next = next.map_err(ReloadError::Agents)?;
        // Nothing below can fail, so the switch is atomic.
        let policies = new.policies.clone().in_place_of(&context.engine.policies());
        needs_restart.extend(
            policies
                .kept_tools()
                .map(|(agent, tool)| tool_table(agent, tool)),
        );
        needs_restart.sort_unstable();
        context.engine.set_policies(policies);
        let own = new.credentials.clone();
        context.engine.set_service_credentials(own);
        let make = new.make_scratch(&context.clock, &context.engine);
        self.scratch.declare(make, Arc::clone(&new.book)).await;
        self.agents.set(Arc::clone(&new.book));
        self.runner.switch(next).await;
        warn_of_plain_states(&new.book);
        *active = new;
        Ok(report)
    }
}

/// Reads the file and the environment again, or returns every mistake in them.
fn read_configuration(
    plan: &MakePlan,
    file: Option<&Path>,
) -> Result<(ServePlan, DeclaredAgents), ReloadError> {
    let environment = ConfigEnvironment::of_process().with_file(file);
    let plan =
        plan(&environment).map_err(|error| ReloadError::Mistakes(vec![mistake_of(&error)]))?;
    match declare_agents(&plan.config, &plan.explained, &environment) {
        Ok(declared) => Ok((plan, declared)),
        Err(mistakes) => Err(ReloadError::Mistakes(mistakes.0)),
    }
}

fn mistake_of(error: &anyhow::Error) -> ReloadMistake {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let failure = error.downcast_ref::<Failure>();
    let hint = failure.and_then(|failure| failure.hint.as_deref());
    // The file may contain secrets: drop quoted lines from the message.
    let of_file = |line: &&str| {
        let rest = line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit());
        rest.starts_with('|')
    };
    let lines = hint.unwrap_or_default().lines();
    let lines: Vec<&str> = lines.filter(|line| !of_file(line)).collect();
    ReloadMistake {
        key: String::new(),
        message: causes.join(": "),
        hint: lines.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_told_without_the_line() {
        let error = "prompt = \"a secret plan".parse::<toml::Table>();
        let error = error.expect_err("no TOML").to_string();
        assert!(error.contains("secret"), "{error}");
        let failure = Failure::usage("statehold.toml is not TOML").hint(error);
        let told = mistake_of(&failure.into());
        assert_eq!(told.message, "statehold.toml is not TOML");
        assert!(told.hint.contains("line 1"), "{}", told.hint);
        assert!(!told.hint.contains("secret"), "{}", told.hint);
    }
}
