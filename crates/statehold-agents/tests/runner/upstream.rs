//! A fake model with scripted replies, and a tool server, both over HTTP.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

type Answer = Response<Full<Bytes>>;

/// Serves one handler on its own port until the test ends.
async fn serve<F, W>(answer: F) -> String
where
    F: Fn(hyper::Method, Value) -> W + Clone + Send + 'static,
    W: Future<Output = Answer> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer.clone();
                    async move {
                        let method = request.method().clone();
                        let body = request.into_body().collect().await.expect("a body");
                        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
                        let answer = answer(method, body).await;
                        match answer.extensions().get::<Cut>() {
                            Some(Cut) => Err(std::io::Error::other("cut")),
                            None => Ok(answer),
                        }
                    }
                });
                let io = TokioIo::new(stream);
                drop(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(io, service)
                        .await,
                );
            });
        }
    });
    format!("http://{address}")
}

/// Closes the connection instead of sending this answer.
#[derive(Clone, Copy)]
struct Cut;

fn cut() -> Answer {
    let mut answer = response(200, "text/plain", "");
    answer.extensions_mut().insert(Cut);
    answer
}

/// Decrements down to zero. Returns whether it was above zero.
pub(crate) fn take_one(left: &AtomicUsize) -> bool {
    let took = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    });
    took.is_ok()
}

fn response(status: u16, kind: &str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    let kind = kind.parse().expect("a header");
    response.headers_mut().insert("content-type", kind);
    response
}

/// The model's next reply.
#[derive(Debug, Clone)]
pub(crate) enum Says {
    Text(String),
    /// A text, and tool calls: id, name, arguments as text.
    Calls(String, Vec<(String, String, String)>),
    Status(u16),
    /// The inner reply, after a permit is added.
    Late(Box<Self>, Arc<tokio::sync::Semaphore>),
}

pub(crate) fn text(said: &str) -> Says {
    Says::Text(said.to_owned())
}

pub(crate) fn calls(calls: &[(&str, &str, Value)]) -> Says {
    let calls = calls
        .iter()
        .map(|(id, name, args)| ((*id).to_owned(), (*name).to_owned(), args.to_string()));
    Says::Calls(String::new(), calls.collect())
}

/// A model that plays scripted replies in order, and records its requests.
#[derive(Clone)]
pub(crate) struct ScriptedModel {
    pub(crate) url: String,
    script: Arc<Mutex<VecDeque<Says>>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl ScriptedModel {
    pub(crate) async fn start(script: impl IntoIterator<Item = Says>) -> Self {
        let script: Arc<Mutex<VecDeque<Says>>> = Arc::new(Mutex::new(script.into_iter().collect()));
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (lines, heard) = (Arc::clone(&script), Arc::clone(&asked));
        let url = serve(move |_, body| {
            let next = lines.lock().expect("no panic").pop_front();
            heard.lock().expect("no panic").push(body.clone());
            async move {
                let next = match next {
                    Some(Says::Late(says, gate)) => {
                        gate.acquire().await.expect("it stays open").forget();
                        Some(*says)
                    }
                    other => other,
                };
                match next {
                    Some(Says::Status(status)) => {
                        response(status, "application/json", r#"{"error":{"message":"no"}}"#)
                    }
                    Some(says) if body["stream"] == true => streamed(&says),
                    Some(says) => whole(&says),
                    None => response(418, "text/plain", "the script has ended"),
                }
            }
        })
        .await;
        Self { url, script, asked }
    }

    pub(crate) fn then(&self, says: impl IntoIterator<Item = Says>) {
        self.script.lock().expect("no panic").extend(says);
    }

    /// All request bodies.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.asked.lock().expect("no panic").clone()
    }

    /// The messages of the n-th request.
    pub(crate) fn messages(&self, call: usize) -> Vec<Value> {
        let asked = self.asked();
        asked[call]["messages"]
            .as_array()
            .expect("messages")
            .clone()
    }
}

fn parts(says: &Says) -> (&str, Value, &str) {
    match says {
        Says::Text(text) => (text, json!(null), "stop"),
        Says::Calls(text, calls) => {
            let calls = calls
                .iter()
                .enumerate()
                .map(|(index, (id, name, arguments))| {
                    json!({"index": index, "id": id, "type": "function",
                       "function": {"name": name, "arguments": arguments}})
                });
            (text, calls.collect(), "tool_calls")
        }
        Says::Status(_) | Says::Late(..) => ("", json!(null), "stop"),
    }
}

const USAGE: &str = r#"{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}"#;

fn streamed(says: &Says) -> Answer {
    let (text, calls, end) = parts(says);
    let mut body = String::new();
    let mut send = |chunk: Value| body.extend(["data: ", &chunk.to_string(), "\n\n"]);
    let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    send(delta(json!({"role": "assistant", "content": ""})));
    let middle = text
        .char_indices()
        .nth(text.chars().count() / 2)
        .map_or(0, |(at, _)| at);
    for piece in [&text[..middle], &text[middle..]] {
        send(delta(json!({"content": piece})));
    }
    if !calls.is_null() {
        send(delta(json!({"tool_calls": calls})));
    }
    send(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": end}]}));
    let usage: Value = serde_json::from_str(USAGE).expect("JSON");
    send(json!({"choices": [], "usage": usage}));
    body.push_str("data: [DONE]\n\n");
    response(200, "text/event-stream", body)
}

fn whole(says: &Says) -> Answer {
    let (text, calls, end) = parts(says);
    let usage: Value = serde_json::from_str(USAGE).expect("JSON");
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_null() {
        message["tool_calls"] = calls;
    }
    let body = json!({"choices": [{"index": 0, "message": message, "finish_reason": end}],
                      "usage": usage});
    response(200, "application/json", body.to_string())
}

/// A call that a tool server received.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Called {
    pub(crate) tool: String,
    pub(crate) args: Value,
    pub(crate) key: String,
    pub(crate) traceparent: String,
}

/// Behaviour of a tool. It may wait. A string is its answer; a number is a bare status; null closes the
/// connection.
pub(crate) type Does =
    Arc<dyn Fn(Called) -> futures_util::future::BoxFuture<'static, Value> + Send + Sync>;

/// A fake tool server.
#[derive(Clone)]
pub(crate) struct ToolServer {
    pub(crate) url: String,
    tools: Arc<Mutex<Vec<Value>>>,
    called: Arc<Mutex<Vec<Called>>>,
    /// How many connections to refuse.
    away: Arc<AtomicUsize>,
}

/// A tool that accepts any arguments and always gives the same answer.
pub(crate) fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("does {name}"), "inputSchema": {"type": "object"}})
}

impl ToolServer {
    /// Tools that answer with a text.
    pub(crate) async fn start(tools: Vec<Value>, answers: fn(&Called) -> String) -> Self {
        let does: Does = Arc::new(move |call| {
            let answer = answers(&call);
            Box::pin(async move { json!(answer) })
        });
        Self::with(tools, does).await
    }

    pub(crate) async fn with(tools: Vec<Value>, does: Does) -> Self {
        let tools = Arc::new(Mutex::new(tools));
        let called: Arc<Mutex<Vec<Called>>> = Arc::default();
        let (offered, heard) = (Arc::clone(&tools), Arc::clone(&called));
        let away = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&away);
        let url = serve(move |method, body| {
            let (offered, heard, does) = (Arc::clone(&offered), Arc::clone(&heard), Arc::clone(&does));
            let left = Arc::clone(&left);
            async move {
                if method != hyper::Method::POST {
                    return response(405, "text/plain", "");
                }
                if body.get("id").is_none() {
                    return response(202, "text/plain", "");
                }
                let params = &body["params"];
                if body["method"] == "initialize" && take_one(&left) {
                    return cut();
                }
                let result = match body["method"].as_str() {
                    Some("initialize") => json!({"protocolVersion": params["protocolVersion"],
                        "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}),
                    Some("tools/list") => {
                        let tools = offered.lock().expect("no panic").clone();
                        json!({"tools": tools})
                    }
                    Some("tools/call") => {
                        let meta = |name: &str| params["_meta"][name].as_str().unwrap_or_default().to_owned();
                        let call = Called {
                            tool: params["name"].as_str().unwrap_or_default().to_owned(),
                            args: params["arguments"].clone(),
                            key: meta("statehold/execution_key"),
                            traceparent: meta("traceparent"),
                        };
                        let offers = |tools: &[Value]| tools.iter().any(|tool| tool["name"] == call.tool);
                        if !offers(&offered.lock().expect("no panic")) {
                            let error = json!({"code": -32602, "message": "no such tool"});
                            let answer = json!({"jsonrpc": "2.0", "id": body["id"], "error": error});
                            return response(200, "application/json", answer.to_string());
                        }
                        heard.lock().expect("no panic").push(call.clone());
                        let said = does(call).await;
                        if let Some(status) = said.as_u64() {
                            let status = u16::try_from(status).expect("a status");
                            return response(status, "text/plain", "");
                        }
                        if said.is_null() {
                            return cut();
                        }
                        json!({"content": [{"type": "text", "text": said}]})
                    }
                    _ => json!({}),
                };
                let answer = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
                response(200, "application/json", answer.to_string())
            }
        })
        .await;
        Self {
            url,
            tools,
            called,
            away,
        }
    }

    /// Refuses the next connections, this many times.
    pub(crate) fn leave(&self, times: usize) {
        self.away.store(times, Ordering::SeqCst);
    }

    pub(crate) fn offer(&self, tools: Vec<Value>) {
        *self.tools.lock().expect("no panic") = tools;
    }

    pub(crate) fn called(&self) -> Vec<Called> {
        self.called.lock().expect("no panic").clone()
    }
}
