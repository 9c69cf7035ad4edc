//! Declarations of agents, models and tool servers. The configuration loader builds them; all other
//! code only reads them.

mod pipeline;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use regex::Regex;
use serde::{Deserialize, Serialize};
use statehold_core::digest::{Digest, canonical_bytes};
use statehold_core::name::Name;
use statehold_core::scope::{Scope, StateKey};
use statehold_engine::{Audience, Credential, Schema};

use crate::secrets::{SecretRedactor, has_password, is_named_secret};

pub use crate::plain_state::StateFormat;
pub use crate::stages::StageDetail;
pub use pipeline::{
    LoopLimitPolicy, LoopRule, PHASES_MAX, PhaseErrorPolicy, PhaseInput, PhaseSpec, PipelineSpec,
    SeenAnswers,
};

/// Default timeout of one call.
pub const TIMEOUT: Duration = Duration::from_mins(1);
/// Default number of retries before the first text of an answer.
pub const RETRIES: u32 = 2;
/// Shorter values are not redacted, in bytes.
const SECRET_BYTES_MIN: usize = 8;

/// All declarations: agents, models and tool servers.
#[derive(Debug, Default)]
pub struct AgentBook {
    /// Agents by name.
    pub agents: BTreeMap<Name, Arc<AgentSpec>>,
    /// Models by the name that agents refer to.
    pub models: BTreeMap<Name, Arc<ModelSpec>>,
    /// Tool servers by name.
    pub tool_servers: BTreeMap<Name, Arc<ToolServerSpec>>,
}

impl AgentBook {
    /// Looks up an agent by name.
    pub fn agent(&self, name: &Name) -> Option<&Arc<AgentSpec>> {
        self.agents.get(name)
    }
}

/// Declaration of one agent.
#[derive(Debug)]
pub struct AgentSpec {
    /// The agent name.
    pub name: Name,
    /// Abilities, for people and for models that choose an agent.
    pub description: Option<String>,
    /// Kind of agent, with its settings.
    pub kind: AgentKind,
    /// State keys whose values are sent to it.
    pub import: Vec<StateKey>,
    /// State keys that it may write with its answer. None of the app.
    pub export: Vec<StateKey>,
    /// State key under which the text of its answer is written. Not of the app, and none of `export`.
    pub output_key: Option<StateKey>,
    /// Schema that its state must fit to be sent back.
    pub state_schema: Option<Arc<Schema>>,
    /// How many pairs of tool call and result to keep in its state. None keeps all.
    pub keep_pairs: Option<usize>,
    /// Timeout of one call to it.
    pub timeout: Duration,
    /// Number of retries before the first text of an answer.
    pub retries: u32,
    /// The session of a chat call that names none.
    pub sessions: ChatSessions,
    /// How far it trusts the callers that keep its conversation.
    pub caller_history: CallerTrust,
    /// Whether the answers of its sessions carry a reference to their place.
    pub references: bool,
    /// Whether a service that lost the conversation is told of the earlier exchanges.
    pub brief_on_loss: bool,
    /// Whether it may wait for people, so that the beginning of its answers is held back until it is clear that it
    /// does not. Services that keep sessions always may.
    pub pauses: bool,
    /// How much of its stages clients see.
    pub stages: StageDetail,
    /// The form of the state that clients of DIAL carry.
    pub state_format: StateFormat,
    /// Digest of this declaration, for the trace.
    pub digest: Digest,
}

impl AgentSpec {
    /// Declaration of a worker with defaults.
    pub fn worker(name: Name) -> Self {
        let digest =
            Self::digest_of(&serde_json::json!({ "kind": AgentKind::Worker.word(), "name": name }));
        Self {
            name,
            description: None,
            kind: AgentKind::Worker,
            import: Vec::new(),
            export: Vec::new(),
            output_key: None,
            state_schema: None,
            keep_pairs: None,
            timeout: TIMEOUT,
            retries: RETRIES,
            sessions: AgentKind::Worker.default_sessions(),
            caller_history: CallerTrust::Untrusted,
            references: false,
            brief_on_loss: false,
            pauses: false,
            stages: StageDetail::default(),
            state_format: StateFormat::default(),
            digest,
        }
    }

    /// Digest of a declaration's canonical form, which contains no secrets.
    pub fn digest_of(declaration: &impl Serialize) -> Digest {
        Digest::sha256(&canonical_bytes(declaration))
    }
}

/// Kind of an agent.
#[derive(Debug)]
pub enum AgentKind {
    /// A process that claims its requests.
    Worker,
    /// A service behind chat completions.
    Openai(Arc<OpenaiSpec>),
    /// An application of DIAL.
    Dial(Arc<DialSpec>),
    /// A service that stores conversations.
    Conversations(Arc<ConversationsSpec>),
    /// A Conversational Analytics API.
    Analytics(Arc<AnalyticsSpec>),
    /// A tool on a tool server.
    Mcp(Arc<McpSpec>),
    /// A model with tools.
    Llm(Arc<LlmSpec>),
    /// A coordinator that chooses one agent per turn.
    Router(Arc<RouterSpec>),
    /// A coordinator that runs agents one after another.
    Pipeline(Arc<PipelineSpec>),
}

impl AgentKind {
    /// Name of the kind in configurations.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Openai(_) => "openai",
            Self::Dial(_) => "dial",
            Self::Conversations(_) => "conversations",
            Self::Analytics(_) => "analytics",
            Self::Mcp(_) => "mcp",
            Self::Llm(_) => "llm",
            Self::Router(_) => "router",
            Self::Pipeline(_) => "pipeline",
        }
    }

    /// The session of a chat call that names none, unless the declaration says it. A service behind chat
    /// completions gets the history from its caller.
    pub fn default_sessions(&self) -> ChatSessions {
        match self {
            Self::Openai(_) | Self::Dial(_) => ChatSessions::None,
            Self::Worker
            | Self::Conversations(_)
            | Self::Analytics(_)
            | Self::Mcp(_)
            | Self::Llm(_)
            | Self::Router(_)
            | Self::Pipeline(_) => ChatSessions::Auto,
        }
    }

    /// The agents that a coordinator calls, each once. None for other kinds.
    pub fn coordinated_agents(&self) -> Option<Vec<&Name>> {
        match self {
            Self::Router(router) => Some(router.agents.iter().collect()),
            Self::Pipeline(pipeline) => {
                let mut agents: Vec<&Name> = Vec::new();
                for phase in &pipeline.phases {
                    if !agents.contains(&&phase.agent) {
                        agents.push(&phase.agent);
                    }
                }
                Some(agents)
            }
            Self::Worker
            | Self::Openai(_)
            | Self::Dial(_)
            | Self::Conversations(_)
            | Self::Analytics(_)
            | Self::Mcp(_)
            | Self::Llm(_) => None,
        }
    }

    /// Whether the parameters and tools of a caller who keeps the conversation reach its service.
    pub fn takes_parameters(&self) -> bool {
        matches!(self, Self::Openai(_) | Self::Dial(_))
    }

    /// Whether it works in sessions only: in another process, or its service stores the conversation and receives
    /// only new messages.
    pub fn needs_session(&self) -> bool {
        match self {
            Self::Worker | Self::Conversations(_) => true,
            Self::Analytics(analytics) => {
                matches!(analytics.context, DataContext::Conversation { .. })
            }
            Self::Mcp(mcp) => mcp.history.needs_session(),
            Self::Openai(_)
            | Self::Dial(_)
            | Self::Llm(_)
            | Self::Router(_)
            | Self::Pipeline(_) => false,
        }
    }

    /// Whether this server executes its turns: all kinds but workers.
    pub fn is_hosted(&self) -> bool {
        !matches!(self, Self::Worker)
    }
}

/// The session of a chat call that names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatSessions {
    /// The session in which the messages of the call were said, or a new one.
    Auto,
    /// The call is refused.
    Explicit,
    /// The caller sends the history, and nothing is stored.
    None,
}

/// How far an agent trusts the callers that keep its conversation, in calls without a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallerTrust {
    /// It gets the messages of user and assistant, and its own state as this server sealed it.
    #[default]
    Untrusted,
    /// It gets everything that a caller sends: instructions, tools, tool calls and results, and any state.
    Trusted,
}

/// A header of every call to a service, with a value that is kept secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretHeader {
    /// The name.
    pub name: HeaderName,
    /// The value. It fits into a header.
    value: Credential,
}

impl SecretHeader {
    /// None if the value does not fit into a header.
    pub fn new(name: HeaderName, value: Credential) -> Option<Self> {
        HeaderValue::from_str(value.expose()).ok()?;
        Some(Self { name, value })
    }

    fn expose(&self) -> &str {
        self.value.expose()
    }

    /// The header as it is sent. Its value is redacted if the service repeats it.
    pub(crate) fn pair(&self) -> (HeaderName, HeaderValue) {
        let mut value = HeaderValue::from_str(self.expose()).expect("it was checked before");
        value.set_sensitive(true);
        (self.name.clone(), value)
    }
}

/// A service behind chat completions.
#[derive(Debug)]
pub struct OpenaiSpec {
    /// Address, without the trailing `/chat/completions`.
    pub base_url: String,
    /// Model name sent to the service.
    pub model: String,
    /// Credential, unless the caller sends one.
    pub credential: Option<Credential>,
    /// Further headers of every call.
    pub headers: Vec<SecretHeader>,
    /// Which side stores the history.
    pub memory: ChatMemory,
}

/// The agents that the key of a call to the surface of DIAL is for: applications of DIAL, and no other service.
pub const DIAL_AUDIENCE: Audience = Audience::new("dial");

/// An application of DIAL, at its own address or behind DIAL Core.
#[derive(Debug)]
pub struct DialSpec {
    /// Address, without the trailing `/openai/deployments`.
    pub base_url: String,
    /// Name of the deployment.
    pub deployment: String,
    /// Key of every call. Without it, the key of the caller goes on.
    pub credential: Option<Credential>,
    /// Further headers of every call.
    pub headers: Vec<SecretHeader>,
}

/// Which side stores the history of a chat service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatMemory {
    /// Statehold does: each call sends the agent's own exchanges, with its state unchanged.
    #[default]
    Restore,
    /// The service does: each call sends its session id and the new message only. Another Statehold is
    /// such a service.
    Track,
}

/// A service that stores conversations: `POST /conversations`, `POST /conversations/{id}/chat`.
#[derive(Debug)]
pub struct ConversationsSpec {
    /// Address, without the trailing `/conversations`.
    pub base_url: String,
    /// Credential, unless the caller sends one.
    pub credential: Option<Credential>,
    /// Further headers of every call.
    pub headers: Vec<SecretHeader>,
}

/// A Conversational Analytics API: `POST …/projects/P/locations/L:chat`.
#[derive(Debug)]
pub struct AnalyticsSpec {
    /// Address with the version of the API, without the trailing `/projects`.
    pub base_url: String,
    /// Project and location: `projects/P/locations/L`.
    pub parent: String,
    /// Which side stores the history, and the agent or the data that are asked.
    pub context: DataContext,
    /// How long the service thinks. None leaves it to the service.
    pub thinking: Option<ThinkingMode>,
    /// State key under which the data of an answer is written. Not of the app.
    pub data_key: Option<StateKey>,
    /// Credential, unless the caller sends one.
    pub credential: Option<Credential>,
    /// Further headers of every call.
    pub headers: Vec<SecretHeader>,
}

/// Context of calls to a Conversational Analytics API.
#[derive(Debug)]
pub enum DataContext {
    /// The service stores the conversation with a data agent: each call sends the new message only.
    Conversation {
        /// The whole name of the data agent.
        data_agent: String,
    },
    /// A data agent. Statehold stores the history and sends it with each call.
    Agent {
        /// The whole name of the data agent.
        data_agent: String,
    },
    /// Instructions and data sources in each call, with the history.
    Inline(InlineData),
    /// The same, with the ids of the session and the agent as labels.
    ClientManaged(InlineData),
}

/// Instructions and data sources of an inline context.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InlineData {
    /// Instructions for the service.
    #[serde(rename = "systemInstruction", skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// `datasourceReferences` of the API.
    #[serde(rename = "datasourceReferences")]
    pub data_sources: serde_json::Value,
}

/// How long an analytics service thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingMode {
    /// A quick answer.
    Fast,
    /// A thorough answer.
    Thinking,
}

/// A tool on a tool server: each turn is one call of it.
#[derive(Debug)]
pub struct McpSpec {
    /// Name of the tool server in the book.
    pub tool_server: Name,
    /// Name of the tool on its server.
    pub tool: String,
    /// The argument with the text of the message.
    pub input_argument: String,
    /// The argument with the address of the conversation.
    pub history_argument: String,
    /// How the tool gets the conversation.
    pub history: HistoryAccess,
    /// Further arguments of every call.
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

/// How a tool gets the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryAccess {
    /// By an address of the revision at which its turn began: the messages there never change.
    #[default]
    Pinned,
    /// By an address of the newest messages.
    Live,
    /// With the call.
    Inline,
    /// Not at all.
    None,
}

impl HistoryAccess {
    /// Whether the tool reads the conversation from this server.
    pub fn needs_session(self) -> bool {
        matches!(self, Self::Pinned | Self::Live)
    }
}

/// A model with tools.
#[derive(Debug)]
pub struct LlmSpec {
    /// Name of the model in the book.
    pub model: Name,
    /// System prompt, with state keys in braces. Never stored, never shown.
    pub prompt: String,
    /// Names of the tool servers in the book.
    pub tool_servers: Vec<Name>,
    /// Most model calls per turn.
    pub steps_max: u32,
    /// Most tokens per turn.
    pub tokens_max: Option<u64>,
    /// An answer that repeats so many words of the prompt, one after the other, is withheld.
    pub prompt_echo_words: Option<usize>,
    /// The scopes of its state tools.
    pub state: StateAccess,
}

/// The scopes that a model reads and writes with state tools. No tools for none.
#[derive(Debug, Clone, Default)]
pub struct StateAccess {
    /// Scopes that it may read.
    pub read: BTreeSet<Scope>,
    /// Scopes that it may write. Never that of the app.
    pub write: BTreeSet<Scope>,
}

/// A coordinator that chooses one agent per turn.
#[derive(Debug)]
pub struct RouterSpec {
    /// Agents to choose from.
    pub agents: Vec<Name>,
    /// How it chooses.
    pub routing: Routing,
    /// How the final answer is made.
    pub answer: FinalAnswer,
}

/// How a router chooses.
#[derive(Debug)]
pub enum Routing {
    /// By the first rule that matches the message.
    Rules {
        /// The rules, in order.
        rules: Vec<RoutingRule>,
        /// Agent for a message that no rule matches.
        otherwise: Option<Name>,
    },
    /// By asking a model.
    Model {
        /// Name of the model in the book.
        model: Name,
        /// Replaces the built-in prompt.
        prompt: Option<String>,
    },
}

/// One rule of a router.
#[derive(Debug)]
pub struct RoutingRule {
    /// Pattern that the message must match.
    pub pattern: Regex,
    /// The agent to choose.
    pub agent: Name,
    /// Additional instructions for the agent.
    pub instructions: Option<String>,
}

/// How a router makes its final answer.
#[derive(Debug)]
pub enum FinalAnswer {
    /// Pass the agent's answer through.
    Pass,
    /// Let a model write it from the agent's answer.
    Model {
        /// Name of the model in the book.
        model: Name,
        /// Replaces the built-in prompt.
        prompt: Option<String>,
    },
}

/// A model behind a chat completions endpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// The name that agents refer to.
    pub name: Name,
    /// Address, without the trailing `/chat/completions`.
    pub base_url: String,
    /// Model name sent to the endpoint.
    pub model: String,
    /// Bearer credential.
    pub credential: Option<Credential>,
    /// Further headers of every call.
    pub headers: Vec<SecretHeader>,
    /// Inputs that it takes beside text.
    pub input: BTreeSet<MediaKind>,
    /// Timeout of one call.
    pub timeout: Duration,
    /// Number of retries before the first text of an answer.
    pub retries: u32,
}

/// An input of models that is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediaKind {
    /// Pictures.
    Image,
    /// Sounds.
    Audio,
    /// Other files, such as documents.
    File,
}

/// A tool server that speaks MCP.
#[derive(Debug, PartialEq, Eq)]
pub struct ToolServerSpec {
    /// Name of the tool server.
    pub name: Name,
    /// Whether to trust the server's hints that a tool is idempotent or only reads.
    pub trust_hints: bool,
    /// How it is reached.
    pub transport: ToolTransport,
    /// Timeout of one call.
    pub timeout: Duration,
}

impl ToolServerSpec {
    /// Values to redact if the server repeats them in an error.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let (credential, headers, variables) = match &self.transport {
            ToolTransport::Http {
                credential,
                headers,
                ..
            } => (credential.as_ref(), headers.as_slice(), &[][..]),
            ToolTransport::Command { environment, .. } => (None, &[][..], environment.as_slice()),
        };
        let variables = variables.iter().map(|(_, value)| value.expose());
        let values = headers.iter().map(SecretHeader::expose).chain(variables);
        // Skip short values: not every variable is a secret, and short texts appear in many messages.
        let values = values.filter(|value| value.len() >= SECRET_BYTES_MIN);
        credential.map(Credential::expose).into_iter().chain(values)
    }

    /// Values to redact in tool results: only variables whose name marks a secret or whose value has a
    /// password, and the token of the call. A model needs the others, such as paths, as they are.
    pub(crate) fn reply_redactor(&self, token: Option<&str>) -> SecretRedactor {
        let values: Vec<&str> = match &self.transport {
            ToolTransport::Http {
                credential,
                headers,
                ..
            } => {
                let headers = headers.iter().map(SecretHeader::expose);
                credential
                    .iter()
                    .map(Credential::expose)
                    .chain(headers)
                    .collect()
            }
            ToolTransport::Command { environment, .. } => {
                let values = environment
                    .iter()
                    .map(|(name, value)| (name, value.expose()));
                let secret =
                    values.filter(|(name, value)| is_named_secret(name) || has_password(value));
                secret.map(|(_, value)| value).collect()
            }
        };
        let values = values.into_iter().chain(token);
        SecretRedactor::new(values.filter(|value| value.len() >= SECRET_BYTES_MIN))
    }
}

/// Environment variable of programs that says which server started them. The processes that they start
/// inherit it, so the next server finds those that a killed server has left behind.
pub const PROGRAM_MARK: &str = "STATEHOLD_STARTED_BY";

/// Transport of a tool server.
#[derive(Debug, PartialEq, Eq)]
pub enum ToolTransport {
    /// Over HTTP.
    Http {
        /// The complete address.
        url: String,
        /// Bearer credential.
        credential: Option<Credential>,
        /// Further headers of every call.
        headers: Vec<SecretHeader>,
    },
    /// As a program that this server starts.
    Command {
        /// Path or name of the executable.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Environment variables in addition to the basic ones.
        environment: Vec<(String, Credential)>,
        /// Value of [`PROGRAM_MARK`] for the program.
        mark: Option<String>,
    },
}
