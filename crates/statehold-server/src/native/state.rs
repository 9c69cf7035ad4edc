//! State of sessions, apps and users.

use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::api;
use statehold_engine::api::state::{SessionStateInput, StatePatchInput, StateView, StateWritten};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, AnswerHeaders, committed, shown};
use crate::http::call::{App, CallContext, Params, Payload};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(read, patch))
        .routes(routes!(read_app, patch_app))
        .routes(routes!(read_user, patch_user))
}

/// The request whose `temp:` values to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StateParams {
    /// Also show the `temp:` values of this request.
    request_id: Option<RequestId>,
}

/// Read the state of a session, with the values of its app and user.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/state", tag = "state", params(StateParams),
    responses((status = 200, body = StateView))
)]
async fn read(context: CallContext, Params(params): Params<StateParams>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let request = params.request_id;
    let state = api::state::read(context.engine(), &context.caller, session, request).await?;
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
    get, path = "/v1/state/app/{app}", tag = "state", responses((status = 200, body = StateView))
)]
async fn read_app(context: CallContext) -> Answer {
    let app = context.path_text("app");
    let state = api::state::read_shared(context.engine(), &context.caller, app, None).await?;
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
    get, path = "/v1/state/user/{app}/{user}", tag = "state",
    responses((status = 200, body = StateView))
)]
async fn read_user(context: CallContext) -> Answer {
    let (app, user) = (context.path_text("app"), context.path_text("user"));
    let state = api::state::read_shared(context.engine(), &context.caller, app, Some(user)).await?;
    Ok(shown(&state, AnswerHeaders::default().at(state.revision)))
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
