//! What is spoken: HTTP, the native API, feeds. Turns wire types into engine commands and results into
//! wire types, and never touches a store.

pub mod accept;
mod app;
pub mod json;
mod metrics;
mod openai;
mod openapi;
pub mod problem;
mod reload;
mod rest;
pub mod seal;
mod wire;

use std::sync::LazyLock;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use statehold_engine::Engine;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use app::ServerOptions;
pub use metrics::Metrics;
pub use reload::{Reload, ReloadError, ReloadMistake, Reloaded, Reloading};
pub use wire::pushed::pushed_body;

use app::App;
use problem::{Code, Problem};
use seal::Sealer;

/// The API as an axum router.
pub fn router(engine: Engine, sealer: Sealer, options: ServerOptions, metrics: Metrics) -> Router {
    let has_clock = options.clock.is_some();
    let app = App::new(engine, sealer, options, metrics);
    let (mut router, _) = routes().split_for_parts();
    if has_clock {
        // Not in the document of the API: no server that others rely on has it.
        router = router.route(rest::dev::CLOCK_PATH, axum::routing::post(rest::dev::clock));
    }
    for (path, alias) in openapi::CHAT_ALIASES {
        let method = match *path {
            "/openai/v1/chat/completions" => axum::routing::post(openai::chat),
            "/openai/v1/models" => axum::routing::get(openai::models::list),
            _ => axum::routing::get(openai::models::read),
        };
        router = router.route(alias, method);
    }
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .layer(CatchPanicLayer::custom(|_| {
            let detail = "the server has a bug here; nothing that was not confirmed has happened";
            Problem::new(Code::Internal, detail).into_response()
        }))
        .layer(middleware::from_fn(openai::errors::translate))
        .with_state(app)
}

/// The `OpenAPI` document of the API, as it is committed.
pub fn openapi_json() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (_, document) = routes().split_for_parts();
        format!("{:#}\n", openapi::complete(&document))
    });
    &TEXT
}

fn routes() -> OpenApiRouter<App> {
    use rest::{
        agents, audit, declared, events, holds, keys, operations, requests, sessions, state, tasks,
    };
    OpenApiRouter::with_openapi(openapi::Document::openapi())
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::read, sessions::patch, sessions::delete))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::messages))
        .routes(routes!(sessions::tree))
        .routes(routes!(sessions::records))
        .routes(routes!(events::session))
        .routes(routes!(events::global))
        .routes(routes!(events::holds))
        .routes(routes!(requests::start))
        .routes(routes!(requests::read))
        .routes(routes!(requests::append))
        .routes(routes!(requests::complete))
        .routes(routes!(requests::fail))
        .routes(routes!(requests::cancel))
        .routes(routes!(requests::heartbeat))
        .routes(routes!(requests::release))
        .routes(routes!(requests::claim))
        .routes(routes!(tasks::read))
        .routes(routes!(tasks::close))
        .routes(routes!(tasks::cancel))
        .routes(routes!(holds::open::open))
        .routes(routes!(holds::list))
        .routes(routes!(holds::counts))
        .routes(routes!(holds::read))
        .routes(routes!(holds::decide::decide))
        .routes(routes!(holds::decide::resume))
        .routes(routes!(state::read, state::patch))
        .routes(routes!(state::read_app, state::patch_app))
        .routes(routes!(state::read_user, state::patch_user))
        .routes(routes!(declared::list))
        .routes(routes!(declared::show))
        .routes(routes!(declared::reload))
        .routes(routes!(agents::set, agents::read, agents::remove))
        .routes(routes!(openai::chat))
        .routes(routes!(openai::models::list))
        .routes(routes!(openai::models::read))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(audit::records))
        .routes(routes!(audit::verify))
        .routes(routes!(operations::health))
        .routes(routes!(operations::ready))
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::schema))
}

async fn no_route() -> Problem {
    Problem::not_found()
}

async fn no_method() -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        "this path does not take this method; see /openapi.json",
    )
}

/// Counts and logs every call, by its route: never by what the caller chose.
async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = tokio::time::Instant::now();
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let mut response = next.run(request).await;
    response.headers_mut().insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    // Nobody lays a page of their own over an answer of ours.
    response
        .headers_mut()
        .insert("x-frame-options", HeaderValue::from_static("DENY"));
    let status = response.status().as_u16();
    let seconds = begun.elapsed().as_secs_f64();
    // Whoever invents methods does not get a number for each.
    let method = match method.as_str() {
        known @ ("GET" | "POST" | "PATCH" | "DELETE" | "PUT" | "HEAD" | "OPTIONS") => known,
        _ => "other",
    };
    app.metrics.note(method, &route, status, seconds);
    tracing::debug!(method, route, status, seconds, "answered");
    response
}
