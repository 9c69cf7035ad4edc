//! Errors as ADK's API server sends them: `{"detail": …}`, a list for input that is not valid.

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use statehold_engine::EngineError;
use statehold_engine::api::json::to_body;

use super::is_ours;
use crate::http::problem::{Code, Problem};

/// ADK's own words for a stale copy of a session: its clients look for them.
const STALE: &str = "The session has been modified in storage since it was loaded. Please reload the session before \
                     appending more events.";

/// The problem of a call about a session, in the words of ADK's API server.
pub(super) fn session_problem(error: EngineError, id: &str) -> Problem {
    let said = match &error {
        EngineError::NotFound => Some("Session not found".to_owned()),
        // A foreign user is told like one that does not exist.
        EngineError::WrongUser => return session_problem(EngineError::NotFound, id),
        EngineError::NameTaken { .. } => Some(format!("Session already exists: {id}")),
        EngineError::RevisionMismatch { .. } => Some(STALE.to_owned()),
        _ => None,
    };
    let mut problem = Problem::from(error);
    let is_missing = problem.code == Code::NotFound.text();
    if let Some(said) = said.or_else(|| is_missing.then(|| "Session not found".to_owned())) {
        problem.detail = said;
    }
    problem
}

/// Translates every problem on the paths of this surface. The code of the native API is in a header.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let is_ours = is_ours(request.uri().path());
    let mut response = next.run(request).await;
    if !is_ours {
        return response;
    }
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let status = StatusCode::from_u16(status_of(&problem));
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = to_body(&json!({"detail": detail_of(&problem)}));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    if let Ok(code) = HeaderValue::try_from(problem.code) {
        headers.insert("x-statehold-error", code);
    }
    *response.body_mut() = Body::from(body);
    response
}

/// A stale session is a conflict here, and everything about the form of a call is 422.
fn status_of(problem: &Problem) -> u16 {
    let is = |code: Code| problem.code == code.text();
    if is(Code::RevisionMismatch) {
        409
    } else if is(Code::BadJson) || is(Code::BadQuery) || is(Code::BadCursor) {
        422
    } else {
        problem.status
    }
}

fn detail_of(problem: &Problem) -> Value {
    if status_of(problem) != 422 {
        return problem.detail.as_str().into();
    }
    let is_query = problem.code == Code::BadQuery.text() || problem.code == Code::BadCursor.text();
    let mut place = vec![Value::from(if is_query { "query" } else { "body" })];
    place.extend(problem.more.get("path").cloned());
    json!([{"type": problem.code, "loc": place, "msg": problem.detail}])
}
