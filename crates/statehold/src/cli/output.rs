//! Where results go: tables for people, tab-separated text for pipes, JSON for programs.
//!
//! Results are written to standard output and everything else to standard error. Text reaches a
//! table through [`Cell`], which makes it safe to show.

use std::io::Write;

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::printable::cell;
use super::times::Times;
use crate::exit::LostReader;

/// How results are printed.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct Output {
    pub(super) is_terminal: bool,
    pub(super) json: bool,
    pub(super) quiet: bool,
    pub(super) headers: bool,
    pub(super) times: Times,
}

impl Output {
    /// Prints a line to standard output. Colour is left out where it is not wanted.
    #[expect(clippy::unused_self, reason = "whoever prints has an output")]
    pub(super) fn line(&self, text: &str) -> anyhow::Result<()> {
        write(text, "\n")
    }

    pub(super) fn json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string(value)?)
    }

    pub(super) fn table(&self, table: &Table) -> anyhow::Result<()> {
        write(&table.render(self.is_terminal, self.headers), "")
    }

    /// Says something on standard error, unless it was asked to be quiet.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            // Whoever read it may have gone, with their terminal: that is no reason to fail.
            drop(writeln!(anstream::stderr(), "{text}"));
        }
    }
}

fn write(text: &str, end: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.write_all(end.as_bytes()))
        .and_then(|()| out.flush())
        .map_err(|error| LostReader(error).into())
}

/// How a text stands out. Never the only carrier of a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Dim,
    Good,
    Warning,
    Bad,
}

impl Tone {
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
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(super) fn new(text: impl AsRef<str>) -> Self {
        Self {
            text: cell(text.as_ref()),
            tone: Tone::Plain,
        }
    }

    /// Text that was made safe before; once is enough.
    pub(super) fn shown(text: String) -> Self {
        let tone = Tone::Plain;
        Self { text, tone }
    }

    /// A value that may be missing.
    pub(super) fn optional(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::new("-"), Self::new)
    }

    pub(super) fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

/// Rows under a line of names.
#[derive(Debug)]
pub(super) struct Table {
    headers: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(headers: &'static [&'static str]) -> Self {
        Self {
            headers,
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(super) fn render(&self, is_terminal: bool, has_headers: bool) -> String {
        let header: Vec<Cell> = self
            .headers
            .iter()
            .map(|name| Cell::new(name).tone(Tone::Strong))
            .collect();
        let header = Some(header).filter(|header| has_headers && !header.is_empty());
        let rows: Vec<&Vec<Cell>> = header.iter().chain(&self.rows).collect();
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

fn widths(rows: &[&Vec<Cell>]) -> Vec<usize> {
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

fn align(row: &[Cell], widths: &[usize]) -> String {
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

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "STATUS"]);
        table.row(vec![
            Cell::new("größer"),
            Cell::new("paused").tone(Tone::Warning),
        ]);
        table.row(vec![Cell::optional(None::<&str>), Cell::new("a\tb\nc")]);
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
    fn wide_letters_take_two_columns_and_marks_none() {
        let mut table = Table::new(&[]);
        for text in ["日本", "abcd", "e\u{301}"] {
            table.row(vec![Cell::new(text), Cell::new("|")]);
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
