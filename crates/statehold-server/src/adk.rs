//! The session routes of ADK's API server, as its clients speak them, and what a session service over HTTP needs
//! beside them: appending an event, the state of a user, the sessions of all users.
//!
//! An ADK app is an app, a session id is the name of a session, and an event is an item. `docs/adk.md` has the rules.

mod confirmation;
pub(crate) mod errors;
mod event;
mod session;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::json;

use crate::http::call::{App, CallContext};
use crate::native::{agent, plain};

/// The paths of this surface that are not below `/apps`.
const TOP_PATHS: [&str; 3] = ["/list-apps", "/health", "/version"];

/// Whether a path belongs to this surface.
fn is_ours(path: &str) -> bool {
    path.starts_with("/apps/") || TOP_PATHS.contains(&path)
}

pub(crate) fn add_routes(router: Router<App>) -> Router<App> {
    const SESSIONS: &str = "/apps/{app}/users/{user}/sessions";
    const SESSION: &str = "/apps/{app}/users/{user}/sessions/{session}";
    router
        .route(SESSIONS, get(session::list).post(session::create))
        .route(
            SESSION,
            get(session::read)
                .post(session::create_with_id)
                .patch(session::patch)
                .delete(session::delete),
        )
        .route(&format!("{SESSION}/events"), post(session::append))
        .route("/apps/{app}/users/{user}/state", get(session::user_state))
        .route("/apps/{app}/sessions", get(session::list_all))
        .route(TOP_PATHS[0], get(list_apps))
        .route(TOP_PATHS[1], get(health))
        .route(TOP_PATHS[2], get(version))
}

/// The agents that the caller may know: each may be the app of a session.
async fn list_apps(context: CallContext) -> Response {
    let agents = agent::visible(&context).agents.into_iter();
    let names = agents.map(|agent| agent.name.to_string());
    plain(&names.collect::<Vec<_>>())
}

async fn health() -> Response {
    plain(&json!({"status": "ok"}))
}

async fn version() -> Response {
    plain(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "language": "rust",
        "language_version": env!("CARGO_PKG_RUST_VERSION"),
    }))
}
