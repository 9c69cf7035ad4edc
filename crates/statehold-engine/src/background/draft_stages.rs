//! The stages of a draft: a log of changes that readers follow, from the first or from where they are.
//!
//! A turn that resumes writes its stages from the beginning. The log takes only what it does not have yet. A
//! stage that comes out differently stays as readers know it: they cannot be told to forget.

use statehold_core::redact::{Redactor, TextStream};

use crate::api::json::{Raw, raw_bytes};
use crate::stage::{STAGES_BYTES_MAX, STAGES_MAX, Stage, StageChange};

/// What an entry of the log costs beside its texts.
const ENTRY_BYTES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct StageLog {
    /// The changes, in order. Texts that follow each other are one entry, which grows.
    changes: Vec<StageChange>,
    /// The stages as the log tells them.
    shown: Vec<Stage>,
    /// How far the current writer has come with each stage.
    written: Vec<WrittenStage>,
    /// What the log costs.
    bytes: usize,
    /// The bytes of all texts that the current writer has written.
    written_bytes: usize,
}

/// How far the writer has come with a stage.
#[derive(Debug, Default)]
struct WrittenStage {
    name_bytes: usize,
    /// The text as it was written.
    text: String,
    /// Holds back what may become a secret.
    redaction: Option<TextStream>,
    /// How much of the text was shown, without its secrets.
    text_bytes: usize,
    files: usize,
    is_closed: bool,
    /// Whether it came out differently than in the log.
    is_other: bool,
}

/// How far a reader has read: entries, and bytes of the entry after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogPosition {
    entry: usize,
    bytes: usize,
}

impl StageLog {
    /// The memory of the log, and of what its writer has written.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.written_bytes
    }

    /// A writer starts at the first stage.
    pub(super) fn begin(&mut self) {
        self.written.clear();
        self.written_bytes = 0;
    }

    /// The end of the log.
    pub(super) fn end(&self) -> LogPosition {
        match self.changes.split_last() {
            Some((last, before)) if growing(last).is_some() => LogPosition {
                entry: before.len(),
                bytes: growing(last).map_or(0, str::len),
            },
            _ => LogPosition {
                entry: self.changes.len(),
                bytes: 0,
            },
        }
    }

    /// The next change after `place`; advances `place`.
    pub(super) fn after(&self, place: &mut LogPosition) -> Option<StageChange> {
        loop {
            let change = self.changes.get(place.entry)?;
            let is_last = place.entry + 1 == self.changes.len();
            let Some(text) = growing(change) else {
                *place = LogPosition {
                    entry: place.entry + 1,
                    bytes: 0,
                };
                return Some(change.clone());
            };
            let rest = text[place.bytes..].to_owned();
            *place = LogPosition {
                entry: place.entry + usize::from(!is_last),
                bytes: if is_last { text.len() } else { 0 },
            };
            if !rest.is_empty() {
                return Some(with_text(change, rest));
            }
            if is_last {
                return None;
            }
        }
    }

    /// Takes a change of the writer, without its secrets.
    pub(super) fn write(&mut self, change: StageChange, redactor: Option<&Redactor>) {
        match change {
            StageChange::Opened { parent, name } => {
                self.open(parent, &redacted(&name, redactor));
            }
            StageChange::Named { stage, text } => self.push_name(stage, &redacted(&text, redactor)),
            StageChange::Wrote { stage, text } => self.push_text(stage, &text, redactor),
            StageChange::Attached { stage, file } => self.attach(stage, &file, redactor),
            StageChange::Closed { stage, status } => {
                self.show_rest(stage, redactor);
                let Some((written, shown)) = self.stage(stage) else {
                    return;
                };
                written.is_closed = true;
                if shown.status.is_none() {
                    shown.status = Some(status);
                    self.push(StageChange::Closed { stage, status });
                }
            }
        }
    }

    fn open(&mut self, parent: Option<usize>, name: &str) {
        if self.written.len() == STAGES_MAX {
            return;
        }
        let mut written = WrittenStage {
            name_bytes: name.len(),
            ..WrittenStage::default()
        };
        if let Some(shown) = self.shown.get(self.written.len()) {
            written.is_other = shown.parent != parent || !shown.name.starts_with(name);
            self.written.push(written);
            return;
        }
        self.written.push(written);
        let name = name.to_owned();
        self.shown.push(Stage {
            name: name.clone(),
            parent,
            ..Stage::default()
        });
        self.push(StageChange::Opened { parent, name });
    }

    fn push_name(&mut self, stage: usize, text: &str) {
        let Some((written, shown)) = self.stage(stage) else {
            return;
        };
        let Some(new) = grow(&mut shown.name, &mut written.name_bytes, text) else {
            written.is_other = true;
            return;
        };
        self.push_piece(StageChange::Named { stage, text: new });
    }

    fn push_text(&mut self, stage: usize, text: &str, redactor: Option<&Redactor>) {
        if self.written_bytes + text.len() > STAGES_BYTES_MAX {
            return;
        }
        let Some((written, _)) = self.stage(stage) else {
            return;
        };
        let piece = match redactor {
            None => text.to_owned(),
            Some(redactor) => {
                written.text.push_str(text);
                let stream = &mut written.redaction;
                let stream = stream.get_or_insert_with(|| TextStream::new(redactor.clone()));
                stream.push(text)
            }
        };
        self.written_bytes += text.len();
        self.show_text(stage, &piece);
    }

    fn show_text(&mut self, stage: usize, piece: &str) {
        let Some((written, shown)) = self.stage(stage) else {
            return;
        };
        let Some(new) = grow(&mut shown.content, &mut written.text_bytes, piece) else {
            written.is_other = true;
            return;
        };
        self.push_piece(StageChange::Wrote { stage, text: new });
    }

    /// Shows the text of a stage that was held back: the stage ends, so the text is whole.
    fn show_rest(&mut self, stage: usize, redactor: Option<&Redactor>) {
        let (Some(redactor), Some((written, shown))) = (redactor, self.stage(stage)) else {
            return;
        };
        let text = std::mem::take(&mut written.text);
        let whole = redacted(&text, Some(redactor));
        let known = &shown.content[..written.text_bytes.min(shown.content.len())];
        if let Some(rest) = whole.strip_prefix(known) {
            let rest = rest.to_owned();
            self.show_text(stage, &rest);
        }
    }

    fn attach(&mut self, stage: usize, file: &Raw, redactor: Option<&Redactor>) {
        let Some((written, shown)) = self.stage(stage) else {
            return;
        };
        let hidden = redactor.and_then(|redactor| redactor.json(file.get(), &[]));
        let file = hidden.map_or_else(|| file.clone(), |hidden| raw_bytes(hidden.text.as_bytes()));
        let place = written.files;
        written.files += 1;
        if let Some(known) = shown.attachments.get(place) {
            written.is_other = known.get() != file.get();
            return;
        }
        shown.attachments.push(file.clone());
        self.push_piece(StageChange::Attached { stage, file });
    }

    /// A stage that is open for its writer, and came out as in the log so far.
    fn stage(&mut self, stage: usize) -> Option<(&mut WrittenStage, &mut Stage)> {
        let written = self.written.get_mut(stage)?;
        let is_open = !written.is_closed && !written.is_other;
        Some((written, self.shown.get_mut(stage)?)).filter(|_| is_open)
    }

    /// Adds a change with text or a file, unless the log is full.
    fn push_piece(&mut self, change: StageChange) {
        if self.bytes + bytes_of(&change) > STAGES_BYTES_MAX || growing(&change) == Some("") {
            return;
        }
        self.push(change);
    }

    fn push(&mut self, change: StageChange) {
        let bytes = bytes_of(&change);
        let grown = self.changes.last_mut().zip(growing(&change));
        let is_grown = grown.is_some_and(|(last, text)| match (last, &change) {
            (StageChange::Wrote { stage, text: known }, StageChange::Wrote { stage: same, .. })
            | (StageChange::Named { stage, text: known }, StageChange::Named { stage: same, .. })
                if *stage == *same =>
            {
                known.push_str(text);
                true
            }
            _ => false,
        });
        self.bytes += bytes;
        if !is_grown {
            self.bytes += ENTRY_BYTES;
            self.changes.push(change);
        }
    }
}

/// Appends a piece to a text of which the writer has written the first `written` bytes again. Returns the new part,
/// or None if the piece differs from what the text has there.
fn grow(text: &mut String, written: &mut usize, piece: &str) -> Option<String> {
    let known = text.get(*written..)?;
    if known.starts_with(piece) {
        *written += piece.len();
        return Some(String::new());
    }
    let new = piece.strip_prefix(known)?.to_owned();
    text.push_str(&new);
    *written = text.len();
    Some(new)
}

/// The text of an entry to which more may be appended.
fn growing(change: &StageChange) -> Option<&str> {
    match change {
        StageChange::Named { text, .. } | StageChange::Wrote { text, .. } => Some(text),
        StageChange::Opened { .. } | StageChange::Attached { .. } | StageChange::Closed { .. } => {
            None
        }
    }
}

fn with_text(change: &StageChange, text: String) -> StageChange {
    match change {
        StageChange::Named { stage, .. } => StageChange::Named {
            stage: *stage,
            text,
        },
        StageChange::Wrote { stage, .. } => StageChange::Wrote {
            stage: *stage,
            text,
        },
        other => other.clone(),
    }
}

fn bytes_of(change: &StageChange) -> usize {
    match change {
        StageChange::Opened { name, .. } => name.len(),
        StageChange::Named { text, .. } | StageChange::Wrote { text, .. } => text.len(),
        StageChange::Attached { file, .. } => file.get().len(),
        StageChange::Closed { .. } => 0,
    }
}

fn redacted(text: &str, redactor: Option<&Redactor>) -> String {
    let hidden = redactor.and_then(|redactor| redactor.text(text));
    hidden.map_or_else(|| text.to_owned(), |hidden| hidden.text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stage::StageStatus;

    fn opened(parent: Option<usize>, name: &str) -> StageChange {
        StageChange::Opened {
            parent,
            name: name.to_owned(),
        }
    }

    fn wrote(stage: usize, text: &str) -> StageChange {
        StageChange::Wrote {
            stage,
            text: text.to_owned(),
        }
    }

    fn closed(stage: usize) -> StageChange {
        let status = StageStatus::Completed;
        StageChange::Closed { stage, status }
    }

    /// All that a reader gets from its place, in short.
    fn read(log: &StageLog, place: &mut LogPosition) -> String {
        let changes = std::iter::from_fn(|| log.after(place));
        let shown = changes.map(|change| match change {
            StageChange::Opened { parent: None, name } => format!("+{name}"),
            StageChange::Opened {
                parent: Some(parent),
                name,
            } => format!("+{parent}/{name}"),
            StageChange::Named { stage, text } => format!("{stage}~{text}"),
            StageChange::Wrote { stage, text } => format!("{stage}:{text}"),
            StageChange::Attached { stage, file } => format!("{stage}@{file}"),
            StageChange::Closed { stage, .. } => format!("-{stage}"),
        });
        let shown: Vec<String> = shown.collect();
        let end = log.end();
        assert_eq!(*place, end, "a reader who has read all is at the end");
        shown.join(" ")
    }

    #[test]
    fn readers_get_changes_in_order_and_growing_texts_in_parts() {
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        for change in [opened(None, "a"), opened(Some(0), "b"), wrote(1, "one ")] {
            log.write(change, None);
        }
        assert_eq!(read(&log, &mut place), "+a +0/b 1:one ");
        log.write(wrote(1, "two"), None);
        assert_eq!(read(&log, &mut place), "1:two");
        assert_eq!(read(&log, &mut place), "");
        log.write(closed(1), None);
        log.write(wrote(1, "too late"), None);
        log.write(wrote(0, "x"), None);
        assert_eq!(read(&log, &mut place), "-1 0:x");
        let mut late = LogPosition::default();
        assert_eq!(read(&log, &mut late), "+a +0/b 1:one two -1 0:x");
    }

    #[test]
    fn a_resumed_writer_adds_only_what_is_new() {
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        for change in [opened(None, "a"), wrote(0, "one t")] {
            log.write(change, None);
        }
        assert_eq!(read(&log, &mut place), "+a 0:one t");
        log.begin();
        for change in [opened(None, "a"), wrote(0, "one"), wrote(0, " two")] {
            log.write(change, None);
        }
        assert_eq!(read(&log, &mut place), "0:wo");
        log.begin();
        // A stage that differs stays as it was shown; the next ones go on.
        for change in [opened(None, "a"), wrote(0, "other"), opened(None, "b")] {
            log.write(change, None);
        }
        assert_eq!(read(&log, &mut place), "+b");
    }

    #[test]
    fn a_secret_in_a_stage_is_never_shown_and_the_rest_comes_when_it_closes() {
        let redactor = Redactor::new(Vec::new());
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        let secret = format!("ghp_{}", "a1B2c3D4e5".repeat(4));
        let (one, two) = secret.split_at(9);
        for change in [
            opened(None, "call"),
            wrote(0, "the token "),
            wrote(0, one),
            wrote(0, two),
            opened(None, &format!("with {secret}")),
        ] {
            log.write(change, Some(&redactor));
        }
        log.write(
            wrote(1, r#"{"password": "hunter2hunter2"}"#),
            Some(&redactor),
        );
        for stage in [0, 1] {
            log.write(closed(stage), Some(&redactor));
        }
        let shown = read(&log, &mut place);
        assert!(
            !shown.contains(one) && !shown.contains("hunter2"),
            "{shown}"
        );
        assert!(shown.contains("0:[redacted:github-token] -0"), "{shown}");
        assert!(shown.contains(r#"1:{"password": "[redacted"#), "{shown}");
    }

    #[test]
    fn a_log_is_bounded_and_still_says_what_ended() {
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        for _ in 0..STAGES_MAX + 10 {
            log.write(opened(None, "stage"), None);
        }
        for number in 0..STAGES_MAX + 10 {
            log.write(wrote(number, &"x".repeat(1_024)), None);
            log.write(closed(number), None);
        }
        let shown = read(&log, &mut place);
        assert_eq!(shown.matches('+').count(), STAGES_MAX);
        assert_eq!(shown.matches('-').count(), STAGES_MAX);
        assert!(shown.len() < STAGES_BYTES_MAX + 64 * STAGES_MAX);
    }

    proptest! {
        /// However a resumed writer cuts its texts, a reader ends with the texts of the longer attempt.
        #[test]
        fn cuts_do_not_matter(
            text in "[a-z ]{0,40}",
            first in 0usize..40,
            cuts in proptest::collection::vec(1usize..7, 1..20),
        ) {
            let (mut log, mut place) = (StageLog::default(), LogPosition::default());
            let mut seen = String::new();
            let mut take = |log: &StageLog| while let Some(change) = log.after(&mut place) {
                if let StageChange::Wrote { text, .. } = change {
                    seen.push_str(&text);
                }
            };
            log.write(opened(None, "a"), None);
            log.write(wrote(0, &text[..first.min(text.len())]), None);
            take(&log);
            log.begin();
            log.write(opened(None, "a"), None);
            let mut rest = text.as_str();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at(rest.len().min(*cut));
                log.write(wrote(0, piece), None);
                rest = after;
                take(&log);
            }
            prop_assert_eq!(seen, text);
        }
    }
}
