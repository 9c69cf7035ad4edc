//! The console: pages for people who look after the server. They only read: sessions, their messages, tasks and
//! state, and hidden items, whose reads the audit stream records.
//!
//! A page is made on the server and needs no script. Everything that it shows was written by others, so all of it is
//! escaped, characters that hide or reorder text are spelled out, and the policy of each page forbids whatever the
//! page does not need.

mod access;
mod item;
mod login;
mod page;
mod session;
mod sessions;
mod task;
mod text;
mod tree;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};

use self::access::ConsoleCall;
use self::page::{moved, refused};
use crate::http::call::App;
use crate::http::problem::Problem;

/// The address of the console.
pub const PATH: &str = "/console";

/// Adds the pages.
pub(crate) fn add_routes(router: Router<App>) -> Router<App> {
    router
        .route(PATH, get(home))
        .route("/console/", get(home))
        .route("/console/login", get(login::show).post(login::enter))
        .route("/console/logout", post(login::leave))
        .route("/console/sessions", get(sessions::list))
        .route("/console/sessions/{session_id}", get(session::show))
        .route("/console/tasks/{task_id}", get(task::show))
        .route("/console/assets/{file}", get(page::asset))
}

async fn home(call: Result<ConsoleCall, Response>) -> Response {
    call.map_or_else(|refused| refused, |_| moved("/console/sessions"))
}

/// The page, or the problem as a page.
fn answered(call: &ConsoleCall, page: Result<Response, Problem>) -> Response {
    page.unwrap_or_else(|problem| refused(Some(call), &problem))
}
