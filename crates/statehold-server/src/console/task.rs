//! One task: the whole history of its agent and its private state. The audit stream has each read.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::RawQuery;
use axum::response::Response;
use serde::Deserialize;
use statehold_core::ids::TaskId;
use statehold_engine::api::task::{self, AskedView};

use super::access::ConsoleCall;
use super::answered;
use super::item::ItemLine;
use super::page::{self, Frame, whole};
use super::text::PageText;
use super::tree::word;
use crate::http::problem::Problem;
use crate::native::Cursor;

/// Items on a page.
const PAGE: usize = 25;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskQuery {
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/task.html")]
struct TaskPage {
    frame: Frame,
    id: String,
    alias: String,
    agent: String,
    status: String,
    outcome: Option<String>,
    session: String,
    state: Option<PageText>,
    lines: Vec<ItemLine>,
    next: Option<String>,
    first: String,
    is_first: bool,
}

pub(super) async fn show(
    call: Result<ConsoleCall, Response>,
    RawQuery(query): RawQuery,
) -> Response {
    match call {
        Ok(call) => answered(&call, task_page(&call, query.as_deref()).await),
        Err(refused) => refused,
    }
}

async fn task_page(call: &ConsoleCall, query: Option<&str>) -> Result<Response, Problem> {
    let context = &call.context;
    let id: TaskId = context.id("task_id")?;
    let query: TaskQuery = page::query(query)?;
    let cursor = Cursor::of(context, "console task", &id.to_string());
    let begin = (!query.cursor.is_empty()).then_some(query.cursor.as_str());
    let before = cursor.open(begin)?;
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| task::read(engine, caller, id, AskedView::Trace, (before, page));
    let (found, _, next) = context.read_page(PAGE, read).await?;
    let names = BTreeMap::new();
    let page = TaskPage {
        frame: Frame::new(&format!("{} {}", found.alias, found.agent), Some(call)),
        id: found.id.to_string(),
        alias: found.alias.clone(),
        agent: found.agent.to_string(),
        status: word(found.status),
        outcome: found.last_outcome.map(word),
        session: found.session_id.to_string(),
        state: found.state.as_ref().map(PageText::json),
        lines: found
            .history
            .iter()
            .map(|item| ItemLine::item(item, &names))
            .collect(),
        next: next.map(|seq| format!("/console/tasks/{id}?cursor={}", cursor.seal(seq))),
        first: format!("/console/tasks/{id}"),
        is_first: begin.is_none(),
    };
    Ok(whole(call, page.render()))
}
