//! Tasks on the wire.

use serde::Serialize;
use statehold_core::request::RequestOutcome;
use statehold_core::task::TaskStatus;
use utoipa::ToSchema;

use super::Raw;
use super::hold::PendingHoldOut;
use super::item::ItemOut;
use super::schema::{
    NameText, OutcomeWord, RequestIdText, SessionIdText, TaskIdText, TaskStatusWord,
};

/// A task with a page of its history.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub(crate) struct TaskOut {
    #[schema(value_type = TaskIdText)]
    pub(crate) id: String,
    pub(crate) alias: String,
    #[schema(value_type = SessionIdText)]
    pub(crate) session_id: String,
    #[schema(value_type = NameText)]
    pub(crate) agent: String,
    #[schema(value_type = TaskStatusWord)]
    pub(crate) status: TaskStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RequestIdText>)]
    pub(crate) parent_request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RequestIdText>)]
    pub(crate) live_request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OutcomeWord>)]
    pub(crate) last_outcome: Option<RequestOutcome>,
    /// Open holds at and below it, the oldest first, at most 100.
    pub(crate) pending: Vec<PendingHoldOut>,
    /// How many there are.
    pub(crate) pending_total: usize,
    pub(crate) history: Vec<ItemOut>,
    /// The agent's private state, for its worker and the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) state: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}
