//! Tasks: read, close, cancel.

use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::TaskId;
use statehold_engine::Receipt;
use statehold_engine::api;
use statehold_engine::api::request::EmptyInput;
use statehold_engine::api::schema::{TaskOrHistory, TaskViewWord, TraceFormWord};
use statehold_engine::api::task::{AskedView, TaskEnded};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::session::{TraceForm, trace_form};
use super::{Answer, AnswerHeaders, Cursor, PAGE_MAX, committed, page_limit, shown};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, Params};
use crate::http::problem::{Code, Problem};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(read))
        .routes(routes!(close))
        .routes(routes!(cancel))
}

/// View and page of a task's history.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryParams {
    /// `client`, `agent` or `trace`. Default: `agent` for a worker of the agent without the role `client`, else
    /// `client`.
    #[param(value_type = Option<TaskViewWord>)]
    view: Option<String>,
    /// The form of a trace: `items` (default), in the `history` of the task, or `tool_call_history`.
    #[param(value_type = Option<TraceFormWord>)]
    form: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

impl HistoryParams {
    fn asked(&self) -> Result<AskedView, Problem> {
        match self.view.as_deref() {
            None | Some("client") => Ok(AskedView::Own),
            Some("agent") => Ok(AskedView::Agent),
            Some("trace") => Ok(AskedView::Trace),
            Some(_) => {
                let detail = "`view` is client, agent or trace";
                Err(Problem::new(Code::BadQuery, detail))
            }
        }
    }
}

/// Read a task and the newest items of its history, oldest first.
///
/// Workers of its agent see the whole history and the private state; others see the messages.
#[utoipa::path(
    get, path = "/v1/tasks/{task_id}", tag = "tasks",
    operation_id = "getTask", params(HistoryParams),
    responses((status = 200, body = TaskOrHistory))
)]
async fn read(context: CallContext, Params(params): Params<HistoryParams>) -> Answer {
    let id: TaskId = context.id("task_id")?;
    let limit = page_limit(params.limit, PAGE_MAX)?;
    let asked = params.asked()?;
    let form = trace_form(params.form.as_deref(), asked == AskedView::Trace)?;
    let caller = &context.caller;
    let cursor = Cursor::of(&context, "history", &format!("{id} {asked:?} {form:?}"));
    let before = cursor.open(params.cursor.as_deref())?;
    let engine = context.engine();
    if form == TraceForm::ToolCallHistory {
        let read = |page| api::trace::tool_call_history_of_task(engine, caller, id, (before, page));
        let (mut history, session, next) = context.read_page(limit, read).await?;
        history.next_cursor = next.map(|seq| cursor.seal(seq));
        let headers = AnswerHeaders::session(session).task(id);
        return Ok(shown(&history, headers.at(history.revision)));
    }
    let read = |page| api::task::read(engine, caller, id, asked, (before, page));
    let (mut task, revision, next) = context.read_page(limit, read).await?;
    task.next_cursor = next.map(|seq| cursor.seal(seq));
    let headers = AnswerHeaders::session(task.session_id).task(id);
    Ok(shown(&task, headers.at(revision)))
}

/// Close a task without live requests.
///
/// The next request to its agent opens another task.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/close", tag = "tasks",
    operation_id = "closeTask", request_body = EmptyInput,
    responses((status = 200, body = TaskEnded))
)]
async fn close(context: CallContext, body: Payload<EmptyInput>) -> Answer {
    let task: TaskId = context.id("task_id")?;
    let call = context.call(&body.bytes);
    Ok(ended(
        api::task::close(context.engine(), &call, task).await?,
    ))
}

/// Cancel a task, its requests and its child tasks.
///
/// Their holds are cancelled too.
#[utoipa::path(
    post, path = "/v1/tasks/{task_id}/cancel", tag = "tasks",
    operation_id = "cancelTask", request_body = EmptyInput,
    responses((status = 200, body = TaskEnded))
)]
async fn cancel(context: CallContext, body: Payload<EmptyInput>) -> Answer {
    let task: TaskId = context.id("task_id")?;
    let call = context.call(&body.bytes);
    Ok(ended(
        api::task::cancel(context.engine(), &call, task).await?,
    ))
}

fn ended(receipt: Receipt<TaskEnded>) -> Response {
    let headers = AnswerHeaders::session(receipt.session).task(receipt.view.id);
    committed(StatusCode::OK, receipt, headers)
}
