//! Waiting for a turn: until it has ended, or waits for a person.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::ids::HoldId;
use statehold_core::task::TaskStatus;
use statehold_engine::{HoldDetail, Pending, Progress, RequestDetail};
use tokio::time::Instant;

use super::errors::failure;
use super::said::Sign;
use super::turn::Place;
use crate::http::call::App;
use crate::http::problem::{Code, Problem};
use statehold_engine::api::request::error_of;

/// How many holds of a paused turn are told.
const HOLDS_MAX: usize = 100;

/// A turn as it is.
pub(crate) struct Look {
    pub(crate) detail: RequestDetail,
    pub(crate) sign: Sign,
    /// What it waits for people with. Empty while it goes on, and when it has ended.
    pub(crate) holds: Vec<HoldDetail>,
}

impl Look {
    pub(crate) fn is_paused(&self) -> bool {
        !self.holds.is_empty()
    }

    pub(crate) fn hold_ids(&self) -> Vec<HoldId> {
        self.holds.iter().map(|detail| detail.hold.id).collect()
    }
}

impl Place {
    /// Looks at the turn.
    pub(crate) async fn look(&self) -> Result<Look, Problem> {
        let detail = self.engine.request(&self.reader, self.request).await?;
        let sign = Sign::of(&detail).ok_or_else(Problem::not_found)?;
        let is_paused =
            detail.task.live == Some(self.request) && detail.task.status == TaskStatus::Paused;
        let holds = if is_paused {
            self.open_holds(&detail.pending).await?
        } else {
            Vec::new()
        };
        Ok(Look {
            detail,
            sign,
            holds,
        })
    }

    /// What the turn and everything below it waits for, the oldest first; whatever else is open in the
    /// session.
    async fn open_holds(&self, pending: &Pending) -> Result<Vec<HoldDetail>, Problem> {
        let asking: BTreeSet<_> = pending.holds.iter().map(|open| open.hold.request).collect();
        let mut known = BTreeMap::new();
        for request in asking {
            let holds = self.engine.holds_of(&self.caller, request).await?;
            known.extend(holds.into_iter().map(|detail| (detail.hold.id, detail)));
        }
        let told = pending.holds.iter().take(HOLDS_MAX);
        let mut holds: Vec<_> = told
            .filter_map(|open| known.remove(&open.hold.id))
            .filter(|detail| detail.closed.is_none())
            .collect();
        for detail in &mut holds {
            // A chat shows what clients see, also to those who may see more elsewhere; unless they ask
            // for it, because they let people decide elsewhere.
            detail.sees_action &= self.tells_own_holds;
            detail.opened = None;
        }
        Ok(holds)
    }

    /// Looks at the turn if there is something to see: it has ended, or waits for a person. While it
    /// goes on, every step of it is a change of its session, and nobody has to read for that. Also gives
    /// the revision after which to look again.
    pub(crate) async fn glance(&self) -> Result<(Option<Look>, u64), Problem> {
        let (progress, revision) = self.engine.progress(self.session, self.request).await?;
        let look = match progress {
            Progress::Live => None,
            Progress::Paused | Progress::Ended => Some(self.look().await?),
        };
        Ok((look, revision))
    }

    /// Waits until the turn has ended; or is paused, and still is when the time is over.
    pub(crate) async fn until_told(&self, app: &App, wait_until: Instant) -> Result<Look, Problem> {
        loop {
            let (look, revision) = self.glance().await?;
            let is_paused = look.as_ref().is_some_and(Look::is_paused);
            let is_over = Instant::now() >= wait_until;
            if let Some(look) = look
                && (look.sign.ended.is_some() || is_paused && is_over)
            {
                return Ok(look);
            }
            tokio::select! {
                changed = self.engine.changed_after(self.session, revision) => changed?,
                () = tokio::time::sleep_until(wait_until), if is_paused => {}
                () = app.engine.stopping() => return Err(stopping()),
            }
        }
    }

    /// Why a turn that has ended has no answer.
    pub(crate) async fn failure(&self, look: &Look) -> Option<Problem> {
        let (outcome, ..) = look.sign.ended?;
        let alias = look.sign.alias();
        // What went wrong inside is told to those who may see inside, by a right that is audited.
        let seen = self.engine.request(&self.caller, self.request).await;
        let sees_inside = seen.as_ref().is_ok_and(|detail| detail.sees_hidden);
        let finished = look.detail.finished.as_ref();
        let error = finished.and_then(|stored| error_of(stored, self.request));
        Some(failure(outcome, &alias, error.as_ref(), sees_inside))
    }
}

pub(crate) fn stopping() -> Problem {
    Problem::new(
        Code::Stopping,
        "the server is stopping; nothing is lost, send the same message again for the answer",
    )
}

#[cfg(test)]
mod tests;
