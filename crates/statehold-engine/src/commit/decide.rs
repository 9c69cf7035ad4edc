//! The core's decision, with all the context that it needs besides the state.

use std::collections::BTreeMap;

use statehold_core::command::{Cold, Command, Context, Outcome, Past};
use statehold_core::decide::decide;
use statehold_core::ids::RequestId;
use statehold_core::principal::Actor;
use statehold_core::session::SessionState;
use statehold_core::time::Timestamp;

use super::attempt::Submission;
use super::write::Authority;
use crate::engine::{Engine, Inner, entropy};
use crate::error::EngineError;

impl Engine {
    /// Checks the right and the preconditions on the state at hand, then lets the core decide.
    pub(super) async fn decide(
        &self,
        state: &SessionState,
        submission: &Submission<'_>,
    ) -> Result<Outcome, EngineError> {
        let inner = self.inner();
        let Submission { write, command, .. } = submission;
        let (call, named) = (write.call, command.named());
        let finished = inner.finished(state, &named).await?;
        let actor = if write.authority == Authority::Server {
            Actor::system(call.caller.tenant.clone())
        } else {
            self.require_valid_key(&call.caller)?;
            let act = write.act(command);
            self.require_right(&call.caller, state, &act, &finished)
                .await?;
            call.caller.actor()
        };
        let current = state.revision;
        let mismatch = call.if_revision.filter(|expected| *expected != current);
        let mismatch = mismatch.map(|expected| EngineError::RevisionMismatch { expected, current });
        // A decision is kept by the hold, so the core must say first whether this one is a repeat.
        let is_decision = matches!(command, Command::DecideHold { .. });
        let mismatch = match mismatch {
            Some(mismatch) if !is_decision => return Err(mismatch),
            mismatch => mismatch,
        };
        require_policy(inner, state, submission)?;
        let mut cold = Cold {
            hold: finished.hold.map(|closed| (*closed).into()),
            request: finished.request.map(|ended| (ended.id, ended.outcome)),
            task: finished.task,
            ..Cold::default()
        };
        if let Some(revision) = named.past {
            cold.past = inner.past(state, revision).await?;
        }
        if let Command::ClaimRequest { request, .. } = command {
            cold.unanswered = self.unanswered(state, *request).await?;
            cold.laid_down = self
                .policies_of_uncertain_calls(state, *request, &cold.unanswered)
                .await?;
        }
        let ctx = Context {
            now: inner.time_of(state.session),
            actor,
            entropy: entropy()?,
            leases: inner.leases_of(state),
            cold,
        };
        let outcome = match (decide(state, command, &ctx), mismatch) {
            (Ok(done @ Outcome::AlreadyDone { .. }), _) => done,
            (_, Some(mismatch)) => return Err(mismatch),
            (outcome, None) => outcome?,
        };
        if let (Outcome::Commit(_), Some(merged)) = (&outcome, submission.merged) {
            merged.require_newest(state)?;
        }
        Ok(outcome)
    }
}

/// Refuses tool calls and child requests that the policy of their agent forbids. Checked here because
/// every surface passes through here.
fn require_policy(
    inner: &Inner,
    state: &SessionState,
    submission: &Submission<'_>,
) -> Result<(), EngineError> {
    let policies = inner.policies.get();
    let (agent, items) = match submission.command {
        Command::StartRequest(start) => {
            let parent = start
                .parent
                .and_then(|parent| state.task_of(parent.request));
            if let Some(parent) = parent.filter(|_| submission.write.call.caller.is_confined()) {
                policies.require_callable(&parent.agent, &start.agent)?;
            }
            (Some(&start.agent), &start.items)
        }
        Command::AppendItems { by, items, .. }
        | Command::CompleteRequest { by, items, .. }
        | Command::OpenHold { by, items, .. } => {
            let task = state.task_of(by.request);
            (task.map(|task| &task.agent), items)
        }
        _ => return Ok(()),
    };
    match agent {
        Some(agent) => policies.require_items(agent, items, submission.payloads),
        // The request has ended: the core refuses the command with the reason.
        None => Ok(()),
    }
}

impl Inner {
    /// The end of each lease of a session, including heartbeats and the grace period after a restart.
    pub(crate) fn leases_of(&self, state: &SessionState) -> BTreeMap<RequestId, Timestamp> {
        let mut reach = BTreeMap::new();
        if state.requests.is_empty() {
            return reach;
        }
        let heartbeats = self.heartbeats.lock();
        let start = self.leases_start(state.session);
        for live in state.requests.values() {
            let Some(lease) = live.lease else { continue };
            // Workers could not send heartbeats while the server was down.
            let mut until = lease.until.max(start.plus_ms(lease.ttl_ms));
            if let Some(extended) = heartbeats.get(&live.id) {
                until = until.max(*extended);
            }
            reach.insert(live.id, until);
        }
        reach
    }

    /// The facts about an earlier revision of a session.
    async fn past(&self, state: &SessionState, revision: u64) -> Result<Option<Past>, EngineError> {
        let then = self.store.load_at(state.session, revision).await?;
        let mut past = then.as_ref().map(Past::from);
        let kept = self.store.kept_revision(state.session, revision).await?;
        if let Some(past) = &mut past
            && kept < revision
            && let Some(then) = self.store.load_at(state.session, kept).await?
        {
            past.memories = then.memories;
        }
        Ok(past)
    }
}
