//! Prints results: tables for people, tab-separated text for pipes, JSON for programs.
//!
//! Results go to standard output and everything else to standard error. Text reaches a table
//! through [`TableCell`], which escapes it. On a terminal, notes fit its columns, and commands in them can be
//! typed as they are.

use std::io::Write;

use rustix::termios::Winsize;
use serde::Serialize;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::hints::{fitted, typed};
use super::printable::json_text;
use super::times::TimeFormat;

pub(super) use super::table::{TableCell, TextTable, padding};
use crate::exit::{Exit, LostReader};

/// The width of a terminal that does not say its own.
const COLUMNS: usize = 80;

/// How to print results.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct CliOutput {
    pub(super) is_terminal: bool,
    pub(super) json: bool,
    pub(super) quiet: bool,
    pub(super) headers: bool,
    pub(super) times: TimeFormat,
    /// The width that texts are broken at.
    pub(super) columns: usize,
}

impl CliOutput {
    /// Prints a line to standard output. `anstream` strips colour where it is not wanted.
    #[expect(
        clippy::unused_self,
        reason = "every command prints through its output"
    )]
    pub(super) fn line(&self, text: &str) -> anyhow::Result<()> {
        write(text, "\n")
    }

    /// Prints one JSON document, the whole output of a command.
    pub(super) fn json(&self, value: &impl Serialize) -> anyhow::Result<Exit> {
        let mut json = serde_json::to_string(value)?;
        if self.is_terminal {
            // A terminal obeys some characters that a program just reads.
            json = json_text(&json);
        }
        self.line(&json)?;
        Ok(Exit::Done)
    }

    /// A cell for a time in an answer.
    pub(super) fn time(&self, at: &Value) -> TableCell {
        // Commands that follow a feed run long.
        let times = self.times.at_present();
        TableCell::optional(at.as_str().map(|at| times.show(at)))
    }

    /// The columns to fit texts to; none in a pipe.
    pub(super) fn fit(&self) -> Option<usize> {
        self.is_terminal.then_some(self.columns)
    }

    pub(super) fn table(&self, table: &TextTable) -> anyhow::Result<()> {
        write(&table.render(self.fit(), self.headers), "")
    }

    /// Prints a note on standard error, unless `--quiet` is set.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            let text = typed(text);
            let text =
                error_columns().map_or(text.clone(), |columns| fitted(&text, columns).join("\n"));
            // A closed terminal is no reason to fail.
            drop(writeln!(anstream::stderr(), "{text}"));
        }
    }

    /// Prints prose to standard output: on a terminal, its words wrap and its commands can be typed.
    pub(super) fn prose(&self, text: &str) -> anyhow::Result<()> {
        let text = typed(text);
        match self.fit() {
            Some(columns) => self.line(&fitted(&text, columns).join("\n")),
            None => self.line(&text),
        }
    }
}

/// The columns of the terminal that errors and notes go to. None if it is no terminal.
pub(super) fn error_columns() -> Option<usize> {
    let errors = std::io::stderr();
    let size = rustix::termios::tcgetwinsize(errors).ok();
    size.map(within_reason)
}

/// The columns of the terminal, within what reads well; 80 if there is none.
pub(super) fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    size.map_or(COLUMNS, within_reason)
}

/// The columns of a terminal, within what reads well.
fn within_reason(size: Winsize) -> usize {
    match usize::from(size.ws_col) {
        0 => COLUMNS,
        columns => columns.clamp(COLUMNS / 2, COLUMNS * 3 / 2),
    }
}

/// The columns that a text takes. Colours take none.
pub(super) fn visible_width(text: &str) -> usize {
    if text.contains('\u{1b}') {
        anstream::adapter::strip_str(text).to_string().width()
    } else {
        text.width()
    }
}

/// Breaks a line so that it fits, between words where it can. Colours take no columns.
pub(super) fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let (mut begin, mut blank, mut width) = (0, None, 0);
    let mut is_colour = false;
    for (at, c) in line.char_indices() {
        if c == '\u{1b}' || is_colour {
            is_colour = c != 'm';
            continue;
        }
        let own = c.width().unwrap_or(0);
        if width + own > columns && at > begin {
            if c == ' ' {
                lines.push(line[begin..at].to_owned());
                (begin, blank, width) = (at + 1, None, 0);
                continue;
            }
            let end = blank.unwrap_or(at);
            lines.push(line[begin..end].to_owned());
            begin = if blank.is_some() { end + 1 } else { end };
            blank = None;
            width = visible_width(&line[begin..at]);
        }
        if c == ' ' {
            blank = Some(at);
        }
        width += own;
    }
    lines.push(line[begin..].to_owned());
    lines
}

/// A number of things: `1 key`, `2 keys`.
pub(super) fn plural(count: usize, what: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {what}{end}")
}

/// Writes to standard output at once.
pub(super) fn write(text: &str, end: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.write_all(end.as_bytes()))
        .and_then(|()| out.flush())
        .map_err(|error| LostReader(error).into())
}

/// The emphasis of a text. Colour must never be the only carrier of a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextTone {
    Plain,
    Strong,
    Dim,
    Good,
    Warning,
    Bad,
}

impl TextTone {
    /// The tone of a status.
    pub(super) fn of_status(status: &str) -> Self {
        match status {
            "running" | "completed" | "approved" | "edited" | "answered" => Self::Good,
            "paused" | "held" | "waiting" | "open" => Self::Warning,
            "failed" | "cancelled" | "rejected" | "expired" => Self::Bad,
            "closed" | "idle" | "queued" => Self::Dim,
            _ => Self::Plain,
        }
    }

    pub(super) fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Strong => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_broken_between_words_and_a_long_word_anywhere() {
        for (line, columns, expected) in [
            ("one two three", 8, vec!["one two", "three"]),
            ("one two three", 7, vec!["one two", "three"]),
            ("abcdefghij kl", 4, vec!["abcd", "efgh", "ij", "kl"]),
            ("日本語の会話", 5, vec!["日本", "語の", "会話"]),
            ("", 5, vec![""]),
            ("a  b", 2, vec!["a ", "b"]),
        ] {
            assert_eq!(wrapped(line, columns), expected, "{line}");
        }
    }
}
