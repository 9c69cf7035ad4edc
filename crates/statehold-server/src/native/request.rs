//! Requests: start, read, append, end, claim.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::RequestHolds;
use statehold_engine::api;
use statehold_engine::api::memory::MemoryView;
use statehold_engine::api::request::{
    AppendInput, ClaimInput, ClaimView, CompleteInput, EmptyInput, FailInput, HeartbeatInput,
    HeartbeatView, ItemsWritten, ReleaseInput, RequestView, StartInput, WaitUntil,
};
use statehold_engine::api::schema::UntilWord;
use statehold_engine::api::work::WAIT_SECONDS_MAX;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{
    Answer, AnswerHeaders, Cursor, PAGE_MAX, committed, page_limit, plain, revision, shown,
};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, CallerCredential, Params};
use crate::http::problem::{Code, Problem};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(read))
        .routes(routes!(memory))
        .routes(routes!(append))
        .routes(routes!(complete))
        .routes(routes!(fail))
        .routes(routes!(cancel))
        .routes(routes!(heartbeat))
        .routes(routes!(release))
        .routes(routes!(claim))
}

/// Start a request to an agent.
///
/// With lease, items, state and output it is a whole turn in one commit. A plain request needs `client`, one
/// with a lease or a parent `worker`.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/requests", tag = "requests",
    operation_id = "startRequest", request_body = StartInput,
    responses((status = 201, body = RequestView))
)]
async fn start(
    context: CallContext,
    CallerCredential(credential): CallerCredential,
    body: Payload<StartInput>,
) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let (call, credential) = (context.call(&body.bytes), credential.as_ref());
    let started =
        api::request::start(context.engine(), &call, session, body.value, credential).await?;
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
    /// `next_cursor` of the previous page of holds.
    cursor: Option<String>,
    /// Number of holds, 1 to 256. A page has at most 1 MiB of payloads, or one hold.
    #[param(minimum = 1, maximum = 256)]
    limit: Option<usize>,
}

/// The holds of a request on one page, unless the caller asks for fewer: as many as may be open.
const HOLDS_MAX: usize = 256;

impl WaitParams {
    fn parse(&self) -> Result<(WaitUntil, Duration), Problem> {
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
///
/// With `wait` the answer comes at that event or at the timeout, with the request as it is then.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}", tag = "requests",
    operation_id = "getRequest", params(WaitParams),
    responses((status = 200, body = RequestView))
)]
async fn read(context: CallContext, Params(params): Params<WaitParams>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let waiting = params.parse()?;
    let cursor = Cursor::of(&context, "request holds", &request.to_string());
    let holds = RequestHolds {
        before: cursor.open(params.cursor.as_deref())?,
        entries: page_limit(params.limit.or(Some(HOLDS_MAX)), HOLDS_MAX)?,
    };
    let (engine, caller) = (context.engine(), &context.caller);
    let read = api::request::read(engine, caller, (request, holds), waiting, &context);
    let mut read = context.while_valid(read).await?;
    read.view.next_cursor = read.earlier_holds.map(|before| cursor.seal(before));
    let headers = AnswerHeaders::request(&read.view).at(read.revision);
    Ok(shown(&read.view, headers))
}

/// Page of a memory.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MemoryParams {
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size, 1 to 200. A page has at most 8 MiB of payloads, and ends earlier for that.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// Read the memory of a request.
///
/// These are the exchanges that its agent knew when the request started, newest first. It is for workers of
/// the agent, and stays the same until the request ends.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}/memory", tag = "requests",
    operation_id = "getRequestMemory", params(MemoryParams),
    responses((status = 200, body = MemoryView))
)]
async fn memory(context: CallContext, Params(params): Params<MemoryParams>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let limit = page_limit(params.limit, PAGE_MAX)?;
    let caller = &context.caller;
    let cursor = Cursor::of(&context, "memory", &request.to_string());
    let page = (cursor.open(params.cursor.as_deref())?, limit);
    context.take_answer(api::memory::PAGE_BYTES_MAX).await?;
    let mut read = api::memory::read(context.engine(), caller, request, page).await?;
    read.view.next_cursor = read.rest.map(|rest| cursor.seal(rest));
    let headers = AnswerHeaders::in_request(read.session, request).task(read.task);
    Ok(shown(&read.view, headers.at(read.revision)))
}

/// Append items and state to the history of a request's task.
///
/// Needs the lease of the request, by its `fence`. Tool calls are recorded here before the tool runs.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/items", tag = "requests",
    operation_id = "appendItems", request_body = AppendInput,
    responses((status = 200, body = ItemsWritten))
)]
async fn append(context: CallContext, body: Payload<AppendInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let call = context.call(&body.bytes);
    let written = api::request::append(context.engine(), &call, request, body.value).await?;
    let headers = AnswerHeaders::in_request(written.session, request);
    Ok(committed(StatusCode::OK, written, headers))
}

/// Complete a request with its answer.
///
/// The items, the state and the private state of the agent in the body are written in the same commit. Needs
/// the lease of the request, by its `fence`.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/complete", tag = "requests",
    operation_id = "completeRequest",
    request_body = CompleteInput, responses((status = 200, body = RequestView))
)]
async fn complete(context: CallContext, body: Payload<CompleteInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let call = context.call(&body.bytes);
    let completed = api::request::complete(context.engine(), &call, request, body.value).await?;
    let headers = AnswerHeaders::request(&completed.view);
    Ok(committed(StatusCode::OK, completed, headers))
}

/// Fail a request with an error.
///
/// Needs the lease of the request, by its `fence`.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/fail", tag = "requests",
    operation_id = "failRequest", request_body = FailInput,
    responses((status = 200, body = RequestView))
)]
async fn fail(context: CallContext, body: Payload<FailInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let call = context.call(&body.bytes);
    let failed = api::request::fail(context.engine(), &call, request, body.value).await?;
    let headers = AnswerHeaders::request(&failed.view);
    Ok(committed(StatusCode::OK, failed, headers))
}

/// Cancel a request with its child requests and holds.
///
/// Workers that hold a lease of one of them get 409 from then on.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/cancel", tag = "requests",
    operation_id = "cancelRequest", request_body = EmptyInput,
    responses((status = 200, body = RequestView))
)]
async fn cancel(context: CallContext, body: Payload<EmptyInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let call = context.call(&body.bytes);
    let cancelled = api::request::cancel(context.engine(), &call, request).await?;
    let headers = AnswerHeaders::request(&cancelled.view);
    Ok(committed(StatusCode::OK, cancelled, headers))
}

/// Extend a lease by its length.
///
/// Work that takes longer than its lease needs heartbeats. A worker that was replaced gets 409 `stale_fence`.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/heartbeat", tag = "requests",
    operation_id = "extendLease",
    request_body = HeartbeatInput, responses((status = 200, body = HeartbeatView), (status = 409))
)]
async fn heartbeat(context: CallContext, body: Payload<HeartbeatInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let caller = &context.caller;
    let (session, view) =
        api::request::heartbeat(context.engine(), caller, request, &body.value).await?;
    Ok(shown(&view, AnswerHeaders::in_request(session, request)))
}

/// Release a lease.
///
/// A request that waits for people needs no worker. The next claim gets the decisions and child results that
/// the request waits for.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/release", tag = "requests",
    operation_id = "releaseLease", request_body = ReleaseInput,
    responses((status = 200, body = RequestView))
)]
async fn release(context: CallContext, body: Payload<ReleaseInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let call = context.call(&body.bytes);
    let released = api::request::release(context.engine(), &call, request, &body.value).await?;
    let headers = AnswerHeaders::request(&released.view);
    Ok(committed(StatusCode::OK, released, headers))
}

/// Claim requests of an agent, and wait for the first one.
///
/// Each has a `fence`, its lease, and everything that the next step needs: the input, the decisions of its
/// holds, and the results of its child requests.
#[utoipa::path(
    post, path = "/v1/work/claim", tag = "requests",
    operation_id = "claimRequests", request_body = ClaimInput,
    responses((status = 200, body = ClaimView), (status = 404), (status = 409))
)]
async fn claim(context: CallContext, body: Payload<ClaimInput>) -> Answer {
    let claim = api::work::claim(context.engine(), &context.caller, body.value, &context);
    let claimed = context.while_valid(claim).await?;
    Ok(plain(&claimed))
}
