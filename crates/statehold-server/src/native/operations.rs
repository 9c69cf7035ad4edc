//! Endpoints for operators: liveness, readiness, metrics and the schema.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use statehold_engine::api;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, AnswerHeaders, answer, plain};
use crate::http::call::{App, CallContext};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(ready))
        .routes(routes!(metrics))
        .routes(routes!(schema))
}

/// Status and version of the server.
#[derive(Debug, Serialize, ToSchema)]
struct Health {
    /// `ok`, or `degraded` if sessions are damaged.
    status: &'static str,
    version: &'static str,
    /// How many sessions are damaged and out of use; all others go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_sessions: Option<usize>,
}

impl Health {
    fn new(damaged_sessions: Option<usize>) -> Self {
        Self {
            status: damaged_sessions.map_or("ok", |_| "degraded"),
            version: env!("CARGO_PKG_VERSION"),
            damaged_sessions,
        }
    }
}

/// Check that the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "operations", responses((status = 200, body = Health)))]
async fn health() -> Response {
    plain(&Health::new(None))
}

/// Check that the store answers, and whether sessions are damaged.
#[utoipa::path(get, path = "/readyz", tag = "operations", responses((status = 200, body = Health)))]
async fn ready(State(app): State<App>) -> Answer {
    let damaged = api::operations::ready(&app.engine).await?;
    Ok(plain(&Health::new((damaged > 0).then_some(damaged))))
}

/// Metrics for Prometheus. Needs the role `operator` where keys are required.
#[utoipa::path(get, path = "/metrics", tag = "operations", responses((status = 200, body = String, description = "OpenMetrics.", content_type = "application/openmetrics-text")))]
async fn metrics(context: CallContext) -> Answer {
    let counts = api::operations::session_counts(context.engine(), &context.caller)?;
    let text = context.app.metrics.render(counts);
    let mut response = text.into_response();
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8"),
    );
    Ok(response)
}

/// Read the schema of this API.
#[utoipa::path(get, path = "/openapi.json", tag = "operations", responses((status = 200, body = Object, description = "An OpenAPI document.")))]
async fn schema() -> Response {
    let body = crate::openapi_json().as_bytes().to_vec();
    answer(StatusCode::OK, body, AnswerHeaders::default())
}
