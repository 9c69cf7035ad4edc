//! Starting, claiming, feeding and ending requests.

use std::collections::BTreeSet;

use super::draft::{Draft, require_limit};
use super::history::Batch;
use super::{hold, state};
use crate::command::{Fenced, Output, RecordTurn, Rejection, StartRequest, StatePatch};
use crate::digest::BodyRef;
use crate::ids::{RequestId, TaskId};
use crate::item::NewItem;
use crate::limits;
use crate::memory::AgentPath;
use crate::mutant::{self, Mutant};
use crate::name::Name;
use crate::record::Event;
use crate::request::{Continuation, FENCE_RAISE, LiveStatus, RequestOutcome};
use crate::task::{CloseOn, ParentLink, TaskStatus};

pub(super) fn start(draft: &mut Draft<'_>, start: &StartRequest) -> Result<(), Rejection> {
    let has_extras = !start.items.is_empty() || !start.state.is_empty() || start.output.is_some();
    if has_extras && start.lease_ttl_ms.is_none() && !mutant::is_on(Mutant::AnyoneAppends) {
        return Err(Rejection::LeaseNeeded);
    }
    let parent = match start.parent {
        Some(by) => Some(require_parent(draft, by)?),
        None => None,
    };
    let task = pick_task(draft, start, parent)?;
    require_path(draft, task)?;
    let continues = match start.continues {
        Some(request) => Some(require_continued(draft, task, request)?),
        None => None,
    };
    let request = RequestId::from_uuid(draft.fresh_uuid());
    let number = draft.state.requests_started + 1;
    let parent = parent.map(|link| link.request);
    draft.emit(Event::RequestStarted {
        request,
        number,
        task,
        parent,
        key_owner: draft.ctx.actor.key_owner,
        chat: start.chat,
        continues,
    });
    draft.unsettle(request);
    if let Some(parent) = parent {
        draft.unsettle(parent);
    }
    if let Some(ttl_ms) = start.lease_ttl_ms {
        lease(draft, request, ttl_ms)?;
    }
    let mut batch = Batch::new(draft, request)?;
    batch.push_input(draft, start)?;
    batch.push_all(draft, &start.items)?;
    if let Some(output) = &start.output {
        batch.push_output(draft, output)?;
    }
    batch.write(draft);
    state::write(draft, &start.state, Some(request))?;
    if start.output.is_some() {
        draft.end_request(request, RequestOutcome::Completed, None);
    }
    Ok(())
}

/// Writes a turn that ran outside of the server. Its request is leased to the writer and completed at once, like
/// a whole turn of a worker.
pub(super) fn record_turn(draft: &mut Draft<'_>, turn: &RecordTurn) -> Result<(), Rejection> {
    let task = idle_or_new_task(draft, (&turn.agent, CloseOn::Never), None)?;
    require_path(draft, task)?;
    let fresh = RequestId::from_uuid(draft.fresh_uuid());
    let request = turn.request.unwrap_or(fresh);
    draft.emit(Event::RequestStarted {
        request,
        number: draft.state.requests_started + 1,
        task,
        parent: None,
        key_owner: draft.ctx.actor.key_owner,
        chat: None,
        continues: None,
    });
    draft.unsettle(request);
    lease(draft, request, *limits::LEASE_MS.start())?;
    let mut batch = Batch::new(draft, request)?;
    batch.push_recorded(draft, &turn.items)?;
    batch.write(draft);
    state::write(draft, &turn.state, Some(request))?;
    draft.end_request(request, RequestOutcome::Completed, None);
    Ok(())
}

/// A request goes on from the newest request of its task, once, and only if that failed.
fn require_continued(
    draft: &Draft<'_>,
    task: TaskId,
    request: RequestId,
) -> Result<Continuation, Rejection> {
    let failed = draft.state.tasks.get(&task).and_then(|task| task.failed);
    let continued = draft.ctx.loaded.continued;
    continued
        .filter(|continued| continued.request == request && failed == Some(request))
        .ok_or(Rejection::NotFound)
}

/// An agent may ask another only under its own lease, and not too deep or too often.
fn require_parent(draft: &Draft<'_>, by: Fenced) -> Result<ParentLink, Rejection> {
    let live = draft.require_fence(by)?;
    require_limit(
        "live child requests",
        live.children.len() + 1,
        limits::LIVE_CHILDREN_MAX,
    )?;
    require_limit(
        "depth of calls",
        usize::from(live.depth) + 1,
        usize::from(limits::DEPTH_MAX),
    )?;
    Ok(ParentLink {
        task: live.task,
        request: live.id,
    })
}

/// Picks the task of a new request: the named one, the agent's idle one here, or a new one.
fn pick_task(
    draft: &mut Draft<'_>,
    start: &StartRequest,
    parent: Option<ParentLink>,
) -> Result<TaskId, Rejection> {
    let above = parent.map(|link| link.task);
    if let Some(id) = start.task {
        if mutant::is_on(Mutant::ReviveFinal) && draft.ctx.loaded.task == Some(id) {
            return Ok(id);
        }
        let task = draft.open_task(id)?;
        let is_here = task.parent.map(|link| link.task) == above;
        if !is_here && !mutant::is_on(Mutant::ForeignParent) || task.agent != start.agent {
            return Err(Rejection::TaskElsewhere { task: id });
        }
        return match task.live {
            Some(request) => Err(Rejection::TaskBusy { task: id, request }),
            None => Ok(id),
        };
    }
    idle_or_new_task(draft, (&start.agent, start.close_on), parent)
}

/// The agent's idle task below this parent, or a new one.
fn idle_or_new_task(
    draft: &mut Draft<'_>,
    (agent, close_on): (&Name, CloseOn),
    parent: Option<ParentLink>,
) -> Result<TaskId, Rejection> {
    let above = parent.map(|link| link.task);
    let idle = draft
        .state
        .tasks
        .values()
        .filter(|task| task.agent == *agent && task.live.is_none())
        .filter(|task| task.parent.map(|link| link.task) == above)
        .min_by_key(|task| task.number);
    if let Some(task) = idle {
        return Ok(task.id);
    }
    require_limit(
        "open tasks",
        draft.state.tasks.len() + 1,
        limits::OPEN_TASKS_MAX,
    )?;
    let task = TaskId::from_uuid(draft.fresh_uuid());
    let number = draft.state.tasks_opened + 1;
    draft.emit(Event::TaskOpened {
        task,
        number,
        agent: agent.clone(),
        parent,
        close_on,
    });
    Ok(task)
}

/// A request may become an exchange, and a memory must have room for it then.
fn require_path(draft: &Draft<'_>, task: TaskId) -> Result<(), Rejection> {
    let state = &draft.state;
    let Some(path) = state.tasks.get(&task).map(|task| &task.path) else {
        return Ok(());
    };
    let (known, live) = (state.memories.len(), state.requests.len());
    if known + live < limits::AGENT_PATHS_MAX || state.memories.contains_key(path) {
        return Ok(());
    }
    let live = state
        .requests
        .keys()
        .filter_map(|live| state.task_of(*live));
    let mut paths: BTreeSet<&AgentPath> = live.map(|task| &task.path).collect();
    paths.insert(path);
    paths.retain(|path| !state.memories.contains_key(path));
    require_limit("agent paths", known + paths.len(), limits::AGENT_PATHS_MAX)
}

/// Claims a request. If the previous worker was lost during a call that cannot be repeated, opens
/// `reconcile` holds and grants no lease.
pub(super) fn claim(
    draft: &mut Draft<'_>,
    request: RequestId,
    ttl_ms: u64,
) -> Result<(), Rejection> {
    require_lease_time(ttl_ms)?;
    let live = draft.live(request)?;
    let status = live.status;
    let is_free = match status {
        LiveStatus::Queued => true,
        LiveStatus::Running => !draft.has_live_lease(live),
        LiveStatus::Held | LiveStatus::Waiting => false,
    };
    if !is_free {
        return Err(Rejection::NotClaimable { request, status });
    }
    let unanswered = &draft.ctx.loaded.unanswered;
    let uncertain: Vec<_> = live.uncertain_calls(unanswered).collect();
    let is_lost = status == LiveStatus::Running;
    if uncertain.is_empty() {
        return lease(draft, request, ttl_ms);
    }
    // Revoke the lease: the lost worker must not write while the `reconcile` holds are open.
    if is_lost {
        draft.emit(Event::LeaseLapsed { request });
    }
    for call in uncertain {
        hold::open_reconcile(draft, request, call)?;
    }
    Ok(())
}

fn require_lease_time(ttl_ms: u64) -> Result<(), Rejection> {
    if !limits::LEASE_MS.contains(&ttl_ms) {
        return Err(Rejection::Limit {
            limit: "lease milliseconds",
            max: *limits::LEASE_MS.end(),
        });
    }
    Ok(())
}

fn lease(draft: &mut Draft<'_>, request: RequestId, ttl_ms: u64) -> Result<(), Rejection> {
    require_lease_time(ttl_ms)?;
    let fence = draft.live(request)?.fence + 1;
    let (worker, until) = (draft.ctx.actor.principal, draft.at.plus_ms(ttl_ms));
    draft.emit(Event::RequestLeased {
        request,
        fence,
        worker,
        ttl_ms,
        until,
    });
    draft.unsettle(request);
    Ok(())
}

pub(super) fn lapse(draft: &mut Draft<'_>, request: RequestId) -> Result<(), Rejection> {
    let live = draft.live(request)?;
    match live.status {
        LiveStatus::Running if !draft.has_live_lease(live) => {
            draft.emit(Event::LeaseLapsed { request });
            draft.unsettle(request);
            Ok(())
        }
        LiveStatus::Running => Err(Rejection::LeaseLive { request }),
        status @ (LiveStatus::Queued | LiveStatus::Held | LiveStatus::Waiting) => {
            Err(Rejection::NotClaimable { request, status })
        }
    }
}

/// Takes the request from its worker, whose lease may be live: that worker belongs to another copy of the
/// data. Holds and children stay. Decisions that no worker has got wait for the next claim, and calls that the
/// worker may have started count as started.
pub(super) fn raise_fence(draft: &mut Draft<'_>, request: RequestId) -> Result<(), Rejection> {
    let live = draft.live(request)?;
    let is_running = live.status == LiveStatus::Running;
    let fence = if mutant::is_on(Mutant::KeepFence) {
        live.fence
    } else {
        live.fence.saturating_add(FENCE_RAISE)
    };
    if is_running {
        draft.emit(Event::LeaseLapsed { request });
    }
    draft.emit(Event::FenceRaised { fence, request });
    Ok(())
}

/// Releases the lease of a worker that does not wait. Later decisions wait for the next claim, and
/// approved calls do not count as started before it.
pub(super) fn release(draft: &mut Draft<'_>, by: Fenced) -> Result<(), Rejection> {
    let request = draft.require_fence(by)?.id;
    draft.emit(Event::LeaseReleased { request });
    draft.unsettle(request);
    Ok(())
}

pub(super) fn append(
    draft: &mut Draft<'_>,
    by: Fenced,
    items: &[NewItem],
    patch: &StatePatch,
    task_state: Option<BodyRef>,
) -> Result<(), Rejection> {
    draft.require_fence(by)?;
    let mut batch = Batch::new(draft, by.request)?;
    batch.push_all(draft, items)?;
    batch.write(draft);
    state::write(draft, patch, Some(by.request))?;
    put_task_state(draft, by.request, task_state)
}

/// The parts of a command that completes a request.
pub(super) struct Completion<'a> {
    pub(super) output: &'a Output,
    pub(super) items: &'a [NewItem],
    pub(super) state: &'a StatePatch,
    pub(super) task_state: Option<BodyRef>,
}

pub(super) fn complete(
    draft: &mut Draft<'_>,
    by: Fenced,
    with: &Completion<'_>,
    close_task: bool,
    cancel_children: bool,
) -> Result<(), Rejection> {
    let task = require_finishable(draft, by, cancel_children)?;
    let mut batch = Batch::new(draft, by.request)?;
    batch.push_all(draft, with.items)?;
    batch.push_output(draft, with.output)?;
    batch.write(draft);
    state::write(draft, with.state, Some(by.request))?;
    put_task_state(draft, by.request, with.task_state)?;
    draft.cancel_children(by.request);
    draft.end_request(by.request, RequestOutcome::Completed, None);
    if close_task && draft.state.tasks.contains_key(&task) {
        draft.close_subtree(task, TaskStatus::Completed);
    }
    Ok(())
}

pub(super) fn fail(
    draft: &mut Draft<'_>,
    by: Fenced,
    error: BodyRef,
    cancel_children: bool,
) -> Result<(), Rejection> {
    require_finishable(draft, by, cancel_children)?;
    draft.cancel_children(by.request);
    draft.end_request(by.request, RequestOutcome::Failed, Some(error));
    Ok(())
}

fn require_finishable(
    draft: &Draft<'_>,
    by: Fenced,
    cancel_children: bool,
) -> Result<TaskId, Rejection> {
    let live = match draft.require_fence(by) {
        Err(Rejection::NotLeased { .. }) if mutant::is_on(Mutant::CompleteUnclaimed) => {
            draft.live(by.request)?
        }
        other => other?,
    };
    if !live.holds.is_empty() {
        return Err(Rejection::HoldsOpen {
            open: live.holds.len(),
        });
    }
    if !live.children.is_empty() && !cancel_children {
        return Err(Rejection::ChildrenLive {
            live: live.children.len(),
        });
    }
    Ok(live.task)
}

pub(super) fn cancel(draft: &mut Draft<'_>, request: RequestId) -> Result<(), Rejection> {
    draft.live(request)?;
    draft.cancel_request_tree(request);
    Ok(())
}

fn put_task_state(
    draft: &mut Draft<'_>,
    request: RequestId,
    value: Option<BodyRef>,
) -> Result<(), Rejection> {
    if let Some(value) = value {
        let task = draft.live(request)?.task;
        draft.emit(Event::TaskStatePut {
            task,
            request,
            value,
        });
    }
    Ok(())
}
