//! Failed chat turns as problems.

use serde_json::Value;
use statehold_core::request::RequestOutcome;
use statehold_engine::api::turn::FailedTurn;

use super::problem::{Code, Problem, RETRY_AFTER_SECONDS};

impl From<FailedTurn> for Problem {
    fn from(failed: FailedTurn) -> Self {
        let FailedTurn { alias, .. } = failed;
        if failed.outcome == RequestOutcome::Cancelled {
            let detail =
                format!("{alias} was cancelled; send the message again to begin another turn");
            return Self::new(Code::RequestCancelled, detail);
        }
        let error = failed.error.as_ref();
        let error: Value = error
            .and_then(|error| serde_json::from_str(error.get()).ok())
            .unwrap_or_default();
        let code = error["code"].as_str().and_then(agent_code);
        let code = code.unwrap_or(Code::RequestFailed);
        let message = error.as_str().or_else(|| error["message"].as_str());
        let message = message.filter(|message| failed.sees_inside && !message.is_empty());
        let title = code.title();
        let words = error["display_message"].as_str();
        let detail = match message {
            None if error["code"] == "agent_key_missing" => format!(
                "{alias}: the agent needs a key that this call did not bring; call it through DIAL, or ask the operator \
                 to set `credential_env` for it"
            ),
            None if words.is_some() => words.unwrap_or_default().to_owned(),
            None if code == Code::AgentBusy => format!(
                "{alias}: {title}; decide or cancel what it waits for, then send the message again"
            ),
            Some(message) => format!("{alias}: {title}: {message}"),
            None => format!(
                "{alias}: {title}; its trace says more, send the message again to try again"
            ),
        };
        let problem = Self::new(code, detail);
        match error[RETRY_AFTER_SECONDS].as_u64() {
            Some(seconds) => problem.with(RETRY_AFTER_SECONDS, seconds),
            None => problem,
        }
    }
}

/// The problem for an error code that an agent failed with. None if the code is not about agents.
pub(crate) fn agent_code(text: &str) -> Option<Code> {
    let codes = [
        Code::AgentBusy,
        Code::AgentError,
        Code::AgentRateLimited,
        Code::AgentUnreachable,
        Code::AgentTimeout,
        Code::AgentCutOff,
        Code::AgentMalformed,
        Code::AgentTooLarge,
        Code::AnswerMemoryFull,
        Code::ConversationLost,
        Code::NoRoute,
    ];
    let known = match text {
        // As the code of a problem, `agent_unknown` says that the call itself names an unknown agent.
        "agent_unknown" | "route_malformed" => Some(Code::NoRoute),
        _ => codes.into_iter().find(|code| code.text() == text),
    };
    known.or_else(|| text.starts_with("agent_").then_some(Code::AgentError))
}

#[cfg(test)]
mod tests {
    use statehold_engine::api::json::raw_bytes;

    use super::*;

    fn failure(error: Option<&str>, sees_inside: bool) -> Problem {
        let outcome = match error {
            Some(_) => RequestOutcome::Failed,
            None => RequestOutcome::Cancelled,
        };
        let failed = FailedTurn {
            outcome,
            alias: "R3".to_owned(),
            error: error.map(|error| raw_bytes(error.as_bytes())),
            sees_inside,
        };
        failed.into()
    }

    #[test]
    fn the_message_of_an_agent_is_for_callers_who_see_inside() {
        let error = r#"{"code":"agent_timeout","message":"after 60 s, as bob@secret"}"#;
        let shown = failure(Some(error), true);
        assert_eq!((shown.code, shown.status), ("agent_timeout", 502));
        assert!(shown.detail.contains("bob@secret"));
        let hidden = failure(Some(error), false);
        assert_eq!(hidden.code, "agent_timeout");
        assert!(!hidden.detail.contains("bob@secret"));
    }

    #[test]
    fn the_words_of_an_agent_for_people_are_told_to_people() {
        let error = r#"{"code":"agent_error","message":"500: db down","display_message":"Closed. Try at nine."}"#;
        assert_eq!(failure(Some(error), false).detail, "Closed. Try at nine.");
        assert!(failure(Some(error), true).detail.contains("db down"));
        let key = failure(Some(r#"{"code":"agent_key_missing","message":"x"}"#), false);
        assert!(key.detail.contains("credential_env"), "{}", key.detail);
    }

    #[test]
    fn an_agent_that_waits_for_a_person_is_a_conflict_that_says_what_to_do() {
        let error = r#"{"code":"agent_busy","message":"it waits for a decision about “Pay?”"}"#;
        for sees_inside in [false, true] {
            let busy = failure(Some(error), sees_inside);
            assert_eq!((busy.code, busy.status), ("agent_busy", 409));
        }
        let told = failure(Some(error), false).detail;
        assert!(
            told.contains("decide or cancel") && !told.contains("Pay?"),
            "{told}"
        );
    }

    #[test]
    fn other_codes_of_agents_are_errors_of_theirs_and_the_rest_is_ours() {
        let code = |error: &str| failure(Some(error), true).code;
        assert_eq!(code(r#"{"code":"agent_on_strike"}"#), "agent_error");
        assert_eq!(code(r#"{"code":"step_mismatch"}"#), "request_failed");
        for of_router in ["agent_unknown", "no_route", "route_malformed"] {
            assert_eq!(code(&format!(r#"{{"code":"{of_router}"}}"#)), "no_route");
        }
        assert_eq!(code(r#""boom""#), "request_failed");
        let gone = failure(None, true);
        assert_eq!(gone.code, "request_cancelled");
    }
}
