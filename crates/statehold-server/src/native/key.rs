//! API keys: create, list, revoke.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use statehold_core::ids::KeyId;
use statehold_engine::api;
use statehold_engine::api::json::to_body;
use statehold_engine::api::key::{KeyInput, KeyList, KeyView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AnswerHeaders, answer, shown};
use crate::http::call::{App, CallContext, PathIds, Payload};
use crate::http::problem::Problem;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(revoke))
}

/// Create a key. The answer is the only place that shows it.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", request_body = KeyInput,
    responses((status = 201, body = KeyView))
)]
async fn create(
    State(app): State<App>,
    context: CallContext,
    body: Payload<KeyInput>,
) -> Result<Response, Problem> {
    let key = api::key::create(&app.engine, &context.caller, body.value).await?;
    Ok(answer(
        StatusCode::CREATED,
        to_body(&key),
        &AnswerHeaders::default(),
    ))
}

/// List keys.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses((status = 200, body = KeyList)))]
async fn list(State(app): State<App>, context: CallContext) -> Result<Response, Problem> {
    let keys = api::key::list(&app.engine, &context.caller).await?;
    Ok(shown(&keys, &AnswerHeaders::default()))
}

/// Revoke a key, with immediate effect.
#[utoipa::path(
    delete, path = "/v1/keys/{key_id}", tag = "keys", params(("key_id" = String, Path)),
    responses((status = 204))
)]
async fn revoke(
    State(app): State<App>,
    context: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let key: KeyId = ids.id("key_id")?;
    api::key::revoke(&app.engine, &context.caller, key).await?;
    Ok(answer(
        StatusCode::NO_CONTENT,
        Vec::new(),
        &AnswerHeaders::default(),
    ))
}
