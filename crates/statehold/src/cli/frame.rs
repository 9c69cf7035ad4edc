//! Lines on a terminal that are drawn again in place.
//!
//! Plain escape sequences, no alternate screen and no raw keys: the last drawing stays on the screen
//! when the program ends, also when it is interrupted. Callers escape text; colours are allowed.

use std::io::Write;

use unicode_width::UnicodeWidthStr;

use crate::exit::LostReader;

/// Rows and columns of a terminal that does not report its size.
const SIZE_UNKNOWN: (usize, usize) = (24, 80);

#[derive(Debug)]
pub(super) struct Frame {
    /// How many lines of the last drawing are on the screen.
    drawn: usize,
    has_colour: bool,
}

impl Frame {
    pub(super) fn new() -> Self {
        let choice = anstream::AutoStream::choice(&std::io::stdout());
        Self {
            drawn: 0,
            has_colour: choice != anstream::ColorChoice::Never,
        }
    }

    /// Draws lines in place of those before. Lines that do not fit on the screen are left out, and the
    /// last line says how many.
    pub(super) fn draw(&mut self, lines: &[String]) -> anyhow::Result<()> {
        let (rows, columns) = size();
        let text = self.render(lines, rows, columns);
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| LostReader(error).into())
    }

    fn render(&mut self, lines: &[String], rows: usize, columns: usize) -> String {
        // The line below the last one is where the cursor waits.
        let fit = rows.saturating_sub(1).max(1);
        let mut shown: Vec<&str> = lines.iter().map(String::as_str).collect();
        let left_out = shown.len().saturating_sub(fit);
        let note = format!("… {} more lines; make the window higher", left_out + 1);
        if left_out > 0 {
            shown.truncate(fit - 1);
            shown.push(&note);
        }
        let mut text = match self.drawn {
            0 => String::new(),
            drawn => format!("\u{1b}[{drawn}F"),
        };
        // Terminals disagree about the width of some letters: without wrapping, a line stays one line.
        text.push_str("\u{1b}[?7l");
        for line in &shown {
            let line = cut(line, columns);
            let line = if self.has_colour {
                line
            } else {
                anstream::adapter::strip_str(&line).to_string()
            };
            text.extend(["\u{1b}[2K", &line, "\n"]);
        }
        text.push_str("\u{1b}[J\u{1b}[?7h");
        self.drawn = shown.len();
        text
    }
}

/// Rows of the terminal.
pub(super) fn rows() -> usize {
    size().0
}

/// Rows and columns of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            (usize::from(size.ws_row), usize::from(size.ws_col))
        }
        _ => SIZE_UNKNOWN,
    }
}

/// The part of a line that fits into `columns`. Colours take no column, and end with the line.
fn cut(line: &str, columns: usize) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut plain = String::new();
    let mut letters = line.chars();
    while let Some(c) = letters.next() {
        if c == '\u{1b}' {
            shown.push(c);
            for c in letters.by_ref() {
                shown.push(c);
                if c == 'm' {
                    break;
                }
            }
            continue;
        }
        plain.push(c);
        if plain.width() > columns {
            shown.push_str("\u{1b}[0m");
            break;
        }
        shown.push(c);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame {
            drawn: 0,
            has_colour: true,
        }
    }

    #[test]
    fn the_second_drawing_takes_the_place_of_the_first() {
        let mut frame = frame();
        let lines = ["a".to_owned(), "b".to_owned()];
        let first = frame.render(&lines, 24, 80);
        assert_eq!(
            first,
            "\u{1b}[?7l\u{1b}[2Ka\n\u{1b}[2Kb\n\u{1b}[J\u{1b}[?7h"
        );
        assert!(frame.render(&lines[..1], 24, 80).starts_with("\u{1b}[2F"));
        assert!(frame.render(&lines, 24, 80).starts_with("\u{1b}[1F"));
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_said() {
        let mut frame = frame();
        let lines: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        let text = frame.render(&lines, 10, 80);
        assert_eq!(text.matches('\n').count(), 9);
        assert!(text.contains("… 22 more lines"), "{text:?}");
    }

    #[test]
    fn a_line_is_cut_by_columns_and_colours_end_with_it() {
        assert_eq!(cut("\u{1b}[31mabc\u{1b}[0m", 3), "\u{1b}[31mabc\u{1b}[0m");
        assert_eq!(cut("\u{1b}[31mabcd\u{1b}[0m", 3), "\u{1b}[31mabc\u{1b}[0m");
        assert_eq!(cut("日本語", 5), "日本\u{1b}[0m");
        let mut plain = Frame {
            drawn: 0,
            has_colour: false,
        };
        let text = plain.render(&["\u{1b}[31mab\u{1b}[0m".to_owned()], 24, 80);
        assert!(text.contains("\u{1b}[2Kab\n"), "{text:?}");
    }
}
