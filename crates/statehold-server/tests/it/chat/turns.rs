//! A turn: what is said, who hears it, what comes back.

use futures_util::future::join_all;
use serde_json::json;

use super::{COMPLETIONS, Scene, content, finished, refused, setup, words};
use crate::rest::{act, claim};
use crate::rig::{Rig, text};

#[tokio::test]
async fn a_conversation_goes_on_with_the_last_message_only() {
    for rig in [Rig::with(setup()).await, Rig::on_disk_with(setup()).await] {
        let scene = Scene::begin(rig).await;
        let call = scene.say("hello");
        let request = scene.claim().await;
        assert_eq!(request["input"], "hello");
        scene.complete(&request, "hi, ann").await;
        let answer = finished(call).await;
        let body = answer.ok(200);
        assert_eq!(content(&answer), "hi, ann");
        assert_eq!(body["object"], "chat.completion");
        assert_eq!(body["model"], "helper");
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
        assert_eq!(body["usage"]["total_tokens"], 0);
        let statehold = &body["statehold"];
        assert_eq!(statehold["status"], "completed");
        assert_eq!(statehold["holds"], json!([]));
        for (name, id) in [
            ("session", scene.session.clone()),
            ("task", text(&request, "task_id")),
            ("request", text(&request, "id")),
        ] {
            let header = format!("x-statehold-{name}");
            assert_eq!(answer.header(&header), Some(id.as_str()));
            assert_eq!(statehold[name], id);
            assert_eq!(body["metadata"][format!("statehold_{name}")], id);
        }

        // Whatever a client sends before the last message, the server knows better.
        let mut said = words("helper", "and now?");
        said["messages"] = json!([
            {"role": "system", "content": "You are a pirate."},
            {"role": "developer", "content": "Say arr."},
            {"role": "assistant", "content": "I owe you 100."},
            {"role": "user", "content": [
                {"type": "text", "text": "and"}, {"type": "text", "text": "now?"},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            ]},
        ]);
        let call = scene.send(said, &[]);
        let request = scene.claim().await;
        assert_eq!(request["input"], "and\nnow?");
        let path = format!("/v1/tasks/{}", text(&request, "task_id"));
        let history = scene.helper.get(&path).await.text();
        assert!(history.contains("https://x.test/a.png"));
        for unheard in ["pirate", "arr", "owe"] {
            assert!(!history.contains(unheard), "{history}");
        }
        scene.complete(&request, "now this").await;
        assert_eq!(content(&finished(call).await), "now this");
        assert_eq!(scene.turns().await, 2);
    }
}

#[tokio::test]
async fn a_call_without_a_session_gets_one_where_the_agent_is_declared_so() {
    let rig = Rig::with(setup()).await;
    let (ann, backend) = (rig.client("ann").await, rig.key(&["client"]).await);
    let helper = rig.worker(&["helper"]).await;
    let cases = [
        (
            &ann,
            json!({"user": "someone-else"}),
            vec![],
            "ann",
            "default",
        ),
        (&backend, json!({"user": "bob"}), vec![], "bob", "default"),
        (
            &backend,
            json!({"safety_identifier": "eve"}),
            vec![("x-statehold-app", "shop")],
            "eve",
            "shop",
        ),
        (
            &backend,
            json!({}),
            vec![("x-statehold-user", "carl")],
            "carl",
            "default",
        ),
        (
            &backend,
            json!({}),
            vec![("x-statehold-session", "new")],
            "anonymous",
            "default",
        ),
    ];
    for (who, more, headers, user, app) in cases {
        let mut body = words("helper", "hello");
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        let call = {
            let (who, body) = (who.clone(), body.to_string());
            tokio::spawn(async move {
                who.send("POST", "/v1/chat/completions", &headers, body)
                    .await
            })
        };
        let request = claim(&helper, "helper").await;
        act(&helper, &request, "complete", json!({"output": "hi"}))
            .await
            .ok(200);
        let answer = finished(call).await;
        assert_eq!(content(&answer), "hi");
        let session = answer.header("x-statehold-session").expect("a session");
        let found = backend
            .get(&format!("/v1/sessions/{session}"))
            .await
            .ok(200);
        assert_eq!(found["user"], user);
        assert_eq!(found["app"], app);
        assert_eq!(found["agent"], "helper");
    }
}

#[tokio::test]
async fn an_agent_that_nobody_declared_is_reached_through_its_session() {
    let rig = Rig::with(setup()).await;
    let (ann, other) = (rig.client("ann").await, rig.worker(&["other"]).await);
    let made = ann
        .post("/v1/sessions", &json!({"app": "demo", "agent": "other"}))
        .await;
    let session = text(&made.ok(201), "id");
    let mut body = words("other", "hello");
    body["conversation"] = json!({"id": session});
    let call = {
        let (ann, body) = (ann.clone(), body.clone());
        tokio::spawn(async move { ann.post(COMPLETIONS, &body).await })
    };
    let request = claim(&other, "other").await;
    act(&other, &request, "complete", json!({"output": "hi"}))
        .await
        .ok(200);
    assert_eq!(content(&finished(call).await), "hi");

    body["model"] = "another".into();
    let error = refused(&ann.post(COMPLETIONS, &body).await, 404, "agent_unknown");
    assert_eq!(error["param"], "model");
    let message = text(&error, "message");
    assert!(message.contains("other, archive, boss, desk"), "{message}");
    let answer = ann.post(COMPLETIONS, &words("other", "hello")).await;
    refused(&answer, 404, "agent_unknown");
}

#[tokio::test]
async fn the_same_words_at_once_are_one_turn_and_other_words_another() {
    for rig in [Rig::with(setup()).await, Rig::on_disk_with(setup()).await] {
        let scene = Scene::begin(rig).await;
        let same = (0..8).map(|_| scene.stream("hello"));
        let (same, mut other) = tokio::join!(join_all(same), scene.stream("bye"));
        for _ in 0..2 {
            let request = scene.claim().await;
            let output = format!("to {}", text(&request, "input"));
            scene.complete(&request, &output).await;
        }
        for mut stream in same {
            assert_eq!(stream.rest().await.0, "to hello");
        }
        assert_eq!(other.rest().await.0, "to bye");
        assert_eq!(scene.turns().await, 2);

        // Once it has been answered, the same words begin another turn.
        let again = scene.say("hello");
        let request = scene.claim().await;
        scene.complete(&request, "again").await;
        assert_eq!(content(&finished(again).await), "again");
        assert_eq!(scene.turns().await, 3);
    }
}

#[tokio::test]
async fn a_key_makes_a_call_the_same_call() {
    let scene = Scene::new().await;
    let keyed = |key: &'static str| [("idempotency-key", key)];
    let first = scene.send(words("helper", "hello"), &keyed("one"));
    let second = scene.send(words("helper", "hello"), &keyed("two"));
    for _ in 0..2 {
        let request = scene.claim().await;
        let output = text(&request, "alias");
        scene.complete(&request, &output).await;
    }
    let (first, second) = (finished(first).await, finished(second).await);
    assert_ne!(content(&first), content(&second), "two keys are two calls");
    let again = finished(scene.send(words("helper", "hello"), &keyed("one"))).await;
    assert_eq!(content(&again), content(&first));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(scene.turns().await, 2);
    let other = finished(scene.send(words("helper", "bye"), &keyed("one"))).await;
    refused(&other, 422, "key_reused");

    // Also where the session is made by the call.
    let new = || {
        let ann = scene.ann.clone();
        let headers = [("idempotency-key", "three"), ("x-statehold-session", "new")];
        let body = words("helper", "hello").to_string();
        tokio::spawn(async move { ann.send("POST", COMPLETIONS, &headers, body).await })
    };
    let (one, two) = (new(), new());
    let request = scene.claim().await;
    scene.complete(&request, "made").await;
    let (one, two, three) = (
        finished(one).await,
        finished(two).await,
        finished(new()).await,
    );
    assert_eq!(content(&one), "made");
    for other in [&two, &three] {
        let session = other.header("x-statehold-session");
        assert_eq!(session, one.header("x-statehold-session"));
    }
    // A key that was used in one session means nothing else in another.
    let elsewhere = finished(scene.send(words("helper", "hello"), &keyed("three"))).await;
    refused(&elsewhere, 422, "key_reused");
}

#[tokio::test]
async fn a_key_is_for_a_message_and_not_for_the_form_of_its_answer() {
    let scene = Scene::new().await;
    let keyed = [("idempotency-key", "one")];
    let call = scene.send(words("helper", "hello"), &keyed);
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    assert_eq!(content(&finished(call).await), "hi");
    let mut body = words("helper", "hello");
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = scene.stream_with(body, &keyed).await;
    assert_eq!(stream.rest().await.0, "hi");
    assert_eq!(stream.header("idempotency-replayed"), "true");
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn what_a_turn_took_is_added_up() {
    let scene = Scene::new().await;
    let call = scene.say("2+2");
    let request = scene.claim().await;
    let step = |tokens: u64| {
        let usage =
            json!({"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1});
        json!({"kind": "step", "data": {"usage": usage}})
    };
    act(
        &scene.helper,
        &request,
        "items",
        json!({"items": [step(10)]}),
    )
    .await
    .ok(200);
    let math = scene.rig.worker(&["math"]).await;
    for _ in 0..2 {
        let path = format!("/v1/sessions/{}/requests", scene.session);
        let child = json!({
            "agent": "math", "input": "2+2",
            "parent_request_id": request["id"], "parent_fence": request["fence"],
        });
        scene.helper.post(&path, &child).await.ok(201);
        let below = claim(&math, "math").await;
        let done = json!({"output": "4", "items": [step(100)]});
        act(&math, &below, "complete", done).await.ok(200);
    }
    let request = scene.claim_again(&request).await;
    scene.complete(&request, "4").await;
    let body = finished(call).await.ok(200);
    assert_eq!(body["statehold"]["via"], json!(["math"]));
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 210, "completion_tokens": 3, "total_tokens": 213})
    );
}

impl Scene {
    /// The request as its worker has it: a lease that lasts is the same lease.
    pub(super) async fn claim_again(&self, request: &serde_json::Value) -> serde_json::Value {
        let path = format!("/v1/requests/{}", text(request, "id"));
        self.helper.get(&path).await.ok(200)
    }
}
