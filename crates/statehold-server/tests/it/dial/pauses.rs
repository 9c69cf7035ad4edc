//! Turns that wait for a person.

use serde_json::{Value, json};

use super::{Scene, Window, finished, merged, message, said, texts};
use crate::rest::act;
use crate::rig::text;

const PAUSE: &str = "Waits for a person";

impl Scene {
    /// Asks for an approval, which another person gives.
    async fn ask_approval(&self, request: &Value) -> Value {
        let action = json!({"tool": "pay", "args": {"secret_sum": "sum-4711"}});
        let hold = json!({"kind": "approval", "title": "Pay?", "action": action});
        act(&self.helper, request, "holds", hold).await.ok(201)
    }

    async fn approve(&self, hold: &Value) {
        let boss = self.rig.key(&["approver"]).await;
        let path = format!("/v1/holds/{}/decision", text(hold, "id"));
        let approve = json!({"decision": "approve", "digest": hold["action"]["digest"]});
        boss.post(&path, &approve).await.ok(200);
    }
}

/// Fails unless a message tells of the pause as clients may see it: a sentence, a closed stage, a link, a reference.
#[track_caller]
fn tells_of_the_pause(scene: &Scene, message: &Value, session: &str) {
    let content = text(message, "content");
    let link = format!(
        "[Open the session](http://{}/console/sessions/{session})",
        scene.rig.address
    );
    assert!(
        content.starts_with("helper waits for a decision: Pay?"),
        "{content}"
    );
    assert!(content.ends_with(&link), "{content}");
    let custom = &message["custom_content"];
    let stage = json!({"name": PAUSE, "content": "helper: Pay?", "status": "completed"});
    assert_eq!(custom["stages"], json!([stage]));
    assert!(custom["state"]["statehold"]["ref"].is_string());
    assert!(!message.to_string().contains("sum-4711"), "{message}");
}

#[tokio::test]
async fn a_paused_answer_has_a_sentence_a_stage_a_link_and_a_reference() {
    let scene = Scene::new().await;
    let call = scene.send(&said("pay"), &[]);
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    let answer = finished(call).await;
    let session = answer.header("x-statehold-session").expect("a session");
    tells_of_the_pause(&scene, &message(&answer), session);
    let body = answer.ok(200);
    assert_eq!(body["statehold"]["status"], "paused");
    assert_eq!(body["statehold"]["holds"][0]["id"], hold["id"]);
    // The same as a stream: no stage is open at its end.
    let mut stream = scene.stream(said("pay"), &[]).await;
    let chunks = stream.chunks().await;
    tells_of_the_pause(&scene, &merged(&chunks), session);
    let last = chunks.last().expect("chunks");
    assert_eq!(last["statehold"]["status"], "paused");
}

#[tokio::test]
async fn the_stage_of_a_pause_is_open_while_the_call_waits_and_closed_when_somebody_decides() {
    let scene = Scene::new().await;
    let wait = [("x-statehold-wait", "60")];
    let mut stream = scene.stream(said("pay"), &wait).await;
    stream.chunk().await;
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    let stage = |chunk: &Value| chunk["choices"][0]["delta"]["custom_content"]["stages"][0].clone();
    let opened = stage(&stream.chunk().await);
    assert_eq!(opened, json!({"index": 0, "name": PAUSE, "status": null}));
    let told = stage(&stream.chunk().await);
    assert_eq!(
        told,
        json!({"index": 0, "content": "helper: Pay?", "status": null})
    );
    scene.approve(&hold).await;
    // Before anything else is said.
    let closed = stage(&stream.chunk().await);
    assert_eq!(closed, json!({"index": 0, "status": "completed"}));
    scene.complete(&request, "Paid.").await;
    let rest = merged(&stream.chunks().await);
    assert_eq!(rest["content"], "Paid.");
}

#[tokio::test]
async fn the_next_message_brings_the_answer_that_somebody_decided_about() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.send("pay");
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    let session = window.keep(call).await;
    scene.approve(&hold).await;
    scene.complete(&request, "Paid.").await;
    let again = window.clone();
    for is_stream in [false, true] {
        let mut window = again.clone();
        if is_stream {
            window
                .messages
                .push(json!({"role": "user", "content": "and?"}));
            let mut stream = scene.stream(json!({"messages": window.sent()}), &[]).await;
            let request = scene.claim().await;
            scene.complete(&request, "Nothing.").await;
            let message = merged(&stream.chunks().await);
            assert_eq!(message["content"], "Nothing.");
            continue;
        }
        let call = window.send("thanks");
        let request = scene.claim().await;
        scene.complete(&request, "Welcome.").await;
        let answer = finished(call).await;
        let found = answer.header("x-statehold-session");
        assert_eq!(found, Some(session.as_str()));
        let message = message(&answer);
        assert_eq!(message["content"], "Paid.\n\nWelcome.");
        let stages = &message["custom_content"]["stages"];
        assert_eq!(stages, &json!([{"name": PAUSE, "status": "completed"}]));
    }
}

#[tokio::test]
async fn a_question_is_answered_by_the_next_message() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.send("weather?");
    let request = scene.claim().await;
    let question = json!({"kind": "question", "title": "Which Springfield?"});
    act(&scene.helper, &request, "holds", question)
        .await
        .ok(201);
    let session = window.keep(call).await;
    let call = window.send("Ohio");
    // The worker has kept its request.
    let path = format!(
        "/v1/requests/{}?wait=30&until=changed",
        text(&request, "id")
    );
    scene.helper.get(&path).await.ok(200);
    scene.complete(&request, "Sunny.").await;
    assert_eq!(window.keep(call).await, session);
    assert_eq!(texts(&scene, &session).await, ["weather?", "Sunny."]);
}

#[tokio::test]
async fn a_decision_comes_with_a_call_from_somebody_who_may_decide() {
    let scene = Scene::new().await;
    let call = scene.send(&said("pay"), &[]);
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    let answer = finished(call).await;
    let session = answer.header("x-statehold-session").expect("a session");
    let decision =
        json!({"hold_id": hold["id"], "decision": "approve", "digest": hold["action"]["digest"]});
    let mut body = said("go on");
    body["statehold"] = json!({"decisions": [decision]});
    let headers = [("x-statehold-session", session)];
    // The user may not decide it.
    let refused = finished(scene.send(&body, &headers)).await;
    assert_eq!(refused.ok(403)["error"]["code"], "may_not_decide");
    let boss = scene.rig.key(&["approver", "client"]).await;
    let call = super::send(&boss, super::HELPER, &body, &headers);
    let path = format!(
        "/v1/requests/{}?wait=30&until=changed",
        text(&request, "id")
    );
    scene.helper.get(&path).await.ok(200);
    scene.complete(&request, "Paid.").await;
    assert_eq!(message(&finished(call).await)["content"], "Paid.");
}

#[tokio::test]
async fn a_decision_comes_with_the_state_of_the_paused_turn_and_without_the_session() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.send("weather?");
    let request = scene.claim().await;
    let form = json!({"kind": "form", "title": "Where?", "response_schema": {"type": "object"}});
    let hold = act(&scene.helper, &request, "holds", form).await.ok(201);
    let session = window.keep(call).await;
    let decision =
        json!({"hold_id": hold["id"], "decision": "respond", "content": {"city": "Springfield"}});
    let mut messages = window.sent();
    messages.push(json!({"role": "user", "content": "see the form"}));
    let body = json!({"messages": messages, "statehold": {"decisions": [decision]}});
    let call = scene.send(&body, &[]);
    let path = format!(
        "/v1/requests/{}?wait=30&until=changed",
        text(&request, "id")
    );
    scene.helper.get(&path).await.ok(200);
    scene.complete(&request, "Sunny.").await;
    let answer = finished(call).await;
    assert_eq!(message(&answer)["content"], "Sunny.");
    let found = answer.header("x-statehold-session");
    assert_eq!(found, Some(session.as_str()));
    // Without the state there is no session, and so nothing to decide.
    let mut body = said("see the form");
    body["statehold"] = json!({"decisions": [decision]});
    let refused = finished(scene.send(&body, &[])).await;
    assert_eq!(refused.ok(422)["error"]["code"], "invalid_body");
}

#[tokio::test]
async fn an_approver_who_decides_in_a_call_does_not_become_the_caller_of_the_agent() {
    let scene = Scene::new().await;
    let call = scene.send(&said("pay"), &[("x-statehold-credential", "of-ann")]);
    let request = scene.claim().await;
    assert_eq!(request["credential"]["value"], "of-ann");
    let hold = scene.ask_approval(&request).await;
    act(&scene.helper, &request, "release", json!({}))
        .await
        .ok(200);
    let answer = finished(call).await;
    let session = answer.header("x-statehold-session").expect("a session");
    let boss = scene.rig.key(&["approver", "client"]).await;
    let decision =
        json!({"hold_id": hold["id"], "decision": "approve", "digest": hold["action"]["digest"]});
    let mut body = said("go on");
    body["statehold"] = json!({"decisions": [decision]});
    let headers = [
        ("x-statehold-session", session),
        ("x-statehold-credential", "of-the-boss"),
    ];
    let call = super::send(&boss, super::HELPER, &body, &headers);
    let request = scene.claim().await;
    assert!(request.get("credential").is_none(), "{request}");
    assert_eq!(request["credential_lost"], true);
    scene.complete(&request, "Paid.").await;
    assert_eq!(message(&finished(call).await)["content"], "Paid.");
}
