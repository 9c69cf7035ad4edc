//! Which turn a call is about: a turn that it answers, one that it attaches to, one whose answer was lost
//! on the way, or a new one. Also the answers that came after their client was told to wait.

use std::collections::BTreeSet;

use serde::Deserialize;
use statehold_core::command::StartRequest;
use statehold_core::hold::{DecisionKind, HoldKind, HoldStatus};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::item::Role;
use statehold_core::principal::Principal;
use statehold_core::record::{Event, Record};
use statehold_core::time::Timestamp;
use statehold_store::{HoldOrder, PageLimit, SessionSummary, StoreError};

use super::earlier::{EarlierTurn, fitting};
use super::question::{
    OpenQuestions, awaited_credentials, choices, open_questions, spoken_to_approval,
};
use super::{DeliveryLog, StartedTurn, TurnDecision, TurnInput, as_client};
use crate::answer_memory::SMALL_PAYLOAD_BYTES;
use crate::api::hold::{DecisionInput, decide_resuming};
use crate::api::json::raw_text;
use crate::bodies::{DecisionBody, error_in, message_in, parse, payload};
use crate::caller::Caller;
use crate::commit::idempotency::{IdempotencyKey, KEPT_MS};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::holds::{HoldDetail, HoldFilter};
use crate::read::{RequestHead, own_page};

/// How many decided holds of a session are read.
const DECIDED_MAX: usize = 20;
/// How many answered questions are read at a time.
const ANSWERED_PAGE: usize = 100;
/// The age at which an idempotency key may have expired: a minute early, because commit times may run
/// ahead of the clock that expires keys.
const KEY_EXPIRED_MS: u64 = KEPT_MS - 60 * 1_000;
/// How long after its failure a turn is continued by a repeated call.
pub(super) const CONTINUED_MS: u64 = 10 * 60 * 1_000;
/// Failures after which trying again may help: the agent, the model or the tool server was not reached, did not
/// answer in time, or failed itself.
const TRANSIENT: [&str; 8] = [
    "agent_busy",
    "agent_cut_off",
    "agent_error",
    "agent_rate_limited",
    "agent_timeout",
    "agent_unreachable",
    "tool_timeout",
    "tool_unreachable",
];
/// How many live turns of an agent a call may attach to.
const LIVE_MAX: usize = 64;
/// How many messages are read to find the newest turn of an agent.
const MESSAGES_MAX: usize = 32;

/// Looks for the turn of one call. The caller holds the lock of the session meanwhile.
pub(super) struct TurnSearch<'a> {
    engine: &'a Engine,
    log: &'a DeliveryLog,
    input: &'a TurnInput,
    /// The command that starts a new turn.
    start: &'a StartRequest,
    /// The caller as a client.
    pub(super) reader: Caller,
    summary: SessionSummary,
    /// The newest decided holds of the session, read once.
    decided: Option<Vec<HoldDetail>>,
    /// The failed turn that a new turn continues, and its task.
    pub(super) continues: Option<(TaskId, RequestId)>,
    /// The open questions that the message does not answer.
    pub(super) unanswered: Vec<HoldDetail>,
    /// The open approval that the sender of the message may believe to decide by it.
    pub(super) undecided: Option<HoldDetail>,
    /// The hold that the credential of the call has answered, in the place of the message.
    pub(super) given_credential: Option<HoldDetail>,
}

impl<'a> TurnSearch<'a> {
    pub(super) async fn new(
        engine: &'a Engine,
        log: &'a DeliveryLog,
        input: &'a TurnInput,
        start: &'a StartRequest,
    ) -> Result<Self, EngineError> {
        let reader = as_client(&input.call.caller);
        let summary = engine.session(&reader, input.session).await?;
        Ok(Self {
            engine,
            log,
            input,
            start,
            reader,
            summary,
            decided: None,
            continues: None,
            unanswered: Vec::new(),
            undecided: None,
            given_credential: None,
        })
    }

    /// The turn that the call is about, and whether the client has made the same call before. None if the
    /// call begins a new turn.
    pub(super) async fn find(&mut self) -> Result<Option<(RequestId, bool)>, EngineError> {
        let (engine, input) = (self.engine, self.input);
        // While a key is kept, it identifies the call by itself, also after newer calls.
        if let Some(key) = input.call.key {
            let kept = engine.kept_receipt::<StartedTurn>(key);
            if let Some(kept) = kept.await? {
                Box::pin(self.lend_credential(kept.view.request)).await?;
                return Ok(Some((kept.view.request, true)));
            }
            if let Some(answered) = self.answered_by_key(key).await? {
                Box::pin(self.lend_credential(answered)).await?;
                return Ok(Some((answered, true)));
            }
        }
        if let Some(root) = Box::pin(self.give_awaited_credential()).await? {
            return Ok(Some((root, false)));
        }
        let questions = if input.decides_elsewhere {
            OpenQuestions::default()
        } else {
            open_questions(engine, input).await?
        };
        self.unanswered = questions.unanswered;
        if questions.fitting.is_none() && self.unanswered.is_empty() && !input.decides_elsewhere {
            self.undecided = spoken_to_approval(engine, input).await?;
        }
        if let Some((question, root)) = questions.fitting {
            let turn = FoundTurn::of(engine, &self.reader, root).await?;
            let is_answer = self.is_answer(&question, &turn).await?;
            if is_answer || input.key.is_none() {
                Box::pin(self.lend_credential(root)).await?;
            }
            if is_answer {
                self.respond(&question).await?;
            }
            if is_answer || input.key.is_none() {
                return Ok(Some((root, false)));
            }
        }
        match self.repeated().await? {
            None => self.failed().await,
            Some((root, is_over)) => {
                if !is_over {
                    Box::pin(self.lend_credential(root)).await?;
                }
                Ok(Some((root, is_over)))
            }
        }
    }

    /// Lends the credential of the call to a turn that goes on. An approver who decides about another user's turn
    /// lends nothing: agents would act as the approver.
    async fn lend_credential(&self, root: RequestId) -> Result<(), EngineError> {
        if let Some(lent) = &self.input.call_credential
            && self.acts_for_user(root).await?
        {
            self.engine.inner().credentials.lend(root, lent);
        }
        Ok(())
    }

    /// Whether the caller acts for the user of the session, or began the turn.
    async fn acts_for_user(&self, root: RequestId) -> Result<bool, EngineError> {
        let caller = &self.input.call.caller;
        if caller.principal == Principal::Local || caller.user == Some(self.summary.owner.user) {
            return Ok(true);
        }
        let turn = FoundTurn::of(self.engine, &self.reader, root).await?;
        let started = turn.started.as_ref();
        Ok(started.is_some_and(|record| record.content.principal == caller.principal))
    }

    /// Lets a turn go on that waits for a credential such as the call has one. The credential is the answer: the
    /// words of the message are not read.
    async fn give_awaited_credential(&mut self) -> Result<Option<RequestId>, EngineError> {
        let Some(audience) = self.input.audience() else {
            return Ok(None);
        };
        let mut waiting = awaited_credentials(self.engine, self.input, audience).await?;
        let Some(root) = waiting.first().map(|(_, root)| *root) else {
            return Ok(None);
        };
        Box::pin(self.lend_credential(root)).await?;
        for (hold, _) in waiting.iter().filter(|(_, asking)| *asking == root) {
            let answer = DecisionInput {
                decision: DecisionKind::Approve,
                digest: None,
                args: None,
                content: None,
                comment: None,
                reason: None,
            };
            decide_resuming(self.engine, (&self.input.call, None), None, hold, answer).await?;
        }
        self.given_credential = Some(waiting.swap_remove(0).0);
        Ok(Some(root))
    }

    /// Finds a failed turn that the call repeats. The new turn continues it if the failure is transient;
    /// otherwise the client gets the same failure again.
    async fn failed(&mut self) -> Result<Option<(RequestId, bool)>, EngineError> {
        let state = self.engine.durable_state(self.input.session).await?;
        let failed = state.tasks.values().filter(|task| task.parent.is_none());
        let failed: Vec<_> = failed
            .filter_map(|task| task.failed.zip(Some(task.id)))
            .collect();
        for (request, task) in failed {
            let turn = FoundTurn::of(self.engine, &self.reader, request).await?;
            let Some(end) = turn.head.request.ended() else {
                continue;
            };
            let is_recent = end.ended_at.plus_ms(CONTINUED_MS) >= self.engine.now();
            let is_own = turn.started.as_ref().is_some_and(|started| {
                started.content.principal == self.input.call.caller.principal
            });
            let is_repeat = is_recent && is_own && self.is_meant(&turn.head);
            if !is_repeat || !self.may_have_started(&turn) {
                continue;
            }
            let failed = (turn.head.session.id, request);
            if end.continuation().is_some() && self.is_transient(failed, end.ended_by).await? {
                self.continues = Some((task, request));
                return Ok(None);
            }
            if self.log.has_config(request, self.input.config) {
                return Ok(Some((request, true)));
            }
        }
        Ok(None)
    }

    /// Whether a turn failed in a way that may pass. A failure with a long error is no such one.
    async fn is_transient(
        &self,
        (session, request): (SessionId, RequestId),
        ended_by: u64,
    ) -> Result<bool, EngineError> {
        #[derive(Default, Deserialize)]
        struct RecordedFailure {
            #[serde(default)]
            code: String,
        }
        let page = PageLimit {
            entries: 1,
            bytes: SMALL_PAYLOAD_BYTES,
        };
        let store = &self.engine.inner().store;
        let records = store.records(session, ended_by - 1, page);
        let records = match records.await {
            Err(StoreError::PageTooSmall { .. }) => return Ok(false),
            records => records?,
        };
        let error = records.first().and_then(|stored| {
            let error = error_in(&stored.record.content.events, request)?;
            payload(stored, error)
        });
        let failure: RecordedFailure = parse(error);
        Ok(TRANSIENT.contains(&failure.code.as_str()))
    }

    /// Decides holds of the session. The turn of the call is the one of the last hold.
    pub(super) async fn decide(
        &self,
        decisions: Vec<TurnDecision>,
    ) -> Result<RequestId, EngineError> {
        let TurnInput {
            call, credential, ..
        } = self.input;
        let mut root = None;
        for decision in decisions {
            let detail = self.engine.hold(&call.caller, decision.hold_id).await?;
            let first = detail.lineage.first().map(|step| step.request);
            if detail.session.id != self.input.session || first.is_none() {
                return Err(EngineError::NotFound);
            }
            let key = decision.key.clone();
            let answer = decision.answer()?;
            let mut resumed_with = None;
            if let Some(first) = first {
                Box::pin(self.lend_credential(first)).await?;
                if credential.is_some() && Box::pin(self.acts_for_user(first)).await? {
                    resumed_with = credential.as_ref();
                }
            }
            let call = (call, resumed_with);
            decide_resuming(self.engine, call, key.as_deref(), &detail, answer).await?;
            root = first;
        }
        root.ok_or(EngineError::NotFound)
    }

    /// Whether the message answers a question, rather than repeats one that the asking turn has received.
    async fn is_answer(
        &mut self,
        question: &HoldDetail,
        turn: &FoundTurn,
    ) -> Result<bool, EngineError> {
        // A client that reconnects repeats its message, even after it was told of the question.
        let text = &self.input.message.text;
        if self.may_have_started(turn) && !choices(question).contains(text) {
            return Ok(false);
        }
        // A retried call cannot answer a question that its client has never seen.
        if self.log.has_seen(question.hold.id) {
            return Ok(true);
        }
        let is_repeat = self.is_input(turn) || self.answered_at(turn).await?.is_some();
        Ok(!is_repeat)
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
        let (call, key) = (&self.input.call, self.input.key.as_deref());
        let call = (call, self.input.credential.as_ref());
        decide_resuming(self.engine, call, key, question, answer).await?;
        Ok(())
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
            let engine = self.engine;
            let page = own_page(DECIDED_MAX, |page| {
                engine.holds(caller, &filter, None, page)
            });
            self.decided = Some(page.await?.entries);
        }
        Ok(self.decided.as_deref().unwrap_or_default())
    }

    /// Whether a turn began with this message.
    fn is_input(&self, turn: &FoundTurn) -> bool {
        let Some(started) = &turn.started else {
            return false;
        };
        let events = &started.content.events;
        let has_digest = |event: &Event| matches!(event, Event::RequestStarted { chat: Some(chat), .. } if Some(*chat) == self.start.chat);
        let input = message_in(events, turn.head.request.id(), Role::User);
        events.iter().any(has_digest)
            || input.is_some_and(|item| {
                item.body == self.start.input && item.attachments == self.start.attachments
            })
    }

    /// Whether a message of that time may have come from this call. A call without a key is identified by
    /// its message alone; a call with a key only where the key of that time may have expired.
    fn may_have_sent(&self, then: Timestamp) -> bool {
        self.input.key.is_none() || then.plus_ms(KEY_EXPIRED_MS) <= self.engine.now()
    }

    /// Whether the call may be the one that started a turn.
    fn may_have_started(&self, turn: &FoundTurn) -> bool {
        let started_at = turn.started_at();
        self.is_input(turn) && started_at.is_some_and(|then| self.may_have_sent(then))
    }

    /// Whether the call may be one that a turn has received before.
    async fn may_be_repeat(&mut self, turn: &FoundTurn) -> Result<bool, EngineError> {
        if self.may_have_started(turn) {
            return Ok(true);
        }
        let answered_at = self.answered_at(turn).await?;
        Ok(answered_at.is_some_and(|then| self.may_have_sent(then)))
    }

    /// When the caller answered the last question of a turn, if the answer was this message.
    async fn answered_at(&mut self, turn: &FoundTurn) -> Result<Option<Timestamp>, EngineError> {
        let (input, text) = (self.input, raw_text(&self.input.message.text));
        if !input.message.files.is_empty() {
            return Ok(None);
        }
        let decided = self.decided().await?;
        let last = decided.iter().find(|hold| {
            let root = hold.lineage.first().map(|step| step.request);
            root == Some(turn.head.request.id()) && is_answered_by(hold, &input.call.caller)
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
    async fn answered_by_key(&self, key: IdempotencyKey) -> Result<Option<RequestId>, EngineError> {
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
            let engine = self.engine;
            let read = |page| engine.holds(caller, &filter, after, page);
            let page = own_page(ANSWERED_PAGE, read);
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
    fn is_meant(&self, head: &RequestHead) -> bool {
        let task = self.input.task;
        head.request.parent().is_none()
            && head.task.agent == self.input.agent
            && task.is_none_or(|task| task == head.task.id)
    }

    /// A turn of the log. The log notes a start before the commit, which may have failed.
    async fn of_log(&self, request: RequestId) -> Result<Option<FoundTurn>, EngineError> {
        match FoundTurn::of(self.engine, &self.reader, request).await {
            Ok(turn) => Ok(Some(turn)),
            Err(EngineError::NotFound) => {
                self.log.forget(self.input.session, request);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A turn that has received this message and is live, or has ended with an answer that its client does
    /// not have; with whether it has ended.
    async fn repeated(&mut self) -> Result<Option<(RequestId, bool)>, EngineError> {
        // The session is younger than a key: each repeat of a call with a key is found by the key.
        if !self.may_have_sent(self.summary.created_at) {
            return Ok(None);
        }
        let (session, log) = (self.input.session, self.log);
        let live = self.engine.live_roots_of(session, &self.input.agent);
        for live in live.await?.into_iter().rev().take(LIVE_MAX) {
            let turn = FoundTurn::of(self.engine, &self.reader, live).await?;
            let is_meant = turn.head.request.ended().is_none() && self.is_meant(&turn.head);
            if is_meant && self.may_be_repeat(&turn).await? {
                return Ok(Some((live, false)));
            }
        }
        let mut owed: Vec<(RequestId, bool)> = log.owed_in(session);
        if log.predates(self.summary.created_at) {
            let mut before = self.turns_before_start().await?;
            before.retain(|request| !owed.iter().any(|(known, _)| known == request));
            owed.extend(before.into_iter().map(|request| (request, false)));
        }
        for request in log.delivered_since(session, self.input.arrived) {
            let turn = self.of_log(request).await?;
            let turn = turn.filter(|turn| self.is_meant(&turn.head));
            if let Some(turn) = turn
                && self.may_be_repeat(&turn).await?
            {
                return Ok(Some((request, true)));
            }
        }
        let mut unwanted = Vec::new();
        for (request, was_paused) in owed.into_iter().rev() {
            let Some(turn) = self.of_log(request).await? else {
                continue;
            };
            let Some((started_at, end)) = turn.started_at().zip(turn.head.request.ended()) else {
                continue;
            };
            if !self.is_meant(&turn.head) {
                continue;
            }
            let is_owed = log.is_owed(session, request, started_at, end.ended_at);
            if is_owed && self.may_be_repeat(&turn).await? {
                return Ok(Some((request, true)));
            }
            if !was_paused {
                unwanted.push(request);
            }
        }
        // A client that sends another message has moved on: only answers that it was told to wait for stay
        // owed. A client with keys can still ask for each of its calls.
        if self.input.key.is_none() {
            for request in unwanted {
                log.forget(session, request);
            }
        }
        Ok(None)
    }

    /// The newest turns of the agent, oldest first, if they started before this process and none since. Turns
    /// that ended before another began are left out: their client has moved on.
    async fn turns_before_start(&self) -> Result<Vec<RequestId>, EngineError> {
        let (engine, session) = (self.engine, self.input.session);
        let (mut seen, mut found, mut newest_start) = (BTreeSet::new(), Vec::new(), 0);
        let (mut before, mut left) = (None, MESSAGES_MAX);
        'pages: while left > 0 {
            let page = own_page(left, |page| {
                engine.transcript(&self.reader, session, before, page)
            })
            .await?;
            left -= page.items.len();
            for item in page.items {
                let request = item.placed.request;
                if !seen.insert(request) {
                    continue;
                }
                let turn = FoundTurn::of(engine, &self.reader, request).await?;
                if !self.is_meant(&turn.head) {
                    continue;
                }
                let started_at = turn.started_at();
                if !started_at.is_some_and(|started_at| self.log.predates(started_at)) {
                    break 'pages;
                }
                let ended = turn.head.request.ended();
                if ended.is_none_or(|ended| ended.ended_by >= newest_start) {
                    found.push(request);
                }
                newest_start = newest_start.max(turn.head.request.started_by());
            }
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Answers of turns that the client knows as paused and that have ended since, except the `current` one.
    pub(super) async fn earlier(
        &mut self,
        current: RequestId,
    ) -> Result<Vec<EarlierTurn>, EngineError> {
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
            let Some(turn) = self.of_log(request).await? else {
                continue;
            };
            let Some((started_at, end)) = turn.started_at().zip(turn.head.request.ended()) else {
                continue;
            };
            if log.is_news(session, request, started_at, end.ended_at) {
                earlier.extend(EarlierTurn::of(self.engine, &turn.head).await?);
            }
        }
        Ok(fitting(earlier))
    }
}

/// A turn that a call may be about, without its payloads.
struct FoundTurn {
    head: RequestHead,
    /// The record that started it. None if it is gone.
    started: Option<Record>,
}

impl FoundTurn {
    async fn of(engine: &Engine, reader: &Caller, request: RequestId) -> Result<Self, EngineError> {
        let head = engine.request_head(reader, request).await?;
        let started = engine.record_head(head.session.id, head.request.started_by());
        let started = started.await?;
        Ok(Self { head, started })
    }

    fn started_at(&self) -> Option<Timestamp> {
        self.started.as_ref().map(|record| record.content.at)
    }
}

pub(super) fn is_answered_by(hold: &HoldDetail, caller: &Caller) -> bool {
    let decision = hold.closed.as_ref().map(|closed| closed.decision);
    hold.hold.kind == HoldKind::Question
        && decision.is_some_and(|decision| {
            decision.status == HoldStatus::Answered && decision.by == caller.principal
        })
}
