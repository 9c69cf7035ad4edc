//! Tasks: read, close, cancel.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use statehold_core::command::Command;
use statehold_core::ids::TaskId;
use statehold_core::task::TaskStatus;
use statehold_engine::{Committed, Reply};
use utoipa::ToSchema;

use super::session::MessageParams;
use super::{About, Cursor, PAGE_MAX, done, page_limit, shown};
use crate::http::call::{App, CallContext, Params, PathIds, Payload};
use crate::http::problem::Problem;
use statehold_core::ids::SessionId;
use statehold_engine::api::hold::pending_views;
use statehold_engine::api::item::ItemView;
use statehold_engine::api::json::{raw_bytes, to_body};
use statehold_engine::api::request::EmptyInput;
use statehold_engine::api::task::TaskView;

/// Read a task and the newest of its history, oldest first.
#[utoipa::path(
    get, path = "/v1/tasks/{task_id}", tag = "tasks",
    params(("task_id" = String, Path), MessageParams),
    responses((status = 200, body = TaskView))
)]
pub(crate) async fn read(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    Params(params): Params<MessageParams>,
) -> Result<Response, Problem> {
    let id: TaskId = ids.id("task_id")?;
    let limit = page_limit(params.limit, PAGE_MAX)?;
    let is_trace = params.wants_trace()?;
    let filter = format!("{id} {is_trace}");
    let cursor = Cursor::of(&app, &asked.caller, "history", &filter);
    let before = cursor.open(params.cursor.as_deref())?;
    let detail = app.engine.task(&asked.caller, id, is_trace).await?;
    let page = app.engine.history(&detail, before, limit).await?;
    let task = &detail.task;
    let (pending, pending_total) = pending_views(&detail.pending);
    let out = TaskView {
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
        history: page
            .items
            .iter()
            .rev()
            .map(|item| ItemView::of(item).seen_by(detail.view))
            .collect(),
        state: detail.state.as_deref().map(raw_bytes),
        next_cursor: page.next.map(|seq| cursor.seal(seq)),
    };
    let about = About {
        revision: Some(detail.revision),
        session: Some(out.session_id.to_string()),
        task: Some(out.id.to_string()),
        ..About::default()
    };
    Ok(shown(&out, &about))
}

/// What became of a task.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskEnded {
    #[schema(value_type = TaskId)]
    id: String,
    #[schema(value_type = SessionId)]
    session_id: String,
    #[schema(value_type = TaskStatus)]
    status: TaskStatus,
    revision: u64,
}

/// End a task that has nothing to do.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/close", tag = "tasks",
    params(("task_id" = String, Path)), request_body = EmptyInput,
    responses((status = 200, body = TaskEnded))
)]
pub(crate) async fn close(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    body: Payload<EmptyInput>,
) -> Result<Response, Problem> {
    let task = ids.id("task_id")?;
    end(&app, &asked, &body.bytes, task, Command::CloseTask { task }).await
}

/// Stop a task for good, with everything below it.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/cancel", tag = "tasks",
    params(("task_id" = String, Path)), request_body = EmptyInput,
    responses((status = 200, body = TaskEnded))
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    body: Payload<EmptyInput>,
) -> Result<Response, Problem> {
    let task = ids.id("task_id")?;
    end(
        &app,
        &asked,
        &body.bytes,
        task,
        Command::CancelTask { task },
    )
    .await
}

async fn end(
    app: &App,
    asked: &CallContext,
    body: &[u8],
    task: TaskId,
    command: Command,
) -> Result<Response, Problem> {
    let call = asked.call(body);
    app.engine.require_role(&asked.caller, &command)?;
    let session = app.engine.session_of_task(task).await?;
    let payloads = app.engine.no_payloads();
    let reply: Reply = Arc::new(move |made: &Committed<'_>| {
        let closed = made.changes.closed_tasks.iter();
        let mut closed = closed.filter(|closed| closed.task.id == task);
        to_body(&TaskEnded {
            id: task.to_string(),
            session_id: made.record.content.session.to_string(),
            status: closed
                .next()
                .map_or(TaskStatus::Cancelled, |closed| closed.status),
            revision: made.record.content.seq,
        })
    });
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    let about = About {
        session: Some(session.to_string()),
        task: Some(task.to_string()),
        ..About::default()
    };
    Ok(done(StatusCode::OK, made, about))
}
