//! Size limits of results, without a server.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::json;
use statehold_engine::Credential;

use super::*;
use crate::mcp::reply::REPLY_BYTES_MAX;
use crate::secrets::SecretRedactor;

fn reply_of(result: CallToolResult) -> ToolReply {
    ToolReply::of(result, &SecretRedactor::default())
}

#[test]
fn secrets_are_left_out_of_a_reply_wherever_they_stand() {
    let mut result = CallToolResult::error(vec![
        ContentBlock::text("no entry for hunter2-and-more"),
        ContentBlock::image("hunter2", "image/png"),
    ]);
    result.structured_content = Some(json!({"hunter2": [{"header": "Bearer hunter2"}, 2]}));
    let secrets = SecretRedactor::new(["hunter2", "hunter2-and-more"].into_iter());
    let reply = ToolReply::of(result, &secrets);
    assert!(reply.is_error);
    assert_eq!(reply.content["text"], "no entry for …");
    let structured = json!({"…": [{"header": "Bearer …"}, 2]});
    assert_eq!(reply.content["structured"], structured);
    assert!(!reply.content.to_string().contains("hunter2"));
}

#[test]
fn what_is_no_secret_by_its_name_stays_in_replies_as_it_is() {
    let variable = |name: &str, value: &str| {
        let value = Credential::new(value.to_owned()).expect("a value");
        (name.to_owned(), value)
    };
    let spec = ToolServerSpec {
        name: name("notes"),
        transport: ToolTransport::Command {
            program: "notes".to_owned(),
            arguments: Vec::new(),
            environment: vec![
                variable("NOTES_DIR", "/srv/notes"),
                variable("NOTES_TOKEN", "notes-secret"),
                variable("PIN_KEY", "1234567"),
            ],
            mark: None,
        },
        timeout: PATIENCE,
        trust_hints: false,
    };
    let said = "/srv/notes/1234567.md needs notes-secret".to_owned();
    let left = spec.reply_redactor(None).redact(said);
    assert_eq!(left, "/srv/notes/1234567.md needs …");
}

#[test]
fn a_reply_is_measured_as_the_json_it_becomes() {
    // Each of these characters takes six bytes in JSON.
    let text = "\u{1}".repeat(REPLY_BYTES_MAX / 2);
    let reply = reply_of(CallToolResult::success(vec![ContentBlock::text(text)]));
    let size = reply.content.to_string().len();
    assert!(size <= REPLY_BYTES_MAX, "{size}");
    assert!(size > REPLY_BYTES_MAX - 1024, "{size}");
}

#[test]
fn structured_content_that_does_not_fit_is_left_out_and_that_is_said() {
    let mut result = CallToolResult::success(vec![ContentBlock::text("summary")]);
    result.structured_content = Some(json!({"rows": "x".repeat(2 * REPLY_BYTES_MAX)}));
    let reply = reply_of(result);
    let words = text(&reply);
    assert!(words.starts_with("summary\n[cut: 1 part"), "{words}");
}

#[test]
fn structured_content_without_text_is_told_as_json() {
    let mut result = CallToolResult::success(Vec::new());
    result.structured_content = Some(json!({"sum": 3}));
    let reply = reply_of(result);
    assert_eq!(reply.content, json!({"structured": {"sum": 3}}));
    assert_eq!(reply.for_model(), "{\"sum\":3}");
}

#[test]
fn an_empty_answer_is_an_empty_text() {
    let reply = reply_of(CallToolResult::success(Vec::new()));
    assert_eq!(reply.content, json!(""));
    assert!(!reply.is_error);
}

#[test]
fn the_words_of_a_server_are_one_short_line() {
    let said = rmcp::model::ErrorData::internal_error("bad\n\u{1b}[2J".repeat(100), None);
    let spec = ToolServerSpec {
        name: name("bench"),
        transport: bench::at(([127, 0, 0, 1], 1).into(), None),
        timeout: PATIENCE,
        trust_hints: false,
    };
    let error = ToolError::of(&spec, crate::mcp::connection::McpFailure::ErrorReply(said));
    let words = error.to_string();
    assert!(
        !words.contains('\n') && !words.contains('\u{1b}'),
        "{words:?}"
    );
    assert!(words.chars().count() < 400);
}
