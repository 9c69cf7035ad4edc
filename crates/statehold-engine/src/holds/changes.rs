//! What happens to holds, as it happens: each change once, for those who may see the hold.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::ids::HoldId;
use statehold_store::{HoldChange, HoldChangeKind, HoldSummary};

use super::{HoldDetail, Reach};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// How many commits are looked at in one call.
const SCAN_MAX: usize = 500;

/// A place in the order of everything that happens to holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldPosition {
    /// The place of a commit.
    pub place: u64,
    /// How many of its changes were read. One commit may decide many holds.
    pub taken: u64,
}

impl HoldPosition {
    /// After everything in a commit.
    pub fn after_all(place: u64) -> Self {
        let taken = u64::MAX;
        Self { place, taken }
    }

    fn is_before(self, change: &HoldChange) -> bool {
        change.place > self.place || change.place == self.place && change.index >= self.taken
    }
}

/// Something that happened to a hold, and the hold as it was then.
#[derive(Debug, Clone)]
pub struct HoldNews {
    /// Where to go on after it.
    pub position: HoldPosition,
    /// What happened.
    pub kind: HoldChangeKind,
    /// The hold.
    pub detail: HoldDetail,
}

impl Engine {
    /// What happened after a position to holds that the caller may see; and the position to go on
    /// from, which moves on even if nothing of it was the caller's.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn hold_feed(
        &self,
        caller: &Caller,
        after: HoldPosition,
        limit: usize,
    ) -> Result<(Vec<HoldNews>, HoldPosition), EngineError> {
        let store = &self.inner().store;
        // What is left of a commit that was read in part is found by looking at it again.
        let from = after.place - u64::from(after.taken != u64::MAX && after.place > 0);
        let tenant = caller.tenant.clone();
        let (mut changes, seen) = store.hold_changes(tenant, from, SCAN_MAX).await?;
        changes.retain(|change| after.is_before(change));
        let ids: BTreeSet<HoldId> = changes.iter().map(|change| change.hold).collect();
        let rows = if ids.is_empty() {
            Vec::new()
        } else {
            store.holds(ids.into_iter().collect()).await?
        };
        let rows: BTreeMap<HoldId, HoldSummary> = rows
            .into_iter()
            .filter(|row| Reach::of(caller, row).sees)
            .map(|row| (row.hold.id, row))
            .collect();
        let is_whole = |change: &HoldChange| rows.contains_key(&change.hold);
        let mut end = HoldPosition::after_all(seen.max(after.place));
        let mut told: Vec<HoldChange> = changes.into_iter().filter(is_whole).collect();
        if told.len() > limit {
            told.truncate(limit);
            end = told.last().map_or(after, position);
        }
        let then = told.iter().map(|change| as_of(&rows[&change.hold], change));
        let details = self.hold_details(caller, then.collect()).await?;
        let news = told.iter().zip(details).map(|(change, detail)| HoldNews {
            position: position(change),
            kind: change.kind,
            detail,
        });
        Ok((news.collect(), end))
    }
}

fn position(change: &HoldChange) -> HoldPosition {
    HoldPosition {
        place: change.place,
        taken: change.index + 1,
    }
}

/// The hold as the change left it, whatever has happened since.
fn as_of(row: &HoldSummary, change: &HoldChange) -> HoldSummary {
    let mut then = row.clone();
    let is_done = |revision: u64| revision <= change.revision;
    then.decision = row.decision.filter(|(_, by)| is_done(*by));
    then.hold.votes.retain(|_, vote| is_done(vote.revision));
    then.result = row.result.filter(|result| is_done(result.revision));
    then
}
