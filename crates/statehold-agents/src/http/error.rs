//! Why a call of an agent brought no answer. Nothing here shows an address or a credential: these
//! sentences are stored, and shown to people.

use std::time::Duration;

use http::StatusCode;

use crate::outbound::{causes, is_tls_failure};
use crate::secrets::Secrets;

/// The longest text that is taken from somebody else's error, in characters.
const MESSAGE_CHARS_MAX: usize = 300;

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// It took too long.
    #[error(
        "the service did not finish its answer within {} s; raise `timeout_seconds` if it needs longer",
        limit.as_secs_f64()
    )]
    Timeout {
        /// What it had.
        limit: Duration,
    },
    /// There was nobody to ask.
    #[error("the service cannot be reached: {0}")]
    Unreachable(Obstacle),
    /// It refused, or failed and said so.
    #[error("the service answered {}: {message}", status.as_u16())]
    Status {
        /// As HTTP has it.
        status: StatusCode,
        /// What it said, clipped.
        message: String,
    },
    /// The connection ended before the answer did.
    #[error("the connection ended before the answer did; look into the log of the service")]
    CutOff,
    /// It cannot be read.
    #[error("the answer cannot be understood: {0}; check `base_url` and what the service speaks")]
    Malformed(&'static str),
    /// It does not end.
    #[error(
        "the answer is longer than is read: {0}; ask for less at once, or let the service say less"
    )]
    TooLarge(&'static str),
    /// The conversation is not there any more.
    #[error("the service does not know the conversation any more; a new one can be begun")]
    NotFound,
}

/// What stood between us and a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Obstacle {
    #[error("`base_url` is not an address that begins with http:// or https:// and names a host")]
    Address,
    #[error("the credential has characters that cannot be sent; set it again")]
    Credential,
    #[error("the name of its host is not known; check `base_url`")]
    Name,
    #[error("no connection came about within {} s; check `base_url` and the network", super::CONNECT_MAX.as_secs())]
    Slow,
    #[error("its certificate does not hold, or it does not speak TLS; check `base_url`")]
    Certificate,
    #[error("no connection could be made; check that it runs, and `base_url`")]
    Connection,
}

impl CallError {
    /// Names this error for machines.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "agent_timeout",
            Self::Unreachable(_) => "agent_unreachable",
            Self::Status { .. } => "agent_error",
            Self::CutOff => "agent_cut_off",
            Self::Malformed(_) => "agent_malformed",
            Self::TooLarge(_) => "agent_too_large",
            Self::NotFound => "conversation_lost",
        }
    }

    /// Whether the service is away, and has not heard of the call.
    pub(crate) fn is_absence(&self) -> bool {
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

    /// Whether the same call may go better if it is made again, or is given more time.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_transient() || matches!(self, Self::Timeout { .. })
    }

    /// Whether the same call may go better if it is made again.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(obstacle) => match obstacle {
                Obstacle::Name | Obstacle::Slow | Obstacle::Connection => true,
                Obstacle::Address | Obstacle::Credential | Obstacle::Certificate => false,
            },
            Self::CutOff => true,
            Self::Status { status, .. } => {
                *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
            }
            Self::Timeout { .. } | Self::Malformed(_) | Self::TooLarge(_) | Self::NotFound => false,
        }
    }

    /// What went wrong below us. Times are ours, except for connecting.
    pub(super) fn of(error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::Unreachable(Obstacle::Address);
        }
        if error.is_connect() {
            let obstacle = if error.is_dns() {
                Obstacle::Name
            } else if error.is_timeout() {
                Obstacle::Slow
            } else if is_tls_failure(error) {
                Obstacle::Certificate
            } else {
                Obstacle::Connection
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

/// What somebody said, as one line of a length that can be shown, without what we must not show.
pub(crate) fn clip<'a>(said: &str, secrets: impl Iterator<Item = &'a str>) -> String {
    let said = Secrets::new(secrets).left_out(said.to_owned());
    let words = said.split(|c: char| c.is_control() || c.is_whitespace());
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
        let error = CallError::TooLarge("at most 8 MiB").to_string();
        assert!(error.contains("ask for less at once"), "{error}");
    }

    #[test]
    fn what_somebody_said_is_shown_in_one_short_line_without_secrets() {
        let said = format!("no such key:\n\tsk-1234\u{7}!  {}", "ü".repeat(400));
        let clipped = clip(&said, ["sk-1234"].into_iter());
        assert!(clipped.starts_with("no such key: … ! üü"), "{clipped}");
        assert!(clipped.ends_with("ü…"));
        assert_eq!(clipped.chars().count(), MESSAGE_CHARS_MAX + 1);
    }
}
