//! Text from outside, made safe for a terminal.
//!
//! Names, messages and everything else that a server, a file or another person wrote is shown, not
//! obeyed: what would move the cursor, change the order of the letters or not be seen at all is
//! printed as an escape.

use statehold_core::name::is_deceptive;

/// Text of several lines: newlines stay, everything else that is not plain is escaped.
pub(crate) fn printable(text: &str) -> String {
    escape(text, |c| c != '\n' && is_deceptive(c))
}

/// Text of one line, for a cell of a table: newlines are escaped too.
pub(crate) fn cell(text: &str) -> String {
    escape(text, is_deceptive)
}

/// The beginning of a text in one line, at most `chars_max` characters long before it is escaped.
pub(crate) fn excerpt(text: &str, chars_max: usize) -> String {
    let flat: String = text
        .chars()
        .take(chars_max.saturating_mul(2))
        .map(|c| {
            if matches!(c, '\n' | '\r' | '\t') {
                ' '
            } else {
                c
            }
        })
        .collect();
    let flat = flat.trim();
    let mut start: String = flat.chars().take(chars_max).collect();
    if start.len() < flat.len() || text.chars().nth(chars_max.saturating_mul(2)).is_some() {
        start.pop();
        start.push('…');
    }
    cell(&start)
}

/// JSON of one line, with escapes that a JSON parser reads back.
pub(crate) fn json_text(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if is_deceptive(c) {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units).iter();
            shown.extend(units.map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_of_any_language_stays_as_it_is() {
        for text in [
            "Größe 7",
            "日本語",
            "שלום",
            "❤\u{fe0f} ok",
            "a\u{a0}b",
            "नमस्ते",
        ] {
            assert_eq!(cell(text), text);
        }
    }

    #[test]
    fn what_steers_a_terminal_or_hides_is_shown() {
        for (c, shown) in [
            ('\u{1b}', "\\u{1b}"),
            ('\u{7f}', "\\u{7f}"),
            ('\u{9b}', "\\u{9b}"),
            ('\r', "\\r"),
            ('\t', "\\t"),
            ('\u{ad}', "\\u{ad}"),
            ('\u{61c}', "\\u{61c}"),
            ('\u{200b}', "\\u{200b}"),
            ('\u{200d}', "\\u{200d}"),
            ('\u{2028}', "\\u{2028}"),
            ('\u{2029}', "\\u{2029}"),
            ('\u{202e}', "\\u{202e}"),
            ('\u{2060}', "\\u{2060}"),
            ('\u{2066}', "\\u{2066}"),
            ('\u{3164}', "\\u{3164}"),
            ('\u{feff}', "\\u{feff}"),
            ('\u{fff9}', "\\u{fff9}"),
            ('\u{e0041}', "\\u{e0041}"),
            ('\u{e0100}', "\\u{e0100}"),
        ] {
            assert_eq!(printable(&c.to_string()), shown);
        }
    }

    #[test]
    fn a_newline_stays_in_a_text_and_is_escaped_in_a_cell() {
        assert_eq!(printable("a\nb"), "a\nb");
        assert_eq!(cell("a\nb"), "a\\nb");
    }

    #[test]
    fn an_excerpt_is_one_line_and_says_that_it_was_cut() {
        assert_eq!(excerpt("one\ntwo", 20), "one two");
        assert_eq!(excerpt("one two three", 8), "one two…");
        assert_eq!(excerpt(&"x".repeat(100), 4), "xxx…");
        assert_eq!(excerpt("\u{1b}[2J", 10), "\\u{1b}[2J");
    }

    #[test]
    fn json_for_a_terminal_means_the_same_without_deceptive_characters() {
        let value = serde_json::json!({ "a\u{202e}b": "\u{9b}2J\u{3164}\u{e0041}\n\u{7f}ö" });
        let shown = json_text(&value.to_string());
        assert_eq!(
            shown,
            r#"{"a\u202eb":"\u009b2J\u3164\udb40\udc41\n\u007fö"}"#
        );
        let read: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(read, value);
    }
}
