//! Policies in the file: `[agents.NAME]` and `[agents.NAME.tools.TOOL]`. The declaration of an
//! agent itself is in [`super::kinds`].

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use statehold_core::hold::{DecideBy, Effect, OnExpiry, Risk};
use statehold_core::limits::QUORUM_MAX;
use statehold_core::name::Name;
use statehold_engine::policy::{
    AgentPolicy, Approval, ArgsCondition, EXCERPT_MESSAGES_MAX, OnNoAnswer, Policies, ToolPolicy,
    parse_decide_by,
};
use statehold_engine::{PathRule, Pattern};

use super::Config;
use super::kinds::AgentDeclaration;
use super::lifetimes::{LifetimeDays, default_lifetimes};
use super::redaction::redaction_rules;
use super::state_rules::state_rules;
use super::values::{BoundedNumber, SchemaTable, VariableName};

/// The table of an agent. Tool settings in it apply to all of its tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(crate) struct AgentConfig {
    /// The environment variable that holds the agent's own credential.
    pub(super) credential_env: Option<VariableName>,
    /// Whether secrets in what it writes, and in what it is told, are redacted before they are stored.
    pub(super) redact_secrets: Option<bool>,
    /// How many days a new session of this agent lives after its last commit, and keeps its hidden items.
    pub(super) session_ttl_days: Option<LifetimeDays>,
    pub(super) hidden_ttl_days: Option<LifetimeDays>,
    /// How many of the last messages of the conversation people see beside a hold that they may decide.
    pub(super) excerpt_messages: Option<BoundedNumber<0, EXCERPT_MESSAGES_MAX>>,
    #[serde(default)]
    pub(super) tools: BTreeMap<Name, ToolConfig>,
    #[serde(flatten)]
    pub(super) every_tool: ToolConfig,
    #[serde(flatten)]
    pub(super) declared: AgentDeclaration,
}

impl AgentConfig {
    /// Whether the table only sets tool policies and does not declare the agent.
    pub(crate) fn is_policies_only(&self) -> bool {
        let has_policies = !self.tools.is_empty()
            || self.redact_secrets.is_some()
            || self.session_ttl_days.is_some()
            || self.hidden_ttl_days.is_some()
            || self.excerpt_messages.is_some()
            || self.every_tool != ToolConfig::default();
        has_policies
            && self.credential_env.is_none()
            && self.declared == AgentDeclaration::default()
    }
}

/// The policy settings of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(crate) struct ToolConfig {
    approval: Option<Approval>,
    approval_if: Option<SchemaTable>,
    comment_required: Option<bool>,
    #[serde(deserialize_with = "decide_by")]
    decide_by: Option<DecideBy>,
    effect: Option<Effect>,
    expires_in_seconds: Option<std::num::NonZeroU64>,
    idempotent: Option<bool>,
    on_expiry: Option<OnExpiry>,
    on_no_answer: Option<OnNoAnswer>,
    quorum: Option<BoundedNumber<1, { QUORUM_MAX as u64 }>>,
    redact: Option<Vec<PathRule>>,
    redact_rules: Option<Vec<Pattern>>,
    risk: Option<Risk>,
}

/// The names of the tool settings.
pub(super) const TOOL_SETTINGS: [&str; 13] = [
    "approval",
    "approval_if",
    "comment_required",
    "decide_by",
    "effect",
    "expires_in_seconds",
    "idempotent",
    "on_expiry",
    "on_no_answer",
    "quorum",
    "redact",
    "redact_rules",
    "risk",
];

/// Reads `other`, `user` or `role:NAME`.
fn decide_by<'de, D: Deserializer<'de>>(judge: D) -> Result<Option<DecideBy>, D::Error> {
    let text = String::deserialize(judge)?;
    parse_decide_by(&text).map(Some).map_err(D::Error::custom)
}

impl ToolConfig {
    fn policy(&self) -> ToolPolicy {
        ToolPolicy {
            approval: self.approval,
            approval_if: self.approval_if.as_ref().map(|schema| {
                let condition = ArgsCondition::new(schema.json().clone());
                condition.expect("it was a schema when it was read")
            }),
            comment_required: self.comment_required,
            decide_by: self.decide_by.clone(),
            effect: self.effect,
            expires_in_seconds: self.expires_in_seconds.map(Into::into),
            idempotent: self.idempotent,
            on_expiry: self.on_expiry,
            on_no_answer: self.on_no_answer,
            quorum: self.quorum.and_then(|count| count.get().try_into().ok()),
            redact: self.redact.clone(),
            redact_rules: self.redact_rules.clone(),
            risk: self.risk,
        }
    }
}

/// Converts the settings into the policies of the engine.
pub(crate) fn policies(config: &Config) -> Policies {
    let agents = &config.agents;
    let policy = |agent: &AgentConfig| AgentPolicy {
        every_tool: agent.every_tool.policy(),
        tools: agent
            .tools
            .iter()
            .map(|(name, tool)| (name.clone(), tool.policy()))
            .collect(),
    };
    let calls = |agent: &AgentConfig| {
        let AgentDeclaration {
            agents,
            calls,
            phases,
            ..
        } = &agent.declared;
        let phases = phases.iter().flatten().map(|phase| &phase.agent);
        let named = agents.iter().chain(calls).flatten();
        named.chain(phases).cloned().collect()
    };
    let declared = agents.iter().filter(|(_, agent)| !agent.is_policies_only());
    let close_on = agents.iter().filter_map(|(name, agent)| {
        let close_on = agent.declared.close_on?;
        Some((name.clone(), close_on))
    });
    let excerpts = agents.iter().filter_map(|(name, agent)| {
        let messages = usize::try_from(agent.excerpt_messages?.get()).ok()?;
        Some((name.clone(), messages))
    });
    Policies {
        excerpts: excerpts.collect(),
        state: state_rules(&config.state),
        redaction: redaction_rules(&config.redaction, agents),
        lifetimes: default_lifetimes(config, agents),
        close_on: close_on.collect(),
        calls: declared
            .map(|(name, agent)| (name.clone(), calls(agent)))
            .collect(),
        agents: agents
            .iter()
            .map(|(name, agent)| (name.clone(), policy(agent)))
            .collect(),
        ..Policies::default()
    }
}
