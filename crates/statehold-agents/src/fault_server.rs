//! A server for tests that does everything an agent may do to us: it plays what it was given, and
//! remembers what it was asked.

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

/// What is played for one call.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    /// None: not even headers come.
    head: Option<(u16, Vec<(&'static str, String)>)>,
    body: Vec<Step>,
}

/// One step of a body.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Text(Bytes),
    /// The same piece this often.
    Repeat(Bytes, usize),
    /// Nothing comes for this long.
    Wait(Duration),
    /// Nothing more comes, and nobody hangs up.
    Hang,
    /// The connection ends here, in the middle of the body.
    Cut,
}

impl Play {
    pub(crate) fn silence() -> Self {
        Self {
            head: None,
            body: Vec::new(),
        }
    }

    pub(crate) fn new(status: u16, content_type: &str, body: Vec<Step>) -> Self {
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

    pub(crate) fn events(body: Vec<Step>) -> Self {
        Self::new(200, "text/event-stream; charset=utf-8", body)
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Self {
        let head = self.head.as_mut().expect("a play with a head");
        head.1.push((name, value.to_owned()));
        self
    }
}

pub(crate) fn text(text: &str) -> Step {
    Step::Text(Bytes::copy_from_slice(text.as_bytes()))
}

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

pub(crate) struct FaultServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    plays: Vec<Play>,
    seen: Mutex<Vec<Seen>>,
    written: Arc<AtomicUsize>,
    connections: AtomicUsize,
}

impl FaultServer {
    /// Plays one after the other; the last one is played again and again.
    pub(crate) async fn start(plays: Vec<Play>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
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

    pub(crate) fn seen(&self) -> Vec<Seen> {
        let seen = self.shared.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many bytes of bodies were taken from this server. Some of them may be on their way.
    pub(crate) fn written(&self) -> usize {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// How often somebody connected.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&shared), request));
            let io = TokioIo::new(stream);
            // Plays that cut the connection end with an error here.
            drop(http1::Builder::new().serve_connection(io, service).await);
        });
    }
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Broken>;

#[derive(Debug, thiserror::Error)]
#[error("the play says so")]
struct Broken;

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("our client sends whole bodies");
    let seen = Seen {
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

fn body_of(mut steps: Vec<Step>, written: Arc<AtomicUsize>) -> Body {
    steps.reverse();
    let frames = stream::unfold(steps, move |mut steps| {
        let written = Arc::clone(&written);
        async move {
            let bytes = match steps.pop()? {
                Step::Text(bytes) => bytes,
                Step::Repeat(_, 0) => Bytes::new(),
                Step::Repeat(bytes, times) => {
                    steps.push(Step::Repeat(bytes.clone(), times - 1));
                    bytes
                }
                Step::Wait(time) => {
                    tokio::time::sleep(time).await;
                    Bytes::new()
                }
                Step::Hang => std::future::pending().await,
                Step::Cut => {
                    // What was said before is sent before the connection ends.
                    tokio::task::yield_now().await;
                    return Some((Err(Broken), steps));
                }
            };
            written.fetch_add(bytes.len(), Ordering::Relaxed);
            Some((Ok(Frame::data(bytes)), steps))
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}
