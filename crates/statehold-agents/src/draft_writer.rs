//! Writes the draft of a turn's answer: the texts of its models, message by message.

use crate::llm::EchoGuard;
use crate::runner::AgentRun;

/// Separator between the messages of one turn.
pub(crate) const MESSAGE_SEPARATOR: &str = "\n\n";

/// Writes model texts into the draft. A resumed turn writes its recorded texts again; the draft drops
/// text that its readers already have.
pub(crate) struct DraftWriter {
    write: Box<dyn Fn(&str) + Send + Sync>,
    has_text: bool,
    needs_separator: bool,
    /// Holds back what repeats the prompt of the agent.
    echo: Option<EchoGuard>,
}

impl DraftWriter {
    pub(crate) fn of(run: &AgentRun) -> Self {
        Self::new(run.draft_sink())
    }

    fn new(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            write: Box::new(write),
            has_text: false,
            needs_separator: false,
            echo: None,
        }
    }

    /// Holds back what repeats the prompt of the agent.
    pub(crate) fn guarded_by(self, echo: Option<EchoGuard>) -> Self {
        Self { echo, ..self }
    }

    /// Whether what was written repeats the prompt. Nothing more is shown then.
    pub(crate) fn has_echo(&mut self) -> bool {
        self.echo.as_mut().is_some_and(|echo| {
            echo.end_text();
            echo.has_echo()
        })
    }

    /// Shows what was held back: the answer ends here.
    pub(crate) fn finish(&mut self) {
        let rest = self.echo.as_mut().map(EchoGuard::finish);
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            (self.write)(&rest);
        }
    }

    /// Begins another message. A blank line goes before its first text.
    pub(crate) fn begin_message(&mut self) {
        self.needs_separator = self.has_text;
    }

    pub(crate) fn write(&mut self, piece: &str) {
        if piece.is_empty() {
            return;
        }
        self.has_text = true;
        if std::mem::take(&mut self.needs_separator) {
            self.show(MESSAGE_SEPARATOR);
        }
        self.show(piece);
    }

    fn show(&mut self, piece: &str) {
        let Some(echo) = &mut self.echo else {
            return (self.write)(piece);
        };
        let shown = echo.push(piece);
        if !shown.is_empty() {
            (self.write)(&shown);
        }
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
        let mut draft =
            DraftWriter::new(move |piece: &str| sink.lock().expect("no panic").push_str(piece));
        for message in [["Let me ", "see."], ["", ""], ["It is ", "4."]] {
            draft.begin_message();
            for piece in message {
                draft.write(piece);
            }
        }
        assert_eq!(
            *written.lock().expect("no panic"),
            "Let me see.\n\nIt is 4."
        );
    }
}
