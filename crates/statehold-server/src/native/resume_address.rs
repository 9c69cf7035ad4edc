//! Resume addresses: the server pushes decisions for an agent to its address.

use statehold_core::name::Name;
use statehold_engine::api;
use statehold_engine::api::address::{AddressInput, AddressView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, no_content, plain};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(set, read, remove))
}

/// Set the address to push an agent's decisions to.
///
/// Each call creates a new secret, with which pushed calls are signed, and shows it once. Needs a `worker`
/// key for that agent that is not bound to a user, or `admin`.
#[utoipa::path(
    put, path = "/v1/agents/{agent}/resume_address", tag = "agents",
    operation_id = "setResumeAddress", request_body = AddressInput,
    responses((status = 200, body = AddressView))
)]
async fn set(context: CallContext, body: Payload<AddressInput>) -> Answer {
    let agent: Name = context.id("agent")?;
    let check = |url: &str| context.app.options.push_guard.parse(url).map(drop);
    let caller = &context.caller;
    let set = api::address::set(context.engine(), caller, &agent, body.value, check);
    Ok(plain(&set.await?))
}

/// Read the address that an agent's decisions are pushed to.
///
/// The answer has no secret: it was shown when the address was set.
#[utoipa::path(
    get, path = "/v1/agents/{agent}/resume_address", tag = "agents",
    operation_id = "getResumeAddress",
    responses((status = 200, body = AddressView))
)]
async fn read(context: CallContext) -> Answer {
    let agent: Name = context.id("agent")?;
    let address = api::address::read(context.engine(), &context.caller, &agent)?;
    Ok(plain(&address))
}

/// Remove the address: the server pushes no more decisions.
///
/// Workers hear of decisions when they claim, or from feeds.
#[utoipa::path(
    delete, path = "/v1/agents/{agent}/resume_address", tag = "agents",
    operation_id = "deleteResumeAddress", responses((status = 204))
)]
async fn remove(context: CallContext) -> Answer {
    let agent: Name = context.id("agent")?;
    api::address::remove(context.engine(), &context.caller, &agent).await?;
    Ok(no_content())
}
