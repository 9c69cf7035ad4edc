//! Calls of a turn to agents, models and tool servers, counted and traced for operators. A turn carries its watch with it, as it
//! does the recorder of the debug log; calls outside of turns are not counted.

use statehold_core::name::Name;
use statehold_engine::Engine;
use statehold_engine::measures::{CallOutcome, Peer};
use statehold_engine::trace::{self, OpenSpan, SpanKind};
use tokio::time::Instant;

use crate::spec::AgentSpec;

tokio::task_local! {
    static WATCH: TurnWatch;
}

/// Counts the calls of one turn.
#[derive(Debug, Clone)]
pub(crate) struct TurnWatch {
    engine: Engine,
    /// The HTTP peer of the turn.
    peer: (Peer, Name),
}

impl TurnWatch {
    pub(crate) fn new(engine: Engine, spec: &AgentSpec) -> Self {
        Self {
            engine,
            peer: (Peer::Agent, spec.name.clone()),
        }
    }
}

impl TurnWatch {
    /// The span of a call, below the turn.
    fn begin_span(&self) -> Option<OpenSpan> {
        let traces = self.engine.traces()?;
        let (peer, name) = &self.peer;
        let operation = match peer {
            Peer::Agent | Peer::Push => "invoke_agent",
            Peer::Model => "chat",
            Peer::ToolServer => "execute_tool",
        };
        let named = (SpanKind::Client, format!("{operation} {name}"));
        let mut span = traces.begin(trace::current(), named, self.engine.now())?;
        span.set("gen_ai.operation.name", operation);
        span.set("peer.service", name.as_str());
        Some(span)
    }
}

/// Runs a turn whose calls are counted.
pub(crate) async fn watched<T>(watch: TurnWatch, turn: impl Future<Output = T>) -> T {
    WATCH.scope(watch, turn).await
}

/// Runs a call to a model.
pub(crate) async fn calling_model<T>(model: &Name, call: impl Future<Output = T>) -> T {
    match WATCH.try_with(Clone::clone) {
        Ok(watch) => {
            let peer = (Peer::Model, model.clone());
            WATCH.scope(TurnWatch { peer, ..watch }, call).await
        }
        Err(_) => call.await,
    }
}

/// A call under way. Dropped before its end, it counts as cancelled.
#[derive(Debug)]
pub(crate) struct ServiceCall {
    /// None once the call has ended, and outside of turns.
    watch: Option<TurnWatch>,
    begun: Instant,
    span: Option<OpenSpan>,
}

impl ServiceCall {
    /// A call over HTTP.
    pub(crate) fn begin() -> Self {
        Self::of(WATCH.try_with(Clone::clone).ok())
    }

    /// A call to a tool server.
    pub(crate) fn to_tool_server(server: &Name) -> Self {
        let watch = WATCH.try_with(Clone::clone).ok();
        let peer = (Peer::ToolServer, server.clone());
        Self::of(watch.map(|watch| TurnWatch { peer, ..watch }))
    }

    fn of(watch: Option<TurnWatch>) -> Self {
        let span = watch.as_ref().and_then(TurnWatch::begin_span);
        Self {
            watch,
            begun: Instant::now(),
            span,
        }
    }

    pub(crate) fn end(&mut self, outcome: &CallOutcome) {
        let Some(TurnWatch { engine, peer }) = self.watch.take() else {
            return;
        };
        let (kind, name) = peer;
        let took = self.begun.elapsed();
        engine.measures().note_call((kind, &name), outcome, took);
        if let Some(mut span) = self.span.take() {
            span.set("statehold.outcome", outcome.word());
            if matches!(outcome, CallOutcome::Failed(_)) {
                span.fail();
            }
        }
    }

    /// Leaves the call uncounted.
    pub(crate) fn forget(mut self) {
        self.watch = None;
        if let Some(span) = self.span.take() {
            span.forget();
        }
    }
}

impl Drop for ServiceCall {
    fn drop(&mut self) {
        self.end(&CallOutcome::Cancelled);
    }
}
