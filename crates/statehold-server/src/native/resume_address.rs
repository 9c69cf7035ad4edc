//! Resume addresses: the server pushes decisions for an agent to its address.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use statehold_core::name::Name;
use statehold_engine::{ADDRESS_BYTES_MAX, ResumeAddress};
use utoipa::ToSchema;

use super::{AnswerHeaders, agent_name, answer, shown};
use crate::http::call::{App, CallContext, PathIds, Payload};
use crate::http::problem::{Code, Problem};
use statehold_engine::api::json::Time;

/// The address to push decisions to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeAddressIn {
    /// A public `https://` address, or one that the configuration allows.
    #[schema(max_length = 2_048)]
    url: String,
}

/// The address that the server pushes decisions to. The secret is shown once, when the address is set.
#[derive(Serialize, ToSchema)]
#[schema(as = ResumeAddress)]
pub(crate) struct ResumeAddressOut {
    #[schema(value_type = Name)]
    agent: String,
    url: String,
    #[schema(value_type = Time)]
    set_at: String,
    /// The secret that verifies signatures, in the form of Standard Webhooks: `whsec_…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl ResumeAddressOut {
    fn of(address: ResumeAddress, secret: Option<String>) -> Self {
        Self {
            agent: address.agent.to_string(),
            url: address.url,
            set_at: Time(address.set_at).to_string(),
            secret,
        }
    }
}

/// Set the address to push an agent's decisions to. Each call creates a new secret and shows it once.
#[utoipa::path(
    put, path = "/v1/agents/{agent}/resume_address", tag = "agents",
    params(("agent" = String, Path)), request_body = ResumeAddressIn,
    responses((status = 200, body = ResumeAddressOut))
)]
pub(crate) async fn set(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    body: Payload<ResumeAddressIn>,
) -> Result<Response, Problem> {
    let agent: Name = ids.id("agent")?;
    agent_name(agent.as_str(), "agent")?;
    statehold_engine::require_address_right(&asked.caller, &agent)?;
    let url = body.value.url;
    let refused = |why: String| Problem::new(Code::AddressRefused, why).with("path", "url");
    if url.len() > ADDRESS_BYTES_MAX {
        return Err(refused("an address has at most 2048 bytes".to_owned()));
    }
    if let Err(why) = app.options.push_guard.parse(&url) {
        return Err(refused(why.to_string()));
    }
    let set = app.engine.set_resume_address(&asked.caller, &agent, url);
    let (address, secret) = set.await?;
    let out = ResumeAddressOut::of(address, Some(secret.reveal()));
    Ok(shown(&out, &AnswerHeaders::default()))
}

/// Read the address that an agent's decisions are pushed to.
#[utoipa::path(
    get, path = "/v1/agents/{agent}/resume_address", tag = "agents",
    params(("agent" = String, Path)), responses((status = 200, body = ResumeAddressOut))
)]
pub(crate) async fn read(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let agent: Name = ids.id("agent")?;
    let address = app.engine.resume_address(&asked.caller, &agent)?;
    let out = ResumeAddressOut::of(address, None);
    Ok(shown(&out, &AnswerHeaders::default()))
}

/// Remove the address: the server pushes no more decisions.
#[utoipa::path(
    delete, path = "/v1/agents/{agent}/resume_address", tag = "agents",
    params(("agent" = String, Path)), responses((status = 204))
)]
pub(crate) async fn remove(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let agent: Name = ids.id("agent")?;
    let removed = app.engine.remove_resume_address(&asked.caller, &agent);
    removed.await?;
    Ok(answer(
        StatusCode::NO_CONTENT,
        Vec::new(),
        &AnswerHeaders::default(),
    ))
}
