//! Tasks as callers see them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::request::RequestOutcome;
use statehold_core::task::TaskStatus;
use utoipa::ToSchema;

use super::hold::PendingHoldView;
use super::item::ItemView;
use super::json::Raw;

/// A task with a page of its history.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskView {
    pub id: TaskId,
    pub alias: String,
    pub session_id: SessionId,
    pub agent: Name,
    pub status: TaskStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_request_id: Option<RequestId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_request_id: Option<RequestId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_outcome: Option<RequestOutcome>,
    /// Open holds at and below it, the oldest first, at most 100.
    pub pending: Vec<PendingHoldView>,
    /// How many there are.
    pub pending_total: usize,
    pub history: Vec<ItemView>,
    /// The agent's private state, for its worker and the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub state: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
