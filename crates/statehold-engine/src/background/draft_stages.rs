//! The stages of a draft: a log of changes that readers follow, from the first or from where they
//! are.
//!
//! A turn that resumes writes its stages from the beginning. The log takes only what it does not
//! have yet. A stage that comes out differently stays as readers know it: they cannot be told to
//! forget.

use statehold_core::redact::{Redactor, TextStream};

use crate::api::json::{Raw, raw_bytes};
use crate::stage::{STAGES_BYTES_MAX, STAGES_MAX, Stage, StageChange};

/// Bytes counted per entry of the log on top of its texts.
const ENTRY_BYTES: usize = 64;

/// A shorter end of a name is shown, although it may become a secret.
const NAME_RELEASED_BYTES: usize = 4;

#[derive(Debug, Default)]
pub(super) struct StageLog {
    /// The changes, in order. Texts that follow each other are one entry, which grows.
    changes: Vec<StageChange>,
    /// The stages as the log tells them.
    shown: Vec<Stage>,
    /// How far the current writer has come with each stage.
    written: Vec<WrittenStage>,
    /// The bytes of the log in memory.
    bytes: usize,
    /// The bytes of all texts that the current writer has written.
    written_bytes: usize,
}

/// How far the writer has come with a stage.
#[derive(Debug, Default)]
struct WrittenStage {
    name: WrittenText,
    content: WrittenText,
    files: usize,
    is_closed: bool,
    /// This writer's stage differs from what readers were shown.
    has_diverged: bool,
    /// Whether a piece did not fit. Later pieces are dropped, so that no text has a gap, and
    /// readers do not learn that the stage has ended: the committed answer has the rest of it.
    is_full: bool,
}

/// A text of a stage on its way to readers.
#[derive(Debug, Default)]
struct WrittenText {
    /// The text as it was written, if it is redacted.
    whole: String,
    /// Holds back what may become a secret.
    redaction: Option<TextStream>,
    /// Whether the text was whole before. What comes later is shown when it is whole again.
    has_ended: bool,
    /// How much of the text was shown, without its secrets.
    shown_bytes: usize,
}

/// The texts of a stage.
#[derive(Debug, Clone, Copy)]
enum TextPart {
    Name,
    Content,
}

impl WrittenStage {
    fn text(&mut self, part: TextPart) -> &mut WrittenText {
        match part {
            TextPart::Name => &mut self.name,
            TextPart::Content => &mut self.content,
        }
    }
}

impl WrittenText {
    /// Takes the next piece, and returns what can be shown.
    fn push(&mut self, piece: &str, redactor: Option<&Redactor>) -> String {
        let Some(redactor) = redactor else {
            return piece.to_owned();
        };
        self.whole.push_str(piece);
        if self.has_ended {
            return String::new();
        }
        let stream = &mut self.redaction;
        let stream = stream.get_or_insert_with(|| TextStream::new(redactor.clone()));
        stream.push(piece)
    }

    /// The held-back part, if it is short. A name is mostly whole when it comes, and its end may be
    /// known late.
    fn release_short(&mut self) -> String {
        let stream = self.redaction.as_mut();
        let shown = stream.map(|stream| stream.release_short(NAME_RELEASED_BYTES));
        shown.unwrap_or_default()
    }

    /// The text is whole. Returns the part that was held back; `shown` is the text as readers know
    /// it. None if the whole text, without its secrets, does not begin with what was shown of it.
    fn end(&mut self, shown: &str, redactor: Option<&Redactor>) -> Option<String> {
        let redactor = redactor?;
        (self.has_ended, self.redaction) = (true, None);
        let whole = redacted(&self.whole, redactor);
        let known = &shown[..self.shown_bytes.min(shown.len())];
        whole.strip_prefix(known).map(str::to_owned)
    }
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
            StageChange::Opened { parent, name } => self.open(parent, &name, redactor),
            StageChange::Named { stage, text } => {
                self.push_text((stage, TextPart::Name), &text, redactor);
            }
            StageChange::NameEnded { stage } => self.show_rest((stage, TextPart::Name), redactor),
            StageChange::Wrote { stage, text } => {
                self.push_text((stage, TextPart::Content), &text, redactor);
            }
            StageChange::Attached { stage, file } => self.attach(stage, &file, redactor),
            StageChange::Closed { stage, status } => {
                self.show_rest((stage, TextPart::Name), redactor);
                self.show_rest((stage, TextPart::Content), redactor);
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

    fn open(&mut self, parent: Option<usize>, name: &str, redactor: Option<&Redactor>) {
        let number = self.written.len();
        if number == STAGES_MAX {
            return;
        }
        let mut written = WrittenStage::default();
        let mut name = written.name.push(name, redactor);
        name.push_str(&written.name.release_short());
        self.written_bytes += written.name.whole.len();
        if let Some(shown) = self.shown.get(number) {
            written.has_diverged = shown.parent != parent;
            self.written.push(written);
            self.show((number, TextPart::Name), &name);
            return;
        }
        written.name.shown_bytes = name.len();
        self.written.push(written);
        self.shown.push(Stage {
            name: name.clone(),
            parent,
            ..Stage::default()
        });
        self.push(StageChange::Opened { parent, name });
    }

    fn push_text(
        &mut self,
        (stage, part): (usize, TextPart),
        text: &str,
        redactor: Option<&Redactor>,
    ) {
        let has_room = self.written_bytes + text.len() <= STAGES_BYTES_MAX;
        let Some((written, _)) = self.stage(stage) else {
            return;
        };
        if !has_room {
            written.is_full = true;
            return;
        }
        let mut piece = written.text(part).push(text, redactor);
        if let TextPart::Name = part {
            piece.push_str(&written.name.release_short());
        }
        self.written_bytes += text.len();
        self.show((stage, part), &piece);
    }

    /// Shows the next piece of a text, as far as readers do not know it.
    fn show(&mut self, (stage, part): (usize, TextPart), piece: &str) {
        let room = self.room();
        let Some((written, shown)) = self.stage(stage) else {
            return;
        };
        let known = match part {
            TextPart::Name => &mut shown.name,
            TextPart::Content => &mut shown.content,
        };
        let shown_bytes = &mut written.text(part).shown_bytes;
        let Some(unread) = known.get(*shown_bytes..) else {
            return;
        };
        if unread.starts_with(piece) {
            *shown_bytes += piece.len();
            return;
        }
        let Some(new) = piece.strip_prefix(unread).map(str::to_owned) else {
            written.has_diverged = true;
            return;
        };
        if new.len() > room {
            written.is_full = true;
            return;
        }
        known.push_str(&new);
        *shown_bytes = known.len();
        self.push(match part {
            TextPart::Name => StageChange::Named { stage, text: new },
            TextPart::Content => StageChange::Wrote { stage, text: new },
        });
    }

    /// Shows the part of a text that was held back: the text is whole.
    fn show_rest(&mut self, (stage, part): (usize, TextPart), redactor: Option<&Redactor>) {
        let Some((written, shown)) = self.stage(stage) else {
            return;
        };
        let shown = match part {
            TextPart::Name => &shown.name,
            TextPart::Content => &shown.content,
        };
        if let Some(rest) = written.text(part).end(shown, redactor) {
            self.show((stage, part), &rest);
        }
    }

    fn attach(&mut self, stage: usize, file: &Raw, redactor: Option<&Redactor>) {
        let room = self.room();
        let Some((written, shown)) = self.stage(stage) else {
            return;
        };
        let hidden = redactor.and_then(|redactor| redactor.json(file.get(), &[]));
        let file = hidden.map_or_else(|| file.clone(), |hidden| raw_bytes(hidden.text.as_bytes()));
        if let Some(known) = shown.attachments.get(written.files) {
            written.files += 1;
            written.has_diverged = known.get() != file.get();
            return;
        }
        if file.get().len() > room {
            written.is_full = true;
            return;
        }
        written.files += 1;
        shown.attachments.push(file.clone());
        self.push(StageChange::Attached { stage, file });
    }

    /// A stage that takes changes: open for its writer, as readers were shown it so far, and not
    /// full.
    fn stage(&mut self, stage: usize) -> Option<(&mut WrittenStage, &mut Stage)> {
        let written = self.written.get_mut(stage)?;
        let is_open = !written.is_closed && !written.has_diverged && !written.is_full;
        Some((written, self.shown.get_mut(stage)?)).filter(|_| is_open)
    }

    /// The bytes that the next text or file may have.
    fn room(&self) -> usize {
        STAGES_BYTES_MAX.saturating_sub(self.bytes + ENTRY_BYTES)
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

/// The text of an entry to which more may be appended.
fn growing(change: &StageChange) -> Option<&str> {
    match change {
        StageChange::Named { text, .. } | StageChange::Wrote { text, .. } => Some(text),
        StageChange::Opened { .. }
        | StageChange::NameEnded { .. }
        | StageChange::Attached { .. }
        | StageChange::Closed { .. } => None,
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
        StageChange::NameEnded { .. } | StageChange::Closed { .. } => 0,
    }
}

fn redacted(text: &str, redactor: &Redactor) -> String {
    let hidden = redactor.text(text);
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
            StageChange::NameEnded { .. } => unreachable!("it is for the log alone"),
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
        // A stage that has diverged stays as it was shown; the next ones go on.
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

    fn named(stage: usize, text: &str) -> StageChange {
        let text = text.to_owned();
        StageChange::Named { stage, text }
    }

    #[test]
    fn a_secret_in_two_pieces_of_a_name_is_never_shown() {
        let redactor = Redactor::new(Vec::new());
        let secret = format!("ghp_{}", "a1B2c3D4e5".repeat(4));
        let (one, two) = secret.split_at(10);
        for end in [StageChange::NameEnded { stage: 0 }, closed(0)] {
            let (mut log, mut place) = (StageLog::default(), LogPosition::default());
            let first = format!("with {one}");
            for change in [opened(None, &first), named(0, two), end, closed(0)] {
                log.write(change, Some(&redactor));
            }
            let shown = read(&log, &mut place);
            assert!(!shown.contains(one), "{shown}");
            assert!(
                shown.contains("+with  0~[redacted:github-token]"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_short_name_is_shown_at_once_and_no_secret_that_begins_with_it() {
        let redactor = Redactor::new(Vec::new());
        let secret = format!("ghp_{}", "a1B2c3D4e5".repeat(4));
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        log.write(opened(None, "Step gh"), Some(&redactor));
        assert_eq!(read(&log, &mut place), "+Step gh");
        log.write(named(0, &secret[2..20]), Some(&redactor));
        log.write(named(0, &secret[20..]), Some(&redactor));
        log.write(closed(0), Some(&redactor));
        let shown = read(&log, &mut place);
        assert!(!shown.contains(&secret[2..8]), "{shown}");
    }

    #[test]
    fn a_secret_in_pieces_of_a_name_is_not_shown_however_short_they_are() {
        let redactor = Redactor::new(Vec::new());
        let secret = format!("ghp_{}", "a1B2c3D4e5".repeat(4));
        for size in 1..=5 {
            let (mut log, mut place) = (StageLog::default(), LogPosition::default());
            log.write(opened(None, "by "), Some(&redactor));
            for piece in secret.as_bytes().chunks(size) {
                let piece = std::str::from_utf8(piece).expect("ASCII");
                log.write(named(0, piece), Some(&redactor));
            }
            log.write(closed(0), Some(&redactor));
            let shown = read(&log, &mut place);
            assert!(!shown.contains(&secret[..6]), "{size}: {shown}");
        }
    }

    #[test]
    fn a_name_that_goes_on_after_its_end_never_completes_a_secret() {
        let redactor = Redactor::new(Vec::new());
        let secret = format!("ghp_{}", "a1B2c3D4e5".repeat(4));
        let (one, two) = secret.split_at(10);
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        let name_ended = || StageChange::NameEnded { stage: 0 };
        for change in [
            opened(None, one),
            name_ended(),
            named(0, two),
            name_ended(),
            closed(0),
        ] {
            log.write(change, Some(&redactor));
        }
        let shown = read(&log, &mut place);
        assert!(!shown.contains(two), "{shown}");
        for change in [
            opened(None, "plain"),
            StageChange::NameEnded { stage: 1 },
            named(1, " and late"),
            closed(1),
        ] {
            log.write(change, Some(&redactor));
        }
        assert_eq!(read(&log, &mut place), "+plain 1~ and late -1");
    }

    #[test]
    fn a_log_is_bounded_and_still_says_what_ended() {
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        for _ in 0..STAGES_MAX + 10 {
            log.write(opened(None, "stage"), None);
        }
        for number in 0..STAGES_MAX + 10 {
            log.write(wrote(number, &"x".repeat(1_024)), None);
            log.write(wrote(number, "y"), None);
            log.write(closed(number), None);
        }
        let shown = read(&log, &mut place);
        assert_eq!(shown.matches('+').count(), STAGES_MAX);
        // Stages whose text did not fit have neither a text with a gap nor an end.
        let whole = format!("{}y", "x".repeat(1_024));
        let texts = shown.split(' ').filter_map(|change| change.split_once(':'));
        let texts: Vec<_> = texts.map(|(_, text)| text == whole).collect();
        assert!(!texts.is_empty() && texts.iter().all(|is_whole| *is_whole));
        assert_eq!(shown.matches('-').count(), texts.len());
        assert!(shown.len() < STAGES_BYTES_MAX + 64 * STAGES_MAX);
    }

    #[test]
    fn a_text_of_a_full_log_has_no_gap_and_its_stage_stays_open() {
        let (mut log, mut place) = (StageLog::default(), LogPosition::default());
        let mut texts = [String::new(), String::new()];
        for stage in [opened(None, "a"), opened(None, "b"), opened(None, "c")] {
            log.write(stage, None);
        }
        for number in 0..20_000 {
            let piece = format!("{number:04} ");
            let piece = &piece[..piece.len() - number % 3];
            log.write(wrote(number % 2, piece), None);
            texts[number % 2].push_str(piece);
        }
        for stage in [0, 1, 2] {
            log.write(closed(stage), None);
        }
        let (mut shown, mut ended) = ([String::new(), String::new()], Vec::new());
        while let Some(change) = log.after(&mut place) {
            match change {
                StageChange::Wrote { stage, text } => shown[stage].push_str(&text),
                StageChange::Closed { stage, .. } => ended.push(stage),
                _ => {}
            }
        }
        for (shown, text) in shown.iter().zip(&texts) {
            assert!(shown.len() < text.len() && text.starts_with(shown.as_str()));
        }
        assert_eq!(ended, [2]);
    }

    proptest! {
        /// However a resumed writer cuts its texts, a reader ends with the texts of the longer
        /// attempt.
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
