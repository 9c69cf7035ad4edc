//! What the file says about agents and their tools: `[agents.NAME]` and `[agents.NAME.tools.TOOL]`.
//! Here are the policies; what an agent is declared to be is in [`super::kinds`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::hold::{DecideBy, Effect, OnExpiry, Risk};
use statehold_core::limits::QUORUM_MAX;
use statehold_core::name::Name;
use statehold_engine::policy::{
    AgentPolicy, Approval, ArgsCondition, OnNoAnswer, Policies, ToolPolicy, decide_by_text,
    parse_decide_by,
};
use statehold_engine::{PathRule, Pattern};

use super::kinds::Declaration;
use super::values::{SchemaTable, Variable};

/// What is said about an agent. Settings of tools stand here for all of its tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Agent {
    /// The variable of the environment that holds the agent's own credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) credential_env: Option<Variable>,
    #[serde(default)]
    pub(super) tools: BTreeMap<Name, Tool>,
    #[serde(flatten)]
    pub(super) every_tool: Tool,
    #[serde(flatten)]
    pub(super) declared: Declaration,
}

impl Agent {
    /// Whether only the policies of tools are set, and nothing is said about the agent itself.
    pub(crate) fn is_policies_only(&self) -> bool {
        let has_policies = !self.tools.is_empty() || self.every_tool != Tool::default();
        has_policies && self.credential_env.is_none() && self.declared == Declaration::default()
    }
}

/// What is said about a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Tool {
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<Approval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_if: Option<SchemaTable>,
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
    on_no_answer: Option<OnNoAnswer>,
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
            approval_if: self.approval_if.as_ref().map(|schema| {
                let condition = ArgsCondition::new(schema.json().clone());
                condition.expect("it was a schema when it was read")
            }),
            comment_required: self.comment_required,
            decide_by: self.decide_by.clone().map(|judge| judge.0),
            effect: self.effect,
            expires_in_seconds: self.expires_in_seconds.map(Into::into),
            idempotent: self.idempotent,
            on_expiry: self.on_expiry,
            on_no_answer: self.on_no_answer,
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
        ..Policies::default()
    }
}
