//! Chat completions as agents and models send them, whole or streamed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use crate::locked;
use crate::response::{BodyStep, ScriptedResponse, event, send};
use crate::service::{FakeService, SeenRequest};

const DONE: &str = "data: [DONE]\n\n";

fn chunk(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn finish(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// Sends a piece of an answer.
pub fn word(text: &str) -> BodyStep {
    event(&chunk(&json!({"content": text})))
}

/// Sends the end of an answer.
pub fn stop() -> BodyStep {
    send(&format!("data: {}\n\n{DONE}", finish("stop")))
}

/// A streamed answer: the steps, then its end.
pub fn stream(mut steps: Vec<BodyStep>) -> ScriptedResponse {
    steps.push(stop());
    ScriptedResponse::events(steps)
}

/// An answer streamed word by word.
pub fn streamed(text: &str) -> ScriptedResponse {
    stream(words(text).collect())
}

/// The same with a member `custom_content`, sent verbatim before the end.
pub fn streamed_with(text: &str, custom_content: &str) -> ScriptedResponse {
    let custom = format!(
        "{{\"choices\":[{{\"index\":0,\"delta\":{{\"custom_content\":{custom_content}}}}}]}}"
    );
    stream(words(text).chain([event(&custom)]).collect())
}

pub(crate) fn words(text: &str) -> impl Iterator<Item = BodyStep> {
    text.split_inclusive(' ').map(word)
}

/// An answer as the request asks for it: whole, or streamed word by word.
pub fn says(seen: &SeenRequest, text: &str) -> ScriptedResponse {
    if seen.json()["stream"] == true {
        return streamed(text);
    }
    let message = json!({"role": "assistant", "content": text});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    ScriptedResponse::json(200, &json!({"choices": [choice]}))
}

/// The streamed reply of a model that calls one tool.
pub fn wants(tool: &str, arguments: &Value) -> ScriptedResponse {
    let call = tool_call(0, &format!("call-{tool}"), tool, &arguments.to_string());
    stream(vec![event(&chunk(&json!({"tool_calls": [call]})))])
}

fn tool_call(index: usize, id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({"name": name, "arguments": arguments});
    json!({"index": index, "id": id, "type": "function", "function": function})
}

/// A streamed answer that the test speaks piece by piece. Dropping it ends the stream.
#[derive(Debug)]
pub struct SpokenAnswer {
    pieces: mpsc::UnboundedSender<Bytes>,
}

impl SpokenAnswer {
    /// The answer, and the response that streams it.
    pub fn new() -> (Self, ScriptedResponse) {
        let (pieces, receiver) = mpsc::unbounded_channel();
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        let body = vec![BodyStep::Receive(receiver), send(DONE)];
        (Self { pieces }, ScriptedResponse::events(body))
    }

    /// Sends a piece of the answer.
    pub fn say(&self, piece: &str) {
        self.send(&chunk(&json!({"content": piece})));
    }

    /// Sends the end of the answer.
    pub fn end(self) {
        self.send(&finish("stop"));
    }

    fn send(&self, chunk: &Value) {
        let bytes = format!("data: {chunk}\n\n").into();
        self.pieces.send(bytes).expect("the caller listens");
    }
}

/// One reply of a [`ScriptedModel`].
#[derive(Debug, Clone)]
pub enum ModelReply {
    /// A text.
    Text(String),
    /// A text, and tool calls: id, name, arguments as text.
    Calls(String, Vec<(String, String, String)>),
    /// An error with this status.
    Status(u16),
    /// The inner reply, after a permit is added.
    Late(Box<Self>, Arc<Semaphore>),
}

/// A reply with a text.
pub fn text(text: &str) -> ModelReply {
    ModelReply::Text(text.to_owned())
}

/// A reply with tool calls: id, name, arguments.
pub fn calls(calls: &[(&str, &str, Value)]) -> ModelReply {
    let calls = calls
        .iter()
        .map(|(id, name, args)| ((*id).to_owned(), (*name).to_owned(), args.to_string()));
    ModelReply::Calls(String::new(), calls.collect())
}

/// A model that plays its replies in order, and records its requests.
#[derive(Clone)]
pub struct ScriptedModel {
    service: Arc<FakeService>,
    script: Arc<Mutex<VecDeque<ModelReply>>>,
}

impl ScriptedModel {
    /// Starts a model with these replies.
    pub async fn start(script: impl IntoIterator<Item = ModelReply>) -> Self {
        let script: Arc<Mutex<VecDeque<ModelReply>>> =
            Arc::new(Mutex::new(script.into_iter().collect()));
        let replies = Arc::clone(&script);
        let service = FakeService::start_async(move |seen| {
            let mut reply = locked(&replies).pop_front();
            async move {
                if let Some(ModelReply::Late(late, gate)) = reply {
                    gate.acquire().await.expect("it stays open").forget();
                    reply = Some(*late);
                }
                match reply {
                    Some(reply) => reply.respond(&seen),
                    None => ScriptedResponse::text(418, "text/plain", "the script has ended"),
                }
            }
        })
        .await;
        let service = Arc::new(service);
        Self { service, script }
    }

    /// Adds replies.
    pub fn then(&self, replies: impl IntoIterator<Item = ModelReply>) {
        locked(&self.script).extend(replies);
    }

    /// The base URL.
    pub fn url(&self) -> String {
        self.service.url("")
    }

    /// All request bodies.
    pub fn asked(&self) -> Vec<Value> {
        let seen = self.service.seen();
        seen.iter().map(SeenRequest::json).collect()
    }

    /// The messages of the n-th request.
    pub fn messages(&self, call: usize) -> Vec<Value> {
        let messages = &self.asked()[call]["messages"];
        messages.as_array().expect("messages").clone()
    }
}

impl ModelReply {
    fn respond(&self, seen: &SeenRequest) -> ScriptedResponse {
        let (text, calls, end) = match self {
            Self::Text(text) => (text, Value::Null, "stop"),
            Self::Calls(text, calls) => {
                let calls = calls.iter().enumerate();
                let calls = calls
                    .map(|(index, (id, name, arguments))| tool_call(index, id, name, arguments));
                (text, calls.collect(), "tool_calls")
            }
            Self::Status(status) => {
                return ScriptedResponse::json(*status, r#"{"error":{"message":"no"}}"#);
            }
            Self::Late(..) => panic!("a late reply within a late reply"),
        };
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
        if seen.json()["stream"] != true {
            let mut message = json!({"role": "assistant", "content": text});
            if !calls.is_null() {
                message["tool_calls"] = calls;
            }
            let choice = json!({"index": 0, "message": message, "finish_reason": end});
            return ScriptedResponse::json(200, &json!({"choices": [choice], "usage": usage}));
        }
        let middle = text.char_indices().nth(text.chars().count() / 2);
        let (first, second) = text.split_at(middle.map_or(0, |(at, _)| at));
        let mut body = vec![
            event(&chunk(&json!({"role": "assistant", "content": ""}))),
            word(first),
            word(second),
        ];
        if !calls.is_null() {
            body.push(event(&chunk(&json!({"tool_calls": calls}))));
        }
        body.push(event(&finish(end)));
        body.push(event(&json!({"choices": [], "usage": usage})));
        body.push(send(DONE));
        ScriptedResponse::events(body)
    }
}
