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
pub(crate) enum ToolError {
    /// The server cannot be reached, or the connection was lost.
    #[error("the tool server {server} cannot be reached{}", run_state(*may_have_run))]
    Unreachable { server: Name, may_have_run: bool },
    /// The deadline passed.
    #[error(
        "the tool server {server} did not answer within its timeout_seconds{}",
        run_state(*may_have_run)
    )]
    Timeout { server: Name, may_have_run: bool },
    #[error("the tool server {server} no longer has the tool {tool}; list its tools again")]
    NoSuchTool { server: Name, tool: String },
    /// The response exceeds the size limit.
    #[error("the tool server {server} sent a result that is too large; ask it for less")]
    TooLarge { server: Name },
    /// The server rejected the request.
    #[error("the tool server {server} refused: {message}")]
    Refused {
        server: Name,
        message: String,
        may_have_run: bool,
    },
    /// The response does not say whether the tool ran.
    #[error("the tool server {server} gave no answer: {message}; the tool may have done its work")]
    Unclear { server: Name, message: String },
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

fn run_state(may_have_run: bool) -> &'static str {
    if may_have_run {
        "; the tool may have done its work"
    } else {
        "; the tool was not called"
    }
}

impl ToolError {
    /// Maps a failure. The text goes to models and is stored, so credentials are redacted, even if the
    /// server repeats them.
    pub(super) fn of(spec: &ToolServerSpec, failure: McpFailure) -> Self {
        let server = spec.name.clone();
        match failure {
            McpFailure::Gone { sent } => Self::Unreachable {
                server,
                may_have_run: sent,
            },
            McpFailure::Slow { sent } => Self::Timeout {
                server,
                may_have_run: sent,
            },
            McpFailure::Refused { message, sent } => Self::Refused {
                server,
                message: redact_and_clip(&message, spec.secrets()),
                may_have_run: sent,
            },
            McpFailure::Unclear(message) => Self::Unclear {
                server,
                message: redact_and_clip(&message, spec.secrets()),
            },
            McpFailure::ErrorReply(error) if error.code == TOO_LARGE => Self::TooLarge { server },
            McpFailure::ErrorReply(error) => Self::Refused {
                server,
                may_have_run: !means_not_run(&error),
                message: redact_and_clip(&error.message, spec.secrets()),
            },
        }
    }

    /// Whether the tool may have run. False only if the call certainly did not reach it.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Unreachable { may_have_run, .. }
            | Self::Timeout { may_have_run, .. }
            | Self::Refused { may_have_run, .. } => *may_have_run,
            Self::NoSuchTool { .. } => false,
            Self::TooLarge { .. } | Self::Unclear { .. } => true,
        }
    }

    /// Why the outcome is unknown. None if the tool certainly did not run, or if its server answered:
    /// an error answer is the outcome too.
    pub(crate) fn no_answer(&self) -> Option<NoAnswer> {
        match self {
            Self::Timeout { may_have_run, .. } => may_have_run.then_some(NoAnswer::Late),
            Self::Unreachable { may_have_run, .. } => may_have_run.then_some(NoAnswer::Lost),
            Self::Unclear { .. } => Some(NoAnswer::Unclear),
            Self::NoSuchTool { .. } | Self::TooLarge { .. } | Self::Refused { .. } => None,
        }
    }

    /// The same error, for a failure before the call was sent.
    pub(crate) fn before_the_call(self) -> Self {
        match self {
            Self::Unreachable { server, .. } => Self::Unreachable {
                server,
                may_have_run: false,
            },
            Self::Timeout { server, .. } => Self::Timeout {
                server,
                may_have_run: false,
            },
            Self::Refused {
                server, message, ..
            }
            | Self::Unclear { server, message } => Self::Refused {
                server,
                message,
                may_have_run: false,
            },
            other @ (Self::NoSuchTool { .. } | Self::TooLarge { .. }) => other,
        }
    }

    /// The same error, for a call that was sent earlier: a failed retry says nothing about the first
    /// attempt.
    pub(crate) fn after_a_call(self) -> Self {
        match self {
            Self::Unreachable { server, .. } => Self::Unreachable {
                server,
                may_have_run: true,
            },
            Self::Timeout { server, .. } => Self::Timeout {
                server,
                may_have_run: true,
            },
            Self::Refused {
                server, message, ..
            }
            | Self::Unclear { server, message } => Self::Unclear { server, message },
            Self::NoSuchTool { server, tool } => Self::Unclear {
                server,
                message: format!("it no longer has the tool {tool}"),
            },
            Self::TooLarge { server } => Self::Unclear {
                server,
                message: "it sent a result that is too large".to_owned(),
            },
        }
    }

    /// Stable code of this error.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "tool_unreachable",
            Self::Timeout { .. } => "tool_timeout",
            Self::NoSuchTool { .. } => "tool_unknown",
            Self::TooLarge { .. } => "tool_too_large",
            Self::Refused { .. } | Self::Unclear { .. } => "tool_refused",
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
