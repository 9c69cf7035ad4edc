//! Read access. A session that the caller may not read is reported as not found.

use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::session::{Owner, STATE_KEEPER, SessionState};
use statehold_store::SessionSummary;

use crate::caller::{Caller, PhaseScope, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights;

impl Engine {
    /// A session that the caller may read as a client, a worker, an operator or an admin.
    ///
    /// # Errors
    ///
    /// If the caller may not read it.
    pub async fn session(
        &self,
        caller: &Caller,
        session: SessionId,
    ) -> Result<SessionSummary, EngineError> {
        self.readable(caller, session).await?;
        let found = self.inner().store.session(session).await?;
        found.ok_or(EngineError::NotFound)
    }

    /// The newest durable state of the session of a task or request that the caller asks for. Workers also
    /// pass if their agents have an open task there: the read of the object itself must check whose it is.
    pub(crate) async fn readable_around(
        &self,
        caller: &Caller,
        session: SessionId,
    ) -> Result<Arc<SessionState>, EngineError> {
        require_reader(caller)?;
        let state = self.durable_state(session).await?;
        let mut tasks = state.tasks.values();
        let is_near = |owner: &Owner| {
            caller.is_open_to(owner.user) && tasks.any(|task| caller.works_for(&task.agent))
        };
        require_access(caller, &state, is_near)?;
        Ok(state)
    }

    /// The newest durable state of a session that the caller may read. A hot session needs no read from
    /// disk. The token of a phase reads the conversation only.
    pub(crate) async fn readable(
        &self,
        caller: &Caller,
        session: SessionId,
    ) -> Result<Arc<SessionState>, EngineError> {
        if caller.phase.is_some() {
            return Err(EngineError::NotFound);
        }
        self.readable_conversation(caller, session).await
    }

    /// The same, for reading the messages and what belongs to them.
    pub(crate) async fn readable_conversation(
        &self,
        caller: &Caller,
        session: SessionId,
    ) -> Result<Arc<SessionState>, EngineError> {
        match caller.only_session {
            Some(own) if own != session => return Err(EngineError::NotFound),
            Some(_) => {}
            None => require_reader(caller)?,
        }
        let state = self.durable_state(session).await?;
        require_access(caller, &state, |_| false)?;
        Ok(state)
    }

    /// A session whose trace or records the caller may read.
    pub(crate) async fn traceable(
        &self,
        caller: &Caller,
        session: SessionId,
    ) -> Result<SessionSummary, EngineError> {
        require_any(caller, &[Role::Operator, Role::Admin])?;
        let found = self.inner().store.session(session).await?;
        let summary = found.ok_or(EngineError::NotFound)?;
        let is_keeper = summary.owner.agent.as_str() == STATE_KEEPER;
        if summary.owner.tenant == caller.tenant && !is_keeper {
            Ok(summary)
        } else {
            Err(EngineError::NotFound)
        }
    }
}

/// Fails unless the caller may read a session, or `is_near` it.
fn require_access(
    caller: &Caller,
    state: &SessionState,
    is_near: impl FnOnce(&Owner) -> bool,
) -> Result<(), EngineError> {
    let owner = state.owner.as_ref().ok_or(EngineError::NotFound)?;
    let is_listed =
        owner.tenant == caller.tenant && !state.deleted && owner.agent.as_str() != STATE_KEEPER;
    let reads = caller.acts_for(owner.user)
        || caller.reads_all()
        || caller.only_session == Some(state.session)
        || rights::works_in(caller, state, owner)
        || is_near(owner);
    if is_listed && reads && is_running(state, caller.phase) {
        Ok(())
    } else {
        Err(EngineError::NotFound)
    }
}

/// Whether the phase of a read token has not ended yet. Other callers have none.
pub(crate) fn is_running(state: &SessionState, phase: Option<PhaseScope>) -> bool {
    phase.is_none_or(|phase| state.requests.contains_key(&phase.request))
}

/// Whether lists of the caller's tenant could show a session at all.
pub(crate) fn is_listed(caller: &Caller, summary: &SessionSummary) -> bool {
    summary.owner.tenant == caller.tenant
        && !summary.deleted
        && summary.owner.agent.as_str() != STATE_KEEPER
}

/// Whether a list shows a session to the caller.
pub(crate) fn is_own(caller: &Caller, summary: &SessionSummary) -> bool {
    is_listed(caller, summary) && (caller.reads_all() || caller.acts_for(summary.owner.user))
}

pub(crate) fn require_any(caller: &Caller, any_of: &[Role]) -> Result<(), EngineError> {
    if any_of.iter().any(|role| caller.has(*role)) {
        Ok(())
    } else {
        let needs = any_of.to_vec();
        Err(EngineError::Forbidden { needs })
    }
}

/// Refuses a caller without a role that reads sessions and state.
pub(crate) fn require_reader(caller: &Caller) -> Result<(), EngineError> {
    let roles = [Role::Client, Role::Worker, Role::Operator, Role::Admin];
    require_any(caller, &roles)
}

/// Refuses a caller without a role: every role may see some holds, also one that only policies name.
pub(crate) fn require_hold_reader(caller: &Caller) -> Result<(), EngineError> {
    if caller.roles.names().is_empty() {
        let needs = vec![Role::Approver];
        return Err(EngineError::Forbidden { needs });
    }
    Ok(())
}

/// Refuses a caller that may not list sessions.
///
/// # Errors
///
/// If the caller has no role that lists sessions.
pub fn require_lister(caller: &Caller) -> Result<(), EngineError> {
    require_any(caller, &[Role::Client, Role::Operator, Role::Admin])
}

/// Refuses a caller that is not an admin.
pub(crate) fn require_admin(caller: &Caller) -> Result<(), EngineError> {
    require_any(caller, &[Role::Admin])
}
