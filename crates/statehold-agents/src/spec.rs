//! What is declared about agents: of what kind each is, where it is, what it is given and what it may
//! give. Whoever reads a configuration makes these; everybody else only reads them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use serde::Serialize;
use statehold_core::digest::{Digest, canonical_bytes};
use statehold_core::name::Name;
use statehold_core::scope::StateKey;
use statehold_engine::{Credential, Schema};

use crate::secrets::{Secrets, has_password, is_named_secret};

/// How long one call may take, unless something else is declared.
pub const TIMEOUT: Duration = Duration::from_mins(1);
/// How often a call that failed before its first word is made again, unless something else is declared.
pub const RETRIES: u32 = 2;
/// What is shorter is no secret, in bytes.
const SECRET_BYTES_MIN: usize = 8;

/// Everything that is declared: agents, the models they use, the tool servers they use.
#[derive(Debug, Default)]
pub struct AgentBook {
    /// The agents, by name.
    pub agents: BTreeMap<Name, Arc<AgentSpec>>,
    /// The models, by the name that agents use for them.
    pub models: BTreeMap<Name, Arc<ModelSpec>>,
    /// The tool servers, by name.
    pub tool_servers: BTreeMap<Name, Arc<ToolServerSpec>>,
}

impl AgentBook {
    /// One agent.
    pub fn agent(&self, name: &Name) -> Option<&Arc<AgentSpec>> {
        self.agents.get(name)
    }
}

/// One agent.
#[derive(Debug)]
pub struct AgentSpec {
    /// Its name.
    pub name: Name,
    /// What it can do, for people and for models that choose.
    pub description: Option<String>,
    /// What it is.
    pub kind: AgentKind,
    /// Session keys whose values it is told.
    pub import: Vec<StateKey>,
    /// Session keys that it may write by what it answers.
    pub export: Vec<StateKey>,
    /// What its state must look like to be given back.
    pub state_schema: Option<Arc<Schema>>,
    /// How many pairs of tool call and result are kept of recognised state. None keeps all.
    pub keep_pairs: Option<usize>,
    /// How long one call to it may take.
    pub timeout: Duration,
    /// How often a call that failed before its first word is made again.
    pub retries: u32,
    /// What a call without a session means on the chat surface.
    pub openai_default: ChatDefault,
    /// Names this declaration in the trace.
    pub digest: Digest,
}

impl AgentSpec {
    /// A process that claims its work, about which nothing else is said.
    pub fn worker(name: Name) -> Self {
        let digest =
            Self::digest_of(&serde_json::json!({ "kind": AgentKind::Worker.word(), "name": name }));
        Self {
            name,
            description: None,
            kind: AgentKind::Worker,
            import: Vec::new(),
            export: Vec::new(),
            state_schema: None,
            keep_pairs: None,
            timeout: TIMEOUT,
            retries: RETRIES,
            openai_default: ChatDefault::Stateless,
            digest,
        }
    }

    /// What names a declaration: the digest of its canonical form, which has no secrets in it.
    pub fn digest_of(declaration: &impl Serialize) -> Digest {
        Digest::sha256(&canonical_bytes(declaration))
    }
}

/// What an agent is.
#[derive(Debug)]
pub enum AgentKind {
    /// A process that claims its work.
    Worker,
    /// A service that speaks chat completions.
    Openai(Arc<OpenaiSpec>),
    /// A service that keeps conversations.
    Conversations(Arc<ConversationsSpec>),
    /// A model with tools.
    Llm(Arc<LlmSpec>),
    /// A coordinator that chooses one agent per turn.
    Router(Arc<RouterSpec>),
}

impl AgentKind {
    /// The word for it in configurations.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Openai(_) => "openai",
            Self::Conversations(_) => "conversations",
            Self::Llm(_) => "llm",
            Self::Router(_) => "router",
        }
    }

    /// Whether this server does its work. All but workers.
    pub fn is_ours(&self) -> bool {
        !matches!(self, Self::Worker)
    }
}

/// What a chat call without a session means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChatDefault {
    /// The caller sends the history, and nothing is kept.
    #[default]
    Stateless,
    /// A new session.
    Stateful,
}

/// A service that speaks chat completions.
#[derive(Debug)]
pub struct OpenaiSpec {
    /// Where, up to and without `/chat/completions`.
    pub base_url: String,
    /// What it is called there.
    pub model: String,
    /// What it is called with, unless the caller brought something.
    pub credential: Option<Credential>,
    /// Who remembers.
    pub memory: Memory,
}

/// Who remembers the exchanges with a chat service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// We do: all of its own exchanges are sent each time, its state as it was.
    #[default]
    Restore,
    /// It does: the session that it named is told it, and the new message only. Another Statehold is
    /// such a service.
    Track,
}

/// A service that keeps conversations: `POST /conversations`, `POST /conversations/{id}/chat`.
#[derive(Debug)]
pub struct ConversationsSpec {
    /// Where, up to and without `/conversations`.
    pub base_url: String,
    /// What it is called with, unless the caller brought something.
    pub credential: Option<Credential>,
}

/// A model with tools.
#[derive(Debug)]
pub struct LlmSpec {
    /// The model, by its name in the book.
    pub model: Name,
    /// What it is told first. Never stored, never shown.
    pub prompt: String,
    /// The servers its tools come from, by their names in the book.
    pub tool_servers: Vec<Name>,
    /// How many model calls one turn may take.
    pub steps_max: u32,
    /// How many tokens one turn may take.
    pub tokens_max: Option<u64>,
}

/// A coordinator that chooses one agent per turn.
#[derive(Debug)]
pub struct RouterSpec {
    /// Those it chooses from.
    pub agents: Vec<Name>,
    /// How it chooses.
    pub routing: Routing,
    /// Who writes the answer.
    pub answer: FinalAnswer,
}

/// How a router chooses.
#[derive(Debug)]
pub enum Routing {
    /// The first rule that matches the message.
    Rules {
        /// In order.
        rules: Vec<Rule>,
        /// When none matches.
        otherwise: Option<Name>,
    },
    /// A model does.
    Model {
        /// The model, by its name in the book.
        model: Name,
        /// In place of the built-in words.
        prompt: Option<String>,
    },
}

/// One rule of a router.
#[derive(Debug)]
pub struct Rule {
    /// What the message must contain.
    pub pattern: Regex,
    /// Who gets it then.
    pub agent: Name,
    /// What the agent is told in addition.
    pub instructions: Option<String>,
}

/// Who writes the answer of a coordinator.
#[derive(Debug)]
pub enum FinalAnswer {
    /// The agent: what it said is the answer.
    Pass,
    /// A model, from what the agent said.
    Model {
        /// The model, by its name in the book.
        model: Name,
        /// In place of the built-in words.
        prompt: Option<String>,
    },
}

/// A model behind a chat completions endpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// The name that agents use for it.
    pub name: Name,
    /// Where, up to and without `/chat/completions`.
    pub base_url: String,
    /// What it is called there.
    pub model: String,
    /// What it is called with.
    pub credential: Option<Credential>,
    /// How long one call may take.
    pub timeout: Duration,
    /// How often a call that failed before its first word is made again.
    pub retries: u32,
}

/// A server of tools that speaks MCP.
#[derive(Debug, PartialEq, Eq)]
pub struct ToolServerSpec {
    /// Its name.
    pub name: Name,
    /// Whether it is believed when it says that a tool may be called again, or only looks.
    pub trust_hints: bool,
    /// How it is reached.
    pub transport: ToolTransport,
    /// How long one call may take.
    pub timeout: Duration,
}

impl ToolServerSpec {
    /// What must not be shown, should the server repeat it.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let (credential, variables) = match &self.transport {
            ToolTransport::Http { credential, .. } => (credential.as_ref(), &[][..]),
            ToolTransport::Command { environment, .. } => (None, environment.as_slice()),
        };
        let values = variables.iter().map(|(_, value)| value.expose());
        // Not every variable holds a secret, and what is short stands in many messages.
        let values = values.filter(|value| value.len() >= SECRET_BYTES_MIN);
        credential.map(Credential::expose).into_iter().chain(values)
    }

    /// What must not be in the replies of its tools. Only what is a secret by its name, or has a password
    /// in it: the others are paths and places that a model has to read as they are.
    pub(crate) fn secrets_of_replies(&self) -> Secrets {
        let values: Vec<&str> = match &self.transport {
            ToolTransport::Http { credential, .. } => {
                credential.iter().map(Credential::expose).collect()
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
        let values = values.into_iter();
        Secrets::new(values.filter(|value| value.len() >= SECRET_BYTES_MIN))
    }
}

/// How a tool server is reached.
#[derive(Debug, PartialEq, Eq)]
pub enum ToolTransport {
    /// Over HTTP.
    Http {
        /// The whole address.
        url: String,
        /// What it is called with.
        credential: Option<Credential>,
    },
    /// As a program that this server starts.
    Command {
        /// The program.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Variables that it has beside those that programs need to run.
        environment: Vec<(String, Credential)>,
    },
}
