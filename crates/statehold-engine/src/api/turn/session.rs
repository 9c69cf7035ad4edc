//! Sessions that chat calls name, and sessions in memory for calls without one.

use std::collections::BTreeSet;

use statehold_core::ids::{SessionId, UserId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::record::{ErasedPayloads, Event};
use statehold_core::session::SessionState;

use super::as_client;
use crate::api::session::{self, SessionInput};
use crate::caller::Caller;
use crate::commit::call::Call;
use crate::commit::idempotency::IdempotencyKey;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{self, Act};

/// How many sessions in a row, each in place of the one before, are looked at.
const REPLACED_MAX: usize = 64;
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
            account: caller.key.or(caller.account),
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

/// A session that a chat call names.
#[derive(Debug, Clone)]
pub struct NamedSession {
    /// The agent that answers when the client names none.
    pub agent: Name,
    /// The app.
    pub app: Name,
    /// The user.
    pub user: UserId,
    /// The name of its user, if its lifetime has ended. Such a session takes no turn; nobody closed or deleted it.
    pub expired_of: Option<String>,
    /// Whether somebody has closed it.
    pub is_closed: bool,
}

/// The session that a chat call names.
///
/// # Errors
///
/// If the caller may not read it as a client.
pub async fn named_session(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<NamedSession, EngineError> {
    let caller = as_client(caller);
    let state = engine.readable(&caller, session).await?;
    let owner = state.owner.as_ref().ok_or(EngineError::NotFound)?;
    let has_expired = if state.closed {
        was_ended_by_time(engine, &state).await?
    } else {
        state.is_expired(engine.now())
    };
    let expired_of = if has_expired && caller.acts_for(owner.user) {
        Some(engine.user_name(&owner.tenant, owner.user).await?)
    } else {
        None
    };
    Ok(NamedSession {
        agent: owner.agent.clone(),
        app: owner.app.clone(),
        user: owner.user,
        expired_of,
        is_closed: state.closed && !has_expired,
    })
}

/// The name of the user of a session that a chat call names.
///
/// # Errors
///
/// If the store fails.
pub async fn user_of_session(
    engine: &Engine,
    caller: &Caller,
    named: &NamedSession,
) -> Result<String, EngineError> {
    engine.user_name(&caller.tenant, named.user).await
}

/// The call that begins a session in place of an expired one. For a day, the calls of one principal get the same
/// session: a client may go on sending the old id.
///
/// # Errors
///
/// If the store fails.
pub async fn replacing_call(
    engine: &Engine,
    caller: &Caller,
    mut expired: SessionId,
) -> Result<Call, EngineError> {
    for _ in 0..REPLACED_MAX {
        // No key of a caller has a blank in it.
        let text = format!("replaces {expired}");
        let key = IdempotencyKey::new(&caller.tenant, caller.principal, &text, &[]);
        let call = Call {
            key: Some(key),
            ..Call::by(caller.clone())
        };
        let Some(successor) = engine.session_of_key(key.key).await? else {
            return Ok(call);
        };
        match named_session(engine, caller, successor).await {
            // The session in its place has expired too.
            Ok(named) if named.expired_of.is_some() => expired = successor,
            Ok(_) => return Ok(call),
            Err(EngineError::NotFound) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(Call::by(caller.clone()))
}

/// Whether the last record of a closed session is the one of its expiry, and closed it. A session that somebody has
/// closed may expire later: the record of that only erases.
async fn was_ended_by_time(engine: &Engine, state: &SessionState) -> Result<bool, EngineError> {
    let last = engine.record_head(state.session, state.revision).await?;
    let events = last.map(|record| record.content.events).unwrap_or_default();
    let erases = |event: &Event| {
        let hidden = ErasedPayloads::Hidden;
        matches!(event, Event::PayloadsErased { payloads } if *payloads == hidden)
    };
    let closes = |event: &Event| matches!(event, Event::SessionClosed);
    Ok(events.iter().any(erases) && events.iter().any(closes))
}
