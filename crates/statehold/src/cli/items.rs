//! Formats items of a history and messages of a transcript.

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::answers::text;
use super::output::{CliOutput, TableCell, TextTone, wrapped};
use super::printable::{cell, excerpt, printable};

/// The longest excerpt of arguments and results.
const EXCERPT_CHARS_MAX: usize = 160;

/// A line with the author and the time, and the text below it.
pub(super) fn for_people(message: &Value, output: &CliOutput) -> String {
    let time = output.times.show(text(message, "created_at"));
    let is_hidden = message["visibility"] == "hidden";
    let head = format!(
        "{}{}  {}",
        if is_hidden { "┆ hidden  " } else { "" },
        cell(&speaker(message)),
        cell(&time)
    );
    let tone = if is_hidden {
        TextTone::Dim
    } else {
        TextTone::Strong
    };
    let indent = if is_hidden { "┆ " } else { "  " };
    let words = printable(&item_text(message));
    let width = output.columns.saturating_sub(indent.width());
    let lines = words.lines().flat_map(|line| wrapped(line, width));
    let lines = lines.map(|line| format!("\n{indent}{line}"));
    tone.paint(&head) + &lines.collect::<String>()
}

fn speaker(message: &Value) -> String {
    let kind = message["kind"].as_str().filter(|kind| *kind != "message");
    let role = message["role"].as_str();
    let what = kind.or(role).unwrap_or("message");
    match message["agent"].as_str() {
        Some(agent) if role != Some("user") => format!("{agent} ({what})"),
        Some(_) | None => what.to_owned(),
    }
}

/// The text of an item: the content of a message, or a tool call with its arguments.
fn item_text(item: &Value) -> String {
    let short = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => excerpt(text, EXCERPT_CHARS_MAX),
        other => excerpt(&other.to_string(), EXCERPT_CHARS_MAX),
    };
    match text(item, "kind") {
        "tool_call" => format!("{}({})", text(item, "name"), short(&item["arguments"])),
        "tool_result" => format!("→ {}", short(&item["result"])),
        _ => match &item["content"] {
            Value::Null => short(&item["data"]),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        },
    }
}

/// The cells of one line in a pipe. The first cell names the kind of line.
pub(super) fn for_pipes(about: &str, item: &Value, output: &CliOutput) -> Vec<TableCell> {
    vec![
        TableCell::new(about),
        TableCell::new(item["seq"].to_string()),
        TableCell::new(output.times.show(text(item, "created_at"))),
        TableCell::new(item["visibility"].as_str().unwrap_or("visible")),
        TableCell::new(speaker(item)),
        TableCell::new(item_text(item)),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_item_says_what_it_is() {
        for (item, who_says, what) in [
            (
                json!({ "role": "user", "agent": "c", "content": "hi" }),
                "user",
                "hi",
            ),
            (
                json!({ "role": "assistant", "agent": "c", "content": "hi" }),
                "c (assistant)",
                "hi",
            ),
            (
                json!({ "kind": "tool_call", "agent": "u", "name": "delete_user", "arguments": { "id": 7 } }),
                "u (tool_call)",
                "delete_user({\"id\":7})",
            ),
            (
                json!({ "kind": "tool_result", "result": "ok" }),
                "tool_result",
                "→ ok",
            ),
            (
                json!({ "kind": "note", "agent": "u", "data": [1] }),
                "u (note)",
                "[1]",
            ),
        ] {
            assert_eq!(
                (speaker(&item).as_str(), item_text(&item).as_str()),
                (who_says, what)
            );
        }
    }
}
