//! Holds in lists: orders, summaries and changes.

use serde::{Deserialize, Serialize};
use statehold_core::hold::{Decision, Hold, Risk};
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId, UserId};
use statehold_core::item::CallOutcome;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;

use super::SessionSummary;

/// In which order to list holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HoldOrder {
    /// High risk first, then the earliest deadline, then the oldest. Only open holds are urgent.
    #[default]
    Urgency,
    /// The first first.
    Oldest,
    /// The last first.
    Newest,
}

/// Where a hold stands in a list. Ordered by urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HoldPlace {
    /// 0 for high risk, up to 3 for none.
    pub risk: u8,
    /// The deadline; the end of time if there is none.
    pub deadline: Timestamp,
    /// The order of opening; of decided holds, the order of decisions.
    pub number: u64,
}

impl HoldPlace {
    /// The place of a hold that was opened, or decided, as the n-th.
    pub fn of(hold: &Hold, number: u64) -> Self {
        let risk = match hold.risk {
            Some(Risk::High) => 0,
            Some(Risk::Medium) => 1,
            Some(Risk::Low) => 2,
            None => 3,
        };
        let never = Timestamp::from_micros(i64::MAX);
        Self {
            risk,
            deadline: hold.deadline.unwrap_or(never),
            number,
        }
    }
}

/// Which holds to list.
#[derive(Debug, Clone)]
pub struct HoldQuery {
    /// The isolation wall.
    pub tenant: Name,
    /// Only in sessions of this user.
    pub user: Option<UserId>,
    /// Only in this session.
    pub session: Option<SessionId>,
    /// In this order.
    pub order: HoldOrder,
    /// Continue after this place of the previous page.
    pub after: Option<HoldPlace>,
    /// The maximum size of the page.
    pub limit: usize,
}

/// A hold in a list, with everything that says who may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldSummary {
    /// Its place in the list, for the next page.
    pub place: HoldPlace,
    /// The session it waits in.
    pub session: SessionSummary,
    /// The agent that asks.
    pub agent: Name,
    /// The hold.
    pub hold: Hold,
    /// The decision that stands, and the revision that made it.
    pub decision: Option<(Decision, u64)>,
    /// The result of its tool call, once the hold is decided.
    pub result: Option<CallResult>,
}

/// Result of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallResult {
    /// When it was recorded.
    pub at: Timestamp,
    /// The outcome of the call.
    pub outcome: CallOutcome,
    /// The revision that recorded it.
    pub revision: u64,
}

/// A change of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldChange {
    /// The place of the commit.
    pub place: u64,
    /// The how-manieth change of a hold in that commit, from 0.
    pub index: u64,
    /// The session.
    pub session: SessionId,
    /// The revision that did it.
    pub revision: u64,
    /// The hold.
    pub hold: HoldId,
    /// The kind of the change.
    pub kind: HoldChangeKind,
}

/// Kind of a change of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldChangeKind {
    /// The hold was opened.
    Opened,
    /// One of several people approved.
    Voted,
    /// The hold was decided.
    Decided,
}

/// One request in the lineage of another, and its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineageStep {
    /// The request.
    pub request: RequestId,
    /// The n of its alias.
    pub number: u64,
    /// Its task.
    pub task: TaskId,
    /// The n of the task's alias.
    pub task_number: u64,
    /// The agent of the task.
    pub agent: Name,
}
