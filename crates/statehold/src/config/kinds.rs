//! What an agent is declared to be: its kind, and the settings that agents of that kind have.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use statehold_core::name::Name;

use super::values::{Address, MessagePattern, SchemaTable, SessionKey, Within, Words};

/// What an agent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A process that claims its work.
    #[default]
    Worker,
    /// A service that speaks chat completions.
    Openai,
    /// A service that keeps conversations.
    Conversations,
    /// A model with tools.
    Llm,
    /// A coordinator that chooses one agent per turn.
    Router,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Worker,
        Self::Openai,
        Self::Conversations,
        Self::Llm,
        Self::Router,
    ];

    /// The word for it in the file.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Openai => "openai",
            Self::Conversations => "conversations",
            Self::Llm => "llm",
            Self::Router => "router",
        }
    }
}

/// Seconds that one call may take.
pub(crate) type Timeout = Within<1, 3_600>;
/// How often a call is made again.
pub(crate) type Retries = Within<0, 10>;
/// How many model calls one turn may take.
pub(crate) type Steps = Within<1, 256>;
/// Counts that every reader of JSON holds exactly.
pub(crate) type Count<const LEAST: u64> = Within<LEAST, 9_007_199_254_740_991>;

pub(super) const TIMEOUT_SECONDS: Timeout = Timeout::fixed(60);
pub(super) const RETRIES: Retries = Retries::fixed(2);
pub(super) const STEPS_MAX: Steps = Steps::fixed(16);

/// What is declared about an agent, apart from policies. Which settings belong to which kind is in
/// [`SETTINGS`]; here everything may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Declaration {
    /// Those that a router chooses from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agents: Option<Vec<Name>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answer_by: Option<AnswerBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answer_prompt: Option<Words>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base_url: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<Words>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) export: Option<Vec<SessionKey>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) import: Option<Vec<SessionKey>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keep_pairs: Option<Count<0>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<Kind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<MemoryBy>,
    /// For `openai` what it is called there, else the name of a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Words>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) openai_default: Option<OpenaiDefault>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) otherwise: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<Words>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retries: Option<Retries>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) route_by: Option<RouteBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) routing_prompt: Option<Words>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rules: Option<Vec<RuleTable>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state_schema: Option<SchemaTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state_schema_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) steps_max: Option<Steps>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<Timeout>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_max: Option<Count<1>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_servers: Option<Vec<Name>>,
}

/// How a router chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RouteBy {
    #[default]
    Rules,
    Model,
}

/// Who writes the answer of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerBy {
    #[default]
    Agent,
    Model,
}

/// Who remembers the exchanges with a chat service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MemoryBy {
    #[default]
    Restore,
    Track,
}

/// What a chat call without a session means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OpenaiDefault {
    #[default]
    Stateless,
    Stateful,
}

/// One rule of a router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleTable {
    pub(super) pattern: MessagePattern,
    pub(super) agent: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instructions: Option<Words>,
}

use Kind::{Conversations, Llm, Openai, Router, Worker};

/// The settings that only an agent has, by name, and the kinds that have them.
pub(super) const SETTINGS: [(&str, &[Kind]); 26] = [
    ("agents", &[Router]),
    ("answer_by", &[Router]),
    ("answer_prompt", &[Router]),
    ("base_url", &[Openai, Conversations]),
    ("credential_env", &[Worker, Openai, Conversations]),
    ("description", &Kind::ALL),
    ("export", &[Openai, Conversations]),
    ("import", &[Openai, Conversations, Llm]),
    ("keep_pairs", &[Openai]),
    ("kind", &Kind::ALL),
    ("memory", &[Openai]),
    ("model", &[Openai, Llm, Router]),
    ("openai_default", &Kind::ALL),
    ("otherwise", &[Router]),
    ("prompt", &[Llm]),
    ("prompt_file", &[Llm]),
    ("retries", &[Openai, Conversations, Llm]),
    ("route_by", &[Router]),
    ("routing_prompt", &[Router]),
    ("rules", &[Router]),
    ("state_schema", &[Openai]),
    ("state_schema_file", &[Openai]),
    ("steps_max", &[Llm]),
    ("timeout_seconds", &[Openai, Conversations]),
    ("tokens_max", &[Llm]),
    ("tool_servers", &[Llm]),
];

/// The kinds that have a setting. None for settings that are no agent's own.
pub(super) fn kinds_with(setting: &str) -> Option<&'static [Kind]> {
    let found = SETTINGS.iter().find(|(name, _)| *name == setting);
    found.map(|(_, kinds)| *kinds)
}
