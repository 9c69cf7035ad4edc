//! The outline of one request: its stages, and where their changes go.
//!
//! Locks are taken from a child to its parent, never the other way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use statehold_core::ids::RequestId;
use statehold_engine::Engine;
use statehold_engine::stage::{STAGES_BYTES_MAX, STAGES_MAX, Stage, StageChange};

use super::{StageDetail, StageWriter};

/// The stages of one request, and between them those of its children.
pub(super) struct Outline {
    /// Whether the client of the request shows stages.
    is_shown: bool,
    written: Mutex<WrittenStages>,
}

#[derive(Default)]
struct WrittenStages {
    stages: Vec<WrittenStage>,
    /// The bytes of their names, texts and files.
    bytes: usize,
    target: Target,
}

#[derive(Default)]
struct WrittenStage {
    stage: Stage,
    name_ended: bool,
    /// Whether a piece did not fit. Later pieces are dropped, so that no text has a gap.
    is_full: bool,
}

/// Where the changes of an outline go.
#[derive(Default)]
enum Target {
    /// Nowhere: its parent has no place for it yet, or another outline has replaced it.
    #[default]
    Nowhere,
    /// Into the draft of the request, which is the root of its turn.
    Draft(Engine, RequestId),
    /// Into the outline of the parent.
    Parent(Nested),
}

/// An outline inside that of its parent.
struct Nested {
    place: Arc<ChildPlace>,
    /// The numbers of its stages in the outline of the parent. None for a stage that is not shown
    /// there.
    numbers: Vec<Option<usize>>,
}

/// The place of a child in the outline of its parent. While the parent waits for the child, nobody
/// else writes behind it.
pub(super) struct ChildPlace {
    /// Writes below the stage of the call.
    writer: StageWriter,
    /// The number of the first stage of the child.
    first: usize,
    /// Whether it has all stages of the child.
    is_complete: AtomicBool,
}

impl ChildPlace {
    pub(super) fn new(writer: StageWriter) -> Self {
        let first = writer.count();
        Self {
            writer,
            first,
            is_complete: AtomicBool::new(false),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Takes the stages of the child in the place of those that were written here before.
    pub(super) fn replace(self: &Arc<Self>, stages: &[Stage]) {
        let recorded = Outline::of_child(false);
        let stages = stages.iter().map(|stage| WrittenStage {
            stage: stage.clone(),
            name_ended: true,
            is_full: false,
        });
        recorded.written().stages = stages.collect();
        recorded.attach(Arc::clone(self));
    }

    fn open(&self, below: Option<usize>, name: &str) -> Option<usize> {
        let is_shown = self.writer.detail != StageDetail::None;
        let parent = below.or(self.writer.parent);
        is_shown.then(|| self.writer.outline.open(parent, name))?
    }
}

impl Outline {
    /// The outline of a request at the root of its turn, shown in the draft of that.
    pub(super) fn of_root(engine: Engine, request: RequestId, is_shown: bool) -> Self {
        let outline = Self::of_child(is_shown);
        outline.written().target = Target::Draft(engine, request);
        outline
    }

    /// The outline of a request below another one. It is shown nowhere until it has a place.
    pub(super) fn of_child(is_shown: bool) -> Self {
        Self {
            is_shown,
            written: Mutex::default(),
        }
    }

    fn written(&self) -> MutexGuard<'_, WrittenStages> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.written().stages.len()
    }

    pub(super) fn stages_after(&self, count: usize) -> Vec<Stage> {
        let written = self.written();
        let stages = written.stages.iter().skip(count);
        stages.map(|written| written.stage.clone()).collect()
    }

    pub(super) fn has_text(&self, number: usize) -> bool {
        let written = self.written();
        let stage = written.stages.get(number);
        stage.is_some_and(|written| !written.stage.content.is_empty())
    }

    /// Whether its stages are recorded: the client of the request shows stages, or that of a
    /// request above it.
    pub(super) fn is_kept(&self) -> bool {
        self.is_shown
            || match &self.written().target {
                Target::Parent(nested) => nested.place.writer.is_kept(),
                Target::Nowhere | Target::Draft(..) => false,
            }
    }

    /// Opens a stage. None if the outline is full.
    pub(super) fn open(&self, parent: Option<usize>, name: &str) -> Option<usize> {
        let mut written = self.written();
        let bytes = written.bytes + name.len();
        if written.stages.len() == STAGES_MAX || bytes > STAGES_BYTES_MAX {
            return None;
        }
        written.bytes = bytes;
        let stage = Stage {
            name: name.to_owned(),
            parent,
            ..Stage::default()
        };
        written.stages.push(WrittenStage {
            stage,
            ..WrittenStage::default()
        });
        // Under the lock: readers count stages in the order in which they open.
        let name = name.to_owned();
        written.forward(StageChange::Opened { parent, name });
        Some(written.stages.len() - 1)
    }

    /// Changes a stage that is open.
    pub(super) fn write(&self, change: StageChange) {
        let mut written = self.written();
        if written.apply(&change) {
            written.forward(change);
        }
    }

    /// Puts the outline into a place of its parent, instead of the stages that were written there
    /// before.
    pub(super) fn attach(&self, place: Arc<ChildPlace>) {
        let mut written = self.written();
        place.writer.outline.truncate(place.first);
        place.is_complete.store(false, Ordering::Release);
        written.target = Target::Parent(Nested {
            place,
            numbers: Vec::new(),
        });
        written.forward_all();
    }

    /// Shows no more changes: another outline has replaced it, or its parent goes on without it.
    pub(super) fn detach(&self) {
        self.written().target = Target::Nowhere;
    }

    /// All stages are written: the request is about to complete.
    pub(super) fn complete(&self) {
        if let Target::Parent(nested) = &self.written().target {
            nested.place.is_complete.store(true, Ordering::Release);
        }
    }

    /// Drops the stages behind the first `count`. An earlier attempt of a child wrote them.
    fn truncate(&self, count: usize) {
        let mut written = self.written();
        if written.stages.len() <= count {
            return;
        }
        let dropped = written.stages.split_off(count);
        written.bytes -= dropped.iter().map(WrittenStage::bytes).sum::<usize>();
        match &mut written.target {
            Target::Nowhere => {}
            Target::Draft(engine, request) => {
                engine.restart_stages(*request);
                written.forward_all();
            }
            Target::Parent(nested) => {
                let dropped = nested.numbers.split_off(count);
                if let Some(first) = dropped.into_iter().flatten().next() {
                    nested.place.writer.outline.truncate(first);
                }
            }
        }
    }
}

impl WrittenStages {
    /// Applies a change to a stage that is open. Returns whether there is one, and room for the
    /// change.
    fn apply(&mut self, change: &StageChange) -> bool {
        let Some(number) = stage_of(change) else {
            return false;
        };
        let written = self.stages.get_mut(number);
        let Some(written) = written.filter(|written| written.stage.status.is_none()) else {
            return false;
        };
        let bytes = bytes_of(change);
        written.is_full |= bytes > 0 && self.bytes + bytes > STAGES_BYTES_MAX;
        if written.is_full && bytes > 0 {
            return false;
        }
        self.bytes += bytes;
        let stage = &mut written.stage;
        match change {
            StageChange::Opened { .. } => {}
            StageChange::Named { text, .. } => {
                stage.name.push_str(text);
                written.name_ended = false;
            }
            StageChange::NameEnded { .. } => {
                return !std::mem::replace(&mut written.name_ended, true);
            }
            StageChange::Wrote { text, .. } => stage.content.push_str(text),
            StageChange::Attached { file, .. } => stage.attachments.push(file.clone()),
            StageChange::Closed { status, .. } => stage.status = Some(*status),
        }
        true
    }

    /// Passes a change on to the readers.
    fn forward(&mut self, change: StageChange) {
        match &mut self.target {
            Target::Nowhere => {}
            Target::Draft(engine, request) => engine.write_stage(*request, change),
            Target::Parent(nested) => nested.write(change),
        }
    }

    /// Passes all stages on, as they are.
    fn forward_all(&mut self) {
        let mut changes = Vec::new();
        for (number, written) in self.stages.iter().enumerate() {
            let Stage { parent, name, .. } = &written.stage;
            let (parent, name) = (*parent, name.clone());
            changes.push(StageChange::Opened { parent, name });
            changes.extend(written.changes(number));
        }
        for change in changes {
            self.forward(change);
        }
    }
}

impl WrittenStage {
    /// The bytes of its name, its text and its files.
    fn bytes(&self) -> usize {
        let Stage {
            name,
            content,
            attachments,
            ..
        } = &self.stage;
        let files = attachments.iter().map(|file| file.get().len());
        name.len() + content.len() + files.sum::<usize>()
    }

    /// All changes of it, after it was opened with its name.
    fn changes(&self, stage: usize) -> Vec<StageChange> {
        let written = &self.stage;
        let mut changes = Vec::new();
        if self.name_ended {
            changes.push(StageChange::NameEnded { stage });
        }
        if !written.content.is_empty() {
            let text = written.content.clone();
            changes.push(StageChange::Wrote { stage, text });
        }
        let files = written.attachments.iter().cloned();
        changes.extend(files.map(|file| StageChange::Attached { stage, file }));
        changes.extend(
            written
                .status
                .map(|status| StageChange::Closed { stage, status }),
        );
        changes
    }
}

impl Nested {
    fn number(&self, stage: usize) -> Option<usize> {
        self.numbers.get(stage).copied().flatten()
    }

    /// Writes a change of the child into the outline of the parent.
    fn write(&mut self, change: StageChange) {
        if let StageChange::Opened { parent, name } = &change {
            let below = parent.and_then(|parent| self.number(parent));
            let number = self.place.open(below, name);
            self.numbers.push(number);
            return;
        }
        let number = stage_of(&change).and_then(|stage| self.number(stage));
        if let Some(number) = number {
            self.place.writer.outline.write(of_stage(change, number));
        }
    }
}

/// The stage that a change is about. None for the opening of one.
fn stage_of(change: &StageChange) -> Option<usize> {
    match change {
        StageChange::Opened { .. } => None,
        StageChange::Named { stage, .. }
        | StageChange::NameEnded { stage }
        | StageChange::Wrote { stage, .. }
        | StageChange::Attached { stage, .. }
        | StageChange::Closed { stage, .. } => Some(*stage),
    }
}

/// The same change of another stage.
fn of_stage(mut change: StageChange, number: usize) -> StageChange {
    match &mut change {
        StageChange::Opened { .. } => {}
        StageChange::Named { stage, .. }
        | StageChange::NameEnded { stage }
        | StageChange::Wrote { stage, .. }
        | StageChange::Attached { stage, .. }
        | StageChange::Closed { stage, .. } => *stage = number,
    }
    change
}

fn bytes_of(change: &StageChange) -> usize {
    match change {
        StageChange::Opened { name, .. } => name.len(),
        StageChange::Named { text, .. } | StageChange::Wrote { text, .. } => text.len(),
        StageChange::Attached { file, .. } => file.get().len(),
        StageChange::NameEnded { .. } | StageChange::Closed { .. } => 0,
    }
}
