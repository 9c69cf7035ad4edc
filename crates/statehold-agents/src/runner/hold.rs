//! Asking a person outside of tool calls. The n-th time that a run asks is the n-th hold that was opened
//! for its request, so nobody is asked twice.

use statehold_core::command::Rejection;
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::{HoldId, ItemId};
use statehold_engine::kept::{DecisionBody, Raw, parse};
use statehold_engine::{EngineError, HoldDetail, NewAsk};

use super::child::step_mismatch;
use super::journal::StepKind;
use super::run::{Moment, Run};
use crate::turn::TurnError;

/// What was decided.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The hold.
    pub(crate) hold: HoldId,
    /// The tool call that waited.
    pub(crate) call: Option<ItemId>,
    /// How it ended.
    pub(crate) status: HoldStatus,
    /// The answer.
    pub(crate) content: Option<Raw>,
    /// In the person's words.
    pub(crate) comment: Option<String>,
}

impl Run {
    /// Whether something can be asked at all.
    pub(crate) async fn require_askable(&self, ask: &NewAsk) -> Result<(), TurnError> {
        let checked = self.engine.require_askable(&self.spec.name, ask).await;
        checked.map_err(cannot_ask)
    }

    /// Asks a person. None while nobody has decided: ask everything there is to ask, then leave.
    pub(crate) async fn ask_person(&mut self, ask: NewAsk) -> Result<Option<Decided>, TurnError> {
        // What the server itself asks about lost actions is nothing that a run asked.
        while let Some(known) = self.holds.pop_front() {
            if known.hold.kind == HoldKind::Reconcile {
                continue;
            }
            if known.hold.kind != ask.kind {
                let what = "it had asked a person for something else";
                return Err(step_mismatch(what));
            }
            return Ok(decided(&known));
        }
        self.reach(StepKind::Hold, Moment::Before);
        let payloads = self.payloads().await?;
        let (session, call) = (self.place.session, self.call());
        let opened = self
            .engine
            .open_hold(session, &call, self.fenced(), ask, (Vec::new(), payloads))
            .await;
        opened.map_err(cannot_ask)?;
        self.reach(StepKind::Hold, Moment::After);
        Ok(None)
    }
}

fn decided(known: &HoldDetail) -> Option<Decided> {
    let closed = known.closed.as_ref()?;
    let words: DecisionBody = parse(known.decision_body.as_deref());
    Some(Decided {
        hold: known.hold.id,
        call: known.hold.call,
        status: closed.decision.status,
        content: words.content,
        comment: words.comment,
    })
}

/// What cannot be asked now can be asked never: the turn fails instead of trying again for ever.
fn cannot_ask(error: EngineError) -> TurnError {
    match error {
        EngineError::HoldMalformed { .. }
        | EngineError::InvalidField { .. }
        | EngineError::PolicyStricter { .. }
        | EngineError::Rejected(Rejection::HoldMalformed(_) | Rejection::Limit { .. }) => {
            let message = format!("a person cannot be asked what the agent wants to ask: {error}");
            TurnError::failed("cannot_ask", message)
        }
        other => other.into(),
    }
}
