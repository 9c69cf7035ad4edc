//! The key ring of the installation.

use statehold_engine::api;
use statehold_engine::api::key_ring::KeyRingView;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, plain};
use crate::http::call::{App, CallContext};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(rotate))
}

/// List the secrets of the key ring by their names.
///
/// Needs `admin`. Secrets are never shown.
#[utoipa::path(get, path = "/v1/key-ring", tag = "key-ring",
    operation_id = "listKeyRing", responses((status = 200, body = KeyRingView)))]
async fn list(context: CallContext) -> Answer {
    let ring = api::key_ring::list(context.engine(), &context.caller)?;
    Ok(plain(&ring))
}

/// Add a secret to the key ring, and wrap the keys of all users with it.
///
/// Needs `admin`. Cursors and tokens that older secrets sealed stay valid. A repeated call adds another
/// secret.
#[utoipa::path(
    post, path = "/v1/key-ring/rotate", tag = "key-ring",
    operation_id = "rotateKeyRing", responses((status = 200, body = KeyRingView))
)]
async fn rotate(context: CallContext) -> Answer {
    let ring = api::key_ring::rotate(context.engine(), &context.caller).await?;
    Ok(plain(&ring))
}
