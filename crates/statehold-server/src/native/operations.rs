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
    /// `ok`, or `degraded` if stored data is damaged.
    status: &'static str,
    version: &'static str,
    /// How many sessions are damaged; calls that need the damaged data are refused, and all others go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_sessions: Option<usize>,
    /// How many rows outside of sessions are damaged, such as API keys, which are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_rows: Option<usize>,
}

impl Health {
    fn new(sessions: usize, rows: usize) -> Self {
        let is_damaged = sessions + rows > 0;
        Self {
            status: if is_damaged { "degraded" } else { "ok" },
            version: env!("CARGO_PKG_VERSION"),
            damaged_sessions: (sessions > 0).then_some(sessions),
            damaged_rows: (rows > 0).then_some(rows),
        }
    }
}

/// Check that the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "operations", responses((status = 200, body = Health)))]
async fn health() -> Response {
    plain(&Health::new(0, 0))
}

/// Check that the store answers, and whether stored data is damaged.
#[utoipa::path(get, path = "/readyz", tag = "operations", responses((status = 200, body = Health)))]
async fn ready(State(app): State<App>) -> Answer {
    let damaged = api::operations::ready(&app.engine).await?;
    Ok(plain(&Health::new(damaged.sessions, damaged.rows)))
}

/// Metrics for Prometheus. Needs the role `operator` where keys are required.
#[utoipa::path(get, path = "/metrics", tag = "operations", responses((status = 200, body = String, description = "OpenMetrics.", content_type = "application/openmetrics-text")))]
async fn metrics(context: CallContext) -> Answer {
    let counts = api::operations::counts(context.engine(), &context.caller)?;
    let text = context.app.metrics.render(&counts);
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
