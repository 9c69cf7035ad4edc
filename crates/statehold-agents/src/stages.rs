//! Writing the stages of a turn: each request writes an outline of its own, with as much detail as
//! the declaration of its agent allows. The outline of a child lies in that of its parent, below
//! the stage of the call, and the outline of the root is shown in the draft of its answer.
//!
//! A request that is claimed again begins a new outline; the old one takes no more changes. Parent
//! and child resume in any order: a child writes for itself until its parent has a place for it.

mod nesting;
mod outline;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use statehold_engine::bodies::Raw;
use statehold_engine::stage::{STAGES_NOTE, Stage, StageChange, StageStatus};

use crate::turn::TraceNote;
use outline::Outline;

pub(crate) use nesting::{ChildStages, Outlines, RunningOutline};

/// How much of the stages of an agent its clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageDetail {
    /// No stage of the agent, and none below it.
    None,
    /// Name and status of each stage.
    #[default]
    Names,
    /// Also its text and its files.
    Full,
}

/// Writes stages at one place of an outline.
#[derive(Clone)]
pub(crate) struct StageWriter {
    outline: Arc<Outline>,
    /// The stage below which the stages of this writer lie.
    parent: Option<usize>,
    /// The policy of the agent. A child has its own; a parent with `none` hides it.
    detail: StageDetail,
}

/// A stage that was opened. Nothing happens when it is dropped: a turn that waits for people leaves
/// its stages open, and the end of the answer closes them.
#[derive(Clone)]
pub(crate) struct OpenStage {
    writer: StageWriter,
    /// None for a stage that is not shown.
    number: Option<usize>,
}

impl StageWriter {
    /// Opens a stage. Its name is whole.
    pub(crate) fn open(&self, name: &str) -> OpenStage {
        let stage = self.open_unnamed(name);
        stage.end_name();
        stage
    }

    /// Opens a stage whose name may go on.
    pub(crate) fn open_unnamed(&self, name: &str) -> OpenStage {
        let is_shown = self.detail != StageDetail::None;
        let number = is_shown.then(|| self.outline.open(self.parent, name));
        OpenStage {
            writer: self.clone(),
            number: number.flatten(),
        }
    }

    /// How many stages there are so far.
    pub(crate) fn count(&self) -> usize {
        self.outline.count()
    }

    /// The stages after the first `count`, as a list of their own.
    pub(crate) fn stages_after(&self, count: usize) -> Vec<Stage> {
        let mut stages = self.outline.stages_after(count);
        for stage in &mut stages {
            stage.parent = stage.parent.and_then(|parent| parent.checked_sub(count));
        }
        stages
    }

    /// Writes recorded stages again.
    pub(crate) fn replay(&self, stages: &[Stage]) {
        let mut opened: Vec<OpenStage> = Vec::new();
        for stage in stages {
            let parent = stage.parent.and_then(|parent| opened.get(parent));
            let open = match parent {
                Some(parent) => parent.below().open(&stage.name),
                None => self.open(&stage.name),
            };
            open.write(&stage.content);
            for file in &stage.attachments {
                open.attach(file.clone());
            }
            opened.push(open);
        }
        for (open, stage) in opened.iter().zip(stages).rev() {
            if let Some(status) = stage.status {
                open.close(status);
            }
        }
    }

    /// The note with all stages of the request. None if it has none, or if no client shows them.
    pub(crate) fn note(&self) -> Option<TraceNote> {
        let stages = self.is_kept().then(|| self.outline.stages_after(0))?;
        (!stages.is_empty()).then(|| TraceNote::new(STAGES_NOTE, &stages))
    }

    /// Whether the stages are recorded: the client of the turn shows them.
    pub(crate) fn is_kept(&self) -> bool {
        self.outline.is_kept()
    }
}

impl OpenStage {
    /// Writes stages below this one.
    pub(crate) fn below(&self) -> StageWriter {
        let detail = match self.number {
            Some(_) => self.writer.detail,
            None => StageDetail::None,
        };
        StageWriter {
            outline: Arc::clone(&self.writer.outline),
            parent: self.number.or(self.writer.parent),
            detail,
        }
    }

    /// Whether its text and its files are shown.
    pub(crate) fn shows_text(&self) -> bool {
        self.number.is_some() && self.writer.detail == StageDetail::Full
    }

    /// Whether it has a text.
    pub(crate) fn has_text(&self) -> bool {
        self.number
            .is_some_and(|number| self.writer.outline.has_text(number))
    }

    /// Appends to its name.
    pub(crate) fn push_name(&self, text: &str) {
        let text = text.to_owned();
        self.write_change(|stage| StageChange::Named { stage, text });
    }

    /// Says that its name is whole.
    pub(crate) fn end_name(&self) {
        self.write_change(|stage| StageChange::NameEnded { stage });
    }

    /// Appends to its text, if that is shown.
    pub(crate) fn write(&self, text: &str) {
        if self.shows_text() && !text.is_empty() {
            let text = text.to_owned();
            self.write_change(|stage| StageChange::Wrote { stage, text });
        }
    }

    /// Adds a file, if files are shown.
    pub(crate) fn attach(&self, file: Raw) {
        if self.shows_text() {
            self.write_change(|stage| StageChange::Attached { stage, file });
        }
    }

    /// Ends the stage. A stage ends once.
    pub(crate) fn close(&self, status: StageStatus) {
        self.write_change(|stage| StageChange::Closed { stage, status });
    }

    fn write_change(&self, change: impl FnOnce(usize) -> StageChange) {
        if let Some(number) = self.number {
            self.writer.outline.write(change(number));
        }
    }
}
