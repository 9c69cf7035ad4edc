//! Writes an answer into the draft of its turn while it arrives: text, and the stages of agents
//! behind DIAL.

use serde_json::value::RawValue;

use super::dial_stages::StageMirror;
use crate::chat::ReplySink;

/// Where the parts of an answer go.
pub(super) struct ReplyWriter<S> {
    pub(super) text: HoldbackWriter<S>,
    /// None if the service shows no stages.
    pub(super) stages: Option<StageMirror>,
}

impl<S: Fn(&str) + Send> ReplySink for ReplyWriter<S> {
    fn write(&mut self, text: &str) {
        self.text.write(text);
    }

    fn update_stages(&mut self, updates: &RawValue) -> bool {
        let Some(stages) = &mut self.stages else {
            return false;
        };
        stages.update(updates);
        true
    }
}

impl<S> ReplyWriter<S> {
    /// Takes the answer to a call that is made again: its stages, and not its text.
    pub(super) fn again(&mut self) -> RepeatedReply<'_> {
        if let Some(stages) = &mut self.stages {
            stages.restart();
        }
        RepeatedReply(self.stages.as_mut())
    }
}

/// Writes the stages of an answer whose text was begun before.
pub(super) struct RepeatedReply<'a>(Option<&'a mut StageMirror>);

impl ReplySink for RepeatedReply<'_> {
    fn write(&mut self, _: &str) {}

    fn update_stages(&mut self, updates: &RawValue) -> bool {
        let Some(stages) = &mut self.0 else {
            return false;
        };
        stages.update(updates);
        true
    }
}

/// Passes chunks on. Holds the first bytes back until it is clear that they belong to an answer.
pub(super) struct HoldbackWriter<S> {
    sink: S,
    held_back: Option<String>,
    bytes_max: usize,
}

impl<S: Fn(&str)> HoldbackWriter<S> {
    pub(super) fn new(sink: S, bytes_max: usize) -> Self {
        Self {
            sink,
            held_back: Some(String::new()),
            bytes_max,
        }
    }

    pub(super) fn write(&mut self, piece: &str) {
        let Some(held_back) = &mut self.held_back else {
            (self.sink)(piece);
            return;
        };
        held_back.push_str(piece);
        if held_back.len() > self.bytes_max {
            self.flush();
        }
    }

    /// Whether a chunk was passed on.
    pub(super) fn has_passed(&self) -> bool {
        self.held_back.is_none()
    }

    /// Passes on the bytes that were held back.
    pub(super) fn flush(&mut self) {
        if let Some(held_back) = self.held_back.take() {
            (self.sink)(&held_back);
        }
    }
}
