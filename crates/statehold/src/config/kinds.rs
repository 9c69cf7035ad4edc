//! The declaration of an agent: its kind, and the settings of that kind.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use statehold_agents::spec::{
    CallerTrust, ChatMemory, ChatSessions, HistoryAccess, LoopLimitPolicy, PhaseErrorPolicy,
    PhaseInput, StageDetail, StateFormat, ThinkingMode,
};
use statehold_core::name::Name;
use statehold_core::scope::Scope;
use statehold_core::task::CloseOn;

use super::values::{
    BoundedNumber, DataAgentName, DataSources, DeploymentName, MessagePattern, NonEmptyText,
    PlaceName, ReadStateKey, SchemaTable, ServiceHeaders, ServiceUrl, ToolArguments, WrittenScope,
    WrittenStateKey,
};

/// The kind of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeclaredKind {
    /// A process that claims its work.
    #[default]
    Worker,
    /// A service that speaks chat completions.
    Openai,
    /// An application of DIAL.
    Dial,
    /// A service that keeps conversations.
    Conversations,
    /// A Conversational Analytics API.
    Analytics,
    /// A tool on a tool server.
    Mcp,
    /// A model with tools.
    Llm,
    /// A coordinator that chooses one agent per turn.
    Router,
    /// A coordinator that runs agents one after another.
    Pipeline,
}

impl DeclaredKind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Worker,
        Self::Openai,
        Self::Dial,
        Self::Conversations,
        Self::Analytics,
        Self::Mcp,
        Self::Llm,
        Self::Router,
        Self::Pipeline,
    ];

    /// The name of the kind in the file.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Openai => "openai",
            Self::Dial => "dial",
            Self::Conversations => "conversations",
            Self::Analytics => "analytics",
            Self::Mcp => "mcp",
            Self::Llm => "llm",
            Self::Router => "router",
            Self::Pipeline => "pipeline",
        }
    }
}

/// The timeout of one call, in seconds.
pub(crate) type TimeoutSeconds = BoundedNumber<1, 3_600>;
/// How often a call is retried.
pub(crate) type RetryCount = BoundedNumber<0, 10>;
/// The most model calls of one turn.
pub(crate) type StepCount = BoundedNumber<1, 256>;
/// The most loop-backs of one turn.
pub(crate) type LoopCount = BoundedNumber<0, 100>;
/// How many words of a prompt in a row are an echo of it.
pub(crate) type EchoWords = BoundedNumber<4, 1_000>;
/// A count within the exact integers of JSON.
pub(crate) type JsonCount<const LEAST: u64> = BoundedNumber<LEAST, 9_007_199_254_740_991>;

pub(super) const TIMEOUT_SECONDS: TimeoutSeconds = TimeoutSeconds::fixed(60);
pub(super) const RETRIES: RetryCount = RetryCount::fixed(2);
pub(super) const STEPS_MAX: StepCount = StepCount::fixed(16);
pub(super) const LOOPS_MAX: LoopCount = LoopCount::fixed(3);

/// The declaration of an agent, apart from policies. [`SETTINGS`] lists which kind has which
/// settings; here every field is optional.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AgentDeclaration {
    /// The agents that a router chooses from.
    pub(super) agents: Option<Vec<Name>>,
    pub(super) answer_by: Option<AnswerBy>,
    pub(super) answer_from: Option<Name>,
    pub(super) answer_prompt: Option<NonEmptyText>,
    /// Further arguments of every call of a tool.
    pub(super) arguments: Option<ToolArguments>,
    pub(super) base_url: Option<ServiceUrl>,
    /// Whether a service that lost the conversation is told of the earlier exchanges.
    pub(super) brief_on_loss: Option<bool>,
    /// The agents that a worker's keys may call below its requests.
    pub(super) calls: Option<Vec<Name>>,
    /// How far it trusts the callers that keep its conversation.
    pub(super) caller_history: Option<CallerTrust>,
    pub(super) close_on: Option<CloseOn>,
    pub(super) context: Option<ContextWord>,
    pub(super) data_agent: Option<DataAgentName>,
    pub(super) data_key: Option<WrittenStateKey>,
    pub(super) data_sources: Option<DataSources>,
    /// The name of an application of DIAL.
    pub(super) deployment: Option<DeploymentName>,
    pub(super) description: Option<NonEmptyText>,
    pub(super) export: Option<Vec<WrittenStateKey>>,
    pub(super) headers: Option<ServiceHeaders>,
    /// How a tool gets the conversation.
    pub(super) history: Option<HistoryAccess>,
    pub(super) history_argument: Option<NonEmptyText>,
    pub(super) import: Option<Vec<ReadStateKey>>,
    pub(super) input_argument: Option<NonEmptyText>,
    pub(super) instructions: Option<NonEmptyText>,
    pub(super) keep_pairs: Option<JsonCount<0>>,
    pub(super) kind: Option<DeclaredKind>,
    pub(super) loops_max: Option<LoopCount>,
    pub(super) memory: Option<ChatMemory>,
    /// For `openai` the model's name at the service, otherwise the name of a declared model.
    pub(super) model: Option<NonEmptyText>,
    pub(super) on_loop_limit: Option<LoopLimitPolicy>,
    pub(super) otherwise: Option<Name>,
    pub(super) output_key: Option<WrittenStateKey>,
    /// The project and the location of an analytics service.
    pub(super) parent: Option<PlaceName>,
    /// Whether a service that keeps nothing may wait for people.
    pub(super) pauses: Option<bool>,
    /// The phases of a pipeline.
    pub(super) phases: Option<Vec<PhaseTable>>,
    pub(super) prompt: Option<NonEmptyText>,
    /// An answer that repeats so many words of the prompt is withheld.
    pub(super) prompt_echo_words: Option<EchoWords>,
    pub(super) prompt_file: Option<PathBuf>,
    /// Whether the answers of its sessions carry a reference to their place.
    pub(super) references: Option<bool>,
    pub(super) retries: Option<RetryCount>,
    pub(super) route_by: Option<RouteBy>,
    pub(super) routing_prompt: Option<NonEmptyText>,
    pub(super) rules: Option<Vec<RuleTable>>,
    pub(super) sessions: Option<ChatSessions>,
    /// Whether the answers of phases are messages of the transcript.
    pub(super) show_phases: Option<bool>,
    /// How much of its stages clients see.
    pub(super) stages: Option<StageDetail>,
    /// The form of the state that clients of DIAL carry.
    pub(super) state_format: Option<StateFormat>,
    pub(super) state_read: Option<Vec<Scope>>,
    pub(super) state_schema: Option<SchemaTable>,
    pub(super) state_schema_file: Option<PathBuf>,
    pub(super) state_write: Option<Vec<WrittenScope>>,
    pub(super) steps_max: Option<StepCount>,
    pub(super) thinking: Option<ThinkingMode>,
    pub(super) timeout_seconds: Option<TimeoutSeconds>,
    pub(super) tokens_max: Option<JsonCount<1>>,
    /// The name of a tool on its server.
    pub(super) tool: Option<NonEmptyText>,
    pub(super) tool_server: Option<Name>,
    pub(super) tool_servers: Option<Vec<Name>>,
}

/// The context of calls to an analytics service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ContextWord {
    Conversation,
    #[default]
    Agent,
    Inline,
    ClientManaged,
}

impl ContextWord {
    /// The name of the context in the file.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::Agent => "agent",
            Self::Inline => "inline",
            Self::ClientManaged => "client_managed",
        }
    }
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

/// One rule of a router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleTable {
    pub(super) pattern: MessagePattern,
    pub(super) agent: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instructions: Option<NonEmptyText>,
}

/// One phase of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PhaseTable {
    pub(super) agent: Name,
    #[serde(default)]
    pub(super) input: PhaseInput,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instructions: Option<NonEmptyText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) loop_back: Vec<LoopTable>,
    /// The name of the agent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Name>,
    #[serde(default)]
    pub(super) on_error: PhaseErrorPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) retries: Option<RetryCount>,
    #[serde(default)]
    pub(super) sees: SeenPhases,
}

impl PhaseTable {
    pub(super) fn name(&self) -> &Name {
        self.name.as_ref().unwrap_or(&self.agent)
    }
}

/// The answers that a phase sees: a word, or the names of phases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"all\", \"last\", \"none\" or a list of phases"
)]
pub(super) enum SeenPhases {
    Word(SeenWord),
    Named(Vec<Name>),
}

impl Default for SeenPhases {
    fn default() -> Self {
        Self::Word(SeenWord::All)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SeenWord {
    All,
    Last,
    None,
}

/// One rule of a phase for going back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoopTable {
    pub(super) pattern: MessagePattern,
    pub(super) to: Name,
}

use DeclaredKind::{Analytics, Conversations, Dial, Llm, Mcp, Openai, Pipeline, Router, Worker};

/// The settings that only agents have, by name, with the kinds that have them.
pub(super) const SETTINGS: &[(&str, &[DeclaredKind])] = &[
    ("agents", &[Router]),
    ("answer_by", &[Router]),
    ("answer_from", &[Pipeline]),
    ("answer_prompt", &[Router]),
    ("arguments", &[Mcp]),
    ("base_url", &[Openai, Dial, Conversations, Analytics]),
    ("brief_on_loss", &[Openai, Conversations, Analytics]),
    ("caller_history", &DeclaredKind::ALL),
    ("calls", &[Worker]),
    ("close_on", &DeclaredKind::ALL),
    ("context", &[Analytics]),
    (
        "credential_env",
        &[Worker, Openai, Dial, Conversations, Analytics],
    ),
    ("data_agent", &[Analytics]),
    ("data_key", &[Analytics]),
    ("data_sources", &[Analytics]),
    ("deployment", &[Dial]),
    ("description", &DeclaredKind::ALL),
    ("excerpt_messages", &DeclaredKind::ALL),
    ("export", &[Openai, Dial, Conversations]),
    ("headers", &[Openai, Dial, Conversations, Analytics]),
    ("hidden_ttl_days", &DeclaredKind::ALL),
    ("history", &[Mcp]),
    ("history_argument", &[Mcp]),
    (
        "import",
        &[Openai, Dial, Conversations, Analytics, Mcp, Llm],
    ),
    ("input_argument", &[Mcp]),
    ("instructions", &[Analytics]),
    ("keep_pairs", &[Openai, Dial]),
    ("kind", &DeclaredKind::ALL),
    ("loops_max", &[Pipeline]),
    ("memory", &[Openai, Dial]),
    ("model", &[Openai, Llm, Router]),
    ("on_loop_limit", &[Pipeline]),
    ("otherwise", &[Router]),
    (
        "output_key",
        &[
            Openai,
            Dial,
            Conversations,
            Analytics,
            Mcp,
            Llm,
            Router,
            Pipeline,
        ],
    ),
    ("parent", &[Analytics]),
    ("pauses", &[Openai, Dial]),
    ("phases", &[Pipeline]),
    ("prompt", &[Llm]),
    ("prompt_echo_words", &[Llm]),
    ("prompt_file", &[Llm]),
    ("redact_secrets", &DeclaredKind::ALL),
    ("references", &DeclaredKind::ALL),
    (
        "retries",
        &[Openai, Dial, Conversations, Analytics, Mcp, Llm],
    ),
    ("route_by", &[Router]),
    ("routing_prompt", &[Router]),
    ("rules", &[Router]),
    ("session_ttl_days", &DeclaredKind::ALL),
    ("sessions", &DeclaredKind::ALL),
    ("show_phases", &[Pipeline]),
    ("stages", &DeclaredKind::ALL),
    ("state_format", &DeclaredKind::ALL),
    ("state_read", &[Llm]),
    ("state_schema", &[Openai, Dial]),
    ("state_schema_file", &[Openai, Dial]),
    ("state_write", &[Llm]),
    ("steps_max", &[Llm]),
    ("thinking", &[Analytics]),
    ("timeout_seconds", &[Openai, Dial, Conversations, Analytics]),
    ("tokens_max", &[Llm]),
    ("tool", &[Mcp]),
    ("tool_server", &[Mcp]),
    ("tool_servers", &[Llm]),
];

/// The kinds that have a setting. `None` for settings that do not belong to agents.
pub(super) fn kinds_with(setting: &str) -> Option<&'static [DeclaredKind]> {
    let found = SETTINGS.iter().find(|(name, _)| *name == setting);
    found.map(|(_, kinds)| *kinds)
}
