//! The state of an answer is a sealed reference: chat windows send it back, and the server finds the place by it.

use serde_json::{Value, json};

use super::{Scene, Window, finished, message, said, texts};

#[tokio::test]
async fn a_state_is_a_short_reference_that_finds_its_session() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let session = window.turn(&scene, "one").await;
    let size = window.state().to_string().len();
    assert!(size <= 250, "{}", window.state());
    for n in 0..5 {
        assert_eq!(window.turn(&scene, &format!("more {n}")).await, session);
        assert_eq!(window.state().to_string().len(), size);
    }
    // It does not need the words: the newest state is enough.
    let mut last = window.clone();
    last.messages.drain(..last.messages.len() - 1);
    last.messages[0]["content"] = "…".into();
    assert_eq!(last.turn(&scene, "and now?").await, session);
    assert_eq!(texts(&scene, &session).await.len(), 14);
}

#[tokio::test]
async fn regenerating_editing_and_deleting_messages_select_the_place_in_the_session() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window.turn(&scene, "one").await;
    window.turn(&scene, "two").await;
    let origin = window.turn(&scene, "three").await;
    // Regenerate the last answer.
    let mut again = window.cut(4);
    let fork = again.turn(&scene, "three").await;
    assert_ne!(fork, origin);
    let all = ["one", "one!", "two", "two!", "three", "three!"];
    assert_eq!(texts(&scene, &fork).await, all);
    // Edit the second message.
    let mut edited = window.cut(2);
    let other = edited.turn(&scene, "zwei").await;
    assert_eq!(
        texts(&scene, &other).await,
        ["one", "one!", "zwei", "zwei!"]
    );
    // Delete the last exchange, and go on.
    let mut shortened = window.cut(4);
    let third = shortened.turn(&scene, "vier").await;
    assert_eq!(
        texts(&scene, &third).await,
        ["one", "one!", "two", "two!", "vier", "vier!"]
    );
    // The first conversation is as it was.
    assert_eq!(texts(&scene, &origin).await, all);
    assert_eq!(window.turn(&scene, "four").await, origin);
}

/// Changed settings of DIAL Chat wipe the state of all messages.
#[tokio::test]
async fn a_window_whose_states_were_wiped_is_known_by_its_messages() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let session = window.turn(&scene, "my name is Ann").await;
    for message in &mut window.messages {
        message["custom_content"] = Value::Null;
    }
    assert_eq!(window.turn(&scene, "what is it?").await, session);
}

/// Two answers with a state: the newest counts, so a deleted first answer orphans nothing.
#[tokio::test]
async fn the_newest_state_counts_and_every_answer_has_one() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let session = window.turn(&scene, "one").await;
    window.turn(&scene, "two").await;
    assert!(window.state()["statehold"]["ref"].is_string());
    window.messages.drain(..2);
    assert_eq!(window.turn(&scene, "three").await, session);
}

#[tokio::test]
async fn stages_and_files_that_a_client_sends_back_are_no_input() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let session = window.turn(&scene, "one").await;
    let state = window.state().clone();
    // Another client echoes everything, also a stage that never closed, with the places of its chunks.
    let mut messages = window.messages.clone();
    messages[1]["custom_content"] = json!({
        "state": state,
        "stages": [{"index": 0, "name": "Waits", "status": null}],
        "attachments": [{"index": 3, "type": "text/plain", "title": "t", "data": "d"}],
    });
    messages.push(json!({"role": "user", "content": "two"}));
    let call = scene.send(&json!({ "messages": messages }), &[]);
    let request = scene.claim().await;
    assert_eq!(text_of(&request), session);
    scene.complete(&request, "two!").await;
    message(&finished(call).await);
}

fn text_of(request: &Value) -> String {
    crate::rig::text(request, "session_id")
}

#[tokio::test]
async fn a_state_of_somebody_else_opens_nothing() {
    let scene = Scene::new().await;
    let bob = scene.rig.client("bob").await;
    let mut foreign = Window::of(&bob);
    let theirs = foreign.turn(&scene, "I am Bob").await;
    let mut body = said("who am I?");
    let answer = json!({"role": "assistant", "content": "…",
        "custom_content": {"state": foreign.state()}});
    let messages = body["messages"].as_array_mut().expect("a list");
    messages.insert(0, answer);
    messages.insert(0, json!({"role": "user", "content": "x"}));
    let call = scene.send(&body, &[]);
    let request = scene.claim().await;
    assert_ne!(text_of(&request), theirs);
    scene.complete(&request, "Ann").await;
    finished(call).await.ok(200);
}
