//! The refusal of a server as an error of the command line.

use http::StatusCode;
use serde_json::{Map, Value};

use super::ServerAddress;
use crate::exit::{Exit, Failure};

/// The failure for an answer that is not a success.
pub(super) fn failure(address: &ServerAddress, status: StatusCode, body: &[u8]) -> Failure {
    let mut problem: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    // The chat surface has the error object of OpenAI's clients.
    if let Some(Value::Object(error)) = problem.remove("error") {
        problem.extend(error);
        if let Some(message) = problem.remove("message") {
            problem.insert("detail".to_owned(), message);
        }
    }
    let mut take = |field: &str| match problem.remove(field) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        _ => None,
    };
    let code = take("code");
    let title = take("title");
    let detail = take("detail");
    take("type");
    problem.remove("status");
    let message = match detail.or(title) {
        Some(text) => text,
        None => format!("{address} answered {status}"),
    };
    let hint = hint(status, code.as_deref());
    Failure {
        exit: exit(status),
        status: Some(status.as_u16()),
        code,
        message,
        hint: hint.map(str::to_owned),
        details: Box::new(if problem.is_empty() {
            Value::Null
        } else {
            Value::Object(problem)
        }),
    }
}

fn exit(status: StatusCode) -> Exit {
    match status {
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::NotAllowed,
        StatusCode::CONFLICT | StatusCode::GONE | StatusCode::PRECONDITION_FAILED => Exit::Conflict,
        // The answers of a proxy whose server is down or slow.
        StatusCode::BAD_GATEWAY => Exit::Unreachable,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Exit::TimedOut,
        _ => Exit::Failed,
    }
}

fn hint(status: StatusCode, code: Option<&str>) -> Option<&'static str> {
    match (status, code) {
        (_, Some("revision_mismatch")) => Some("somebody was faster; look again, then repeat"),
        (_, Some("hold_decided")) => Some("nothing was run twice; the first decision stands"),
        (_, Some("bad_cursor")) => Some("begin the list again without a cursor"),
        (StatusCode::UNAUTHORIZED, _) => {
            Some("pass a key: STATEHOLD_TOKEN, --token-file or --token")
        }
        (StatusCode::FORBIDDEN, _) => {
            Some("this key lacks a role for that; ask an admin for one that has it")
        }
        (StatusCode::NOT_FOUND, _) => {
            Some("see what this key can see with: statehold sessions list")
        }
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _) => {
            Some("wait a little, then try again; see: statehold status")
        }
        (status, _) if status.is_redirection() => {
            Some("redirects are not followed; name the server itself with --url")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, body: &str) -> Failure {
        let address = "http://127.0.0.1:1".parse().expect("an address");
        let status = StatusCode::from_u16(status).expect("a status");
        failure(&address, status, body.as_bytes())
    }

    #[test]
    fn each_refusal_has_its_exit_code() {
        for (status, exit) in [
            (400, Exit::Failed),
            (401, Exit::NotAllowed),
            (403, Exit::NotAllowed),
            (404, Exit::NotFound),
            (409, Exit::Conflict),
            (410, Exit::Conflict),
            (412, Exit::Conflict),
            (422, Exit::Failed),
            (429, Exit::Failed),
            (500, Exit::Failed),
            (502, Exit::Unreachable),
            (503, Exit::Failed),
            (504, Exit::TimedOut),
        ] {
            assert_eq!(of(status, "{}").exit, exit, "{status}");
        }
    }

    #[test]
    fn a_problem_gives_its_detail_its_code_and_what_else_it_knows() {
        let body = r#"{"type":"t","title":"Conflict","status":409,"detail":"name is taken","code":"name_taken","session_id":"ses_1"}"#;
        let failure = of(409, body);
        assert_eq!(failure.message, "name is taken");
        assert_eq!(failure.code.as_deref(), Some("name_taken"));
        assert_eq!(
            *failure.details,
            serde_json::json!({ "session_id": "ses_1" })
        );
    }

    #[test]
    fn an_answer_of_somebody_else_is_still_an_error_with_words() {
        let failure = of(503, "<html>busy</html>");
        assert_eq!(
            failure.message,
            "http://127.0.0.1:1 answered 503 Service Unavailable"
        );
        assert!(failure.details.is_null());
        assert!(failure.hint.is_some());
    }
}
