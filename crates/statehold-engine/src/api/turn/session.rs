//! Sessions that chat calls name, and sessions in memory for calls without one.

use std::collections::BTreeSet;

use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::principal::Principal;

use super::as_client;
use crate::api::session::{self, SessionInput};
use crate::caller::Caller;
use crate::commit::call::Call;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{self, Act};

/// The app and the user of sessions in memory.
const STATELESS: &str = "stateless";

/// Creates a session in an engine in memory, and the caller there. That engine knows no keys: its callers
/// are clients of one user, except the developer, who sees inside.
///
/// # Errors
///
/// If the caller may not.
pub async fn stateless_session(
    engine: &Engine,
    caller: &Caller,
    agent: &Name,
) -> Result<(Caller, SessionId), EngineError> {
    // A caller without the role must not create users.
    rights::require_role(caller, &Act::CreateSession)?;
    let caller = if caller.principal == Principal::Local {
        caller.clone()
    } else {
        let user = engine.user_id(&caller.tenant, STATELESS).await?;
        Caller {
            principal: Principal::User(user),
            user: Some(user),
            new_user: None,
            agents: BTreeSet::new(),
            key: None,
            ..as_client(caller)
        }
    };
    let new = SessionInput {
        app: STATELESS.to_owned(),
        user: Some(STATELESS.to_owned()),
        agent: Some(agent.to_string()),
        ..SessionInput::default()
    };
    let created = session::create(engine, &Call::by(caller.clone()), new).await?;
    Ok((caller, created.view.id))
}

/// The agent that answers in a session when a client names none.
///
/// # Errors
///
/// If the caller may not read the session as a client.
pub async fn agent_of_session(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<Name, EngineError> {
    let caller = as_client(caller);
    let state = engine.readable(&caller, session).await?;
    let owner = state.owner.as_ref().ok_or(EngineError::NotFound)?;
    Ok(owner.agent.clone())
}
