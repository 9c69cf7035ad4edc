//! Executes one turn of a hosted agent: keeps its lease, and ends its request with an answer or an error.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use statehold_core::command::Rejection;
use statehold_core::name::Name;
use statehold_engine::EngineError;
use statehold_engine::leased::{ClaimedTurn, LeasedRequest};
use statehold_engine::trace::{self, OpenSpan};
use tokio::time::Instant;

use super::generation::{Generation, LocalAgent, TurnPermit};
use super::run::{AgentRun, SimulatedCrash, WaitingParent};
use crate::exchange::{Recorder, with_recorder};
use crate::message::raw;
use crate::turn::{TurnError, TurnFailure};
use crate::turn_memory::with_turn_memory;
use crate::turn_watch::{TurnWatch, watched};

/// The interval between heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(5);

impl Generation {
    /// Executes one turn until it ends or waits.
    pub(super) async fn execute_turn(
        self: Arc<Self>,
        local: LocalAgent,
        claimed: (ClaimedTurn, Instant),
        permit: TurnPermit,
        parent: Option<WaitingParent>,
    ) {
        let (request, agent) = (claimed.0.request.clone(), &local.spec.name);
        let now = self.engine.now();
        let traces = self.engine.traces();
        let mut span = traces.map(|traces| traces.begin_turn(request.ids, now));
        let place = span.as_ref().and_then(OpenSpan::context);
        let turn = self.try_turn(&local, claimed, permit, parent);
        let ended = Box::pin(trace::within(place, turn)).await;
        if let Some(span) = &mut span {
            note_end(span, agent, &ended);
        }
        let ended = match ended {
            Err(TurnError::Failed(failure)) => {
                let measures = self.engine.measures();
                measures.note_turn_failure(agent, &failure.code);
                fail(&request, &failure).await
            }
            other => other,
        };
        match ended {
            Ok(()) | Err(TurnError::Paused | TurnError::Gone) => {}
            // The lease expires, then the request is claimed again.
            Err(error) => {
                tracing::warn!(%agent, request = %request.ids.request, %error, "a turn stopped; it is retried later");
            }
        }
    }

    async fn try_turn(
        self: &Arc<Self>,
        LocalAgent { spec, agent, .. }: &LocalAgent,
        (claimed, claimed_at): (ClaimedTurn, Instant),
        permit: TurnPermit,
        parent: Option<WaitingParent>,
    ) -> Result<(), TurnError> {
        let request = &claimed.request.clone();
        // Steps are durable before a model, an agent or a tool is asked. The lease is the only thing that a
        // turn begins with and that may not be: each write of a turn returns when it is durable.
        if !agent.starts_with_commit() {
            request.durable().await?;
        }
        // A request that waited in memory for a heartbeat interval may have been claimed by another
        // worker.
        if claimed_at.elapsed() >= HEARTBEAT {
            request.heartbeat().await?;
        }
        let id = request.ids.request;
        // Keep the draft open until this turn ends, also if it panics.
        let draft = self.engine.open_draft(id).by(&spec.name);
        let owner = request.owner().await?;
        let _draft = draft.counted_for(&self.engine, &owner);
        // Held until the answer of the turn is committed.
        let memory = self.engine.turn_memory(&owner, id);
        let run = AgentRun::open(Arc::clone(self), Arc::clone(spec), claimed, permit, parent);
        let mut run = run.await?;
        let log = self.debug_log.clone();
        let recorder = log.map(|log| Recorder::new(log, (request.ids, owner.user), spec));
        let watch = TurnWatch::new(self.engine.clone(), spec);
        let turn = with_turn_memory(
            memory.clone(),
            with_recorder(recorder, agent.turn(&mut run)),
        );
        let turn = watched(watch, turn);
        let turn = AssertUnwindSafe(turn).catch_unwind();
        let outcome = tokio::select! {
            biased;
            outcome = turn => outcome,
            () = keep_lease(request) => Ok(Err(TurnError::Gone)),
            () = self.stop.cancelled() => return Err(TurnError::Gone),
        };
        let outcome = outcome.unwrap_or_else(|panic| {
            if panic.is::<SimulatedCrash>() {
                return Err(TurnError::Gone);
            }
            tracing::error!(agent = %spec.name, request = %id, "a turn panicked");
            let message = "the server has a bug here; only recorded steps have taken effect";
            Err(TurnError::failed("internal", message))
        });
        match outcome {
            Ok(answer) => tokio::select! {
                biased;
                completed = run.complete(&answer) => completed,
                () = keep_lease(request) => Err(TurnError::Gone),
            },
            Err(error) => {
                if let TurnError::Failed(_) = &error {
                    run.record_deferred().await?;
                }
                Err(error)
            }
        }
    }
}

/// Says in the span of a turn how it ended.
fn note_end(span: &mut OpenSpan, agent: &Name, ended: &Result<(), TurnError>) {
    span.set("gen_ai.operation.name", "invoke_agent");
    span.set("gen_ai.agent.name", agent.as_str());
    let outcome = match ended {
        Ok(()) => "completed",
        Err(TurnError::Paused) => "paused",
        Err(TurnError::Gone) => "gone",
        Err(TurnError::Failed(failure)) => {
            span.fail();
            span.set("error.type", failure.code.as_str());
            "failed"
        }
        Err(TurnError::Engine(_)) => {
            span.fail();
            "stopped"
        }
    };
    span.set("statehold.outcome", outcome);
}

/// Fails a request with an error.
async fn fail(request: &LeasedRequest, failure: &TurnFailure) -> Result<(), TurnError> {
    let failed = match request.fail(&raw(failure)).await {
        // Open holds prevent the request from failing now. Release the lease, so that a later claim
        // fails it after the decisions. A decision made meanwhile must not look like work that a lost
        // worker had started.
        Err(EngineError::Rejected(Rejection::HoldsOpen { .. })) => request.release(None).await,
        failed => failed,
    };
    failed.map_err(TurnError::from)
}

/// Sends heartbeats. Returns when the lease is lost.
async fn keep_lease(request: &LeasedRequest) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if let Err(error) = request.heartbeat().await
            && matches!(TurnError::from(error), TurnError::Gone)
        {
            return;
        }
    }
}
