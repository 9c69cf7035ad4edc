//! The accept loop: takes connections and passes their requests to the router. No client can block it.
//!
//! `axum::serve` waits forever for slow headers and stalled readers. Here every wait on a client has a
//! timeout, except for request bodies: the handler that reads a body sets its own.
//!
//! | a client that | is cut after |
//! | --- | --- |
//! | connects and sends nothing, or trickles its headers | `head_read_timeout` |
//! | keeps an idle connection | `idle_timeout` |
//! | does not read what it asked for | `write_stall_timeout` |
//!
//! hyper's own header timeout also runs while a connection waits for its next request, so it can be
//! only one of the first two. It is used for idle connections; `StallGuard` watches the headers.

mod guard;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use guard::{ConnectionProgress, RequestInService, StallGuard};

/// Buffer of a connection in each direction, in bytes. Bodies pass through in chunks of this size.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Back-off when the system has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The answer to a connection beyond `connections_max`.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    retry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Limits and timeouts for connections.
#[derive(Debug, Clone)]
pub struct AcceptOptions {
    /// How many connections may be open at once. One more gets 503 and is closed.
    pub connections_max: usize,
    /// How long the head of a request may take from its first byte, or from the connection on.
    pub head_read_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// How long a client may leave what we write unread.
    pub write_stall_timeout: Duration,
    /// The longest head of a request; longer ones are answered 431.
    pub head_bytes_max: usize,
    /// How many headers a request may have; more are answered 431.
    pub headers_max: usize,
    /// How long running requests have after a stop, before they are cut.
    pub grace: Duration,
    /// Counts the open connections, for metrics.
    pub connections_open: Arc<AtomicUsize>,
}

impl Default for AcceptOptions {
    fn default() -> Self {
        Self {
            connections_max: 8192,
            head_read_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_stall_timeout: Duration::from_secs(30),
            head_bytes_max: 32 * 1024,
            headers_max: 100,
            grace: Duration::from_secs(20),
            connections_open: Arc::default(),
        }
    }
}

/// Serves `app` on `listener` until `stop` is cancelled.
///
/// Every request carries [`ConnectInfo<SocketAddr>`], the address of its peer, as an extension.
///
/// After a stop the listener is closed at once and idle connections with it; requests that are
/// running have [`AcceptOptions::grace`] to finish, then their connections are dropped. Streams
/// without an end must therefore end themselves when they see the stop. Returns when no connection
/// is left.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    options: AcceptOptions,
    stop: CancellationToken,
) {
    let grace = options.grace;
    let permits = Arc::new(Semaphore::new(
        options.connections_max.min(Semaphore::MAX_PERMITS),
    ));
    let connections = Connections {
        builder: builder(&options),
        app,
        options,
        stop: stop.clone(),
        cut: CancellationToken::new(),
        tracker: TaskTracker::new(),
    };
    let mut trouble = AcceptTrouble::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => connections.start(stream, peer, permit),
                Err(_) => refuse(&stream),
            },
            Err(error) => {
                if let Some(pause) = trouble.note(&error, Instant::now()) {
                    drop(tokio::time::timeout(pause, stop.cancelled()).await);
                }
            }
        }
    }
    drop(listener);

    connections.tracker.close();
    if tokio::time::timeout(grace, connections.tracker.wait())
        .await
        .is_err()
    {
        let count = connections.tracker.len();
        tracing::warn!(count, "connections are cut, their time to finish is over");
        connections.cut.cancel();
        connections.tracker.wait().await;
    }
}

fn builder(options: &AcceptOptions) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle_timeout)
        .max_headers(options.headers_max)
        .max_header_size(options.head_bytes_max)
        .max_buf_size(BUFFER_BYTES_MAX.max(options.head_bytes_max));
    builder
}

/// Answers 503 to a connection beyond the limit, without waiting. A client that has already sent more
/// than the buffer below gets a TCP reset instead.
fn refuse(stream: &TcpStream) {
    // Closing a socket with unread data sends a reset, which would discard the answer.
    drop(stream.try_read(&mut [0; 4096]));
    drop(stream.try_write(TOO_MANY));
}

/// Decides which errors of `accept` need a back-off and a log line.
#[derive(Debug, Default)]
struct AcceptTrouble {
    logged_at: Option<Instant>,
}

impl AcceptTrouble {
    /// How long to wait before the next try, if at all.
    fn note(&mut self, error: &io::Error, now: Instant) -> Option<Duration> {
        // These errors concern one connection, which is already gone.
        if let io::ErrorKind::ConnectionAborted
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::Interrupted = error.kind()
        {
            return None;
        }
        if self.is_log_due(now) {
            self.logged_at = Some(now);
            tracing::error!(%error, "cannot accept connections; raise the limit of open files");
        }
        Some(ACCEPT_PAUSE)
    }

    fn is_log_due(&self, now: Instant) -> bool {
        self.logged_at
            .is_none_or(|at| now.duration_since(at) >= ACCEPT_LOG_INTERVAL)
    }
}

struct Connections {
    builder: http1::Builder,
    app: Router,
    options: AcceptOptions,
    stop: CancellationToken,
    /// Cancelled when the grace period is over.
    cut: CancellationToken,
    tracker: TaskTracker,
}

impl Connections {
    fn start(&self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        // Answers are written in one piece; Nagle's algorithm would only delay the last packet.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let open = OpenConnection::new(Arc::clone(&self.options.connections_open), permit);
        let progress = Arc::new(ConnectionProgress::default());
        let io = TokioIo::new(StallGuard::new(
            stream,
            Arc::clone(&progress),
            self.options.head_read_timeout,
            self.options.write_stall_timeout,
        ));
        let app = self.app.clone();
        let service = service_fn(move |request| {
            answer(
                app.clone(),
                request,
                peer,
                RequestInService::begin(&progress),
            )
        });
        let connection = self.builder.serve_connection(io, service);
        let (stop, cut) = (self.stop.clone(), self.cut.clone());
        self.tracker.spawn(async move {
            let mut connection = pin!(connection);
            let result = tokio::select! {
                biased;
                result = connection.as_mut() => result,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        biased;
                        result = connection => result,
                        () = cut.cancelled() => Ok(()),
                    }
                }
            };
            if let Err(error) = result {
                tracing::debug!(%peer, %error, "connection ended early");
            }
            drop(open);
        });
    }
}

/// Counts one open connection and holds its permit; both are released even if the task panics.
struct OpenConnection {
    count: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

impl OpenConnection {
    fn new(count: Arc<AtomicUsize>, permit: OwnedSemaphorePermit) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self {
            count,
            _permit: permit,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn answer(
    app: Router,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    serving: RequestInService,
) -> Result<Response<ServedBody>, Infallible> {
    request.extensions_mut().insert(ConnectInfo(peer));
    let response = app.oneshot(request).await?;
    Ok(response.map(|body| ServedBody {
        body,
        _serving: serving,
    }))
}

/// A response body that marks its request as ended when it is dropped.
struct ServedBody {
    body: Body,
    _serving: RequestInService,
}

impl hyper::body::Body for ServedBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
