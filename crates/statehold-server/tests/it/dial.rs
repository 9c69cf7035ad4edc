//! Agents as deployments of DIAL: the bytes of its answers, its errors, its state, and chat windows that keep it.

mod answers;
mod callers;
mod calls;
mod errors;
mod fire;
mod pauses;
mod references;
mod states;

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use statehold_core::ids::RequestId;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::chat::setup;
use crate::rest::{act, claim};
use crate::rig::{Answer, Rig, Who, text};

const HELPER: &str = "/openai/deployments/helper/chat/completions?api-version=2024-10-21";
const PATIENCE: Duration = Duration::from_secs(30);

/// Ann, and the worker that is the deployment `helper`.
struct Scene {
    rig: Rig,
    ann: Who,
    helper: Who,
}

impl Scene {
    async fn begin(rig: Rig) -> Self {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        Self { rig, ann, helper }
    }

    async fn new() -> Self {
        Self::begin(Rig::with(setup()).await).await
    }

    /// The request that waits for the helper.
    async fn claim(&self) -> Value {
        claim(&self.helper, "helper").await
    }

    async fn complete(&self, request: &Value, output: &str) {
        let done = json!({ "output": output });
        act(&self.helper, request, "complete", done).await.ok(200);
    }

    /// Calls the helper.
    fn send(&self, body: &Value, headers: &[(&'static str, &str)]) -> JoinHandle<Answer> {
        send(&self.ann, HELPER, body, headers)
    }

    /// Calls the helper for a stream.
    async fn stream(&self, mut body: Value, headers: &[(&str, &str)]) -> Events {
        body["stream"] = true.into();
        let body = body.to_string().into();
        let sent = self.ann.begin("POST", HELPER, headers, body).await;
        Events::read(sent.expect("an answer begins"))
    }
}

fn send(
    who: &Who,
    path: &'static str,
    body: &Value,
    headers: &[(&'static str, &str)],
) -> JoinHandle<Answer> {
    let (who, body) = (who.clone(), body.to_string());
    let headers: Vec<(&str, String)> = headers
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect();
    tokio::spawn(async move {
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        who.send("POST", path, &headers, body).await
    })
}

fn said(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

fn id(request: &Value) -> RequestId {
    text(request, "id").parse().expect("an id")
}

/// The answer of a call that another caller waits for.
async fn finished(call: JoinHandle<Answer>) -> Answer {
    let answer = timeout(PATIENCE, call).await.expect("an answer in time");
    answer.expect("the call is made")
}

/// The message of a whole answer.
#[track_caller]
fn message(answer: &Answer) -> Value {
    answer.ok(200)["choices"][0]["message"].clone()
}

/// The events of a stream, as the bytes between blank lines.
struct Events {
    headers: http::HeaderMap,
    body: Incoming,
    bytes: String,
}

impl Events {
    fn read(response: http::Response<Incoming>) -> Self {
        assert_eq!(response.status(), 200);
        let kind = &response.headers()["content-type"];
        assert_eq!(kind, "text/event-stream; charset=utf-8");
        Self {
            headers: response.headers().clone(),
            body: response.into_body(),
            bytes: String::new(),
        }
    }

    /// The next line of data. None at the end.
    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.bytes.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.bytes = rest;
                if event.starts_with(':') {
                    continue;
                }
                let data = event.strip_prefix("data: ").expect("one line of data");
                assert!(!data.contains('\n'), "{event}");
                return Some(data.to_owned());
            }
            let frame = timeout(PATIENCE, self.body.frame()).await;
            let Some(frame) = frame.expect("something comes in time") else {
                assert_eq!(self.bytes, "");
                return None;
            };
            let frame = frame.expect("it does not break off");
            let bytes = frame.data_ref().expect("only data");
            self.bytes
                .push_str(std::str::from_utf8(bytes).expect("text"));
        }
    }

    /// The next chunk.
    async fn chunk(&mut self) -> Value {
        let line = self.line().await.expect("a chunk");
        serde_json::from_str(&line).expect("JSON")
    }

    /// All lines to the end, which is `[DONE]`.
    async fn rest(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = self.line().await {
            lines.push(line);
        }
        assert_eq!(lines.pop().as_deref(), Some("[DONE]"));
        lines
    }

    /// All chunks to the end.
    async fn chunks(&mut self) -> Vec<Value> {
        let lines = self.rest().await;
        let chunks = lines.iter().map(|line| serde_json::from_str(line));
        chunks.collect::<Result<_, _>>().expect("JSON")
    }
}

/// The message that DIAL's client puts together from chunks: texts are joined, numbers replace, objects are merged, and
/// elements of lists by their `index`.
fn merged(chunks: &[Value]) -> Value {
    let mut message = json!({});
    for chunk in chunks {
        merge(&mut message, &chunk["choices"][0]["delta"]);
    }
    strip_index(&mut message);
    message
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (_, Value::Null) => {}
        (into @ Value::Null, from) => {
            let empty = match from {
                Value::Object(_) => json!({}),
                Value::Array(_) => json!([]),
                other => other.clone(),
            };
            let is_whole = !(from.is_object() || from.is_array());
            *into = empty;
            if !is_whole {
                merge(into, from);
            }
        }
        (Value::String(into), Value::String(from)) => into.push_str(from),
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => {
            if from.iter().all(|element| element.get("index").is_none()) {
                into.extend(from.iter().cloned());
                return;
            }
            for element in from {
                let index = element["index"].as_u64().expect("elements have an index");
                let index = usize::try_from(index).expect("a place");
                while into.len() <= index {
                    let at = into.len();
                    into.push(json!({ "index": at }));
                }
                merge(&mut into[index], element);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Removes the places of list elements, but not inside a state.
fn strip_index(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("index");
            for (name, member) in members {
                if name != "state" {
                    strip_index(member);
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(strip_index),
        _ => {}
    }
}

/// A chat window as DIAL Chat keeps one: answers as they came, and of those it sends back the text and the state.
#[derive(Clone)]
struct Window {
    who: Who,
    messages: Vec<Value>,
}

impl Window {
    fn of(who: &Who) -> Self {
        Self {
            who: who.clone(),
            messages: Vec::new(),
        }
    }

    /// The messages as DIAL Chat sends them: an answer keeps its state, and loses its stages and its files.
    fn sent(&self) -> Vec<Value> {
        let echo = |message: &Value| {
            if message["role"] != "assistant" {
                return message.clone();
            }
            let mut sent = json!({"role": "assistant", "content": message["content"]});
            if let Some(state) = message["custom_content"].get("state") {
                sent["custom_content"] = json!({ "state": state });
            }
            sent
        };
        self.messages.iter().map(echo).collect()
    }

    fn send(&mut self, text: &str) -> JoinHandle<Answer> {
        self.messages.push(json!({"role": "user", "content": text}));
        send(&self.who, HELPER, &json!({ "messages": self.sent() }), &[])
    }

    /// Says something, lets the helper answer, and keeps the answer. Returns the session.
    async fn turn(&mut self, scene: &Scene, text: &str) -> String {
        let call = self.send(text);
        let request = scene.claim().await;
        assert_eq!(request["input"], text);
        scene.complete(&request, &format!("{text}!")).await;
        self.keep(call).await
    }

    /// Keeps the answer of a call. Returns the session.
    async fn keep(&mut self, call: JoinHandle<Answer>) -> String {
        let answer = finished(call).await;
        self.messages.push(message(&answer));
        let session = answer.header("x-statehold-session");
        session.expect("a session").to_owned()
    }

    /// The same window with the first messages only.
    fn cut(&self, count: usize) -> Self {
        Self {
            messages: self.messages[..count].to_vec(),
            ..self.clone()
        }
    }

    fn state(&self) -> &Value {
        let last = self.messages.last().expect("a message");
        &last["custom_content"]["state"]
    }
}

/// The texts of a session.
async fn texts(scene: &Scene, session: &str) -> Vec<String> {
    let path = format!("/v1/sessions/{session}/messages");
    let page = scene.ann.get(&path).await.ok(200);
    let messages = page["messages"].as_array().expect("a list");
    messages.iter().map(|one| text(one, "content")).collect()
}
