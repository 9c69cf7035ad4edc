//! The answer of a turn while it is written: what its models say, message by message.

use crate::runner::Run;

/// Between the messages of one turn.
pub(crate) const BREAK: &str = "\n\n";

/// Says what the models of a turn say. A turn that goes on says its recorded words again; the draft knows
/// that those who watch have heard them.
pub(crate) struct Voice {
    say: Box<dyn Fn(&str) + Send + Sync>,
    has_spoken: bool,
    needs_break: bool,
}

impl Voice {
    pub(crate) fn of(run: &Run) -> Self {
        Self::new(run.sayer())
    }

    fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            say: Box::new(say),
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
            (self.say)(BREAK);
        }
        (self.say)(piece);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn messages_are_set_apart() {
        let written = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&written);
        let mut voice =
            Voice::new(move |piece: &str| sink.lock().expect("no panic").push_str(piece));
        for message in [["Let me ", "see."], ["", ""], ["It is ", "4."]] {
            voice.begin();
            for piece in message {
                voice.say(piece);
            }
        }
        assert_eq!(
            *written.lock().expect("no panic"),
            "Let me see.\n\nIt is 4."
        );
    }
}
