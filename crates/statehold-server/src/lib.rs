//! The HTTP server: the native API, feeds, conversations, the APIs of OpenAI, DIAL, Google's Conversational Analytics
//! and ADK, and the pages of the console. It converts wire types to engine calls and results to wire types, and never
//! touches a store.

mod adk;
mod analytics;
mod chat;
mod console;
mod dial;
mod http;
mod mcp;
mod native;
mod openai;
mod openapi;
mod reload;
mod ums;

use std::sync::LazyLock;

use ::http::{HeaderValue, Method, Uri};
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use statehold_engine::Engine;
use statehold_engine::trace::{self, OpenSpan, SpanKind, TraceContext};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use crate::console::PATH as CONSOLE_PATH;
pub use crate::http::call::ServerOptions;
pub use crate::http::metrics::Metrics;
pub use crate::http::shares::RateLimit;
pub use crate::http::{accept, json, problem, read_token, seal};
pub use crate::mcp::PATH as MCP_PATH;
pub use reload::{Reload, ReloadError, ReloadFuture, ReloadMistake, ReloadReport};
pub use statehold_engine::api::work::pushed_body;
pub use ums::{UmsOptions, UmsRoot, UmsRootError};

use crate::http::call::App;
use crate::http::problem::{Code, Problem};
use crate::http::seal::Sealer;

/// The API as an axum router.
pub fn router(engine: Engine, sealer: Sealer, options: ServerOptions, metrics: Metrics) -> Router {
    let (has_clock, has_console) = (options.clock.is_some(), options.console);
    let app = App::new(engine, sealer, options, metrics);
    let (mut router, _) = routes().split_for_parts();
    if has_clock {
        // Left out of openapi.json: only development servers have this route.
        router = router.route(native::dev::CLOCK_PATH, post(native::dev::clock));
    }
    if has_console {
        router = console::add_routes(router);
    }
    for path in analytics::PATHS {
        router = router.route(path, any(analytics::serve));
    }
    let router = ums::add_routes(adk::add_routes(router), &app.options.ums.root);
    router
        .route(mcp::PATH, any(mcp::serve))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{model}", get(openai::models::read))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(
            app.clone(),
            http::dial_caller::identify,
        ))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .layer(CatchPanicLayer::custom(|_| {
            let detail = "the server has a bug here; nothing that was not confirmed has happened";
            Problem::new(Code::Internal, detail).into_response()
        }))
        .layer(middleware::from_fn(dial::errors::translate))
        .layer(middleware::from_fn(openai::errors::translate))
        .layer(middleware::from_fn(analytics::errors::translate))
        .layer(middleware::from_fn(adk::errors::translate))
        .layer(middleware::from_fn_with_state(
            app.clone(),
            ums::errors::translate,
        ))
        .with_state(app)
}

/// The `OpenAPI` document, exactly as `openapi.json` in the repository has it.
pub fn openapi_json() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (_, document) = routes().split_for_parts();
        format!("{:#}\n", openapi::complete(&document))
    });
    &TEXT
}

fn routes() -> OpenApiRouter<App> {
    use native::{
        agent, audit, backup, chat, feed, hold, key, key_ring, operations, request, resume_address,
        session, state, task, user,
    };
    OpenApiRouter::with_openapi(openapi::Document::openapi())
        .merge(session::routes())
        .merge(feed::routes())
        .merge(request::routes())
        .merge(task::routes())
        .merge(hold::routes())
        .merge(state::routes())
        .merge(agent::routes())
        .merge(resume_address::routes())
        .merge(chat::routes())
        .routes(routes!(openai::chat))
        .routes(routes!(openai::models::list))
        .routes(routes!(openai::models::read))
        .routes(routes!(dial::chat))
        .routes(routes!(dial::deployments::list))
        .routes(routes!(dial::deployments::read))
        .routes(routes!(dial::deployments::configuration))
        .routes(routes!(dial::deployments::rate))
        .merge(key::routes())
        .merge(key_ring::routes())
        .merge(user::routes())
        .merge(audit::routes())
        .merge(backup::routes())
        .merge(operations::routes())
}

async fn no_route(uri: Uri) -> Problem {
    openai::errors::not_served(uri.path()).unwrap_or_else(Problem::not_found)
}

async fn no_method() -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        "this path does not take this method; see /openapi.json",
    )
}

/// Counts and logs every call by its route. Text from the caller never becomes a label.
async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = tokio::time::Instant::now();
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let mut span = begin_span(&app, &request, &method, &route);
    let place = span.as_ref().and_then(OpenSpan::context);
    let mut response = trace::within(place, next.run(request)).await;
    response.headers_mut().insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    // Against clickjacking: no page may frame an answer.
    response
        .headers_mut()
        .insert("x-frame-options", HeaderValue::from_static("DENY"));
    let status = response.status().as_u16();
    let seconds = begun.elapsed().as_secs_f64();
    let method = known_method(&method);
    if let Some(span) = &mut span {
        span.set("http.response.status_code", status.to_string());
        if status >= 500 {
            span.fail();
        }
    }
    app.metrics.note(method, &route, status, seconds);
    tracing::debug!(method, route, status, seconds, "answered");
    response
}

/// The span of a call, in the trace of its caller if that has one. Calls of monitors have none.
fn begin_span(app: &App, request: &Request, method: &Method, route: &str) -> Option<OpenSpan> {
    let traces = app.engine.traces()?;
    if matches!(route, "/healthz" | "/readyz" | "/metrics") {
        return None;
    }
    let method = known_method(method);
    let caller = request.headers().get("traceparent");
    let caller = caller.and_then(|text| TraceContext::parse(text.to_str().ok()?));
    let named = (SpanKind::Server, format!("{method} {route}"));
    let mut span = traces.begin(caller, named, app.engine.now())?;
    span.set("http.request.method", method);
    span.set("http.route", route);
    Some(span)
}

/// Unknown methods share one name, so callers cannot grow the metrics without bound.
fn known_method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("other")
}
