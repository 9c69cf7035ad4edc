//! Tasks: read, close, cancel.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::command::Command;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::request::RequestOutcome;
use statehold_core::task::TaskStatus;
use utoipa::ToSchema;

use super::hold::{PendingHoldView, pending_views};
use super::item::ItemView;
use super::json::{Raw, raw_bytes};
use crate::caller::Caller;
use crate::commit::call::{Call, Committed, Receipt};
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{self, Act};

pub use crate::read::AskedView;

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
    /// Open holds of this task and its child tasks, oldest first, at most 100.
    pub pending: Vec<PendingHoldView>,
    /// Number of open holds of this task and its child tasks.
    pub pending_total: usize,
    pub history: Vec<ItemView>,
    /// The agent's private state, for its worker and the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub state: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The end of a task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskEnded {
    pub id: TaskId,
    pub session_id: SessionId,
    pub status: TaskStatus,
    pub revision: u64,
}

/// Reads a task with the newest items of its history, oldest first, the revision of its session, and the
/// `seq` before which the next page begins. The audit stream records trace reads.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    task: TaskId,
    asked: AskedView,
    (before, limit): (Option<u64>, usize),
) -> Result<(TaskView, u64, Option<u64>), EngineError> {
    let detail = engine.task(caller, task, asked).await?;
    let task = &detail.task;
    let at = (detail.session.id, detail.revision);
    let page = engine
        .items(at, Some(task.id), detail.view, before, limit)
        .await?;
    let (pending, pending_total) = pending_views(&detail.pending);
    let items = page.items.iter().rev();
    let view = TaskView {
        id: task.id,
        alias: format!("T{}", task.number),
        session_id: detail.session.id,
        agent: task.agent.clone(),
        status: detail.status,
        parent_request_id: task.parent.map(|link| link.request),
        live_request_id: task.live,
        last_outcome: task.last_outcome,
        pending,
        pending_total,
        history: items
            .map(|item| ItemView::of(item).seen_by(detail.view))
            .collect(),
        state: detail.state.as_deref().map(raw_bytes),
        next_cursor: None,
    };
    Ok((view, detail.revision, page.next))
}

/// Closes a task without live requests.
///
/// # Errors
///
/// If the caller may not, or a request is live.
pub async fn close(
    engine: &Engine,
    call: &Call,
    task: TaskId,
) -> Result<Receipt<TaskEnded>, EngineError> {
    rights::require_role(&call.caller, &Act::ManageSession)?;
    end(engine, call, task, Command::CloseTask { task }).await
}

/// Cancels a task, its requests and its child tasks.
///
/// # Errors
///
/// If the caller may not.
pub async fn cancel(
    engine: &Engine,
    call: &Call,
    task: TaskId,
) -> Result<Receipt<TaskEnded>, EngineError> {
    rights::require_role(&call.caller, &Act::CancelTask(task))?;
    end(engine, call, task, Command::CancelTask { task }).await
}

async fn end(
    engine: &Engine,
    call: &Call,
    task: TaskId,
    command: Command,
) -> Result<Receipt<TaskEnded>, EngineError> {
    let session = engine.session_of_task(task).await?;
    let view = |made: &Committed<'_>| {
        let mut closed = made.changes.closed_tasks.iter();
        let closed = closed.find(|closed| closed.task.id == task);
        Some(TaskEnded {
            id: task,
            session_id: made.record.content.session,
            status: closed.map_or(TaskStatus::Cancelled, |closed| closed.status),
            revision: made.record.content.seq,
        })
    };
    SessionWrite::new(engine, call, session)
        .commit(&command, view)
        .await
}
