//! The obvious way to say what waits for what: from the parent of each request and the request of each
//! hold, never from a cache.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{HoldId, RequestId, TaskId};
use crate::session::SessionState;
use crate::task::TaskStatus;

/// The children and holds that each request of a state waits for. Made once per state: a session may have
/// thousands of live requests.
pub(super) struct Waits {
    children: BTreeMap<RequestId, BTreeSet<RequestId>>,
    holds: BTreeMap<RequestId, BTreeSet<HoldId>>,
    live: BTreeMap<TaskId, RequestId>,
}

impl Waits {
    pub(super) fn of(state: &SessionState) -> Self {
        let mut waits = Self {
            children: BTreeMap::new(),
            holds: BTreeMap::new(),
            live: BTreeMap::new(),
        };
        for request in state.requests.values() {
            waits.live.entry(request.task).or_insert(request.id);
            if let Some(parent) = request.parent {
                waits.children.entry(parent).or_default().insert(request.id);
            }
        }
        for hold in state.holds.values() {
            waits.holds.entry(hold.request).or_default().insert(hold.id);
        }
        waits
    }

    /// The live requests that `request` waits for.
    pub(super) fn children(&self, request: RequestId) -> BTreeSet<RequestId> {
        self.children.get(&request).cloned().unwrap_or_default()
    }

    /// The open holds of `request` itself.
    pub(super) fn holds(&self, request: RequestId) -> BTreeSet<HoldId> {
        self.holds.get(&request).cloned().unwrap_or_default()
    }

    /// Whether an open hold is at `request` or below it, over live requests.
    pub(super) fn for_a_person(&self, request: RequestId) -> bool {
        let mut children = self.children.get(&request).into_iter().flatten();
        self.holds.contains_key(&request) || children.any(|child| self.for_a_person(*child))
    }

    /// The status of an open task.
    pub(super) fn task_status(&self, task: TaskId) -> TaskStatus {
        match self.live.get(&task) {
            None => TaskStatus::Idle,
            Some(live) if self.for_a_person(*live) => TaskStatus::Paused,
            Some(_) => TaskStatus::Running,
        }
    }
}
