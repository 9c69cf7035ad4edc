//! Holds: open, list, read, decide. A GET never decides, and each hold gets exactly one decision.

use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use statehold_core::hold::{HoldKind, HoldStatus, Risk};
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_core::name::Name;
use statehold_engine::api;
use statehold_engine::api::hold::{
    DecisionInput, DecisionReceipt, HoldCountsView, HoldInput, HoldListInput, HoldPage, HoldView,
    ResumeInput,
};
use statehold_engine::api::schema::{HoldOrderWord, HoldStatusFilter};
use statehold_engine::{HoldFilter, HoldOrder, Receipt};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{
    Answer, AnswerHeaders, Cursor, PAGE_MAX, committed, name_in_query, page_limit, plain, shown,
    word_in_query,
};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, Params};
use crate::http::problem::{Code, Problem};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(open))
        .routes(routes!(list))
        .routes(routes!(counts))
        .routes(routes!(read))
        .routes(routes!(decide))
        .routes(routes!(resume))
}

/// Filter, order and page of a hold list.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HoldParams {
    /// `open` (default), `decided`, or an outcome: `approved`, `edited`, `answered`, `rejected`,
    /// `expired`, `cancelled`.
    #[param(value_type = Option<HoldStatusFilter>)]
    status: Option<String>,
    /// Only holds of this agent.
    #[param(value_type = Option<Name>)]
    agent: Option<String>,
    /// Only holds of this kind.
    #[param(value_type = Option<HoldKind>)]
    kind: Option<String>,
    /// Only holds with an action of this risk.
    #[param(value_type = Option<Risk>)]
    risk: Option<String>,
    /// Only holds in sessions of this user.
    user: Option<String>,
    /// Only holds of this session.
    #[param(value_type = Option<SessionId>)]
    session_id: Option<String>,
    /// Only holds of this group.
    #[param(max_length = 64)]
    group_id: Option<String>,
    /// `urgency` (default for open holds), `oldest` or `newest` (default for decided ones).
    #[param(value_type = Option<HoldOrderWord>)]
    order: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// List holds: open ones by urgency, decided ones newest first.
///
/// This is the inbox of an approver. A key with any role reads it, and sees the holds that it may see.
#[utoipa::path(
    get, path = "/v1/holds", tag = "holds",
    operation_id = "listHolds", params(HoldParams),
    responses((status = 200, body = HoldPage))
)]
async fn list(context: CallContext, Params(params): Params<HoldParams>) -> Answer {
    Ok(plain(&page(&context, params).await?))
}

/// A page of holds.
pub(crate) async fn page(
    context: &CallContext,
    mut params: HoldParams,
) -> Result<HoldPage, Problem> {
    let limit = page_limit(params.limit.take(), PAGE_MAX)?;
    let begin = params.cursor.take();
    let filter_text = serde_json::to_string(&params).unwrap_or_default();
    let cursor = Cursor::of(context, "holds", &filter_text);
    let after = cursor.open(begin.as_deref())?;
    let input = HoldListInput {
        filter: filter_of(&params)?,
        user: params.user,
    };
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::hold::list(engine, caller, input.clone(), (after, page));
    let page = context.read_page(limit, read).await?;
    Ok(HoldPage {
        holds: page.entries,
        next_cursor: page.next.map(|place| cursor.seal(place)),
    })
}

fn filter_of(params: &HoldParams) -> Result<HoldFilter, Problem> {
    let bad = |what: &str| Problem::new(Code::BadQuery, what);
    let status = params.status.as_deref();
    let outcome: Option<HoldStatus> = word_in_query(
        status.filter(|status| !["open", "decided"].contains(status)),
        "`status` is open, decided, approved, edited, answered, rejected, expired or cancelled",
    )?;
    let decided = outcome.is_some() || status == Some("decided");
    let kind: Option<HoldKind> = word_in_query(
        params.kind.as_deref(),
        "`kind` is approval, question, form, link, credential or reconcile",
    )?;
    let risk: Option<Risk> =
        word_in_query(params.risk.as_deref(), "`risk` is low, medium or high")?;
    let order = match params.order.as_deref() {
        Some("urgency") if decided => {
            return Err(bad("`order` of decided holds is newest or oldest"));
        }
        Some("oldest") => HoldOrder::Oldest,
        Some("newest") => HoldOrder::Newest,
        None if decided => HoldOrder::Newest,
        None | Some("urgency") => HoldOrder::Urgency,
        Some(_) => return Err(bad("`order` is urgency, oldest or newest")),
    };
    let is_group = |id: &String| (1..=64).contains(&id.len());
    if params.group_id.as_ref().is_some_and(|id| !is_group(id)) {
        return Err(bad("`group_id` is 1 to 64 bytes"));
    }
    let agent = params.agent.as_deref();
    let session = params.session_id.as_deref().map(str::parse).transpose();
    Ok(HoldFilter {
        decided,
        status: outcome,
        agent: agent
            .map(|agent| name_in_query(agent, "agent"))
            .transpose()?,
        kind,
        risk,
        user: None,
        session: session.map_err(|_| bad("`session_id` is the id of a session"))?,
        group: params.group_id.clone(),
        order,
    })
}

/// Count open holds.
///
/// It counts the 10,000 most urgent holds that the caller may see; `capped` means that there are more.
#[utoipa::path(
    get, path = "/v1/holds/counts", tag = "holds",
    operation_id = "countHolds", responses((status = 200, body = HoldCountsView))
)]
async fn counts(context: CallContext) -> Answer {
    let counts = api::hold::counts(context.engine(), &context.caller).await?;
    Ok(plain(&counts))
}

/// Read a hold.
///
/// Callers who may decide the hold see its action with a preview of the arguments, and the `digest` that a
/// decision names.
#[utoipa::path(
    get, path = "/v1/holds/{hold_id}", tag = "holds",
    operation_id = "getHold", responses((status = 200, body = HoldView))
)]
async fn read(context: CallContext) -> Answer {
    let (engine, caller) = (context.engine(), &context.caller);
    let hold = context.id("hold_id")?;
    let hold = api::hold::read_with_excerpt(engine, caller, hold, &context).await?;
    let headers = AnswerHeaders::in_request(hold.session_id, hold.request_id);
    Ok(shown(&hold, headers.task(hold.task_id)))
}

/// Open a hold: ask a person for an approval or an answer.
///
/// The request is `held` until the hold is decided, and its decisions come with the next claim. An approval
/// records its tool call. Needs the lease of the request, by its `fence`.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/holds", tag = "holds",
    operation_id = "openHold", request_body = HoldInput,
    responses((status = 201, body = HoldView))
)]
async fn open(context: CallContext, body: Payload<HoldInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let call = context.call(&body.bytes);
    let opened = api::hold::open(context.engine(), &call, request, body.value).await?;
    let headers = AnswerHeaders::in_request(opened.session, request);
    Ok(committed(StatusCode::CREATED, opened, headers))
}

/// Decide a hold.
///
/// A hold gets exactly one decision. `approve` and `edit` of an action name the `digest` of the action that
/// was shown. The same decision again gets the same answer.
#[utoipa::path(
    post, path = "/v1/holds/{hold_id}/decision", tag = "holds",
    operation_id = "decideHold", request_body = DecisionInput,
    responses((status = 200, body = DecisionReceipt))
)]
async fn decide(context: CallContext, body: Payload<DecisionInput>) -> Answer {
    let hold: HoldId = context.id("hold_id")?;
    let (call, key) = context.decision();
    let decision = body.value;
    let receipt = api::hold::decide(context.engine(), &call, key, hold, decision, &context);
    Ok(decided(receipt.await?))
}

/// Decide the only hold of a request, or the one that the body names.
///
/// It is `decideHold` for callers who know the request and not the hold.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/resume", tag = "holds",
    operation_id = "decideRequestHold", request_body = ResumeInput,
    responses((status = 200, body = DecisionReceipt))
)]
async fn resume(context: CallContext, body: Payload<ResumeInput>) -> Answer {
    let request: RequestId = context.id("request_id")?;
    let (call, key) = context.decision();
    let decision = body.value;
    let receipt = api::hold::resume(context.engine(), &call, key, request, decision, &context);
    Ok(decided(receipt.await?))
}

fn decided(receipt: Receipt<DecisionReceipt>) -> Response {
    let headers = AnswerHeaders::in_request(receipt.session, receipt.view.request_id);
    committed(StatusCode::OK, receipt, headers)
}
