//! The slow and obvious way to say what waits for what: from the parent of each request and the
//! request of each hold, never from a cache.

use crate::hold::Hold;
use crate::ids::{RequestId, TaskId};
use crate::request::LiveRequest;
use crate::session::SessionState;
use crate::task::TaskStatus;

/// The live requests that `request` waits for.
pub fn children(state: &SessionState, request: RequestId) -> impl Iterator<Item = &LiveRequest> {
    state
        .requests
        .values()
        .filter(move |live| live.parent == Some(request))
}

/// The open holds of `request` itself.
pub fn holds(state: &SessionState, request: RequestId) -> impl Iterator<Item = &Hold> {
    state
        .holds
        .values()
        .filter(move |hold| hold.request == request)
}

/// Whether an open hold is at `request` or below it, over live requests.
pub fn waits_for_a_person(state: &SessionState, request: RequestId) -> bool {
    holds(state, request).next().is_some()
        || children(state, request).any(|child| waits_for_a_person(state, child.id))
}

/// The status of an open task.
pub fn task_status(state: &SessionState, task: TaskId) -> TaskStatus {
    match state.requests.values().find(|live| live.task == task) {
        None => TaskStatus::Idle,
        Some(live) if waits_for_a_person(state, live.id) => TaskStatus::Paused,
        Some(_) => TaskStatus::Running,
    }
}
