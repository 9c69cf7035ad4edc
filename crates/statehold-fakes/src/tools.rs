//! Tool servers that speak MCP over HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use hyper::Method;
use serde_json::{Value, json};

use crate::locked;
use crate::response::ScriptedResponse;
use crate::service::{FakeService, SeenRequest};

/// A tool that accepts any arguments.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("does {name}"), "inputSchema": {"type": "object"}})
}

/// A call that a tool server received.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The name of the tool.
    pub tool: String,
    /// Its arguments.
    pub args: Value,
    /// The execution key: retries of one call have the same.
    pub key: String,
    /// The trace header.
    pub traceparent: String,
    /// All of its metadata.
    pub meta: Value,
    /// The answers of people, by the keys of their questions.
    pub answers: Value,
    /// The state that came back with them.
    pub state: Value,
}

impl ToolCall {
    /// The call of a tool in a request. None for other requests.
    pub fn of(seen: &SeenRequest) -> Option<Self> {
        let body: Value = serde_json::from_str(&seen.text).ok()?;
        if body["method"] != "tools/call" {
            return None;
        }
        let params = &body["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(Self {
            tool: text(&params["name"]),
            args: params["arguments"].clone(),
            key: text(&params["_meta"]["statehold/execution_key"]),
            traceparent: text(&params["_meta"]["traceparent"]),
            meta: params["_meta"].clone(),
            answers: params["inputResponses"].clone(),
            state: params["requestState"].clone(),
        })
    }
}

/// Answers a call of a tool.
pub fn result(seen: &SeenRequest, text: &Value) -> ScriptedResponse {
    let content = json!({"content": [{"type": "text", "text": text}]});
    answer(seen, "result", &content)
}

/// Answers all other requests to a tool server: connecting, and listing its tools.
pub fn handshake(seen: &SeenRequest, tools: &[Value]) -> ScriptedResponse {
    if seen.method != Method::POST {
        return ScriptedResponse::text(405, "text/plain", "");
    }
    let body = seen.json();
    if body.get("id").is_none() {
        return ScriptedResponse::text(202, "text/plain", "");
    }
    let result = match body["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": body["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "fake", "version": "1"},
        }),
        Some("tools/list") => json!({ "tools": tools }),
        _ => json!({}),
    };
    answer(seen, "result", &result)
}

fn answer(seen: &SeenRequest, member: &str, value: &Value) -> ScriptedResponse {
    let id = &seen.json()["id"];
    ScriptedResponse::json(200, &json!({"jsonrpc": "2.0", "id": id, member: value}))
}

/// Behaviour of a tool. It may wait. A string is its answer; a list has the parts of its answer; an object is the
/// whole result; a number is a bare status; null closes the connection.
pub type ToolBehaviour = Arc<dyn Fn(ToolCall) -> BoxFuture<'static, Value> + Send + Sync>;

/// A tool server that records the calls of its tools.
#[derive(Clone)]
pub struct ToolServer {
    service: Arc<FakeService>,
    shared: Arc<ToolServerState>,
}

struct ToolServerState {
    tools: Mutex<Vec<Value>>,
    called: Mutex<Vec<ToolCall>>,
    /// How many connections to refuse.
    refusals: AtomicUsize,
    behaviour: ToolBehaviour,
}

impl ToolServer {
    /// Tools that answer with a text.
    pub async fn start(tools: Vec<Value>, answers: fn(&ToolCall) -> String) -> Self {
        let behaviour: ToolBehaviour = Arc::new(move |call| {
            let answer = answers(&call);
            Box::pin(async move { json!(answer) })
        });
        Self::with(tools, behaviour).await
    }

    /// Tools with this behaviour.
    pub async fn with(tools: Vec<Value>, behaviour: ToolBehaviour) -> Self {
        let shared = Arc::new(ToolServerState {
            tools: Mutex::new(tools),
            called: Mutex::default(),
            refusals: AtomicUsize::new(0),
            behaviour,
        });
        let served = Arc::clone(&shared);
        let service = FakeService::start_async(move |seen| {
            let served = Arc::clone(&served);
            async move { served.respond(&seen).await }
        });
        let service = Arc::new(service.await);
        Self { service, shared }
    }

    /// The URL.
    pub fn url(&self) -> String {
        self.service.url("")
    }

    /// Refuses the next connections, this many times.
    pub fn refuse(&self, times: usize) {
        self.shared.refusals.store(times, Ordering::SeqCst);
    }

    /// Replaces the tools.
    pub fn offer(&self, tools: Vec<Value>) {
        *locked(&self.shared.tools) = tools;
    }

    /// All calls of tools so far.
    pub fn called(&self) -> Vec<ToolCall> {
        locked(&self.shared.called).clone()
    }
}

impl ToolServerState {
    async fn respond(&self, seen: &SeenRequest) -> ScriptedResponse {
        let tools = locked(&self.tools).clone();
        let Some(call) = ToolCall::of(seen) else {
            let connects = seen.method == Method::POST && seen.json()["method"] == "initialize";
            if connects && take_one(&self.refusals) {
                return ScriptedResponse::cut();
            }
            return handshake(seen, &tools);
        };
        if !tools.iter().any(|tool| tool["name"] == call.tool) {
            let error = json!({"code": -32602, "message": "no such tool"});
            return answer(seen, "error", &error);
        }
        locked(&self.called).push(call.clone());
        match (self.behaviour)(call).await {
            Value::Null => ScriptedResponse::cut(),
            Value::Number(status) => {
                let status = status.as_u64().and_then(|status| status.try_into().ok());
                ScriptedResponse::text(status.expect("a status"), "text/plain", "")
            }
            whole @ Value::Object(_) => answer(seen, "result", &whole),
            content @ Value::Array(_) => answer(seen, "result", &json!({ "content": content })),
            text => result(seen, &text),
        }
    }
}

/// Decrements down to zero. Returns whether it was above zero.
pub fn take_one(left: &AtomicUsize) -> bool {
    let took = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    });
    took.is_ok()
}
