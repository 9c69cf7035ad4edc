//! Writing the stages of a turn: one outline for a turn and all its children in this process. Each agent writes at
//! its own place in it, with as much detail as its declaration allows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use statehold_core::ids::RequestId;
use statehold_engine::Engine;
use statehold_engine::bodies::Raw;
use statehold_engine::stage::{
    STAGES_BYTES_MAX, STAGES_MAX, STAGES_NOTE, Stage, StageChange, StageStatus,
};

use crate::turn::TraceNote;

/// How much of the stages of an agent its clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageDetail {
    /// No stage of the agent, and none below it.
    None,
    /// That a stage began, its name and how it ended.
    #[default]
    Names,
    /// Also its text and its files.
    Full,
}

/// The stages of one turn. Its draft shows them while it runs.
struct Outline {
    engine: Engine,
    /// The request at the root of the turn, as far as this process runs it.
    request: RequestId,
    written: Mutex<WrittenStages>,
}

#[derive(Default)]
struct WrittenStages {
    stages: Vec<Stage>,
    /// The bytes of their names, texts and files.
    bytes: usize,
}

/// Writes stages at one place of the outline of a turn.
#[derive(Clone)]
pub(crate) struct StageWriter {
    outline: Arc<Outline>,
    /// The stage below which the stages of this writer lie.
    parent: Option<usize>,
    detail: StageDetail,
}

/// A stage that was opened. Nothing happens when it is dropped: a turn that waits for people leaves its stages open, and the end
/// of the answer closes them.
#[derive(Clone)]
pub(crate) struct OpenStage {
    writer: StageWriter,
    /// None for a stage that is not shown.
    number: Option<usize>,
}

impl StageWriter {
    /// The outline of the turn of a request.
    pub(crate) fn of_turn(engine: Engine, request: RequestId, detail: StageDetail) -> Self {
        let outline = Outline {
            engine,
            request,
            written: Mutex::default(),
        };
        Self {
            outline: Arc::new(outline),
            parent: None,
            detail,
        }
    }

    /// The same place, for an agent that allows this detail: no agent shows more of another one than that one allows.
    pub(crate) fn limited_to(&self, detail: StageDetail) -> Self {
        let shown = if self.detail == StageDetail::None {
            StageDetail::None
        } else {
            detail
        };
        Self {
            detail: shown,
            ..self.clone()
        }
    }

    /// Opens a stage.
    pub(crate) fn open(&self, name: &str) -> OpenStage {
        let number = self.outline.open(self.parent, name, self.detail);
        OpenStage {
            writer: self.clone(),
            number,
        }
    }

    /// The note with all stages of the turn. None if it has none.
    pub(crate) fn note(&self) -> Option<TraceNote> {
        let written = self.outline.written();
        (!written.stages.is_empty()).then(|| TraceNote::new(STAGES_NOTE, &written.stages))
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

    /// Appends to its name.
    pub(crate) fn push_name(&self, text: &str) {
        let text = text.to_owned();
        self.write_change(text.len(), |stage| StageChange::Named { stage, text });
    }

    /// Appends to its text, if that is shown.
    pub(crate) fn write(&self, text: &str) {
        if self.shows_text() && !text.is_empty() {
            let text = text.to_owned();
            self.write_change(text.len(), |stage| StageChange::Wrote { stage, text });
        }
    }

    /// Adds a file, if files are shown.
    pub(crate) fn attach(&self, file: Raw) {
        if self.shows_text() {
            let bytes = file.get().len();
            self.write_change(bytes, |stage| StageChange::Attached { stage, file });
        }
    }

    /// Ends the stage. A stage ends once.
    pub(crate) fn close(&self, status: StageStatus) {
        self.write_change(0, |stage| StageChange::Closed { stage, status });
    }

    fn write_change(&self, bytes: usize, change: impl FnOnce(usize) -> StageChange) {
        if let Some(number) = self.number {
            self.writer.outline.write(bytes, change(number));
        }
    }
}

impl Outline {
    fn written(&self) -> MutexGuard<'_, WrittenStages> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, parent: Option<usize>, name: &str, detail: StageDetail) -> Option<usize> {
        let mut written = self.written();
        let has_room =
            written.stages.len() < STAGES_MAX && written.bytes + name.len() <= STAGES_BYTES_MAX;
        if detail == StageDetail::None || !has_room {
            return None;
        }
        let name = name.to_owned();
        written.bytes += name.len();
        written.stages.push(Stage {
            name: name.clone(),
            parent,
            ..Stage::default()
        });
        let number = written.stages.len() - 1;
        // Under the lock: the draft counts stages in the order in which they open.
        let change = StageChange::Opened { parent, name };
        self.engine.write_stage(self.request, change);
        Some(number)
    }

    fn write(&self, bytes: usize, change: StageChange) {
        let mut written = self.written();
        if written.bytes + bytes > STAGES_BYTES_MAX || !written.apply(&change) {
            return;
        }
        written.bytes += bytes;
        self.engine.write_stage(self.request, change);
    }
}

impl WrittenStages {
    /// Applies a change to a stage that is open. Returns whether it is.
    fn apply(&mut self, change: &StageChange) -> bool {
        let number = match change {
            StageChange::Opened { .. } => return false,
            StageChange::Named { stage, .. }
            | StageChange::Wrote { stage, .. }
            | StageChange::Attached { stage, .. }
            | StageChange::Closed { stage, .. } => *stage,
        };
        let stage = self.stages.get_mut(number);
        let Some(stage) = stage.filter(|stage| stage.status.is_none()) else {
            return false;
        };
        match change {
            StageChange::Opened { .. } => {}
            StageChange::Named { text, .. } => stage.name.push_str(text),
            StageChange::Wrote { text, .. } => stage.content.push_str(text),
            StageChange::Attached { file, .. } => stage.attachments.push(file.clone()),
            StageChange::Closed { status, .. } => stage.status = Some(*status),
        }
        true
    }
}
