//! API keys: create, list, revoke.

use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::KeyId;
use statehold_engine::api;
use statehold_engine::api::json::to_body;
use statehold_engine::api::key::{KeyInput, KeyList, KeyView};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, AnswerHeaders, Cursor, PAGE_MAX, answer, no_content, page_limit, plain};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, Params};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(revoke))
}

/// Create a key.
///
/// Needs `admin`. The answer is the only place that shows the key.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys",
    operation_id = "createKey", request_body = KeyInput,
    responses((status = 201, body = KeyView), (status = 409))
)]
async fn create(context: CallContext, body: Payload<KeyInput>) -> Answer {
    let key = api::key::create(context.engine(), &context.caller, body.value).await?;
    let headers = AnswerHeaders::default();
    Ok(answer(StatusCode::CREATED, to_body(&key), headers))
}

/// Query of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KeyListParams {
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// List keys, oldest first.
///
/// Needs `admin`. The keys themselves are never shown.
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys",
    operation_id = "listKeys", params(KeyListParams),
    responses((status = 200, body = KeyList))
)]
async fn list(context: CallContext, Params(params): Params<KeyListParams>) -> Answer {
    api::key::require_lister(&context.caller)?;
    let limit = page_limit(params.limit, PAGE_MAX)?;
    let cursor = Cursor::of(&context, "keys", "");
    let after = cursor.open(params.cursor.as_deref())?;
    let (engine, caller) = (context.engine(), &context.caller);
    let page = context.read_page(limit, |page| {
        api::key::list(engine, caller, after, page.entries)
    });
    let page = page.await?;
    Ok(plain(&KeyList {
        keys: page.entries,
        next_cursor: page.next.map(|place| cursor.seal(place)),
    }))
}

/// Revoke a key, with immediate effect.
///
/// Needs `admin`. Open feeds and long polls of the key end too. Revoking it again succeeds.
#[utoipa::path(
    delete, path = "/v1/keys/{key_id}", tag = "keys",
    operation_id = "revokeKey", responses((status = 204))
)]
async fn revoke(context: CallContext) -> Answer {
    let key: KeyId = context.id("key_id")?;
    api::key::revoke(context.engine(), &context.caller, key).await?;
    Ok(no_content())
}
