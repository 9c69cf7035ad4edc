//! The fake HTTP service, and the requests that it records.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::locked;
use crate::response::{Body, ScriptedResponse};

/// A received request.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

/// A chat message. Other members of a request are not parsed: they may contain numbers that no parser accepts.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    role: String,
    #[serde(default)]
    content: Value,
    /// The message of a user of the Conversational Analytics API.
    #[serde(default, rename = "userMessage")]
    by_user: Value,
}

/// The messages of a chat completion, or the message to a conversation.
#[derive(Deserialize, Default)]
struct Messages {
    #[serde(default)]
    messages: Vec<Message>,
    message: Option<Message>,
}

impl SeenRequest {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("a JSON body")
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Role and text of each message.
    pub fn messages(&self) -> Vec<(String, String)> {
        let body: Messages = serde_json::from_str(&self.text).expect("a body with messages");
        let messages = body.messages.into_iter().map(|message| {
            let content = message.content.as_str().expect("a message with text");
            (message.role, content.to_owned())
        });
        messages.collect()
    }

    /// The text of the last message of a user, to a chat service or in a conversation. Empty for other
    /// requests.
    pub fn said(&self) -> String {
        let body: Messages = serde_json::from_str(&self.text).unwrap_or_default();
        let mut messages = body.messages.into_iter().rev();
        let is_users = |message: &Message| message.role == "user" || message.by_user.is_object();
        let last = messages.find(is_users).or(body.message);
        let content = last.map(|message| match &message.by_user["text"] {
            Value::Null => message.content,
            text => text.clone(),
        });
        let content = content.unwrap_or_default();
        content.as_str().unwrap_or_default().to_owned()
    }
}

type Script = dyn Fn(SeenRequest) -> BoxFuture<'static, ScriptedResponse> + Send + Sync;

/// Answers over HTTP from a script, and records its requests. It closes its port when it is dropped.
pub struct FakeService {
    address: SocketAddr,
    shared: Arc<ServiceState>,
    accepting: JoinHandle<()>,
}

struct ServiceState {
    script: Box<Script>,
    seen: Mutex<Vec<SeenRequest>>,
    written: Arc<AtomicUsize>,
    connections: AtomicUsize,
}

impl FakeService {
    /// Starts a service that answers each request as the script says.
    pub async fn start(
        script: impl Fn(&SeenRequest) -> ScriptedResponse + Send + Sync + 'static,
    ) -> Self {
        Self::start_async(move |seen| {
            let response = script(&seen);
            async move { response }
        })
        .await
    }

    /// The same with a script that may wait before it answers.
    pub async fn start_async<W>(script: impl Fn(SeenRequest) -> W + Send + Sync + 'static) -> Self
    where
        W: Future<Output = ScriptedResponse> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(ServiceState {
            script: Box::new(move |seen| Box::pin(script(seen))),
            seen: Mutex::default(),
            written: Arc::default(),
            connections: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// Plays the responses in order, and repeats the last one.
    pub async fn play(responses: Vec<ScriptedResponse>) -> Self {
        let calls = AtomicUsize::new(0);
        Self::start(move |_| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            let response = responses.get(call).or(responses.last());
            response.expect("a response to play").clone()
        })
        .await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<SeenRequest> {
        locked(&self.shared.seen).clone()
    }

    /// Bytes of bodies that were handed to connections. Some may still be in flight.
    pub fn written(&self) -> usize {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Number of accepted connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for FakeService {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<ServiceState>) {
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&shared), request));
            let io = TokioIo::new(stream);
            // Scripted cuts, and callers that hang up, end with an error here.
            drop(http1::Builder::new().serve_connection(io, service).await);
        });
    }
}

async fn answer(
    shared: Arc<ServiceState>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        // The caller died while it sent the request.
        return std::future::pending().await;
    };
    let seen = SeenRequest {
        method: head.method,
        path: head.uri.to_string(),
        headers: head.headers,
        text: String::from_utf8(body.to_bytes().into()).expect("a body in UTF-8"),
    };
    locked(&shared.seen).push(seen.clone());
    let response = (shared.script)(seen).await;
    response.play(Arc::clone(&shared.written)).await
}
