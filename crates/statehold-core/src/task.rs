//! Tasks: one job of one agent inside a session, open over many requests.

use serde::{Deserialize, Serialize};

use crate::ids::{RequestId, TaskId};
use crate::memory::AgentPath;
use crate::name::Name;
use crate::request::RequestOutcome;

/// Status of a task, derived from its requests and holds.
// The stored status is a cache of that derivation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// An agent works on it, or will.
    Running,
    /// Waits for a person, in this task or in one below it.
    Paused,
    /// Nothing to do; open for the next request.
    Idle,
    /// Closed after its work was done.
    Completed,
    /// Closed after a failure.
    Failed,
    /// Stopped for good, with everything below it.
    Cancelled,
}

impl TaskStatus {
    /// Whether the status can never change again.
    pub fn is_final(self) -> bool {
        match self {
            Self::Running | Self::Paused | Self::Idle => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// Event that closes a task automatically.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CloseOn {
    /// Never; a caller closes the task.
    #[default]
    Never,
    /// The first answer.
    Reply,
    /// The first failure.
    Failure,
}

/// Place of a task in the tree: the request that first spawned it, and that request's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentLink {
    /// The request that first spawned this one.
    pub request: RequestId,
    /// The task above.
    pub task: TaskId,
}

/// An open task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The id.
    pub id: TaskId,
    /// The n of the alias `Tn`.
    pub number: u64,
    /// The agent that does the job.
    pub agent: Name,
    /// The agents from the root task down to this one. Forks keep it.
    pub path: AgentPath,
    /// Its place in the tree. None for root tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentLink>,
    /// Cached status.
    pub status: TaskStatus,
    /// Its one live request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<RequestId>,
    /// How its last request ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_outcome: Option<RequestOutcome>,
    /// Its last request, if that failed: another may go on from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<RequestId>,
    /// The event that closes it automatically.
    pub close_on: CloseOn,
    /// The revision that opened it.
    pub opened_at: u64,
}
