//! The configuration: what a server is told, and who told it.
//!
//! Four layers, each over the one before: defaults, a TOML file, the environment
//! (`STATEHOLD__SECTION__KEY`), and flags. Every value remembers its layer, so that a wrong one can
//! be found. Relative paths count from the directory that the program was started in.

mod agents;
mod book;
mod keys;
mod kinds;
mod layers;
mod mistakes;
mod models;
mod routers;
mod secret;
mod tables;
mod tool_servers;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use statehold_core::name::Name;

pub(crate) use agents::{Agent, policies};
pub(crate) use book::{Declared, declared};
pub(crate) use layers::{Explained, Layers, Source};
pub(crate) use mistakes::Mistakes;
pub(crate) use secret::secret;
pub(crate) use tables::{Differences, Tables, agent_table, other_settings, tool_table};

use models::Model;
use tool_servers::ToolServer;

/// The file that is read when none is named.
const FILE_NAME: &str = "statehold.toml";
/// Names the file when `--config` does not.
const FILE_VARIABLE: &str = "STATEHOLD_CONFIG";

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) store: Storage,
    pub(crate) auth: Auth,
    pub(crate) log: Log,
    pub(crate) limits: Limits,
    pub(crate) push: Push,
    /// The models that agents use.
    #[serde(default)]
    pub(crate) models: BTreeMap<Name, Model>,
    /// The servers that agents have their tools from.
    #[serde(default)]
    pub(crate) tool_servers: BTreeMap<Name, ToolServer>,
    /// What is declared about agents, and what is laid down about their tools.
    #[serde(default)]
    pub(crate) agents: BTreeMap<Name, Agent>,
}

/// How calls come in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// The address and port to listen on.
    pub(crate) listen: SocketAddr,
    /// Connections that are open at the same time; more wait to be accepted.
    pub(crate) connections_max: NonZeroU32,
    /// How long a caller may take to send its headers.
    pub(crate) header_timeout_seconds: NonZeroU64,
    /// How long calls in progress may take after a stop was asked for.
    pub(crate) shutdown_seconds: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7717)),
            connections_max: NonZeroU32::new(1024).expect("not zero"),
            header_timeout_seconds: NonZeroU64::new(10).expect("not zero"),
            shutdown_seconds: 20,
        }
    }
}

/// Where data lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storage {
    /// The data directory.
    pub(crate) data: PathBuf,
    /// Threads that read.
    pub(crate) readers: NonZeroUsize,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            data: PathBuf::from("./statehold-data"),
            readers: NonZeroUsize::new(2).expect("not zero"),
        }
    }
}

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    /// Whether a call needs a key. Without, it acts as `local` and may do everything.
    pub(crate) required: bool,
}

impl Default for Auth {
    fn default() -> Self {
        Self { required: true }
    }
}

/// What the server says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    /// A level, or filter directives such as `info,statehold_server=debug`.
    pub(crate) level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}

/// The form of a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// How much one caller may send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// The most bytes of one body.
    pub(crate) body_bytes_max: NonZeroUsize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: NonZeroUsize::new(8 << 20).expect("not zero"),
        }
    }
}

/// Where decisions may be pushed to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Push {
    /// `host:port` of addresses that may be private. All others must be public.
    pub(crate) allow: Vec<String>,
}

/// What is outside: where a file may lie, and what the environment says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// The directory in which `statehold.toml` is looked for.
    pub(crate) directory: PathBuf,
    pub(crate) environment: Vec<(OsString, OsString)>,
}

impl Surroundings {
    pub(crate) fn of_process() -> Self {
        Self {
            directory: PathBuf::new(),
            environment: std::env::vars_os().collect(),
        }
    }

    /// The file that is read if no flag names one.
    pub(crate) fn found_file(&self) -> Option<PathBuf> {
        self.file(None)
    }

    /// The same, with a file that was found before: should it be gone, that is a mistake now.
    pub(crate) fn with_file(mut self, found: Option<&Path>) -> Self {
        if let Some(found) = found.filter(|_| self.found_file().is_none()) {
            self.environment.push((FILE_VARIABLE.into(), found.into()));
        }
        self
    }

    /// The file to read: the one named by the flag, by the environment, or the one that is there.
    fn file(&self, flag: Option<&Path>) -> Option<PathBuf> {
        if let Some(named) = flag {
            return Some(named.to_owned());
        }
        let variable = self
            .environment
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
        if let Some((_, named)) = variable {
            return Some(PathBuf::from(named));
        }
        let here = self.directory.join(FILE_NAME);
        here.is_file().then_some(here)
    }
}

/// Puts the file and the environment over the defaults. Flags come on top, from the caller.
///
/// # Errors
///
/// If a file that was named is not there, or anything in it or in the environment is not known.
pub(crate) fn layers(around: &Surroundings, file: Option<&Path>) -> anyhow::Result<Layers> {
    let mut layers = Layers::defaults();
    if let Some(path) = around.file(file) {
        layers.add_file(&path)?;
    }
    layers.add_environment(&around.environment)?;
    Ok(layers)
}

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod tests;
