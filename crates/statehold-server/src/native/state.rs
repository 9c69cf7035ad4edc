//! State of sessions, apps and users.

use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::scope::StateKey;
use statehold_engine::api;
use statehold_engine::api::state::{SessionStateInput, StatePatchInput, StateView, StateWritten};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, AnswerHeaders, Cursor, committed, page_limit, shown};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, Params};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(read, patch))
        .routes(routes!(read_app, patch_app))
        .routes(routes!(read_user, patch_user))
}

/// The request whose `temp:` values to show, and the page.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StateParams {
    /// Also show the `temp:` values of this request, on the first page.
    request_id: Option<RequestId>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Number of keys, 1 to 10000.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<usize>,
}

/// Page of state.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatePageParams {
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Number of keys, 1 to 10000.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<usize>,
}

/// The keys of a page, unless the caller asks for fewer.
const KEYS_MAX: usize = 10_000;

/// Read the state of a session, with the values of its app and user.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/state", tag = "state", params(StateParams),
    responses((status = 200, body = StateView))
)]
async fn read(context: CallContext, Params(params): Params<StateParams>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let limit = page_limit(params.limit.or(Some(KEYS_MAX)), KEYS_MAX)?;
    let cursor = Cursor::of(&context, "state", &session.to_string());
    let after: Option<StateKey> = cursor.open(params.cursor.as_deref())?;
    let (engine, caller, request) = (context.engine(), &context.caller, params.request_id);
    let read = |page| api::state::read(engine, caller, session, request, (after.clone(), page));
    let (mut state, next) = context.read_page(limit, read).await?;
    state.next_cursor = next.map(|key| cursor.seal(key));
    let headers = AnswerHeaders::session(session).at(state.revision);
    Ok(shown(&state, headers))
}

/// Write state of a session, its user or (as an admin) its app.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}/state", tag = "state",
    request_body = SessionStateInput, responses((status = 200, body = StateWritten))
)]
async fn patch(context: CallContext, body: Payload<SessionStateInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let written = api::state::patch(context.engine(), &call, session, body.value).await?;
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, written, headers))
}

/// Read the state of an app.
#[utoipa::path(
    get, path = "/v1/state/app/{app}", tag = "state", params(StatePageParams),
    responses((status = 200, body = StateView))
)]
async fn read_app(context: CallContext, Params(params): Params<StatePageParams>) -> Answer {
    read_shared(&context, context.path_text("app"), None, params).await
}

async fn read_shared(
    context: &CallContext,
    app: &str,
    user: Option<&str>,
    params: StatePageParams,
) -> Answer {
    let limit = page_limit(params.limit.or(Some(KEYS_MAX)), KEYS_MAX)?;
    let owner = format!("{app}/{}", user.unwrap_or_default());
    let cursor = Cursor::of(context, "shared state", &owner);
    let after: Option<StateKey> = cursor.open(params.cursor.as_deref())?;
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::state::read_shared(engine, caller, app, user, (after.clone(), page));
    let (mut state, next) = context.read_page(limit, read).await?;
    state.next_cursor = next.map(|key| cursor.seal(key));
    Ok(shown(&state, AnswerHeaders::default().at(state.revision)))
}

/// Write the state of an app.
#[utoipa::path(
    patch, path = "/v1/state/app/{app}", tag = "state",
    request_body = StatePatchInput, responses((status = 200, body = StateWritten))
)]
async fn patch_app(context: CallContext, body: Payload<StatePatchInput>) -> Answer {
    let call = context.call(&body.bytes);
    let app = context.path_text("app");
    let written = api::state::patch_app(context.engine(), &call, app, body.value).await?;
    Ok(committed(StatusCode::OK, written, AnswerHeaders::default()))
}

/// Read the state of a user in an app.
#[utoipa::path(
    get, path = "/v1/state/user/{app}/{user}", tag = "state", params(StatePageParams),
    responses((status = 200, body = StateView))
)]
async fn read_user(context: CallContext, Params(params): Params<StatePageParams>) -> Answer {
    let (app, user) = (context.path_text("app"), context.path_text("user"));
    read_shared(&context, app, Some(user), params).await
}

/// Write the state of a user in an app.
#[utoipa::path(
    patch, path = "/v1/state/user/{app}/{user}", tag = "state",
    request_body = StatePatchInput, responses((status = 200, body = StateWritten))
)]
async fn patch_user(context: CallContext, body: Payload<StatePatchInput>) -> Answer {
    let call = context.call(&body.bytes);
    let owner = (context.path_text("app"), context.path_text("user"));
    let written = api::state::patch_user(context.engine(), &call, owner, body.value).await?;
    Ok(committed(StatusCode::OK, written, AnswerHeaders::default()))
}
