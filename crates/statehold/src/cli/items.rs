//! Formats items of a history and messages of a transcript.

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::answers::text;
use super::output::{CliOutput, TableCell, TextTable, TextTone, wrapped};
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
    // The text of a call has the name of its tool.
    let name = message["name"]
        .as_str()
        .filter(|_| kind != Some("tool_call"));
    let what = match name {
        Some(name) => format!("{what} {name}"),
        None => what.to_owned(),
    };
    match message["agent"].as_str() {
        Some(agent) if role != Some("user") => format!("{agent} ({what})"),
        Some(_) | None => what,
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

/// Why requests failed, for readers of traces.
pub(super) fn print_failures(failures: &[Value], output: &CliOutput) -> anyhow::Result<()> {
    for failed in failures {
        let alias = cell(text(failed, "alias"));
        let error = failure_text(&failed["error"]);
        if !output.is_terminal {
            let mut table = TextTable::new(&[]);
            table.row(vec![
                TableCell::new("failure"),
                TableCell::of(&failed["request_id"]),
                TableCell::new(output.times.show(text(failed, "at"))),
                TableCell::new(error),
            ]);
            output.table(&table)?;
            continue;
        }
        let when = output.times.ago(text(failed, "at"));
        let heading = format!("{alias} failed {}", cell(&when));
        output.line(&format!("\n{}", TextTone::Bad.paint(&heading)))?;
        for line in printable(&error).lines() {
            for line in wrapped(line, output.columns.saturating_sub(2)) {
                output.line(&format!("  {line}"))?;
            }
        }
    }
    Ok(())
}

/// The error of a request in words.
fn failure_text(error: &Value) -> String {
    let code = error["code"].as_str();
    match (error, error["message"].as_str()) {
        (Value::Null, _) => "its error is erased, or too long to show here".to_owned(),
        (Value::String(error), _) => error.clone(),
        (_, Some(message)) => match code {
            Some(code) => format!("{message} ({code})"),
            None => message.to_owned(),
        },
        (error, None) => error.to_string(),
    }
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
                json!({ "kind": "note", "agent": "u", "name": "route", "data": [1] }),
                "u (note route)",
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
