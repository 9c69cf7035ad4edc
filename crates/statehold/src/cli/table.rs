//! Tables: rows below a header line, aligned and fitted to a terminal, or separated by tabs in a pipe.
//!
//! A table that is wider than the terminal loses width step by step: ids take their short form, columns that the
//! list can do without are left out, and then the words of the widest cells wrap.

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::output::{TextTone, wrapped};
use super::printable::cell;
use super::resolve::short;

/// The spaces between two columns.
const GAP: usize = 2;
/// A column is not made narrower than this.
const WIDTH_MIN: usize = 12;

/// One cell of a table.
#[derive(Debug, Clone)]
pub(super) struct TableCell {
    text: String,
    /// The form for a narrow terminal.
    short: Option<String>,
    tone: TextTone,
}

impl TableCell {
    pub(super) fn new(text: impl AsRef<str>) -> Self {
        Self::shown(cell(text.as_ref()))
    }

    /// A cell with text that is already escaped.
    pub(super) fn shown(text: String) -> Self {
        Self {
            text,
            short: None,
            tone: TextTone::Plain,
        }
    }

    /// A cell for an id, which may be shortened: the short form can be typed too.
    pub(super) fn id(value: &Value) -> Self {
        let id = value.as_str();
        let short = id.map(|id| cell(&short(id)));
        Self {
            short,
            ..Self::optional(id)
        }
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

    fn text(&self, is_short: bool) -> &str {
        let short = self.short.as_deref().filter(|_| is_short);
        short.unwrap_or(&self.text)
    }
}

/// Rows below a header line.
#[derive(Debug)]
pub(super) struct TextTable {
    headers: &'static [&'static str],
    rows: Vec<Vec<TableCell>>,
    /// The columns to leave out on a narrow terminal, the first one first.
    spare: &'static [&'static str],
}

impl TextTable {
    pub(super) fn new(headers: &'static [&'static str]) -> Self {
        Self {
            headers,
            rows: Vec::new(),
            spare: &[],
        }
    }

    /// The columns that a narrow terminal does without, the first one first.
    pub(super) fn spare(self, spare: &'static [&'static str]) -> Self {
        Self { spare, ..self }
    }

    /// One row per fact: its name and its value.
    pub(super) fn facts(facts: Vec<(&str, TableCell)>, names: TextTone) -> Self {
        let rows = facts
            .into_iter()
            .map(|(name, value)| vec![TableCell::new(name).tone(names), value]);
        Self {
            rows: rows.collect(),
            ..Self::new(&[])
        }
    }

    pub(super) fn row(&mut self, cells: Vec<TableCell>) {
        self.rows.push(cells);
    }

    /// The text for a terminal of so many columns, or for a pipe.
    pub(super) fn render(&self, columns: Option<usize>, has_headers: bool) -> String {
        let header: Vec<TableCell> = self
            .headers
            .iter()
            .map(|name| TableCell::new(name).tone(TextTone::Strong))
            .collect();
        let header = Some(header).filter(|header| has_headers && !header.is_empty());
        let rows: Vec<&Vec<TableCell>> = header.iter().chain(&self.rows).collect();
        let Some(columns) = columns else {
            return tab_separated(&rows);
        };
        let fit = self.fit(&rows, columns);
        rows.iter().map(|row| fit.lines(row)).collect()
    }

    /// How the table fits a terminal.
    fn fit(&self, rows: &[&Vec<TableCell>], columns: usize) -> TableFit {
        let mut fit = TableFit::of(rows, false);
        if fit.width() > columns {
            fit = TableFit::of(rows, true);
        }
        let spare = self.spare.iter();
        let spare = spare.filter_map(|name| self.headers.iter().position(|header| header == name));
        let mut left_out = Vec::new();
        for index in spare {
            if fit.width() <= columns {
                break;
            }
            fit.shown.retain(|shown| *shown != index);
            left_out.push(index);
        }
        // A wide column that had to go may have made room for a narrow one that went before it.
        for index in left_out.into_iter().rev() {
            let at = fit.shown.partition_point(|shown| *shown < index);
            fit.shown.insert(at, index);
            if fit.width() > columns {
                fit.shown.remove(at);
            }
        }
        fit.narrow(columns);
        fit
    }
}

/// The columns that are shown, and how wide each is.
struct TableFit {
    is_short: bool,
    shown: Vec<usize>,
    widths: Vec<usize>,
}

impl TableFit {
    fn of(rows: &[&Vec<TableCell>], is_short: bool) -> Self {
        let mut widths: Vec<usize> = Vec::new();
        for row in rows {
            for (index, cell) in row.iter().enumerate() {
                let width = cell.text(is_short).width();
                match widths.get_mut(index) {
                    None => widths.push(width),
                    Some(widest) => *widest = width.max(*widest),
                }
            }
        }
        Self {
            is_short,
            shown: (0..widths.len()).collect(),
            widths,
        }
    }

    fn width(&self) -> usize {
        let widths = self.shown.iter().map(|index| self.widths[*index]);
        widths.sum::<usize>() + GAP * self.shown.len().saturating_sub(1)
    }

    /// Makes the widest columns narrower, as far as the words in them stay readable.
    fn narrow(&mut self, columns: usize) {
        loop {
            let excess = self.width().saturating_sub(columns);
            let widest = self
                .shown
                .iter()
                .copied()
                .max_by_key(|index| self.widths[*index]);
            let Some(widest) = widest.filter(|_| excess > 0) else {
                return;
            };
            let others = self.shown.iter().filter(|index| **index != widest);
            let second = others.map(|index| self.widths[*index]).max().unwrap_or(0);
            // Down to the next widest column first, so that no column pays alone.
            let width = self.widths[widest];
            let target = width
                .saturating_sub(excess)
                .max(second.min(width - 1))
                .max(WIDTH_MIN);
            if target >= width {
                return;
            }
            self.widths[widest] = target;
        }
    }

    /// The lines of a row: one, unless words of a cell wrap.
    fn lines(&self, row: &[TableCell]) -> String {
        let cells: Vec<(&TableCell, usize, Vec<String>)> = self
            .shown
            .iter()
            .filter_map(|index| {
                let cell = row.get(*index)?;
                let width = self.widths[*index];
                let text = cell.text(self.is_short);
                let lines = if text.width() <= width {
                    vec![text.to_owned()]
                } else {
                    wrapped(text, width)
                };
                Some((cell, width, lines))
            })
            .collect();
        let height = cells.iter().map(|(_, _, lines)| lines.len()).max();
        let mut all = String::new();
        for at in 0..height.unwrap_or(0) {
            let has_more = |from: usize| {
                let mut rest = cells[from..].iter();
                rest.any(|(_, _, lines)| lines.get(at).is_some_and(|line| !line.is_empty()))
            };
            for (index, (cell, width, lines)) in cells.iter().enumerate() {
                let text = lines.get(at).map_or("", String::as_str);
                if !text.is_empty() {
                    all.push_str(&cell.tone.paint(text));
                }
                if index + 1 < cells.len() && has_more(index + 1) {
                    all.push_str(&padding(text, width + GAP));
                }
            }
            all.push('\n');
        }
        all
    }
}

fn tab_separated(rows: &[&Vec<TableCell>]) -> String {
    let mut text = String::new();
    for row in rows {
        let cells: Vec<&str> = row.iter().map(|cell| cell.text.as_str()).collect();
        text.push_str(&cells.join("\t"));
        text.push('\n');
    }
    text
}

/// The spaces that fill a text up to `columns` of a terminal.
pub(super) fn padding(text: &str, columns: usize) -> String {
    " ".repeat(columns.saturating_sub(text.width()))
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
            table().render(Some(80), true),
            "\u{1b}[1mNAME\u{1b}[0m    \u{1b}[1mSTATUS\u{1b}[0m\ngrößer  \u{1b}[33mpaused\u{1b}[0m\n\
             -       a\\tb\\nc\n"
        );
    }

    #[test]
    fn wide_letters_take_two_columns_and_marks_none() {
        let mut table = TextTable::new(&[]);
        for text in ["日本", "abcd", "e\u{301}"] {
            table.row(vec![TableCell::new(text), TableCell::new("|")]);
        }
        assert_eq!(
            table.render(Some(80), false),
            "日本  |\nabcd  |\ne\u{301}     |\n"
        );
    }

    #[test]
    fn a_pipe_gets_tabs_and_nothing_can_add_a_column_or_a_row() {
        assert_eq!(
            table().render(None, true),
            "NAME\tSTATUS\ngrößer\tpaused\n-\ta\\tb\\nc\n"
        );
        assert_eq!(
            table().render(None, false),
            "größer\tpaused\n-\ta\\tb\\nc\n"
        );
    }

    #[test]
    fn a_narrow_column_comes_back_if_a_wide_one_has_made_room() {
        let mut table = TextTable::new(&["NAME", "AGENT", "ACTION"]).spare(&["AGENT", "ACTION"]);
        table.row(vec![
            TableCell::new("a"),
            TableCell::new("clerk"),
            TableCell::new("x".repeat(30)),
        ]);
        let rendered = |columns| table.render(Some(columns), false);
        assert_eq!(rendered(20), "a  clerk\n");
        assert_eq!(rendered(36), format!("a  {}\n", "x".repeat(30)));
    }

    #[test]
    fn a_narrow_terminal_gets_short_ids_then_fewer_columns_and_then_wrapped_words() {
        let mut table = TextTable::new(&["SESSION", "APP", "TITLE"]).spare(&["APP"]);
        let id = Value::from("ses_0198a000000070008000000000a1b2c3");
        table.row(vec![
            TableCell::id(&id),
            TableCell::new("demo"),
            TableCell::new("Delete user seven now"),
        ]);
        let plain = |columns| {
            let text = table.render(Some(columns), false);
            assert!(text.lines().all(|line| line.width() <= columns), "{text}");
            text
        };
        let whole = "ses_0198a000000070008000000000a1b2c3  demo  Delete user seven now\n";
        assert_eq!(plain(70), whole);
        assert_eq!(plain(50), "ses_0198…a1b2c3  demo  Delete user seven now\n");
        assert_eq!(plain(40), "ses_0198…a1b2c3  Delete user seven now\n");
        let wrapped = "ses_0198…a1b2c3  Delete user\n                 seven now\n";
        assert_eq!(plain(32), wrapped);
    }
}
