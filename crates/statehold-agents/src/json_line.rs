//! Named values as a JSON object on one line, inside a marked block of a message. No value can end its
//! block or begin another.

use serde_json::value::RawValue;

use crate::message::raw;

/// A JSON object on one line, with the names of values that were truncated or omitted.
#[derive(Debug)]
pub(crate) struct JsonLine {
    pub(crate) text: String,
    pub(crate) clipped: Vec<String>,
}

impl JsonLine {
    /// As many values as fit into so many bytes, in order. A text may be truncated.
    pub(crate) fn of<'v>(
        values: impl Iterator<Item = (&'v str, &'v RawValue)>,
        bytes_max: usize,
    ) -> Self {
        let (mut text, mut clipped) = ("{".to_owned(), Vec::new());
        for (name, value) in values {
            let key = compact_json(raw(&name).get());
            let comma = if text.len() > 1 { "," } else { "" };
            let room = bytes_max.saturating_sub(text.len() + key.len() + 3);
            let whole = compact_json(value.get());
            let shown = if whole.len() <= room {
                Some(whole)
            } else {
                clipped.push(name.to_owned());
                truncate_text(value, room)
            };
            if let Some(shown) = shown {
                text.extend([comma, key.as_str(), ":", shown.as_str()]);
            }
        }
        text.push('}');
        Self { text, clipped }
    }
}

/// Compacts JSON to one line. Escapes `[` in strings, so that no value can imitate the end marker.
pub(crate) fn compact_json(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    let (mut in_text, mut is_escaped) = (false, false);
    for c in json.chars() {
        if !in_text {
            in_text = c == '"';
            if !c.is_ascii_whitespace() {
                line.push(c);
            }
            continue;
        }
        match c {
            '[' => line.push_str("\\u005b"),
            // Line separators that JSON allows unescaped in strings.
            '\u{85}' => line.push_str("\\u0085"),
            '\u{2028}' => line.push_str("\\u2028"),
            '\u{2029}' => line.push_str("\\u2029"),
            c => line.push(c),
        }
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == '"' {
            in_text = false;
        }
    }
    line
}

/// Truncates a long string. Other values are omitted if they do not fit.
fn truncate_text(value: &RawValue, room: usize) -> Option<String> {
    let text: String = serde_json::from_str(value.get()).ok()?;
    let mut shown = String::new();
    for c in text.chars() {
        let piece = compact_json(raw(&c).get());
        let piece = piece.trim_matches('"');
        let piece = if c == '"' { "\\\"" } else { piece };
        if shown.len() + piece.len() + "\"…\"".len() > room {
            break;
        }
        shown.push_str(piece);
    }
    (!shown.is_empty()).then(|| format!("\"{shown}…\""))
}
