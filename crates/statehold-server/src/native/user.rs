//! Users: erasing one.

use statehold_engine::api;
use statehold_engine::api::user::ErasureReceipt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, plain};
use crate::http::call::{App, CallContext};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(erase))
}

/// Erase a user.
///
/// It revokes the keys that are bound to them, deletes their sessions and values, and destroys the key under
/// which all of it is encrypted. Needs `admin`. The answer is the receipt of the audit stream. A call that
/// was interrupted is made again.
#[utoipa::path(
    post, path = "/v1/users/{user}/erase", tag = "users",
    operation_id = "eraseUser",
    responses((status = 200, body = ErasureReceipt))
)]
async fn erase(context: CallContext) -> Answer {
    let user = context.path_text("user");
    let receipt = api::user::erase(context.engine(), &context.caller, user).await?;
    Ok(plain(&receipt))
}
