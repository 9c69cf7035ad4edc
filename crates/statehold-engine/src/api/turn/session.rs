//! Sessions that chat calls name or create.

use std::collections::BTreeSet;

use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::principal::Principal;

use super::as_client;
use crate::api::session::{self, SessionInput};
use crate::caller::Caller;
use crate::commit::call::Call;
use crate::commit::idempotency::IdempotencyKey;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{self, Act};

/// The user of a session that no user was named for.
const ANONYMOUS: &str = "anonymous";

/// The app and the user of sessions in memory.
const STATELESS: &str = "stateless";

/// A session for a chat call to create.
#[derive(Debug)]
pub struct ChatSession {
    /// The app.
    pub app: Name,
    /// The user.
    pub user: String,
    /// The agent.
    pub agent: Name,
    /// The idempotency key: repeats of the call find the session that the first one created.
    pub key: Option<IdempotencyKey>,
}

impl ChatSession {
    /// Creates the session, or finds the one that was created under the same key.
    ///
    /// # Errors
    ///
    /// If the caller may not, or the session of the key has been deleted since.
    pub async fn create(self, engine: &Engine, caller: &Caller) -> Result<SessionId, EngineError> {
        // A caller without the role must not create users.
        rights::require_role(caller, &Act::CreateSession)?;
        let input = SessionInput {
            app: self.app.to_string(),
            user: Some(self.user),
            agent: Some(self.agent.to_string()),
            ..SessionInput::default()
        };
        let call = Call {
            key: self.key,
            ..Call::by(caller.clone())
        };
        Ok(session::create(engine, &call, input).await?.view.id)
    }
}

/// Creates a session in an engine in memory, and the caller there. That engine knows no keys: its callers
/// are clients of one user, except the developer, who sees inside.
///
/// # Errors
///
/// If the caller may not.
///
/// # Panics
///
/// Never: the fixed name of the app is a name.
pub async fn stateless_session(
    engine: &Engine,
    caller: &Caller,
    agent: &Name,
) -> Result<(Caller, SessionId), EngineError> {
    rights::require_role(caller, &Act::CreateSession)?;
    let caller = if caller.principal == Principal::Local {
        caller.clone()
    } else {
        let user = engine.user_id(&caller.tenant, STATELESS).await?;
        Caller {
            principal: Principal::User(user),
            user: Some(user),
            agents: BTreeSet::new(),
            key: None,
            ..as_client(caller)
        }
    };
    let new = ChatSession {
        app: STATELESS.parse().expect("a fixed name is a name"),
        user: STATELESS.to_owned(),
        agent: agent.clone(),
        key: None,
    };
    let session = new.create(engine, &caller).await?;
    Ok((caller, session))
}

/// Deletes a session, and stops everything that runs in it.
///
/// # Errors
///
/// If the caller may not, or the store fails.
pub async fn delete_session(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<(), EngineError> {
    let call = Call::by(caller.clone());
    session::delete(engine, &call, session).await?;
    Ok(())
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
    let summary = engine.session(&as_client(caller), session).await?;
    Ok(summary.owner.agent)
}

/// The name of the user of a new session: the one that the key is bound to, else the one that the call
/// names.
///
/// # Errors
///
/// If the user of the key is gone.
pub async fn user_name(
    engine: &Engine,
    caller: &Caller,
    named: Option<&str>,
) -> Result<String, EngineError> {
    if let Some(bound) = caller.user {
        return engine.user_name(&caller.tenant, bound).await;
    }
    let named = named.filter(|name| !name.is_empty());
    Ok(named.unwrap_or(ANONYMOUS).to_owned())
}
