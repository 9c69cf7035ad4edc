//! A stream that times out when a client sends its headers too slowly or stops reading.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use statehold_engine::Lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::http::shares::CallSlot;

/// Counts the requests of one connection that have begun and ended. The stream sees only bytes, so the
/// service reports them here.
#[derive(Debug)]
pub(super) struct ConnectionProgress {
    begun: AtomicUsize,
    ended: AtomicUsize,
    opened: Instant,
    /// Milliseconds from `opened` to the end of the last request.
    last_end: AtomicU64,
    /// The shares of the request in service.
    slot: Lock<Option<CallSlot>>,
}

impl Default for ConnectionProgress {
    fn default() -> Self {
        Self {
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            opened: Instant::now(),
            last_end: AtomicU64::new(0),
            slot: Lock::default(),
        }
    }
}

impl ConnectionProgress {
    fn begun(&self) -> usize {
        self.begun.load(Ordering::Acquire)
    }

    /// Since when there has been no request, if there is none.
    pub(super) fn idle_since(&self) -> Instant {
        self.opened + Duration::from_millis(self.last_end.load(Ordering::Relaxed))
    }

    pub(super) fn is_serving(&self) -> bool {
        self.begun() != self.ended.load(Ordering::Acquire)
    }

    /// Whether the client takes nothing of a long answer while others wait for its memory.
    pub(super) fn is_stalled(&self) -> bool {
        self.slot.lock().as_ref().is_some_and(CallSlot::is_stalled)
    }
}

/// A request whose head has been read and whose response is not over yet.
#[derive(Debug)]
pub(super) struct RequestInService {
    progress: Arc<ConnectionProgress>,
    pub(super) slot: CallSlot,
}

impl RequestInService {
    pub(super) fn begin(progress: &Arc<ConnectionProgress>, slot: CallSlot) -> Self {
        progress.begun.fetch_add(1, Ordering::Release);
        *progress.slot.lock() = Some(slot.clone());
        Self {
            progress: Arc::clone(progress),
            slot,
        }
    }
}

impl Drop for RequestInService {
    fn drop(&mut self) {
        let progress = &self.progress;
        let since = progress.opened.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        progress.last_end.store(since, Ordering::Relaxed);
        *progress.slot.lock() = None;
        progress.ended.fetch_add(1, Ordering::Release);
    }
}

/// Wraps a stream so that it fails with [`io::ErrorKind::TimedOut`] when a client takes too long.
///
/// The timeout of a head runs from its first byte (of the first head: from the connection) to its last, so
/// trickling does not help. The timeout of a write starts again with each byte that the client reads.
#[derive(Debug)]
pub(super) struct StallGuard<S> {
    stream: S,
    progress: Arc<ConnectionProgress>,
    head: StallTimeout,
    /// `ConnectionProgress::begun` when the head that `head` times started.
    head_after: usize,
    write: StallTimeout,
    flush: StallTimeout,
}

impl<S> StallGuard<S> {
    pub(super) fn new(
        stream: S,
        progress: Arc<ConnectionProgress>,
        head_read_timeout: Duration,
        write_stall_timeout: Duration,
    ) -> Self {
        let mut head = StallTimeout::new(head_read_timeout);
        head.start();
        Self {
            stream,
            head_after: progress.begun(),
            progress,
            head,
            write: StallTimeout::new(write_stall_timeout),
            flush: StallTimeout::new(write_stall_timeout),
        }
    }

    /// Stops the timeout once the head has been read.
    fn check_head(&mut self) {
        if self.progress.begun() != self.head_after {
            self.head.stop();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.check_head();
        let filled = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Pending => {
                ready!(this.head.poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Ready(Ok(())) => {
                // Bytes that arrive during a request belong to its body, or are pipelined.
                let is_new = !this.head.is_running() && !this.progress.is_serving();
                if is_new && buffer.filled().len() > filled {
                    this.head_after = this.progress.begun();
                    this.head.start();
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.write.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.write.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.flush.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let shut_down = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.flush.watch(cx, shut_down)
    }
}

/// A time limit that runs from `start` to `stop`.
#[derive(Debug)]
struct StallTimeout {
    limit: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl StallTimeout {
    fn new(limit: Duration) -> Self {
        Self { limit, sleep: None }
    }

    fn start(&mut self) {
        self.sleep = Some(Box::pin(tokio::time::sleep(self.limit)));
    }

    fn stop(&mut self) {
        self.sleep = None;
    }

    fn is_running(&self) -> bool {
        self.sleep.is_some()
    }

    /// Ready when the time is over; never while stopped.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    /// Fails with `TimedOut` if an operation stays pending for longer than the limit.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stop();
            return outcome;
        }
        if !self.is_running() {
            self.start();
        }
        ready!(self.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}
