//! How long sessions live, and how long they keep their hidden items: `[chat]` for the sessions of chat calls, `[apps.NAME]` for an
//! app, and two settings of an agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::name::Name;
use statehold_engine::{DefaultLifetimes, Lifetimes};

use super::values::BoundedNumber;
use super::{AgentConfig, Config};

/// Days of a lifetime, ten years at most. 0 means for ever.
pub(crate) type LifetimeDays = BoundedNumber<0, 3_660>;

const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// The settings of an app.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AppConfig {
    /// How many days a new session of the app lives after its last commit.
    session_ttl_days: Option<LifetimeDays>,
    /// How many days it keeps its hidden items after that.
    hidden_ttl_days: Option<LifetimeDays>,
}

/// The names of the settings.
pub(super) const APP_SETTINGS: [&str; 2] = ["hidden_ttl_days", "session_ttl_days"];

fn lifetimes(session: Option<LifetimeDays>, hidden: Option<LifetimeDays>) -> Lifetimes {
    let ms = |days: LifetimeDays| days.get() * DAY_MS;
    Lifetimes {
        session_ms: session.map(ms),
        hidden_ms: hidden.map(ms),
    }
}

/// The lifetimes for the engine.
pub(super) fn default_lifetimes(
    config: &Config,
    agents: &BTreeMap<Name, AgentConfig>,
) -> DefaultLifetimes {
    let agents = agents.iter().map(|(name, agent)| {
        let own = lifetimes(agent.session_ttl_days, agent.hidden_ttl_days);
        (name.clone(), own)
    });
    let apps = config.apps.iter().map(|(name, app)| {
        let own = lifetimes(app.session_ttl_days, app.hidden_ttl_days);
        (name.clone(), own)
    });
    let chat = &config.chat;
    DefaultLifetimes {
        agents: agents
            .filter(|(_, own)| *own != Lifetimes::default())
            .collect(),
        apps: apps.collect(),
        chats: lifetimes(Some(chat.session_ttl_days), Some(chat.hidden_ttl_days)),
    }
}
