//! The embedded demo: four agents that need no model and no key, so that a new server answers at once.
//!
//! `coordinator` is a router with rules and part of the declared agents. The other three are workers: they
//! call their own server over its public API, like any worker in another process. What they say is in
//! pure functions ([`math`], [`weather`], [`ums`]); [`worker`] is the loop around them.

mod book;
mod help;
mod math;
mod seed;
mod turn;
mod ums;
mod users;
mod weather;
mod words;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use statehold_agents::spec::{AgentBook, AgentSpec};
use statehold_core::name::Name;
use statehold_engine::policy::Policies;
use statehold_engine::{Caller, Engine, EngineError, NewKey};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::worker::DemoWorker;
use crate::client::Client;
use crate::config::Agent;

/// What the key of the demo agents is called among the keys.
const KEY_NAME: &str = "embedded demo agents";
/// How long one call for the seeds may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Those that claim their work.
const WORKERS: [DemoWorker; 3] = [
    DemoWorker {
        name: book::MATH,
        step: math::step,
        reads_history: true,
        reads_state: false,
    },
    DemoWorker {
        name: book::WEATHER,
        step: weather::step,
        reads_history: false,
        reads_state: true,
    },
    DemoWorker {
        name: book::UMS,
        step: ums::step,
        reads_history: true,
        reads_state: true,
    },
];

/// The part of the demo that a server plays: an agent that is declared under the same name wins. Policies
/// alone declare nothing: they hold for the agent of the demo.
pub(crate) struct Demo {
    agents: Vec<Arc<AgentSpec>>,
}

impl Demo {
    /// The demo beside what is configured; nothing of it if it is not wanted.
    pub(crate) fn beside(configured: &BTreeMap<Name, Agent>, is_wanted: bool) -> Self {
        let agents = if is_wanted { book::book() } else { Vec::new() };
        let agents = agents.into_iter();
        Self {
            agents: agents
                .filter(|spec| !is_declared(configured, &spec.name))
                .map(Arc::new)
                .collect(),
        }
    }

    /// What is declared about the agents that are left.
    pub(crate) fn agents(&self) -> &[Arc<AgentSpec>] {
        &self.agents
    }

    /// What is declared elsewhere, with the agents that are left.
    pub(crate) fn joined(&self, mut book: AgentBook) -> AgentBook {
        for spec in &self.agents {
            book.agents.insert(spec.name.clone(), Arc::clone(spec));
        }
        book
    }

    /// The names of agents that are declared after the start and played already. They are not played any
    /// more after the next start, and nothing that is said about them counts before.
    pub(crate) fn in_the_way_of(&self, configured: &BTreeMap<Name, Agent>) -> Vec<Name> {
        let names = self.agents.iter().map(|spec| &spec.name);
        let taken = names.filter(|name| is_declared(configured, name));
        taken.cloned().collect()
    }

    fn has(&self, name: &str) -> bool {
        self.agents.iter().any(|spec| spec.name.as_str() == name)
    }

    /// What is laid down, with what needs an approval here.
    pub(crate) fn policies(&self, mut policies: Policies) -> Policies {
        if self.has(book::UMS) {
            book::add_policies(&mut policies);
        }
        policies
    }
}

/// Whether more is said about an agent than what its tools need.
fn is_declared(configured: &BTreeMap<Name, Agent>, name: &Name) -> bool {
    let own = configured.get(name);
    own.is_some_and(|own| !own.is_policies_only())
}

/// How the demo is played.
#[derive(Debug, Clone)]
pub(crate) struct DemoOptions {
    /// Where the server answers.
    pub(crate) url: String,
    /// Whether somebody works for the coordinator, so that the first sessions can go through it.
    pub(crate) has_coordinator: bool,
    /// Whether the first sessions are made. It takes a server that asks for no key.
    pub(crate) seeds: bool,
}

/// The demo while it is played.
#[derive(Debug)]
pub(crate) struct Playing {
    stop: CancellationToken,
    tasks: TaskTracker,
    engine: Engine,
    tenant: Name,
}

impl Playing {
    /// Ends it. What is in hand is finished, or comes again with the next start.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if let Err(error) = revoke_keys(&self.engine, &self.tenant).await {
            tracing::warn!(%error, "the key of the demo agents is revoked at the next start");
        }
    }
}

/// Revokes the keys of demo agents that an earlier run left. Every server does this when it starts: the
/// demo is over with the process that plays it.
///
/// # Errors
///
/// If the store fails.
pub(crate) async fn revoke_keys(engine: &Engine, tenant: &Name) -> Result<(), EngineError> {
    let caller = Caller::local(tenant.clone());
    for key in engine.keys(&caller).await? {
        if key.name.as_deref() == Some(KEY_NAME) && key.revoked_at.is_none() {
            engine.revoke_key(&caller, key.id).await?;
        }
    }
    Ok(())
}

/// Starts the workers, and the first sessions.
///
/// # Errors
///
/// If the address is none, or there can be no key.
pub(crate) async fn spawn(
    demo: &Demo,
    engine: &Engine,
    tenant: &Name,
    options: &DemoOptions,
) -> anyhow::Result<Playing> {
    let workers: Vec<DemoWorker> = WORKERS
        .into_iter()
        .filter(|agent| demo.has(agent.name))
        .collect();
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let client = |token: Option<&str>| -> anyhow::Result<Client> {
        Ok(Client::new(options.url.parse()?, token, PATIENCE)?)
    };
    if !workers.is_empty() {
        let client = client(Some(&issue_key(engine, tenant, &workers).await?))?;
        for agent in &workers {
            tasks.spawn(worker::run(*agent, client.clone(), stop.clone()));
        }
    }
    // The first sessions show the demo as it is; with somebody else's agents in it they would not.
    if options.seeds && workers.len() == WORKERS.len() {
        let (client, stop) = (client(None)?, stop.clone());
        let through_coordinator = options.has_coordinator && demo.has(book::COORDINATOR);
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                seeded = seed::seed(&client, through_coordinator) => if let Err(failure) = seeded {
                    tracing::warn!(reason = %failure.message, "the demo sessions are not complete");
                },
            }
        });
    }
    Ok(Playing {
        stop,
        tasks,
        engine: engine.clone(),
        tenant: tenant.clone(),
    })
}

/// A key for this run. The worker of an agent sees its whole history only with a key that is no
/// client's, and only an admin writes the state of an app, where the users are.
async fn issue_key(
    engine: &Engine,
    tenant: &Name,
    workers: &[DemoWorker],
) -> anyhow::Result<String> {
    let caller = Caller::local(tenant.clone());
    let new = NewKey {
        name: Some(KEY_NAME.to_owned()),
        roles: ["worker", "admin"].map(book::name).into(),
        agents: workers.iter().map(|agent| book::name(agent.name)).collect(),
        ..NewKey::default()
    };
    let issued = engine.create_key(&caller, new).await;
    Ok(issued.context("the demo agents get no key")?.secret)
}
