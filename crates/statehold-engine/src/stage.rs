//! Stages: the outline of a turn that its client may see while agents work on it. A stage has a
//! name, may have text and files, may lie below another one, and is open until it completes or
//! fails.
//!
//! Stages are no part of the answer, and no agent remembers them. While a turn runs they are
//! drafts; the record that ends a completed request has its stages, with those of its children, in
//! a hidden note.

use serde::{Deserialize, Serialize};

use crate::bodies::Raw;

/// The name of the note with the stages of an answer.
pub const STAGES_NOTE: &str = "stages";

/// The most stages of one answer.
pub const STAGES_MAX: usize = 1_000;

/// The most bytes of names, texts and files of all stages of one answer.
pub const STAGES_BYTES_MAX: usize = 256 * 1024;

/// How a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageStatus {
    /// The work is done.
    Completed,
    /// The work failed, or was broken off.
    Failed,
}

/// A stage. Its number is its place in the list of all stages of the answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Stage {
    /// The name for people.
    pub name: String,
    /// Its text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Its files, each an attachment of DIAL's form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Raw>,
    /// How it ended. None while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<StageStatus>,
    /// The number of the stage that it lies below; less than its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
}

/// A change of the stages of an answer. `stage` is a number of a stage that was opened before.
#[derive(Debug, Clone)]
pub enum StageChange {
    /// The next stage opens.
    Opened {
        /// The stage that it lies below.
        parent: Option<usize>,
        /// Its name, or the beginning of it.
        name: String,
    },
    /// More of the name of an open stage.
    Named {
        /// Its number.
        stage: usize,
        /// The text to append.
        text: String,
    },
    /// The name of an open stage is whole, so that nothing of it needs to be held back. Readers do
    /// not get this change.
    NameEnded {
        /// Its number.
        stage: usize,
    },
    /// More of the text of an open stage.
    Wrote {
        /// Its number.
        stage: usize,
        /// The text to append.
        text: String,
    },
    /// A file of an open stage.
    Attached {
        /// Its number.
        stage: usize,
        /// The attachment.
        file: Raw,
    },
    /// An open stage ends.
    Closed {
        /// Its number.
        stage: usize,
        /// How it ended.
        status: StageStatus,
    },
}
