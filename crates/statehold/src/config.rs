//! The configuration of a server, with the source of each value.
//!
//! Four layers, each over the one before: defaults, a TOML file, the environment
//! (`STATEHOLD__SECTION__KEY`), and flags. Every value remembers its layer, so that a wrong one can
//! be traced. Relative paths start at the working directory.

mod agents;
mod analytics;
mod book;
mod dial_agents;
mod keys;
mod kinds;
mod layers;
mod lifetimes;
mod mcp_agents;
mod mistakes;
mod models;
mod pipelines;
mod redaction;
mod routers;
mod secret;
mod state_rules;
mod tables;
mod tool_servers;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use statehold_core::name::Name;
use statehold_engine::debug_log::DebugLogLimits;
use statehold_server::UmsOptions;

pub(crate) use agents::{AgentConfig, policies};
pub(crate) use book::{DeclaredAgents, declare_agents};
pub(crate) use layers::{CheckedLayers, ConfigLayers, SourcedValue, ValueSource};
pub(crate) use mistakes::ConfigMistakes;
pub(crate) use secret::secret;
pub(crate) use tables::{ConfigTables, agent_table, other_settings, tool_table};

use lifetimes::{AppConfig, LifetimeDays};
use models::ModelConfig;
use redaction::RedactionConfig;
use state_rules::{StateKeys, StateRuleConfig};
use tool_servers::ToolServerConfig;
pub(crate) use values::WholeUrl;
use values::{BoundedNumber, UmsPath, VariableName, empty_as_none};

/// The configuration file if none is named.
const FILE_NAME: &str = "statehold.toml";
/// Names the file if `--config` does not.
const FILE_VARIABLE: &str = "STATEHOLD_CONFIG";

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) store: StoreConfig,
    pub(crate) auth: AuthConfig,
    pub(crate) log: LogConfig,
    pub(crate) limits: LimitsConfig,
    pub(crate) chat: ChatConfig,
    pub(crate) ums: UmsConfig,
    pub(crate) dial: DialConfig,
    pub(crate) push: PushConfig,
    pub(crate) console: ConsoleConfig,
    pub(crate) debug_log: DebugLogConfig,
    pub(crate) traces: TracesConfig,
    pub(crate) redaction: RedactionConfig,
    /// The models that agents use.
    #[serde(default, skip_serializing)]
    pub(crate) models: BTreeMap<Name, ModelConfig>,
    /// The MCP servers that provide tools.
    #[serde(default, skip_serializing)]
    pub(crate) tool_servers: BTreeMap<Name, ToolServerConfig>,
    /// Declarations of agents, and the policies of their tools.
    #[serde(default, skip_serializing)]
    pub(crate) agents: BTreeMap<Name, AgentConfig>,
    /// How long the sessions of an app live.
    #[serde(default, skip_serializing)]
    pub(crate) apps: BTreeMap<Name, AppConfig>,
    /// The rules of state keys.
    #[serde(default, skip_serializing)]
    pub(crate) state: BTreeMap<StateKeys, StateRuleConfig>,
}

/// How the server accepts calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerConfig {
    /// The address and port to listen on.
    pub(crate) listen: SocketAddr,
    /// The address under which tool servers reach this server. None for the address that it listens on.
    #[serde(with = "empty_as_none")]
    pub(crate) url: Option<WholeUrl>,
    /// The address under which people reach this server, for links. None for the one that a call names.
    #[serde(with = "empty_as_none")]
    pub(crate) public_url: Option<WholeUrl>,
    /// The most open connections; further ones wait to be accepted.
    pub(crate) connections_max: NonZeroU32,
    /// How long a caller may take to send its headers.
    pub(crate) header_timeout_seconds: NonZeroU64,
    /// How long calls in progress may take after a stop was requested.
    pub(crate) shutdown_seconds: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7717)),
            url: None,
            public_url: None,
            connections_max: NonZeroU32::new(1024).expect("not zero"),
            header_timeout_seconds: NonZeroU64::new(10).expect("not zero"),
            shutdown_seconds: 20,
        }
    }
}

/// Where the data is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreConfig {
    /// The data directory.
    pub(crate) data: PathBuf,
    /// The number of reader threads.
    pub(crate) readers: NonZeroUsize,
    /// The bytes of memory for the newest records of sessions in use.
    pub(crate) tail_bytes_max: usize,
    /// Whether everything that is said from now on is encrypted in the file.
    pub(crate) encrypt: bool,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            data: PathBuf::from("./statehold-data"),
            readers: NonZeroUsize::new(2).expect("not zero"),
            tail_bytes_max: 64 * 1024 * 1024,
            encrypt: true,
        }
    }
}

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuthConfig {
    /// Whether a call needs a key. If not, it acts as `local` and may do everything.
    pub(crate) required: bool,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self { required: true }
    }
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogConfig {
    pub(crate) format: LogFormat,
    /// A level, or filter directives such as `info,statehold_server=debug`.
    pub(crate) level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Limits on requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsConfig {
    /// The most bytes of one request body.
    pub(crate) body_bytes_max: NonZeroUsize,
    /// The most calls of one key per second, in the long run. 0 means no limit.
    pub(crate) calls_per_second: u32,
    /// The most calls of one key at once, after a pause.
    pub(crate) calls_burst: NonZeroU32,
    /// The most bytes of the bodies that are read or in use.
    pub(crate) request_bytes_max: NonZeroUsize,
    /// The most bytes of the answers that wait to be sent.
    pub(crate) answer_bytes_max: NonZeroUsize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            body_bytes_max: NonZeroUsize::new(8 << 20).expect("not zero"),
            calls_per_second: 0,
            calls_burst: NonZeroU32::new(100).expect("not zero"),
            request_bytes_max: NonZeroUsize::new(256 << 20).expect("not zero"),
            answer_bytes_max: NonZeroUsize::new(64 << 20).expect("not zero"),
        }
    }
}

/// Chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatConfig {
    /// How many days a session that a chat call creates lives after its last commit. 0 means for ever.
    pub(crate) session_ttl_days: LifetimeDays,
    /// How many days it keeps its hidden items after that. 0 means as long as it lives.
    pub(crate) hidden_ttl_days: LifetimeDays,
    /// Agents that run contexts which callers bring along. The first is the default.
    #[serde(default)]
    pub(crate) answerers: Vec<Name>,
}

impl Default for ChatConfig {
    fn default() -> Self {
        Self {
            session_ttl_days: LifetimeDays::fixed(30),
            hidden_ttl_days: LifetimeDays::fixed(0),
            answerers: Vec::new(),
        }
    }
}

/// Conversations for clients of a stateful service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UmsConfig {
    /// The root of their paths.
    pub(crate) path: UmsPath,
    /// The agent of new conversations. None is `coordinator`, or the only agent.
    #[serde(with = "empty_as_none")]
    pub(crate) agent: Option<Name>,
}

impl UmsConfig {
    pub(crate) fn options(&self) -> UmsOptions {
        UmsOptions {
            root: self.path.root(),
            agent: self.agent.clone(),
        }
    }
}

/// The DIAL Core whose users may call this server as an application of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DialConfig {
    /// The address of Core. None for no Core.
    #[serde(with = "empty_as_none")]
    pub(crate) core_url: Option<WholeUrl>,
    /// The environment variable that holds the API key under which calls of its users are made.
    #[serde(with = "empty_as_none")]
    pub(crate) key_env: Option<VariableName>,
}

/// Addresses that decisions may be pushed to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PushConfig {
    /// `host:port` of private addresses that are allowed. All others must be public.
    pub(crate) allow: Vec<String>,
}

/// The pages for people who look after the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsoleConfig {
    /// Whether they are served.
    pub(crate) enabled: bool,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// The sealed log of what agents exchange with models, other agents and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DebugLogConfig {
    /// Whether there is one.
    pub(crate) enabled: bool,
    /// All of its files together.
    pub(crate) bytes_max: BoundedNumber<16_777_216, 1_099_511_627_776>,
    /// How old its entries become.
    pub(crate) days_max: BoundedNumber<1, 3_660>,
}

impl Default for DebugLogConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            bytes_max: BoundedNumber::fixed(256 << 20),
            days_max: BoundedNumber::fixed(7),
        }
    }
}

impl DebugLogConfig {
    /// The bounds of the log. None if there is none.
    pub(crate) fn limits(&self) -> Option<DebugLogLimits> {
        self.enabled.then(|| DebugLogLimits {
            bytes_max: self.bytes_max.get(),
            age_max: Duration::from_secs(self.days_max.get() * 24 * 3_600),
        })
    }
}

/// The collector that gets the spans of calls and turns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TracesConfig {
    /// The address for OTLP over HTTP, with its path. None for no traces.
    #[serde(with = "empty_as_none")]
    pub(crate) otlp_url: Option<WholeUrl>,
    /// The environment variable with a bearer credential for it.
    #[serde(with = "empty_as_none")]
    pub(crate) credential_env: Option<VariableName>,
}

/// The environment of the process: the directory of the file, and the environment variables.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigEnvironment {
    /// The directory in which `statehold.toml` is looked for.
    pub(crate) directory: PathBuf,
    pub(crate) variables: Vec<(OsString, OsString)>,
}

impl ConfigEnvironment {
    pub(crate) fn of_process() -> Self {
        Self {
            directory: PathBuf::new(),
            variables: std::env::vars_os().collect(),
        }
    }

    /// The file to read if no flag names one.
    pub(crate) fn found_file(&self) -> Option<PathBuf> {
        self.file(None)
    }

    /// The same environment with a file found earlier: if that file is gone now, loading fails
    /// instead of falling back to defaults.
    pub(crate) fn with_file(mut self, found: Option<&Path>) -> Self {
        if let Some(found) = found.filter(|_| self.found_file().is_none()) {
            self.variables.push((FILE_VARIABLE.into(), found.into()));
        }
        self
    }

    /// The file to read: named by the flag, named by the environment, or `statehold.toml` if it
    /// exists.
    fn file(&self, flag: Option<&Path>) -> Option<PathBuf> {
        if let Some(named) = flag {
            return Some(named.to_owned());
        }
        let variable = self
            .variables
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
        if let Some((_, named)) = variable {
            return Some(PathBuf::from(named));
        }
        let here = self.directory.join(FILE_NAME);
        here.is_file().then_some(here)
    }
}

/// Merges the file and the environment over the defaults. The caller adds the flags.
///
/// # Errors
///
/// If a named file does not exist, or the file or the environment has an unknown key.
pub(crate) fn layers(
    environment: &ConfigEnvironment,
    file: Option<&Path>,
) -> anyhow::Result<ConfigLayers> {
    let mut layers = ConfigLayers::defaults();
    if let Some(path) = environment.file(file) {
        layers.add_file(&path)?;
    }
    layers.add_environment(&environment.variables)?;
    Ok(layers)
}

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod tests;
