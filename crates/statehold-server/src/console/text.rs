//! Text that others wrote, as a page shows it: characters that hide or reorder text are spelled out, long texts are cut,
//! JSON is laid out. Templates escape the rest.

use statehold_core::name::is_deceptive;
use statehold_engine::api::json::Raw;

/// How much of one text a page shows, in characters.
const TEXT_CHARS_MAX: usize = 8_000;
/// How much of a name.
const NAME_CHARS_MAX: usize = 200;

/// A text on a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageText {
    pub(super) text: String,
    /// Whether it is code, to be shown as it is laid out.
    pub(super) is_code: bool,
    /// How many bytes are left out at its end.
    pub(super) left_out: usize,
}

impl PageText {
    /// Words, with their line breaks.
    pub(super) fn words(text: &str) -> Self {
        let (begin, left_out) = cut(text);
        Self {
            text: spelled(begin, |c| c != '\n' && c != '\t' && is_deceptive(c)),
            is_code: false,
            left_out,
        }
    }

    /// A JSON value: a string as its words, anything else laid out.
    pub(super) fn json(raw: &Raw) -> Self {
        let json = raw.get();
        if json.starts_with('"')
            && let Ok(text) = serde_json::from_str::<String>(json)
        {
            return Self::words(&text);
        }
        let (begin, left_out) = cut(json);
        Self {
            text: spelled(&laid_out(begin), |c| c != '\n' && is_deceptive(c)),
            is_code: true,
            left_out,
        }
    }
}

/// A name or another short text of one line. One that would draw as nothing says so.
pub(super) fn shown(text: &str) -> String {
    let mut name: String = text.chars().take(NAME_CHARS_MAX).collect();
    if name.len() < text.len() {
        name.push('…');
    }
    let name = spelled(&name, is_deceptive);
    if name.trim().is_empty() {
        return format!("\u{201c}{name}\u{201d}");
    }
    name
}

fn cut(text: &str) -> (&str, usize) {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => (&text[..end], text.len() - end),
        None => (text, 0),
    }
}

fn spelled(text: &str, is_spelled: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_spelled(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Compact JSON with a line per value. Its numbers and strings stay as they were written, and it may be cut anywhere.
fn laid_out(json: &str) -> String {
    const INDENT: usize = 2;
    const DEPTH_MAX: usize = 16;
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut chars = json.chars().peekable();
    let new_line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', depth.min(DEPTH_MAX) * INDENT));
    };
    while let Some(c) = chars.next() {
        if in_string {
            out.push(c);
            in_string = is_escaped || c != '"';
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        match c {
            '{' | '[' => {
                out.push(c);
                if let Some(end) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => {
                in_string = c == '"';
                out.push(c);
            }
        }
    }
    out
}

/// A text in an address.
pub(super) fn in_address(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("a string takes all that is written");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use statehold_engine::api::json::raw_bytes;

    use super::*;

    #[test]
    fn json_is_laid_out_and_keeps_its_numbers_and_strings() {
        let json = r#"{"a":[1,{"b":"x,{\"}:"},[]],"n":12345678901234567890.10,"e":{}}"#;
        let shown = PageText::json(&raw_bytes(json.as_bytes()));
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x,{\\\"}:\"\n    },\n    []\n  ],\n  \
                        \"n\": 12345678901234567890.10,\n  \"e\": {}\n}";
        assert_eq!(shown.text, expected);
        assert!(shown.is_code && shown.left_out == 0);
    }

    #[test]
    fn what_hides_or_reorders_text_is_spelled_out() {
        for (c, spelling) in [
            ('\u{202e}', "\\u{202e}"),
            ('\u{200b}', "\\u{200b}"),
            ('\u{1b}', "\\u{1b}"),
            ('\u{9b}', "\\u{9b}"),
        ] {
            let text = format!("a{c}b");
            let expected = format!("a{spelling}b");
            assert_eq!(PageText::words(&text).text, expected);
            assert_eq!(shown(&text), expected);
            let json = raw_bytes(format!("[\"{text}\"]").as_bytes());
            if !c.is_control() {
                assert!(PageText::json(&json).text.contains(spelling));
            }
        }
        assert_eq!(shown("\u{3164}"), "\\u{3164}");
        assert_eq!(shown("  "), "\u{201c}  \u{201d}");
        assert_eq!(PageText::words("שלום\nörtlich").text, "שלום\nörtlich");
    }

    #[test]
    fn a_long_text_says_how_much_is_left_out() {
        let text = "ü".repeat(TEXT_CHARS_MAX + 3);
        let shown = PageText::words(&text);
        assert_eq!(
            (shown.text.chars().count(), shown.left_out),
            (TEXT_CHARS_MAX, 6)
        );
        assert_eq!(
            super::shown(&"x".repeat(1_000)).chars().count(),
            NAME_CHARS_MAX + 1
        );
    }

    #[test]
    fn a_text_in_an_address_is_no_more_than_a_text() {
        assert_eq!(in_address("a b&c=d/é?#"), "a%20b%26c%3Dd%2F%C3%A9%3F%23");
    }
}
