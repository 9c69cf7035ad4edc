//! What the file says about servers of tools: `[tool_servers.NAME]`.

use serde::{Deserialize, Serialize};

use super::kinds::{TIMEOUT_SECONDS, Timeout};
use super::values::{Address, Variable, Words};

/// A server of tools that speaks MCP: at an address, or a program that is started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolServer {
    /// The program and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<Command>,
    /// The variable of the environment that holds what it is called with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) credential_env: Option<Variable>,
    /// The variables of the environment that its program gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) env: Option<Vec<Variable>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<Timeout>,
    /// Whether it is believed when it says that a tool may be called again, or only looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trust_hints: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<Address>,
}

impl ToolServer {
    /// The same with everything said that has a default.
    pub(super) fn with_defaults(&self) -> Self {
        Self {
            timeout_seconds: self.timeout_seconds.or(Some(TIMEOUT_SECONDS)),
            trust_hints: self.trust_hints.or(Some(false)),
            ..self.clone()
        }
    }
}

/// The settings of a tool server, by name.
pub(super) const TOOL_SERVER_SETTINGS: [&str; 6] = [
    "command",
    "credential_env",
    "env",
    "timeout_seconds",
    "trust_hints",
    "url",
];

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub(super) struct Command {
    pub(super) program: Words,
    pub(super) arguments: Vec<String>,
}

impl TryFrom<Vec<String>> for Command {
    type Error = &'static str;

    fn try_from(words: Vec<String>) -> Result<Self, Self::Error> {
        const EMPTY: &str = "it begins with a program, as in [\"python3\", \"server.py\"]";
        let mut words = words.into_iter();
        let program = Words::try_from(words.next().unwrap_or_default()).map_err(|_| EMPTY)?;
        Ok(Self {
            program,
            arguments: words.collect(),
        })
    }
}

impl From<Command> for Vec<String> {
    fn from(command: Command) -> Self {
        let program = command.program.into();
        std::iter::once(program).chain(command.arguments).collect()
    }
}
