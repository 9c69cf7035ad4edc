//! Resume addresses: the server pushes the decisions for an agent to its address.

use serde::{Deserialize, Serialize};
use statehold_core::name::Name;
use statehold_core::tenant::TenantEvent;
use statehold_store::{AddressChange, ResumeAddress, TenantChange};
use utoipa::ToSchema;

use super::json::Time;
use super::request::agent_name;
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_any;

/// The longest address, in bytes.
const URL_BYTES_MAX: usize = 2_048;

/// The address to push decisions to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResumeAddressIn)]
pub struct AddressInput {
    /// A public `https://` address, or one that the configuration allows.
    #[schema(max_length = 2_048)]
    pub url: String,
}

/// The address that the server pushes decisions to. The secret is shown once, when the address is set.
#[derive(Serialize, ToSchema)]
#[schema(as = ResumeAddress)]
#[expect(missing_docs, reason = "fields are named as the API names them")]
pub struct AddressView {
    pub agent: Name,
    pub url: String,
    pub set_at: Time,
    /// The secret that verifies signatures, in the form of Standard Webhooks: `whsec_…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl AddressView {
    fn of(address: ResumeAddress, secret: Option<String>) -> Self {
        Self {
            agent: address.agent,
            url: address.url,
            set_at: address.set_at.into(),
            secret,
        }
    }
}

/// Sets the address of an agent, with a new secret. `check` says why decisions must not be pushed to a URL;
/// the pusher asks again before each delivery.
///
/// # Errors
///
/// If the caller may not, the URL is refused, or too many agents have an address.
pub async fn set<E: std::fmt::Display>(
    engine: &Engine,
    caller: &Caller,
    agent: &Name,
    input: AddressInput,
    check: impl FnOnce(&str) -> Result<(), E>,
) -> Result<AddressView, EngineError> {
    require_right(caller, agent)?;
    agent_name(agent.as_str())?;
    if input.url.len() > URL_BYTES_MAX {
        let why = "an address has at most 2048 bytes".to_owned();
        return Err(EngineError::AddressRefused(why));
    }
    check(&input.url).map_err(|why| EngineError::AddressRefused(why.to_string()))?;
    let (address, secret) = engine.set_address(caller, agent, input.url).await?;
    Ok(AddressView::of(address, Some(secret.reveal())))
}

/// Reads the address of an agent, without its secret.
///
/// # Errors
///
/// If the caller may not, or the agent has none.
pub fn read(engine: &Engine, caller: &Caller, agent: &Name) -> Result<AddressView, EngineError> {
    require_right(caller, agent)?;
    let found = engine.address_of(&caller.tenant, agent);
    let address = found.ok_or(EngineError::NotFound)?;
    Ok(AddressView::of(address, None))
}

/// Removes the address of an agent: nothing more is pushed.
///
/// # Errors
///
/// If the caller may not, or the agent has none.
pub async fn remove(engine: &Engine, caller: &Caller, agent: &Name) -> Result<(), EngineError> {
    require_right(caller, agent)?;
    let _turn = engine.inner().addresses_turn.lock().await;
    let found = engine.address_of(&caller.tenant, agent);
    found.ok_or(EngineError::NotFound)?;
    let event = TenantEvent::ResumeAddressRemoved {
        agent: agent.clone(),
    };
    let change = AddressChange::Removed(agent.clone());
    engine
        .append_audit(caller, event, Some(TenantChange::Address(change)))
        .await?;
    Ok(())
}

fn require_right(caller: &Caller, agent: &Name) -> Result<(), EngineError> {
    require_any(caller, &[Role::Worker, Role::Admin])?;
    // A worker bound to one user must not receive requests of other users.
    let works = caller.works_for(agent) && caller.user.is_none();
    if works || caller.has(Role::Admin) {
        Ok(())
    } else {
        let agent = agent.to_string();
        Err(EngineError::WrongAgent { agent })
    }
}
