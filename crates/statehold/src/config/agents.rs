//! What the file says about agents and their tools: `[agents.NAME]` and `[agents.NAME.tools.TOOL]`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::hold::{DecideBy, Effect, OnExpiry, Risk};
use statehold_core::limits::QUORUM_MAX;
use statehold_core::name::Name;
use statehold_engine::policy::{
    AgentPolicy, Approval, Policies, ToolPolicy, decide_by_text, parse_decide_by,
};
use statehold_engine::{PathRule, Pattern};
use toml::Value;

/// The section.
const SECTION: &str = "agents";
const TOOLS: &str = "tools";

/// What is said about an agent. Settings of tools stand here for all of its tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Agent {
    /// The variable of the environment that holds the agent's own credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credential_env: Option<String>,
    #[serde(default)]
    pub(crate) tools: BTreeMap<Name, Tool>,
    #[serde(flatten)]
    pub(crate) every_tool: Tool,
}

/// What is said about a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Tool {
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<Approval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment_required: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decide_by: Option<Judge>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<Effect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_seconds: Option<std::num::NonZeroU64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotent: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_expiry: Option<OnExpiry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quorum: Option<Quorum>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redact: Option<Vec<PathRule>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redact_rules: Option<Vec<Pattern>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    risk: Option<Risk>,
}

/// The settings of a tool, by name.
const TOOL_SETTINGS: [&str; 11] = [
    "approval",
    "comment_required",
    "decide_by",
    "effect",
    "expires_in_seconds",
    "idempotent",
    "on_expiry",
    "quorum",
    "redact",
    "redact_rules",
    "risk",
];

/// The settings that only an agent has, by name.
const AGENT_SETTINGS: [&str; 1] = ["credential_env"];

/// `other`, `user` or `role:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Judge(DecideBy);

impl TryFrom<String> for Judge {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        parse_decide_by(&text).map(Self)
    }
}

impl From<Judge> for String {
    fn from(judge: Judge) -> Self {
        decide_by_text(&judge.0)
    }
}

/// How many people must approve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
struct Quorum(u16);

impl TryFrom<u16> for Quorum {
    type Error = String;

    fn try_from(count: u16) -> Result<Self, Self::Error> {
        if (1..=QUORUM_MAX).contains(&count) {
            Ok(Self(count))
        } else {
            Err(format!("it is 1 to {QUORUM_MAX}"))
        }
    }
}

impl From<Quorum> for u16 {
    fn from(quorum: Quorum) -> Self {
        quorum.0
    }
}

impl Tool {
    fn policy(&self) -> ToolPolicy {
        ToolPolicy {
            approval: self.approval,
            comment_required: self.comment_required,
            decide_by: self.decide_by.clone().map(|judge| judge.0),
            effect: self.effect,
            expires_in_seconds: self.expires_in_seconds.map(Into::into),
            idempotent: self.idempotent,
            on_expiry: self.on_expiry,
            quorum: self.quorum.map(Into::into),
            redact: self.redact.clone(),
            redact_rules: self.redact_rules.clone(),
            risk: self.risk,
        }
    }
}

/// What the engine is told about agents.
pub(crate) fn policies(agents: &BTreeMap<Name, Agent>) -> Policies {
    let policy = |agent: &Agent| AgentPolicy {
        every_tool: agent.every_tool.policy(),
        tools: agent
            .tools
            .iter()
            .map(|(name, tool)| (name.clone(), tool.policy()))
            .collect(),
    };
    let agents = agents.iter();
    Policies {
        agents: agents
            .map(|(name, agent)| (name.clone(), policy(agent)))
            .collect(),
    }
}

/// A key of the section, looked at closely.
pub(super) enum AgentKey {
    /// It is in another section.
    Elsewhere,
    /// It is one that there is.
    Known,
    /// It is not, but these would be in its place.
    Unknown(Vec<String>),
    /// A name in it is no name.
    BadName(String),
}

impl AgentKey {
    /// Judges the steps of a key.
    pub(super) fn of(steps: &[String]) -> Self {
        let (agent, tool, setting) = match steps {
            [section, agent, setting] if section == SECTION => (agent, None, setting),
            [section, agent, tools, tool, setting] if section == SECTION && tools == TOOLS => {
                (agent, Some(tool), setting)
            }
            [section, agent, ..] if section == SECTION => {
                return Self::Unknown(settings(agent, None));
            }
            _ => return Self::Elsewhere,
        };
        for name in [Some(agent), tool].into_iter().flatten() {
            if name.parse::<Name>().is_err() {
                return Self::BadName(name.clone());
            }
        }
        let own: &[&str] = if tool.is_none() { &AGENT_SETTINGS } else { &[] };
        if TOOL_SETTINGS
            .iter()
            .chain(own)
            .any(|known| known == setting)
        {
            Self::Known
        } else {
            Self::Unknown(settings(agent, tool.map(String::as_str)))
        }
    }
}

/// Every key that there could be for an agent, or for one of its tools.
fn settings(agent: &str, tool: Option<&str>) -> Vec<String> {
    let agent = super::layers::step(agent);
    match tool {
        None => TOOL_SETTINGS
            .iter()
            .chain(&AGENT_SETTINGS)
            .map(|setting| format!("{SECTION}.{agent}.{setting}"))
            .collect(),
        Some(tool) => {
            let tool = super::layers::step(tool);
            let key = |setting| format!("{SECTION}.{agent}.{TOOLS}.{tool}.{setting}");
            TOOL_SETTINGS.iter().map(key).collect()
        }
    }
}

/// Says why a value cannot be what its setting needs. Each is looked at alone, so that the whole key can
/// be named.
pub(super) fn require_fit(setting: &str, value: &Value) -> Result<(), String> {
    let mut table = toml::Table::new();
    table.insert(setting.to_owned(), value.clone());
    let fits = Value::Table(table).try_into::<Agent>();
    fits.map(drop)
        .map_err(|error| error.message().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_settings_are_whole() {
        let tool = Tool {
            approval: Some(Approval::Always),
            comment_required: Some(true),
            decide_by: Some(Judge(DecideBy::Other)),
            effect: Some(Effect::Read),
            expires_in_seconds: std::num::NonZeroU64::new(1),
            idempotent: Some(true),
            on_expiry: Some(OnExpiry::Fail),
            quorum: Some(Quorum(2)),
            redact: Some(Vec::new()),
            redact_rules: Some(vec![Pattern::Card]),
            risk: Some(Risk::High),
        };
        let names = |value: &Value| -> Vec<String> {
            value.as_table().expect("a table").keys().cloned().collect()
        };
        let written = Value::try_from(&tool).expect("plain values");
        assert_eq!(names(&written), TOOL_SETTINGS);
        let agent = Agent {
            credential_env: Some("X".to_owned()),
            ..Agent::default()
        };
        let written = Value::try_from(&agent).expect("plain values");
        let mut own = names(&written);
        own.retain(|name| name != TOOLS);
        assert_eq!(own, AGENT_SETTINGS);
    }
}
