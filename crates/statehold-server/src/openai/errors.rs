//! Errors in the words of OpenAI's clients.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use serde_json::{Map, Value};
use statehold_core::request::RequestOutcome;
use utoipa::ToSchema;

use super::delivery::whole;
use super::told::Receipt;
use crate::http::problem::{Code, Problem};
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::schema::NullableText;

/// An error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatError)]
pub(crate) struct ErrorOut {
    error: ErrorBody,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatErrorBody)]
struct ErrorBody {
    /// What went wrong, and what to do next.
    message: String,
    /// The kind of error, as OpenAI's clients know it.
    #[serde(rename = "type")]
    kind: &'static str,
    /// What went wrong, for programs: the codes of the native API.
    code: &'static str,
    /// The parameter that it is about.
    #[schema(value_type = NullableText)]
    param: Option<String>,
    /// Fields that help.
    #[serde(flatten)]
    #[schema(ignore)]
    more: Map<String, Value>,
}

impl ErrorOut {
    pub(crate) fn of(problem: &Problem) -> Self {
        let mut more = (*problem.more).clone();
        let param = more.remove("path");
        let param = param.and_then(|path| path.as_str().map(str::to_owned));
        // These words have a meaning of their own here.
        for name in ["message", "type", "code", "param"] {
            more.remove(name);
        }
        Self {
            error: ErrorBody {
                message: problem.detail.clone(),
                kind: kind_of(problem.status),
                code: problem.code,
                param,
                more,
            },
        }
    }
}

fn kind_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        ..500 => "invalid_request_error",
        500.. => "server_error",
    }
}

/// Says what went wrong on the paths of OpenAI's clients in their words, whoever found it.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_theirs = path.starts_with("/openai/")
        || path == "/v1/chat/completions"
        || path == "/v1/models"
        || path.starts_with("/v1/models/");
    let response = next.run(request).await;
    if is_theirs {
        in_their_words(response, None)
    } else {
        response
    }
}

/// Says a problem in their words, if there is one that was not said so yet. The receipt counts when it
/// has arrived.
pub(crate) fn in_their_words(mut response: Response, receipt: Option<Receipt>) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let body = to_body(&ErrorOut::of(&problem));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    if is_end_of_turn(&problem) {
        // The turn is recorded as it ended: a person decides whether there is to be another.
        never_again(headers);
    }
    *response.body_mut() = whole(body, receipt);
    response
}

/// Keeps clients from making a call again by themselves.
pub(crate) fn never_again(headers: &mut HeaderMap) {
    headers.insert("x-should-retry", HeaderValue::from_static("false"));
}

/// Whether a problem is how a turn ended.
fn is_end_of_turn(problem: &Problem) -> bool {
    let code = problem.code;
    let own = [Code::RequestFailed, Code::RequestCancelled];
    own.iter().any(|own| own.text() == code) || agent_code(code).is_some()
}

/// What went wrong between the server and an agent, if a code says that.
fn agent_code(text: &str) -> Option<Code> {
    let codes = [
        Code::AgentError,
        Code::AgentUnreachable,
        Code::AgentTimeout,
        Code::AgentCutOff,
        Code::AgentMalformed,
        Code::AgentTooLarge,
        Code::ConversationLost,
        Code::NoRoute,
    ];
    let known = match text {
        // A call that names an agent that is not there is another thing, and has this code.
        "agent_unknown" | "route_malformed" => Some(Code::NoRoute),
        _ => codes.into_iter().find(|code| code.text() == text),
    };
    known.or_else(|| text.starts_with("agent_").then_some(Code::AgentError))
}

/// A turn that ended without an answer. `error` is what the agent said; `sees_inside` whether the caller
/// may read it.
pub(crate) fn failure(
    outcome: RequestOutcome,
    alias: &str,
    error: Option<&Raw>,
    sees_inside: bool,
) -> Problem {
    if outcome == RequestOutcome::Cancelled {
        let detail = format!("{alias} was cancelled; send the message again to begin another turn");
        return Problem::new(Code::RequestCancelled, detail);
    }
    let error: Value = error
        .and_then(|error| serde_json::from_str(error.get()).ok())
        .unwrap_or_default();
    let code = error["code"].as_str().and_then(agent_code);
    let code = code.unwrap_or(Code::RequestFailed);
    let said = error.as_str().or_else(|| error["message"].as_str());
    let said = said.filter(|said| sees_inside && !said.is_empty());
    let what = code.title();
    let detail = match said {
        Some(said) => format!("{alias}: {what}: {said}"),
        None => format!(
            "{alias}: {what}; its trace says more, send the message again to begin another turn"
        ),
    };
    Problem::new(code, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use statehold_engine::api::json::raw_bytes;

    #[test]
    fn what_an_agent_said_is_told_to_those_who_see_inside() {
        let error = raw_bytes(br#"{"code":"agent_timeout","message":"after 60 s, as bob@secret"}"#);
        let shown = failure(RequestOutcome::Failed, "R3", Some(&error), true);
        assert_eq!((shown.code, shown.status), ("agent_timeout", 502));
        assert!(shown.detail.contains("bob@secret"));
        let hidden = failure(RequestOutcome::Failed, "R3", Some(&error), false);
        assert_eq!(hidden.code, "agent_timeout");
        assert!(!hidden.detail.contains("bob@secret"));
    }

    #[test]
    fn other_codes_of_agents_are_errors_of_theirs_and_the_rest_is_ours() {
        let code = |error: &str| {
            let error = raw_bytes(error.as_bytes());
            failure(RequestOutcome::Failed, "R1", Some(&error), true).code
        };
        assert_eq!(code(r#"{"code":"agent_on_strike"}"#), "agent_error");
        assert_eq!(code(r#"{"code":"step_mismatch"}"#), "request_failed");
        for of_router in ["agent_unknown", "no_route", "route_malformed"] {
            assert_eq!(code(&format!(r#"{{"code":"{of_router}"}}"#)), "no_route");
        }
        assert_eq!(code(r#""boom""#), "request_failed");
        let gone = failure(RequestOutcome::Cancelled, "R1", None, true);
        assert_eq!(gone.code, "request_cancelled");
    }
}
