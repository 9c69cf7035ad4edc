//! Open holds as everything above them shows them.

use serde::Serialize;
use statehold_core::hold::HoldKind;
use statehold_engine::{Pending, PendingHold};
use utoipa::ToSchema;

use super::words::HoldKindWire;
use super::{alias, chain, task_path, title_of};
use crate::wire::schema::{
    HoldIdText, NameText, RequestIdText, SessionIdText, TaskIdText, TimeText,
};
use crate::wire::time;

/// An open hold at or below something, under the ids of the request that asks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PendingHold)]
pub(crate) struct PendingHoldOut {
    #[schema(value_type = HoldIdText)]
    id: String,
    alias: String,
    #[schema(value_type = HoldKindWire)]
    kind: HoldKind,
    title: String,
    #[schema(value_type = NameText)]
    agent: String,
    #[schema(value_type = SessionIdText)]
    session_id: String,
    #[schema(value_type = TaskIdText)]
    task_id: String,
    #[schema(value_type = RequestIdText)]
    request_id: String,
    #[schema(value_type = Vec<TaskIdText>)]
    task_path: Vec<String>,
    /// The tasks and requests from the root down to the one that asks: `T1 ← R7 ← T4 ← R8`.
    chain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TimeText>)]
    expires_at: Option<String>,
}

/// The open holds, and how many there are.
pub(crate) fn pending_out(pending: &Pending) -> (Vec<PendingHoldOut>, usize) {
    let holds = pending.holds.iter().map(PendingHoldOut::of).collect();
    (holds, pending.total)
}

impl PendingHoldOut {
    fn of(pending: &PendingHold) -> Self {
        let hold = &pending.hold;
        Self {
            id: hold.id.to_string(),
            alias: alias(&pending.lineage, hold.number),
            kind: hold.kind,
            title: title_of(hold.kind, pending.body.as_deref()),
            agent: pending.agent.to_string(),
            session_id: pending.session.to_string(),
            task_id: hold.task.to_string(),
            request_id: hold.request.to_string(),
            task_path: task_path(&pending.lineage),
            chain: chain(&pending.lineage),
            expires_at: hold.deadline.map(time),
        }
    }
}
