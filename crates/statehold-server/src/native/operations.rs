//! Endpoints for operators: liveness, readiness, metrics and the schema.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use super::{AnswerHeaders, answer};
use crate::http::call::{App, CallContext};
use crate::http::problem::Problem;
use statehold_engine::api::json::to_body;

/// Status and version of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    status: &'static str,
    version: &'static str,
}

/// Check that the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "operations", responses((status = 200, body = Health)))]
pub(crate) async fn health() -> Response {
    let out = Health {
        status: "ok",
        version: env!("CARGO_PKG_VERSION"),
    };
    answer(StatusCode::OK, to_body(&out), &AnswerHeaders::default())
}

/// Check that the store answers.
#[utoipa::path(get, path = "/readyz", tag = "operations", responses((status = 200, body = Health)))]
pub(crate) async fn ready(State(app): State<App>) -> Result<Response, Problem> {
    app.engine.require_ready().await?;
    Ok(health().await)
}

/// Metrics for Prometheus. Needs the role `operator` where keys are required.
#[utoipa::path(get, path = "/metrics", tag = "operations", responses((status = 200, body = String, description = "OpenMetrics.", content_type = "application/openmetrics-text")))]
pub(crate) async fn metrics(
    State(app): State<App>,
    asked: CallContext,
) -> Result<Response, Problem> {
    if !asked.caller.reads_all() {
        let needs = statehold_engine::Role::Operator;
        return Err(statehold_engine::EngineError::Forbidden { needs }.into());
    }
    let text = app.metrics.render(app.engine.hot_sessions());
    let mut response = text.into_response();
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
    );
    Ok(response)
}

/// Read the schema of this API.
#[utoipa::path(get, path = "/openapi.json", tag = "operations", responses((status = 200, body = Object, description = "An OpenAPI document.")))]
pub(crate) async fn schema() -> Response {
    let body = crate::openapi_json().as_bytes().to_vec();
    answer(StatusCode::OK, body, &AnswerHeaders::default())
}
