//! Following a turn until it has ended, or waits for a person.

use std::sync::Arc;

use statehold_core::hold::Hold;
use statehold_core::ids::{HoldId, RequestId};
use statehold_core::record::Record;
use statehold_core::request::RequestOutcome;
use statehold_core::session::SessionState;
use statehold_core::task::TaskStatus;
use statehold_core::time::Timestamp;
use statehold_store::{PageLimit, StoreError, StoredRecord, record_bytes};
use tokio::time::Instant;

use super::account::TurnLedger;
use super::earlier::EarlierTurn;
use super::{AgentReply, EarlierAnswer, ReplyParts, TurnAccount, TurnHandle};
use crate::answer_memory::{AnswerMemory, SMALL_PAYLOAD_BYTES, take_unless_small};
use crate::api::json::{Raw, raw_bytes};
use crate::background::drafts::{DraftChange, DraftReader};
use crate::bodies::{error_in, payload};
use crate::error::EngineError;
use crate::holds::{HoldDetail, fitting_holds, oldest};
use crate::own_work::Progress;
use crate::read::StoredRequest;
use crate::stage::StageChange;

/// How many holds of a paused turn are shown.
const HOLDS_MAX: usize = 100;
/// The records of a turn that are read at a time. A longer one is read alone, in the memory for answers, and only if
/// its payloads are needed.
const RECORDS_PAGE: PageLimit = PageLimit {
    entries: 200,
    bytes: SMALL_PAYLOAD_BYTES,
};
/// How many records of a turn are read at most.
const RECORDS_MAX: usize = 4_000;

/// A turn as it was read at one revision. Its payloads are in the memory that the reader took for them.
#[derive(Debug)]
pub struct TurnSnapshot {
    /// The request at its root.
    pub(super) request: StoredRequest,
    /// The record that ended it.
    finished: Option<StoredRecord>,
    /// The requests of the turn, the root first.
    pub(super) requests: Vec<RequestId>,
    /// The revision that it was read at: the one that ended it, if it has ended.
    pub revision: u64,
    /// When it started.
    pub started_at: Timestamp,
    /// The open holds of a paused turn, oldest first. Empty while it runs, and when it has ended.
    pub holds: Vec<HoldDetail>,
    /// The agents that took part so far, and their tokens.
    pub account: TurnAccount,
    /// Answers of other turns that the client was told to wait for.
    pub earlier: Vec<EarlierAnswer>,
}

impl TurnSnapshot {
    /// Whether the turn has ended.
    pub fn has_ended(&self) -> bool {
        self.request.ended().is_some()
    }

    /// The reply of a turn that has completed. Empty if it has none.
    pub fn reply(&self, parts: ReplyParts) -> AgentReply {
        AgentReply::of(self.request.id(), self.finished.as_ref(), parts)
    }

    /// Whether the turn waits for people.
    pub fn is_paused(&self) -> bool {
        !self.holds.is_empty()
    }

    /// The ids of its open holds.
    pub fn hold_ids(&self) -> Vec<HoldId> {
        self.holds.iter().map(|detail| detail.hold.id).collect()
    }
}

/// A turn that has ended without an answer.
#[derive(Debug)]
pub struct FailedTurn {
    /// How it ended.
    pub outcome: RequestOutcome,
    /// Its name for people.
    pub alias: String,
    /// The error of the agent. Its code is for every client, its message only for a caller who sees inside.
    pub error: Option<Raw>,
    /// Whether the caller may see inside the turn, by a right that is audited.
    pub sees_inside: bool,
}

/// The records of a turn, added up.
struct WalkedTurn {
    started_at: Option<Timestamp>,
    requests: Vec<RequestId>,
    account: TurnAccount,
    /// The last one.
    last: Option<StoredRecord>,
}

/// The record that ended a turn: a short one, or one that needs memory before it is read.
enum FinishedRecord {
    Whole(StoredRecord),
    Long(Record),
}

impl FinishedRecord {
    /// The memory that reading it takes.
    fn bytes(&self) -> u64 {
        match self {
            Self::Whole(_) => 0,
            Self::Long(record) => record_bytes(record),
        }
    }
}

/// An event of a turn.
#[derive(Debug)]
pub enum TurnEvent {
    /// The next piece of the answer while the agent writes it. It is a draft: the committed answer counts.
    Delta(String),
    /// A change of the stages of the turn, also a draft.
    Stage(StageChange),
    /// The turn waits for people, and the caller waits too: more events follow.
    Paused(Box<TurnSnapshot>),
    /// The turn goes on: people have decided.
    Resumed,
    /// The last event: the turn has ended, or waits for people and the caller does not wait any longer.
    Over(Box<TurnSnapshot>),
}

impl TurnHandle {
    /// Reads the turn. Takes the memory for its answer first, unless that is small.
    ///
    /// # Errors
    ///
    /// If the caller may not read it any more, or there is no memory in time.
    pub async fn read(&self, memory: &dyn AnswerMemory) -> Result<TurnSnapshot, EngineError> {
        let (engine, session) = (&self.engine, self.session);
        let state = engine.readable(&self.reader, session).await?;
        let request = engine.find_request(&state, self.request).await?;
        let ended_by = request.ended().map(|ended| ended.ended_by);
        let last = ended_by.unwrap_or(state.revision);
        let walked = self.walk(&request, last, memory).await?;
        let holds = match ended_by {
            Some(_) => Vec::new(),
            None => self.oldest_holds(&state),
        };
        let rows = engine.visible_holds(&self.caller, holds).await?;
        let (rows, holds_bytes) = fitting_holds(rows);
        let finished = match ended_by {
            Some(ended_by) => self.finished(ended_by, walked.last).await?,
            None => None,
        };
        let own_bytes = finished.as_ref().map_or(0, FinishedRecord::bytes);
        let earlier_bytes: u64 = self.earlier.iter().map(EarlierTurn::bytes).sum();
        take_unless_small(memory, own_bytes + earlier_bytes + holds_bytes).await?;
        let mut earlier = Vec::with_capacity(self.earlier.len());
        for turn in self.earlier.iter() {
            earlier.push(turn.read(engine).await?);
        }
        let mut holds = engine.hold_details(&self.caller, rows).await?;
        holds.retain(|detail| detail.closed.is_none());
        Ok(TurnSnapshot {
            request,
            finished: match finished {
                Some(FinishedRecord::Whole(stored)) => Some(stored),
                Some(FinishedRecord::Long(record)) => {
                    engine.record(session, record.content.seq).await?
                }
                None => None,
            },
            requests: walked.requests,
            revision: last,
            started_at: walked.started_at.ok_or(EngineError::NotFound)?,
            holds,
            account: walked.account,
            earlier,
        })
    }

    /// Walks the records of the turn, a page at a time: they do not stay in memory, except the last.
    async fn walk(
        &self,
        request: &StoredRequest,
        last: u64,
        memory: &dyn AnswerMemory,
    ) -> Result<WalkedTurn, EngineError> {
        let started_by = request.started_by();
        let mut ledger = TurnLedger::new(self.request);
        let (mut started_at, mut newest) = (None, None);
        let (mut after, mut read) = (started_by.saturating_sub(1), 0);
        while after < last && read < RECORDS_MAX {
            let page = self.records(after, last, memory).await?;
            let Some(end) = page.last().map(|stored| stored.record.content.seq) else {
                break;
            };
            (after, read) = (end, read + page.len());
            for stored in page {
                let content = &stored.record.content;
                if content.seq > last {
                    break;
                }
                if content.seq == started_by {
                    started_at = Some(content.at);
                }
                ledger.add(&self.engine, &stored).await?;
                if stored.record.content.seq == last {
                    newest = Some(stored);
                }
            }
        }
        Ok(WalkedTurn {
            started_at,
            requests: ledger.requests,
            account: ledger.account,
            last: newest,
        })
    }

    /// The records after a revision. A long one comes alone, without payloads if they are not needed for the account.
    async fn records(
        &self,
        after: u64,
        last: u64,
        memory: &dyn AnswerMemory,
    ) -> Result<Vec<StoredRecord>, EngineError> {
        let (store, session) = (&self.engine.inner().store, self.session);
        let bytes = match store.records(session, after, RECORDS_PAGE).await {
            Err(StoreError::PageTooSmall { bytes }) => bytes,
            page => return Ok(page?),
        };
        let head = self.engine.record_head(session, after + 1).await?;
        let Some(record) = head.filter(|record| record.content.seq <= last) else {
            return Ok(Vec::new());
        };
        if TurnLedger::has_usage(&record) {
            memory.take(bytes).await?;
            return Ok(store.records(session, after, PageLimit::entries(1)).await?);
        }
        let bodies = Vec::new();
        Ok(vec![StoredRecord { record, bodies }])
    }

    /// The record that ended the turn: the last one that was walked, if that has its payloads.
    async fn finished(
        &self,
        ended_by: u64,
        last: Option<StoredRecord>,
    ) -> Result<Option<FinishedRecord>, EngineError> {
        let last = last.filter(|stored| stored.record.content.seq == ended_by);
        match last {
            Some(whole) if whole.bytes() <= SMALL_PAYLOAD_BYTES => {
                Ok(Some(FinishedRecord::Whole(whole)))
            }
            Some(StoredRecord { record, .. }) => Ok(Some(FinishedRecord::Long(record))),
            None => {
                let head = self.engine.record_head(self.session, ended_by).await?;
                Ok(head.map(FinishedRecord::Long))
            }
        }
    }

    /// The oldest open holds of a paused turn and of everything below it; not those of other turns.
    fn oldest_holds(&self, state: &Arc<SessionState>) -> Vec<HoldId> {
        let task = state.task_of(self.request);
        if task.is_none_or(|task| task.status != TaskStatus::Paused) {
            return Vec::new();
        }
        let holds: Vec<&Hold> = oldest(state, &state.holds_below(self.request), HOLDS_MAX);
        holds.into_iter().map(|hold| hold.id).collect()
    }

    /// When the turn started.
    ///
    /// # Errors
    ///
    /// If the caller may not read it any more.
    pub async fn started_at(&self) -> Result<Timestamp, EngineError> {
        if let Some(started_at) = self.started_at {
            return Ok(started_at);
        }
        let (engine, session) = (&self.engine, self.session);
        let state = engine.readable(&self.reader, session).await?;
        let request = engine.find_request(&state, self.request).await?;
        let started = engine.record_head(session, request.started_by()).await?;
        let started = started.ok_or(EngineError::NotFound)?;
        Ok(started.content.at)
    }

    /// Answers of other turns that come before the answer. Takes the memory for them first, unless they are small.
    ///
    /// # Errors
    ///
    /// If the store fails, or there is no memory in time.
    pub async fn earlier(
        &self,
        memory: &dyn AnswerMemory,
    ) -> Result<Vec<EarlierAnswer>, EngineError> {
        let bytes = self.earlier.iter().map(EarlierTurn::bytes).sum();
        take_unless_small(memory, bytes).await?;
        let mut earlier = Vec::with_capacity(self.earlier.len());
        for turn in self.earlier.iter() {
            earlier.push(turn.read(&self.engine).await?);
        }
        Ok(earlier)
    }

    /// Reads the turn only if it is paused or has ended: each step of a running turn changes its session,
    /// and nothing of that is shown. Also returns the revision after which to look again.
    async fn look(
        &self,
        memory: &dyn AnswerMemory,
    ) -> Result<(Option<TurnSnapshot>, u64), EngineError> {
        let (progress, revision) = self.engine.progress(self.session, self.request).await?;
        let snapshot = match progress {
            Progress::Live => None,
            Progress::Paused | Progress::Ended => Some(self.read(memory).await?),
        };
        Ok((snapshot, revision))
    }

    /// Waits until the turn has ended, or is paused at the deadline or later.
    ///
    /// # Errors
    ///
    /// If the caller may not read it any more, or the server stops.
    pub async fn outcome(
        &self,
        deadline: Instant,
        memory: &dyn AnswerMemory,
    ) -> Result<Box<TurnSnapshot>, EngineError> {
        let mut follower = self.follower(None, deadline);
        loop {
            if let TurnEvent::Over(snapshot) = follower.next(memory).await? {
                return Ok(snapshot);
            }
        }
    }

    /// Follows the turn with the pieces of its answer. A pause is waited for until the deadline.
    pub fn follow(&self, deadline: Instant) -> TurnFollower {
        // Opened before the first look, so that no piece is missed.
        let draft = self.engine.follow_draft(self.request);
        self.follower(Some(draft), deadline)
    }

    fn follower(&self, draft: Option<DraftReader>, deadline: Instant) -> TurnFollower {
        TurnFollower {
            turn: self.clone(),
            draft,
            reads_stages: false,
            deadline,
            shown: Vec::new(),
            looked_at: None,
        }
    }

    /// Why the turn has ended without an answer. None if it has an answer, or is live.
    pub async fn failure(&self, snapshot: &TurnSnapshot) -> Option<FailedTurn> {
        let outcome = snapshot.request.ended()?.outcome;
        if outcome == RequestOutcome::Completed {
            return None;
        }
        let seen = self.sees_inside().await;
        Some(FailedTurn {
            outcome,
            alias: snapshot.request.alias(),
            error: snapshot.finished.as_ref().and_then(|stored| {
                let error = error_in(&stored.record.content.events, self.request)?;
                payload(stored, error).map(raw_bytes)
            }),
            sees_inside: seen.unwrap_or(false),
        })
    }

    /// Whether the caller may see inside the turn. The audit stream records it of an operator.
    async fn sees_inside(&self) -> Result<bool, EngineError> {
        let head = self.engine.request_head(&self.caller, self.request).await?;
        self.engine.audit_hidden(&self.caller, &head).await?;
        Ok(head.sees_hidden)
    }
}

/// Reads the events of a turn, one after the other.
#[derive(Debug)]
pub struct TurnFollower {
    turn: TurnHandle,
    /// The answer in progress. None if the caller does not read it, or all of it was read.
    draft: Option<DraftReader>,
    /// Whether changes of its stages are events.
    reads_stages: bool,
    deadline: Instant,
    /// The holds of the pause that was reported last.
    shown: Vec<HoldId>,
    /// The revision of the last look, and whether the turn was paused then. None if it is time to look.
    looked_at: Option<(u64, bool)>,
}

impl TurnFollower {
    /// Also reports changes of the stages. For clients that show them: to others, a turn that has only begun a stage has
    /// said nothing yet.
    #[must_use]
    pub fn with_stages(self, reads_stages: bool) -> Self {
        Self {
            reads_stages,
            ..self
        }
    }

    /// The next event.
    ///
    /// # Errors
    ///
    /// If the caller may not read the turn any more, there is no memory for its answer in time, or the server stops.
    /// The turn goes on.
    pub async fn next(&mut self, memory: &dyn AnswerMemory) -> Result<TurnEvent, EngineError> {
        loop {
            let Some((revision, is_paused)) = self.looked_at else {
                let (snapshot, revision) = self.turn.look(memory).await?;
                let is_paused = snapshot.as_ref().is_some_and(TurnSnapshot::is_paused);
                self.looked_at = Some((revision, is_paused));
                if snapshot.is_none() && !self.shown.is_empty() {
                    self.shown.clear();
                    return Ok(TurnEvent::Resumed);
                }
                if let Some(event) = snapshot.and_then(|snapshot| self.event_of(snapshot)) {
                    return Ok(event);
                }
                continue;
            };
            let piece = async {
                match &mut self.draft {
                    Some(draft) => draft.next_change().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                piece = piece => match piece {
                    Some(DraftChange::Text(piece)) => return Ok(TurnEvent::Delta(piece)),
                    Some(DraftChange::Stage(change)) if self.reads_stages => {
                        return Ok(TurnEvent::Stage(change));
                    }
                    Some(DraftChange::Stage(_)) => {}
                    None => self.draft = None,
                },
                changed = self.turn.engine.changed_after(self.turn.session, revision) => {
                    changed?;
                    self.looked_at = None;
                }
                () = self.turn.host.stopping() => return Err(EngineError::TurnInterrupted),
                () = tokio::time::sleep_until(self.deadline), if is_paused => self.looked_at = None,
            }
        }
    }

    /// The event that a look at the turn gives. None if there is nothing to report.
    fn event_of(&mut self, snapshot: TurnSnapshot) -> Option<TurnEvent> {
        let (has_ended, is_paused) = (snapshot.has_ended(), snapshot.is_paused());
        if has_ended {
            self.turn.engine.forget_draft(self.turn.request);
        }
        if has_ended || is_paused && Instant::now() >= self.deadline {
            return Some(TurnEvent::Over(Box::new(snapshot)));
        }
        let holds = snapshot.hold_ids();
        if !is_paused || self.shown == holds {
            return None;
        }
        self.shown = holds;
        Some(TurnEvent::Paused(Box::new(snapshot)))
    }
}

#[cfg(test)]
mod tests;
