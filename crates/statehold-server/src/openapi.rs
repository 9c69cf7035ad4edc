//! Builds the `OpenAPI` document.
//!
//! Each route declares its path, parameters and schemas. This module adds the rules that all routes share:
//! ids in paths, headers, problems, security and optional bodies.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};

use crate::http::problem::{Code, Problem};
use crate::openai::errors::ErrorOut;
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
pub(crate) const CHAT_ALIASES: &[(&str, &str)] = &[
    ("/openai/v1/chat/completions", "/v1/chat/completions"),
    ("/openai/v1/models", "/v1/models"),
    ("/openai/v1/models/{model}", "/v1/models/{model}"),
];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Statehold",
        description = "The native API of Statehold. See docs/api.md for what it means.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    tags(
        (name = "sessions", description = "Conversations of a user with an app."),
        (name = "requests", description = "Invocations of agents, and the work on them."),
        (name = "chat", description = "Agents as models of OpenAI's chat API."),
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
        Problem, ErrorOut, SessionId, TaskId, RequestId, HoldId, KeyId, Name,
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
        bearer.description = Some("A key. A development server needs none.".to_owned());
        let header = ApiKeyValue::with_description("Api-Key", "The same key in another header.");
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(header)));
    }
}

/// Adds the shared rules to the document of the routes.
pub(crate) fn complete(document: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("the document is JSON");
    let taken = taken_schemas(&document);
    let schemas = object(&mut document["components"]["schemas"]);
    for (name, schema) in schemas.iter_mut() {
        if !taken.contains(name) {
            never_null(schema);
        }
    }
    describe_problem(&mut schemas["Problem"]);
    let schemas = schemas.clone();
    document["components"]["parameters"] = header_parameters();
    document["components"]["headers"] = answer_headers();
    for (path, item) in object(&mut document["paths"]) {
        for (method, operation) in object(item) {
            let call = ApiOperation { path, method };
            call.complete(operation, &schemas);
        }
    }
    let paths = object(&mut document["paths"]);
    for (path, alias) in CHAT_ALIASES {
        let mut item = paths[*path].clone();
        for operation in object(&mut item).values_mut() {
            let id = operation["operationId"].as_str().unwrap_or_default();
            operation["operationId"] = format!("{id}_v1").into();
        }
        paths.insert((*alias).to_owned(), item);
    }
    document
}

/// An object of the document. Never fails, because this crate generates the document.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("an object of the document")
}

/// The names of the schemas in request bodies.
fn taken_schemas(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.filter_map(|(_, item)| item.as_object()).flatten();
    let mut open: Vec<&Value> = operations
        .map(|(_, operation)| &operation["requestBody"])
        .collect();
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(schema_name)
                    && found.insert(name.to_owned())
                {
                    open.push(&document["components"]["schemas"][name]);
                }
                open.extend(fields.values());
            }
            Value::Array(values) => open.extend(values),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    found
}

fn schema_name(reference: &Value) -> Option<&str> {
    reference.as_str()?.strip_prefix("#/components/schemas/")
}

/// Removes `null` from a schema of answers: answers leave out missing values.
fn never_null(schema: &mut Value) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for property in properties.values_mut() {
        if let Some(Value::Array(kinds)) = property.get_mut("type") {
            kinds.retain(|kind| kind != "null");
            if let [only] = kinds.as_slice() {
                property["type"] = only.clone();
            }
        }
        if let Some(Value::Array(choices)) = property.get_mut("oneOf") {
            choices.retain(|choice| choice["type"] != "null");
            if let [only] = choices.as_slice() {
                *property = only.clone();
            }
        }
    }
}

fn describe_problem(schema: &mut Value) {
    let codes = Code::ALL.iter().map(|code| Value::from(code.text()));
    schema["properties"]["code"]["enum"] = codes.collect();
    schema["properties"]["type"]["format"] = "uri".into();
    schema["properties"]["status"]["minimum"] = 400.into();
    schema["properties"]["status"]["maximum"] = 599.into();
}

/// The headers that calls may carry, by the names under which operations refer to them.
fn header_parameters() -> Value {
    let header = |name: &str, description: &str, schema: Value| {
        json!({
            "name": name, "in": "header", "required": false,
            "description": description, "schema": schema,
        })
    };
    json!({
        "IdempotencyKey": header(
            "Idempotency-Key",
            "The same key with the same call gets the same answer for 24 hours.",
            json!({"type": "string", "pattern": "^[!-~]{1,255}$"}),
        ),
        "DecisionKey": header(
            "Idempotency-Key",
            "The key of the decision. Without one, the same decision by the same principal is the \
             same decision.",
            json!({"type": "string", "pattern": "^[!-~]{1,255}$"}),
        ),
        "Credential": header(
            "x-statehold-credential",
            "A secret for the worker that claims the request. It is kept in memory only.",
            json!({"type": "string", "pattern": "^[!-~]([ -~]{0,8190}[!-~])?$"}),
        ),
        "IfMatch": header(
            "If-Match",
            "The revision that the session must have, in quotes as `ETag` gave it.",
            json!({"type": "string", "pattern": "^(\\*|\"[0-9]{1,19}\")$"}),
        ),
        "LastRevision": header(
            "Last-Event-ID",
            "Resume after this revision.",
            json!({"type": "string", "pattern": "^[0-9]{1,19}$"}),
        ),
        "LastPlace": header(
            "Last-Event-ID",
            "Resume after the event that had this id.",
            json!({"type": "string"}),
        ),
        "ChatSession": header(
            "x-statehold-session",
            "The session to continue, or `new`.",
            json!({"type": "string", "pattern": "^(new|ses_[0-9a-f]{32})$"}),
        ),
        "ChatTask": header(
            "x-statehold-task",
            "The task to continue.",
            json!({"$ref": "#/components/schemas/TaskId"}),
        ),
        "ChatApp": header(
            "x-statehold-app",
            "The app of a new session; `default` if left out.",
            json!({"$ref": "#/components/schemas/Name"}),
        ),
        "ChatWait": header(
            "x-statehold-wait",
            "How many seconds to wait for people before the answer says that the turn is paused.",
            json!({"type": "string", "pattern": "^[0-9]{1,4}$"}),
        ),
        "ChatDebug": header(
            "x-statehold-debug",
            "`1`: the answer carries the hidden items of its turn. Needs `operator`, and is audited.",
            json!({"type": "string", "enum": ["0", "1"]}),
        ),
    })
}

/// The headers that answers may carry, by the names under which responses refer to them.
fn answer_headers() -> Value {
    let header =
        |description: &str, schema: Value| json!({"description": description, "schema": schema});
    let id = |description: &str, name: &str| {
        header(
            description,
            json!({"$ref": format!("#/components/schemas/{name}")}),
        )
    };
    json!({
        "ETag": header(
            "The revision of the session, in quotes.",
            json!({"type": "string", "pattern": "^\"[0-9]+\"$"}),
        ),
        "x-statehold-session": id("The session that the answer is about.", "SessionId"),
        "x-statehold-task": id("The task that the answer is about.", "TaskId"),
        "x-statehold-request": id("The request that the answer is about.", "RequestId"),
        "Idempotency-Replayed": header(
            "This is the stored answer to an earlier call with the same key.",
            json!({"type": "string", "enum": ["true"]}),
        ),
    })
}

/// An operation, identified by path and method.
#[derive(Clone, Copy)]
struct ApiOperation<'a> {
    path: &'a str,
    method: &'a str,
}

impl ApiOperation<'_> {
    fn complete(self, operation: &mut Value, schemas: &Map<String, Value>) {
        // Function names are unique only within their module; the tag makes the id unique.
        let id = format!(
            "{}_{}",
            operation["tags"][0].as_str().unwrap_or_default(),
            operation["operationId"].as_str().unwrap_or_default(),
        );
        operation["operationId"] = id.into();
        if self.is_open() {
            operation["security"] = json!([]);
        }
        self.complete_parameters(operation);
        if let Some(body) = operation.get_mut("requestBody") {
            let name = schema_name(&body["content"]["application/json"]["schema"]["$ref"]);
            let schema = name.and_then(|name| schemas.get(name));
            // The server reads a missing body as an empty object.
            body["required"] = schema
                .is_some_and(|schema| schema.get("required").is_some())
                .into();
        }
        self.complete_responses(operation, schemas);
    }

    /// Whether the operation needs no key.
    fn is_open(self) -> bool {
        matches!(self.path, "/healthz" | "/readyz" | "/openapi.json")
    }

    fn complete_parameters(self, operation: &mut Value) {
        let in_path = self.path.split(['{', '}']).skip(1).step_by(2);
        let mut parameters: Vec<Value> = in_path.map(path_parameter).collect();
        if let Value::Array(in_query) = operation["parameters"].take() {
            parameters.extend(in_query);
        }
        let headers = self.header_names().iter();
        parameters
            .extend(headers.map(|name| json!({"$ref": format!("#/components/parameters/{name}")})));
        let operation = object(operation);
        if parameters.is_empty() {
            operation.remove("parameters");
            return;
        }
        operation.insert("parameters".to_owned(), parameters.into());
        // Parameters come before the body and the answers.
        for name in ["requestBody", "responses"] {
            if let Some(value) = operation.shift_remove(name) {
                operation.insert(name.to_owned(), value);
            }
        }
    }

    /// The headers that the operation reads.
    fn header_names(self) -> &'static [&'static str] {
        match (self.method, self.path) {
            ("get", "/v1/sessions/{session_id}/events") => &["LastRevision"],
            ("get", "/v1/events" | "/v1/holds/events") => &["LastPlace"],
            ("post", "/v1/holds/{hold_id}/decision" | "/v1/requests/{request_id}/resume") => {
                &["DecisionKey", "IfMatch"]
            }
            ("post", "/v1/sessions/{session_id}/requests") => {
                &["IdempotencyKey", "IfMatch", "Credential"]
            }
            ("post", "/openai/v1/chat/completions") => &[
                "ChatSession",
                "ChatTask",
                "ChatApp",
                "ChatWait",
                "ChatDebug",
                "IdempotencyKey",
                "IfMatch",
                "Credential",
            ],
            // A new session has no revision to match yet.
            ("post", "/v1/sessions") => &["IdempotencyKey"],
            // Creating keys, claiming work and heartbeats cannot be replayed.
            _ if !self.commits() => &[],
            _ => &["IdempotencyKey", "IfMatch"],
        }
    }

    /// Whether the operation sends a command to a session.
    fn commits(self) -> bool {
        let is_write = matches!(self.method, "post" | "patch" | "delete");
        is_write
            && !self.path.starts_with("/v1/keys")
            && !self.path.starts_with("/v1/agents")
            && self.path != "/v1/work/claim"
            && self.path != "/v1/requests/{request_id}/heartbeat"
    }

    fn complete_responses(self, operation: &mut Value, schemas: &Map<String, Value>) {
        let headers = self.answer_header_names();
        let responses = object(&mut operation["responses"]);
        for response in responses.values_mut() {
            response["description"] = describe_answer(response, schemas).into();
            if !headers.is_empty() {
                let headers = headers.iter().map(|name| {
                    let reference = json!({"$ref": format!("#/components/headers/{name}")});
                    ((*name).to_owned(), reference)
                });
                response["headers"] = headers.collect::<Map<_, _>>().into();
            }
        }
        if self.path != "/healthz" && self.path != "/openapi.json" {
            let (kind, schema) = if self.path.starts_with("/openai/") {
                ("application/json", "ChatError")
            } else {
                ("application/problem+json", "Problem")
            };
            let schema = format!("#/components/schemas/{schema}");
            let problem = json!({
                "description": "A problem; `code` says which.",
                "content": {kind: {"schema": {"$ref": schema}}},
            });
            responses.insert("default".to_owned(), problem);
        }
    }

    /// The headers that a successful answer may carry.
    fn answer_header_names(self) -> Vec<&'static str> {
        const SESSION: &str = "x-statehold-session";
        const TASK: &str = "x-statehold-task";
        const REQUEST: &str = "x-statehold-request";
        let below = |prefix: &str| self.path.starts_with(prefix);
        let mut names = match (self.method, self.path) {
            (_, "/v1/sessions/{session_id}/events")
            | ("get", "/v1/sessions" | "/v1/holds/counts" | "/v1/holds/events") => vec![],
            ("delete", "/v1/sessions/{session_id}") => vec!["ETag"],
            (_, "/v1/sessions/{session_id}/requests") | ("get", "/v1/requests/{request_id}") => {
                vec!["ETag", SESSION, TASK, REQUEST]
            }
            (_, "/v1/requests/{request_id}/heartbeat") => vec![SESSION, REQUEST],
            ("get", "/v1/holds/{hold_id}") => vec![SESSION, TASK, REQUEST],
            _ if below("/v1/sessions") => vec!["ETag", SESSION],
            _ if below("/v1/requests/") || below("/v1/holds/") => vec!["ETag", SESSION, REQUEST],
            ("post", "/openai/v1/chat/completions") => vec![SESSION, TASK, REQUEST],
            _ if below("/v1/tasks/") => vec!["ETag", SESSION, TASK],
            _ if below("/v1/state/") => vec!["ETag"],
            _ => vec![],
        };
        if self.commits() {
            names.push("Idempotency-Replayed");
        }
        names
    }
}

fn describe_answer(response: &Value, schemas: &Map<String, Value>) -> String {
    let contents = response["content"].as_object().into_iter().flatten();
    let mut names = contents.filter_map(|(_, content)| schema_name(&content["schema"]["$ref"]));
    let described = names.next().and_then(|name| schemas.get(name));
    let own = response["description"]
        .as_str()
        .filter(|text| !text.is_empty());
    let text = own.or_else(|| described?["description"].as_str());
    text.unwrap_or("It is done.").to_owned()
}

/// A path parameter.
fn path_parameter(name: &str) -> Value {
    let schema = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let text = || json!({"type": "string", "minLength": 1, "maxLength": 256});
    let (description, schema) = match name {
        "session_id" => ("The session.", schema("SessionId")),
        "task_id" => ("The task.", schema("TaskId")),
        "request_id" => ("The request.", schema("RequestId")),
        "hold_id" => ("The hold.", schema("HoldId")),
        "key_id" => ("The key, by its id.", schema("KeyId")),
        "seq" => (
            "The message, by its `seq`.",
            json!({"type": "integer", "minimum": 0}),
        ),
        "agent" => ("The agent.", schema("Name")),
        "model" => ("The agent.", text()),
        "app" => ("The app.", schema("Name")),
        "user" => ("The user.", text()),
        other => unreachable!("the path parameter `{other}` has no description"),
    };
    json!({
        "name": name, "in": "path", "required": true, "schema": schema, "description": description,
    })
}
