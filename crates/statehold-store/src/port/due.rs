//! Deadlines that have passed.

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
    /// The life of the hidden payloads of the session.
    Hidden,
}

impl DueKind {
    /// The order of kinds that are due in the same moment.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Lease(_) => 0,
            Self::Hold(_) => 1,
            Self::Session => 2,
            Self::Hidden => 3,
        }
    }
}

/// The place of a deadline among those that have passed. The store that gave it goes on behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DuePlace {
    pub(crate) at: Timestamp,
    pub(crate) rank: u8,
    pub(crate) row: u128,
}

/// A page of deadlines that have passed, in the order of their times.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DuePage {
    /// The deadlines. Damaged ones are left out.
    pub due: Vec<Due>,
    /// Where the next page begins, if there may be one.
    pub next: Option<DuePlace>,
}

impl DuePage {
    /// The first `limit` of some rows. Each kind of them was read up to the limit, or `is_whole`.
    pub(crate) fn of(mut rows: Vec<(DuePlace, Option<Due>)>, limit: usize, is_whole: bool) -> Self {
        rows.sort_by_key(|(place, _)| *place);
        let is_whole = is_whole && rows.len() <= limit;
        rows.truncate(limit);
        let last = rows.last().map(|(place, _)| *place);
        Self {
            next: last.filter(|_| !is_whole),
            due: rows.into_iter().filter_map(|(_, due)| due).collect(),
        }
    }
}
