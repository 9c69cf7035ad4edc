//! State of sessions, apps and users.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::api;
use statehold_engine::api::state::{SessionStateInput, StatePatchInput, StateView, StateWritten};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AnswerHeaders, committed, shown};
use crate::http::call::{App, CallContext, Params, PathIds, Payload};
use crate::http::problem::Problem;

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
    get, path = "/v1/sessions/{session_id}/state", tag = "state",
    params(("session_id" = String, Path), StateParams),
    responses((status = 200, body = StateView))
)]
async fn read(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    Params(params): Params<StateParams>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let request = params.request_id;
    let state = api::state::read(&app.engine, &context.caller, session, request).await?;
    let headers = AnswerHeaders {
        revision: Some(state.revision),
        session: Some(session.to_string()),
        ..AnswerHeaders::default()
    };
    Ok(shown(&state, &headers))
}

/// Write state of a session, its user or (as an admin) its app.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}/state", tag = "state",
    params(("session_id" = String, Path)), request_body = SessionStateInput,
    responses((status = 200, body = StateWritten))
)]
async fn patch(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<SessionStateInput>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let call = context.call(&body.bytes);
    let written = api::state::patch(&app.engine, &call, session, body.value).await?;
    let headers = AnswerHeaders {
        session: Some(session.to_string()),
        ..AnswerHeaders::default()
    };
    Ok(committed(StatusCode::OK, written, headers))
}

/// Read the state of an app.
#[utoipa::path(
    get, path = "/v1/state/app/{app}", tag = "state", params(("app" = String, Path)),
    responses((status = 200, body = StateView))
)]
async fn read_app(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let state = api::state::read_app(&app.engine, &context.caller, ids.text("app")).await?;
    Ok(shown_shared(&state))
}

/// Write the state of an app.
#[utoipa::path(
    patch, path = "/v1/state/app/{app}", tag = "state", params(("app" = String, Path)),
    request_body = StatePatchInput, responses((status = 200, body = StateWritten))
)]
async fn patch_app(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<StatePatchInput>,
) -> Result<Response, Problem> {
    let call = context.call(&body.bytes);
    let written = api::state::patch_app(&app.engine, &call, ids.text("app"), body.value).await?;
    Ok(committed(StatusCode::OK, written, AnswerHeaders::default()))
}

/// Read the state of a user in an app.
#[utoipa::path(
    get, path = "/v1/state/user/{app}/{user}", tag = "state",
    params(("app" = String, Path), ("user" = String, Path)),
    responses((status = 200, body = StateView))
)]
async fn read_user(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let (of_app, user) = (ids.text("app"), ids.text("user"));
    let state = api::state::read_user(&app.engine, &context.caller, of_app, user).await?;
    Ok(shown_shared(&state))
}

/// Write the state of a user in an app.
#[utoipa::path(
    patch, path = "/v1/state/user/{app}/{user}", tag = "state",
    params(("app" = String, Path), ("user" = String, Path)),
    request_body = StatePatchInput, responses((status = 200, body = StateWritten))
)]
async fn patch_user(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
    body: Payload<StatePatchInput>,
) -> Result<Response, Problem> {
    let call = context.call(&body.bytes);
    let owner = (ids.text("app"), ids.text("user"));
    let written = api::state::patch_user(&app.engine, &call, owner, body.value).await?;
    Ok(committed(StatusCode::OK, written, AnswerHeaders::default()))
}

fn shown_shared(state: &StateView) -> Response {
    let headers = AnswerHeaders {
        revision: Some(state.revision),
        ..AnswerHeaders::default()
    };
    shown(state, &headers)
}
