//! API keys: create, list, revoke.

use http::StatusCode;
use statehold_core::ids::KeyId;
use statehold_engine::api;
use statehold_engine::api::json::to_body;
use statehold_engine::api::key::{KeyInput, KeyList, KeyView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, AnswerHeaders, answer, no_content, plain};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};

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
async fn create(context: CallContext, body: Payload<KeyInput>) -> Answer {
    let key = api::key::create(context.engine(), &context.caller, body.value).await?;
    let headers = AnswerHeaders::default();
    Ok(answer(StatusCode::CREATED, to_body(&key), headers))
}

/// List keys.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses((status = 200, body = KeyList)))]
async fn list(context: CallContext) -> Answer {
    let keys = api::key::list(context.engine(), &context.caller).await?;
    Ok(plain(&keys))
}

/// Revoke a key, with immediate effect.
#[utoipa::path(
    delete, path = "/v1/keys/{key_id}", tag = "keys", responses((status = 204))
)]
async fn revoke(context: CallContext) -> Answer {
    let key: KeyId = context.id("key_id")?;
    api::key::revoke(context.engine(), &context.caller, key).await?;
    Ok(no_content())
}
