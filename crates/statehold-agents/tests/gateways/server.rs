//! Fake remote agent over HTTP: plays scripted answers and faults, and records its requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("our client sends JSON")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The messages as role and content.
    pub(crate) fn messages(&self) -> Vec<(String, String)> {
        // Parse nothing else: states may contain JSON that no parser accepts.
        #[derive(Deserialize)]
        struct Message {
            role: String,
            content: String,
        }
        #[derive(Deserialize)]
        struct Body {
            messages: Vec<Message>,
        }
        let body: Body = serde_json::from_str(&self.text).expect("messages with text");
        let messages = body.messages.into_iter();
        messages
            .map(|message| (message.role, message.content))
            .collect()
    }

    /// The content of the last message.
    pub(crate) fn said(&self) -> String {
        let messages = self.messages();
        messages.last().expect("a message").1.clone()
    }
}

/// Scripted response to one request.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    /// None: the server sends no headers.
    head: Option<u16>,
    headers: Vec<(&'static str, String)>,
    body: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Text(String),
    /// Sends the same bytes this many times.
    Repeat(Bytes, usize),
    /// Sends nothing for this long.
    Wait(Duration),
    /// Sends nothing until notified.
    Until(Arc<tokio::sync::Notify>),
    /// Sends nothing more, and keeps the connection open.
    Hang,
    /// Closes the connection in the middle of the body.
    Cut,
    /// Decrements a counter of concurrent calls.
    Leave(Arc<Mutex<Crowd>>),
}

/// Current and highest number of concurrent calls.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Crowd {
    now: usize,
    pub(crate) most: usize,
}

impl Play {
    pub(crate) fn silence() -> Self {
        Self {
            head: None,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn text(status: u16, kind: &'static str, body: Vec<Step>) -> Self {
        Self {
            head: Some(status),
            headers: vec![("content-type", kind.to_owned())],
            body,
        }
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        let body = vec![Step::Text(body.to_string())];
        Self::text(status, "application/json", body)
    }

    pub(crate) fn events(body: Vec<Step>) -> Self {
        Self::text(200, "text/event-stream", body)
    }

    /// An answer streamed word by word.
    pub(crate) fn says(text: &str) -> Self {
        Self::says_with(text, None)
    }

    /// An answer with a member `custom_content`, sent verbatim.
    pub(crate) fn says_with(text: &str, custom_content: Option<&str>) -> Self {
        let mut body: Vec<Step> = text.split_inclusive(' ').map(word).collect();
        if let Some(custom) = custom_content {
            let chunk = format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"custom_content\":{custom}}}}}]}}\n\n"
            );
            body.push(Step::Text(chunk));
        }
        body.push(stop());
        Self::events(body)
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn once(mut self, told: &Arc<tokio::sync::Notify>) -> Self {
        self.body.insert(0, Step::Until(Arc::clone(told)));
        self
    }

    pub(crate) fn after(mut self, time: Duration) -> Self {
        self.body.insert(0, Step::Wait(time));
        self
    }
}

pub(crate) fn word(text: &str) -> Step {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}]});
    Step::Text(format!("data: {chunk}\n\n"))
}

pub(crate) fn stop() -> Step {
    let chunk = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    Step::Text(format!("data: {chunk}\n\ndata: [DONE]\n\n"))
}

type Script = Arc<dyn Fn(&Seen) -> Play + Send + Sync>;

pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(script: impl Fn(&Seen) -> Play + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let seen = Arc::new(Mutex::default());
        let accepting = tokio::spawn(accept(listener, Arc::new(script), Arc::clone(&seen)));
        Self {
            address,
            seen,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        locked(&self.seen).clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, script: Script, seen: Arc<Mutex<Vec<Seen>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (script, seen) = (Arc::clone(&script), Arc::clone(&seen));
        tokio::spawn(async move {
            let service =
                service_fn(move |request| answer(Arc::clone(&script), Arc::clone(&seen), request));
            let io = TokioIo::new(stream);
            // A scripted cut ends with an error here.
            drop(http1::Builder::new().serve_connection(io, service).await);
        });
    }
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

async fn answer(
    script: Script,
    all: Arc<Mutex<Vec<Seen>>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("our client sends whole bodies");
    let seen = Seen {
        method: head.method,
        path: head.uri.to_string(),
        headers: head.headers,
        text: String::from_utf8(body.to_bytes().to_vec()).expect("our client sends text"),
    };
    locked(&all).push(seen.clone());
    let play = script(&seen);
    let Some(status) = play.head else {
        return std::future::pending().await;
    };
    let mut response = Response::builder().status(status);
    for (name, value) in play.headers {
        response = response.header(name, value);
    }
    Ok(response.body(body_of(play.body)).expect("headers are fine"))
}

fn body_of(mut steps: Vec<Step>) -> Body {
    steps.reverse();
    let frames = stream::unfold(steps, |mut steps| async move {
        let bytes = match steps.pop()? {
            Step::Text(text) => Bytes::from(text),
            Step::Repeat(_, 0) => Bytes::new(),
            Step::Repeat(bytes, times) => {
                steps.push(Step::Repeat(bytes.clone(), times - 1));
                bytes
            }
            Step::Wait(time) => {
                tokio::time::sleep(time).await;
                Bytes::new()
            }
            Step::Until(told) => {
                told.notified().await;
                Bytes::new()
            }
            Step::Hang => std::future::pending().await,
            Step::Leave(crowd) => {
                locked(&crowd).now -= 1;
                Bytes::new()
            }
            Step::Cut => {
                // Let the earlier bytes be sent before the connection closes.
                tokio::task::yield_now().await;
                return Some((Err(std::io::Error::other("the play says so")), steps));
            }
        };
        Some((Ok(Frame::data(bytes)), steps))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

/// A conversation service with the API of the reference example.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Title and messages by id.
    pub(crate) conversations: Mutex<Vec<(String, String, Vec<String>)>>,
    /// Chats in flight.
    pub(crate) under_way: Arc<Mutex<Crowd>>,
}

impl Service {
    /// Plays the service. Its answers are derived from the messages of the conversation.
    pub(crate) fn play(&self, seen: &Seen, says: impl Fn(&[String]) -> String) -> Play {
        let path = seen.path.trim_start_matches("/v1/conversations");
        let mut all = locked(&self.conversations);
        match (&seen.method, path) {
            (&Method::POST, "") => {
                let id = format!("c-{}", all.len() + 1);
                let title = seen.json()["title"].as_str().expect("a title").to_owned();
                all.push((id.clone(), title.clone(), Vec::new()));
                Play::json(200, &json!({"id": id, "title": title, "messages": []}))
            }
            (&Method::GET, "") => {
                let listed = all.iter().rev();
                let listed: Vec<Value> = listed
                    .map(|(id, title, _)| json!({"id": id, "title": title}))
                    .collect();
                Play::json(200, &Value::Array(listed))
            }
            (&Method::POST, path) => {
                let id = path.trim_start_matches('/').trim_end_matches("/chat");
                let Some((_, _, said)) = all.iter_mut().find(|(known, ..)| known == id) else {
                    return Play::json(404, &json!({"detail": "Conversation not found"}));
                };
                let message = &seen.json()["message"]["content"];
                said.push(message.as_str().expect("text").to_owned());
                let named = json!({"conversation_id": id});
                let named = Step::Text(format!("data: {named}\n\n"));
                let words = says(said);
                let mut body = vec![named];
                body.extend(words.split_inclusive(' ').map(word));
                let mut crowd = locked(&self.under_way);
                crowd.now += 1;
                crowd.most = crowd.most.max(crowd.now);
                body.push(Step::Leave(Arc::clone(&self.under_way)));
                body.push(stop());
                Play::events(body)
            }
            (method, path) => panic!("nobody asks {method} {path}"),
        }
    }
}
