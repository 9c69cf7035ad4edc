//! Tasks: read, close, cancel.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::command::Command;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::request::RequestOutcome;
use statehold_core::task::TaskStatus;
use statehold_core::tenant::TenantEvent;
use statehold_core::view::View;
use statehold_store::PageLimit;
use utoipa::ToSchema;

use super::hold::{PendingHoldView, pending_views};
use super::item::ItemView;
use super::json::{Raw, raw_bytes};
use super::trace::{FailedRequest, failures_in};
use crate::answer_memory::{ANSWER_PAGE_BYTES, SMALL_PAYLOAD_BYTES};
use crate::caller::{Caller, Role};
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::{require_any, require_reader};
use crate::guard::rights::{self, Act};

/// The view of a task that a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedView {
    /// The caller's own: that of the agent for its worker, that of the client for others.
    Own,
    /// The view of the agent, also for a worker with the role of a client.
    Agent,
    /// The view of an operator; the audit stream records the read.
    Trace,
}

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
    /// For the trace: the failed requests among those of the history, the newest first, and why each failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub failures: Vec<FailedRequest>,
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
    (before, limit): (Option<u64>, PageLimit),
) -> Result<(TaskView, u64, Option<u64>), EngineError> {
    match asked {
        AskedView::Own => {}
        AskedView::Agent => require_any(caller, &[Role::Worker])?,
        AskedView::Trace => require_any(caller, &[Role::Operator, Role::Admin])?,
    }
    require_reader(caller)?;
    let session = engine.session_of_task(task).await?;
    let state = engine.readable_around(caller, session).await?;
    let owner = state.owner.as_ref().ok_or(EngineError::NotFound)?;
    let (task, status) = engine.find_task(&state, task).await?;
    let works = caller.works_for(&task.agent);
    let view = if asked == AskedView::Trace {
        View::Trace
    } else if works && (asked == AskedView::Agent || !caller.has(Role::Client)) {
        View::Agent(task.id)
    } else if asked == AskedView::Agent {
        return Err(EngineError::NotFound);
    } else if caller.acts_for(owner.user) || caller.reads_all() {
        View::Client
    } else {
        return Err(EngineError::NotFound);
    };
    let private = match view {
        View::Client => None,
        View::Agent(_) | View::Trace => engine.inner().store.task_state(task.id).await?,
    };
    let pending = engine.pending_of(&state, state.pending_holds(task.id));
    let (pending, pending_total) = pending_views(&pending.await?);
    let at = (session, state.revision);
    let (limit, taken) = beside(private.as_deref(), limit)?;
    let page = engine.items(at, Some(task.id), view, before, limit).await;
    let page = page.map_err(|error| match error {
        EngineError::PageTooSmall { bytes } => EngineError::PageTooSmall {
            bytes: bytes + taken,
        },
        error => error,
    })?;
    let mut failures = Vec::new();
    if view == View::Trace {
        failures = failures_in(engine, session, &page.items).await?;
        let event = TenantEvent::TraceRead { session };
        engine.audit(caller, event).await?;
    }
    let items = page.items.iter().rev();
    let view = TaskView {
        id: task.id,
        alias: format!("T{}", task.number),
        session_id: session,
        agent: task.agent.clone(),
        status,
        parent_request_id: task.parent.map(|link| link.request),
        live_request_id: task.live,
        last_outcome: task.last_outcome,
        pending,
        pending_total,
        history: items.map(|item| ItemView::of(item).seen_by(view)).collect(),
        failures,
        state: private.as_deref().map(raw_bytes),
        next_cursor: None,
    };
    Ok((view, state.revision, page.next))
}

/// The room that a private state leaves on a page, and the bytes that it takes itself.
///
/// # Errors
///
/// [`EngineError::PageTooSmall`] if a long state leaves no room for a page of items.
fn beside(private: Option<&[u8]>, limit: PageLimit) -> Result<(PageLimit, u64), EngineError> {
    let taken = private.map_or(0, |state| state.len() as u64);
    if taken <= SMALL_PAYLOAD_BYTES {
        return Ok((limit, 0));
    }
    let left = limit.bytes.checked_sub(taken);
    let Some(bytes) = left.filter(|left| *left >= ANSWER_PAGE_BYTES) else {
        let bytes = taken + ANSWER_PAGE_BYTES;
        return Err(EngineError::PageTooSmall { bytes });
    };
    Ok((PageLimit { bytes, ..limit }, taken))
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
    let view = |made: &DecidedCommit<'_>| {
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
