//! Decisions that come with a chat call, for gateways; and who may do and see what.

use serde_json::{Value, json};

use super::{COMPLETIONS, Scene, content, finished, refused, setup, words};
use crate::rest::act;
use crate::rig::{Rig, text};

fn with_decision(said: &str, decision: &Value) -> Value {
    let mut body = words("helper", said);
    body["statehold"] = json!({"decisions": [decision]});
    body
}

#[tokio::test]
async fn a_gateway_decides_with_the_same_message_and_gets_the_answer() {
    let scene = Scene::new().await;
    let call = scene.say("ask me");
    let request = scene.claim().await;
    let form = json!({
        "kind": "form", "title": "Size?", "response_schema": {"type": "object", "required": ["size"]},
    });
    let hold = scene.ask(&request, form).await;
    finished(call).await.ok(200);
    let decision = json!({
        "hold_id": hold["id"], "decision": "respond", "content": {"size": 4}, "key": "mirror-1",
    });
    let wrong =
        json!({"hold_id": hold["id"], "decision": "respond", "content": {}, "key": "mirror-0"});
    let answer = finished(scene.send(with_decision("ask me", &wrong), &[])).await;
    refused(&answer, 422, "invalid_content");
    let call = scene.send(with_decision("ask me", &decision), &[]);
    let path = format!("/v1/requests/{}", text(&request, "id"));
    crate::rig::until("it goes on", || async {
        let seen = scene.helper.get(&path).await.ok(200);
        (seen["status"] == "running").then_some(())
    })
    .await;
    scene.complete(&request, "Four it is.").await;
    assert_eq!(content(&finished(call).await), "Four it is.");
    // Sent again, the decision is the same, and so is the answer.
    let again = finished(scene.send(with_decision("ask me", &decision), &[])).await;
    assert_eq!(content(&again), "Four it is.");
    let other = json!({"hold_id": hold["id"], "decision": "dismiss", "key": "mirror-2"});
    let answer = finished(scene.send(with_decision("ask me", &other), &[])).await;
    refused(&answer, 409, "hold_decided");
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn a_call_decides_a_bounded_number_of_holds() {
    let scene = Scene::new().await;
    let call = scene.say("ask me");
    let request = scene.claim().await;
    let hold = json!({"kind": "question", "title": "Which?"});
    let hold = scene.ask(&request, hold).await;
    finished(call).await.ok(200);
    let decision = json!({"hold_id": hold["id"], "decision": "respond", "content": "this"});
    let mut body = words("helper", "ask me");
    body["statehold"] = json!({"decisions": vec![decision; 65]});
    let answer = finished(scene.send(body, &[])).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(
        answer.text().contains("at most 64 holds"),
        "{}",
        answer.text()
    );
    let path = format!("/v1/holds/{}", text(&hold, "id"));
    let boss = scene.rig.key(&["approver"]).await;
    assert_eq!(boss.get(&path).await.ok(200)["status"], "open");
}

#[tokio::test]
async fn a_client_does_not_retry_a_conflict_by_itself() {
    let scene = Scene::new().await;
    let path = format!("/v1/sessions/{}/close", scene.session);
    scene.ann.post(&path, &json!({})).await.ok(200);
    let answer = finished(scene.say("hello")).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn a_decision_in_a_chat_has_the_rights_of_its_caller() {
    let scene = Scene::new().await;
    let call = scene.say("pay");
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    finished(call).await.ok(200);
    let approve = json!({"hold_id": hold["id"], "decision": "approve", "key": "k"});
    let answer = finished(scene.send(with_decision("pay", &approve), &[])).await;
    refused(&answer, 403, "may_not_decide");
    // Nor through another session, nor without one.
    let bob = scene.rig.client("bob").await;
    let made = bob
        .post("/v1/sessions", &json!({"app": "demo", "agent": "helper"}))
        .await;
    let mut body = with_decision("pay", &approve);
    body["conversation"] = made.ok(201)["id"].clone();
    refused(&bob.post(COMPLETIONS, &body).await, 404, "not_found");
    body["conversation"] = "new".into();
    let error = refused(&bob.post(COMPLETIONS, &body).await, 422, "invalid_body");
    assert_eq!(error["param"], "statehold.decisions");
    let path = format!("/v1/holds/{}", text(&hold, "id"));
    assert_eq!(scene.ann.get(&path).await.ok(200)["status"], "open");
}

#[tokio::test]
async fn a_session_of_somebody_else_is_none() {
    let scene = Scene::new().await;
    let bob = scene.rig.client("bob").await;
    let body = words("helper", "hello").to_string();
    let unknown = "ses_0190a0a0a0a07a0a8a0a0a0a0a0a0a0a";
    let mut seen = Vec::new();
    for session in [scene.session.as_str(), unknown, "ses_x", "nonsense"] {
        let headers = [("x-statehold-session", session)];
        let answer = bob.send("POST", COMPLETIONS, &headers, body.clone()).await;
        refused(&answer, 404, "not_found");
        seen.push(answer.body);
    }
    assert!(seen.iter().all(|body| *body == seen[0]));
    // Backends act for their users: only for the one that they name.
    let backend = scene.rig.key(&["client"]).await;
    let headers = [
        ("x-statehold-session", scene.session.as_str()),
        ("x-statehold-user", "bob"),
    ];
    let answer = backend
        .send("POST", COMPLETIONS, &headers, body.clone())
        .await;
    refused(&answer, 404, "not_found");
    let headers = [("x-statehold-user", "bob")];
    let answer = scene
        .ann
        .send("POST", COMPLETIONS, &headers, body.clone())
        .await;
    refused(&answer, 403, "wrong_user");

    for roles in [&["worker"][..], &["approver"], &["operator"]] {
        let who = scene.rig.key(roles).await;
        let headers = [("x-statehold-session", scene.session.as_str())];
        let answer = who.send("POST", COMPLETIONS, &headers, body.clone()).await;
        refused(&answer, 403, "forbidden");
        let answer = who.send("POST", COMPLETIONS, &[], body.clone()).await;
        refused(&answer, 403, "forbidden");
    }
    assert_eq!(scene.turns().await, 0);
}

#[tokio::test]
async fn pages_of_other_sites_and_callers_without_a_key_are_refused() {
    let scene = Scene::new().await;
    let body = words("helper", "hello").to_string();
    let headers = [("origin", "https://evil.test")];
    let answer = scene
        .ann
        .send("POST", COMPLETIONS, &headers, body.clone())
        .await;
    refused(&answer, 403, "foreign_origin");
    let answer = scene
        .rig
        .nobody()
        .send("POST", COMPLETIONS, &[], body.clone())
        .await;
    refused(&answer, 401, "unauthenticated");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));

    let mut dev = setup();
    dev.server.keys_required = false;
    let rig = Rig::with(dev).await;
    let answer = rig.nobody().send("POST", COMPLETIONS, &headers, body).await;
    refused(&answer, 403, "foreign_host");
}

#[tokio::test]
async fn a_task_is_gone_on_with_where_it_is_named() {
    let scene = Scene::new().await;
    let (one, two) = (scene.say("first"), scene.say("second"));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let request = scene.claim().await;
        tasks.push(text(&request, "task_id"));
        scene.complete(&request, "ok").await;
    }
    for call in [one, two] {
        finished(call).await.ok(200);
    }
    for task in &tasks {
        let call = scene.send(words("helper", "more"), &[("x-statehold-task", task)]);
        let request = scene.claim().await;
        assert_eq!(text(&request, "task_id"), *task);
        scene.complete(&request, "ok").await;
        assert_eq!(
            finished(call).await.header("x-statehold-task"),
            Some(task.as_str())
        );
    }
    for (task, status, code) in [
        ("tsk_0190a0a0a0a07a0a8a0a0a0a0a0a0a0a", 404, "not_found"),
        ("T1", 404, "not_found"),
    ] {
        let call = scene.send(words("helper", "more"), &[("x-statehold-task", task)]);
        refused(&finished(call).await, status, code);
    }
    // The same words in another task are another turn.
    let one = scene.send(words("helper", "same"), &[("x-statehold-task", &tasks[0])]);
    let two = scene.send(words("helper", "same"), &[("x-statehold-task", &tasks[1])]);
    for _ in 0..2 {
        let request = scene.claim().await;
        scene.complete(&request, "ok").await;
    }
    let (one, two) = (finished(one).await, finished(two).await);
    assert_ne!(
        one.header("x-statehold-request"),
        two.header("x-statehold-request")
    );
}

#[tokio::test]
async fn a_turn_that_fails_says_so_and_is_not_made_again_by_itself() {
    let scene = Scene::new().await;
    for (error, status, code) in [
        (
            json!({"code": "agent_unreachable", "message": "at 10.0.0.7"}),
            502,
            "agent_unreachable",
        ),
        (
            json!({"code": "own", "message": "at 10.0.0.7"}),
            500,
            "request_failed",
        ),
        (json!("at 10.0.0.7"), 500, "request_failed"),
    ] {
        let call = scene.say(&format!("hello {error}"));
        let request = scene.claim().await;
        act(&scene.helper, &request, "fail", json!({"error": error}))
            .await
            .ok(200);
        let answer = finished(call).await;
        let told = refused(&answer, status, code);
        assert!(!told.to_string().contains("10.0.0.7"), "{told}");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        for (name, id) in [
            ("session", scene.session.clone()),
            ("task", text(&request, "task_id")),
            ("request", text(&request, "id")),
        ] {
            let header = format!("x-statehold-{name}");
            assert_eq!(answer.header(&header), Some(id.as_str()));
        }
        let length = answer.body.len().to_string();
        assert_eq!(answer.header("content-length"), Some(length.as_str()));
    }
    let call = scene.say("hello");
    let request = scene.claim().await;
    let path = format!("/v1/requests/{}/cancel", text(&request, "id"));
    scene.ann.post(&path, &json!({})).await.ok(200);
    refused(&finished(call).await, 500, "request_cancelled");
    assert_eq!(scene.turns().await, 4);
}
