//! The embedded demo: four agents that need no model and no key, so that a new server answers at
//! once.
//!
//! `coordinator` is a router with rules and part of the declared agents. The other three are
//! workers: they call their own server over its public API, like any worker in another process.
//! Their answers come from pure functions ([`math`], [`weather`], [`ums`]); [`worker`] is the loop
//! around them.

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
use statehold_store::ApiKey;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::worker::DemoWorker;
use crate::client::Client;
use crate::config::AgentConfig;

/// The name of the API key of the demo agents.
const KEY_NAME: &str = "embedded demo agents";
/// The timeout of one call of the seeding client.
const PATIENCE: Duration = Duration::from_secs(15);

/// The demo agents that claim work.
const WORKERS: [DemoWorker; 3] = [
    DemoWorker {
        name: book::MATH,
        step: math::step,
        reads_memory: true,
        reads_state: false,
    },
    DemoWorker {
        name: book::WEATHER,
        step: weather::step,
        reads_memory: false,
        reads_state: true,
    },
    DemoWorker {
        name: book::UMS,
        step: ums::step,
        reads_memory: true,
        reads_state: true,
    },
];

/// The demo agents of one server. A configured agent replaces the demo agent of the same name. A
/// table with policies only does not replace it: the policies apply to the demo agent.
pub(crate) struct EmbeddedDemo {
    agents: Vec<Arc<AgentSpec>>,
}

impl EmbeddedDemo {
    /// The demo agents that the configuration does not replace; none if the demo is not wanted.
    pub(crate) fn new(configured: &BTreeMap<Name, AgentConfig>, is_wanted: bool) -> Self {
        let agents = if is_wanted { book::book() } else { Vec::new() };
        let agents = agents.into_iter();
        Self {
            agents: agents
                .filter(|spec| !is_declared(configured, &spec.name))
                .map(Arc::new)
                .collect(),
        }
    }

    /// The demo agents that were not replaced.
    pub(crate) fn agents(&self) -> &[Arc<AgentSpec>] {
        &self.agents
    }

    /// Adds the demo agents to the declared ones.
    pub(crate) fn merge_into(&self, mut book: AgentBook) -> AgentBook {
        for spec in &self.agents {
            book.agents.insert(spec.name.clone(), Arc::clone(spec));
        }
        book
    }

    /// The demo agents that a reloaded configuration declares. The demo plays them until the next
    /// start; their new declarations apply from then on.
    pub(crate) fn newly_declared(&self, configured: &BTreeMap<Name, AgentConfig>) -> Vec<Name> {
        let names = self.agents.iter().map(|spec| &spec.name);
        let taken = names.filter(|name| is_declared(configured, name));
        taken.cloned().collect()
    }

    fn has(&self, name: &str) -> bool {
        self.agents.iter().any(|spec| spec.name.as_str() == name)
    }

    /// Adds the approval policies of the demo agents.
    pub(crate) fn policies(&self, mut policies: Policies) -> Policies {
        if self.has(book::UMS) {
            book::add_policies(&mut policies);
        }
        policies
    }
}

/// Whether the configuration declares the agent, beyond policies for its tools.
fn is_declared(configured: &BTreeMap<Name, AgentConfig>, name: &Name) -> bool {
    let own = configured.get(name);
    own.is_some_and(|own| !own.is_policies_only())
}

/// The running demo.
#[derive(Debug)]
pub(crate) struct RunningDemo {
    stop: CancellationToken,
    tasks: TaskTracker,
    engine: Engine,
    tenant: Name,
}

impl RunningDemo {
    /// Stops the demo. Turns in progress finish, or are claimed again after the next start.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if let Err(error) = revoke_keys(&self.engine, &self.tenant).await {
            tracing::warn!(%error, "the key of the demo agents is revoked at the next start");
        }
    }
}

/// Revokes the API keys that demo agents of an earlier run left behind. Every server does this at
/// its start, because the demo ends with its process.
///
/// # Errors
///
/// If the store fails.
pub(crate) async fn revoke_keys(engine: &Engine, tenant: &Name) -> Result<(), EngineError> {
    let caller = Caller::local(tenant.clone());
    let is_left = |key: &ApiKey| key.name.as_deref() == Some(KEY_NAME) && key.revoked_at.is_none();
    for key in engine.keys_where(&caller, is_left).await? {
        engine.revoke_key(&caller, key).await?;
    }
    Ok(())
}

/// Starts the workers against the server at `url`, and creates the seed sessions if `seeds` is set,
/// which works only on a server that needs no key.
///
/// # Errors
///
/// If the URL is invalid, or the API key cannot be created.
pub(crate) async fn spawn(
    demo: &EmbeddedDemo,
    engine: &Engine,
    tenant: &Name,
    (url, seeds): (&str, bool),
) -> anyhow::Result<RunningDemo> {
    let workers: Vec<DemoWorker> = WORKERS
        .into_iter()
        .filter(|agent| demo.has(agent.name))
        .collect();
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let client = |token: Option<&str>| -> anyhow::Result<Client> {
        Ok(Client::new(url.parse()?, token, PATIENCE)?)
    };
    if !workers.is_empty() {
        let client = client(Some(&issue_key(engine, tenant, &workers).await?))?;
        for agent in &workers {
            tasks.spawn(worker::run(*agent, client.clone(), stop.clone()));
        }
    }
    // The seed sessions show the unmodified demo, so replaced agents skip them.
    if seeds && workers.len() == WORKERS.len() {
        let (client, stop) = (client(None)?, stop.clone());
        let through_coordinator = demo.has(book::COORDINATOR);
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                seeded = seed::seed(&client, through_coordinator) => if let Err(failure) = seeded {
                    tracing::warn!(reason = %failure.message, "the demo sessions are not complete");
                },
            }
        });
    }
    Ok(RunningDemo {
        stop,
        tasks,
        engine: engine.clone(),
        tenant: tenant.clone(),
    })
}

/// Creates an API key for this run. A worker sees its agent's whole history only without the role
/// `client`, and only an admin may write app state, where the demo users are.
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
