//! Reads of traces: everything that a session has, hidden items too. They are for operators, and the audit stream
//! has each of them before the answer leaves. Items come as they are, or as the messages of a `tool_call_history`.

mod failures;
mod tool_history;

use statehold_core::ids::{SessionId, TaskId};
use statehold_core::tenant::TenantEvent;
use statehold_core::view::View;
use statehold_store::{PageLimit, PastItemQuery};

use super::item::ItemView;
use super::past::require_revision;
use super::session::TracePage;
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_any;
use crate::read::ItemPage;

pub use failures::FailedRequest;
pub(crate) use failures::failures_in;
pub use tool_history::{
    FunctionCallView, HistoryMessageView, ItemMark, ToolCallHistory, ToolCallView,
};

/// Refuses a caller that may not read traces.
///
/// # Errors
///
/// If the caller is neither an operator nor an admin.
pub fn require_reader(caller: &Caller) -> Result<(), EngineError> {
    require_any(caller, &[Role::Operator, Role::Admin])
}

/// Reads a page of all items of a session, of its newest revision or of the revision `at`. The first page has the
/// newest ones; within a page the oldest come first. With the `seq` before which the next page begins.
///
/// # Errors
///
/// If the caller may not read traces, or the session has no such revision.
pub async fn items(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    at: Option<u64>,
    page: (Option<u64>, PageLimit),
) -> Result<(TracePage, Option<u64>), EngineError> {
    let read = items_of_session(engine, caller, session, at, page).await?;
    let view = TracePage {
        messages: read.items.iter().rev().map(ItemView::of).collect(),
        failures: failures_in(engine, session, &read.items).await?,
        revision: read.revision,
        next_cursor: None,
    };
    Ok((view, read.next))
}

/// The same page as messages: what was said, the tool calls and their results.
///
/// # Errors
///
/// As [`items`].
pub async fn tool_call_history(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    at: Option<u64>,
    page: (Option<u64>, PageLimit),
) -> Result<(ToolCallHistory, Option<u64>), EngineError> {
    let read = items_of_session(engine, caller, session, at, page).await?;
    Ok(ToolCallHistory::of(read))
}

/// Reads a page of the history of one task as messages. With its session.
///
/// # Errors
///
/// If the caller may not read traces.
pub async fn tool_call_history_of_task(
    engine: &Engine,
    caller: &Caller,
    task: TaskId,
    (before, limit): (Option<u64>, PageLimit),
) -> Result<(ToolCallHistory, SessionId, Option<u64>), EngineError> {
    require_reader(caller)?;
    let session = engine.session_of_task(task).await?;
    let state = engine.readable_around(caller, session).await?;
    let (task, _) = engine.find_task(&state, task).await?;
    let at = (session, state.revision);
    let read = engine.items(at, Some(task.id), View::Trace, before, limit);
    let read = read.await?;
    engine
        .audit(caller, TenantEvent::TraceRead { session })
        .await?;
    let (history, next) = ToolCallHistory::of(read);
    Ok((history, session, next))
}

async fn items_of_session(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    at: Option<u64>,
    (before, limit): (Option<u64>, PageLimit),
) -> Result<ItemPage, EngineError> {
    let summary = engine.traceable(caller, session).await?;
    if summary.deleted {
        return Err(EngineError::NotFound);
    }
    let page = if let Some(at) = at {
        require_revision("at", at, (1, summary.revision))?;
        let query = PastItemQuery {
            revision: at,
            view: View::Trace,
            before,
            limit,
        };
        let (items, next) = engine.inner().store.items_at(session, query).await?;
        ItemPage {
            items,
            next,
            revision: at,
        }
    } else {
        let at = (session, summary.revision);
        engine.items(at, None, View::Trace, before, limit).await?
    };
    engine
        .audit(caller, TenantEvent::TraceRead { session })
        .await?;
    Ok(page)
}
