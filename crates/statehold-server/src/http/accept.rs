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
//! | takes nothing of a long answer while others wait for its memory | 5 s |
//!
//! If all connections are in use, a new one takes the place of the one that has been without a request for
//! the longest time, so idle connections keep no caller out.
//!
//! hyper's own header timeout also runs while a connection waits for its next request, so it can be
//! only one of the first two. It is used for idle connections; `StallGuard` watches the headers.

mod guard;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::{Buf as _, Bytes};
use http::{Request, Response};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
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
use statehold_engine::Lock;

use crate::http::shares::CallSlot;

/// Buffer of a connection in each direction, in bytes. Bodies pass through in chunks of this size.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Back-off when the system has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection that is cut may take to end, and how many are tried for a new one.
const CUT_MAX: Duration = Duration::from_millis(20);
const CUTS_MAX: usize = 3;
/// How often connections are looked at that hold memory for which others wait.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The answer to a connection beyond `connections_max`.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    retry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Limits and timeouts for connections.
#[derive(Debug, Clone)]
pub struct AcceptOptions {
    /// How many connections may be open at once. One more takes the place of one without a request, or gets
    /// 503 if all have one.
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
        open: OpenConnections::default(),
        started: AtomicUsize::new(0),
    };
    let mut trouble = AcceptTrouble::default();
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = sweep.tick() => {
                connections.cut_stalled();
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => match connections.place(&permits).await {
                Some(permit) => connections.start(stream, peer, permit),
                None => refuse(&stream),
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
    open: OpenConnections,
    /// How many connections there have been.
    started: AtomicUsize,
}

impl Connections {
    /// A place for a new connection: a free one, or that of a connection without a request. None if all
    /// have one.
    async fn place(&self, permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        if let Ok(free) = Arc::clone(permits).try_acquire_owned() {
            return Some(free);
        }
        for _ in 0..CUTS_MAX {
            if !self.cut_longest_idle() {
                break;
            }
            // It ends at once, unless a request has begun meanwhile.
            let freed = Arc::clone(permits).acquire_owned();
            if let Ok(Ok(freed)) = tokio::time::timeout(CUT_MAX, freed).await {
                return Some(freed);
            }
        }
        None
    }

    /// Cuts the connection that has had no request in service for the longest time. False if all have one.
    fn cut_longest_idle(&self) -> bool {
        let mut open = self.open.lock();
        let idle = open.values().filter(|one| !one.progress.is_serving());
        let longest = idle
            .min_by_key(|one| one.progress.idle_since())
            .map(|one| one.id);
        let cut = longest.and_then(|id| open.remove(&id));
        cut.is_some_and(|cut| {
            cut.evict.cancel();
            true
        })
    }

    /// Cuts the connections whose clients take nothing of a long answer, while others wait for its memory.
    fn cut_stalled(&self) {
        for stalled in self.open.lock().values() {
            if stalled.progress.is_stalled() {
                stalled.cut.cancel();
            }
        }
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        // Answers are written in one piece; Nagle's algorithm would only delay the last packet.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let progress = Arc::new(ConnectionProgress::default());
        let (evict, cut_own) = (CancellationToken::new(), CancellationToken::new());
        let idle = IdleConnection {
            id: self.started.fetch_add(1, Ordering::Relaxed),
            progress: Arc::clone(&progress),
            evict: evict.clone(),
            cut: cut_own.clone(),
        };
        let open = OpenConnection::new(self, permit, idle);
        let served = Arc::clone(&progress);
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
                RequestInService::begin(&progress, CallSlot::default()),
            )
        });
        let connection = self.builder.serve_connection(io, service);
        let (stop, cut) = (self.stop.clone(), self.cut.clone());
        self.tracker.spawn(async move {
            let mut connection = pin!(connection);
            let mut result = tokio::select! {
                biased;
                result = connection.as_mut() => Some(result),
                // A request that has begun meanwhile is answered first.
                () = evict.cancelled() => (!served.is_serving()).then_some(Ok(())),
                () = cut_own.cancelled() => Some(Ok(())),
                () = stop.cancelled() => None,
            };
            if result.is_none() {
                connection.as_mut().graceful_shutdown();
                result = cut.run_until_cancelled(connection).await;
            }
            if let Some(Err(error)) = result {
                tracing::debug!(%peer, %error, "connection ended early");
            }
            drop(open);
        });
    }
}

/// The open connections by number, to find one that may be cut.
type OpenConnections = Arc<Lock<HashMap<usize, IdleConnection>>>;

/// A connection that may be cut: while it has no request in service, or while its client takes nothing.
struct IdleConnection {
    id: usize,
    progress: Arc<ConnectionProgress>,
    /// Cut it, unless a request has begun.
    evict: CancellationToken,
    /// Cut it in any case.
    cut: CancellationToken,
}

/// Counts one open connection and holds its permit; both are released even if the task panics.
struct OpenConnection {
    id: usize,
    count: Arc<AtomicUsize>,
    open: OpenConnections,
    _permit: OwnedSemaphorePermit,
}

impl OpenConnection {
    fn new(connections: &Connections, permit: OwnedSemaphorePermit, idle: IdleConnection) -> Self {
        let count = Arc::clone(&connections.options.connections_open);
        count.fetch_add(1, Ordering::Relaxed);
        let id = idle.id;
        connections.open.lock().insert(id, idle);
        Self {
            id,
            count,
            open: Arc::clone(&connections.open),
            _permit: permit,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.lock().remove(&self.id);
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
    request.extensions_mut().insert(serving.slot.clone());
    let response = app.oneshot(request).await?;
    if let Some(bytes) = response.body().size_hint().exact() {
        serving.slot.finish_answer(bytes);
    }
    Ok(response.map(|body| ServedBody {
        body,
        rest: Bytes::new(),
        serving,
    }))
}

/// A response body that marks its request as ended when it is dropped. It hands out small pieces, because
/// the connection drops it as soon as it has the last one: a client that does not read a large answer has
/// a request in service, a call in progress and the memory of the answer, until all but the last piece have left.
struct ServedBody {
    body: Body,
    /// The rest of a large piece.
    rest: Bytes,
    serving: RequestInService,
}

impl hyper::body::Body for ServedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        this.serving.slot.note_progress();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx))
                .map(|polled| polled.map(Frame::into_data))
            {
                Some(Ok(Ok(data))) if data.len() > BUFFER_BYTES_MAX => this.rest = data,
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        // A copy, because a slice that waits in the connection would keep the whole answer in memory.
        let length = this.rest.len().min(BUFFER_BYTES_MAX);
        let piece = Bytes::copy_from_slice(&this.rest[..length]);
        this.rest.advance(length);
        if this.rest.is_empty() {
            this.rest = Bytes::new();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (left, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + left);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}

#[cfg(test)]
mod tests;
