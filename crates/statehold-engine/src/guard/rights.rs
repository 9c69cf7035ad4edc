//! The matrix of rights: which caller may do which act in which session. Pure functions, in one place.
//!
//! `Forbidden` means that the caller lacks a role, independent of the object. `NotFound` means that the
//! caller may not reach the object, exactly as if it did not exist.

use statehold_core::command::{Command, Named, StatePatch};
use statehold_core::hold::{DecideBy, Hold};
use statehold_core::ids::{HoldId, RequestId, TaskId};
use statehold_core::item::{NewItem, Role as ItemRole};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, EndedRequest};
use statehold_core::request::LiveRequest;
use statehold_core::scope::Scope;
use statehold_core::session::{Owner, STATE_KEEPER, SessionState};

use crate::caller::{Caller, Role};
use crate::error::EngineError;
use crate::guard::access::require_any;

/// An act that needs a right, with the objects that the right depends on. Every command is an act. A use
/// case checks the right before it validates anything else in the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Create a session.
    CreateSession,
    /// Change, close or delete a session, close a task, write state as a client.
    ManageSession,
    /// Write `app:` or `user:` values directly, through the keeper session behind them.
    WriteShared,
    /// Start a root request and leave it to a worker.
    Start,
    /// Start a root request and lease it at once for this agent; None if the agent is not known yet.
    StartLeased(Option<Name>),
    /// Write a turn that ran outside of the server.
    Record,
    /// Start a child request under the fence of its parent; with a lease for this agent, if given.
    StartBelow(RequestId, Option<Name>),
    /// Claim a request, or write for it under its fence.
    WorkOn(RequestId),
    /// Cancel a request.
    CancelRequest(RequestId),
    /// Cancel a task.
    CancelTask(TaskId),
    /// Decide a hold.
    Decide(HoldId),
    /// Fork or rewind a session.
    ChangeHistory,
    /// Settle a deadline. Only the server does this.
    Settle,
}

impl Act {
    /// The act of a command.
    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::CreateSession { .. } => Self::CreateSession,
            Command::PatchSession { .. }
            | Command::CloseSession { .. }
            | Command::DeleteSession
            | Command::CloseTask { .. }
            | Command::PutState { by: None, .. } => Self::ManageSession,
            Command::StartRequest(start) => {
                let leased = start.lease_ttl_ms.map(|_| start.agent.clone());
                match (start.parent, leased) {
                    (Some(parent), leased) => Self::StartBelow(parent.request, leased),
                    (None, None) => Self::Start,
                    (None, leased) => Self::StartLeased(leased),
                }
            }
            Command::RecordTurn(_) => Self::Record,
            Command::ClaimRequest { request, .. } => Self::WorkOn(*request),
            Command::ReleaseLease { by }
            | Command::AppendItems { by, .. }
            | Command::CompleteRequest { by, .. }
            | Command::OpenHold { by, .. }
            | Command::FailRequest { by, .. }
            | Command::PutState { by: Some(by), .. } => Self::WorkOn(by.request),
            Command::CancelRequest { request } => Self::CancelRequest(*request),
            Command::CancelTask { task } => Self::CancelTask(*task),
            Command::DecideHold { hold, .. } => Self::Decide(*hold),
            Command::Fork { .. } | Command::Rewind { .. } => Self::ChangeHistory,
            Command::LapseLease { .. }
            | Command::RaiseFence { .. }
            | Command::ExpireHold { .. }
            | Command::ExpireSession
            | Command::EraseHidden => Self::Settle,
        }
    }

    /// The objects that the act names.
    pub(crate) fn named(&self) -> Named {
        let mut named = Named::default();
        match self {
            Self::StartBelow(request, _) | Self::WorkOn(request) | Self::CancelRequest(request) => {
                named.request = Some(*request);
            }
            Self::CancelTask(task) => named.task = Some(*task),
            Self::Decide(hold) => named.hold = Some(*hold),
            Self::CreateSession
            | Self::ManageSession
            | Self::WriteShared
            | Self::Start
            | Self::StartLeased(_)
            | Self::Record
            | Self::ChangeHistory
            | Self::Settle => {}
        }
        named
    }
}

/// The finished objects that an act or a command names. Those of other sessions count as missing.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub(crate) request: Option<EndedRequest>,
    /// The agent of that request, for a caller who is bound to agents.
    pub(crate) agent: Option<Name>,
    pub(crate) task: Option<TaskId>,
    /// In a box: few commands name one, and it is large.
    pub(crate) hold: Option<Box<ClosedHold>>,
}

/// Fails unless the caller has the right for an act in this session.
pub(crate) fn require(
    caller: &Caller,
    state: &SessionState,
    act: &Act,
    finished: &Finished,
) -> Result<(), EngineError> {
    require_role(caller, act)?;
    require_reach(caller, state, act)?;
    // The deciders of a decided hold may repeat their decision and hear that it is taken.
    let closed = finished.hold.as_ref().filter(|_| caller.roles.has_own());
    let closed = closed.map(|closed| &closed.hold);
    if may_act(caller, state, act, closed) && may_know_end(caller, state, act, finished) {
        Ok(())
    } else {
        Err(EngineError::NotFound)
    }
}

/// Fails unless the caller has a role that the command needs in any session. Writes of `app:` keys also
/// need the admin role. A confined worker writes no items of the user.
pub(crate) fn require_command_role(
    caller: &Caller,
    act: &Act,
    command: &Command,
) -> Result<(), EngineError> {
    require_role(caller, act)?;
    if let Some(patch) = command.state() {
        require_scopes(caller, patch)?;
    }
    require_own_items(caller, command.items())
}

/// Fails unless the caller has a role that the act needs in any session.
pub(crate) fn require_role(caller: &Caller, act: &Act) -> Result<(), EngineError> {
    let any_of: &[Role] = match act {
        Act::ManageSession | Act::WriteShared => &[Role::Client, Role::Admin],
        Act::CancelRequest(_) | Act::CancelTask(_) => {
            &[Role::Client, Role::Worker, Role::Operator, Role::Admin]
        }
        Act::CreateSession | Act::Start => &[Role::Client],
        Act::Record => &[Role::Client, Role::Worker, Role::Admin],
        Act::StartLeased(_) | Act::StartBelow(..) | Act::WorkOn(_) => &[Role::Worker],
        Act::Decide(_) => return require_decider_role(caller),
        Act::ChangeHistory => &[Role::Operator, Role::Admin],
        Act::Settle => return Err(EngineError::NotFound),
    };
    require_any(caller, any_of)?;
    match act {
        Act::StartLeased(Some(agent)) | Act::StartBelow(_, Some(agent))
            if !caller.works_for(agent) =>
        {
            let agent = agent.to_string();
            Err(EngineError::WrongAgent { agent })
        }
        _ => Ok(()),
    }
}

/// Fails unless the caller has a role that decides holds. A policy may name a custom role.
pub(crate) fn require_decider_role(caller: &Caller) -> Result<(), EngineError> {
    if caller.roles.has_own() {
        return Ok(());
    }
    require_any(caller, &[Role::Approver, Role::Client])
}

/// Whether the caller may reach the session for this act.
fn may_act(caller: &Caller, state: &SessionState, act: &Act, closed: Option<&Hold>) -> bool {
    let Some(owner) = &state.owner else {
        return *act == Act::CreateSession;
    };
    let owns = caller.acts_for(owner.user);
    // A worker bound to a user works only in that user's sessions.
    let is_open = caller.is_open_to(owner.user);
    let works_on = |request: RequestId| {
        let task = state.task_of(request);
        // Let the core refuse a request that has ended: it gives the reason.
        let works = task.is_none_or(|task| caller.works_for(&task.agent));
        is_open && works && caller.has(Role::Worker)
    };
    match act {
        Act::CreateSession | Act::Start => owns,
        Act::ManageSession | Act::WriteShared => owns || caller.has(Role::Admin),
        // A confined worker starts at the root of sessions of its own agents only.
        Act::StartLeased(_) => is_open && (!caller.is_confined() || caller.works_for(&owner.agent)),
        Act::Record => {
            let is_worker = is_open && caller.works_for(&owner.agent);
            owns || is_worker || caller.has(Role::Admin)
        }
        Act::StartBelow(request, _) | Act::WorkOn(request) => works_on(*request),
        Act::CancelRequest(request) => owns || caller.reads_all() || works_on(*request),
        Act::CancelTask(task) => {
            owns || caller.reads_all() || is_open && works_for_task(caller, state, *task)
        }
        Act::Decide(hold) => {
            let policy = state.holds.get(hold).or(closed).map(|hold| &hold.decide_by);
            let by_role = matches!(policy, Some(DecideBy::Role(role))
                if caller.roles.names().contains(role));
            owns || by_role || caller.has(Role::Approver)
        }
        Act::ChangeHistory => true,
        Act::Settle => false,
    }
}

/// Whether the caller may learn that the request of the act has ended. A worker who is bound to agents may
/// if one of them worked on it, unless the caller has the right in another way.
fn may_know_end(caller: &Caller, state: &SessionState, act: &Act, finished: &Finished) -> bool {
    let owns = |user| caller.acts_for(user) || caller.reads_all();
    let worked_on = match act {
        Act::CancelRequest(request) => {
            let owner = state.owner.as_ref();
            (!owner.is_some_and(|owner| owns(owner.user))).then_some(request)
        }
        Act::StartBelow(request, _) | Act::WorkOn(request) => Some(request),
        _ => None,
    };
    let has_ended = worked_on.is_some_and(|request| !state.requests.contains_key(request));
    let works_for = |agent: &Name| caller.works_for(agent);
    !has_ended || caller.agents.is_empty() || finished.agent.as_ref().is_some_and(works_for)
}

/// Sessions of another tenant are reported as not found. The core refuses deleted sessions.
fn require_reach(caller: &Caller, state: &SessionState, act: &Act) -> Result<(), EngineError> {
    match &state.owner {
        // Only direct writes of shared state reach a keeper session.
        Some(owner) if owner.agent.as_str() == STATE_KEEPER && *act != Act::WriteShared => {
            Err(EngineError::NotFound)
        }
        Some(owner) if owner.tenant == caller.tenant => Ok(()),
        None if *act == Act::CreateSession => Ok(()),
        Some(_) | None => Err(EngineError::NotFound),
    }
}

/// Every user of the app reads `app:` values, so only an admin writes them.
pub(crate) fn require_scopes(caller: &Caller, patch: &StatePatch) -> Result<(), EngineError> {
    let mut keys = patch.set.iter().map(|set| &set.key).chain(&patch.delete);
    let writes_app = keys.any(|key| key.scope() == Scope::App);
    if writes_app && !caller.has(Role::Admin) {
        return Err(EngineError::Forbidden {
            needs: vec![Role::Admin],
        });
    }
    Ok(())
}

/// The input of a request is the only item of the user that a confined worker writes.
pub(crate) fn require_own_items(caller: &Caller, items: &[NewItem]) -> Result<(), EngineError> {
    let is_users = |item: &NewItem| item.role == Some(ItemRole::User);
    match items.iter().position(is_users) {
        Some(index) if caller.is_confined() => Err(EngineError::ItemMalformed {
            path: format!("items[{index}]"),
            what: "a worker key bound to agents writes no messages with the role `user`".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Whether a worker reads a session as a whole. A confined worker reads the sessions of its own agents,
/// and others while it holds the lease of a request of its agents there.
/// Whether the caller works for the agent of a session.
pub(crate) fn works_for_session(caller: &Caller, owner: &Owner) -> bool {
    caller.is_open_to(owner.user)
        && caller.has(Role::Worker)
        && (!caller.is_confined() || caller.works_for(&owner.agent))
}

pub(crate) fn works_in(caller: &Caller, state: &SessionState, owner: &Owner) -> bool {
    let holds_lease = |live: &LiveRequest| {
        let task = state.tasks.get(&live.task);
        live.lease
            .is_some_and(|lease| lease.worker == caller.principal)
            && task.is_some_and(|task| caller.works_for(&task.agent))
    };
    caller.is_open_to(owner.user)
        && caller.has(Role::Worker)
        && (!caller.is_confined()
            || caller.works_for(&owner.agent)
            || state.requests.values().any(holds_lease))
}

fn works_for_task(caller: &Caller, state: &SessionState, task: TaskId) -> bool {
    let open = state.tasks.get(&task);
    open.is_some_and(|task| caller.works_for(&task.agent))
}
