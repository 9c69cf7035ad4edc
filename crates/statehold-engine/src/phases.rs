//! Phases of a pipeline as its steps record them, so that the answers of a turn can be read while it goes on.

use serde::{Deserialize, Serialize};
use statehold_core::ids::RequestId;
use statehold_core::name::Name;

/// The name of the steps that record phases.
pub const PHASE_STEP: &str = "phase";

/// The begin of one run of a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PhaseBegin {
    /// The phase.
    pub phase: Name,
    /// Its agent.
    pub agent: Name,
    /// 1, and 1 more after each loop-back.
    pub cycle: u32,
    /// 1, and 1 more after each failure of the phase in this cycle.
    pub attempt: u32,
    /// Phases whose answers did not fit into the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clipped: Vec<String>,
}

/// The end of one run of a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PhaseEnd {
    /// The phase.
    pub phase: Name,
    /// The cycle of its begin.
    pub cycle: u32,
    /// The attempt of its begin.
    pub attempt: u32,
    /// How it ended.
    pub status: PhaseStatus,
    /// The request of the agent, whose items have its answer.
    pub request_id: RequestId,
    /// The error code of a phase that did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Whether the answer asked for one loop-back too many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loop_limit: bool,
}

/// How a run of a phase ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseStatus {
    /// It gave an answer.
    Completed,
    /// It failed, and runs again or fails the turn.
    Failed,
    /// It failed, and the turn goes on without it.
    Skipped,
}

/// The end of a phase, if one ran before, and the begin of the next.
#[derive(Debug, Serialize, Deserialize)]
pub struct PhaseStep {
    /// The phase that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<PhaseEnd>,
    /// The phase that begins.
    pub began: PhaseBegin,
}
