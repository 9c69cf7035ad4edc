//! Agents, models and tools, played over HTTP: they answer as a test says, and remember what they were
//! asked.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinHandle;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// What says that two calls are the same.
    pub(crate) key: Option<String>,
    pub(crate) body: Value,
}

impl Seen {
    /// What a user said last, to a chat service or in a conversation.
    pub(crate) fn said(&self) -> &str {
        let messages = self.body["messages"].as_array();
        let last = messages.and_then(|messages| {
            let mut said = messages.iter().rev();
            said.find(|message| message["role"] == "user")
        });
        let message = last.unwrap_or(&self.body["message"]);
        message["content"].as_str().unwrap_or_default()
    }
}

/// What is played for one call.
#[derive(Debug)]
pub(crate) struct Play {
    /// None: not even headers come.
    status: Option<u16>,
    kind: &'static str,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Bytes),
    /// The same piece, this often.
    Times(Bytes, usize),
    /// The same piece for ever, and this long nothing before each.
    Endless(Bytes, Duration),
    /// Nothing comes for this long.
    Wait(Duration),
    /// Nothing comes until everybody is here.
    Meet(Arc<Barrier>),
    /// The connection ends here, in the middle of the body.
    Cut,
}

impl Play {
    pub(crate) fn silence() -> Self {
        Self {
            status: None,
            kind: "",
            steps: Vec::new(),
        }
    }

    pub(crate) fn text(status: u16, kind: &'static str, steps: Vec<Step>) -> Self {
        Self {
            status: Some(status),
            kind,
            steps,
        }
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        let body = Step::Send(body.to_string().into());
        Self::text(status, "application/json", vec![body])
    }

    /// A stream, which ends as it should if nothing in it does otherwise.
    pub(crate) fn events(mut steps: Vec<Step>) -> Self {
        let stop = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        let end = format!("data: {stop}\n\ndata: [DONE]\n\n");
        steps.push(Step::Send(end.into()));
        Self::text(200, "text/event-stream", steps)
    }

    /// An answer, as it was asked for: whole, or word by word.
    pub(crate) fn says(seen: &Seen, text: &str) -> Self {
        if seen.body["stream"] == true {
            return Self::events(text.split_inclusive(' ').map(piece).collect());
        }
        let message = json!({"role": "assistant", "content": text});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        Self::json(200, &json!({"choices": [choice]}))
    }

    /// A model that wants one tool.
    pub(crate) fn wants(tool: &str, arguments: &Value) -> Self {
        let function = json!({"name": tool, "arguments": arguments.to_string()});
        let call = json!({"index": 0, "id": format!("call-{tool}"), "type": "function", "function": function});
        let chunk = json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]});
        Self::events(vec![Step::Send(format!("data: {chunk}\n\n").into())])
    }
}

/// A piece of an answer.
pub(crate) fn piece(text: &str) -> Step {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}]});
    Step::Send(format!("data: {chunk}\n\n").into())
}

/// The tools of a server that speaks MCP: None if this is no call of one of them.
pub(crate) fn called_tool(seen: &Seen) -> Option<(&str, &str)> {
    let params = &seen.body["params"];
    let is_call = seen.body["method"] == "tools/call";
    let name = params["name"].as_str().filter(|_| is_call)?;
    let key = params["_meta"]["statehold/execution_key"].as_str();
    Some((name, key.unwrap_or_default()))
}

/// Plays a server of tools. Each says that it is done.
pub(crate) fn tool_server(seen: &Seen, tools: &Value) -> Play {
    if seen.method != Method::POST {
        return Play::text(405, "text/plain", Vec::new());
    }
    if seen.body.get("id").is_none() {
        return Play::text(202, "text/plain", Vec::new());
    }
    let result = match seen.body["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": seen.body["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "played", "version": "1"},
        }),
        Some("tools/list") => json!({ "tools": tools }),
        Some("tools/call") => {
            let name = called_tool(seen).map_or("", |(name, _)| name);
            json!({"content": [{"type": "text", "text": format!("{name} is done")}]})
        }
        _ => json!({}),
    };
    let answer = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result});
    Play::json(200, &answer)
}

/// A service that keeps conversations: what it begins and finds. None if something is said in one.
pub(crate) fn begun(seen: &Seen, titles: &Mutex<Vec<String>>) -> Option<Play> {
    if seen.path.ends_with("/chat") {
        return None;
    }
    let mut titles = locked(titles);
    if seen.method == Method::POST {
        titles.push(seen.body["title"].as_str().unwrap_or_default().to_owned());
        let id = format!("c-{}", titles.len());
        return Some(Play::json(200, &json!({ "id": id })));
    }
    let listed = titles.iter().enumerate().rev();
    let listed: Vec<Value> = listed
        .map(|(at, title)| json!({"id": format!("c-{}", at + 1), "title": title}))
        .collect();
    Some(Play::json(200, &json!(listed)))
}

type Script = Arc<dyn Fn(&Seen) -> Play + Send + Sync>;

/// All that is played in a test, on one port.
pub(crate) struct Played {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    accepting: JoinHandle<()>,
}

impl Played {
    pub(crate) async fn start(script: impl Fn(&Seen) -> Play + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (script, heard): (Script, _) = (Arc::new(script), Arc::clone(&seen));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, heard) = (Arc::clone(&script), Arc::clone(&heard));
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        answer(Arc::clone(&script), Arc::clone(&heard), request)
                    });
                    let io = TokioIo::new(stream);
                    // Plays that cut the connection, and callers that do, end with an error here.
                    drop(http1::Builder::new().serve_connection(io, service).await);
                });
            }
        });
        Self {
            address,
            seen,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        locked(&self.seen).clone()
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that comes piece by piece.
struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

async fn answer(
    script: Script,
    all: Arc<Mutex<Vec<Seen>>>,
    request: Request<Incoming>,
) -> Result<Response<Pieces>, Infallible> {
    let (head, body) = request.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        // The server died while it asked.
        Err(_) => return std::future::pending().await,
    };
    let key = head.headers.get("idempotency-key");
    let key = key.and_then(|key| key.to_str().ok());
    let seen = Seen {
        key: key.map(str::to_owned),
        method: head.method,
        path: head.uri.path().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    locked(&all).push(seen.clone());
    let play = script(&seen);
    let Some(status) = play.status else {
        return std::future::pending().await;
    };
    let (sender, pieces) = mpsc::channel(4);
    // It ends when nobody listens any more.
    tokio::spawn(send(sender, play.steps));
    let response = Response::builder()
        .status(status)
        .header("content-type", play.kind);
    Ok(response.body(Pieces(pieces)).expect("headers are fine"))
}

/// Sends what is played. None as soon as nobody listens.
async fn send(to: mpsc::Sender<io::Result<Bytes>>, steps: Vec<Step>) -> Option<()> {
    for step in steps {
        match step {
            Step::Send(bytes) => to.send(Ok(bytes)).await.ok()?,
            Step::Times(bytes, times) => {
                for _ in 0..times {
                    to.send(Ok(bytes.clone())).await.ok()?;
                }
            }
            Step::Endless(bytes, pause) => loop {
                tokio::time::sleep(pause).await;
                to.send(Ok(bytes.clone())).await.ok()?;
            },
            Step::Wait(time) => tokio::time::sleep(time).await,
            Step::Meet(barrier) => {
                barrier.wait().await;
            }
            Step::Cut => {
                // What was said before is sent before the connection ends.
                while to.capacity() < to.max_capacity() {
                    tokio::task::yield_now().await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                to.send(Err(io::Error::other("the play says so")))
                    .await
                    .ok()?;
            }
        }
    }
    Some(())
}
