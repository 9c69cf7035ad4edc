//! The matrix of rights: who may send which command to which session. Pure, in one place.
//!
//! A right that the caller lacks whatever the object is `Forbidden`; an object that is out of reach is
//! `NotFound`, exactly as if it were not there.

use statehold_core::command::{Command, StatePatch};
use statehold_core::hold::DecideBy;
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::scope::Scope;
use statehold_core::session::SessionState;

use crate::caller::{Caller, Role};
use crate::error::EngineError;

/// Lets a command through, or says why not.
pub(crate) fn require(
    caller: &Caller,
    state: &SessionState,
    command: &Command,
) -> Result<(), EngineError> {
    require_role(caller, command)?;
    require_reach(caller, state, command)?;
    if may(caller, state, command) {
        Ok(())
    } else {
        Err(EngineError::NotFound)
    }
}

/// What the caller must hold whatever the session is: one of some roles, and more for `app:` keys.
pub(crate) fn require_role(caller: &Caller, command: &Command) -> Result<(), EngineError> {
    let any_of: &[Role] = match command {
        Command::PatchSession { .. }
        | Command::CloseSession { .. }
        | Command::DeleteSession
        | Command::CloseTask { .. }
        | Command::PutState { by: None, .. } => &[Role::Client, Role::Admin],
        Command::CancelRequest { .. } | Command::CancelTask { .. } => {
            &[Role::Client, Role::Worker, Role::Operator, Role::Admin]
        }
        Command::StartRequest(start) if start.parent.is_none() && start.lease_ttl_ms.is_none() => {
            &[Role::Client]
        }
        Command::CreateSession { .. } => &[Role::Client],
        Command::StartRequest(_)
        | Command::ClaimRequest { .. }
        | Command::ReleaseLease { .. }
        | Command::AppendItems { .. }
        | Command::CompleteRequest { .. }
        | Command::OpenHold { .. }
        | Command::FailRequest { .. }
        | Command::PutState { by: Some(_), .. } => &[Role::Worker],
        // A policy may name a role that only it knows.
        Command::DecideHold { .. } if caller.roles.has_own() => return Ok(()),
        Command::DecideHold { .. } => &[Role::Approver, Role::Client],
        Command::Fork { .. } | Command::Rewind { .. } => &[Role::Operator, Role::Admin],
        // Only timers send these, as the server itself.
        Command::LapseLease { .. } | Command::ExpireHold { .. } | Command::ExpireSession => {
            return Err(EngineError::NotFound);
        }
    };
    if !any_of.iter().any(|role| caller.has(*role)) {
        return Err(EngineError::Forbidden { needs: any_of[0] });
    }
    if let Command::StartRequest(start) = command
        && start.lease_ttl_ms.is_some()
        && !caller.works_for(&start.agent)
    {
        let agent = start.agent.to_string();
        return Err(EngineError::WrongAgent { agent });
    }
    match command {
        Command::CreateSession { state: patch, .. }
        | Command::AppendItems { state: patch, .. }
        | Command::CompleteRequest { state: patch, .. }
        | Command::PutState { patch, .. } => require_scopes(caller, patch),
        Command::StartRequest(start) => require_scopes(caller, &start.state),
        _ => Ok(()),
    }
}

/// Whether the session is in reach for this command.
fn may(caller: &Caller, state: &SessionState, command: &Command) -> bool {
    let Some(owner) = &state.owner else {
        return matches!(command, Command::CreateSession { .. });
    };
    let owns = caller.acts_for(owner.user);
    // A worker that is bound to a user works in that user's sessions only.
    let is_near = caller.user.is_none_or(|bound| bound == owner.user);
    let works_on = |request: RequestId| {
        let task = state.task_of(request);
        // A request that has ended is refused by the core, with the reason.
        let works = task.is_none_or(|task| caller.works_for(&task.agent));
        is_near && works && caller.has(Role::Worker)
    };
    match command {
        Command::CreateSession { .. } => owns,
        Command::PatchSession { .. }
        | Command::CloseSession { .. }
        | Command::DeleteSession
        | Command::CloseTask { .. }
        | Command::PutState { by: None, .. } => owns || caller.has(Role::Admin),
        Command::CancelRequest { request } => owns || caller.reads_all() || works_on(*request),
        Command::CancelTask { task } => {
            owns || caller.reads_all() || is_near && works_for_task(caller, state, *task)
        }
        Command::StartRequest(start) => match start.parent {
            Some(parent) => works_on(parent.request),
            None if start.lease_ttl_ms.is_some() => is_near,
            None => owns,
        },
        Command::ClaimRequest { request, .. } => works_on(*request),
        Command::ReleaseLease { by }
        | Command::AppendItems { by, .. }
        | Command::CompleteRequest { by, .. }
        | Command::OpenHold { by, .. }
        | Command::FailRequest { by, .. }
        | Command::PutState { by: Some(by), .. } => works_on(by.request),
        Command::DecideHold { hold, .. } => {
            let policy = state.holds.get(hold).map(|hold| &hold.decide_by);
            let by_role = matches!(policy, Some(DecideBy::Role(role))
                if caller.roles.names().contains(role));
            owns || by_role || caller.has(Role::Approver)
        }
        Command::Fork { .. } | Command::Rewind { .. } => true,
        Command::LapseLease { .. } | Command::ExpireHold { .. } | Command::ExpireSession => false,
    }
}

/// The request that lets a worker send a command, unless something else lets it.
pub(crate) fn worked_on(
    caller: &Caller,
    state: &SessionState,
    command: &Command,
) -> Option<RequestId> {
    let owns = |user| caller.acts_for(user) || caller.reads_all();
    match command {
        Command::CancelRequest { request } => {
            let owner = state.owner.as_ref();
            (!owner.is_some_and(|owner| owns(owner.user))).then_some(*request)
        }
        Command::StartRequest(start) => start.parent.map(|parent| parent.request),
        Command::ClaimRequest { request, .. } => Some(*request),
        Command::ReleaseLease { by }
        | Command::AppendItems { by, .. }
        | Command::CompleteRequest { by, .. }
        | Command::OpenHold { by, .. }
        | Command::FailRequest { by, .. } => Some(by.request),
        Command::PutState { by, .. } => by.map(|by| by.request),
        _ => None,
    }
}

/// Sessions of another tenant, and deleted ones, are not there.
fn require_reach(
    caller: &Caller,
    state: &SessionState,
    command: &Command,
) -> Result<(), EngineError> {
    match &state.owner {
        Some(owner) if owner.tenant == caller.tenant => Ok(()),
        None if matches!(command, Command::CreateSession { .. }) => Ok(()),
        Some(_) | None => Err(EngineError::NotFound),
    }
}

/// `app:` values are seen by every user of the app: only an admin writes them.
fn require_scopes(caller: &Caller, patch: &StatePatch) -> Result<(), EngineError> {
    let mut keys = patch.set.iter().map(|set| &set.key).chain(&patch.delete);
    let writes_app = keys.any(|key| key.scope() == Scope::App);
    if writes_app && !caller.has(Role::Admin) {
        return Err(EngineError::Forbidden { needs: Role::Admin });
    }
    Ok(())
}

fn works_for_task(caller: &Caller, state: &SessionState, task: TaskId) -> bool {
    let open = state.tasks.get(&task);
    open.is_some_and(|task| caller.works_for(&task.agent))
}
