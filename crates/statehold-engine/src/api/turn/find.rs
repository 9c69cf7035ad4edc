//! Which turn a call is about: a turn that it answers, one that it attaches to, one whose answer was lost
//! on the way, or a new one.

use statehold_core::command::Command;
use statehold_core::hold::DecisionKind;
use statehold_core::ids::{RequestId, TaskId};

use super::question::{lists_choice, only_question};
use super::repeat::RepeatSearch;
use super::{DeliveryLog, StartedTurn, TurnDecision, TurnInput, start_turn};
use crate::api::hold::{DecisionInput, decide_shown};
use crate::api::json::raw_text;
use crate::commit::payloads::Payloads;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::holds::HoldDetail;
use crate::read::RequestDetail;

/// A turn that was found or started.
pub(super) struct FoundTurn {
    pub(super) request: RequestId,
    /// The task of a turn that this call has started.
    pub(super) new_task: Option<TaskId>,
    /// Whether the client has made the same call before.
    pub(super) is_replay: bool,
}

impl FoundTurn {
    pub(super) fn existing(request: RequestId, is_replay: bool) -> Self {
        Self {
            request,
            new_task: None,
            is_replay,
        }
    }
}

/// Finds or starts the turn of one call. The caller holds the lock of the session meanwhile.
pub(super) struct TurnFinder<'a> {
    pub(super) engine: &'a Engine,
    pub(super) log: &'a DeliveryLog,
    pub(super) input: &'a TurnInput,
}

impl TurnFinder<'_> {
    /// The turn to continue with.
    pub(super) async fn find_or_start(
        &self,
        search: &mut RepeatSearch<'_>,
        start: (&Command, &Payloads),
    ) -> Result<FoundTurn, EngineError> {
        // While a key is kept, it identifies the call by itself, also after newer calls.
        if let Some(key) = self.input.call.key {
            let session = self.input.session;
            let kept = self.engine.kept_receipt::<StartedTurn>(session, key);
            if let Some(kept) = kept.await? {
                return Ok(FoundTurn::existing(kept.view.request, true));
            }
            if let Some(answered) = search.answered_by_key(key).await? {
                return Ok(FoundTurn::existing(answered, true));
            }
        }
        let question = if self.input.decides_elsewhere {
            None
        } else {
            only_question(self.engine, self.input).await?
        };
        if let Some((question, root)) = question {
            let detail = self.engine.request(&search.reader, root).await?;
            if self.is_answer(search, &question, &detail).await? {
                self.respond(&question).await?;
                return Ok(FoundTurn::existing(root, false));
            }
            if !self.input.has_key() {
                return Ok(FoundTurn::existing(root, false));
            }
        }
        match search.repeated().await? {
            Some((request, is_replay)) => Ok(FoundTurn::existing(request, is_replay)),
            None => self.start(start).await,
        }
    }

    /// Whether the message answers a question, rather than repeats one that the asking turn has received.
    async fn is_answer(
        &self,
        search: &mut RepeatSearch<'_>,
        question: &HoldDetail,
        detail: &RequestDetail,
    ) -> Result<bool, EngineError> {
        // A client that reconnects repeats its message, even after it was told of the question.
        let text = &self.input.message.text;
        if search.may_have_started(detail) && !lists_choice(question, text) {
            return Ok(false);
        }
        // A retried call cannot answer a question that its client has never seen.
        let is_seen = self.log.has_seen(question.hold.id);
        Ok(is_seen || !search.is_repeat(detail).await?)
    }

    async fn start(&self, command: (&Command, &Payloads)) -> Result<FoundTurn, EngineError> {
        let started = start_turn(self.engine, Some(self.log), self.input, command).await?;
        Ok(FoundTurn {
            request: started.view.request,
            new_task: (!started.replayed).then_some(started.view.task),
            is_replay: started.replayed,
        })
    }

    /// Answers a question with the text of the message.
    async fn respond(&self, question: &HoldDetail) -> Result<(), EngineError> {
        let answer = DecisionInput {
            decision: DecisionKind::Respond,
            digest: None,
            args: None,
            content: Some(raw_text(&self.input.message.text)),
            comment: None,
            reason: None,
        };
        let (call, key) = (self.input.decision_call(), self.input.key.as_deref());
        decide_shown(self.engine, &call, key, question, answer).await?;
        Ok(())
    }

    /// Decides holds of the session. The turn of the call is the one of the last hold.
    pub(super) async fn decide(
        &self,
        decisions: Vec<TurnDecision>,
    ) -> Result<RequestId, EngineError> {
        let call = self.input.decision_call();
        let mut root = None;
        for decision in decisions {
            let detail = self.engine.hold(&call.caller, decision.hold_id).await?;
            let first = detail.lineage.first().map(|step| step.request);
            if detail.session.id != self.input.session || first.is_none() {
                return Err(EngineError::NotFound);
            }
            let key = decision.key.clone();
            let answer = decision.answer()?;
            decide_shown(self.engine, &call, key.as_deref(), &detail, answer).await?;
            root = first;
        }
        root.ok_or(EngineError::NotFound)
    }
}
