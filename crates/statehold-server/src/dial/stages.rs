//! The stages of an answer as a stream has shown them.

use statehold_engine::stage::{Stage, StageChange, StageStatus};

use super::chunk::{AnswerHead, AttachmentOut, StageOut, status_word};
use crate::chat::SentText;

/// The stages that one stream has shown. Their places on the wire count up over all agents.
#[derive(Debug, Default)]
pub(super) struct ShownStages {
    /// The stages of the turn.
    stages: Vec<ShownStage>,
    /// The place on the wire of the next stage.
    next: usize,
}

#[derive(Debug)]
struct ShownStage {
    index: usize,
    name: SentText,
    content: SentText,
    /// The files of the stage that were seen, and how many of them DIAL has a form for.
    files: usize,
    shown_files: usize,
    is_open: bool,
}

/// A stage of the server itself, beside those of the turn.
#[derive(Debug)]
pub(super) struct OwnStage(usize);

impl ShownStages {
    /// Opens a stage that is no stage of the turn.
    pub(super) fn open_own(&mut self, head: &AnswerHead, name: &str) -> (OwnStage, Vec<u8>) {
        let index = self.next;
        self.next += 1;
        let opened = head.stage(StageOut {
            index: Some(index),
            name: Some(name),
            ..StageOut::default()
        });
        (OwnStage(index), opened)
    }

    /// The next change of the stages of the turn. The changes of a turn come in the order in which
    /// they happened.
    pub(super) fn change(&mut self, head: &AnswerHead, change: &StageChange) -> Vec<u8> {
        match change {
            StageChange::Opened { parent, name } => self.open(head, *parent, name),
            StageChange::Named { stage, text } => self.push_name(head, *stage, text),
            // A draft shows the rest of the name instead.
            StageChange::NameEnded { .. } => Vec::new(),
            StageChange::Wrote { stage, text } => self.push_content(head, *stage, text),
            StageChange::Attached { stage, file } => {
                self.attach(head, *stage, AttachmentOut::of(file))
            }
            StageChange::Closed { stage, status } => self.close(head, *stage, *status),
        }
    }

    /// The rest of the stages of a turn that has completed. The committed ones count, as far as the
    /// stream has not shown others. All of them are closed.
    pub(super) fn complete(&mut self, head: &AnswerHead, committed: &[Stage]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, stage) in committed.iter().enumerate() {
            if number == self.stages.len() {
                bytes.extend(self.open(head, stage.parent, &stage.name));
            }
            if let Some(rest) = self.stages[number].name.rest_of(&stage.name) {
                bytes.extend(self.push_name(head, number, rest));
            }
            if let Some(rest) = self.stages[number].content.rest_of(&stage.content) {
                bytes.extend(self.push_content(head, number, rest));
            }
            for file in stage.attachments.iter().skip(self.stages[number].files) {
                bytes.extend(self.attach(head, number, AttachmentOut::of(file)));
            }
            if let Some(status) = stage.status {
                bytes.extend(self.close(head, number, status));
            }
        }
        bytes.extend(self.close_all(head, StageStatus::Completed));
        bytes
    }

    /// Closes all stages of the turn that are open, children before their parents.
    pub(super) fn close_all(&mut self, head: &AnswerHead, status: StageStatus) -> Vec<u8> {
        let numbers = (0..self.stages.len()).rev();
        let closed = numbers.flat_map(|number| self.close(head, number, status));
        closed.collect()
    }

    fn open(&mut self, head: &AnswerHead, parent: Option<usize>, name: &str) -> Vec<u8> {
        let parent = parent.and_then(|parent| self.stages.get(parent));
        let parent_stage_index = parent.map(|parent| parent.index);
        let mut shown = ShownStage {
            index: self.next,
            name: SentText::default(),
            content: SentText::default(),
            files: 0,
            shown_files: 0,
            is_open: true,
        };
        shown.name.push(name);
        self.next += 1;
        let opened = head.stage(StageOut {
            index: Some(shown.index),
            name: Some(name),
            parent_stage_index,
            ..StageOut::default()
        });
        self.stages.push(shown);
        opened
    }

    fn open_stage(&mut self, number: usize) -> Option<&mut ShownStage> {
        let stage = self.stages.get_mut(number);
        stage.filter(|stage| stage.is_open)
    }

    fn push_name(&mut self, head: &AnswerHead, number: usize, text: &str) -> Vec<u8> {
        let Some(shown) = self.open_stage(number).filter(|_| !text.is_empty()) else {
            return Vec::new();
        };
        shown.name.push(text);
        head.stage(StageOut {
            index: Some(shown.index),
            name: Some(text),
            ..StageOut::default()
        })
    }

    fn push_content(&mut self, head: &AnswerHead, number: usize, text: &str) -> Vec<u8> {
        let Some(shown) = self.open_stage(number).filter(|_| !text.is_empty()) else {
            return Vec::new();
        };
        shown.content.push(text);
        head.stage(StageOut {
            index: Some(shown.index),
            content: Some(text),
            ..StageOut::default()
        })
    }

    fn attach(&mut self, head: &AnswerHead, number: usize, file: Option<AttachmentOut>) -> Vec<u8> {
        let Some(shown) = self.open_stage(number) else {
            return Vec::new();
        };
        shown.files += 1;
        let Some(file) = file else {
            return Vec::new();
        };
        let place = shown.shown_files;
        shown.shown_files += 1;
        head.stage(StageOut {
            index: Some(shown.index),
            attachments: vec![file.at(place)],
            ..StageOut::default()
        })
    }

    fn close(&mut self, head: &AnswerHead, number: usize, status: StageStatus) -> Vec<u8> {
        let Some(shown) = self.open_stage(number) else {
            return Vec::new();
        };
        shown.is_open = false;
        head.stage(StageOut {
            index: Some(shown.index),
            status: Some(status_word(status)),
            ..StageOut::default()
        })
    }
}

impl OwnStage {
    pub(super) fn write(&self, head: &AnswerHead, text: &str) -> Vec<u8> {
        head.stage(StageOut {
            index: Some(self.0),
            content: Some(text),
            ..StageOut::default()
        })
    }

    pub(super) fn close(self, head: &AnswerHead, status: StageStatus) -> Vec<u8> {
        head.stage(StageOut {
            index: Some(self.0),
            status: Some(status_word(status)),
            ..StageOut::default()
        })
    }
}
