//! Applications of DIAL, as its SDK makes them: the chunks that they send, and the calls that they refuse.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::response::{BodyStep, ScriptedResponse, event, send};
use crate::service::SeenRequest;

const DONE: &str = "data: [DONE]\n\n";

/// The members of a call that the SDK knows, as far as tests send them.
const REQUEST_MEMBERS: [&str; 12] = [
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "seed",
    "user",
    "max_tokens",
    "response_format",
    "custom_fields",
];
const MESSAGE_MEMBERS: [&str; 9] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "refusal",
    "custom_fields",
    "custom_content",
];
const CUSTOM_MEMBERS: [&str; 5] = [
    "state",
    "attachments",
    "stages",
    "form_value",
    "form_schema",
];

/// A chunk with one change of the answer.
pub fn delta(delta: &Value) -> BodyStep {
    chunk(&delta.to_string())
}

/// A chunk with a member `custom_content`, sent verbatim.
pub fn custom(custom_content: &str) -> BodyStep {
    chunk(&format!(r#"{{"custom_content":{custom_content}}}"#))
}

fn chunk(delta: &str) -> BodyStep {
    event(&format!(
        r#"{{"id":"c1","created":1794704880,"object":"chat.completion.chunk","choices":[{{"index":0,"finish_reason":null,"delta":{delta}}}],"usage":null}}"#
    ))
}

/// A piece of the answer.
pub fn say(text: &str) -> BodyStep {
    delta(&json!({ "content": text }))
}

/// A change of a stage.
pub fn stage(update: &Value) -> BodyStep {
    custom(&json!({ "stages": [update] }).to_string())
}

/// A stage opens.
pub fn opens(index: u64, name: &str) -> BodyStep {
    stage(&json!({"index": index, "name": name, "status": null}))
}

/// A stage opens below another one.
pub fn opens_below(parent: u64, index: u64, name: &str) -> BodyStep {
    stage(&json!({"index": index, "name": name, "status": null, "parent_stage_index": parent}))
}

/// A piece of the text of a stage.
pub fn writes(index: u64, text: &str) -> BodyStep {
    stage(&json!({"index": index, "content": text, "status": null}))
}

/// A stage ends.
pub fn closes(index: u64, status: &str) -> BodyStep {
    stage(&json!({"index": index, "status": status}))
}

/// The state of the answer, sent verbatim.
pub fn state(state: &str) -> BodyStep {
    custom(&format!(r#"{{"state":{state}}}"#))
}

/// An error after the first chunk.
pub fn error(message: &str) -> BodyStep {
    let error = json!({"message": message, "type": "runtime_error", "code": "500"});
    send(&format!("data: {}\n\n{DONE}", json!({ "error": error })))
}

/// The end of an answer, with the token usage.
pub fn end() -> BodyStep {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    let statistics =
        json!({"usage_per_model": [{"index": 0, "model": "gpt-4o", "total_tokens": 15}]});
    let choice = json!({"index": 0, "finish_reason": "stop", "delta": {}});
    let last = json!({"choices": [choice], "usage": usage, "statistics": statistics});
    send(&format!("data: {last}\n\n{DONE}"))
}

/// A streamed answer that ends well.
pub fn answer(steps: Vec<BodyStep>) -> ScriptedResponse {
    unended(steps.into_iter().chain([end()]).collect())
}

/// The beginning of a streamed answer. The last step says how it ends.
pub fn unended(steps: Vec<BodyStep>) -> ScriptedResponse {
    let heartbeat = BodyStep::Send(Bytes::from_static(b": heartbeat\n\n"));
    let head = [delta(&json!({"role": "assistant"})), heartbeat];
    ScriptedResponse::events(head.into_iter().chain(steps).collect())
}

/// A whole answer with a member `custom_content`, sent verbatim.
pub fn whole(text: &str, custom_content: &str) -> ScriptedResponse {
    let text = json!(text);
    let message =
        format!(r#"{{"role":"assistant","custom_content":{custom_content},"content":{text}}}"#);
    ScriptedResponse::json(
        200,
        &format!(r#"{{"choices":[{{"index":0,"finish_reason":"stop","message":{message}}}]}}"#),
    )
}

/// The answer of the SDK to a call that it does not accept. None for others.
pub fn refusal(seen: &SeenRequest) -> Option<ScriptedResponse> {
    let message = if seen.header("api-key").is_none() {
        "Api-Key header is required".to_owned()
    } else {
        invalid_member(&seen.json())?
    };
    let error = json!({"message": message, "type": "invalid_request_error", "code": "400"});
    Some(ScriptedResponse::json(400, &json!({ "error": error })))
}

fn invalid_member(body: &Value) -> Option<String> {
    let unknown = |value: &Value, known: &[&str], path: &str| {
        let mut names = value.as_object()?.keys();
        let extra = names.find(|name| !known.contains(&name.as_str()))?;
        Some(format!("{path}{extra}: extra fields not permitted"))
    };
    unknown(body, &REQUEST_MEMBERS, "").or_else(|| {
        let mut messages = body["messages"].as_array().into_iter().flatten();
        messages.find_map(|message| {
            let custom = &message["custom_content"];
            let mut files = custom["attachments"].as_array().into_iter().flatten();
            let mut stages = custom["stages"].as_array().into_iter().flatten();
            let is_wrong = |file: &Value| file["data"].is_null() == file["url"].is_null();
            unknown(message, &MESSAGE_MEMBERS, "messages.")
                .or_else(|| unknown(custom, &CUSTOM_MEMBERS, "custom_content."))
                .or_else(|| files.find(|file| is_wrong(file)).map(ToString::to_string))
                .or_else(|| {
                    stages
                        .find(|one| one["status"].is_null())
                        .map(ToString::to_string)
                })
        })
    })
}
