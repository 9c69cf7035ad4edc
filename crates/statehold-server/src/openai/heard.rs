//! Finding a turn that has heard these words before, and answers that came since somebody was told to
//! wait.

use std::collections::BTreeSet;

use statehold_core::command::Output;
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::RequestId;
use statehold_core::item::Role as Speaker;
use statehold_core::request::RequestOutcome;
use statehold_core::time::Timestamp;
use statehold_engine::kept::{DecisionBody, parse};
use statehold_engine::{
    Caller, Engine, EngineError, HoldDetail, HoldFilter, HoldOrder, RequestDetail, SessionSummary,
};

use super::said::{Answer, Sign, input_of};
use super::turn::{Earlier, Message};
use crate::http::problem::Problem;
use statehold_engine::api::json::raw_text;

/// How many decided holds of a session are looked at.
const DECIDED_MAX: usize = 20;
/// How many answered questions are read at a time.
const ANSWERED_STEP: usize = 100;
/// How long keys are known: a day.
const KEY_KNOWN_MS: u64 = 24 * 3_600 * 1_000;
/// From when on a key may be forgotten: a minute early, because commit times may run ahead of the clock
/// that keys go by.
const KEY_FORGOTTEN_MS: u64 = KEY_KNOWN_MS - 60 * 1_000;
/// How many live turns of an agent are looked at for one to attach to.
const LIVE_MAX: usize = 64;
/// How many messages are looked at to find the newest turn of an agent.
const MESSAGES_MAX: usize = 32;

/// Looks for a turn that has heard these words before.
pub(crate) struct Search<'a> {
    message: &'a Message<'a>,
    pub(crate) reader: Caller,
    summary: SessionSummary,
    input: Output,
    /// The newest decided holds of the session, once somebody asked.
    decided: Option<Vec<HoldDetail>>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        message: &'a Message<'a>,
        reader: Caller,
        summary: SessionSummary,
        input: Output,
    ) -> Self {
        Self {
            message,
            reader,
            summary,
            input,
            decided: None,
        }
    }

    fn engine(&self) -> &Engine {
        &self.message.app.engine
    }

    async fn decided(&mut self) -> Result<&[HoldDetail], Problem> {
        if self.decided.is_none() {
            let filter = HoldFilter {
                decided: true,
                session: Some(self.message.session),
                order: HoldOrder::Newest,
                ..HoldFilter::default()
            };
            let caller = &self.message.asked.caller;
            let page = self.engine().holds(caller, &filter, None, DECIDED_MAX);
            self.decided = Some(page.await?.entries);
        }
        Ok(self.decided.as_deref().unwrap_or_default())
    }

    /// Whether the call says what a turn began with.
    fn is_input(&self, detail: &RequestDetail) -> bool {
        input_of(detail).is_some_and(|item| {
            item.role == Some(Speaker::User)
                && item.body == self.input.body
                && item.attachments == self.input.attachments
        })
    }

    /// Whether the call can be the one that said this then. Without a key it is known by its words alone;
    /// with one, words count where the key of then may be forgotten.
    fn may_have_said(&self, then: Timestamp) -> bool {
        self.message.asked.key_text().is_none()
            || then.plus_ms(KEY_FORGOTTEN_MS) <= self.engine().now()
    }

    /// Whether the call can be the one that began a turn, by what it says.
    pub(crate) fn may_have_begun(&self, detail: &RequestDetail) -> bool {
        let sign = Sign::of(detail);
        self.is_input(detail) && sign.is_some_and(|sign| self.may_have_said(sign.started_at))
    }

    /// Whether the call says what a turn has heard last: its input, or an answer to its question.
    pub(crate) async fn is_repeat(&mut self, detail: &RequestDetail) -> Result<bool, Problem> {
        Ok(self.is_input(detail) || self.answered_at(detail).await?.is_some())
    }

    /// Whether the call can be one that a turn has heard before.
    async fn may_be_repeat(&mut self, detail: &RequestDetail) -> Result<bool, Problem> {
        if self.may_have_begun(detail) {
            return Ok(true);
        }
        let answered_at = self.answered_at(detail).await?;
        Ok(answered_at.is_some_and(|then| self.may_have_said(then)))
    }

    /// When the caller answered the last question of a turn, if that was with these words.
    async fn answered_at(&mut self, detail: &RequestDetail) -> Result<Option<Timestamp>, Problem> {
        let Some(sign) = Sign::of(detail) else {
            return Ok(None);
        };
        let (message, text) = (self.message, raw_text(&self.message.words.text));
        if !message.words.files.is_empty() {
            return Ok(None);
        }
        let decided = self.decided().await?;
        let last = decided.iter().find(|hold| {
            let root = hold.lineage.first().map(|step| step.request);
            root == Some(sign.id) && is_answered_by(hold, &message.asked.caller)
        });
        let is_same = |hold: &&HoldDetail| {
            let words: DecisionBody = parse(hold.decision_body.as_deref());
            words
                .content
                .is_some_and(|content| content.get() == text.get())
        };
        Ok(last.filter(is_same).and_then(|hold| hold.decided_at))
    }

    /// The turn of the question that the same call has answered before. A key is looked for as long as
    /// any other is known.
    pub(crate) async fn answered_by_key(&self) -> Result<Option<RequestId>, Problem> {
        let caller = &self.message.asked.caller;
        let Some(key) = self.message.asked.decision_key() else {
            return Ok(None);
        };
        let filter = HoldFilter {
            decided: true,
            status: Some(HoldStatus::Answered),
            kind: Some(HoldKind::Question),
            session: Some(self.message.session),
            order: HoldOrder::Newest,
            ..HoldFilter::default()
        };
        let now = self.engine().now();
        let mut after = None;
        loop {
            let page = self.engine().holds(caller, &filter, after, ANSWERED_STEP);
            let page = page.await?;
            for hold in &page.entries {
                let is_forgotten = hold
                    .decided_at
                    .is_some_and(|at| at.plus_ms(KEY_KNOWN_MS) < now);
                if is_forgotten {
                    return Ok(None);
                }
                let decision = hold.closed.as_ref().map(|closed| closed.decision);
                let is_same = decision.and_then(|decision| decision.key) == Some(key);
                if is_same && is_answered_by(hold, caller) {
                    self.require_same_words(hold)?;
                    return Ok(hold.lineage.first().map(|step| step.request));
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(None);
            }
        }
    }

    /// A key stands for one call: for the words with which it answered.
    fn require_same_words(&self, hold: &HoldDetail) -> Result<(), Problem> {
        let said: DecisionBody = parse(hold.decision_body.as_deref());
        let text = raw_text(&self.message.words.text);
        let is_other = said.content.is_some_and(|said| said.get() != text.get());
        if is_other || !self.message.words.files.is_empty() {
            return Err(EngineError::KeyReused.into());
        }
        Ok(())
    }

    /// Whether a request is a turn of the agent, or of the task, that the call is for.
    fn is_meant(&self, detail: &RequestDetail, sign: &Sign) -> bool {
        let task = self.message.task;
        sign.parent.is_none()
            && detail.task.agent == *self.message.agent
            && task.is_none_or(|task| task == detail.task.id)
    }

    /// A turn that somebody waited for. One whose start was noted and then failed is not there.
    async fn find(&self, request: RequestId) -> Result<Option<RequestDetail>, Problem> {
        match self.engine().request(&self.reader, request).await {
            Ok(detail) => Ok(Some(detail)),
            Err(EngineError::NotFound) => {
                let told = &self.message.app.told;
                told.forget(self.message.session, request);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The turns of the agent that go on, newest first.
    async fn live_turns(&self) -> Result<Vec<RequestId>, Problem> {
        let (session, agent) = (self.message.session, self.message.agent);
        let live = self.engine().live_roots_of(session, agent).await?;
        Ok(live.into_iter().rev().take(LIVE_MAX).collect())
    }

    /// A turn that has heard these words and goes on, or has ended without its client having learnt it.
    pub(crate) async fn repeated(&mut self) -> Result<Option<(RequestId, bool)>, Problem> {
        // Where every key is still known, there is nothing to look for.
        if !self.may_have_said(self.summary.created_at) {
            return Ok(None);
        }
        let session = self.message.session;
        for live in self.live_turns().await? {
            let detail = self.engine().request(&self.reader, live).await?;
            let sign = Sign::of(&detail);
            let is_meant =
                sign.is_some_and(|sign| sign.ended.is_none() && self.is_meant(&detail, &sign));
            if is_meant && self.may_be_repeat(&detail).await? {
                return Ok(Some((live, false)));
            }
        }
        let told = &self.message.app.told;
        let mut owed: Vec<(RequestId, bool)> = told.owed_in(session);
        if told.is_older(self.summary.created_at) {
            let newest = self.newest_before_start().await?;
            owed.extend(newest.map(|request| (request, false)));
        }
        let mut unwanted = Vec::new();
        for (request, was_paused) in owed.into_iter().rev() {
            let Some(detail) = self.find(request).await? else {
                continue;
            };
            let Some(sign) = Sign::of(&detail).filter(|sign| self.is_meant(&detail, sign)) else {
                continue;
            };
            let Some((_, ended_at, _)) = sign.ended else {
                continue;
            };
            let is_owed = told.is_owed(session, request, sign.started_at, ended_at);
            if is_owed && self.may_be_repeat(&detail).await? {
                return Ok(Some((request, true)));
            }
            if !was_paused {
                unwanted.push(request);
            }
        }
        // A client that says something else has moved on; only what it was told to wait for is due. One
        // with keys can still ask for each of its calls.
        if self.message.asked.key_text().is_none() {
            for request in unwanted {
                told.forget(session, request);
            }
        }
        Ok(None)
    }

    /// The newest turn of the agent, if it began before this process did.
    async fn newest_before_start(&self) -> Result<Option<RequestId>, Problem> {
        let (engine, session) = (self.engine(), self.message.session);
        let page = engine.transcript(&self.reader, session, None, MESSAGES_MAX);
        let mut looked_at = BTreeSet::new();
        for item in page.await?.items {
            let request = item.placed.request;
            if !looked_at.insert(request) {
                continue;
            }
            let detail = engine.request(&self.reader, request).await?;
            if let Some(sign) = Sign::of(&detail).filter(|sign| self.is_meant(&detail, sign)) {
                let is_older = self.message.app.told.is_older(sign.started_at);
                return Ok(is_older.then_some(request));
            }
        }
        Ok(None)
    }

    /// Answers of turns that were told as paused and have ended since, other than the one at hand.
    pub(crate) async fn earlier(&mut self, at_hand: RequestId) -> Result<Vec<Earlier>, Problem> {
        let session = self.message.session;
        let told = &self.message.app.told;
        let paused = told.owed_in(session).into_iter();
        let mut turns: BTreeSet<RequestId> = paused
            .filter(|(_, was_paused)| *was_paused)
            .map(|(request, _)| request)
            .collect();
        if told.is_older(self.summary.created_at) {
            // People who waited over the start of this process were told by another. What has ended
            // before may have been told by that one too.
            let decided = self.decided().await?.iter();
            turns.extend(decided.filter_map(|hold| Some(hold.lineage.first()?.request)));
        }
        turns.remove(&at_hand);
        let mut earlier = Vec::new();
        for request in turns {
            let Some(detail) = self.find(request).await? else {
                continue;
            };
            let Some(sign) = Sign::of(&detail) else {
                continue;
            };
            let Some((outcome, ended_at, _)) = sign.ended else {
                continue;
            };
            if !told.is_news(session, request, sign.started_at, ended_at) {
                continue;
            }
            let content = match outcome {
                RequestOutcome::Completed => Answer::of(&detail).text,
                RequestOutcome::Failed => format!("{} failed after its pause.", sign.alias()),
                RequestOutcome::Cancelled => format!("{} was cancelled.", sign.alias()),
            };
            earlier.push(Earlier { request, content });
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
