//! Reading the configuration of a running server again: what is declared about agents, models and tool
//! servers counts from then on, all of it or nothing. Everything else needs a restart, and is named.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use statehold_agents::runner::{Runner, RunnerError, StepHook};
use statehold_agents::scratch::{EngineFactory, Scratch};
use statehold_agents::spec::AgentBook;
use statehold_core::name::Name;
use statehold_engine::policy::Policies;
use statehold_engine::{Clock, Credential, Current, Engine};
use statehold_server::{Reload, ReloadError, ReloadMistake, Reloaded, Reloading};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServePlan;
use crate::config::{
    Config, Declared, Differences, Explained, Surroundings, Tables, agent_table, declared,
    other_settings, policies, tool_table,
};
use crate::demo::Demo;
use crate::exit::Failure;
use crate::wire;

/// Makes the plan of a server from its flags, and from the environment and the file as they are now.
pub(super) type MakePlan = Arc<dyn Fn(&Surroundings) -> anyhow::Result<ServePlan> + Send + Sync>;

/// Everything that is declared at one time, with the demo beside it.
pub(super) struct Standing {
    tables: Tables,
    pub(super) book: Arc<AgentBook>,
    pub(super) credentials: BTreeMap<Name, Credential>,
    pub(super) policies: Policies,
}

impl Standing {
    pub(super) fn new(mut config: Config, mut declared: Declared, demo: &Demo) -> Self {
        for name in demo.in_the_way_of(&config.agents) {
            config.agents.remove(&name);
            declared.credentials.remove(&name);
        }
        let config = &config;
        Self {
            tables: Tables::of(config, &declared),
            book: Arc::new(demo.joined(declared.book)),
            credentials: declared.credentials,
            policies: demo.policies(policies(&config.agents)),
        }
    }

    /// Makes engines for calls that leave nothing, in which the same counts.
    fn make_scratch(&self, clock: &Arc<dyn Clock>) -> EngineFactory {
        let (policies, credentials) = (self.policies.clone(), self.credentials.clone());
        wire::make_in_memory(Arc::clone(clock), policies, credentials)
    }
}

/// What a server has before it works for its agents.
pub(super) struct Start {
    pub(super) plan: MakePlan,
    /// What the server is started with.
    pub(super) started: Vec<Explained>,
    /// The file that this was found in, if no flag names one.
    pub(super) file: Option<PathBuf>,
    /// Played since the start, whatever is declared later.
    pub(super) demo: Arc<Demo>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) engine: Engine,
    pub(super) tenant: Name,
}

impl Start {
    /// Begins to work for the agents that are declared.
    ///
    /// # Errors
    ///
    /// If that cannot be done.
    pub(super) async fn begin(
        self,
        standing: Standing,
        on_step: StepHook,
    ) -> Result<Reloader, RunnerError> {
        let (book, tenant) = (Arc::clone(&standing.book), self.tenant.clone());
        let make = standing.make_scratch(&self.clock);
        let scratch = Scratch::new(make, tenant.clone(), Arc::clone(&book));
        let agents = Current::new(Arc::clone(&book));
        let engine = self.engine.clone();
        let runner = Runner::start_watched(engine, tenant, book, on_step).await?;
        let parts = Parts {
            start: self,
            agents,
            scratch: Arc::new(scratch),
            runner,
            standing: tokio::sync::Mutex::new(standing),
        };
        Ok(Reloader {
            parts: Arc::new(parts),
            tasks: TaskTracker::new(),
        })
    }
}

/// Who hears of what is declared.
struct Parts {
    start: Start,
    agents: Current<AgentBook>,
    scratch: Arc<Scratch>,
    runner: Runner,
    /// What counts now. Locked while it is replaced: one after the other.
    standing: tokio::sync::Mutex<Standing>,
}

/// SIGHUPs, from the moment on from which they do not end the process.
pub(super) struct Hangups {
    signals: Signal,
    /// Whether there was a terminal then that can be closed.
    had_terminal: bool,
}

impl Hangups {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            had_terminal: std::io::stdin().is_terminal(),
            signals: signal(SignalKind::hangup())?,
        })
    }
}

/// Reads the configuration of a running server again.
pub(super) struct Reloader {
    parts: Arc<Parts>,
    tasks: TaskTracker,
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

impl Reload for Reloader {
    fn reload(&self) -> Reloading<'_> {
        // It is done whole, also if whoever asked goes away meanwhile.
        let parts = Arc::clone(&self.parts);
        let done = self.tasks.spawn(async move { parts.reload().await });
        Box::pin(async move { done.await.unwrap_or(Err(ReloadError::Stopping)) })
    }
}

impl Reloader {
    /// The agents that are declared.
    pub(super) fn agents(&self) -> Current<AgentBook> {
        self.parts.agents.clone()
    }

    /// Where calls are answered that leave nothing.
    pub(super) fn scratch(&self) -> Arc<Scratch> {
        Arc::clone(&self.parts.scratch)
    }

    /// Finishes what is being read, and works for nobody any more.
    pub(super) async fn stop(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.parts.runner.stop().await;
        self.parts.scratch.close().await;
    }

    /// Reads again with every SIGHUP, until the server stops. One that comes because the terminal is gone
    /// asks for a stop, as it does of any program: that is told to `gone`.
    pub(super) async fn follow(
        self: Arc<Self>,
        mut hangups: Hangups,
        gone: CancellationToken,
        stop: CancellationToken,
    ) {
        while let Some(Some(())) = stop.run_until_cancelled(hangups.signals.recv()).await {
            if hangups.had_terminal && !std::io::stdin().is_terminal() {
                return gone.cancel();
            }
            // What comes of it is in the log.
            drop(self.reload().await);
        }
    }
}

impl Parts {
    async fn reload(&self) -> Result<Reloaded, ReloadError> {
        let reloaded = self.read_and_apply().await;
        match &reloaded {
            Ok(done) => {
                let Reloaded {
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
                    tracing::warn!(hint, "the configuration has a mistake: {message}");
                }
                tracing::warn!("nothing was changed; the server goes on as it was");
            }
            Err(error) => {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                tracing::warn!(cause, "{error}");
            }
        }
        reloaded
    }

    async fn read_and_apply(&self) -> Result<Reloaded, ReloadError> {
        let mut standing = self.standing.lock().await;
        let start = &self.start;
        let plan = Arc::clone(&start.plan);
        let file = start.file.clone();
        let read = tokio::task::spawn_blocking(move || read(&plan, file.as_deref())).await;
        let (plan, declared) = read.map_err(|_| ReloadError::Stopping)??;
        let new = Standing::new(plan.config.clone(), declared, &start.demo);
        let Differences {
            added,
            changed,
            removed,
        } = new.tables.since(&standing.tables);
        let mut needs_restart = other_settings(&start.started, &plan.explained);
        let in_the_way = start.demo.in_the_way_of(&plan.config.agents);
        needs_restart.extend(in_the_way.iter().map(agent_table));
        let next = self.runner.prepare(Arc::clone(&new.book)).await;
        let next = next.map_err(ReloadError::Agents)?;
        // From here on nothing can fail.
        let policies = new.policies.clone().in_place_of(&start.engine.policies());
        needs_restart.extend(
            policies
                .kept_tools()
                .map(|(agent, tool)| tool_table(agent, tool)),
        );
        needs_restart.sort_unstable();
        start.engine.set_policies(policies);
        let own = new.credentials.clone();
        start.engine.set_service_credentials(own);
        let make = new.make_scratch(&start.clock);
        self.scratch.declare(make, Arc::clone(&new.book)).await;
        self.agents.set(Arc::clone(&new.book));
        self.runner.switch(next).await;
        *standing = new;
        Ok(Reloaded {
            added,
            changed,
            removed,
            needs_restart,
        })
    }
}

/// Everything as it is written now, or everything that is wrong with it.
fn read(plan: &MakePlan, file: Option<&Path>) -> Result<(ServePlan, Declared), ReloadError> {
    let around = Surroundings::of_process().with_file(file);
    let plan = plan(&around).map_err(|error| ReloadError::Mistakes(vec![mistake_of(&error)]))?;
    match declared(&plan.config, &plan.explained, &around) {
        Ok(declared) => Ok((plan, declared)),
        Err(mistakes) => {
            let mistakes = mistakes.0.into_iter().map(|mistake| ReloadMistake {
                key: mistake.key,
                message: mistake.message,
                hint: mistake.hint,
            });
            Err(ReloadError::Mistakes(mistakes.collect()))
        }
    }
}

fn mistake_of(error: &anyhow::Error) -> ReloadMistake {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let failure = error.downcast_ref::<Failure>();
    let hint = failure.and_then(|failure| failure.hint.as_deref());
    // Lines of the file may have something in them that only whoever can read it should see.
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
