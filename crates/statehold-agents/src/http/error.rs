//! Errors of calls to agents and models. They are stored and shown to people, so they contain no
//! address and no credential.

use std::time::Duration;

use http::StatusCode;
use statehold_engine::measures::CallOutcome;

use crate::outbound::{causes, is_tls_failure};
use crate::secrets::SecretRedactor;
use crate::turn::{TurnError, TurnFailure};

/// Longest text copied from another service's error, in characters.
const MESSAGE_CHARS_MAX: usize = 300;

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error(
        "the service did not finish its answer within {} s; raise `timeout_seconds` if it needs longer",
        limit.as_secs_f64()
    )]
    Timeout {
        /// The configured timeout.
        limit: Duration,
    },
    /// No connection was made.
    #[error("the service cannot be reached: {0}")]
    Unreachable(ConnectObstacle),
    /// The service answered with an error status.
    #[error("the service answered {}: {message}", status.as_u16())]
    Status {
        status: StatusCode,
        /// The service's message, redacted and truncated.
        message: String,
        /// When the service wants to be asked again.
        retry_after_seconds: Option<u64>,
        /// The words of the service for people, redacted and truncated.
        display_message: Option<String>,
    },
    #[error("the connection ended before the answer did; look into the log of the service")]
    CutOff,
    /// The service ended its answer with an error in the place of a text.
    #[error("the service gave no answer: {0}")]
    NoAnswer(
        /// The service's message, redacted and truncated.
        String,
    ),
    /// The response cannot be parsed.
    #[error(
        "the answer cannot be understood: {0}; check `base_url` and the protocol of the service"
    )]
    Malformed(&'static str),
    /// The response exceeds a size limit.
    #[error("the answer exceeds a limit: {0}; ask for less at once, or let the service say less")]
    TooLarge(&'static str),
    /// The turns of this user have all the memory that one user may have, or all turns have all of it.
    #[error(
        "the answers that are being written take all the memory that this user may have, or all that there is; let \
         other turns end, then send the message again"
    )]
    MemoryFull,
    /// The service no longer has the conversation.
    #[error("the service no longer has the conversation; a new one can be created")]
    NotFound,
}

/// Why no connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectObstacle {
    #[error("`base_url` is not an address that begins with http:// or https:// and names a host")]
    Address,
    #[error("the credential has characters that cannot be sent; set it again")]
    Credential,
    #[error("the name of its host is not known; check `base_url`")]
    Name,
    #[error("no connection within {} s; check `base_url` and the network", super::CONNECT_MAX.as_secs())]
    Slow,
    #[error("its certificate is not valid, or it does not speak TLS; check `base_url`")]
    Certificate,
    #[error("no connection could be made; check that it runs, and `base_url`")]
    Connection,
}

impl EndpointError {
    /// Stable code of this error.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "agent_timeout",
            Self::Unreachable(_) => "agent_unreachable",
            Self::Status { status, .. } if *status == StatusCode::TOO_MANY_REQUESTS => {
                "agent_rate_limited"
            }
            Self::Status { .. } | Self::NoAnswer(_) => "agent_error",
            Self::CutOff => "agent_cut_off",
            Self::Malformed(_) => "agent_malformed",
            Self::TooLarge(_) => "agent_too_large",
            Self::MemoryFull => "answer_memory_full",
            Self::NotFound => "conversation_lost",
        }
    }

    /// Fails a turn with this error, told in these words.
    pub(crate) fn turn_failure(&self, message: String) -> TurnError {
        TurnError::Failed(TurnFailure {
            code: self.code().to_owned(),
            message,
            retry_after_seconds: match self {
                Self::Status {
                    retry_after_seconds,
                    ..
                } => *retry_after_seconds,
                _ => None,
            },
            display_message: match self {
                Self::Status {
                    display_message, ..
                } => display_message.clone(),
                _ => None,
            },
        })
    }

    /// How the call ended, for operators: without the texts of the service, which may repeat what it was told.
    pub(super) fn call_outcome(&self) -> CallOutcome {
        if matches!(self, Self::NotFound) {
            return CallOutcome::Refused;
        }
        CallOutcome::Failed(Some(self.log_text()))
    }

    /// The reason without the texts of the service.
    pub(crate) fn log_text(&self) -> String {
        match self {
            Self::Status { status, .. } => format!("the service answered {}", status.as_u16()),
            Self::NoAnswer(_) => "the service gave no answer".to_owned(),
            Self::Timeout { .. }
            | Self::Unreachable(_)
            | Self::CutOff
            | Self::Malformed(_)
            | Self::TooLarge(_)
            | Self::MemoryFull
            | Self::NotFound => self.to_string(),
        }
    }

    /// Whether the service is down or overloaded, so that it has not processed the call.
    pub(crate) fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable(_) => self.is_transient(),
            Self::Status { status, .. } => {
                let (busy, away) = (
                    StatusCode::TOO_MANY_REQUESTS,
                    StatusCode::SERVICE_UNAVAILABLE,
                );
                *status == busy || *status == away
            }
            _ => false,
        }
    }

    /// Whether a gateway before the service found it down or slow. DIAL Core answers so for an application.
    pub(crate) fn is_of_gateway(&self) -> bool {
        let of_gateway = [StatusCode::BAD_GATEWAY, StatusCode::GATEWAY_TIMEOUT];
        matches!(self, Self::Status { status, .. } if of_gateway.contains(status))
    }

    /// Whether a retry or a longer timeout may help.
    pub(crate) fn is_worth_retrying(&self) -> bool {
        self.is_transient() || matches!(self, Self::Timeout { .. })
    }

    /// Whether a retry may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(obstacle) => match obstacle {
                ConnectObstacle::Name | ConnectObstacle::Slow | ConnectObstacle::Connection => true,
                ConnectObstacle::Address
                | ConnectObstacle::Credential
                | ConnectObstacle::Certificate => false,
            },
            Self::CutOff => true,
            Self::Status { status, .. } => {
                *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
            }
            Self::Timeout { .. }
            | Self::NoAnswer(_)
            | Self::Malformed(_)
            | Self::TooLarge(_)
            | Self::MemoryFull
            | Self::NotFound => false,
        }
    }

    /// Maps an error of the HTTP client. Timeouts are enforced by `CallDeadline`, except for
    /// connecting.
    pub(super) fn of(error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::Unreachable(ConnectObstacle::Address);
        }
        if error.is_connect() {
            let obstacle = if error.is_dns() {
                ConnectObstacle::Name
            } else if error.is_timeout() {
                ConnectObstacle::Slow
            } else if is_tls_failure(error) {
                ConnectObstacle::Certificate
            } else {
                ConnectObstacle::Connection
            };
            return Self::Unreachable(obstacle);
        }
        let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>());
        if causes.any(hyper::Error::is_parse) {
            Self::Malformed("it is not HTTP")
        } else {
            Self::CutOff
        }
    }
}

/// Formats another service's text for an error: one line, truncated, with secrets redacted.
pub(crate) fn redact_and_clip<'a>(text: &str, secrets: impl Iterator<Item = &'a str>) -> String {
    let text = SecretRedactor::new(secrets).redact(text.to_owned());
    let words = text.split(|c: char| c.is_control() || c.is_whitespace());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_long_says_what_to_do() {
        let error = EndpointError::TooLarge("at most 8 MiB").to_string();
        assert!(error.contains("ask for less at once"), "{error}");
    }

    #[test]
    fn a_foreign_text_is_one_short_line_without_secrets() {
        let text = format!("no such key:\n\tsk-1234\u{7}!  {}", "ü".repeat(400));
        let clipped = redact_and_clip(&text, ["sk-1234"].into_iter());
        assert!(clipped.starts_with("no such key: … ! üü"), "{clipped}");
        assert!(clipped.ends_with("ü…"));
        assert_eq!(clipped.chars().count(), MESSAGE_CHARS_MAX + 1);
    }
}
