//! Prints results: tables for people, tab-separated text for pipes, JSON for programs.
//!
//! Results go to standard output and everything else to standard error. Text reaches a table
//! through [`TableCell`], which escapes it.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::printable::{cell, json_text};
use super::times::TimeFormat;
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

    pub(super) fn table(&self, table: &TextTable) -> anyhow::Result<()> {
        write(&table.render(self.is_terminal, self.headers), "")
    }

    /// Prints a note on standard error, unless `--quiet` is set.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            // A closed terminal is no reason to fail.
            drop(writeln!(anstream::stderr(), "{text}"));
        }
    }
}

/// The columns of the terminal, within what reads well; 80 if there is none.
pub(super) fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 {
        return COLUMNS;
    }
    columns.clamp(COLUMNS / 2, COLUMNS * 3 / 2)
}

/// Breaks a line so that it fits, between words where it can.
pub(super) fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let (mut begin, mut blank, mut width) = (0, None, 0);
    for (at, c) in line.char_indices() {
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
            width = line[begin..at].width();
        }
        if c == ' ' {
            blank = Some(at);
        }
        width += own;
    }
    lines.push(line[begin..].to_owned());
    lines
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

/// One cell of a table.
#[derive(Debug, Clone)]
pub(super) struct TableCell {
    text: String,
    tone: TextTone,
}

impl TableCell {
    pub(super) fn new(text: impl AsRef<str>) -> Self {
        Self {
            text: cell(text.as_ref()),
            tone: TextTone::Plain,
        }
    }

    /// A cell with text that is already escaped.
    pub(super) fn shown(text: String) -> Self {
        let tone = TextTone::Plain;
        Self { text, tone }
    }

    /// A cell for an optional value.
    pub(super) fn optional(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::new("-"), Self::new)
    }

    /// A cell for a text in an answer.
    pub(super) fn of(value: &Value) -> Self {
        Self::optional(value.as_str())
    }

    pub(super) fn status(status: &str) -> Self {
        Self::new(status).tone(TextTone::of_status(status))
    }

    pub(super) fn tone(self, tone: TextTone) -> Self {
        Self { tone, ..self }
    }
}

/// Rows below a header line.
#[derive(Debug)]
pub(super) struct TextTable {
    headers: &'static [&'static str],
    rows: Vec<Vec<TableCell>>,
}

impl TextTable {
    pub(super) fn new(headers: &'static [&'static str]) -> Self {
        Self {
            headers,
            rows: Vec::new(),
        }
    }

    /// One row per fact: its name and its value.
    pub(super) fn facts(facts: Vec<(&str, TableCell)>, names: TextTone) -> Self {
        let rows = facts
            .into_iter()
            .map(|(name, value)| vec![TableCell::new(name).tone(names), value]);
        Self {
            headers: &[],
            rows: rows.collect(),
        }
    }

    pub(super) fn row(&mut self, cells: Vec<TableCell>) {
        self.rows.push(cells);
    }

    pub(super) fn render(&self, is_terminal: bool, has_headers: bool) -> String {
        let header: Vec<TableCell> = self
            .headers
            .iter()
            .map(|name| TableCell::new(name).tone(TextTone::Strong))
            .collect();
        let header = Some(header).filter(|header| has_headers && !header.is_empty());
        let rows: Vec<&Vec<TableCell>> = header.iter().chain(&self.rows).collect();
        let widths = widths(&rows);
        let mut text = String::new();
        for row in rows {
            if is_terminal {
                text.push_str(&align(row, &widths));
            } else {
                let cells: Vec<&str> = row.iter().map(|cell| cell.text.as_str()).collect();
                text.push_str(&cells.join("\t"));
            }
            text.push('\n');
        }
        text
    }
}

/// The spaces that fill a text up to `columns` of a terminal.
pub(super) fn padding(text: &str, columns: usize) -> String {
    " ".repeat(columns.saturating_sub(text.width()))
}

fn widths(rows: &[&Vec<TableCell>]) -> Vec<usize> {
    let mut widths = Vec::new();
    for row in rows {
        for (index, cell) in row.iter().enumerate() {
            let width = cell.text.width();
            match widths.get_mut(index) {
                None => widths.push(width),
                Some(widest) => *widest = width.max(*widest),
            }
        }
    }
    widths
}

fn align(row: &[TableCell], widths: &[usize]) -> String {
    let mut line = String::new();
    for (index, cell) in row.iter().enumerate() {
        line.push_str(&cell.tone.paint(&cell.text));
        if index + 1 < row.len() {
            line.push_str(&padding(&cell.text, widths[index] + 2));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(&["NAME", "STATUS"]);
        table.row(vec![
            TableCell::new("größer"),
            TableCell::new("paused").tone(TextTone::Warning),
        ]);
        table.row(vec![
            TableCell::optional(None::<&str>),
            TableCell::new("a\tb\nc"),
        ]);
        table
    }

    #[test]
    fn a_terminal_gets_columns_and_colour() {
        assert_eq!(
            table().render(true, true),
            "\u{1b}[1mNAME\u{1b}[0m    \u{1b}[1mSTATUS\u{1b}[0m\ngrößer  \u{1b}[33mpaused\u{1b}[0m\n\
             -       a\\tb\\nc\n"
        );
    }

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

    #[test]
    fn wide_letters_take_two_columns_and_marks_none() {
        let mut table = TextTable::new(&[]);
        for text in ["日本", "abcd", "e\u{301}"] {
            table.row(vec![TableCell::new(text), TableCell::new("|")]);
        }
        assert_eq!(
            table.render(true, false),
            "日本  |\nabcd  |\ne\u{301}     |\n"
        );
    }

    #[test]
    fn a_pipe_gets_tabs_and_nothing_can_add_a_column_or_a_row() {
        assert_eq!(
            table().render(false, true),
            "NAME\tSTATUS\ngrößer\tpaused\n-\ta\\tb\\nc\n"
        );
        assert_eq!(
            table().render(false, false),
            "größer\tpaused\n-\ta\\tb\\nc\n"
        );
    }
}
