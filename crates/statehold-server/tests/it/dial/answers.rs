//! The bytes of answers.

use serde_json::{Value, json};
use statehold_engine::api::json::raw_bytes;
use statehold_engine::stage::{StageChange, StageStatus};

use super::{Scene, finished, id, merged, message, said};
use crate::rest::act;

fn opened(parent: Option<usize>, name: &str) -> StageChange {
    StageChange::Opened {
        parent,
        name: name.to_owned(),
    }
}

fn wrote(stage: usize, text: &str) -> StageChange {
    StageChange::Wrote {
        stage,
        text: text.to_owned(),
    }
}

fn named(stage: usize, text: &str) -> StageChange {
    StageChange::Named {
        stage,
        text: text.to_owned(),
    }
}

fn attached(stage: usize, file: &Value) -> StageChange {
    StageChange::Attached {
        stage,
        file: raw_bytes(file.to_string().as_bytes()),
    }
}

fn closed(stage: usize) -> StageChange {
    StageChange::Closed {
        stage,
        status: StageStatus::Completed,
    }
}

/// The stages of the transcript.
fn stages() -> Vec<StageChange> {
    let file = json!({"index": 7, "type": "text/plain", "title": "t", "data": "d", "url": null});
    vec![
        opened(None, "Coordination"),
        wrote(0, "Routing to GPA"),
        opened(Some(0), "child"),
        named(1, " x"),
        attached(1, &file),
        closed(1),
        closed(0),
    ]
}

/// An end with a file and tokens, and the stages of the transcript.
fn ending() -> Value {
    let usage =
        json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "model": "gpt-4o"});
    let file = json!({"type": "text/csv", "title": "r", "url": "files/b/r.csv"});
    json!({
        "output": {"content": "Hello", "attachments": [file]},
        "items": [
            {"kind": "step", "data": {"usage": usage}},
            {"kind": "note", "name": "stages", "data": [
                {"name": "Coordination", "content": "Routing to GPA", "status": "completed"},
                {"name": "child x", "status": "completed", "parent": 0, "attachments": [
                    {"index": 7, "type": "text/plain", "title": "t", "data": "d"}]},
            ]},
        ],
    })
}

/// Takes the parts of a chunk away that differ from answer to answer.
fn masked(line: &str) -> String {
    let chunk: Value = serde_json::from_str(line).expect("JSON");
    let id = format!(r#","id":{},"created":{},"#, chunk["id"], chunk["created"]);
    assert_eq!(line.matches(&id).count(), 1, "{line}");
    let state = &chunk["choices"][0]["delta"]["custom_content"]["state"];
    let line = line.replacen(&id, ",", 1);
    match state {
        Value::Null => line,
        state => line.replacen(&state.to_string(), "STATE", 1),
    }
}

const TRANSCRIPT: [&str; 13] = [
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"role":"assistant"}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"stages":[{"index":0,"name":"Coordination","status":null}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"stages":[{"index":0,"content":"Routing to GPA","status":null}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"stages":[{"index":1,"name":"child","status":null,"parent_stage_index":0}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"stages":[{"index":1,"name":" x","status":null}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"stages":[{"index":1,"attachments":[{"index":0,"type":"text/plain","title":"t","data":"d"}],"status":null}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"stages":[{"index":1,"status":"completed"}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"stages":[{"index":0,"status":"completed"}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"content":"Hel"}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"content":"lo"}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"attachments":[{"index":0,"type":"text/csv","title":"r","url":"files/b/r.csv"}]}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"custom_content":{"state":STATE}}}],"usage":null,"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"index":0,"finish_reason":"stop","delta":{}}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15},"statistics":{"usage_per_model":[{"index":0,"model":"gpt-4o","prompt_tokens":10,"completion_tokens":5,"total_tokens":15}]},"object":"chat.completion.chunk"}"#,
];

/// The transcript that DIAL's SDK writes, with the sealed reference in the place of the state.
#[tokio::test]
async fn a_stream_has_the_bytes_of_an_application_built_with_dials_sdk() {
    let scene = Scene::new().await;
    let mut stream = scene.stream(said("hi"), &[]).await;
    let request = scene.claim().await;
    let mut lines = Vec::new();
    let engine = &scene.rig.engine;
    lines.push(stream.line().await.expect("a chunk"));
    for change in stages() {
        engine.write_stage(id(&request), change);
        lines.push(stream.line().await.expect("a chunk"));
    }
    for piece in ["Hel", "lo"] {
        engine.write_draft(id(&request), piece);
        lines.push(stream.line().await.expect("a chunk"));
    }
    let done = act(&scene.helper, &request, "complete", ending()).await;
    done.ok(200);
    lines.extend(stream.rest().await);
    let shown: Vec<String> = lines.iter().map(|line| masked(line)).collect();
    assert_eq!(shown, TRANSCRIPT);
    let ids: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["id"].clone())
        .collect();
    assert!(ids.iter().all(|one| *one == ids[0]));
}

#[tokio::test]
async fn a_whole_answer_is_what_a_client_merges_from_the_stream() {
    let scene = Scene::new().await;
    let call = scene.send(&said("hi"), &[]);
    let request = scene.claim().await;
    act(&scene.helper, &request, "complete", ending())
        .await
        .ok(200);
    let answer = finished(call).await;
    let body = answer.ok(200);
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["total_tokens"], 15);
    assert_eq!(body["statehold"], Value::Null);
    let mut whole = message(&answer);
    assert!(whole["custom_content"]["state"]["statehold"]["ref"].is_string());
    assert_eq!(
        whole["custom_content"]["stages"],
        json!([
            {"name": "Coordination", "content": "Routing to GPA", "status": "completed"},
            {"name": "child x", "status": "completed", "parent_stage_index": 0,
             "attachments": [{"type": "text/plain", "title": "t", "data": "d"}]},
        ])
    );
    let mut stream = scene.stream(said("hello"), &[]).await;
    let request = scene.claim().await;
    act(&scene.helper, &request, "complete", ending())
        .await
        .ok(200);
    let mut streamed = merged(&stream.chunks().await);
    for message in [&mut whole, &mut streamed] {
        message["custom_content"]["state"] = Value::Null;
    }
    assert_eq!(streamed, whole);
}

#[tokio::test]
async fn each_chunk_is_about_one_thing_and_the_last_one_has_the_rest() {
    let scene = Scene::new().await;
    let mut stream = scene.stream(said("hi"), &[]).await;
    let request = scene.claim().await;
    act(&scene.helper, &request, "complete", ending())
        .await
        .ok(200);
    let chunks = stream.chunks().await;
    let (last, before) = chunks.split_last().expect("chunks");
    let mut states = 0;
    for (at, chunk) in before.iter().enumerate() {
        let choice = &chunk["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &chunk["usage"]),
            (&Value::Null, &Value::Null)
        );
        let delta = choice["delta"].as_object().expect("an object");
        assert_eq!(delta.len(), 1, "{chunk}");
        assert_eq!(delta.contains_key("role"), at == 0);
        if let Some(custom) = delta.get("custom_content") {
            assert_eq!(
                custom.as_object().map(serde_json::Map::len),
                Some(1),
                "{chunk}"
            );
            states += usize::from(custom["state"].is_object());
        }
    }
    assert_eq!(states, 1);
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["usage"]["prompt_tokens"], 10);
}

#[tokio::test]
async fn stages_that_were_left_open_are_closed_with_the_answer_and_fail_with_the_turn() {
    let scene = Scene::new().await;
    for (end, status) in [("complete", "completed"), ("fail", "failed")] {
        let mut stream = scene.stream(said(end), &[]).await;
        let request = scene.claim().await;
        let engine = &scene.rig.engine;
        assert_eq!(
            stream.chunk().await["choices"][0]["delta"]["role"],
            "assistant"
        );
        for change in [opened(None, "one"), opened(Some(0), "two")] {
            engine.write_stage(id(&request), change);
            stream.chunk().await;
        }
        let body = match end {
            "complete" => json!({"output": "done"}),
            _ => json!({"error": {"code": "agent_error", "message": "boom"}}),
        };
        act(&scene.helper, &request, end, body).await.ok(200);
        let chunks = stream.chunks().await;
        let custom = |at: usize| &chunks[at]["choices"][0]["delta"]["custom_content"];
        // Children before their parents.
        assert_eq!(
            custom(0),
            &json!({"stages": [{"index": 1, "status": status}]})
        );
        assert_eq!(
            custom(1),
            &json!({"stages": [{"index": 0, "status": status}]})
        );
        if end == "fail" {
            let error = &chunks[2]["error"];
            assert_eq!((chunks.len(), &error["code"]), (3, &json!("agent_error")));
            assert!(error["display_message"].is_string(), "{error}");
        }
    }
}

#[tokio::test]
async fn stages_that_a_stream_came_too_late_for_are_told_at_its_end() {
    let scene = Scene::new().await;
    let mut stream = scene.stream(said("hi"), &[]).await;
    let request = scene.claim().await;
    stream.chunk().await;
    scene
        .rig
        .engine
        .write_stage(id(&request), opened(None, "Coord"));
    stream.chunk().await;
    act(&scene.helper, &request, "complete", ending())
        .await
        .ok(200);
    let chunks = stream.chunks().await;
    let shown: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["custom_content"].get("stages"))
        .map(|stages| stages[0].clone())
        .collect();
    assert_eq!(
        shown,
        [
            json!({"index": 0, "name": "ination", "status": null}),
            json!({"index": 0, "content": "Routing to GPA", "status": null}),
            json!({"index": 0, "status": "completed"}),
            json!({"index": 1, "name": "child x", "status": null, "parent_stage_index": 0}),
            json!({"index": 1, "attachments": [
                {"index": 0, "type": "text/plain", "title": "t", "data": "d"}], "status": null}),
            json!({"index": 1, "status": "completed"}),
        ]
    );
}

/// Two stages that take turns in short pieces fill the memory of a draft long before their texts
/// are long.
#[tokio::test]
async fn a_text_that_a_draft_had_no_room_for_comes_whole_before_its_stage_is_closed() {
    let scene = Scene::new().await;
    let mut stream = scene.stream(said("hi"), &[]).await;
    let request = scene.claim().await;
    let engine = &scene.rig.engine;
    let request_id = id(&request);
    for change in [opened(None, "one"), opened(None, "two")] {
        engine.write_stage(request_id, change);
    }
    let mut texts = [String::new(), String::new()];
    for number in 0..5_000_usize {
        let piece = &format!("{number:03} ")[number % 3..];
        engine.write_stage(request_id, wrote(number % 2, piece));
        texts[number % 2].push_str(piece);
    }
    for stage in [0, 1] {
        engine.write_stage(request_id, closed(stage));
    }
    let [one, two] = &texts;
    let done = json!({"output": "done", "items": [{"kind": "note", "name": "stages", "data": [
        {"name": "one", "content": one, "status": "completed"},
        {"name": "two", "content": two, "status": "completed"},
    ]}]});
    act(&scene.helper, &request, "complete", done).await.ok(200);
    let message = merged(&stream.chunks().await);
    assert_eq!(
        message["custom_content"]["stages"],
        json!([
            {"name": "one", "content": one, "status": "completed"},
            {"name": "two", "content": two, "status": "completed"},
        ])
    );
}

/// The answer is in the session before the client learns that it is complete.
#[tokio::test]
async fn the_answer_is_kept_before_the_stream_says_that_it_is_done() {
    let scene = Scene::new().await;
    let mut stream = scene.stream(said("hi"), &[]).await;
    let request = scene.claim().await;
    scene.complete(&request, "kept").await;
    while let Some(line) = stream.line().await {
        if line == "[DONE]" {
            break;
        }
    }
    let session = stream.headers["x-statehold-session"]
        .to_str()
        .expect("text");
    assert_eq!(super::texts(&scene, session).await, ["hi", "kept"]);
}
