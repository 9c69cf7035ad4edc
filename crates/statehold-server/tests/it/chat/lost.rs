//! Answers that were lost on the way: the turn goes on, and whoever asks again gets it, once.

use http_body_util::BodyExt;
use serde_json::Value;
use statehold_core::ids::RequestId;

use super::{COMPLETIONS, Scene, content, finished, setup, words};
use crate::rig::{Rig, text, until};

/// Waits until the server has noticed that a client is gone.
pub(super) async fn alone(scene: &Scene, connections: usize) {
    let open = &scene.rig.connections;
    until("the connection is closed", || async {
        let count = open.load(std::sync::atomic::Ordering::Relaxed);
        (count <= connections).then_some(())
    })
    .await;
}

fn id(request: &Value) -> RequestId {
    text(request, "id").parse().expect("an id")
}

#[tokio::test]
async fn a_client_that_comes_back_attaches_to_its_turn() {
    let scene = Scene::new().await;
    let mut stream = scene.stream("hello").await;
    let request = scene.claim().await;
    let _draft = scene.rig.engine.open_draft(id(&request));
    scene.rig.engine.write_draft(id(&request), "hi");
    assert_eq!(stream.text().await, "hi");
    drop(stream);
    alone(&scene, 0).await;
    let call = scene.say("hello");
    scene.rig.engine.write_draft(id(&request), ", ann");
    scene.complete(&request, "hi, ann").await;
    assert_eq!(content(&finished(call).await), "hi, ann");
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn an_answer_that_nobody_heard_is_given_once() {
    for rig in [Rig::with(setup()).await, Rig::on_disk_with(setup()).await] {
        let scene = Scene::begin(rig).await;
        for is_stream in [true, false] {
            let said = format!("hello {is_stream}");
            let request = if is_stream {
                let stream = scene.stream(&said).await;
                let request = scene.claim().await;
                drop(stream);
                request
            } else {
                let call = scene.say(&said);
                let request = scene.claim().await;
                call.abort();
                drop(call.await);
                request
            };
            alone(&scene, 0).await;
            let before = scene.turns().await;
            scene.complete(&request, "hi").await;
            let answer = finished(scene.say(&said)).await;
            assert_eq!(content(&answer), "hi");
            assert_eq!(answer.header("idempotency-replayed"), Some("true"));
            assert_eq!(scene.turns().await, before);

            let again = scene.say(&said);
            let request = scene.claim().await;
            scene.complete(&request, "again").await;
            assert_eq!(content(&finished(again).await), "again");
            assert_eq!(scene.turns().await, before + 1);
        }
    }
}

#[tokio::test]
async fn a_client_that_says_something_else_has_moved_on() {
    let scene = Scene::new().await;
    let call = scene.say("hello");
    let request = scene.claim().await;
    call.abort();
    drop(call.await);
    alone(&scene, 0).await;
    scene.complete(&request, "unheard").await;
    for said in ["bye", "hello"] {
        let call = scene.say(said);
        let request = scene.claim().await;
        scene.complete(&request, "heard").await;
        let answer = finished(call).await;
        assert_eq!(content(&answer), "heard", "{said}");
        assert_eq!(answer.header("idempotency-replayed"), None);
    }
}

#[tokio::test]
async fn both_answers_that_were_lost_with_the_server_are_given_by_the_next() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let calls = [scene.say("one"), scene.say("two")];
    while scene.turns().await < calls.len() {
        tokio::task::yield_now().await;
    }
    for _ in &calls {
        let request = scene.claim().await;
        let answer = format!("to {}", text(&request, "input"));
        scene.complete(&request, &answer).await;
    }
    // No client has read the answers when the server ends.
    for call in calls {
        call.abort();
        drop(call.await);
    }
    let scene = scene.restarted().await;
    for said in ["one", "two"] {
        let answer = finished(scene.say(said)).await;
        assert_eq!(content(&answer), format!("to {said}"));
        assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    }
    assert_eq!(scene.turns().await, 2);
}

#[tokio::test]
async fn a_client_that_had_moved_on_before_the_restart_is_owed_nothing() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    for said in ["hello", "bye"] {
        let call = scene.say(said);
        let request = scene.claim().await;
        scene.complete(&request, "before").await;
        assert_eq!(content(&finished(call).await), "before");
    }
    let scene = scene.restarted().await;
    let call = scene.say("hello");
    let request = scene.claim().await;
    scene.complete(&request, "after").await;
    let answer = finished(call).await;
    assert_eq!(content(&answer), "after");
    assert_eq!(answer.header("idempotency-replayed"), None);
}

#[tokio::test]
async fn a_turn_that_somebody_began_elsewhere_owes_no_chat_anything() {
    let scene = Scene::new().await;
    crate::rest::start(&scene.ann, &scene.session, "helper", "hello").await;
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    let call = scene.say("hello");
    let request = scene.claim().await;
    scene.complete(&request, "another").await;
    assert_eq!(content(&finished(call).await), "another");
}

#[tokio::test]
async fn an_answer_that_was_lost_with_the_server_is_given_once_by_the_next() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let call = scene.say("hello");
    let request = scene.claim().await;
    call.abort();
    drop(call.await);
    scene.complete(&request, "hi").await;
    let scene = scene.restarted().await;
    let answer = finished(scene.say("hello")).await;
    assert_eq!(content(&answer), "hi");
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    let again = scene.say("hello");
    let request = scene.claim().await;
    scene.complete(&request, "again").await;
    assert_eq!(content(&finished(again).await), "again");
}

#[tokio::test]
async fn an_answer_that_broke_off_is_given_whole() {
    let scene = Scene::new().await;
    // More than any socket keeps for a client that does not read.
    let long = "0123456789".repeat(700_000);
    for is_stream in [false, true] {
        let mut body = words("helper", "everything");
        body["stream"] = is_stream.into();
        let (ann, session) = (scene.ann.clone(), scene.session.clone());
        let begun = tokio::spawn(async move {
            let headers = [("x-statehold-session", session.as_str())];
            let sent = ann.begin("POST", COMPLETIONS, &headers, body.to_string().into());
            sent.await.expect("an answer begins")
        });
        let request = scene.claim().await;
        scene.complete(&request, &long).await;
        let mut response = begun.await.expect("an answer");
        assert_eq!(response.status(), 200);
        let piece = response.body_mut().frame().await;
        assert!(piece.is_some_and(|piece| piece.is_ok()));
        drop(response);
        alone(&scene, 0).await;
        let answer = finished(scene.say("everything")).await;
        assert!(content(&answer) == long, "{} bytes", answer.body.len());
        assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    }
    assert_eq!(scene.turns().await, 2);
}

#[tokio::test]
async fn an_answer_that_the_server_before_has_told_is_no_news() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let call = scene.say("pay");
    let paying = scene.claim().await;
    let hold = scene.ask_approval(&paying).await;
    finished(call).await.ok(200);
    scene.approve(&hold).await;
    let call = scene.say("pay");
    scene.complete(&paying, "Paid 4.").await;
    assert_eq!(content(&finished(call).await), "Paid 4.");

    let scene = scene.restarted().await;
    let call = scene.say("bye");
    let request = scene.claim().await;
    scene.complete(&request, "Bye.").await;
    let answer = finished(call).await;
    assert_eq!(content(&answer), "Bye.");
    assert!(answer.ok(200)["statehold"].get("earlier").is_none());
}

#[tokio::test]
async fn a_turn_is_found_however_many_have_come_and_gone_since() {
    let scene = Scene::new().await;
    let first = scene.say("slow");
    let slow = scene.claim().await;
    // At once, so that each has a task of its own, which stays.
    let quick: Vec<_> = (0..20).map(|n| scene.say(&format!("quick {n}"))).collect();
    let mut requests = Vec::new();
    for _ in 0..20 {
        requests.push(scene.claim().await);
    }
    for request in &requests {
        scene.complete(request, "ok").await;
    }
    for call in quick {
        finished(call).await.ok(200);
    }
    let mut again = scene.stream("slow").await;
    assert_eq!(again.header("x-statehold-request"), text(&slow, "id"));
    scene.complete(&slow, "done").await;
    assert_eq!(again.rest().await.0, "done");
    assert_eq!(content(&finished(first).await), "done");
}

#[tokio::test]
async fn a_failure_that_broke_off_is_told_again() {
    // A developer is told all that an agent says, however long it is.
    let mut dev = setup();
    dev.server.keys_required = false;
    let mut scene = Scene::begin(Rig::with(dev).await).await;
    scene.ann = scene.rig.nobody();
    let long = "0123456789".repeat(700_000);
    let (ann, session) = (scene.ann.clone(), scene.session.clone());
    let begun = tokio::spawn(async move {
        let headers = [("x-statehold-session", session.as_str())];
        let body = words("helper", "hello").to_string();
        let sent = ann.begin("POST", COMPLETIONS, &headers, body.into());
        sent.await.expect("an answer begins")
    });
    let request = scene.claim().await;
    let error = serde_json::json!({"error": {"message": long}});
    crate::rest::act(&scene.helper, &request, "fail", error)
        .await
        .ok(200);
    let mut response = begun.await.expect("an answer");
    assert_eq!(response.status(), 500);
    let piece = response.body_mut().frame().await;
    assert!(piece.is_some_and(|piece| piece.is_ok()));
    drop(response);
    alone(&scene, 0).await;

    let answer = finished(scene.say("hello")).await;
    super::refused(&answer, 500, "request_failed");
    let told = answer.header("x-statehold-request");
    assert_eq!(told, Some(text(&request, "id").as_str()));
    assert_eq!(scene.turns().await, 1);
    // Trying again does not help: the same words are told the same, and other words begin another turn.
    let again = finished(scene.say("hello")).await;
    super::refused(&again, 500, "request_failed");
    assert_eq!(scene.turns().await, 1);
    let call = scene.say("hello?");
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    assert_eq!(content(&finished(call).await), "hi");
}
