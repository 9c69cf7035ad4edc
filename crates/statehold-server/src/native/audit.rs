//! The audit stream and its verification.

use statehold_engine::api;
use statehold_engine::api::audit::{AuditRecords, VerificationView, VerifyInput};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::session::RecordParams;
use super::{Answer, page_limit, plain, revision};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, Params};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(records))
        .routes(routes!(verify))
}

/// Read the audit stream of the tenant.
///
/// It is a hash chain of key changes, trace reads and signed roots. Needs `operator`. A page may be short;
/// the stream ends where `head` says.
#[utoipa::path(
    get, path = "/v1/audit/records", tag = "audit",
    operation_id = "listAuditRecords", params(RecordParams),
    responses((status = 200, body = AuditRecords))
)]
async fn records(context: CallContext, Params(params): Params<RecordParams>) -> Answer {
    let limit = page_limit(params.limit.or(Some(100)), 1_000)?;
    let after = revision(params.after, "after")?.unwrap_or(0);
    let page = api::audit::records(context.engine(), &context.caller, after, limit).await?;
    Ok(plain(&page))
}

/// Verify every chain, payload, table and root of the tenant.
///
/// Needs `operator`. The server keeps answering calls meanwhile. Damage is no refusal: `ok` is false then,
/// and `problems` says where. One verification runs at a time.
#[utoipa::path(
    post, path = "/v1/audit/verify", tag = "audit",
    operation_id = "verifyStore", request_body = VerifyInput,
    responses((status = 200, body = VerificationView))
)]
async fn verify(context: CallContext, _body: Payload<VerifyInput>) -> Answer {
    let found = api::audit::verify(context.engine(), &context.caller).await?;
    Ok(plain(&found))
}
