//! Declaration of a pipeline: its phases, and how it goes on from each of them.

use regex::Regex;
use serde::{Deserialize, Serialize};
use statehold_core::name::Name;

/// Most phases of one pipeline.
pub const PHASES_MAX: usize = 64;

/// A coordinator that runs agents one after another.
#[derive(Debug)]
pub struct PipelineSpec {
    /// The phases, in order. Never empty, with unique names.
    pub phases: Vec<PhaseSpec>,
    /// Most loop-backs per turn.
    pub loops_max: u32,
    /// How a turn goes on from an answer that asks for another loop-back.
    pub on_loop_limit: LoopLimitPolicy,
    /// Phase whose answer is the answer of the pipeline. None for the last one that answered.
    pub answer_from: Option<Name>,
    /// Whether the answers of its phases are messages of the transcript.
    pub show_phases: bool,
}

/// One phase of a pipeline.
#[derive(Debug)]
pub struct PhaseSpec {
    /// Name, unique in the pipeline.
    pub name: Name,
    /// The agent that runs.
    pub agent: Name,
    /// The message that the agent gets.
    pub input: PhaseInput,
    /// The answers of this turn that the agent gets beside the message.
    pub sees: SeenAnswers,
    /// Additional instructions for the agent.
    pub instructions: Option<String>,
    /// How often a failed phase runs again.
    pub retries: u32,
    /// How the turn goes on when the phase has failed for the last time.
    pub on_error: PhaseErrorPolicy,
    /// Rules for going back, in order.
    pub loop_back: Vec<LoopRule>,
}

/// The message that a phase gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseInput {
    /// The message of the caller.
    #[default]
    Request,
    /// The newest answer of an earlier phase; the message of the caller if there is none.
    Answer,
}

/// The answers of this turn that a phase gets beside its message: of each phase the newest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SeenAnswers {
    /// Of every phase that has answered.
    #[default]
    All,
    /// Of the phase that answered last.
    Last,
    /// Of none.
    None,
    /// Of these phases.
    Named(Vec<Name>),
}

/// How a turn goes on when a phase has failed for the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseErrorPolicy {
    /// The turn fails.
    #[default]
    Fail,
    /// The next phase runs without its answer.
    Skip,
}

/// How a turn goes on from an answer that asks for one loop-back too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopLimitPolicy {
    /// As if the answer did not ask for it.
    #[default]
    Continue,
    /// The turn fails.
    Fail,
}

/// One rule for going back.
#[derive(Debug)]
pub struct LoopRule {
    /// Pattern that the answer of the phase must match.
    pub pattern: Regex,
    /// The phase that runs next: this one or an earlier one.
    pub to: Name,
}
