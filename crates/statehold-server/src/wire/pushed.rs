//! What is pushed to the addresses of agents.

use serde::Serialize;
use statehold_core::request::CallState;
use statehold_engine::ClaimedRequest;

use super::hold::HoldOut;
use super::request::RequestOut;
use super::to_body;

/// What is pushed to the address of an agent: a request that can go on, with what was decided.
#[derive(Debug, Serialize)]
struct PushedOut {
    #[serde(rename = "type")]
    kind: &'static str,
    request_id: String,
    session_id: String,
    task_id: String,
    agent: String,
    fence: u64,
    status: String,
    decisions: Vec<HoldOut>,
    /// The tool calls that may run now.
    execution_keys: Vec<String>,
}

/// The body of what is pushed about a request. It has what a claim has of its decisions, and never a
/// credential.
pub fn pushed_body(work: &ClaimedRequest) -> Vec<u8> {
    let shown = RequestOut::of(&work.detail);
    let decided = work.detail.holds.iter();
    let decided = decided.filter(|hold| hold.closed.is_some());
    let may_run = work
        .calls
        .iter()
        .filter(|(_, call)| matches!(call.state, CallState::Released | CallState::Started { .. }));
    to_body(&PushedOut {
        kind: "request.resumable",
        request_id: shown.id,
        session_id: shown.session_id,
        task_id: shown.task_id,
        agent: shown.agent,
        fence: work.detail.live.as_ref().map_or(0, |live| live.fence),
        status: shown.status,
        decisions: decided.map(HoldOut::of).collect(),
        execution_keys: may_run.map(|(id, _)| id.to_string()).collect(),
    })
}
