//! Stages of an agent behind DIAL, mirrored into the outline of the turn that calls it. The agent
//! counts its stages for itself; here they lie below the stage of the call, under numbers of their
//! own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use statehold_engine::bodies::Raw;
use statehold_engine::stage::{STAGES_BYTES_MAX, STAGES_MAX, StageStatus};

use super::dial_form::merged_attachments;
use crate::display_text::clean_text;
use crate::stages::{OpenStage, StageWriter};

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 1_024;

/// The stages of one answer.
pub(super) struct StageMirror {
    writer: StageWriter,
    /// By the index that the agent gave them.
    stages: BTreeMap<u64, MirroredStage>,
    /// The bytes of the pieces of files of all stages.
    file_bytes: usize,
}

struct MirroredStage {
    open: OpenStage,
    name_bytes: usize,
    /// The pieces of its files. An agent may send the parts of one under the same index, so files
    /// are whole only when the stage ends.
    files: Vec<Raw>,
}

/// A stage of a whole answer, or a change of one in a stream.
#[derive(Deserialize)]
struct StageUpdate<'a> {
    index: Option<u64>,
    name: Option<String>,
    content: Option<String>,
    #[serde(borrow)]
    attachments: Option<Vec<&'a RawValue>>,
    status: Option<String>,
    parent_stage_index: Option<u64>,
}

impl StageMirror {
    pub(super) fn new(writer: StageWriter) -> Self {
        Self {
            writer,
            stages: BTreeMap::new(),
            file_bytes: 0,
        }
    }

    /// Takes updates. One that cannot be read is left out: stages are no part of the answer.
    pub(super) fn update(&mut self, updates: &RawValue) {
        let updates: Vec<&RawValue> = serde_json::from_str(updates.get()).unwrap_or_default();
        for update in updates {
            if let Ok(update) = serde_json::from_str(update.get()) {
                self.apply(update);
            }
        }
    }

    /// Closes the stages that the agent left open.
    pub(super) fn close(&mut self, status: StageStatus) {
        // Children first, as an agent does it. A stage that is closed stays as it is.
        for stage in self.stages.values_mut().rev() {
            stage.close(status);
        }
    }

    /// Fails the stages of a call that is made again: the next answer counts its stages from the
    /// first.
    pub(super) fn restart(&mut self) {
        self.close(StageStatus::Failed);
        self.stages.clear();
        self.file_bytes = 0;
    }

    /// Applies all that an update has: a name with a text, a text with an end, or an opening with
    /// everything.
    fn apply(&mut self, update: StageUpdate<'_>) {
        // Without an index, as in a whole answer, it is the next stage.
        let next = || {
            self.stages
                .keys()
                .next_back()
                .map_or(Some(0), |last| last.checked_add(1))
        };
        let Some(index) = update.index.or_else(next) else {
            return;
        };
        let name = update.name.unwrap_or_default().replace('\n', " ");
        if let Some(known) = self.stages.get_mut(&index) {
            known.push_name(&name);
        } else if self.stages.len() < STAGES_MAX {
            let parent = update.parent_stage_index;
            let parent = parent.and_then(|parent| self.stages.get(&parent));
            let below = parent.map(|parent| parent.open.below());
            let opened = MirroredStage::open(below.as_ref().unwrap_or(&self.writer), &name);
            self.stages.insert(index, opened);
        }
        let Some(stage) = self.stages.get_mut(&index) else {
            return;
        };
        let content = update.content.unwrap_or_default();
        let files = update.attachments.unwrap_or_default();
        if !content.is_empty() || !files.is_empty() || update.status.is_some() {
            stage.open.end_name();
        }
        stage.open.write(&content);
        for file in files {
            self.file_bytes += file.get().len();
            if stage.open.shows_text() && self.file_bytes <= STAGES_BYTES_MAX {
                stage.files.push(file.to_owned());
            }
        }
        match update.status.as_deref() {
            Some("completed") => stage.close(StageStatus::Completed),
            Some("failed") => stage.close(StageStatus::Failed),
            _ => {}
        }
    }
}

impl MirroredStage {
    fn open(writer: &StageWriter, name: &str) -> Self {
        Self {
            open: writer.open_unnamed(&clean_text(name, NAME_BYTES_MAX)),
            name_bytes: name.len(),
            files: Vec::new(),
        }
    }

    /// Appends to its name, as far as that is not too long.
    fn push_name(&mut self, piece: &str) {
        let room = NAME_BYTES_MAX.saturating_sub(self.name_bytes);
        if room > 0 && !piece.is_empty() {
            self.name_bytes += piece.len();
            self.open.push_name(&clean_text(piece, room));
        }
    }

    /// Ends it with its files. A stage ends once.
    fn close(&mut self, status: StageStatus) {
        for file in merged_attachments(&std::mem::take(&mut self.files)) {
            self.open.attach(file);
        }
        self.open.close(status);
    }
}
