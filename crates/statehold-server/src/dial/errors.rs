//! Errors in the form that DIAL and its clients expect.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value};
use statehold_engine::api::json::to_body;
use statehold_engine::api::turn::DeliveryReceipt;
use utoipa::ToSchema;

use super::is_dial;
use crate::http::delivery::json;
use crate::http::error_form::{ErrorParts, translate_problem};
use crate::http::problem::{Code, Problem};

/// An error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialError)]
pub(crate) struct ErrorOut {
    error: ErrorBody,
}

/// The error of a call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialErrorBody)]
struct ErrorBody {
    /// The error, and the next step.
    message: String,
    /// The kind of error, as DIAL's clients know it.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The parameter with the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    param: Option<String>,
    /// The error code, for programs: `DeploymentNotFound`, or a code of the native API.
    code: &'static str,
    /// The text that chat windows show.
    #[serde(skip_serializing_if = "Option::is_none")]
    display_message: Option<String>,
    /// Further fields, as the page of the code lists them.
    #[serde(flatten)]
    #[schema(ignore)]
    more: Map<String, Value>,
}

impl ErrorOut {
    pub(crate) fn of(problem: &Problem) -> Self {
        let own = ["message", "type", "code", "param", "display_message"];
        let ErrorParts {
            message,
            param,
            more,
        } = ErrorParts::of(problem, &own);
        Self {
            error: ErrorBody {
                display_message: Some(message.clone()),
                message,
                kind: kind_of(problem),
                param,
                code: code_of(problem),
                more,
            },
        }
    }
}

fn is(problem: &Problem, code: Code) -> bool {
    problem.code == code.text()
}

fn kind_of(problem: &Problem) -> &'static str {
    if is(problem, Code::AgentUnknown) {
        return "runtime_error";
    }
    match status_of(problem) {
        ..500 => "invalid_request_error",
        _ if is(problem, Code::Internal) => "internal_server_error",
        500.. => "runtime_error",
    }
}

/// The code of a problem, as DIAL and its clients know it.
pub(crate) fn code_of(problem: &Problem) -> &'static str {
    if is(problem, Code::AgentUnknown) {
        return "DeploymentNotFound";
    }
    problem.code
}

/// The status of a problem. DIAL Core takes 429, 502, 503 and 504 for the condition of a service: it calls another one, and
/// may let the whole deployment rest. Only an agent that is called by this server can be in that condition; the limits
/// of one caller, and the stop of this server, say nothing about it.
pub(crate) fn status_of(problem: &Problem) -> u16 {
    let of_agent = [
        Code::AgentRateLimited,
        Code::AgentUnreachable,
        Code::AgentTimeout,
    ];
    if of_agent.into_iter().any(|code| is(problem, code)) {
        return problem.status;
    }
    match problem.status {
        429 => 400,
        501.. => 500,
        status => status,
    }
}

/// The answer to a call without any key, byte for byte that of DIAL's SDK.
pub(crate) fn key_missing() -> Response {
    let error = ErrorOut {
        error: ErrorBody {
            message: "Api-Key header is required".to_owned(),
            kind: "invalid_request_error",
            param: None,
            code: "400",
            display_message: None,
            more: Map::new(),
        },
    };
    let mut response = json(to_body(&error), None);
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

/// Translates every problem of a call in DIAL's form into its form of errors.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let is_dial = is_dial(&request);
    let response = next.run(request).await;
    if is_dial {
        as_dial_error(response, None)
    } else {
        response
    }
}

/// Translates the problem of a response, if it has one that is not translated yet. The receipt is confirmed
/// when the error has been delivered.
pub(super) fn as_dial_error(response: Response, receipt: Option<DeliveryReceipt>) -> Response {
    translate_problem(response, receipt, |problem| {
        (status_of(problem), to_body(&ErrorOut::of(problem)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: Code) -> (u16, Value) {
        let problem = Problem::new(code, "why");
        let body = serde_json::to_value(ErrorOut::of(&problem)).expect("JSON");
        (status_of(&problem), body["error"].clone())
    }

    #[test]
    fn only_the_condition_of_an_agent_has_a_status_on_which_core_calls_another_service() {
        let of_service = |code: &Code| matches!(told(*code).0, 429 | 501..);
        let codes = Code::ALL.iter().copied();
        let found: Vec<Code> = codes.filter(of_service).collect();
        let expected = [
            Code::AgentRateLimited,
            Code::AgentUnreachable,
            Code::AgentTimeout,
        ];
        assert_eq!(found, expected);
        assert_eq!(told(Code::RateLimited).0, 400);
        assert_eq!(told(Code::Stopping).0, 500);
    }

    #[test]
    fn an_error_has_the_words_of_dial() {
        let (status, error) = told(Code::AgentUnknown);
        assert_eq!(
            (status, error["code"].as_str()),
            (404, Some("DeploymentNotFound"))
        );
        let (_, error) = told(Code::InvalidBody);
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["display_message"], "why");
        assert!(error.get("param").is_none());
    }
}
