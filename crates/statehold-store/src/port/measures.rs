//! Numbers about a store and the work in it, for operators.

use statehold_core::ids::{HoldId, RequestId};
use statehold_core::name::Name;

use crate::durations::DurationCounts;

/// Holds and requests that wait for people and for workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkTotals {
    /// How many holds are open.
    pub open_holds: u64,
    /// The one that was opened first.
    pub oldest_hold: Option<HoldId>,
    /// The agents with requests that wait for a worker, by name.
    pub queues: Vec<AgentQueue>,
}

/// The requests of an agent that wait for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentQueue {
    /// The agent.
    pub agent: Name,
    /// How many there are.
    pub requests: u64,
    /// The one that was started first. None if its row is damaged.
    pub oldest: Option<RequestId>,
}

/// Times and sizes of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreMeasures {
    /// From handing a commit to the store until it was durable.
    pub commits: DurationCounts,
    /// Writing a group of commits to the disk, until the disk confirmed it.
    pub syncs: DurationCounts,
    /// The size of the data file.
    pub database_bytes: Option<u64>,
    /// The size of the write-ahead log.
    pub wal_bytes: Option<u64>,
}
