//! Holds that agents open outside of tool calls. The n-th hold that a run asks for is the n-th hold
//! opened for its request, so a resumed run never asks a person twice.

use statehold_core::command::Rejection;
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::{HoldId, ItemId};
use statehold_engine::bodies::{DecisionBody, Raw, parse};
use statehold_engine::{Audience, EngineError, HoldDetail, HoldSpec};

use super::child::step_mismatch;
use super::journal::StepKind;
use super::run::{AgentRun, CommitPhase};
use crate::turn::TurnError;

/// Decision of a hold.
#[derive(Debug)]
pub(crate) struct HoldDecision {
    pub(crate) hold: HoldId,
    /// The tool call that the hold blocked.
    pub(crate) call: Option<ItemId>,
    /// Final status of the hold.
    pub(crate) status: HoldStatus,
    /// The person's answer, if the hold asked for one.
    pub(crate) content: Option<Raw>,
    /// The person's comment.
    pub(crate) comment: Option<String>,
}

impl AgentRun {
    /// Checks that the engine would accept this hold.
    pub(crate) async fn require_valid_hold(&self, spec: &HoldSpec) -> Result<(), TurnError> {
        let checked = self.request.require_valid_hold(spec).await;
        checked.map_err(hold_refused)
    }

    /// Opens a hold, or returns its decision. None while the hold is open: the caller opens all the
    /// holds it needs, then releases the lease.
    pub(crate) async fn ask_person(
        &mut self,
        spec: HoldSpec,
    ) -> Result<Option<HoldDecision>, TurnError> {
        // Skip holds that are no step of the run: the server opens reconcile holds, and a credential is asked for
        // only where a call needs one that is gone.
        while let Some(known) = self.holds.pop_front() {
            if matches!(known.hold.kind, HoldKind::Reconcile | HoldKind::Credential) {
                continue;
            }
            if known.hold.kind != spec.kind {
                let what = "it had opened a hold of another kind";
                return Err(step_mismatch(what));
            }
            return Ok(hold_decision(&known));
        }
        self.notify_hook(StepKind::Hold, CommitPhase::Before);
        let opened = self.request.open_hold(spec).await;
        opened.map_err(hold_refused)?;
        self.notify_hook(StepKind::Hold, CommitPhase::After);
        Ok(None)
    }

    /// Waits for a credential for agents of an audience in place of the one that the turn began with, which is
    /// forgotten. Releases the lease. None if the turn began without one, or a person has refused to give one.
    pub(crate) async fn await_credential(
        &self,
        audience: Audience,
        (title, message): (&str, &str),
    ) -> Result<Option<TurnError>, TurnError> {
        if self.is_credential_refused || !self.request.began_with_credential(audience).await? {
            return Ok(None);
        }
        self.notify_hook(StepKind::Hold, CommitPhase::Before);
        let words = (title.to_owned(), message.to_owned());
        let opened = self.request.open_credential_hold(audience, words).await;
        opened.map_err(hold_refused)?;
        self.notify_hook(StepKind::Hold, CommitPhase::After);
        Ok(Some(self.release_lease().await))
    }
}

fn hold_decision(known: &HoldDetail) -> Option<HoldDecision> {
    let closed = known.closed.as_ref()?;
    let body: DecisionBody = parse(known.decision_body.as_deref());
    Some(HoldDecision {
        hold: known.hold.id,
        call: known.hold.call,
        status: closed.decision.status,
        content: body.content,
        comment: body.comment,
    })
}

/// Maps a refused hold to a failed turn, because a retry would be refused again.
fn hold_refused(error: EngineError) -> TurnError {
    match error {
        EngineError::HoldMalformed { .. }
        | EngineError::InvalidField { .. }
        | EngineError::PolicyStricter { .. }
        | EngineError::Rejected(Rejection::HoldMalformed(_) | Rejection::Limit { .. }) => {
            let message = format!("the hold that the agent asks for is not accepted: {error}");
            TurnError::failed("cannot_ask", message)
        }
        other => other.into(),
    }
}
