//! Conversations, as clients of a stateful service speak to it.

use std::collections::BTreeSet;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use statehold_server::{ServerOptions, UmsOptions};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{PATIENCE, Scene, finished, name, setup};
use crate::rest::act;
use crate::rig::{Answer, Rig, Setup, Who, text};

const CONVERSATIONS: &str = "/ums/conversations";

fn options() -> Setup {
    let setup = setup();
    Setup {
        server: ServerOptions {
            ums: UmsOptions {
                agent: Some(name("helper")),
                ..UmsOptions::default()
            },
            ..setup.server
        },
        ..setup
    }
}

/// A server on which `helper` answers in conversations, and a conversation of Ann.
async fn scene() -> (Scene, String) {
    let scene = Scene::begin(Rig::with(options()).await).await;
    let titled = json!({"title": "Users"});
    let made = scene.ann.post(CONVERSATIONS, &titled).await;
    let id = text(&made.ok(200), "id");
    (scene, id)
}

fn chat_path(id: &str) -> String {
    format!("{CONVERSATIONS}/{id}/chat")
}

fn message(said: &str, stream: bool) -> Value {
    json!({"message": {"role": "user", "content": said}, "stream": stream})
}

fn say(
    who: &Who,
    id: &str,
    said: &str,
    headers: &[(&'static str, &'static str)],
) -> JoinHandle<Answer> {
    let (who, path, body) = (who.clone(), chat_path(id), message(said, false).to_string());
    let headers = headers.to_vec();
    tokio::spawn(async move { who.send("POST", &path, &headers, body).await })
}

/// An error in the form of the service.
#[track_caller]
fn failed(answer: &Answer, status: u16, code: &str) -> String {
    let body = answer.ok(status);
    assert_eq!(body["code"], code, "{body}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    text(&body, "detail")
}

/// Role and content of each message of a conversation.
async fn messages(who: &Who, id: &str) -> Vec<(String, String)> {
    let read = who.get(&format!("{CONVERSATIONS}/{id}")).await.ok(200);
    let messages = read["messages"].as_array().expect("a list").iter();
    messages
        .map(|message| (text(message, "role"), text(message, "content")))
        .collect()
}

#[tokio::test]
async fn a_conversation_is_a_session_and_shows_what_was_said() {
    let (scene, id) = scene().await;
    let session = scene.ann.get(&format!("/v1/sessions/{id}")).await.ok(200);
    assert_eq!(
        (&session["app"], &session["agent"]),
        (&json!("default"), &json!("helper"))
    );
    for said in ["one", "two"] {
        let call = say(&scene.ann, &id, said, &[]);
        let work = scene.claim().await;
        assert_eq!(work["input"], said);
        let hidden = json!({"items": [{"kind": "note", "content": "hidden-canary"}]});
        act(&scene.helper, &work, "items", hidden).await.ok(200);
        scene.complete(&work, &format!("{said}!")).await;
        let answer = finished(call).await;
        let body = answer.ok(200);
        assert_eq!(body["content"], format!("{said}!"));
        assert_eq!(body["conversation_id"], id);
        assert_eq!(body["statehold"]["status"], "completed");
        assert_eq!(answer.header("x-statehold-session"), Some(&*id));
    }
    let all = scene.ann.get(&format!("{CONVERSATIONS}/{id}")).await;
    assert!(!all.text().contains("hidden-canary"));
    let all = all.ok(200);
    assert_eq!((&all["id"], &all["title"]), (&json!(id), &json!("Users")));
    let said = messages(&scene.ann, &id).await;
    let said: Vec<(&str, &str)> = said.iter().map(|(r, c)| (&**r, &**c)).collect();
    let expected = [
        ("user", "one"),
        ("assistant", "one!"),
        ("user", "two"),
        ("assistant", "two!"),
    ];
    assert_eq!(said, expected);

    // Three ways to send nothing, and the list: the last that changed comes first.
    for body in ["", "{}", "null"] {
        let made = scene
            .ann
            .send("POST", CONVERSATIONS, &[], body)
            .await
            .ok(200);
        assert_eq!(made["title"], "New Conversation", "{body:?}");
        assert_eq!(made["messages"], json!([]), "{body:?}");
        assert!(made["created_at"].is_string() && made["updated_at"].is_string());
    }
    let call = say(&scene.ann, &id, "three", &[]);
    let work = scene.claim().await;
    scene.complete(&work, "three!").await;
    finished(call).await.ok(200);
    let listed = scene.ann.get(&format!("{CONVERSATIONS}?limit=2")).await;
    let link = listed.header("link").expect("more").to_owned();
    let first = listed.ok(200);
    assert_eq!(
        (&first[0]["id"], &first[0]["title"]),
        (&json!(id), &json!("Users"))
    );
    assert_eq!(first[0]["message_count"], 6);
    assert!(first[0]["created_at"].is_string() && first[0]["updated_at"].is_string());
    let next = link
        .trim_start_matches('<')
        .split('>')
        .next()
        .expect("an address");
    let rest = scene.ann.get(next).await.ok(200);
    let ids: BTreeSet<String> = [&first, &rest]
        .iter()
        .flat_map(|page| page.as_array().expect("a list"))
        .map(|one| text(one, "id"))
        .collect();
    // The session that the scene begins with is one too.
    assert_eq!(ids.len(), 5, "{ids:?}");

    let path = format!("{CONVERSATIONS}/{id}");
    let gone = scene.ann.delete(&path).await.ok(200);
    assert_eq!(gone["message"], "Conversation deleted successfully");
    for answer in [
        scene.ann.get(&path).await,
        scene.ann.delete(&path).await,
        scene
            .ann
            .post(&chat_path(&id), &message("hello?", true))
            .await,
    ] {
        assert_eq!(failed(&answer, 404, "not_found"), "Conversation not found");
    }
}

#[tokio::test]
async fn long_conversations_are_read_in_pages_from_the_end() {
    let (scene, id) = scene().await;
    for said in ["one", "two"] {
        let call = say(&scene.ann, &id, said, &[]);
        let work = scene.claim().await;
        scene.complete(&work, &format!("{said}!")).await;
        finished(call).await.ok(200);
    }
    let (mut next, mut pages) = (format!("{CONVERSATIONS}/{id}?limit=3"), Vec::new());
    loop {
        let page = scene.ann.get(&next).await;
        let body = page.ok(200);
        let said = body["messages"].as_array().expect("a list").iter();
        pages.push(
            said.map(|message| text(message, "content"))
                .collect::<Vec<_>>(),
        );
        let Some(link) = page.header("link") else {
            break;
        };
        let link = link.trim_start_matches('<').split('>').next();
        next = link.expect("an address").to_owned();
    }
    assert_eq!(pages, [vec!["one!", "two", "two!"], vec!["one"]]);
    for bad in ["?limit=0", "?limit=1001", "?before=3"] {
        let answer = scene.ann.get(&format!("{CONVERSATIONS}/{id}{bad}")).await;
        failed(&answer, 400, "bad_query");
    }
}

/// The lines of a stream, each without its end. Calls `at_end` when it sees the last event.
async fn lines(who: &Who, id: &str, said: &str) -> JoinHandle<Vec<String>> {
    let body = json!({"message": {"role": "user", "content": said}});
    let path = chat_path(id);
    let response = who.begin("POST", &path, &[], body.to_string().into()).await;
    let response = response.expect("an answer begins");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let who = who.clone();
    let id = id.to_owned();
    tokio::spawn(async move {
        let (mut body, mut read) = (response.into_body(), String::new());
        while let Some(frame) = timeout(PATIENCE, body.frame()).await.expect("in time") {
            let frame = frame.expect("it does not break off");
            read.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("text"));
            if read.contains("[DONE]") {
                // The answer is kept before its last event leaves.
                let kept = messages(&who, &id).await;
                assert!(kept.iter().any(|(role, _)| role == "assistant"), "{kept:?}");
            }
        }
        let lines = read.lines().filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    })
}

#[tokio::test]
async fn an_answer_is_streamed_as_clients_of_the_service_read_it_and_kept_before_its_end() {
    let (scene, id) = scene().await;
    let stream = lines(&scene.ann, &id, "hello").await;
    let work = scene.claim().await;
    let request = text(&work, "id").parse().expect("an id");
    let draft = scene.rig.engine.open_draft(request);
    let begin = "say [DONE] or \"conversation_id\"";
    scene.rig.engine.write_draft(request, begin);
    scene
        .complete(&work, &format!("{begin}\u{2028}, ann"))
        .await;
    let lines = timeout(PATIENCE, stream)
        .await
        .expect("in time")
        .expect("a stream");
    drop(draft);
    assert_eq!(lines[0], format!(r#"data: {{"conversation_id":"{id}"}}"#));
    assert_eq!(lines.last().map(String::as_str), Some("data: [DONE]"));
    let chunks = &lines[1..lines.len() - 1];
    let mut content = String::new();
    for chunk in chunks {
        // Clients of this service search each line for these words.
        assert!(
            !chunk.contains("[DONE]") && !chunk.contains("conversation_id"),
            "{chunk}"
        );
        assert!(!chunk.contains('\u{2028}'), "{chunk}");
        let chunk: Value = serde_json::from_str(&chunk["data: ".len()..]).expect("JSON");
        let choice = &chunk["choices"][0];
        assert_eq!(choice["index"], 0);
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(content, format!("{begin}\u{2028}, ann"));
    let last = chunks.last().expect("a chunk");
    assert!(
        last.starts_with(r#"data: {"choices":[{"delta":{},"index":0,"finish_reason":"stop"}]"#),
        "{last}"
    );
    assert!(
        chunks[0].starts_with(r#"data: {"choices":[{"delta":{"content":""#)
            && chunks[0].ends_with(r#""},"index":0,"finish_reason":null}]}"#),
        "{}",
        chunks[0]
    );
}

#[tokio::test]
async fn one_turn_runs_at_a_time_and_none_is_lost() {
    let (scene, id) = scene().await;
    let calls: Vec<_> = (0..8)
        .map(|n| say(&scene.ann, &id, &format!("message {n}"), &[]))
        .collect();
    for _ in 0..8 {
        let work = scene.claim().await;
        // Nothing else is queued or running meanwhile.
        let live = scene
            .ann
            .get(&format!("/v1/sessions/{id}/tree"))
            .await
            .text();
        assert_eq!(
            live.matches("\"running\"").count(),
            2,
            "a task and its request: {live}"
        );
        assert_eq!(live.matches("\"queued\"").count(), 0, "{live}");
        let said = text(&work, "input");
        scene.complete(&work, &format!("{said}!")).await;
    }
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(
            finished(call).await.ok(200)["content"],
            format!("message {n}!")
        );
    }
    let said = messages(&scene.ann, &id).await;
    assert_eq!(said.len(), 16);
    for pair in said.chunks(2) {
        assert_eq!((&*pair[0].0, &*pair[1].0), ("user", "assistant"));
        assert_eq!(
            format!("{}!", pair[0].1),
            pair[1].1,
            "each answer follows its message"
        );
    }
}

#[tokio::test]
async fn a_message_that_is_repeated_while_it_is_answered_gets_that_answer() {
    let (scene, id) = scene().await;
    let first = lines(&scene.ann, &id, "hello").await;
    // The head of a stream comes when its turn is found: the second call does not wait in line.
    let second = lines(&scene.ann, &id, "hello").await;
    let other = say(&scene.ann, &id, "and another", &[]);
    let work = scene.claim().await;
    scene.complete(&work, "hello to you").await;
    for stream in [first, second] {
        let lines = timeout(PATIENCE, stream)
            .await
            .expect("in time")
            .expect("a stream");
        assert!(
            lines.iter().any(|line| line.contains("hello to you")),
            "{lines:?}"
        );
    }
    let work = scene.claim().await;
    assert_eq!(work["input"], "and another");
    scene.complete(&work, "fine").await;
    assert_eq!(finished(other).await.ok(200)["content"], "fine");
    assert_eq!(messages(&scene.ann, &id).await.len(), 4);
}

#[tokio::test]
async fn calls_under_one_key_are_one_call() {
    let (scene, id) = scene().await;
    let key = [("idempotency-key", "once")];
    let made: BTreeSet<String> = [
        scene
            .ann
            .send("POST", CONVERSATIONS, &key, r#"{"title":"x"}"#)
            .await,
        scene
            .ann
            .send("POST", CONVERSATIONS, &key, r#"{"title":"x"}"#)
            .await,
    ]
    .iter()
    .map(|answer| text(&answer.ok(200), "id"))
    .collect();
    assert_eq!(made.len(), 1);
    let call = say(&scene.ann, &id, "pay", &[("idempotency-key", "pay-1")]);
    let work = scene.claim().await;
    scene.complete(&work, "paid").await;
    assert_eq!(finished(call).await.ok(200)["content"], "paid");
    let again = finished(say(&scene.ann, &id, "pay", &[("idempotency-key", "pay-1")])).await;
    assert_eq!(again.ok(200)["content"], "paid");
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let other = finished(say(
        &scene.ann,
        &id,
        "pay more",
        &[("idempotency-key", "pay-1")],
    ))
    .await;
    failed(&other, 422, "key_reused");
    assert_eq!(messages(&scene.ann, &id).await.len(), 2);
}

#[tokio::test]
async fn a_paused_turn_says_so_and_holds_up_no_other() {
    let (scene, id) = scene().await;
    let call = say(&scene.ann, &id, "pay", &[]);
    let work = scene.claim().await;
    let hold = scene.ask_approval(&work).await;
    let paused = finished(call).await;
    assert!(!paused.text().contains("sum-4711"), "{}", paused.text());
    let paused = paused.ok(200);
    assert_eq!(paused["statehold"]["status"], "paused");
    assert_eq!(paused["statehold"]["holds"][0]["id"], hold["id"]);
    assert!(text(&paused, "content").contains("Pay?"), "{paused}");
    let call = say(&scene.ann, &id, "what else?", &[]);
    let other = scene.claim().await;
    assert_eq!(other["input"], "what else?");
    scene.complete(&other, "nothing").await;
    assert!(text(&finished(call).await.ok(200), "content").ends_with("nothing"));
    // The answer of the paused turn comes with the next one.
    scene.approve(&hold).await;
    scene.complete(&work, "paid").await;
    let call = say(&scene.ann, &id, "and now?", &[]);
    let work = scene.claim().await;
    scene.complete(&work, "all done").await;
    let last = text(&finished(call).await.ok(200), "content");
    assert!(
        last.contains("paid") && last.ends_with("all done"),
        "{last}"
    );
}

#[tokio::test]
async fn a_question_is_answered_by_the_next_message() {
    let (scene, id) = scene().await;
    let call = say(&scene.ann, &id, "delete it", &[]);
    let work = scene.claim().await;
    let hold = json!({"kind": "question", "title": "Which one?"});
    let hold = scene.ask(&work, hold).await;
    assert!(text(&finished(call).await.ok(200), "content").contains("Which one?"));
    let call = say(&scene.ann, &id, "the second", &[]);
    scene.until_answered(&hold).await;
    scene.complete(&work, "deleted").await;
    assert_eq!(finished(call).await.ok(200)["content"], "deleted");
}

#[tokio::test]
async fn a_conversation_of_another_user_is_like_one_that_does_not_exist() {
    let (scene, id) = scene().await;
    let bob = scene.rig.client("bob").await;
    let missing = "ses_0198f2aa-7a10-7c3e-9d1f-2f6b8c1d0e4a";
    for id in [id.as_str(), missing, "not-an-id"] {
        let path = format!("{CONVERSATIONS}/{id}");
        for answer in [
            bob.get(&path).await,
            bob.delete(&path).await,
            bob.post(&chat_path(id), &message("hello", true)).await,
        ] {
            let body = answer.ok(404);
            let expected = json!({"code": "not_found", "detail": "Conversation not found"});
            assert_eq!(body, expected, "{id}");
        }
    }
    assert_eq!(bob.get(CONVERSATIONS).await.ok(200), json!([]));
    // A worker holds no conversations, and nobody is somebody.
    for (who, status, code) in [
        (&scene.helper, 403, "forbidden"),
        (&scene.rig.nobody(), 401, "unauthenticated"),
    ] {
        failed(&who.post(CONVERSATIONS, &json!({})).await, status, code);
        let said = who.post(&chat_path(&id), &message("hello", true)).await;
        failed(&said, status, code);
    }
    assert_eq!(messages(&scene.ann, &id).await, []);
}

#[tokio::test]
async fn what_is_not_understood_is_refused_in_the_form_of_the_service() {
    let (scene, id) = scene().await;
    let path = chat_path(&id);
    for body in [
        json!({}),
        json!({"message": {"role": "system", "content": "You are a pirate."}}),
        json!({"message": {"role": "tool", "content": "42", "tool_call_id": "c1"}}),
        json!({"message": {"role": "user"}}),
        json!({"message": {"role": "user", "content": 7}}),
    ] {
        failed(&scene.ann.post(&path, &body).await, 422, "invalid_body");
    }
    let bad = scene.ann.send("POST", &path, &[], "{").await;
    failed(&bad, 400, "bad_json");
    for title in ["x".repeat(257), "a\u{202e}b".to_owned()] {
        let refused = scene
            .ann
            .post(CONVERSATIONS, &json!({"title": title}))
            .await;
        assert!(failed(&refused, 422, "invalid_body").starts_with("`title`"));
    }
    failed(
        &scene.ann.patch(&path, &json!({})).await,
        405,
        "method_not_allowed",
    );
    assert_eq!(messages(&scene.ann, &id).await, []);
    let health = scene.rig.nobody().get("/ums/health").await.ok(200);
    let expected = json!({"status": "healthy", "conversation_manager_initialized": true});
    assert_eq!(health, expected);
}

#[tokio::test]
async fn the_root_of_the_paths_and_the_agent_are_settings() {
    let mut setup = options();
    setup.server.ums.root = "/".parse().expect("a root");
    setup.server.ums.agent = None;
    let rig = Rig::with(setup).await;
    let ann = rig.client("ann").await;
    // Several agents are declared, and none is the coordinator.
    let refused = ann.post("/conversations", &json!({})).await;
    failed(&refused, 422, "no_answerer");
    assert_eq!(ann.get("/conversations").await.ok(200), json!([]));
    ann.get(CONVERSATIONS).await.refused(404, "not_found");
    assert_eq!(ann.get("/health").await.ok(200), json!({"status": "ok"}));
    // An agent that was removed since the start is none.
    let mut setup = options();
    setup.server.ums.agent = Some(name("gone"));
    let rig = Rig::with(setup).await;
    let refused = rig
        .client("ann")
        .await
        .post(CONVERSATIONS, &json!({}))
        .await;
    failed(&refused, 422, "no_answerer");
}
