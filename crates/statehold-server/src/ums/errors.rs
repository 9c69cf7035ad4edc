//! Errors as the service sends them: `{"detail": "…"}`, with the code of the native API and its fields beside it.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, header};
use serde_json::{Map, Value};
use statehold_engine::api::json::to_body;
use statehold_engine::api::turn::DeliveryReceipt;

use crate::http::call::App;
use crate::http::delivery::whole;
use crate::http::problem::{Code, Problem};

/// Translates every problem on the paths of this surface.
pub(crate) async fn translate(State(app): State<App>, request: Request, next: Next) -> Response {
    let is_ours = app.options.ums.root.has(request.uri().path());
    let response = next.run(request).await;
    if is_ours {
        as_service_error(response, None)
    } else {
        response
    }
}

/// Translates the problem of a response, if it has one that is not translated yet. The receipt is confirmed when the
/// error has been delivered.
pub(super) fn as_service_error(
    mut response: Response,
    receipt: Option<DeliveryReceipt>,
) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let body = to_body(&error_body(&problem));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    *response.body_mut() = whole(body, receipt);
    response
}

fn error_body(problem: &Problem) -> Map<String, Value> {
    let mut body = (*problem.more).clone();
    let is_missing = problem.code == Code::NotFound.text();
    let detail = if is_missing {
        "Conversation not found"
    } else {
        &problem.detail
    };
    body.insert("detail".to_owned(), detail.into());
    body.insert("code".to_owned(), problem.code.into());
    body
}
