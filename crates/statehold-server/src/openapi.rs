//! Builds the `OpenAPI` document.
//!
//! Each route declares its id, path, parameters, schemas and rare refusals. This module adds the rules that all
//! routes share: ids in paths, headers, refusals, examples, security and optional bodies.

mod example;
mod header;
mod operation;
mod refusal;
mod schema;

use serde_json::{Map, Value};
use utoipa::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};

use crate::dial::errors::ErrorOut as DialErrorOut;
use crate::http::problem::Problem;
use crate::openai::errors::ErrorOut;
use example::Examples;
use operation::ApiOperation;
use refusal::Refusals;
use statehold_core::ids::{HoldId, KeyId, RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_engine::api::schema::{
    HoldOrderWord, HoldStatusFilter, SessionOrderWord, TaskViewWord, TraceFormWord, UntilWord,
    ViewWord,
};
use statehold_engine::api::session::{MessagePage, TracePage};
use statehold_engine::api::task::TaskView;
use statehold_engine::api::trace::ToolCallHistory;

/// OpenAI-compatible paths with an alias under `/v1`, for clients that are configured with that address.
const CHAT_ALIASES: &[(&str, &str)] = &[
    ("/openai/v1/chat/completions", "/v1/chat/completions"),
    ("/openai/v1/models", "/v1/models"),
    ("/openai/v1/models/{model}", "/v1/models/{model}"),
];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Statehold",
        description = "The API of Statehold, the state server for multi-agent AI systems: sessions, the requests \
                       and tasks in them, the holds at which people decide, and state. Writes take an \
                       `Idempotency-Key`, answers about one session carry its revision as `ETag`, and lists have \
                       pages. A refused call has changed nothing. `docs/api.md` of the project explains it all, \
                       and `docs/errors` has a page for each code of a problem.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    servers(
        (url = "/", description = "The server that serves this document."),
        (
            url = "http://{host}:{port}",
            description = "A development server, as `statehold dev` starts it.",
            variables(
                ("host" = (default = "127.0.0.1", description = "It listens on loopback only.")),
                ("port" = (default = "7717", description = "The port of `--port`."))
            )
        )
    ),
    tags(
        (name = "sessions", description = "Conversations of a user with an app."),
        (name = "requests", description = "Invocations of agents, and the work on them."),
        (name = "chat", description = "Agents as models of OpenAI's chat API."),
        (name = "dial", description = "Agents as deployments of DIAL."),
        (name = "agents", description = "Where workers of an agent hear of decisions."),
        (name = "tasks", description = "Jobs of agents inside a session."),
        (name = "holds", description = "Questions to people, and their decisions."),
        (name = "state", description = "Values of a session, an app or a user."),
        (name = "feeds", description = "Records as they are committed, over server-sent events."),
        (name = "keys", description = "Keys."),
        (name = "key-ring", description = "The key ring of the installation."),
        (name = "users", description = "Users."),
        (name = "audit", description = "The audit stream, and its verification."),
        (name = "operations", description = "What operators and their tools ask."),
    ),
    security(("bearer" = []), ("api_key" = []), ()),
    components(schemas(
        Problem, ErrorOut, DialErrorOut, SessionId, TaskId, RequestId, HoldId, KeyId, Name,
        HoldOrderWord, HoldStatusFilter, SessionOrderWord, TaskViewWord, TraceFormWord, UntilWord,
        ViewWord, MessagePage, TracePage, TaskView, ToolCallHistory
    )),
    modifiers(&KeySchemes)
)]
pub(crate) struct Document;

/// Adds the two ways to send a key to the document.
struct KeySchemes;

impl utoipa::Modify for KeySchemes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut bearer = Http::new(HttpAuthScheme::Bearer);
        let description = "A key. A development server needs none. A key of a trusted backend, with the role `client` \
                           and no user of its own, acts for the user in the header `x-statehold-user`.";
        bearer.description = Some(description.to_owned());
        let header = ApiKeyValue::with_description("Api-Key", "The same key in another header.");
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(header)));
    }
}

/// Adds the shared rules to the document of the routes.
pub(crate) fn complete(document: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("the document is JSON");
    let schemas = schema::complete(&mut document);
    let mut refusals = Refusals::default();
    let mut examples = Examples::new();
    for (path, item) in object(&mut document["paths"]) {
        for (method, operation) in object(item) {
            let call = ApiOperation { path, method };
            call.complete(operation, &schemas);
            refusals.declare(call, operation);
            examples.show(operation);
        }
    }
    let components = object(&mut document["components"]);
    components.insert("parameters".to_owned(), header::parameters());
    components.insert("headers".to_owned(), header::of_answers());
    components.insert("responses".to_owned(), refusals.into_responses());
    components.insert("examples".to_owned(), examples.into_shown());
    add_aliases(object(&mut document["paths"]));
    document
}

/// Adds the paths that are served under a second address.
fn add_aliases(paths: &mut Map<String, Value>) {
    for (path, alias) in CHAT_ALIASES {
        let mut item = paths[*path].clone();
        for operation in object(&mut item).values_mut() {
            let id = operation["operationId"].as_str().unwrap_or_default();
            operation["operationId"] = format!("{id}Alias").into();
        }
        paths.insert((*alias).to_owned(), item);
    }
}

/// An object of the document. Never fails, because this crate generates the document.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("an object of the document")
}

/// The name of the schema that a reference leads to.
fn schema_name(reference: &Value) -> Option<&str> {
    reference.as_str()?.strip_prefix("#/components/schemas/")
}
