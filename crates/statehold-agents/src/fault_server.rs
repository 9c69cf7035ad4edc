//! Test server with scripted faults. It plays the given responses and records the requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Scripted response to one request.
#[derive(Debug, Clone)]
pub(crate) struct ScriptedResponse {
    /// None: the server sends no headers.
    head: Option<(u16, Vec<(&'static str, String)>)>,
    body: Vec<BodyStep>,
}

/// One step of a response body.
#[derive(Debug, Clone)]
pub(crate) enum BodyStep {
    Text(Bytes),
    /// Sends the same bytes this many times.
    Repeat(Bytes, usize),
    /// Sends nothing for this long.
    Wait(Duration),
    /// Sends nothing more, and keeps the connection open.
    Hang,
    /// Closes the connection in the middle of the body.
    Cut,
}

impl ScriptedResponse {
    pub(crate) fn silence() -> Self {
        Self {
            head: None,
            body: Vec::new(),
        }
    }

    pub(crate) fn new(status: u16, content_type: &str, body: Vec<BodyStep>) -> Self {
        let content_type = ("content-type", content_type.to_owned());
        Self {
            head: Some((status, vec![content_type])),
            body,
        }
    }

    pub(crate) fn text(status: u16, content_type: &str, body: &str) -> Self {
        Self::new(status, content_type, vec![text(body)])
    }

    pub(crate) fn json(body: &str) -> Self {
        Self::text(200, "application/json", body)
    }

    pub(crate) fn events(body: Vec<BodyStep>) -> Self {
        Self::new(200, "text/event-stream; charset=utf-8", body)
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Self {
        let head = self.head.as_mut().expect("a play with a head");
        head.1.push((name, value.to_owned()));
        self
    }
}

pub(crate) fn text(text: &str) -> BodyStep {
    BodyStep::Text(Bytes::copy_from_slice(text.as_bytes()))
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct SeenRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

pub(crate) struct FaultServer {
    address: SocketAddr,
    shared: Arc<FaultServerState>,
    accepting: JoinHandle<()>,
}

struct FaultServerState {
    plays: Vec<ScriptedResponse>,
    seen: Mutex<Vec<SeenRequest>>,
    written: Arc<AtomicUsize>,
    connections: AtomicUsize,
}

impl FaultServer {
    /// Plays the responses in order, and repeats the last one.
    pub(crate) async fn start(plays: Vec<ScriptedResponse>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(FaultServerState {
            plays,
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

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<SeenRequest> {
        let seen = self.shared.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes of bodies taken from this server. Some may still be in flight.
    pub(crate) fn written(&self) -> usize {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Number of accepted connections.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<FaultServerState>) {
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&shared), request));
            let io = TokioIo::new(stream);
            // A scripted cut ends with an error here.
            drop(http1::Builder::new().serve_connection(io, service).await);
        });
    }
}

type FaultBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BrokenBody>;

#[derive(Debug, thiserror::Error)]
#[error("the play says so")]
struct BrokenBody;

async fn answer(
    shared: Arc<FaultServerState>,
    request: Request<Incoming>,
) -> Result<Response<FaultBody>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("our client sends whole bodies");
    let seen = SeenRequest {
        method: head.method,
        path: head.uri.to_string(),
        headers: head.headers,
        body: String::from_utf8(body.to_bytes().to_vec()).expect("our client sends text"),
    };
    let play = {
        let mut all = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(seen);
        let play = shared.plays.get(all.len() - 1);
        play.or(shared.plays.last())
            .expect("something to play")
            .clone()
    };
    let Some((status, headers)) = play.head else {
        return std::future::pending().await;
    };
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    let body = body_of(play.body, Arc::clone(&shared.written));
    Ok(response.body(body).expect("headers are fine"))
}

fn body_of(mut steps: Vec<BodyStep>, written: Arc<AtomicUsize>) -> FaultBody {
    steps.reverse();
    let frames = stream::unfold(steps, move |mut steps| {
        let written = Arc::clone(&written);
        async move {
            let bytes = match steps.pop()? {
                BodyStep::Text(bytes) => bytes,
                BodyStep::Repeat(_, 0) => Bytes::new(),
                BodyStep::Repeat(bytes, times) => {
                    steps.push(BodyStep::Repeat(bytes.clone(), times - 1));
                    bytes
                }
                BodyStep::Wait(time) => {
                    tokio::time::sleep(time).await;
                    Bytes::new()
                }
                BodyStep::Hang => std::future::pending().await,
                BodyStep::Cut => {
                    // Let the earlier bytes be sent before the connection closes.
                    tokio::task::yield_now().await;
                    return Some((Err(BrokenBody), steps));
                }
            };
            written.fetch_add(bytes.len(), Ordering::Relaxed);
            Some((Ok(Frame::data(bytes)), steps))
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}
