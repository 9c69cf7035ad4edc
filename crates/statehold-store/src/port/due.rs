//! Deadlines that have passed.

use std::collections::HashMap;

use statehold_core::ids::{HoldId, RequestId, SessionId, UserId};
use statehold_core::name::Name;
use statehold_core::time::Timestamp;

/// A deadline that has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The session.
    pub session: SessionId,
    /// The tenant of the session.
    pub tenant: Name,
    /// The user of the session.
    pub user: UserId,
    /// When it was due.
    pub at: Timestamp,
    /// The kind of the deadline.
    pub kind: DueKind,
}

/// Kind of a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueKind {
    /// The lease of a running request.
    Lease(RequestId),
    /// The deadline of a hold.
    Hold(HoldId),
    /// The life of the session.
    Session,
}

/// Keeps `limit` deadlines, so that every user gets a share: first the earliest of each user, then the
/// second of each, and so on.
pub(crate) fn share(mut due: Vec<Due>, limit: usize) -> Vec<Due> {
    due.sort_by_key(|due| due.at);
    let mut counts: HashMap<UserId, usize> = HashMap::new();
    let ranks = due.iter().map(|due| {
        let count = counts.entry(due.user).or_default();
        *count += 1;
        *count
    });
    let ranks: Vec<usize> = ranks.collect();
    let mut ranked: Vec<(usize, Due)> = ranks.into_iter().zip(due).collect();
    ranked.sort_by_key(|(rank, due)| (*rank, due.at));
    ranked.truncate(limit);
    ranked.into_iter().map(|(_, due)| due).collect()
}
