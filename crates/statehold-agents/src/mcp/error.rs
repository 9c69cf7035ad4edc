//! Errors of tool calls, as texts for people and models.

use rmcp::model::{ErrorCode, ErrorData};
use statehold_core::name::Name;

use super::connection::McpFailure;
use crate::http::redact_and_clip;
use crate::spec::ToolServerSpec;

/// JSON-RPC error code that our HTTP client substitutes for an oversized response.
pub(super) const TOO_LARGE: ErrorCode = ErrorCode(-31_001);

/// Why a tool call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tool server {server} {problem}{}", self.run_state())]
pub(crate) struct ToolError {
    server: Name,
    problem: ToolProblem,
    /// False only if the call certainly did not reach the tool.
    may_have_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ToolProblem {
    /// The server cannot be reached, or the connection was lost.
    #[error("cannot be reached")]
    Unreachable,
    /// The deadline passed.
    #[error("did not answer within its timeout_seconds")]
    Timeout,
    #[error("no longer has the tool {0}; list its tools again")]
    NoSuchTool(String),
    /// The response exceeds the size limit.
    #[error("sent a result that is too large; ask it for less")]
    TooLarge,
    /// The server rejected the request.
    #[error("refused: {0}")]
    Refused(String),
    /// The response does not say whether the tool ran.
    #[error("gave no answer: {0}")]
    Unclear(String),
    /// The call is made again when a person has answered.
    #[error("asks a person")]
    WaitsForPerson,
}

/// Why the outcome of a call is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The deadline passed.
    Late,
    Lost,
    /// The response is not an MCP answer.
    Unclear,
}

impl ToolError {
    /// Maps a failure. The text goes to models and is stored, so credentials are redacted, even if the
    /// server repeats them.
    pub(super) fn of(spec: &ToolServerSpec, failure: McpFailure) -> Self {
        Self::of_call(spec, failure, None)
    }

    /// Maps the failure of a call that came with a token.
    pub(super) fn of_call(spec: &ToolServerSpec, failure: McpFailure, token: Option<&str>) -> Self {
        let redacted = |message: &str| redact_and_clip(message, spec.secrets().chain(token));
        let (problem, may_have_run) = match failure {
            McpFailure::Gone { sent } => (ToolProblem::Unreachable, sent),
            McpFailure::Slow { sent } => (ToolProblem::Timeout, sent),
            McpFailure::WaitsForPerson => (ToolProblem::WaitsForPerson, true),
            McpFailure::Refused { message, sent } => {
                (ToolProblem::Refused(redacted(&message)), sent)
            }
            McpFailure::Unclear(message) => (ToolProblem::Unclear(redacted(&message)), true),
            McpFailure::ErrorReply(error) if error.code == TOO_LARGE => {
                (ToolProblem::TooLarge, true)
            }
            McpFailure::ErrorReply(error) => {
                let problem = ToolProblem::Refused(redacted(&error.message));
                (problem, !means_not_run(&error))
            }
        };
        Self {
            server: spec.name.clone(),
            problem,
            may_have_run,
        }
    }

    pub(super) fn no_such_tool(server: Name, tool: String) -> Self {
        Self {
            server,
            problem: ToolProblem::NoSuchTool(tool),
            may_have_run: false,
        }
    }

    pub(super) fn undeclared_server(server: Name) -> Self {
        let message = "no tool server of this name is declared".to_owned();
        Self {
            server,
            problem: ToolProblem::Refused(message),
            may_have_run: false,
        }
    }

    fn run_state(&self) -> &'static str {
        match self.problem {
            ToolProblem::Unreachable | ToolProblem::Timeout if !self.may_have_run => {
                "; the tool was not called"
            }
            ToolProblem::Unreachable | ToolProblem::Timeout | ToolProblem::Unclear(_) => {
                "; the tool may have done its work"
            }
            ToolProblem::NoSuchTool(_)
            | ToolProblem::TooLarge
            | ToolProblem::Refused(_)
            | ToolProblem::WaitsForPerson => "",
        }
    }

    /// Whether the tool may have run. False only if the call certainly did not reach it.
    pub(crate) fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// Whether the call ended because a person has to answer first.
    pub(crate) fn waits_for_person(&self) -> bool {
        matches!(self.problem, ToolProblem::WaitsForPerson)
    }

    /// Why the outcome is unknown. None if the tool certainly did not run, or if its server answered:
    /// an error answer is the outcome too.
    pub(crate) fn no_answer(&self) -> Option<NoAnswer> {
        let reason = match self.problem {
            ToolProblem::Timeout => NoAnswer::Late,
            ToolProblem::Unreachable => NoAnswer::Lost,
            ToolProblem::Unclear(_) => NoAnswer::Unclear,
            ToolProblem::NoSuchTool(_)
            | ToolProblem::TooLarge
            | ToolProblem::Refused(_)
            | ToolProblem::WaitsForPerson => return None,
        };
        self.may_have_run.then_some(reason)
    }

    /// The same error, for a failure before the call was sent.
    pub(crate) fn before_the_call(mut self) -> Self {
        self.problem = match self.problem {
            ToolProblem::TooLarge => return self,
            ToolProblem::Unclear(message) => ToolProblem::Refused(message),
            other => other,
        };
        self.may_have_run = false;
        self
    }

    /// The same error, for a call that was sent earlier: a failed retry says nothing about the first
    /// attempt.
    pub(crate) fn after_a_call(mut self) -> Self {
        self.problem = match self.problem {
            same @ (ToolProblem::Unreachable
            | ToolProblem::Timeout
            | ToolProblem::WaitsForPerson) => same,
            ToolProblem::Refused(message) | ToolProblem::Unclear(message) => {
                ToolProblem::Unclear(message)
            }
            ToolProblem::NoSuchTool(tool) => {
                ToolProblem::Unclear(format!("it no longer has the tool {tool}"))
            }
            ToolProblem::TooLarge => {
                ToolProblem::Unclear("it sent a result that is too large".to_owned())
            }
        };
        self.may_have_run = true;
        self
    }

    /// Stable code of this error.
    pub(crate) fn code(&self) -> &'static str {
        match self.problem {
            ToolProblem::Unreachable => "tool_unreachable",
            ToolProblem::Timeout => "tool_timeout",
            ToolProblem::NoSuchTool(_) => "tool_unknown",
            ToolProblem::TooLarge => "tool_too_large",
            ToolProblem::Refused(_) | ToolProblem::Unclear(_) | ToolProblem::WaitsForPerson => {
                "tool_refused"
            }
        }
    }
}

/// Whether the server rejected the call before executing it.
fn means_not_run(error: &ErrorData) -> bool {
    matches!(
        error.code,
        ErrorCode::PARSE_ERROR
            | ErrorCode::INVALID_REQUEST
            | ErrorCode::METHOD_NOT_FOUND
            | ErrorCode::INVALID_PARAMS
    )
}
