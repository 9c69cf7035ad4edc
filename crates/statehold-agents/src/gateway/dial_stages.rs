//! Stages of an agent behind DIAL, mirrored into the outline of the turn that calls it. The agent counts its stages
//! for itself; here they lie below the stage of the call, under numbers of their own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use statehold_engine::stage::{STAGES_MAX, StageStatus};

use super::dial_form::DialAttachment;
use crate::display_text::clean_text;
use crate::message::raw;
use crate::stages::{OpenStage, StageWriter};

/// The longest piece of a name, in bytes.
const NAME_BYTES_MAX: usize = 1_024;

/// The stages of one answer.
pub(super) struct StageMirror {
    writer: StageWriter,
    /// By the index that the agent gave them.
    stages: BTreeMap<u64, OpenStage>,
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
    pub(super) fn close(&self, status: StageStatus) {
        // Children first, as an agent does it. A stage that is closed stays as it is.
        for stage in self.stages.values().rev() {
            stage.close(status);
        }
    }

    /// Applies all that an update has: a name with a text, a text with an end, or an opening with everything.
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
        let name = clean_text(&name, NAME_BYTES_MAX);
        if let Some(known) = self.stages.get(&index) {
            if !name.is_empty() {
                known.push_name(&name);
            }
        } else {
            if self.stages.len() == STAGES_MAX {
                return;
            }
            let parent = update.parent_stage_index;
            let parent = parent.and_then(|parent| self.stages.get(&parent));
            let opened = match parent {
                Some(parent) => parent.below().open(&name),
                None => self.writer.open(&name),
            };
            self.stages.insert(index, opened);
        }
        let stage = &self.stages[&index];
        stage.write(&update.content.unwrap_or_default());
        for file in update.attachments.into_iter().flatten() {
            if let Some(file) = DialAttachment::read(file) {
                stage.attach(raw(&file));
            }
        }
        match update.status.as_deref() {
            Some("completed") => stage.close(StageStatus::Completed),
            Some("failed") => stage.close(StageStatus::Failed),
            _ => {}
        }
    }
}
