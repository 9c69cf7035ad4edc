//! The life of a request: one invocation of an agent within a task.
//!
//! Lease and status are separate. A lease says who may write; a status says what the request waits
//! for. While a request is held or waits for its children its lease may lapse silently.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::hold::{DecideBy, Effect, Risk};
use crate::ids::{HoldId, ItemId, RequestId, TaskId};
use crate::memory::Memory;
use crate::principal::Principal;
use crate::time::Timestamp;

/// How far a restored copy of the data raises a fence above the one in the backup.
///
/// The server that the backup was made of may still run, and gives out fences from the same number on, one
/// per claim. A request would have to be claimed 2^32 times there before a worker of one copy showed a fence
/// that the other copy gives out too. A fence stays below 2^53, where JSON readers lose precision, for two
/// million restores one after the other.
pub const FENCE_RAISE: u64 = 1 << 32;

/// Status of a request that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(utoipa::ToSchema),
    schema(as = LiveRequestStatus)
)]
#[serde(rename_all = "snake_case")]
pub enum LiveStatus {
    /// Waits for a worker.
    Queued,
    /// A worker carries it out.
    Running,
    /// Waits for a person.
    Held,
    /// Waits for child requests.
    Waiting,
}

/// Outcome of an ended request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// Ended with an answer.
    Completed,
    /// Ended with an error.
    Failed,
    /// Cancelled before it completed.
    Cancelled,
}

/// Status of a request, live or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// Waits for a worker.
    Queued,
    /// A worker carries it out.
    Running,
    /// Waits for a person.
    Held,
    /// Waits for child requests.
    Waiting,
    /// Ended with an answer.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended by a cancellation.
    Cancelled,
}

impl RequestStatus {
    /// Whether the request has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl From<LiveStatus> for RequestStatus {
    fn from(status: LiveStatus) -> Self {
        match status {
            LiveStatus::Queued => Self::Queued,
            LiveStatus::Running => Self::Running,
            LiveStatus::Held => Self::Held,
            LiveStatus::Waiting => Self::Waiting,
        }
    }
}

impl From<RequestOutcome> for RequestStatus {
    fn from(outcome: RequestOutcome) -> Self {
        match outcome {
            RequestOutcome::Completed => Self::Completed,
            RequestOutcome::Failed => Self::Failed,
            RequestOutcome::Cancelled => Self::Cancelled,
        }
    }
}

/// The right to write for a request, until it lapses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Who holds it.
    pub worker: Principal,
    /// How long each renewal lasts.
    pub ttl_ms: u64,
    /// Until when it was granted. Heartbeats extend it in memory only.
    pub until: Timestamp,
}

/// How far a recorded tool call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CallState {
    /// Waits for an approval; must not run.
    Proposed,
    /// May have run since the given fence; unknown until a result is recorded.
    Started {
        /// The fence under which it was started last.
        fence: u64,
    },
    /// Approved while no worker held the lease. The call becomes `Started` when the request runs
    /// again, under the fence of the worker that may run it, so the loss of that worker is noticed.
    Released,
    /// Asked a person whether it ran.
    Unknown {
        /// The `reconcile` hold.
        hold: HoldId,
    },
    /// A person refused it.
    Refused,
    /// A person gave the result.
    Answered,
    /// A person found out that it ran.
    Confirmed,
}

/// A tool call without a result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenCall {
    /// Whether calling again with the same key is harmless.
    pub idempotent: bool,
    /// Whether it needed an approval.
    pub gated: bool,
    /// How far it is.
    pub state: CallState,
    /// The digest that was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The terms of its approval hold. A later `reconcile` hold has the same terms, so its deciders
    /// need the same right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<AskedAbout>,
}

/// The terms under which people were asked about a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedAbout {
    /// Who may decide.
    pub decide_by: DecideBy,
    /// The effect of the action on the outside world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// The policy it was opened under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Digest>,
    /// The risk of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
}

/// A request that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveRequest {
    /// The id.
    pub id: RequestId,
    /// The n of the alias `Rn`.
    pub number: u64,
    /// The record that started it.
    pub started_by: u64,
    /// The users and keys that started it, or a request above it. They may not decide its holds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub starters: BTreeSet<Principal>,
    /// The task it belongs to.
    pub task: TaskId,
    /// The request that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RequestId>,
    /// How many requests are above it.
    pub depth: u16,
    /// The status.
    pub status: LiveStatus,
    /// The number a worker must show. Grows with each claim, and far more with each restore.
    pub fence: u64,
    /// Who may write. None before the first claim and while it waits for the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Who held a lease last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_worker: Option<Principal>,
    /// Live child requests. Derived from the children's `parent`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub children: BTreeSet<RequestId>,
    /// Open holds of this request. Derived from the holds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub holds: BTreeSet<HoldId>,
    /// How many holds it ever opened.
    pub holds_opened: u32,
    /// Tool calls without a result.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<ItemId, OpenCall>,
    /// Whether a tool ran for it, or for a request below it that has ended: a result says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ran: bool,
    /// The memory of its path before the record that started it. It stays the same to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// The facts of a failed request that the request which continues it takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// The memory of the failed request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Whether a tool ran for it.
    pub ran: bool,
    /// The failed request.
    pub request: RequestId,
}

/// The published transition table: every status a request may go to, from where.
pub const REQUEST_TRANSITIONS: &[(LiveStatus, LiveStatus)] = &[
    (LiveStatus::Queued, LiveStatus::Running),
    (LiveStatus::Queued, LiveStatus::Held), // A lost worker's call is asked about on claim.
    (LiveStatus::Running, LiveStatus::Running), // Takeover of a lapsed lease.
    (LiveStatus::Running, LiveStatus::Queued),
    (LiveStatus::Running, LiveStatus::Held),
    (LiveStatus::Running, LiveStatus::Waiting),
    (LiveStatus::Held, LiveStatus::Running),
    (LiveStatus::Held, LiveStatus::Queued),
    (LiveStatus::Held, LiveStatus::Waiting),
    (LiveStatus::Waiting, LiveStatus::Running),
    (LiveStatus::Waiting, LiveStatus::Queued),
    (LiveStatus::Waiting, LiveStatus::Held),
];

impl LiveRequest {
    /// Whether it is an exchange if it ends like this: its agent knows of it from then on.
    pub fn is_exchange(&self, outcome: RequestOutcome) -> bool {
        match outcome {
            RequestOutcome::Completed => true,
            RequestOutcome::Failed | RequestOutcome::Cancelled => self.ran,
        }
    }

    /// Whether the lease is live at `now`, given how far heartbeats extended it.
    pub fn has_live_lease(&self, now: Timestamp, extended_until: Option<Timestamp>) -> bool {
        self.lease
            .is_some_and(|lease| now < extended_until.unwrap_or(lease.until).max(lease.until))
    }

    /// Tool calls that may have run and cannot safely run again, or ran again and again without an answer.
    pub fn uncertain_calls<'a>(
        &'a self,
        unanswered: &'a BTreeSet<ItemId>,
    ) -> impl Iterator<Item = ItemId> + 'a {
        let started = self
            .calls
            .iter()
            .filter(|(_, call)| matches!(call.state, CallState::Started { .. }));
        started
            .filter(|(id, call)| !call.idempotent || unanswered.contains(id))
            .map(|(id, _)| *id)
    }
}
