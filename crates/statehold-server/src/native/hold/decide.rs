//! Opening holds and deciding them: each hold gets exactly one decision.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use statehold_core::ids::{HoldId, RequestId};
use statehold_engine::Receipt;
use statehold_engine::api;
use statehold_engine::api::hold::{
    DecisionInput, DecisionReceipt, HoldInput, HoldView, ResumeInput,
};

use crate::http::call::{App, CallContext, PathIds, Payload};
use crate::http::problem::Problem;
use crate::native::{About, committed};

/// Ask a person.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/holds", tag = "holds",
    params(("request_id" = String, Path)), request_body = HoldInput,
    responses((status = 201, body = HoldView))
)]
pub(crate) async fn open(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<HoldInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = context.call(&body.bytes);
    let opened = api::hold::open(&app.engine, &call, request, body.value).await?;
    let about = About::in_request(opened.session, request);
    Ok(committed(StatusCode::CREATED, opened, about))
}

/// Decide a hold, once and for all.
#[utoipa::path(
    post, path = "/v1/holds/{hold_id}/decision", tag = "holds",
    params(("hold_id" = String, Path)), request_body = DecisionInput,
    responses((status = 200, body = DecisionReceipt))
)]
pub(crate) async fn decide(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<DecisionInput>,
) -> Result<Response, Problem> {
    let hold: HoldId = ids.id("hold_id")?;
    let (call, key) = context.decision();
    Ok(decided(
        api::hold::decide(&app.engine, &call, key, hold, body.value).await?,
    ))
}

/// Decide the only hold that a request ever had, or the one that is named.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/resume", tag = "holds",
    params(("request_id" = String, Path)), request_body = ResumeInput,
    responses((status = 200, body = DecisionReceipt))
)]
pub(crate) async fn resume(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<ResumeInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let (call, key) = context.decision();
    Ok(decided(
        api::hold::resume(&app.engine, &call, key, request, body.value).await?,
    ))
}

fn decided(receipt: Receipt<DecisionReceipt>) -> Response {
    let about = About::in_request(receipt.session, receipt.view.request_id);
    committed(StatusCode::OK, receipt, about)
}
