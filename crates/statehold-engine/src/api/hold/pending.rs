//! Open holds, as the views of their request, task and session show them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::hold::HoldKind;
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use utoipa::ToSchema;

use super::{alias, chain, task_path};
use crate::api::json::Time;
use crate::holds::{Pending, PendingHold};

/// An open hold, with the ids of the request that opened it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = PendingHold)]
pub struct PendingHoldView {
    pub id: HoldId,
    pub alias: String,
    pub kind: HoldKind,
    pub title: String,
    pub agent: Name,
    pub session_id: SessionId,
    pub task_id: TaskId,
    pub request_id: RequestId,
    pub task_path: Vec<TaskId>,
    /// The tasks and requests from the root down to the one that asks: `T1 ← R7 ← T4 ← R8`.
    pub chain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// The open holds and their total number.
pub(crate) fn pending_views(pending: &Pending) -> (Vec<PendingHoldView>, usize) {
    let holds = pending.holds.iter().map(PendingHoldView::of).collect();
    (holds, pending.total)
}

impl PendingHoldView {
    fn of(pending: &PendingHold) -> Self {
        let hold = &pending.hold;
        Self {
            id: hold.id,
            alias: alias(&pending.lineage, hold.number),
            kind: hold.kind,
            title: pending.title.clone(),
            agent: pending.agent.clone(),
            session_id: pending.session,
            task_id: hold.task,
            request_id: hold.request,
            task_path: task_path(&pending.lineage),
            chain: chain(&pending.lineage),
            expires_at: hold.deadline.map(Into::into),
        }
    }
}
