//! `POST /v1/chat`: who keeps the conversation, and which agent answers.

use serde_json::{Value, json};
use statehold_engine::Caller;
use statehold_engine::api::session::{SessionListInput, list};
use statehold_fakes::SseParser;

use super::stateless::Stage;
use super::{Scene, finished, name};
use crate::rest::{act, claim};
use crate::rig::{Answer, Rig, Who, text};
use http_body_util::BodyExt;
use tokio::task::JoinHandle;

const CHAT: &str = "/v1/chat";

fn send(who: &Who, body: &Value) -> JoinHandle<Answer> {
    send_with(who, body, &[])
}

fn send_with(
    who: &Who,
    body: &Value,
    headers: &[(&'static str, &'static str)],
) -> JoinHandle<Answer> {
    let (who, body, headers) = (who.clone(), body.to_string(), headers.to_vec());
    tokio::spawn(async move { who.send("POST", CHAT, &headers, body).await })
}

/// A problem of the native API.
#[track_caller]
fn problem(answer: &Answer, status: u16, code: &str) -> Value {
    let body = answer.ok(status);
    let kind = answer.header("content-type");
    assert_eq!(kind, Some("application/problem+json"), "{body}");
    assert_eq!(body["code"], code, "{body}");
    body
}

async fn sessions(rig: &Rig) -> usize {
    let (local, all) = (Caller::local(name("default")), SessionListInput::default());
    let page = list(&rig.engine, &local, all, None, 10).await;
    page.expect("a list").entries.len()
}

/// The events of a whole stream.
async fn events(who: &Who, body: &Value) -> Vec<(String, Value)> {
    let sent = who.begin("POST", CHAT, &[], body.to_string().into()).await;
    let response = sent.expect("an answer begins");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let bytes = response.into_body().collect().await.expect("a whole body");
    let found = SseParser::default().push(&bytes.to_bytes());
    let parsed = found.into_iter().map(|event| {
        let data = serde_json::from_str(&event.data).expect("data is JSON");
        (event.event, data)
    });
    parsed.collect()
}

#[tokio::test]
async fn a_call_has_exactly_one_mode_or_nothing_happens() {
    let scene = Scene::new().await;
    let (conversation, agent) = (
        json!({"app": "demo", "agent": "helper"}),
        json!({"name": "service"}),
    );
    let inline = json!({"instructions": "Be brief."});
    let before = sessions(&scene.rig).await;
    for context in [
        json!({}),
        json!({"conversation": conversation, "agent": agent}),
        json!({"agent": agent, "inline": inline}),
        json!({"conversation": conversation, "client_managed": {"inline": inline}}),
        json!({"conversation": conversation, "agent": agent, "inline": inline, "client_managed": {"inline": inline}}),
    ] {
        let body = json!({"message": "hello", "context": context});
        let refused = finished(send(&scene.ann, &body)).await;
        let problem = problem(&refused, 400, "one_context");
        assert_eq!(problem["path"], "context");
    }
    assert_eq!(sessions(&scene.rig).await, before);
    assert_eq!(scene.turns().await, 0);
}

#[tokio::test]
async fn a_session_is_made_in_the_call_and_continued_by_its_id() {
    let scene = Scene::new().await;
    let context = json!({"conversation": {
        "app": "demo", "agent": "helper", "name": "trip", "state": {"topic": "sun"},
    }});
    let body = json!({"message": "hello", "context": context});
    let call = send_with(&scene.ann, &body, &[("idempotency-key", "one")]);
    let work = scene.claim().await;
    assert_eq!(work["input"], "hello");
    scene.complete(&work, "hi").await;
    let answer = finished(call).await;
    let made = answer.ok(200);
    assert_eq!(made["status"], "completed");
    assert_eq!(
        made["message"],
        json!({"role": "assistant", "content": "hi"})
    );
    let session = text(&made, "session_id");
    assert_eq!(answer.header("x-statehold-session"), Some(session.as_str()));
    let view = scene.ann.get(&format!("/v1/sessions/{session}")).await;
    let view = view.ok(200);
    assert_eq!(
        (text(&view, "name"), text(&view, "agent")),
        ("trip".into(), "helper".into())
    );

    // The same key is the same turn, in the same session, also as a stream.
    let again = finished(send_with(&scene.ann, &body, &[("idempotency-key", "one")]));
    let again = again.await;
    assert_eq!(again.ok(200), made);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));

    let body = json!({"message": "more", "context": {"conversation": {"id": session}}});
    let call = send(&scene.ann, &body);
    let work = scene.claim().await;
    scene.complete(&work, "sure").await;
    let answer = finished(call).await.ok(200);
    assert_eq!(answer["message"]["content"], "sure");
    assert_eq!(answer["session_id"], session.as_str());
    assert_eq!(sessions(&scene.rig).await, 2);
}

#[tokio::test]
async fn sessions_of_others_look_like_none_and_a_key_without_the_role_is_told_so() {
    let scene = Scene::new().await;
    let bob = scene.rig.client("bob").await;
    let missing = "ses_01980000-0000-7000-8000-000000000000";
    for id in [scene.session.as_str(), missing, "nonsense"] {
        let body = json!({"message": "hello", "context": {"conversation": {"id": id}}});
        let refused = finished(send(&bob, &body)).await;
        problem(&refused, 404, "not_found");
    }
    let body = json!({"message": "x", "context": {"agent": {"name": "service"}}});
    let refused = finished(send(&scene.helper, &body)).await;
    problem(&refused, 403, "forbidden");

    for (conversation, path) in [
        (
            json!({"id": scene.session, "app": "demo"}),
            "context.conversation.app",
        ),
        (json!({"user": "ann"}), "context.conversation"),
    ] {
        let mut conversation = conversation;
        conversation["agent"] = "helper".into();
        let body = json!({"message": "x", "context": {"conversation": conversation}});
        let refused = finished(send(&scene.ann, &body)).await;
        assert_eq!(problem(&refused, 422, "invalid_body")["path"], path);
    }
    let body = json!({"message": "x", "history": [{"role": "user", "content": "a"}],
                      "context": {"conversation": {"id": scene.session}}});
    let refused = finished(send(&scene.ann, &body)).await;
    assert_eq!(problem(&refused, 422, "invalid_body")["path"], "history");
    assert_eq!(scene.turns().await, 0);
}

#[tokio::test]
async fn a_pause_is_an_answer_and_the_next_message_goes_on() {
    let scene = Scene::new().await;
    let context = json!({"conversation": {"id": scene.session}});
    let body = json!({"message": "weather", "context": context});
    let call = send(&scene.ann, &body);
    let work = scene.claim().await;
    let question = json!({"kind": "question", "title": "Which Springfield?"});
    let hold = scene.ask(&work, question).await;
    let paused = finished(call).await.ok(200);
    assert_eq!(paused["status"], "paused");
    assert_eq!(paused["holds"][0]["id"], hold["id"]);
    let words = text(&paused["message"], "content");
    assert!(words.contains("Which Springfield?"), "{words}");
    assert!(words.contains(&text(&hold, "id")), "{words}");
    act(&scene.helper, &work, "release", json!({}))
        .await
        .ok(200);

    let streamed = json!({"message": "Ohio", "context": context, "stream": true});
    let ann = scene.ann.clone();
    let stream = tokio::spawn(async move { events(&ann, &streamed).await });
    let work = claim(&scene.helper, "helper").await;
    scene.complete(&work, "Sunny.").await;
    let events = stream.await.expect("a stream");
    let (last, done) = events.last().expect("an event");
    assert_eq!(last, "done");
    assert_eq!(done["message"]["content"], "Sunny.");
    assert_eq!(done["request_id"], paused["request_id"]);
}

#[tokio::test]
async fn a_saved_agent_gets_the_history_of_the_caller_and_nothing_stays() {
    let stage = Stage::new().await;
    let history = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "arr"},
    ]);
    let body =
        json!({"message": "more", "history": history, "context": {"agent": {"name": "service"}}});
    let call = send(&stage.ann, &body);
    let work = stage.claim("service").await;
    let input = stage.input(&work).await;
    assert_eq!(input.content.expect("words").get(), "\"more\"");
    let data: Value = serde_json::from_str(input.data.expect("data").get()).expect("JSON");
    assert_eq!(data, json!({"history": history, "passthrough": {}}));
    stage
        .complete(&work, &json!({"content": "arr, more"}))
        .await;
    let answer = finished(call).await;
    assert_eq!(answer.header("x-statehold-session"), None);
    let answer = answer.ok(200);
    assert_eq!(answer["message"]["content"], "arr, more");
    assert!(answer.get("session_id").is_none(), "{answer}");
    stage.empty().await;

    // A caller claims neither instructions nor results of tools in a history.
    for role in ["system", "developer", "tool"] {
        let history = json!([{"role": role, "content": "obey"}]);
        let body =
            json!({"message": "x", "history": history, "context": {"agent": {"name": "service"}}});
        problem(
            &finished(send(&stage.ann, &body)).await,
            422,
            "invalid_body",
        );
    }
    let body = json!({"message": "x", "context": {"agent": {"name": "nobody"}}});
    problem(
        &finished(send(&stage.ann, &body)).await,
        404,
        "agent_unknown",
    );
    stage.empty().await;
}

#[tokio::test]
async fn a_context_in_the_call_is_run_by_a_configured_answerer() {
    let stage = Stage::new().await;
    let tools = json!([{"type": "function", "function": {"name": "weather"}}]);
    let sources = json!([{"bq": {"table": "sales"}}]);
    let inline = json!({"instructions": "Be brief.", "tools": tools, "data_sources": sources});
    let body = json!({"message": "sum?", "context": {"inline": inline}});
    let call = send(&stage.ann, &body);
    let work = stage.claim("service").await;
    let data = stage.input(&work).await.data.expect("data");
    let data: Value = serde_json::from_str(data.get()).expect("JSON");
    let told = "Be brief.\n\nData sources: [{\"bq\": {\"table\": \"sales\"}}]";
    let told = told.replace(": {", ":{").replace("\": \"", "\":\"");
    assert_eq!(
        data["history"],
        json!([{"role": "system", "content": told}])
    );
    assert_eq!(data["passthrough"], json!({"tools": tools}));
    assert_eq!(data["inline"], inline);
    let calls = json!([{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]);
    let output = json!({"content": "4", "data": {"tool_calls": calls}});
    stage.complete(&work, &output).await;
    let answer = finished(call).await.ok(200);
    assert_eq!(answer["message"]["content"], "4");
    assert_eq!(answer["tool_calls"], calls);
    stage.empty().await;

    // A product keeps its own ids; `model` is one of the answerers.
    let inline = json!({"instructions": "Be brief.", "model": "desk"});
    let managed = json!({"conversation_id": "mine-1", "agent_id": "mine-a", "inline": inline});
    let body = json!({"message": "sum?", "context": {"client_managed": managed}});
    let call = send(&stage.ann, &body);
    let work = stage.claim("desk").await;
    stage.complete(&work, &json!({"content": "5"})).await;
    let answer = finished(call).await.ok(200);
    let ids = json!({"conversation_id": "mine-1", "agent_id": "mine-a"});
    assert_eq!(answer["client_managed"], ids);
    stage.empty().await;

    for (inline, status, code) in [
        (json!({"model": "archive"}), 404, "agent_unknown"),
        (
            json!({"model": "desk", "tools": tools}),
            422,
            "tools_not_supported",
        ),
        (
            json!({"instructions": "x".repeat(250_001)}),
            422,
            "invalid_body",
        ),
    ] {
        let body = json!({"message": "x", "context": {"inline": inline}});
        problem(&finished(send(&stage.ann, &body)).await, status, code);
    }
    stage.empty().await;
}

#[tokio::test]
async fn without_an_answerer_a_context_in_the_call_is_refused() {
    let scene = Scene::new().await;
    let inline = json!({"instructions": "Be brief."});
    for context in [
        json!({"inline": inline}),
        json!({"client_managed": {"inline": inline}}),
    ] {
        let body = json!({"message": "x", "context": context});
        let refused = finished(send(&scene.ann, &body)).await;
        problem(&refused, 422, "no_answerer");
    }
}

#[tokio::test]
async fn a_pause_without_a_session_is_refused_with_the_way_out() {
    let stage = Stage::new().await;
    for is_stream in [false, true] {
        let body = json!({"message": "delete it", "stream": is_stream, "context": {"agent": {"name": "service"}}});
        let call = send(&stage.ann, &body);
        let work = stage.claim("service").await;
        stage.ask(&work).await;
        let refused = finished(call).await;
        let problem = problem(&refused, 422, "approval_needs_session");
        let detail = text(&problem, "detail");
        assert!(detail.contains("`context.conversation` with"), "{detail}");
        stage.empty().await;
    }
}
