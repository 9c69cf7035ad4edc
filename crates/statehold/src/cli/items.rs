//! Items of a history and messages of a transcript, as lines.

use serde_json::Value;

use super::answers::text;
use super::output::{Cell, Output, Tone};
use super::printable::{cell, excerpt, printable};

/// How much of arguments and results is shown.
const EXCERPT_CHARS_MAX: usize = 160;

/// A line that says who and when, and the words below it.
pub(super) fn for_people(message: &Value, output: &Output) -> String {
    let time = output.times.show(text(message, "created_at"));
    let is_hidden = message["visibility"] == "hidden";
    let head = format!(
        "{}{}  {}",
        if is_hidden { "┆ hidden  " } else { "" },
        cell(&who(message)),
        cell(&time)
    );
    let tone = if is_hidden { Tone::Dim } else { Tone::Strong };
    let indent = if is_hidden { "┆ " } else { "  " };
    let words = printable(&words(message));
    let lines = words.lines().map(|line| format!("\n{indent}{line}"));
    tone.paint(&head) + &lines.collect::<String>()
}

fn who(message: &Value) -> String {
    let kind = message["kind"].as_str().filter(|kind| *kind != "message");
    let role = message["role"].as_str();
    let what = kind.or(role).unwrap_or("message");
    match message["agent"].as_str() {
        Some(agent) if role != Some("user") => format!("{agent} ({what})"),
        Some(_) | None => what.to_owned(),
    }
}

/// What an item says: the content of a message, or what was called with what.
fn words(item: &Value) -> String {
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

/// The cells of one line in a pipe. The first says what the line is about.
pub(super) fn for_pipes(about: &str, item: &Value, output: &Output) -> Vec<Cell> {
    vec![
        Cell::new(about),
        Cell::new(item["seq"].to_string()),
        Cell::new(output.times.show(text(item, "created_at"))),
        Cell::new(item["visibility"].as_str().unwrap_or("visible")),
        Cell::new(who(item)),
        Cell::new(words(item)),
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
                (who(&item).as_str(), words(&item).as_str()),
                (who_says, what)
            );
        }
    }
}
