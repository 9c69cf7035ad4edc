//! The body that the server pushes to the resume address of an agent when a request can continue.

use serde::Serialize;
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::request::{CallState, RequestStatus};

use crate::api::hold::HoldView;
use crate::api::json::to_body;
use crate::api::request::RequestView;
use crate::claim::ClaimedRequest;

/// The pushed body: a request that can continue, with its decisions.
#[derive(Debug, Serialize)]
struct PushedRequest {
    #[serde(rename = "type")]
    kind: &'static str,
    request_id: RequestId,
    session_id: SessionId,
    task_id: TaskId,
    agent: Name,
    fence: u64,
    status: RequestStatus,
    decisions: Vec<HoldView>,
    /// The tool calls that may run now.
    execution_keys: Vec<ItemId>,
}

/// The body to push for a request. It has the same decisions as a claim, and never a credential.
pub fn pushed_body(work: &ClaimedRequest) -> Vec<u8> {
    let shown = RequestView::of(&work.detail);
    let decided = work.detail.holds.iter();
    let decided = decided.filter(|hold| hold.closed.is_some());
    let may_run = work
        .calls
        .iter()
        .filter(|(_, call)| matches!(call.state, CallState::Released | CallState::Started { .. }));
    to_body(&PushedRequest {
        kind: "request.resumable",
        request_id: shown.id,
        session_id: shown.session_id,
        task_id: shown.task_id,
        agent: shown.agent,
        fence: work.detail.request.live().map_or(0, |live| live.fence),
        status: shown.status,
        decisions: decided.map(HoldView::of).collect(),
        execution_keys: may_run.map(|(id, _)| *id).collect(),
    })
}
