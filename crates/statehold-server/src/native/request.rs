//! Requests: start, read, append, end, claim.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::api;
use statehold_engine::api::request::{
    AppendInput, ClaimInput, ClaimView, CompleteInput, EmptyInput, FailInput, HeartbeatInput,
    HeartbeatView, ItemsWritten, ReleaseInput, RequestView, StartInput, WaitUntil,
};
use statehold_engine::api::schema::UntilWord;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AnswerHeaders, committed, revision, shown};
use crate::http::call::{App, CallContext, CallerCredential, Params, PathIds, Payload};
use crate::http::problem::{Code, Problem};

/// The longest wait of a call, in seconds.
pub(crate) const WAIT_SECONDS_MAX: u64 = 60;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(read))
        .routes(routes!(append))
        .routes(routes!(complete))
        .routes(routes!(fail))
        .routes(routes!(cancel))
        .routes(routes!(heartbeat))
        .routes(routes!(release))
        .routes(routes!(claim))
}

/// Start a request to an agent. With lease, items, state and output it is a whole turn in one commit.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/requests", tag = "requests",
    params(("session_id" = String, Path)), request_body = StartInput,
    responses((status = 201, body = RequestView))
)]
async fn start(
    State(app): State<App>,
    context: CallContext,
    CallerCredential(credential): CallerCredential,
    ids: PathIds,
    body: Payload<StartInput>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let (call, credential) = (context.call(&body.bytes), credential.as_ref());
    let started = api::request::start(&app.engine, &call, session, body.value, credential).await?;
    let headers = AnswerHeaders::request(&started.view);
    Ok(committed(StatusCode::CREATED, started, headers))
}

/// The time to wait, and the change to wait for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitParams {
    /// Seconds to wait, at most 60.
    #[param(maximum = 60)]
    wait: Option<u64>,
    /// `final` (default) or `changed`.
    #[param(value_type = Option<UntilWord>)]
    until: Option<String>,
    /// With `changed`: wait for a change after this revision of the session, as an `ETag` gave it. Without
    /// it, after the revision at the time of the call.
    #[param(maximum = 9_007_199_254_740_991u64)]
    after: Option<u64>,
}

impl WaitParams {
    fn parse(self) -> Result<(WaitUntil, Duration), Problem> {
        let bad = |detail: &str| Problem::new(Code::BadQuery, detail);
        let until_final = match self.until.as_deref() {
            None | Some("final") => true,
            Some("changed") => false,
            Some(_) => return Err(bad("`until` is final or changed")),
        };
        let wait = self.wait.unwrap_or(0);
        if wait > WAIT_SECONDS_MAX {
            return Err(bad("`wait` is at most 60 seconds"));
        }
        let until = match (until_final, revision(self.after, "after")?) {
            (true, Some(_)) => return Err(bad("`after` goes with `until=changed`")),
            (true, None) => WaitUntil::Final,
            (false, after) => WaitUntil::Changed { after },
        };
        Ok((until, Duration::from_secs(wait)))
    }
}

/// Read a request, and optionally wait until it ends or changes.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}", tag = "requests",
    params(("request_id" = String, Path), WaitParams),
    responses((status = 200, body = RequestView))
)]
async fn read(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    Params(params): Params<WaitParams>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let (until, wait) = params.parse()?;
    let read =
        async { Ok(api::request::read(&app.engine, &context.caller, request, until, wait).await?) };
    let read = app.while_valid(context.secret, read).await?;
    let headers = AnswerHeaders {
        revision: Some(read.revision),
        ..AnswerHeaders::request(&read.view)
    };
    Ok(shown(&read.view, &headers))
}

/// Append items and state to the history of a request's task.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/items", tag = "requests",
    params(("request_id" = String, Path)), request_body = AppendInput,
    responses((status = 200, body = ItemsWritten))
)]
async fn append(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<AppendInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = context.call(&body.bytes);
    let written = api::request::append(&app.engine, &call, request, body.value).await?;
    let headers = AnswerHeaders::in_request(written.session, request);
    Ok(committed(StatusCode::OK, written, headers))
}

/// Complete a request with its answer.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/complete", tag = "requests",
    params(("request_id" = String, Path)), request_body = CompleteInput,
    responses((status = 200, body = RequestView))
)]
async fn complete(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<CompleteInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = context.call(&body.bytes);
    let completed = api::request::complete(&app.engine, &call, request, body.value).await?;
    let headers = AnswerHeaders::request(&completed.view);
    Ok(committed(StatusCode::OK, completed, headers))
}

/// Fail a request with an error.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/fail", tag = "requests",
    params(("request_id" = String, Path)), request_body = FailInput,
    responses((status = 200, body = RequestView))
)]
async fn fail(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<FailInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = context.call(&body.bytes);
    let failed = api::request::fail(&app.engine, &call, request, body.value).await?;
    let headers = AnswerHeaders::request(&failed.view);
    Ok(committed(StatusCode::OK, failed, headers))
}

/// Cancel a request with its child requests and holds.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/cancel", tag = "requests",
    params(("request_id" = String, Path)), request_body = EmptyInput,
    responses((status = 200, body = RequestView))
)]
async fn cancel(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<EmptyInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = context.call(&body.bytes);
    let cancelled = api::request::cancel(&app.engine, &call, request).await?;
    let headers = AnswerHeaders::request(&cancelled.view);
    Ok(committed(StatusCode::OK, cancelled, headers))
}

/// Extend a lease.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/heartbeat", tag = "requests",
    params(("request_id" = String, Path)), request_body = HeartbeatInput,
    responses((status = 200, body = HeartbeatView))
)]
async fn heartbeat(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<HeartbeatInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let caller = &context.caller;
    let (session, view) =
        api::request::heartbeat(&app.engine, caller, request, &body.value).await?;
    Ok(shown(&view, &AnswerHeaders::in_request(session, request)))
}

/// Release a lease. The next claim gets the decisions and child results that the request waits for.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/release", tag = "requests",
    params(("request_id" = String, Path)), request_body = ReleaseInput,
    responses((status = 200, body = RequestView))
)]
async fn release(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<ReleaseInput>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = context.call(&body.bytes);
    let released = api::request::release(&app.engine, &call, request, &body.value).await?;
    let headers = AnswerHeaders::request(&released.view);
    Ok(committed(StatusCode::OK, released, headers))
}

/// Claim requests of an agent, and wait for the first one.
#[utoipa::path(
    post, path = "/v1/work/claim", tag = "requests", request_body = ClaimInput,
    responses((status = 200, body = ClaimView))
)]
async fn claim(
    State(app): State<App>,
    context: CallContext,
    body: Payload<ClaimInput>,
) -> Result<Response, Problem> {
    let claim = async { Ok(api::work::claim(&app.engine, &context.caller, body.value).await?) };
    let claimed = app.while_valid(context.secret, claim).await?;
    Ok(shown(&claimed, &AnswerHeaders::default()))
}
