//! One operation: its parameters, the headers of its call and of its answers.

use serde_json::{Map, Value, json};

use super::{object, schema_name};

/// An operation, identified by path and method.
#[derive(Clone, Copy)]
pub(super) struct ApiOperation<'a> {
    pub(super) path: &'a str,
    pub(super) method: &'a str,
}

impl ApiOperation<'_> {
    /// Adds what the path and the method say of an operation.
    pub(super) fn complete(self, operation: &mut Value, schemas: &Map<String, Value>) {
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
    pub(super) fn is_open(self) -> bool {
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
    pub(super) fn header_names(self) -> &'static [&'static str] {
        match (self.method, self.path) {
            ("get", "/v1/sessions/{session_id}/events") => &["LastRevision"],
            ("get", "/v1/events" | "/v1/holds/events") => &["LastPlace"],
            ("post", "/v1/holds/{hold_id}/decision" | "/v1/requests/{request_id}/resume") => {
                &["DecisionKey", "IfMatch"]
            }
            ("post", "/v1/sessions/{session_id}/requests") => {
                &["IdempotencyKey", "IfMatch", "Credential"]
            }
            (
                "post",
                "/openai/v1/chat/completions" | "/openai/deployments/{deployment}/chat/completions",
            ) => &[
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
            _ if !self.commits() => &[],
            _ => &["IdempotencyKey", "IfMatch"],
        }
    }

    /// Whether the operation sends a command to a session.
    pub(super) fn commits(self) -> bool {
        // Creating keys and tokens, claiming work and heartbeats store no answer for repeats.
        const UNSTORED: [&str; 10] = [
            "/openai/deployments/{deployment}/rate",
            "/v1/agents/{agent}/resume_address",
            "/v1/audit/verify",
            "/v1/backup",
            "/v1/config/reload",
            "/v1/key-ring/rotate",
            "/v1/requests/{request_id}/heartbeat",
            "/v1/sessions/{session_id}/tokens",
            "/v1/users/{user}/erase",
            "/v1/work/claim",
        ];
        self.method != "get" && !self.path.starts_with("/v1/keys") && !UNSTORED.contains(&self.path)
    }

    fn complete_responses(self, operation: &mut Value, schemas: &Map<String, Value>) {
        let headers = self.answer_header_names();
        let responses = object(&mut operation["responses"]);
        let successes = responses
            .iter_mut()
            .filter(|(status, _)| status.starts_with('2'));
        for (_, response) in successes {
            response["description"] = describe_answer(response, schemas).into();
            if !headers.is_empty() {
                let headers = headers.iter().map(|name| {
                    let reference = json!({"$ref": format!("#/components/headers/{name}")});
                    ((*name).to_owned(), reference)
                });
                response["headers"] = headers.collect::<Map<_, _>>().into();
            }
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
            (
                "post",
                "/openai/v1/chat/completions" | "/openai/deployments/{deployment}/chat/completions",
            ) => vec![SESSION, TASK, REQUEST],
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
        "model" | "deployment" => ("The agent.", text()),
        "app" => ("The app.", schema("Name")),
        "user" => ("The user.", text()),
        other => unreachable!("the path parameter `{other}` has no description"),
    };
    json!({
        "name": name, "in": "path", "required": true, "schema": schema, "description": description,
    })
}
