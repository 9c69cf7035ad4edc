//! Repeated calls: finds a turn that has received the same message before, and answers that came after
//! their client was told to wait.

use std::collections::BTreeSet;

use statehold_core::command::Output;
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::item::Role as Speaker;
use statehold_core::request::RequestOutcome;
use statehold_core::time::Timestamp;
use statehold_store::{HoldOrder, SessionSummary};

use super::request_head::input_of;
use super::{AgentReply, DeliveryLog, EarlierAnswer, RequestHead, TurnInput};
use crate::api::json::raw_text;
use crate::caller::Caller;
use crate::commit::idempotency::{IdempotencyKey, KEPT_MS};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::holds::{HoldDetail, HoldFilter};
use crate::kept::{DecisionBody, parse};
use crate::read::RequestDetail;

/// How many decided holds of a session are read.
const DECIDED_MAX: usize = 20;
/// How many answered questions are read at a time.
const ANSWERED_PAGE: usize = 100;
/// The age at which an idempotency key may have expired: a minute early, because commit times may run
/// ahead of the clock that expires keys.
const KEY_EXPIRED_MS: u64 = KEPT_MS - 60 * 1_000;
/// How many live turns of an agent a call may attach to.
const LIVE_MAX: usize = 64;
/// How many messages are read to find the newest turn of an agent.
const MESSAGES_MAX: usize = 32;

/// Looks for turns that have received the message of a call before.
pub(super) struct RepeatSearch<'a> {
    engine: &'a Engine,
    log: &'a DeliveryLog,
    input: &'a TurnInput,
    /// The caller as a client.
    pub(super) reader: Caller,
    summary: SessionSummary,
    /// The message as a request would record it.
    output: Output,
    /// The newest decided holds of the session, read once.
    decided: Option<Vec<HoldDetail>>,
}

impl<'a> RepeatSearch<'a> {
    pub(super) fn new(
        (engine, log): (&'a Engine, &'a DeliveryLog),
        input: &'a TurnInput,
        reader: Caller,
        (summary, output): (SessionSummary, Output),
    ) -> Self {
        Self {
            engine,
            log,
            input,
            reader,
            summary,
            output,
            decided: None,
        }
    }

    /// The task of a turn.
    pub(super) async fn task_of(&self, request: RequestId) -> Result<TaskId, EngineError> {
        let detail = self.engine.request(&self.reader, request).await?;
        Ok(detail.task.id)
    }

    async fn decided(&mut self) -> Result<&[HoldDetail], EngineError> {
        if self.decided.is_none() {
            let filter = HoldFilter {
                decided: true,
                session: Some(self.input.session),
                order: HoldOrder::Newest,
                ..HoldFilter::default()
            };
            let caller = &self.input.call.caller;
            let page = self.engine.holds(caller, &filter, None, DECIDED_MAX);
            self.decided = Some(page.await?.entries);
        }
        Ok(self.decided.as_deref().unwrap_or_default())
    }

    /// Whether a turn began with this message.
    fn is_input(&self, detail: &RequestDetail) -> bool {
        input_of(detail).is_some_and(|item| {
            item.role == Some(Speaker::User)
                && item.body == self.output.body
                && item.attachments == self.output.attachments
        })
    }

    /// Whether a message of that time may have come from this call. A call without a key is identified by
    /// its message alone; a call with a key only where the key of that time may have expired.
    fn may_have_sent(&self, then: Timestamp) -> bool {
        !self.input.has_key() || then.plus_ms(KEY_EXPIRED_MS) <= self.engine.now()
    }

    /// Whether the call may be the one that started a turn.
    pub(super) fn may_have_started(&self, detail: &RequestDetail) -> bool {
        let head = RequestHead::of(detail);
        self.is_input(detail) && head.is_some_and(|head| self.may_have_sent(head.started_at))
    }

    /// Whether the message equals the last one that a turn received: its input, or an answer to its question.
    pub(super) async fn is_repeat(&mut self, detail: &RequestDetail) -> Result<bool, EngineError> {
        Ok(self.is_input(detail) || self.answered_at(detail).await?.is_some())
    }

    /// Whether the call may be one that a turn has received before.
    async fn may_be_repeat(&mut self, detail: &RequestDetail) -> Result<bool, EngineError> {
        if self.may_have_started(detail) {
            return Ok(true);
        }
        let answered_at = self.answered_at(detail).await?;
        Ok(answered_at.is_some_and(|then| self.may_have_sent(then)))
    }

    /// When the caller answered the last question of a turn, if the answer was this message.
    async fn answered_at(
        &mut self,
        detail: &RequestDetail,
    ) -> Result<Option<Timestamp>, EngineError> {
        let Some(head) = RequestHead::of(detail) else {
            return Ok(None);
        };
        let (input, text) = (self.input, raw_text(&self.input.message.text));
        if !input.message.files.is_empty() {
            return Ok(None);
        }
        let decided = self.decided().await?;
        let last = decided.iter().find(|hold| {
            let root = hold.lineage.first().map(|step| step.request);
            root == Some(head.id) && is_answered_by(hold, &input.call.caller)
        });
        let is_same = |hold: &&HoldDetail| {
            let answer: DecisionBody = parse(hold.decision_body.as_deref());
            answer
                .content
                .is_some_and(|content| content.get() == text.get())
        };
        Ok(last.filter(is_same).and_then(|hold| hold.decided_at))
    }

    /// The turn of the question that the caller answered under this key, as long as keys are kept.
    pub(super) async fn answered_by_key(
        &self,
        key: IdempotencyKey,
    ) -> Result<Option<RequestId>, EngineError> {
        let caller = &self.input.call.caller;
        let filter = HoldFilter {
            decided: true,
            status: Some(HoldStatus::Answered),
            kind: Some(HoldKind::Question),
            session: Some(self.input.session),
            order: HoldOrder::Newest,
            ..HoldFilter::default()
        };
        let now = self.engine.now();
        let mut after = None;
        loop {
            let page = self.engine.holds(caller, &filter, after, ANSWERED_PAGE);
            let page = page.await?;
            for hold in &page.entries {
                let is_expired = hold.decided_at.is_some_and(|at| at.plus_ms(KEPT_MS) < now);
                if is_expired {
                    return Ok(None);
                }
                let decision = hold.closed.as_ref().map(|closed| closed.decision);
                // A decision is kept under the same digest of tenant, principal and key.
                let is_same = decision.and_then(|decision| decision.key) == Some(key.key);
                if is_same && is_answered_by(hold, caller) {
                    self.require_same_message(hold)?;
                    return Ok(hold.lineage.first().map(|step| step.request));
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(None);
            }
        }
    }

    /// Refuses a key that the caller used for another answer.
    fn require_same_message(&self, hold: &HoldDetail) -> Result<(), EngineError> {
        let answer: DecisionBody = parse(hold.decision_body.as_deref());
        let text = raw_text(&self.input.message.text);
        let is_other = answer
            .content
            .is_some_and(|content| content.get() != text.get());
        if is_other || !self.input.message.files.is_empty() {
            return Err(EngineError::KeyReused);
        }
        Ok(())
    }

    /// Whether a request is a turn of the agent, and of the task, that the call names.
    fn is_meant(&self, detail: &RequestDetail, head: &RequestHead) -> bool {
        let task = self.input.task;
        head.parent.is_none()
            && detail.task.agent == self.input.agent
            && task.is_none_or(|task| task == detail.task.id)
    }

    /// A turn of the log. The log notes a start before the commit, which may have failed.
    async fn find(&self, request: RequestId) -> Result<Option<RequestDetail>, EngineError> {
        match self.engine.request(&self.reader, request).await {
            Ok(detail) => Ok(Some(detail)),
            Err(EngineError::NotFound) => {
                self.log.forget(self.input.session, request);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The live turns of the agent, newest first.
    async fn live_turns(&self) -> Result<Vec<RequestId>, EngineError> {
        let (session, agent) = (self.input.session, &self.input.agent);
        let live = self.engine.live_roots_of(session, agent).await?;
        Ok(live.into_iter().rev().take(LIVE_MAX).collect())
    }

    /// A turn that has received this message and is live, or has ended with an answer that its client does
    /// not have; with whether it has ended.
    pub(super) async fn repeated(&mut self) -> Result<Option<(RequestId, bool)>, EngineError> {
        // The session is younger than a key: each repeat of a call with a key is found by the key.
        if !self.may_have_sent(self.summary.created_at) {
            return Ok(None);
        }
        for live in self.live_turns().await? {
            let detail = self.engine.request(&self.reader, live).await?;
            let head = RequestHead::of(&detail);
            let is_meant =
                head.is_some_and(|head| head.ended.is_none() && self.is_meant(&detail, &head));
            if is_meant && self.may_be_repeat(&detail).await? {
                return Ok(Some((live, false)));
            }
        }
        let (session, log) = (self.input.session, self.log);
        let mut owed: Vec<(RequestId, bool)> = log.owed_in(session);
        if log.predates(self.summary.created_at) {
            let newest = self.newest_before_start().await?;
            owed.extend(newest.map(|request| (request, false)));
        }
        let mut unwanted = Vec::new();
        for (request, was_paused) in owed.into_iter().rev() {
            let Some(detail) = self.find(request).await? else {
                continue;
            };
            let head = RequestHead::of(&detail).filter(|head| self.is_meant(&detail, head));
            let Some(head) = head else {
                continue;
            };
            let Some(end) = head.ended else {
                continue;
            };
            let is_owed = log.is_owed(session, request, head.started_at, end.at);
            if is_owed && self.may_be_repeat(&detail).await? {
                return Ok(Some((request, true)));
            }
            if !was_paused {
                unwanted.push(request);
            }
        }
        // A client that sends another message has moved on: only answers that it was told to wait for stay
        // owed. A client with keys can still ask for each of its calls.
        if !self.input.has_key() {
            for request in unwanted {
                log.forget(session, request);
            }
        }
        Ok(None)
    }

    /// The newest turn of the agent, if it started before this process.
    async fn newest_before_start(&self) -> Result<Option<RequestId>, EngineError> {
        let (engine, session) = (self.engine, self.input.session);
        let page = engine.transcript(&self.reader, session, None, MESSAGES_MAX);
        let mut seen = BTreeSet::new();
        for item in page.await?.items {
            let request = item.placed.request;
            if !seen.insert(request) {
                continue;
            }
            let detail = engine.request(&self.reader, request).await?;
            let head = RequestHead::of(&detail).filter(|head| self.is_meant(&detail, head));
            if let Some(head) = head {
                let is_older = self.log.predates(head.started_at);
                return Ok(is_older.then_some(request));
            }
        }
        Ok(None)
    }

    /// Answers of turns that the client knows as paused and that have ended since, except the `current` one.
    pub(super) async fn earlier(
        &mut self,
        current: RequestId,
    ) -> Result<Vec<EarlierAnswer>, EngineError> {
        let (session, log) = (self.input.session, self.log);
        let paused = log.owed_in(session).into_iter();
        let mut turns: BTreeSet<RequestId> = paused
            .filter(|(_, was_paused)| *was_paused)
            .map(|(request, _)| request)
            .collect();
        if log.predates(self.summary.created_at) {
            // An earlier process told clients of these pauses; its log is gone.
            let decided = self.decided().await?.iter();
            turns.extend(decided.filter_map(|hold| Some(hold.lineage.first()?.request)));
        }
        turns.remove(&current);
        let mut earlier = Vec::new();
        for request in turns {
            let Some(detail) = self.find(request).await? else {
                continue;
            };
            let Some(head) = RequestHead::of(&detail) else {
                continue;
            };
            let Some(end) = head.ended else {
                continue;
            };
            if !log.is_news(session, request, head.started_at, end.at) {
                continue;
            }
            let content = match end.outcome {
                RequestOutcome::Completed => AgentReply::of(&detail).text,
                RequestOutcome::Failed => format!("{} failed after its pause.", head.alias()),
                RequestOutcome::Cancelled => format!("{} was cancelled.", head.alias()),
            };
            earlier.push(EarlierAnswer { request, content });
        }
        Ok(earlier)
    }
}

fn is_answered_by(hold: &HoldDetail, caller: &Caller) -> bool {
    let decision = hold.closed.as_ref().map(|closed| closed.decision);
    hold.hold.kind == HoldKind::Question
        && decision.is_some_and(|decision| {
            decision.status == HoldStatus::Answered && decision.by == caller.principal
        })
}
