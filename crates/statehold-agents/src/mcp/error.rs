//! Why a tool gave no answer, in words for people and for models.

use rmcp::model::{ErrorCode, ErrorData};
use statehold_core::name::Name;

use super::connection::Failure;
use crate::http::clip;
use crate::spec::ToolServerSpec;

/// What our own side says in place of an answer that is too large to be read.
pub(super) const TOO_LARGE: ErrorCode = ErrorCode(-31_001);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ToolError {
    /// It cannot be reached, or was lost.
    #[error("the tool server {server} cannot be reached{}", unsure(*may_have_run))]
    Unreachable { server: Name, may_have_run: bool },
    /// It took longer than it may.
    #[error(
        "the tool server {server} did not answer within its timeout_seconds{}",
        unsure(*may_have_run)
    )]
    Timeout { server: Name, may_have_run: bool },
    /// The tool is gone.
    #[error("the tool server {server} has no tool {tool} any more; look at its tools again")]
    NoSuchTool { server: Name, tool: String },
    /// The answer is larger than anything that is read.
    #[error("the tool server {server} sent more than is read of one answer; ask it for less")]
    TooLarge { server: Name },
    /// It said no.
    #[error("the tool server {server} refused: {message}")]
    Refused {
        server: Name,
        message: String,
        may_have_run: bool,
    },
    /// What came in place of an answer does not say what became of the call.
    #[error("the tool server {server} gave no answer: {message}; the tool may have done its work")]
    Unclear { server: Name, message: String },
}

/// Why nobody knows what became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// It took longer than it may.
    Late,
    /// The connection was lost.
    Lost,
    /// What came back is no answer of a tool server.
    Unclear,
}

fn unsure(may_have_run: bool) -> &'static str {
    if may_have_run {
        "; the tool may have done its work"
    } else {
        "; the tool was not called"
    }
}

impl ToolError {
    /// What a failure comes to. These words are told to models, and kept: what the server is called with
    /// is not in them, also if it says so itself.
    pub(super) fn of(spec: &ToolServerSpec, failure: Failure) -> Self {
        let server = spec.name.clone();
        match failure {
            Failure::Gone { sent } => Self::Unreachable {
                server,
                may_have_run: sent,
            },
            Failure::Slow { sent } => Self::Timeout {
                server,
                may_have_run: sent,
            },
            Failure::Refused { message, sent } => Self::Refused {
                server,
                message: clip(&message, spec.secrets()),
                may_have_run: sent,
            },
            Failure::Unclear(message) => Self::Unclear {
                server,
                message: clip(&message, spec.secrets()),
            },
            Failure::Said(error) if error.code == TOO_LARGE => Self::TooLarge { server },
            Failure::Said(error) => Self::Refused {
                server,
                may_have_run: !means_not_run(&error),
                message: clip(&error.message, spec.secrets()),
            },
        }
    }

    /// Whether the tool may have done its work, although there is no answer. Only what surely did not
    /// reach it has not.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Unreachable { may_have_run, .. }
            | Self::Timeout { may_have_run, .. }
            | Self::Refused { may_have_run, .. } => *may_have_run,
            Self::NoSuchTool { .. } => false,
            Self::TooLarge { .. } | Self::Unclear { .. } => true,
        }
    }

    /// Why it is unknown whether the tool did its work. None if it surely did not, and none if its server
    /// answered: what was answered is what came of the call, also if it is an error.
    pub(crate) fn no_answer(&self) -> Option<NoAnswer> {
        match self {
            Self::Timeout { may_have_run, .. } => may_have_run.then_some(NoAnswer::Late),
            Self::Unreachable { may_have_run, .. } => may_have_run.then_some(NoAnswer::Lost),
            Self::Unclear { .. } => Some(NoAnswer::Unclear),
            Self::NoSuchTool { .. } | Self::TooLarge { .. } | Self::Refused { .. } => None,
        }
    }

    /// The same, of something that was asked before the tool could be called.
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

    /// The same, of a call that was made before: that it cannot be made again says nothing about what became
    /// of it.
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
                message: format!("it has no tool {tool} any more"),
            },
            Self::TooLarge { server } => Self::Unclear {
                server,
                message: "it sent more than is read of one answer".to_owned(),
            },
        }
    }

    /// The word for it in records.
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

/// Whether an error says that the call was turned away as it came, before anything was done.
fn means_not_run(error: &ErrorData) -> bool {
    matches!(
        error.code,
        ErrorCode::PARSE_ERROR
            | ErrorCode::INVALID_REQUEST
            | ErrorCode::METHOD_NOT_FOUND
            | ErrorCode::INVALID_PARAMS
    )
}
