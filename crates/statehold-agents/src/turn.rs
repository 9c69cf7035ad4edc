//! One turn of a hosted agent, and how it can end.

use std::borrow::Cow;

use async_trait::async_trait;
use serde::{Deserialize, Serialize, Serializer};
use statehold_core::command::Rejection;
use statehold_core::name::Name;
use statehold_engine::EngineError;
use statehold_engine::bodies::{ItemBody, Raw};

use crate::message::{AgentMessage, raw};
use crate::runner::AgentRun;

/// Longest stored error message, in characters. It bounds text from other services.
const MESSAGE_CHARS_MAX: usize = 2_000;

/// An agent hosted by this server. It keeps nothing between turns: its memory is the history, the steps
/// and the private state of its task.
#[async_trait]
pub(crate) trait Agent: Send + Sync {
    /// Executes one turn from its beginning. After a crash or a pause the turn runs again and the run
    /// replays the recorded steps, so a turn must take the same steps whenever it gets the same
    /// answers.
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError>;

    /// Whether a turn first writes to its session, and asks nothing outside before that is durable. Such a
    /// turn begins before its claim is durable. Every other turn begins after.
    fn starts_with_commit(&self) -> bool {
        false
    }
}

/// Result of a turn.
#[derive(Debug, Clone)]
pub(crate) struct TurnAnswer {
    /// The message to the caller.
    pub(crate) message: AgentMessage,
    /// Session keys to write, with their values.
    pub(crate) state: Vec<(statehold_core::scope::StateKey, Raw)>,
    /// New private state of the task. None leaves it unchanged.
    pub(crate) private: Option<Raw>,
    /// Notes for the trace.
    pub(crate) notes: Vec<TraceNote>,
    /// The answer of a phase that clients see beside the message.
    pub(crate) shown: Option<(Name, AgentMessage)>,
}

/// A named note for the trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TraceNote {
    pub(crate) name: Cow<'static, str>,
    pub(crate) data: Raw,
}

impl TraceNote {
    pub(crate) fn new(name: &'static str, data: &impl Serialize) -> Self {
        Self {
            name: name.into(),
            data: raw(data),
        }
    }

    /// The payload of its item.
    pub(crate) fn body(&self) -> ItemBody {
        ItemBody {
            name: Some(self.name.to_string()),
            data: Some(self.data.clone()),
            ..ItemBody::default()
        }
    }
}

impl TurnAnswer {
    /// An answer with nothing but a message.
    pub(crate) fn plain(message: AgentMessage) -> Self {
        Self {
            message,
            state: Vec::new(),
            private: None,
            notes: Vec::new(),
            shown: None,
        }
    }
}

/// Why a turn has no answer, or none yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TurnError {
    /// It waits for a person. The next claim resumes it.
    #[error("the turn waits for a person")]
    Paused,
    /// The request was cancelled, or another worker holds its lease.
    #[error("the request was cancelled, or another worker has it")]
    Gone,
    /// The turn failed.
    #[error("{}", .0.message)]
    Failed(TurnFailure),
    /// The engine or the store is unavailable; the turn is retried.
    #[error(transparent)]
    Engine(EngineError),
}

/// Error of a turn as stored and shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TurnFailure {
    /// A stable code.
    pub(crate) code: String,
    /// Cause and remedy.
    #[serde(serialize_with = "clipped")]
    pub(crate) message: String,
    /// When a service that limits its calls wants to be asked again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_seconds: Option<u64>,
    /// The words of an agent for the people who talk to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) display_message: Option<String>,
}

/// Truncates at serialization, so that no error is stored unbounded.
fn clipped<S: Serializer>(message: &str, to: S) -> Result<S::Ok, S::Error> {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => to.collect_str(&format_args!("{}…", &message[..end])),
        None => to.serialize_str(message),
    }
}

/// Describes a JSON error by position and kind. The serde error would repeat the input, which may be
/// long or secret.
pub(crate) fn describe_json_error(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let what = match error.classify() {
        Category::Syntax => "this is not JSON",
        Category::Data => "a value has another form than expected, or is missing",
        Category::Eof => "it ends too early",
        Category::Io => "it cannot be read",
    };
    let (line, column) = (error.line(), error.column());
    format!("{what} (line {line}, column {column})")
}

impl TurnError {
    pub(crate) fn failed(code: &str, message: impl Into<String>) -> Self {
        Self::Failed(TurnFailure {
            code: code.to_owned(),
            message: message.into(),
            retry_after_seconds: None,
            display_message: None,
        })
    }

    /// The same failure in other words.
    pub(crate) fn with_message(mut self, message: String) -> Self {
        if let Self::Failed(failure) = &mut self {
            failure.message = message;
        }
        self
    }

    /// A recorded step that the resumed turn cannot parse.
    pub(crate) fn step_malformed(what: &str, error: &serde_json::Error) -> Self {
        let why = describe_json_error(error);
        let message = format!(
            "{what} cannot be read again: {why}; its agent may have been declared anew in between, or the \
             server replaced. Nothing was done twice; ask again"
        );
        Self::failed("step_malformed", message)
    }
}

impl From<EngineError> for TurnError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::NotFound
            | EngineError::Rejected(
                Rejection::StaleFence { .. }
                | Rejection::RequestEnded { .. }
                | Rejection::NotLeased { .. }
                | Rejection::NotLeaseHolder
                | Rejection::NotClaimable { .. }
                | Rejection::LeaseLive { .. }
                | Rejection::NotFound
                | Rejection::SessionClosed
                | Rejection::SessionExpired,
            ) => Self::Gone,
            // Transient errors. All other refusals would repeat on each retry.
            EngineError::Store(_)
            | EngineError::Damaged(_)
            | EngineError::Full
            | EngineError::Stopping
            | EngineError::TooMany(_) => Self::Engine(error),
            EngineError::Rejected(Rejection::Limit { .. }) => {
                let message = format!("{error}; ask for less at once, or begin a new session");
                Self::failed("limit_reached", message)
            }
            refused => {
                let message = format!(
                    "the server does not accept the result of this turn: {refused}. Ask again, or check how \
                     the agent is declared"
                );
                Self::failed("refused", message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_error_message_is_bounded() {
        let kept = |message: &str| {
            let failure = TurnFailure {
                code: "agent_error".to_owned(),
                message: message.to_owned(),
                retry_after_seconds: None,
                display_message: None,
            };
            let kept = serde_json::to_value(&failure).expect("JSON");
            kept["message"].as_str().expect("text").to_owned()
        };
        let whole = "ü".repeat(MESSAGE_CHARS_MAX);
        assert_eq!(kept(&whole), whole);
        assert_eq!(kept(&"ü".repeat(1_000_000)), format!("{whole}…"));
    }

    #[test]
    fn an_unreadable_record_says_what_to_do() {
        let error = serde_json::from_str::<u64>("x").expect_err("no number");
        let error = TurnError::step_malformed("what was said", &error).to_string();
        assert!(
            error.ends_with("Nothing was done twice; ask again"),
            "{error}"
        );
    }

    #[test]
    fn a_json_error_repeats_nothing_of_the_input() {
        for (json, says) in [
            (r#""a secret""#, "another form"),
            (r#"{"a secret": 1, "a secret": 2}"#, "another form"),
            ("a secret", "not JSON"),
            ("[\"a secret", "ends too early"),
        ] {
            let error = serde_json::from_str::<Vec<u64>>(json).expect_err(json);
            let why = describe_json_error(&error);
            assert!(why.contains(says) && why.contains("line 1"), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn permanent_refusals_fail_the_turn_and_transient_errors_are_retried() {
        let code = |error: EngineError| match TurnError::from(error) {
            TurnError::Failed(failure) => failure.code,
            TurnError::Gone => "gone".to_owned(),
            TurnError::Engine(_) => "again".to_owned(),
            TurnError::Paused => "paused".to_owned(),
        };
        let stale = Rejection::StaleFence {
            shown: 1,
            current: 2,
        };
        let limit = Rejection::Limit {
            limit: "depth",
            max: 24,
        };
        for (error, expected) in [
            (EngineError::Rejected(stale), "gone"),
            (EngineError::NotFound, "gone"),
            (EngineError::Full, "again"),
            (EngineError::Stopping, "again"),
            (EngineError::TooMany("keys"), "again"),
            (EngineError::Rejected(limit), "limit_reached"),
            (Rejection::HoldMalformed("no").into(), "refused"),
            (Rejection::ItemMalformed("no").into(), "refused"),
            (EngineError::Invalid("no".to_owned()), "refused"),
        ] {
            let shown = error.to_string();
            assert_eq!(code(error), expected, "{shown}");
        }
    }
}
