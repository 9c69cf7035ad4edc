//! Errors in the envelope that Google's clients expect.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value, json};
use statehold_engine::api::json::to_body;
use statehold_engine::api::turn::DeliveryReceipt;

use super::place::Target;
use crate::http::delivery::whole;
use crate::http::problem::{Code, Problem};

/// The error of a call.
#[derive(Debug, Serialize)]
pub(super) struct StatusEnvelope {
    error: StatusBody,
}

#[derive(Debug, Serialize)]
struct StatusBody {
    code: u16,
    message: String,
    status: &'static str,
    details: Vec<Value>,
}

impl StatusEnvelope {
    pub(super) fn of(problem: &Problem) -> Self {
        let (code, status) = status_of(problem);
        // The code of the native API, and the fields that help.
        let mut metadata: Map<String, Value> = Map::new();
        for (name, value) in &*problem.more {
            let text = value.as_str().map(str::to_owned);
            metadata.insert(
                name.clone(),
                text.unwrap_or_else(|| value.to_string()).into(),
            );
        }
        let info = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": problem.code.to_uppercase(),
            "domain": "statehold",
            "metadata": metadata,
        });
        Self {
            error: StatusBody {
                code,
                message: problem.detail.clone(),
                status,
                details: vec![info],
            },
        }
    }
}

/// The HTTP status and the word for a problem.
fn status_of(problem: &Problem) -> (u16, &'static str) {
    let is = |code: Code| problem.code == code.text();
    match problem.status {
        401 => (401, "UNAUTHENTICATED"),
        403 => (403, "PERMISSION_DENIED"),
        404 => (404, "NOT_FOUND"),
        405 => (405, "UNIMPLEMENTED"),
        409 if is(Code::NameTaken) => (409, "ALREADY_EXISTS"),
        409 => (409, "ABORTED"),
        410 | 412 => (400, "FAILED_PRECONDITION"),
        422 if is(Code::AgentNeedsSession)
            || is(Code::ApprovalNeedsSession)
            || is(Code::NoAnswerer)
            || is(Code::LimitReached) =>
        {
            (400, "FAILED_PRECONDITION")
        }
        429 => (429, "RESOURCE_EXHAUSTED"),
        503 => (503, "UNAVAILABLE"),
        507 => (507, "RESOURCE_EXHAUSTED"),
        status @ 500.. => (status, "INTERNAL"),
        // All other mistakes of a caller, 422 among them, which this API does not use.
        _ => (400, "INVALID_ARGUMENT"),
    }
}

/// Translates every problem on the paths of this API.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let is_theirs = Target::of(request.uri().path()).is_some();
    let response = next.run(request).await;
    if is_theirs {
        as_google_error(response, None)
    } else {
        response
    }
}

/// Translates the problem of a response, if it has one that is not translated yet. The receipt is confirmed when the
/// error has been delivered.
pub(super) fn as_google_error(
    mut response: Response,
    receipt: Option<DeliveryReceipt>,
) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let out = StatusEnvelope::of(&problem);
    let status = StatusCode::from_u16(out.error.code);
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = to_body(&out);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    *response.body_mut() = whole(body, receipt);
    response
}
