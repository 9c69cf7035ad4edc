//! Tool servers in the file: `[tool_servers.NAME]`.

use serde::{Deserialize, Serialize};

use super::kinds::{TIMEOUT_SECONDS, TimeoutSeconds};
use super::values::{NonEmptyText, ServiceHeaders, VariableName, WholeUrl};

/// An MCP server: at a URL, or a program to start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolServerConfig {
    /// The program and its arguments.
    pub(super) command: Option<ToolCommand>,
    /// The environment variable that holds the credential for calls.
    pub(super) credential_env: Option<VariableName>,
    /// The environment variables that the program gets.
    pub(super) env: Option<Vec<VariableName>>,
    /// Headers of calls to a URL.
    pub(super) headers: Option<ServiceHeaders>,
    pub(super) timeout_seconds: Option<TimeoutSeconds>,
    /// Whether to trust the server's hints that a tool is idempotent or read-only.
    pub(super) trust_hints: Option<bool>,
    pub(super) url: Option<WholeUrl>,
}

impl ToolServerConfig {
    /// The same server with every default filled in.
    pub(super) fn with_defaults(&self) -> Self {
        Self {
            timeout_seconds: self.timeout_seconds.or(Some(TIMEOUT_SECONDS)),
            trust_hints: self.trust_hints.or(Some(false)),
            ..self.clone()
        }
    }
}

/// The names of the tool server settings.
pub(super) const TOOL_SERVER_SETTINGS: [&str; 7] = [
    "command",
    "credential_env",
    "env",
    "headers",
    "timeout_seconds",
    "trust_hints",
    "url",
];

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub(super) struct ToolCommand {
    pub(super) program: NonEmptyText,
    pub(super) arguments: Vec<String>,
}

impl TryFrom<Vec<String>> for ToolCommand {
    type Error = &'static str;

    fn try_from(words: Vec<String>) -> Result<Self, Self::Error> {
        const EMPTY: &str = "it must begin with a program, as in [\"python3\", \"server.py\"]";
        let mut words = words.into_iter();
        let program =
            NonEmptyText::try_from(words.next().unwrap_or_default()).map_err(|_| EMPTY)?;
        Ok(Self {
            program,
            arguments: words.collect(),
        })
    }
}

impl From<ToolCommand> for Vec<String> {
    fn from(command: ToolCommand) -> Self {
        let program = command.program.into();
        std::iter::once(program).chain(command.arguments).collect()
    }
}
