//! Endpoints for operators: liveness, readiness, metrics and the schema.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use statehold_engine::api;
use statehold_engine::api::operations::Readiness;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, AnswerHeaders, answer, plain};
use crate::http::call::{App, CallContext};
use crate::http::metrics::MetricsFormat;
use crate::http::problem::Problem;

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
    /// The checks of `/readyz`.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<ReadyChecks>,
    /// How many sessions are damaged; calls that need the damaged data are refused, and all others go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_sessions: Option<usize>,
    /// How many rows outside of sessions are damaged, such as API keys, which are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_rows: Option<usize>,
}

/// The checks of `/readyz`.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct ReadyChecks {
    /// Whether the server takes new work.
    running: ReadyCheck,
    /// Whether the store answers.
    store: ReadyCheck,
    /// Whether the last write fitted on the disk.
    disk: ReadyCheck,
    /// Whether the data that was read is sound.
    data: ReadyCheck,
}

/// One check.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct ReadyCheck {
    /// `ok`; `degraded`, if everything else goes on; `failed`, if the server is not ready.
    status: &'static str,
    /// The event, and the way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
}

impl ReadyCheck {
    const OK: Self = Self {
        status: "ok",
        detail: None,
    };

    fn ok_unless(is_bad: bool, status: &'static str, detail: &'static str) -> Self {
        if is_bad {
            let detail = Some(detail);
            return Self { status, detail };
        }
        Self::OK
    }
}

impl From<&Readiness> for ReadyChecks {
    fn from(ready: &Readiness) -> Self {
        let check = ReadyCheck::ok_unless;
        let is_damaged = ready.damaged.sessions + ready.damaged.rows > 0;
        let stopping = "the server is stopping; send calls to it after its next start";
        let store = "the store does not answer; the log of the server says why";
        let disk = "the last write did not fit, and there is still no room; free some disk space";
        let data = "stored data is damaged; the log of the server names the places";
        Self {
            running: check(ready.is_stopping, "failed", stopping),
            store: check(ready.store.is_err(), "failed", store),
            disk: check(ready.is_full, "failed", disk),
            data: check(is_damaged, "degraded", data),
        }
    }
}

/// Check that the process is alive.
///
/// It asks nothing of the store, and needs no key.
#[utoipa::path(get, path = "/healthz", tag = "operations",
    operation_id = "getHealth", responses((status = 200, body = Health)))]
async fn health() -> Response {
    plain(&Health {
        status: "ok",
        version: env!("CARGO_PKG_VERSION"),
        checks: None,
        damaged_sessions: None,
        damaged_rows: None,
    })
}

/// Check that the server takes calls, that the store answers, and whether stored data is damaged.
///
/// `checks` says how each part is. If one of them fails, the problem has the same `checks`. With damaged data the
/// status is `degraded`: calls that need the damaged data are refused, and all others go on. It needs no key.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    operation_id = "getReadiness", responses((status = 200, body = Health)))]
async fn ready(State(app): State<App>) -> Answer {
    let ready = api::operations::ready(&app.engine).await;
    let checks = ReadyChecks::from(&ready);
    let damaged = ready.require().map_err(|failure| {
        let checks = serde_json::to_value(checks).unwrap_or_default();
        Problem::from(failure).with("checks", checks)
    })?;
    let (sessions, rows) = (damaged.sessions, damaged.rows);
    Ok(plain(&Health {
        status: checks.data.status,
        version: env!("CARGO_PKG_VERSION"),
        checks: Some(checks),
        damaged_sessions: (sessions > 0).then_some(sessions),
        damaged_rows: (rows > 0).then_some(rows),
    }))
}

/// Read the metrics for Prometheus.
///
/// They are in `OpenMetrics`, or in its classic text format for callers that prefer `text/plain`. Needs `operator`
/// where keys are required.
#[utoipa::path(get, path = "/metrics", tag = "operations",
    operation_id = "getMetrics", responses((status = 200, description = "OpenMetrics, or the classic text format of Prometheus.", content((String = "application/openmetrics-text"), (String = "text/plain")))))]
async fn metrics(context: CallContext, headers: HeaderMap) -> Answer {
    let counts = api::operations::counts(context.engine(), &context.caller).await?;
    let format = MetricsFormat::accepted(&headers);
    let book = context.app.options.agents.get();
    let text = context.app.metrics.render(counts, &book, format);
    let mut response = text.into_response();
    let kind = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Read the description of this API.
///
/// It needs no key.
#[utoipa::path(get, path = "/openapi.json", tag = "operations",
    operation_id = "getApiDocument", responses((status = 200, body = Object, description = "An OpenAPI document.")))]
async fn schema() -> Response {
    let body = crate::openapi_json().as_bytes().to_vec();
    answer(StatusCode::OK, body, AnswerHeaders::default())
}
