//! The feed of hold changes: each change once, for callers that may see the hold.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use statehold_core::ids::HoldId;
use statehold_store::{HoldChange, HoldChangeKind, HoldSummary, PageLimit};

use super::{HoldDetail, Reach, payload_bytes, sound};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// How many commits one call reads.
const SCAN_MAX: usize = 500;
/// How many changes one call looks at.
const LOOKED_AT_MAX: usize = 256;

/// A position in the order of all hold changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HoldPosition {
    /// The position of a commit.
    place: u64,
    /// How many changes of that commit were read. One commit may decide many holds.
    taken: u64,
}

impl HoldPosition {
    /// The position after all changes of a commit.
    pub(crate) fn after_all(place: u64) -> Self {
        let taken = u64::MAX;
        Self { place, taken }
    }

    fn is_before(self, change: &HoldChange) -> bool {
        change.place > self.place || change.place == self.place && change.index >= self.taken
    }
}

/// A change of a hold, and the hold as of that change.
#[derive(Debug, Clone)]
pub(crate) struct HoldNews {
    /// The position to continue from.
    pub(crate) position: HoldPosition,
    /// The kind of change.
    pub(crate) kind: HoldChangeKind,
    /// The hold.
    pub(crate) detail: HoldDetail,
}

impl Engine {
    /// Changes after a position of holds that the caller may see, and the position to continue from. The
    /// position advances even past changes that the caller may not see.
    ///
    /// # Errors
    ///
    /// [`EngineError::PageTooSmall`] if the next change does not fit.
    pub(crate) async fn hold_feed(
        &self,
        caller: &Caller,
        after: HoldPosition,
        limit: PageLimit,
    ) -> Result<(Vec<HoldNews>, HoldPosition), EngineError> {
        let store = &self.inner().store;
        // If the last call read a commit only in part, read that commit again.
        let from = after.place - u64::from(after.taken != u64::MAX && after.place > 0);
        let tenant = caller.tenant.clone();
        let (mut changes, seen) = store.hold_changes(tenant, from, SCAN_MAX).await?;
        changes.retain(|change| after.is_before(change));
        let mut end = HoldPosition::after_all(seen.max(after.place));
        // One commit may decide thousands of holds.
        if changes.len() > LOOKED_AT_MAX {
            changes.truncate(LOOKED_AT_MAX);
            end = changes.last().map_or(after, position);
        }
        let ids: BTreeSet<HoldId> = changes.iter().map(|change| change.hold).collect();
        let rows = if ids.is_empty() {
            Vec::new()
        } else {
            let read = |ids| Box::pin(async { Ok(store.holds(ids).await?) }) as BoxFuture<'_, _>;
            sound(ids.into_iter().collect(), read).await?
        };
        let rows: BTreeMap<HoldId, HoldSummary> = rows
            .into_iter()
            .filter(|row| Reach::of(caller, row).sees)
            .map(|row| (row.hold.id, row))
            .collect();
        let is_whole = |change: &HoldChange| rows.contains_key(&change.hold);
        let mut told: Vec<HoldChange> = changes.into_iter().filter(is_whole).collect();
        let fitting = fitting_changes(&told, &rows, limit)?;
        if told.len() > fitting {
            told.truncate(fitting);
            end = told.last().map_or(after, position);
        }
        let news = |told| Box::pin(self.hold_news(caller, told, &rows)) as BoxFuture<'_, _>;
        Ok((sound(told, news).await?, end))
    }

    async fn hold_news(
        &self,
        caller: &Caller,
        told: Vec<HoldChange>,
        rows: &BTreeMap<HoldId, HoldSummary>,
    ) -> Result<Vec<HoldNews>, EngineError> {
        let then = told.iter().map(|change| as_of(&rows[&change.hold], change));
        let details = self.hold_details(caller, then.collect()).await?;
        let news = told.iter().zip(details).map(|(change, detail)| HoldNews {
            position: position(change),
            kind: change.kind,
            detail,
        });
        Ok(news.collect())
    }
}

/// How many of the first changes fit.
///
/// # Errors
///
/// [`EngineError::PageTooSmall`] if the first one does not.
fn fitting_changes(
    told: &[HoldChange],
    rows: &BTreeMap<HoldId, HoldSummary>,
    limit: PageLimit,
) -> Result<usize, EngineError> {
    let mut left = limit.bytes;
    for (fitting, change) in told.iter().take(limit.entries).enumerate() {
        let bytes = payload_bytes(&as_of(&rows[&change.hold], change));
        left = match left.checked_sub(bytes) {
            Some(left) => left,
            None if fitting == 0 => return Err(EngineError::PageTooSmall { bytes }),
            None => return Ok(fitting),
        };
    }
    Ok(told.len().min(limit.entries))
}

fn position(change: &HoldChange) -> HoldPosition {
    HoldPosition {
        place: change.place,
        taken: change.index + 1,
    }
}

/// The hold as the change left it, without later changes.
fn as_of(row: &HoldSummary, change: &HoldChange) -> HoldSummary {
    let mut then = row.clone();
    let is_done = |revision: u64| revision <= change.revision;
    then.decision = row.decision.filter(|(_, by)| is_done(*by));
    then.hold.votes.retain(|_, vote| is_done(vote.revision));
    then.result = row.result.filter(|result| is_done(result.revision));
    then
}
