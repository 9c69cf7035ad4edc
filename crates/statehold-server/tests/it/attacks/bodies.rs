//! Bodies that are announced and never sent to their end, and bodies of very many values.

use serde_json::json;
use statehold_core::limits::{BODY_VALUES_MAX, MCP_VALUES_MAX};
use statehold_server::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rest::new_session;
use crate::rig::{Rig, Setup, Who, until};

const LENGTH: usize = 256 * 1024;

/// Announces a body that changes the state of a session, and sends `sent` bytes of it.
async fn half_sent(who: &Who, path: &str, sent: usize) -> (TcpStream, String) {
    let value = "x".repeat(LENGTH - r#"{"set":{"a":""}}"#.len());
    let body = json!({"set": {"a": value}}).to_string();
    let key = who.key.as_deref().unwrap_or_default();
    let head = format!(
        "PATCH {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(who.address).await.expect("a connection");
    let (now, later) = body.split_at(sent);
    let written = stream.write_all(format!("{head}{now}").as_bytes()).await;
    written.expect("it is sent");
    (stream, later.to_owned())
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    read.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn half_sent_bodies_of_one_key_hold_up_no_other_key() {
    let setup = Setup {
        server: ServerOptions {
            // One key may have two such bodies at a time.
            request_bytes_max: 16 * LENGTH,
            ..ServerOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let (eve, ann) = (rig.client("eve").await, rig.client("ann").await);
    let path = format!("/v1/sessions/{}/state", new_session(&eve).await);
    let mut halves = Vec::new();
    for _ in 0..8 {
        halves.push(half_sent(&eve, &path, LENGTH / 2).await);
    }
    let open = || rig.connections.load(std::sync::atomic::Ordering::Relaxed);
    until("they are all there", || async {
        (open() >= 8).then_some(())
    })
    .await;

    let own = format!("/v1/sessions/{}/state", new_session(&ann).await);
    let value = json!({"set": {"a": "x".repeat(LENGTH)}});
    for _ in 0..8 {
        ann.patch(&own, &value).await.ok(200);
    }
    // A short body of the same key.
    eve.patch(&path, &json!({"set": {"b": 1}})).await.ok(200);

    // All of them are read in the end: each gives its memory to the next.
    let all = halves.into_iter().map(|(mut stream, later)| async move {
        let sent = stream.write_all(later.as_bytes()).await;
        sent.expect("it is read");
        answer(stream).await
    });
    for answer in futures_util::future::join_all(all).await {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.80}");
    }
}

#[tokio::test]
async fn nothing_of_a_body_is_read_for_a_caller_without_a_key() {
    let rig = Rig::in_memory().await;
    let (stream, _) = half_sent(&rig.nobody(), "/v1/sessions/x/state", 0).await;
    let answer = answer(stream).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

/// A list of so many values, itself included.
fn list(values: usize) -> String {
    format!("[{}0]", "0,".repeat(values - 2))
}

#[tokio::test]
async fn a_body_of_too_many_values_is_refused_at_every_door() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let many = list(BODY_VALUES_MAX);
    let state = format!("/v1/sessions/{session}/state");
    let analytics = "/v1/projects/p/locations/global:chat";
    let adk = "/apps/app/users/ann/sessions";
    let mcp = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"put_state","arguments":{{"a":{}}}}}}}"#,
        list(MCP_VALUES_MAX)
    );
    for (method, path, body) in [
        (
            "PATCH",
            state.as_str(),
            format!(r#"{{"set":{{"a":{many}}}}}"#),
        ),
        ("POST", "/v1/sessions", format!(r#"{{"labels":{many}}}"#)),
        ("POST", analytics, format!(r#"{{"inlineContext":{many}}}"#)),
        ("POST", adk, format!(r#"{{"state":{{"a":{many}}}}}"#)),
        ("POST", "/mcp", mcp),
    ] {
        let accept = ("accept", "application/json, text/event-stream");
        let answer = ann.send(method, path, &[accept], body).await;
        let text = answer.text();
        // Google's errors know no 413.
        let status = if path == analytics { 400 } else { 413 };
        assert_eq!(answer.status, status, "{path}: {text}");
        assert!(text.contains("JSON values"), "{path}: {text}");
    }
    let chat = format!(r#"{{"model":"a","messages":[{{"role":"user","content":{many}}}]}}"#);
    let refused = ann
        .send("POST", "/openai/v1/chat/completions", &[], chat)
        .await;
    assert_eq!(refused.status, 413, "{}", refused.text());
    let problem = refused.ok(413);
    assert_eq!(problem["error"]["code"], "too_many_values", "{problem}");
}

#[tokio::test]
async fn a_list_of_a_hundred_thousand_elements_and_a_long_text_are_written_as_state() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let state = format!("/v1/sessions/{}/state", new_session(&ann).await);
    let long = list(100_001);
    let text = "0,".repeat(BODY_VALUES_MAX);
    let body = format!(r#"{{"set":{{"list":{long},"text":"{text}"}}}}"#);
    ann.send("PATCH", &state, &[], body).await.ok(200);
}
