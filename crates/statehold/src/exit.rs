//! How a command ends: the exit codes that scripts rely on, and the error type that carries one.

use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::printable;

/// The exit code of a command. The numbers are part of the contract and never change. Its name is the
/// kind of an error in JSON, if the server sent no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u8)]
pub(crate) enum Exit {
    /// Success.
    Done = 0,
    /// The server reported a failure, or this program has a bug.
    Failed = 1,
    /// Wrong arguments, or a confirmation was needed without a terminal to ask on.
    Usage = 2,
    /// The named object does not exist, or the caller may not see it.
    NotFound = 3,
    /// The caller lacks the right.
    NotAllowed = 4,
    /// A conflict: already decided, another revision, another digest.
    Conflict = 5,
    /// No server answers.
    Unreachable = 6,
    /// The timeout has passed.
    TimedOut = 7,
    /// The request waits for a person.
    Paused = 8,
    /// A person refused, or the hold expired.
    Refused = 9,
    /// The check found problems.
    ProblemsFound = 10,
    /// A signal stopped the command.
    Interrupted = 130,
}

impl Exit {
    pub(crate) const ALL: [Self; 12] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::NotAllowed,
        Self::Conflict,
        Self::Unreachable,
        Self::TimedOut,
        Self::Paused,
        Self::Refused,
        Self::ProblemsFound,
        Self::Interrupted,
    ];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The meaning of the code, for the help text.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Usage => "bad usage, or needs an answer but cannot ask",
            Self::NotFound => "not found",
            Self::NotAllowed => "not allowed",
            Self::Conflict => "conflict: already decided, or another revision",
            Self::Unreachable => "server unreachable",
            Self::TimedOut => "timed out waiting",
            Self::Paused => "paused: waits for a person",
            Self::Refused => "refused by a person",
            Self::ProblemsFound => "problems found",
            Self::Interrupted => "interrupted",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// An error with an exit code and a hint.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// The HTTP status, if the server refused the call.
    pub(crate) status: Option<u16>,
    /// The error code of the server, if the server refused the call.
    pub(crate) code: Option<String>,
    pub(crate) message: String,
    /// The next step for the user. Each line is printed under the message.
    pub(crate) hint: Option<String>,
    /// Further details from the server. An object, or null.
    pub(crate) details: Box<Value>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            status: None,
            code: None,
            message: message.into(),
            hint: None,
            details: Box::default(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Whether the same call may succeed later: no answer came, or the server was busy.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.exit, Exit::Unreachable | Exit::TimedOut)
            || matches!(self.status, Some(429 | 503))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The text for an error, and the exit code. The text is `None` if the reader of the output has
/// closed the pipe, as in `… | head`.
pub(crate) fn explain(error: &anyhow::Error, json: bool) -> (Option<String>, Exit) {
    if has_lost_its_reader(error) {
        return (None, Exit::Done);
    }
    let failure = error.downcast_ref::<Failure>();
    let exit = failure.map_or(Exit::Failed, |failure| failure.exit);
    let said = if json {
        as_json(error, failure, exit).to_string()
    } else {
        as_text(error, failure)
    };
    (Some(said), exit)
}

fn as_text(error: &anyhow::Error, failure: Option<&Failure>) -> String {
    let mut lines = vec![format!("error: {}", printable(&error.to_string()))];
    for cause in error.chain().skip(1) {
        lines.push(format!("  because: {}", printable(&cause.to_string())));
    }
    let hint = failure.and_then(|failure| failure.hint.as_deref());
    for line in hint.unwrap_or_default().lines() {
        lines.push(format!("  {}", printable(line)));
    }
    lines.join("\n")
}

fn as_json(error: &anyhow::Error, failure: Option<&Failure>, exit: Exit) -> Value {
    let code = failure.and_then(|failure| failure.code.as_deref());
    let kind = code.map_or_else(|| json!(exit), |code| code.to_ascii_uppercase().into());
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let mut body = json!({ "code": exit.code(), "kind": kind, "message": causes.join(": ") });
    if let Some(hint) = failure.and_then(|failure| failure.hint.as_deref()) {
        body["hint"] = hint.into();
    }
    if let Some(details) = failure
        .map(|failure| failure.details.as_ref())
        .filter(|details| !details.is_null())
    {
        body["details"] = details.clone();
    }
    json!({ "error": body })
}

fn has_lost_its_reader(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<LostReader>()
        .is_some_and(|lost| lost.0.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writing to standard output failed.
#[derive(Debug)]
pub(crate) struct LostReader(pub(crate) std::io::Error);

impl std::fmt::Display for LostReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the output cannot be written")
    }
}

impl std::error::Error for LostReader {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_numbers_are_those_that_scripts_know() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 130]);
    }

    #[test]
    fn an_error_says_what_why_and_what_next() {
        let failure = Failure::new(Exit::Conflict, "R8.h1 was already decided")
            .hint("nothing was run twice\nsee: statehold tasks show T4");
        let (said, exit) = explain(&failure.into(), false);
        assert_eq!(
            said.as_deref(),
            Some(
                "error: R8.h1 was already decided\n  nothing was run twice\n  see: statehold tasks \
                 show T4"
            )
        );
        assert_eq!(exit, Exit::Conflict);
    }

    #[test]
    fn an_error_in_json_carries_the_code_of_the_server() {
        let mut failure = Failure::new(Exit::Conflict, "already decided").hint("look");
        failure.code = Some("hold_decided".to_owned());
        failure.details = Box::new(json!({ "decision": "approve" }));
        let (said, _) = explain(&failure.into(), true);
        let said = said.expect("errors are said");
        assert_eq!(
            said,
            "{\"error\":{\"code\":5,\"kind\":\"HOLD_DECIDED\",\"message\":\"already decided\",\
             \"hint\":\"look\",\"details\":{\"decision\":\"approve\"}}}"
        );
    }

    #[test]
    fn a_code_survives_being_wrapped_in_context() {
        let failure: anyhow::Error = Failure::new(Exit::NotFound, "no such file").into();
        let error = Err::<(), _>(failure).context("the token cannot be read");
        let (said, exit) = explain(&error.expect_err("it is one"), false);
        assert_eq!(
            said.as_deref(),
            Some("error: the token cannot be read\n  because: no such file")
        );
        assert_eq!(exit, Exit::NotFound);
    }

    #[test]
    fn text_from_outside_is_shown_and_not_obeyed() {
        let failure = Failure::new(Exit::Failed, "\u{1b}[2Jgone").hint("\u{202e}txet");
        let (said, _) = explain(&failure.into(), false);
        assert_eq!(
            said.as_deref(),
            Some("error: \\u{1b}[2Jgone\n  \\u{202e}txet")
        );
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let lost = LostReader(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(explain(&lost.into(), false), (None, Exit::Done));
        let full = LostReader(std::io::ErrorKind::StorageFull.into());
        assert_eq!(explain(&full.into(), false).1, Exit::Failed);
    }
}
