//! One turn of an agent that this server works for itself, and how it can end.

use async_trait::async_trait;
use serde::{Serialize, Serializer};
use statehold_core::command::Rejection;
use statehold_engine::EngineError;
use statehold_engine::kept::Raw;

use crate::runner::Run;
use crate::words::Words;

/// What is kept of what went wrong, in characters: what we say ourselves, and an end to what others said.
const MESSAGE_CHARS_MAX: usize = 2_000;

/// An agent that this server works for itself. It keeps nothing between turns: what it must remember is
/// in the history, the steps and the state of its task.
#[async_trait]
pub(crate) trait Agent: Send + Sync {
    /// Does one turn, from its beginning. What was done before a crash or a pause is not done again:
    /// the run answers those steps from what is recorded, so a turn must take the same steps whenever it
    /// is given the same answers.
    async fn turn(&self, run: &mut Run) -> Result<Answer, TurnError>;
}

/// What a turn comes to.
#[derive(Debug)]
pub(crate) struct Answer {
    /// What is said.
    pub(crate) words: Words,
    /// Session keys to write, with their values.
    pub(crate) state: Vec<(statehold_core::scope::StateKey, Raw)>,
    /// What the agent remembers in its task from now on. None leaves it as it is.
    pub(crate) private: Option<Raw>,
    /// Things to note in the trace, by name.
    pub(crate) notes: Vec<(&'static str, Raw)>,
}

impl Answer {
    /// An answer and nothing else.
    pub(crate) fn plain(words: Words) -> Self {
        Self {
            words,
            state: Vec::new(),
            private: None,
            notes: Vec::new(),
        }
    }
}

/// Why a turn has no answer, or none yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TurnError {
    /// It waits for a person. Whoever claims it next goes on.
    #[error("the turn waits for a person")]
    Paused,
    /// The request was cancelled, or somebody else has it.
    #[error("the request is not this run's any more")]
    Gone,
    /// It cannot be done.
    #[error("{}", .0.message)]
    Failed(TurnFailure),
    /// The engine or the store cannot go on.
    #[error(transparent)]
    Engine(EngineError),
}

/// What went wrong, as it is kept and told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TurnFailure {
    /// A stable word.
    pub(crate) code: String,
    /// What happened, and what to do next.
    #[serde(serialize_with = "clipped")]
    pub(crate) message: String,
}

/// Clips where it is written, so that nothing unbounded is kept whoever made it.
fn clipped<S: Serializer>(message: &str, to: S) -> Result<S::Ok, S::Error> {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => to.collect_str(&format_args!("{}…", &message[..end])),
        None => to.serialize_str(message),
    }
}

/// Why somebody else's JSON cannot be read: the place and the kind of the mistake. The error itself would
/// repeat what stands there, of any length and whoever's it is.
pub(crate) fn why_unreadable(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let what = match error.classify() {
        Category::Syntax => "this is not JSON",
        Category::Data => "something has another form than it must have, or is missing",
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
        })
    }

    /// What was recorded of a turn cannot be read by the one that goes on.
    pub(crate) fn step_malformed(what: &str, error: &serde_json::Error) -> Self {
        let why = why_unreadable(error);
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
            // These pass. Whatever else is refused now is refused however often it is tried.
            EngineError::Store(_)
            | EngineError::Full
            | EngineError::Stopping
            | EngineError::TooMany(_) => Self::Engine(error),
            EngineError::Rejected(Rejection::Limit { .. }) => {
                let message = format!("{error}; ask for less at once, or begin a new session");
                Self::failed("limit_reached", message)
            }
            refused => {
                let message = format!(
                    "the server does not take what this turn came to: {refused}. Ask again, or look at how \
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
    fn what_went_wrong_is_kept_with_an_end() {
        let kept = |message: &str| {
            let failure = TurnFailure {
                code: "agent_error".to_owned(),
                message: message.to_owned(),
            };
            let kept = serde_json::to_value(&failure).expect("JSON");
            kept["message"].as_str().expect("text").to_owned()
        };
        let whole = "ü".repeat(MESSAGE_CHARS_MAX);
        assert_eq!(kept(&whole), whole);
        assert_eq!(kept(&"ü".repeat(1_000_000)), format!("{whole}…"));
    }

    #[test]
    fn a_record_that_cannot_be_read_says_what_to_do() {
        let error = serde_json::from_str::<u64>("x").expect_err("no number");
        let error = TurnError::step_malformed("what was said", &error).to_string();
        assert!(
            error.ends_with("Nothing was done twice; ask again"),
            "{error}"
        );
    }

    #[test]
    fn why_json_cannot_be_read_repeats_nothing_of_it() {
        for (json, says) in [
            (r#""a secret""#, "another form"),
            (r#"{"a secret": 1, "a secret": 2}"#, "another form"),
            ("a secret", "not JSON"),
            ("[\"a secret", "ends too early"),
        ] {
            let error = serde_json::from_str::<Vec<u64>>(json).expect_err(json);
            let why = why_unreadable(&error);
            assert!(why.contains(says) && why.contains("line 1"), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn what_is_refused_for_good_ends_the_turn_and_what_passes_is_tried_again() {
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
