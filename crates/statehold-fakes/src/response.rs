//! Scripted responses: a head, and a body that is sent step by step.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use tokio::sync::{Barrier, Mutex, Notify, mpsc};

/// Response to one request.
#[derive(Debug, Clone)]
pub struct ScriptedResponse {
    head: Head,
    body: Vec<BodyStep>,
}

#[derive(Debug, Clone)]
enum Head {
    /// Sends no headers, and keeps the connection open.
    Silence,
    /// Closes the connection instead of sending headers.
    Cut,
    Sent(u16, Vec<(&'static str, String)>),
}

/// One step of a response body.
#[derive(Debug, Clone)]
pub enum BodyStep {
    /// Sends these bytes.
    Send(Bytes),
    /// Sends the same bytes this many times.
    Repeat(Bytes, usize),
    /// Sends the same bytes forever, each time after this pause.
    Endless(Bytes, Duration),
    /// Sends the messages of a channel, until all its senders are dropped.
    Receive(Arc<Mutex<mpsc::UnboundedReceiver<Bytes>>>),
    /// Sends nothing for this long.
    Wait(Duration),
    /// Sends nothing until notified.
    Until(Arc<Notify>),
    /// Sends nothing until all others have arrived at the barrier.
    Meet(Arc<Barrier>),
    /// Sends nothing more, and keeps the connection open.
    Hang,
    /// Closes the connection in the middle of the body.
    Cut,
    /// Decrements a counter.
    Decrement(Arc<AtomicUsize>),
}

impl BodyStep {
    /// Sends the bytes of this step this many times.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self::Repeat(self.into_bytes(), times)
    }

    /// Sends the bytes of this step forever, each time after this pause.
    #[must_use]
    pub fn endless(self, pause: Duration) -> Self {
        Self::Endless(self.into_bytes(), pause)
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Send(bytes) => bytes,
            _ => panic!("a step that sends other than its bytes"),
        }
    }
}

/// Sends a text.
pub fn send(text: &str) -> BodyStep {
    BodyStep::Send(Bytes::copy_from_slice(text.as_bytes()))
}

/// Sends one event of an event stream.
pub fn event(data: &(impl Display + ?Sized)) -> BodyStep {
    BodyStep::Send(format!("data: {data}\n\n").into())
}

impl ScriptedResponse {
    /// Sends no headers, and keeps the connection open.
    pub fn silence() -> Self {
        Self {
            head: Head::Silence,
            body: Vec::new(),
        }
    }

    /// Closes the connection instead of sending headers.
    pub fn cut() -> Self {
        Self {
            head: Head::Cut,
            body: Vec::new(),
        }
    }

    /// A status, a content type and a body in steps.
    pub fn new(status: u16, content_type: &str, body: Vec<BodyStep>) -> Self {
        let content_type = ("content-type", content_type.to_owned());
        Self {
            head: Head::Sent(status, vec![content_type]),
            body,
        }
    }

    /// A whole text.
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        Self::new(status, content_type, vec![send(body)])
    }

    /// A JSON value or its text.
    pub fn json(status: u16, body: &(impl Display + ?Sized)) -> Self {
        Self::text(status, "application/json", &body.to_string())
    }

    /// An event stream.
    pub fn events(body: Vec<BodyStep>) -> Self {
        Self::new(200, "text/event-stream", body)
    }

    /// Adds a header, unless no headers are sent.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: &str) -> Self {
        if let Head::Sent(_, headers) = &mut self.head {
            headers.push((name, value.to_owned()));
        }
        self
    }

    /// Puts a step before the body.
    #[must_use]
    pub fn after(mut self, step: BodyStep) -> Self {
        self.body.insert(0, step);
        self
    }

    /// Sends the response. Bytes of the body are counted as they are handed to the connection.
    pub(crate) async fn play(self, written: Arc<AtomicUsize>) -> io::Result<Response<Body>> {
        let (status, headers) = match self.head {
            Head::Silence => return std::future::pending().await,
            Head::Cut => return Err(cut()),
            Head::Sent(status, headers) => (status, headers),
        };
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(name, value);
        }
        let body = body(self.body, written);
        Ok(response.body(body).expect("headers are valid"))
    }
}

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

fn cut() -> io::Error {
    io::Error::other("the script cuts the connection")
}

fn body(mut steps: Vec<BodyStep>, written: Arc<AtomicUsize>) -> Body {
    steps.reverse();
    let frames = stream::unfold(steps, move |mut steps| {
        let written = Arc::clone(&written);
        async move {
            let bytes = next_bytes(&mut steps).await?;
            if let Ok(bytes) = &bytes {
                written.fetch_add(bytes.len(), Ordering::Relaxed);
            }
            Some((bytes.map(Frame::data), steps))
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

/// Takes steps, in order from the end of the list, until one sends bytes.
async fn next_bytes(steps: &mut Vec<BodyStep>) -> Option<io::Result<Bytes>> {
    loop {
        match steps.pop()? {
            BodyStep::Send(bytes) => return Some(Ok(bytes)),
            BodyStep::Repeat(_, 0) => {}
            BodyStep::Repeat(bytes, times) => {
                steps.push(BodyStep::Repeat(bytes.clone(), times - 1));
                return Some(Ok(bytes));
            }
            BodyStep::Endless(bytes, pause) => {
                tokio::time::sleep(pause).await;
                steps.push(BodyStep::Endless(bytes.clone(), pause));
                return Some(Ok(bytes));
            }
            BodyStep::Receive(channel) => {
                let received = channel.lock().await.recv().await;
                if let Some(bytes) = received {
                    steps.push(BodyStep::Receive(channel));
                    return Some(Ok(bytes));
                }
            }
            BodyStep::Wait(time) => tokio::time::sleep(time).await,
            BodyStep::Until(notify) => notify.notified().await,
            BodyStep::Meet(barrier) => {
                barrier.wait().await;
            }
            BodyStep::Hang => std::future::pending().await,
            BodyStep::Cut => {
                // Let the earlier bytes be sent before the connection closes.
                tokio::task::yield_now().await;
                return Some(Err(cut()));
            }
            BodyStep::Decrement(counter) => {
                counter.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}
