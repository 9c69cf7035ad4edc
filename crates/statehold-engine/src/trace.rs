//! Traces for operators: spans of calls, turns and calls to other services, and which of them belong together. There are
//! none unless an exporter takes them. A span has ids, declared names, routes and outcomes; never what somebody said, a
//! name of a user, or a key.
//!
//! The place in a trace goes with the task that works there. A request remembers the place that started it, in memory:
//! its turns are below that place, and after a restart in a trace of their session.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use statehold_core::ids::RequestId;
use statehold_core::record::Event;
use statehold_core::time::Timestamp;
use statehold_store::Commit;
use tokio::sync::mpsc;

use crate::leased::RequestRef;
use crate::locks::Lock;
use crate::ports::random;

/// How many spans wait for the exporter at most. Further ones are dropped: no call waits for a trace.
const SPANS_MAX: usize = 4_096;
/// How many live requests remember their place in a trace.
const REQUESTS_MAX: usize = 20_000;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// A place in a trace, as W3C trace context has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; never 0.
    pub trace: u128,
    /// The span; never 0.
    pub span: u64,
    /// Whether the spans of this trace are exported.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads the header `traceparent`. None if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = |part: &str, length: usize| {
            let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            part.len() == length && part.bytes().all(is_hex)
        };
        let mut parts = text.split('-');
        let version = parts.next().filter(|part| is_plain(part, 2))?;
        let trace = parts.next().filter(|part| is_plain(part, 32))?;
        let span = parts.next().filter(|part| is_plain(part, 16))?;
        let flags = parts.next().filter(|part| is_plain(part, 2))?;
        // Later versions may have more parts.
        if version == "ff" || version == "00" && parts.next().is_some() {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok()?;
        let span = u64::from_str_radix(span, 16).ok()?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        (trace != 0 && span != 0).then_some(Self {
            trace,
            span,
            is_sampled: flags & 1 == 1,
        })
    }

    /// The header `traceparent`.
    pub fn header(self) -> String {
        let flags = u8::from(self.is_sampled);
        format!("00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

/// The place in a trace where this task works.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// Works at a place in a trace, if there is one.
pub async fn within<T>(context: Option<TraceContext>, work: impl Future<Output = T>) -> T {
    match context {
        Some(context) => CURRENT.scope(context, work).await,
        None => work.await,
    }
}

/// The role of a span, with its number in OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside this server.
    Internal = 1,
    /// A call that this server answers.
    Server = 2,
    /// A call to another service.
    Client = 3,
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its place.
    pub context: TraceContext,
    /// The span above it.
    pub parent: Option<u64>,
    /// The kind of work, of few values.
    pub name: String,
    /// Its role.
    pub kind: SpanKind,
    /// When it began.
    pub began_at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// The known facts about it.
    pub attributes: Vec<(&'static str, String)>,
    /// Whether it failed.
    pub is_error: bool,
}

/// The traces of a process.
#[derive(Debug)]
pub struct Traces {
    spans: mpsc::Sender<Span>,
    dropped: AtomicU64,
    requests: Lock<HashMap<RequestId, TraceContext>>,
}

impl Traces {
    /// Traces, and where their spans arrive.
    pub fn new() -> (Arc<Self>, mpsc::Receiver<Span>) {
        let (spans, arriving) = mpsc::channel(SPANS_MAX);
        let traces = Self {
            spans,
            dropped: AtomicU64::new(0),
            requests: Lock::default(),
        };
        (Arc::new(traces), arriving)
    }

    /// How many spans were dropped because the exporter was behind.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Begins a span below another, or a trace. None without random numbers.
    pub fn begin(
        self: &Arc<Self>,
        parent: Option<TraceContext>,
        (kind, name): (SpanKind, String),
        now: Timestamp,
    ) -> Option<OpenSpan> {
        let span = u64::from_le_bytes(random().ok()?).max(1);
        let context = match parent {
            Some(parent) => TraceContext { span, ..parent },
            None => TraceContext {
                trace: u128::from_le_bytes(random().ok()?).max(1),
                span,
                is_sampled: true,
            },
        };
        let parent = parent.map(|parent| parent.span);
        Some(self.open(context, parent, (kind, name), now))
    }

    /// Begins the span of a turn, below the place that started its request. Its ids are those that the headers of the
    /// turn have without traces, except that the trace is that of the caller if it is known.
    pub fn begin_turn(self: &Arc<Self>, turn: RequestRef, now: Timestamp) -> OpenSpan {
        let parent = self.requests.lock().get(&turn.request).copied();
        let own = turn_context(turn);
        let context = TraceContext {
            trace: parent.map_or(own.trace, |parent| parent.trace),
            is_sampled: parent.is_none_or(|parent| parent.is_sampled),
            ..own
        };
        let name = (SpanKind::Internal, "turn".to_owned());
        let mut span = self.open(context, parent.map(|parent| parent.span), name, now);
        span.set("statehold.session_id", turn.session.to_string());
        span.set("statehold.request_id", turn.request.to_string());
        span
    }

    fn open(
        self: &Arc<Self>,
        context: TraceContext,
        parent: Option<u64>,
        (kind, name): (SpanKind, String),
        began_at: Timestamp,
    ) -> OpenSpan {
        OpenSpan {
            traces: Arc::clone(self),
            begun: Instant::now(),
            span: Some(Span {
                context,
                parent,
                name,
                kind,
                began_at,
                took: Duration::ZERO,
                attributes: Vec::new(),
                is_error: false,
            }),
        }
    }

    /// Remembers where the requests of a commit were started, and returns them.
    pub(crate) fn note_started(&self, commit: &Commit) -> Vec<RequestId> {
        let Some(context) = current() else {
            return Vec::new();
        };
        let events = commit.record.content.events.iter();
        let started = events.filter_map(|event| match event {
            Event::RequestStarted { request, .. } => Some(*request),
            _ => None,
        });
        let started: Vec<RequestId> = started.collect();
        let mut requests = self.requests.lock();
        for request in &started {
            if requests.len() < REQUESTS_MAX {
                requests.insert(*request, context);
            }
        }
        started
    }

    /// Forgets requests that have ended, or were not started.
    pub(crate) fn forget(&self, requests: &[RequestId]) {
        if requests.is_empty() {
            return;
        }
        let mut known = self.requests.lock();
        for request in requests {
            known.remove(request);
        }
    }
}

/// The place of a turn in the trace of its session: each claim of a request is a span of its own.
pub fn turn_context(turn: RequestRef) -> TraceContext {
    let (_, low) = turn.request.as_uuid().as_u64_pair();
    TraceContext {
        trace: turn.session.as_uuid().as_u128().max(1),
        span: low.wrapping_add(turn.fence.saturating_sub(1)).max(1),
        is_sampled: true,
    }
}

/// A span under way. It ends when it is dropped.
#[derive(Debug)]
pub struct OpenSpan {
    traces: Arc<Traces>,
    begun: Instant,
    /// Taken at the end.
    span: Option<Span>,
}

impl OpenSpan {
    /// Its place, for what is below it.
    pub fn context(&self) -> Option<TraceContext> {
        self.span.as_ref().map(|span| span.context)
    }

    /// Adds what is known of it.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        if let Some(span) = &mut self.span {
            span.attributes.push((name, value.into()));
        }
    }

    /// Leaves it out of the trace.
    pub fn forget(mut self) {
        self.span = None;
    }

    /// Marks it as failed.
    pub fn fail(&mut self) {
        if let Some(span) = &mut self.span {
            span.is_error = true;
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let Some(mut span) = self.span.take() else {
            return;
        };
        span.took = self.begun.elapsed();
        if span.context.is_sampled && self.traces.spans.try_send(span).is_err() {
            self.traces.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_header_is_read_as_it_is_written() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(text).expect("a header");
        assert!(context.is_sampled);
        assert_eq!(context.header(), text);
        let later = format!("{}-more", text.replacen("00", "01", 1));
        assert_eq!(TraceContext::parse(&later), Some(context));
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn spans_that_nobody_takes_are_dropped_and_counted() {
        let (traces, mut arriving) = Traces::new();
        let now = Timestamp::from_micros(0);
        for _ in 0..SPANS_MAX + 3 {
            drop(traces.begin(None, (SpanKind::Server, "GET".to_owned()), now));
        }
        assert_eq!(traces.dropped(), 3);
        let unsampled = TraceContext {
            trace: 1,
            span: 2,
            is_sampled: false,
        };
        let first = arriving.recv().await.expect("a span");
        assert_eq!(first.parent, None);
        drop(traces.begin(Some(unsampled), (SpanKind::Server, "GET".to_owned()), now));
        assert_eq!(arriving.len(), SPANS_MAX - 1, "the caller wants no trace");
        let sampled = TraceContext {
            is_sampled: true,
            ..unsampled
        };
        drop(traces.begin(Some(sampled), (SpanKind::Server, "GET".to_owned()), now));
        assert_eq!(arriving.len(), SPANS_MAX);
    }
}
