//! Calls that are cut off. A client may go away at any moment, and the server drops whatever it was doing for
//! it. Each use case is begun, dropped after so many polls, and made again under the same key: the answer
//! is the owed one, and everything has happened exactly once.

mod cases;

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use statehold_fakes::parse_events;
use tower::ServiceExt;

use crate::rest::act;
use crate::rig::{Answer, Rig, Who, text};
use cases::{Case, Prepared, Promise, Scene};

/// No use case takes so many polls.
const POLLS_MAX: usize = 300;

/// When a call is dropped after its last poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// At once: whatever it waits for is under way.
    AtOnce,
    /// When it is woken: whatever it waited for has happened, and it does not hear of it.
    Woken,
}

/// A future that is polled at most so many times.
struct Cut<F> {
    inner: Pin<Box<F>>,
    polls: usize,
    moment: Moment,
}

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.inner.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.polls == 0 && self.moment == Moment::AtOnce => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A whole call without a socket, so that it goes on only when it is polled.
async fn made(router: axum::Router, call: Prepared, key: String) -> Answer {
    let mut request = Request::builder()
        .method(call.method)
        .uri(&call.path)
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .header("idempotency-key", key);
    if let Some(secret) = &call.who.key {
        request = request.header("authorization", format!("Bearer {secret}"));
    }
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    let body = match &call.body {
        Value::Null => Body::empty(),
        body => Body::from(body.to_string()),
    };
    let request = request.body(body).expect("a request");
    let response = router.oneshot(request).await.expect("it never fails");
    let (parts, body) = response.into_parts();
    let body = body
        .collect()
        .await
        .map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body,
    }
}

/// The result of a use case: the answer, the stored records and state, and the next claim of its worker.
#[derive(Debug, PartialEq)]
struct Outcome {
    status: u16,
    body: Value,
    there: Vec<Value>,
    after: Value,
}

/// A value without what differs between two runs: ids, times, hashes, and the name of the run.
fn masked(value: &Value, tag: &str) -> Value {
    match value {
        Value::String(text) => masked_text(text, tag).into(),
        Value::Array(all) => all.iter().map(|one| masked(one, tag)).collect(),
        Value::Object(all) => {
            let members = all.iter().map(|(name, value)| {
                let is_time = matches!(name.as_str(), "at" | "created" | "until") && value.is_u64();
                let value = if is_time {
                    json!(0)
                } else {
                    masked(value, tag)
                };
                (masked_text(name, tag), value)
            });
            members.collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn masked_text(text: &str, tag: &str) -> String {
    let is_hex = |b: &u8| b.is_ascii_hexdigit();
    let ends_in_id = text.len() >= 32 && text.as_bytes()[text.len() - 32..].iter().all(is_hex);
    if ends_in_id {
        return format!(
            "{}id",
            text.trim_end_matches(|c: char| c.is_ascii_hexdigit())
        );
    }
    if text.parse::<jiff::Timestamp>().is_ok() {
        return "time".to_owned();
    }
    text.replace(tag, "tag")
}

/// The answer as JSON; of a stream, the words and the last chunk.
fn body_of(answer: &Answer) -> Value {
    if answer.header("content-type") != Some("text/event-stream") {
        return serde_json::from_slice(&answer.body).unwrap_or_default();
    }
    let events = parse_events(&answer.body);
    let is_done = events.iter().any(|event| event.data == "[DONE]");
    let chunks = events.iter();
    let chunks = chunks.filter_map(|event| serde_json::from_str::<Value>(&event.data).ok());
    let mut words = String::new();
    for chunk in chunks {
        words.push_str(
            chunk["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or_default(),
        );
    }
    json!({"words": words, "is_done": is_done})
}

async fn there(scene: &Scene, call: &Prepared, tag: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for path in &call.watch {
        let read = scene.auditor.get(path).await;
        let read = serde_json::from_slice(&read.body).unwrap_or_default();
        found.push(masked(&read, tag));
    }
    found
}

/// Records and state once the answer has arrived, with their consequences.
async fn outcome(scene: &Scene, call: &Prepared, answer: &Answer, tag: &str) -> Outcome {
    let there = there(scene, call, tag).await;
    let after = match &call.after {
        Some((who, method, path, body)) => {
            let body = if body.is_null() {
                String::new()
            } else {
                body.to_string()
            };
            let answer = who.send(method, path, &[], body).await;
            masked(&body_of(&answer), tag)
        }
        None => Value::Null,
    };
    Outcome {
        status: answer.status,
        body: masked(&body_of(answer), tag),
        there,
        after,
    }
}

/// Waits until whatever was on its way to the store is there: a write behind it is.
async fn settle(scene: &Scene) {
    for _ in 0..4 {
        let path = format!("/v1/sessions/{}/state", scene.bystander);
        let written = json!({"set": {"n": 1}});
        scene.ann.patch(&path, &written).await.ok(200);
    }
}

/// Cuts one use case everywhere. Gives how many cuts there were.
async fn cut_everywhere(scene: &Scene, case: &Case) -> usize {
    let tag = scene.tag();
    let call = (case.prepare)(scene, tag.clone()).await;
    let answer = made(scene.rig.router.clone(), call.clone(), tag.clone()).await;
    assert!(
        (200..300).contains(&answer.status),
        "{}: {}",
        case.name,
        answer.text()
    );
    let owed = outcome(scene, &call, &answer, &tag).await;
    let mut cuts = 0;
    for polls in 0..POLLS_MAX {
        for moment in [Moment::AtOnce, Moment::Woken] {
            let place = format!("{} after {polls} polls, dropped {moment:?}", case.name);
            if !cut_once(scene, case, (polls, moment), &owed, &place).await {
                return cuts;
            }
            cuts += 1;
        }
    }
    panic!("{} never ends", case.name);
}

/// Cuts one use case once and makes it again; false if it ended before the cut.
async fn cut_once(
    scene: &Scene,
    case: &Case,
    (polls, moment): (usize, Moment),
    owed: &Outcome,
    place: &str,
) -> bool {
    let tag = scene.tag();
    let call = (case.prepare)(scene, tag.clone()).await;
    let before = there(scene, &call, &tag).await;
    let first = Cut {
        inner: Box::pin(made(scene.rig.router.clone(), call.clone(), tag.clone())),
        polls,
        moment,
    };
    if first.await.is_some() {
        return false;
    }
    // A client that comes back at once meets its own call; one that comes later finds what it left.
    let mut is_done = None;
    if moment == Moment::Woken && call.promise == Promise::Kept {
        settle(scene).await;
        let found = there(scene, &call, &tag).await;
        assert!(
            found == before || found == owed.there,
            "{place}: half of it is there: {found:?}"
        );
        is_done = Some(found == owed.there);
    }
    let answer = made(scene.rig.router.clone(), call.clone(), tag.clone()).await;
    let is_replayed = answer.header("idempotency-replayed") == Some("true");
    if let Some(is_done) = is_done {
        assert_eq!(
            is_replayed,
            is_done,
            "{place}: replayed, and done: {}",
            answer.text()
        );
    }
    let outcome = outcome(scene, &call, &answer, &tag).await;
    match call.promise {
        Promise::Kept | Promise::Turn => assert_eq!(outcome, *owed, "{place}"),
        // Made again it has the same end, if not the same answer.
        Promise::Again => {
            assert_eq!(outcome.status, owed.status, "{place}: {}", answer.text());
            assert_eq!(outcome.there, owed.there, "{place}");
            assert_eq!(outcome.after, owed.after, "{place}");
        }
        Promise::Twice => {
            assert_eq!(outcome.status, owed.status, "{place}: {}", answer.text());
        }
    }
    true
}

/// Works for `chatty` as long as the test runs.
async fn work(chatty: Who) {
    let asked = json!({"agent": "chatty", "wait_seconds": 10, "max": 100});
    loop {
        let claimed = chatty.post("/v1/work/claim", &asked).await.ok(200);
        for request in claimed["requests"].as_array().into_iter().flatten() {
            let output = json!({"output": "here you are"});
            act(&chatty, request, "complete", output).await.ok(200);
        }
    }
}

async fn check(subject: &str, cases: &[Case]) {
    let scene = Scene::new(Rig::on_disk_with(cases::setup()).await).await;
    let mut cuts = 0;
    for case in cases {
        let found = cut_everywhere(&scene, case).await;
        println!("  {}: {found} cuts", case.name);
        assert!(
            found >= 2,
            "{} is cut before its first poll at least",
            case.name
        );
        cuts += found;
    }
    let verified = scene.auditor.post("/v1/audit/verify", &json!({})).await;
    let verified = verified.ok(200);
    assert_eq!(verified["ok"], true, "{verified}");
    println!("{subject}: {} use cases, {cuts} cuts", cases.len());
}

#[tokio::test]
async fn a_session_that_is_cut_off_while_it_changes_changes_once() {
    check("sessions", &cases::sessions()).await;
}

#[tokio::test]
async fn a_request_that_is_cut_off_goes_on_once() {
    check("requests", &cases::requests()).await;
}

#[tokio::test]
async fn a_hold_that_is_cut_off_is_asked_and_decided_once() {
    check("holds", &cases::holds()).await;
}

#[tokio::test]
async fn state_that_is_cut_off_is_written_once() {
    check("state", &cases::state()).await;
}

#[tokio::test]
async fn a_key_that_is_cut_off_is_whole_or_not_there() {
    check("keys", &cases::keys()).await;
}

#[tokio::test]
async fn a_chat_that_is_cut_off_has_one_turn() {
    check("chat", &cases::chat()).await;
}

#[tokio::test]
async fn a_chat_that_is_cut_off_leaves_no_new_session_without_its_turn() {
    let scene = Scene::new(Rig::on_disk_with(cases::setup()).await).await;
    let chat = cases::chat().pop().expect("a chat in a new session");
    let mut sessions = 0;
    for polls in 1..POLLS_MAX {
        let tag = scene.tag();
        let call = (chat.prepare)(&scene, tag.clone()).await;
        let first = Cut {
            inner: Box::pin(made(scene.rig.router.clone(), call.clone(), tag.clone())),
            polls,
            moment: Moment::AtOnce,
        };
        if first.await.is_some() {
            println!("{polls} polls, {sessions} sessions");
            assert!(sessions > 0, "a cut came after the session was on its way");
            return;
        }
        settle(&scene).await;
        let created = scene.auditor.get(&call.watch[0]).await.ok(200);
        for session in created["sessions"].as_array().expect("sessions") {
            let path = format!("/v1/sessions/{}/messages", text(session, "id"));
            let messages = scene.auditor.get(&path).await.ok(200);
            let first = &messages["messages"][0];
            assert_eq!(
                text(first, "role"),
                "user",
                "after {polls} polls: {messages}"
            );
            sessions += 1;
        }
    }
    panic!("a chat never ends");
}

#[test]
fn what_differs_between_two_runs_is_masked_and_nothing_else() {
    let value = json!({
        "id": "ses_0192f0c1a2b37c4d8e9f0a1b2c3d4e5f", "at": 1_794_794_566_632_539_u64, "seq": 3,
        "created_at": "2026-11-16T02:15:49.866299Z", "name": "cut-7-x", "user:cut-7": [1],
    });
    let expected = json!({
        "id": "ses_id", "at": 0, "seq": 3, "created_at": "time", "name": "tag-x", "user:tag": [1],
    });
    assert_eq!(masked(&value, "cut-7"), expected);
    assert_eq!(text(&masked(&value, "other"), "name"), "cut-7-x");
}
