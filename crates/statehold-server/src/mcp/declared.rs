//! The tools as clients see them: their names, texts and schemas.

use std::sync::LazyLock;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;

use super::schema;
use super::tool::WAIT_SECONDS_MAX;

/// The only tool for callers with a token of one session.
pub(super) const TOKEN_TOOL: &str = "get_state";

/// The tools.
pub(super) static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let mut tools = writing();
    tools.extend(reading());
    tools
});

/// A member of the arguments: its name, its schema, and whether it is required.
type Member = (&'static str, Value, bool);

fn text(name: &'static str, about: &str, is_required: bool) -> Member {
    (
        name,
        json!({"type": "string", "description": about}),
        is_required,
    )
}

fn session() -> Member {
    text("session_id", "The session.", true)
}

fn request() -> Member {
    text("request_id", "The request.", true)
}

fn message_seq() -> Member {
    let schema = json!({"type": "integer", "minimum": 0, "description": "The message."});
    ("seq", schema, false)
}

fn key() -> Member {
    let about = "Your own name for this call. A repeat with the same key changes nothing and gets the same answer.";
    let schema = json!({"type": "string", "minLength": 1, "maxLength": 255, "description": about});
    ("idempotency_key", schema, false)
}

fn wait() -> Member {
    let about = "How long to wait for the end of the request. 0 by default.";
    let schema = json!({
        "type": "integer", "minimum": 0, "maximum": WAIT_SECONDS_MAX, "description": about,
    });
    ("wait_seconds", schema, false)
}

fn limit(max: u64) -> Member {
    let schema = json!({"type": "integer", "minimum": 1, "maximum": max});
    ("limit", schema, false)
}

fn cursor() -> Member {
    text("cursor", "`next_cursor` of the previous page.", false)
}

fn tool(
    (name, about): (&'static str, &'static str),
    input: Arc<JsonObject>,
    output: &str,
    hints: ToolAnnotations,
) -> Tool {
    Tool::new(name, about, input)
        .with_raw_output_schema(schema::output(output))
        .with_annotations(hints.open_world(false))
}

fn writing() -> Vec<Tool> {
    let tool = |named, input, output: &str| {
        let hints = ToolAnnotations::new().read_only(false).destructive(false);
        tool(named, input, output, hints)
    };
    let version_about = "Write only if the key has this version; 0: only if there is none.";
    let version = json!({"type": "integer", "minimum": 0, "description": version_about});
    let value = json!({"description": "The value; null is a value too."});
    vec![
        tool(
            (
                "open_session",
                "Open a session: one conversation of one user with one app. With `get_or_create`, the session of \
                 that name is taken if there is one.",
            ),
            schema::object(Some("SessionIn"), &[key()]),
            "Session",
        ),
        tool(
            (
                "append_message",
                "Append a message that was said elsewhere to the transcript of a session.",
            ),
            schema::object(Some("AppendedMessageIn"), &[session(), key()]),
            "MessageWritten",
        ),
        tool(
            (
                "annotate",
                "Annotate a message or, without `seq`, the whole conversation, for example with intents. Members that \
                 are not named stay as they are; null removes one.",
            ),
            schema::object(Some("AnnotationsIn"), &[session(), message_seq(), key()]),
            "Annotations",
        ),
        tool(
            (
                "start_task",
                "Ask an agent: start a request, and wait for its answer if you like.",
            ),
            schema::object(Some("RequestIn"), &[session(), wait(), key()]),
            "Request",
        ),
        tool(
            (
                "open_hold",
                "Ask a person for an approval or an answer, as the worker of a request.",
            ),
            schema::object(Some("HoldIn"), &[request(), key()]),
            "Hold",
        ),
        tool(
            (
                "decide_hold",
                "Decide a hold. A hold gets exactly one decision.",
            ),
            schema::object(
                Some("DecisionIn"),
                &[text("hold_id", "The hold.", true), key()],
            ),
            "Decided",
        ),
        tool(
            (
                "put_state",
                "Write one value of the state of a session, or of its user with the prefix `user:`.",
            ),
            schema::object(
                None,
                &[
                    session(),
                    text("key", "The key.", true),
                    ("value", value, true),
                    ("if_version", version, false),
                    key(),
                ],
            ),
            "StateWritten",
        ),
    ]
}

fn reading() -> Vec<Tool> {
    let tool = |named, input, output: &str| {
        let hints = ToolAnnotations::new().read_only(true).idempotent(true);
        tool(named, input, output, hints)
    };
    vec![
        tool(
            (
                "get_request",
                "Read a request: its status, its answer, and the holds it waits for.",
            ),
            schema::object(None, &[request(), wait()]),
            "Request",
        ),
        tool(
            (
                "list_holds",
                "List the holds that you may see: open ones by urgency, decided ones newest first.",
            ),
            schema::object(
                None,
                &[
                    text("status", "`open`, `decided` or an outcome.", false),
                    text("session_id", "Only holds of this session.", false),
                    text("agent", "Only holds of this agent.", false),
                    text("kind", "Only holds of this kind.", false),
                    text("risk", "Only holds of this risk.", false),
                    text("user", "Only holds in sessions of this user.", false),
                    cursor(),
                    limit(200),
                ],
            ),
            "HoldPage",
        ),
        tool(
            (
                "get_state",
                "Read the state of a session, with the values of its app and user.",
            ),
            schema::object(
                None,
                &[
                    session(),
                    text("keys", "Only these keys, separated by commas.", false),
                    text("prefix", "Only keys that begin with this text.", false),
                    cursor(),
                    limit(10_000),
                ],
            ),
            "State",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_the_members_of_its_types_and_no_reference_leads_nowhere() {
        for tool in TOOLS.iter() {
            let output = tool.output_schema.as_ref().expect("a schema of the result");
            for schema in [&tool.input_schema, output] {
                let members = schema["properties"].as_object().expect("members");
                assert!(!members.is_empty(), "{}", tool.name);
                let text = serde_json::to_string(schema).expect("JSON");
                let referred = text.split("\"$ref\":\"#/$defs/").skip(1);
                for name in referred.filter_map(|rest| rest.split('"').next()) {
                    assert!(
                        schema["$defs"].get(name).is_some(),
                        "{name} of {}",
                        tool.name
                    );
                }
            }
        }
    }
}
