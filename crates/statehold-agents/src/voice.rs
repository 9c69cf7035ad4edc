//! The answer of a turn while it is written, from its first word on, whoever wrote the beginning.

use futures_util::FutureExt;

use crate::runner::Run;

/// Between the messages of one turn.
pub(crate) const BREAK: &str = "\n\n";

/// Says what the models of a turn say, once: a turn that goes on after a pause says its recorded words
/// again, and those who watch have heard them.
pub(crate) struct Voice {
    say: Box<dyn Fn(&str) + Send + Sync>,
    /// What was heard already and is not yet said again.
    heard: String,
    /// What was heard is not what is said: those who watch get the answer when it is committed.
    is_astray: bool,
    has_spoken: bool,
    needs_break: bool,
}

impl Voice {
    pub(crate) fn of(run: &Run) -> Self {
        let mut draft = run.engine.follow_draft(run.place.request);
        let heard = draft.next().now_or_never().flatten();
        Self::new(Box::new(run.sayer()), heard.unwrap_or_default())
    }

    fn new(say: Box<dyn Fn(&str) + Send + Sync>, heard: String) -> Self {
        Self {
            say,
            heard,
            is_astray: false,
            has_spoken: false,
            needs_break: false,
        }
    }

    /// Another message begins. Its first word comes after a blank line.
    pub(crate) fn begin(&mut self) {
        self.needs_break = self.has_spoken;
    }

    pub(crate) fn say(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        self.has_spoken = true;
        if std::mem::take(&mut self.needs_break) {
            self.add(BREAK);
        }
        self.add(piece);
    }

    fn add(&mut self, piece: &str) {
        if self.is_astray {
            return;
        }
        if self.heard.is_empty() {
            (self.say)(piece);
        } else if self.heard.starts_with(piece) {
            self.heard.drain(..piece.len());
        } else if let Some(rest) = piece.strip_prefix(self.heard.as_str()) {
            (self.say)(rest);
            self.heard.clear();
        } else {
            self.is_astray = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[track_caller]
    fn check(heard: &str, messages: &[&[&str]], said: &str) {
        let written = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&written);
        let say = move |piece: &str| sink.lock().expect("no panic").push_str(piece);
        let mut voice = Voice::new(Box::new(say), heard.to_owned());
        for message in messages {
            voice.begin();
            for piece in *message {
                voice.say(piece);
            }
        }
        assert_eq!(*written.lock().expect("no panic"), said);
    }

    #[test]
    fn messages_are_set_apart_and_what_was_heard_is_not_said_again() {
        let all: &[&[&str]] = &[&["Let me ", "see."], &[""], &["It is 4."]];
        check("", all, "Let me see.\n\nIt is 4.");
        check("Let", all, " me see.\n\nIt is 4.");
        check("Let me see.", all, "\n\nIt is 4.");
        check("Let me see.\n", all, "\nIt is 4.");
        check("Let me see.\n\nIt is 4.", all, "");
    }

    #[test]
    fn whoever_heard_something_else_is_not_told_the_rest() {
        check("Let us see", &[&["Let me ", "see."]], "");
    }
}
