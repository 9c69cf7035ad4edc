//! Following a turn until it has ended, or waits for a person.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::ids::HoldId;
use statehold_core::request::RequestOutcome;
use statehold_core::task::TaskStatus;
use statehold_core::time::Timestamp;
use tokio::time::Instant;

use super::TurnHandle;
use crate::api::json::{Raw, raw_bytes};
use crate::background::drafts::DraftReader;
use crate::error::EngineError;
use crate::holds::{HoldDetail, Pending};
use crate::kept::{error_in, payload};
use crate::own_work::Progress;
use crate::read::RequestDetail;

/// How many holds of a paused turn are shown.
const HOLDS_MAX: usize = 100;

/// A turn as it was read at one revision.
#[derive(Debug)]
pub struct TurnSnapshot {
    /// The request at its root, as clients see it.
    pub detail: RequestDetail,
    /// When it started.
    pub started_at: Timestamp,
    /// The open holds of a paused turn, oldest first. Empty while it runs, and when it has ended.
    pub holds: Vec<HoldDetail>,
}

impl TurnSnapshot {
    /// Whether the turn has ended.
    pub fn has_ended(&self) -> bool {
        self.detail.request.ended().is_some()
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
        let detail = self.engine.request(&self.reader, self.request).await?;
        let started_at = detail.started_at().ok_or(EngineError::NotFound)?;
        let is_paused =
            detail.task.live == Some(self.request) && detail.task.status == TaskStatus::Paused;
        let holds = if is_paused {
            self.open_holds(&detail.pending).await?
        } else {
            Vec::new()
        };
        Ok(TurnSnapshot {
            detail,
            started_at,
            holds,
        })
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
            // A chat shows the client's view also to callers who may see more, unless they ask for more.
            detail.sees_action &= self.shows_whole_holds;
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
        let detail = &snapshot.detail;
        let outcome = detail.request.ended()?.outcome;
        if outcome == RequestOutcome::Completed {
            return None;
        }
        let seen = self.engine.request(&self.caller, self.request).await;
        let finished = detail.finished.as_ref();
        Some(FailedTurn {
            outcome,
            alias: detail.request.alias(),
            error: finished.and_then(|stored| {
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
