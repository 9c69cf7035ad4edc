//! Following a turn until it has ended, or waits for a person.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::ids::HoldId;
use statehold_core::request::RequestOutcome;
use statehold_core::task::TaskStatus;
use statehold_core::time::Timestamp;
use statehold_store::StoredRecord;
use tokio::time::Instant;

use super::{AgentReply, TurnHandle};
use crate::api::json::{Raw, raw_bytes};
use crate::background::drafts::DraftReader;
use crate::bodies::{error_in, payload};
use crate::error::EngineError;
use crate::holds::{HoldDetail, Pending};
use crate::own_work::Progress;
use crate::read::StoredRequest;

/// How many holds of a paused turn are shown.
const HOLDS_MAX: usize = 100;
/// How many records of a turn are read at a time, at most.
pub(super) const RECORDS_PAGE: usize = 200;

/// A turn as it was read at one revision.
#[derive(Debug)]
pub struct TurnSnapshot {
    /// The request at its root.
    pub(super) request: StoredRequest,
    /// The first records of the session from the start of the turn on.
    pub(super) records: Vec<StoredRecord>,
    /// The record that ended it, if it is not among the first.
    finished: Option<StoredRecord>,
    /// The revision that it was read at.
    pub(super) revision: u64,
    /// When it started.
    pub started_at: Timestamp,
    /// The open holds of a paused turn, oldest first. Empty while it runs, and when it has ended.
    pub holds: Vec<HoldDetail>,
}

impl TurnSnapshot {
    /// Whether the turn has ended.
    pub fn has_ended(&self) -> bool {
        self.request.ended().is_some()
    }

    /// The reply of a turn that has completed. Empty if it has none.
    pub fn reply(&self, with_calls: bool) -> AgentReply {
        AgentReply::of(self.request.id(), self.finished(), with_calls)
    }

    /// The record that ended it.
    fn finished(&self) -> Option<&StoredRecord> {
        let ended_by = self.request.ended()?.ended_by;
        let mut records = self.records.iter();
        let first = records.find(|stored| stored.record.content.seq == ended_by);
        first.or(self.finished.as_ref())
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

/// An event of a turn.
#[derive(Debug)]
pub enum TurnEvent {
    /// The next piece of the answer while the agent writes it. It is a draft: the committed answer counts.
    Delta(String),
    /// The turn waits for people, and the caller waits too: more events follow.
    Paused(Box<TurnSnapshot>),
    /// The last event: the turn has ended, or waits for people and the caller does not wait any longer.
    Over(Box<TurnSnapshot>),
}

impl TurnHandle {
    /// Reads the turn.
    ///
    /// # Errors
    ///
    /// If the caller may not read it any more.
    pub async fn read(&self) -> Result<TurnSnapshot, EngineError> {
        let (engine, session) = (&self.engine, self.session);
        let state = engine.readable(&self.reader, session).await?;
        let request = engine.find_request(&state, self.request).await?;
        let before = request.started_by().saturating_sub(1);
        let records = engine.records_after(session, before, RECORDS_PAGE).await?;
        let started = records.first().map(|stored| &stored.record.content);
        let started = started.filter(|content| content.seq == request.started_by());
        let started_at = started.ok_or(EngineError::NotFound)?.at;
        let mut snapshot = TurnSnapshot {
            request,
            records,
            finished: None,
            revision: state.revision,
            started_at,
            holds: Vec::new(),
        };
        if let Some(ended) = snapshot.request.ended() {
            if snapshot.finished().is_none() {
                snapshot.finished = engine.record(session, ended.ended_by).await?;
            }
            return Ok(snapshot);
        }
        let task = state.task_of(self.request);
        if task.is_some_and(|task| task.status == TaskStatus::Paused) {
            let holds = state.holds_below(self.request);
            let pending = engine.pending_of(&state, holds).await?;
            snapshot.holds = self.open_holds(&pending).await?;
        }
        Ok(snapshot)
    }

    /// When the turn started.
    ///
    /// # Errors
    ///
    /// If the caller may not read it any more.
    pub async fn started_at(&self) -> Result<Timestamp, EngineError> {
        match self.started_at {
            Some(started_at) => Ok(started_at),
            None => Ok(self.read().await?.started_at),
        }
    }

    /// The open holds of the turn and of everything below it, oldest first; not those of other turns.
    async fn open_holds(&self, pending: &Pending) -> Result<Vec<HoldDetail>, EngineError> {
        let asking: BTreeSet<_> = pending.holds.iter().map(|open| open.hold.request).collect();
        let mut known = BTreeMap::new();
        for request in asking {
            let holds = self.engine.holds_of(&self.caller, request).await?;
            known.extend(holds.into_iter().map(|detail| (detail.hold.id, detail)));
        }
        let shown = pending.holds.iter().take(HOLDS_MAX);
        let mut holds: Vec<_> = shown
            .filter_map(|open| known.remove(&open.hold.id))
            .filter(|detail| detail.closed.is_none())
            .collect();
        for detail in &mut holds {
            // Only a worker with the lease gets the arguments that a policy hides, and not in a chat.
            detail.opened = None;
        }
        Ok(holds)
    }

    /// Reads the turn only if it is paused or has ended: each step of a running turn changes its session,
    /// and nothing of that is shown. Also returns the revision after which to look again.
    async fn look(&self) -> Result<(Option<TurnSnapshot>, u64), EngineError> {
        let (progress, revision) = self.engine.progress(self.session, self.request).await?;
        let snapshot = match progress {
            Progress::Live => None,
            Progress::Paused | Progress::Ended => Some(self.read().await?),
        };
        Ok((snapshot, revision))
    }

    /// Waits until the turn has ended, or is paused at the deadline or later.
    ///
    /// # Errors
    ///
    /// If the caller may not read it any more, or the server stops.
    pub async fn outcome(&self, deadline: Instant) -> Result<Box<TurnSnapshot>, EngineError> {
        let mut follower = self.follower(None, deadline);
        loop {
            if let TurnEvent::Over(snapshot) = follower.next().await? {
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
        let seen = self.engine.request(&self.caller, self.request).await;
        Some(FailedTurn {
            outcome,
            alias: snapshot.request.alias(),
            error: snapshot.finished().and_then(|stored| {
                let error = error_in(&stored.record.content.events, self.request)?;
                payload(stored, error).map(raw_bytes)
            }),
            sees_inside: seen.is_ok_and(|detail| detail.sees_hidden),
        })
    }
}

/// Reads the events of a turn, one after the other.
#[derive(Debug)]
pub struct TurnFollower {
    turn: TurnHandle,
    /// The answer in progress. None if the caller does not read it, or all of it was read.
    draft: Option<DraftReader>,
    deadline: Instant,
    /// The holds of the pause that was reported last.
    shown: Vec<HoldId>,
    /// The revision of the last look, and whether the turn was paused then. None if it is time to look.
    looked_at: Option<(u64, bool)>,
}

impl TurnFollower {
    /// The next event.
    ///
    /// # Errors
    ///
    /// If the caller may not read the turn any more, or the server stops. The turn goes on.
    pub async fn next(&mut self) -> Result<TurnEvent, EngineError> {
        loop {
            let Some((revision, is_paused)) = self.looked_at else {
                let (snapshot, revision) = self.turn.look().await?;
                let is_paused = snapshot.as_ref().is_some_and(TurnSnapshot::is_paused);
                self.looked_at = Some((revision, is_paused));
                if let Some(event) = snapshot.and_then(|snapshot| self.event_of(snapshot)) {
                    return Ok(event);
                }
                continue;
            };
            let piece = async {
                match &mut self.draft {
                    Some(draft) => draft.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                piece = piece => match piece {
                    Some(piece) => return Ok(TurnEvent::Delta(piece)),
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
