//! The arguments of an action: drawn by type, edited by path, compared.

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::cli::hold::ActionInfo;
use crate::cli::output::{TextTone, padding, wrapped};
use crate::cli::printable::{cell, printable};
use crate::exit::Failure;

/// The longest text shown without `--full`.
const TEXT_CHARS_MAX: usize = 400;
/// The widest value that still gets a note in a column beside it.
const VALUE_COLUMN_MAX: usize = 40;
/// The depth to which nested values get rows of their own; deeper values are shown as JSON.
const DEPTH_MAX: usize = 4;

/// One argument, or one nested part of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ArgumentRow {
    /// A JSON pointer.
    pub(super) path: String,
    pub(super) depth: usize,
    pub(super) name: String,
    /// Safe to print; several lines if the value has them.
    pub(super) value: String,
    /// Type and description from the schema, redaction, and how much was cut off.
    pub(super) note: String,
}

/// One row per argument, with its type. `is_whole` shows long texts completely.
pub(super) fn rows(action: &ActionInfo, is_whole: bool) -> Vec<ArgumentRow> {
    let mut drawing = ArgumentDrawing {
        action,
        is_whole,
        rows: Vec::new(),
    };
    let schema = action.args_schema.as_ref();
    if let Value::Object(fields) = &action.args {
        for (name, value) in fields {
            let schema = schema.map(|schema| (schema, name.as_str()));
            drawing.add(name, &format!("/{}", escape(name)), 0, value, schema);
        }
    } else if !action.args.is_null() {
        drawing.add("", "", 0, &action.args, None);
    }
    drawing.rows
}

/// One line or more per argument, aligned in columns and fitted to a terminal. Safe to print.
pub(super) fn lines(action: &ActionInfo, is_whole: bool, columns: usize) -> Vec<String> {
    let rows = rows(action, is_whole);
    let name = |row: &ArgumentRow| format!("{}{}", "  ".repeat(row.depth), row.name);
    let widest = |widths: &mut dyn Iterator<Item = usize>| widths.max().unwrap_or(0);
    let names = widest(&mut rows.iter().map(|row| name(row).width()));
    let short = rows.iter().map(|row| row.value.width());
    let values = widest(&mut short.filter(|width| *width <= VALUE_COLUMN_MAX));
    rows.iter()
        .flat_map(|row| {
            let name = name(row);
            let head = format!("{name}{}", padding(&name, names));
            let note = TextTone::Dim.paint(&row.note);
            let width = names + row.value.width() + row.note.width() + 6;
            let line = if row.value.contains('\n') || width > columns && !row.value.is_empty() {
                // The value gets lines of its own, so that a script looks like a script.
                let lines = row.value.lines();
                let lines = lines.flat_map(|line| wrapped(line, columns.saturating_sub(4)));
                let lines = lines.map(|line| format!("\n  │ {line}"));
                format!("  {head}  {note}{}", lines.collect::<String>())
            } else if row.note.is_empty() {
                format!("  {head}  {}", row.value)
            } else {
                format!(
                    "  {head}  {}{}  {note}",
                    row.value,
                    padding(&row.value, values)
                )
            };
            let lines = line.lines().map(|line| line.trim_end().to_owned());
            lines.collect::<Vec<_>>()
        })
        .collect()
}

struct ArgumentDrawing<'a> {
    action: &'a ActionInfo,
    is_whole: bool,
    rows: Vec<ArgumentRow>,
}

impl ArgumentDrawing<'_> {
    /// `schema` is the schema of the enclosing object, with the name of the property.
    fn add(
        &mut self,
        name: &str,
        path: &str,
        depth: usize,
        value: &Value,
        schema: Option<(&Value, &str)>,
    ) {
        let own = schema.map(|(around, name)| &around["properties"][name]);
        let children: Vec<(String, &Value)> = match value {
            Value::Object(fields) if depth < DEPTH_MAX => fields
                .iter()
                .map(|(name, value)| (name.clone(), value))
                .collect(),
            Value::Array(elements) if depth < DEPTH_MAX && elements.iter().any(is_nested) => {
                let numbered = elements.iter().enumerate();
                numbered
                    .map(|(index, value)| (index.to_string(), value))
                    .collect()
            }
            _ => Vec::new(),
        };
        let (shown, cut) = if children.is_empty() {
            self.show(value)
        } else {
            (String::new(), None)
        };
        let mut notes = Vec::new();
        if self.action.is_redacted(path) {
            notes.push(self.redaction(path));
        }
        if let Some((around, name)) = schema {
            notes.extend(hint(around, name));
        }
        notes.extend(cut);
        self.rows.push(ArgumentRow {
            path: path.to_owned(),
            depth,
            name: cell(name),
            value: shown,
            note: notes.join(", "),
        });
        for (name, value) in children {
            let path = format!("{path}/{}", escape(&name));
            let schema = own.map(|own| (own, name.as_str()));
            self.add(&name, &path, depth + 1, value, schema);
        }
    }

    fn redaction(&self, path: &str) -> String {
        let mut redactions = self.action.redactions.iter();
        let rule = redactions.find(|redaction| redaction.path == path);
        match rule.map(|redaction| redaction.rule.as_str()) {
            Some(rule) if !rule.is_empty() => format!("redacted: {}", cell(rule)),
            _ => "redacted".to_owned(),
        }
    }

    /// The printable value, and a note if it was cut off.
    fn show(&self, value: &Value) -> (String, Option<String>) {
        let whole = match value {
            // A text of several lines keeps its lines, so that a script looks like a script.
            Value::String(text) if text.contains('\n') => printable(text),
            Value::String(_) => cell(&value.to_string()),
            other => cell(&other.to_string()),
        };
        let length = whole.chars().count();
        if self.is_whole || length <= TEXT_CHARS_MAX {
            return (whole, None);
        }
        let start: String = whole.chars().take(TEXT_CHARS_MAX).collect();
        let left = length - TEXT_CHARS_MAX;
        (
            format!("{start}…"),
            Some(format!("{left} more characters: --full")),
        )
    }
}

fn is_nested(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

/// Describes a property in a few words, from its schema.
fn hint(around: &Value, name: &str) -> Vec<String> {
    let own = &around["properties"][name];
    let mut words = Vec::new();
    if let Some(kind) = own["type"].as_str() {
        words.push(cell(kind));
    }
    for (keyword, word) in [
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    ] {
        if let Some(limit) = own.get(keyword) {
            words.push(format!("{word} {}", cell(&limit.to_string())));
        }
    }
    if let Some(length) = own["maxLength"].as_u64() {
        words.push(format!("at most {length} characters"));
    }
    if let Some(choices) = own["enum"].as_array() {
        let choices: Vec<String> = choices
            .iter()
            .map(|choice| cell(&choice.to_string()))
            .collect();
        words.push(format!("one of {}", choices.join(", ")));
    }
    let required = around["required"].as_array();
    if required.is_some_and(|required| required.iter().any(|wanted| wanted == name)) {
        words.push("required".to_owned());
    }
    if let Some(text) = own["description"].as_str().or(own["title"].as_str()) {
        words.push(cell(text));
    }
    words
}

/// Escapes one step of a JSON pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Sets one value: `user_id=8`, `address.city=Rahway` or `/address/city=Rahway`.
///
/// # Errors
///
/// If `assignment` has no `=`, or the path leads through a value without fields.
pub(super) fn set(
    args: &mut Value,
    schema: Option<&Value>,
    assignment: &str,
) -> Result<(), Failure> {
    let Some((path, typed)) = assignment.split_once('=') else {
        return Err(
            Failure::usage(format!("`{assignment}` is not an assignment"))
                .hint("an assignment looks like user_id=8 or /address/city=Rahway"),
        );
    };
    let steps: Vec<String> = match path.strip_prefix('/') {
        Some(pointer) => pointer
            .split('/')
            .map(|step| step.replace("~1", "/").replace("~0", "~"))
            .collect(),
        None => path.split('.').map(str::to_owned).collect(),
    };
    if steps.iter().any(String::is_empty) {
        return Err(Failure::usage(format!("`{path}` is not a path"))
            .hint("a path looks like user_id, address.city or /address/city"));
    }
    if args.is_null() {
        *args = Value::Object(serde_json::Map::new());
    }
    let mut at = args;
    let mut schema = schema;
    for step in &steps {
        schema = schema.map(|schema| &schema["properties"][step.as_str()]);
        at = descend(at, step, path)?;
    }
    *at = typed_value(typed, at, schema).ok_or_else(|| {
        Failure::usage(format!(
            "`{path}` is {at}, and `{typed}` is neither a text nor JSON"
        ))
        .hint(format!(
            "to make it a text, quote it as JSON: --set '{path}=\"{typed}\"'"
        ))
    })?;
    Ok(())
}

fn descend<'a>(at: &'a mut Value, step: &str, path: &str) -> Result<&'a mut Value, Failure> {
    let wrong = |why: &str| {
        Failure::usage(format!("`{path}` cannot be set: {why}"))
            .hint("see the arguments with: statehold approvals show HOLD")
    };
    // Create missing objects on the way.
    if at.is_null() {
        *at = Value::Object(serde_json::Map::new());
    }
    match at {
        Value::Object(fields) => Ok(fields.entry(step.to_owned()).or_insert(Value::Null)),
        Value::Array(elements) => {
            let count = elements.len();
            let index = step.parse().ok().filter(|index: &usize| *index < count);
            match index {
                Some(index) => Ok(&mut elements[index]),
                None => Err(wrong(&format!("`{step}` is not one of {count} elements"))),
            }
        }
        _ => Err(wrong(&format!("there is nothing below `{step}`"))),
    }
}

/// Parses a typed value: a string argument stays a string; anything else is JSON, or a string if it
/// is not valid JSON. `None` if that would make a text of a number, a list or an object, and no
/// schema would say so.
fn typed_value(typed: &str, before: &Value, schema: Option<&Value>) -> Option<Value> {
    let wanted = schema.and_then(|schema| schema["type"].as_str());
    let is_text = match wanted {
        Some(kind) => kind == "string",
        None => before.is_string(),
    };
    if is_text {
        return Some(typed.into());
    }
    match serde_json::from_str(typed) {
        Ok(value) => Some(value),
        Err(_) if wanted.is_none() && !before.is_null() => None,
        Err(_) => Some(typed.into()),
    }
}

/// Lists the differences as lines of `path: before → after`. Safe to print.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", before, after, &mut lines);
    lines
}

fn compare(path: &str, before: &Value, after: &Value, lines: &mut Vec<String>) {
    if before == after {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (before, after) {
        for (name, value) in old {
            let path = format!("{path}/{}", escape(name));
            match new.get(name) {
                Some(now) => compare(&path, value, now, lines),
                None => lines.push(format!("{}: {} → removed", cell(&path), line(value))),
            }
        }
        for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
            let path = format!("{path}/{}", escape(name));
            lines.push(format!("{}: new → {}", cell(&path), line(value)));
        }
        return;
    }
    if let (Value::Array(old), Value::Array(new)) = (before, after) {
        for at in 0..old.len().max(new.len()) {
            let path = format!("{path}/{at}");
            match (old.get(at), new.get(at)) {
                (Some(value), Some(now)) => compare(&path, value, now, lines),
                (Some(value), None) => {
                    lines.push(format!("{}: {} → removed", cell(&path), line(value)));
                }
                (None, now) => {
                    let now = now.map(line).unwrap_or_default();
                    lines.push(format!("{}: new → {now}", cell(&path)));
                }
            }
        }
        return;
    }
    let path = if path.is_empty() { "/" } else { path };
    lines.push(format!(
        "{}: {} → {}",
        cell(path),
        line(before),
        line(after)
    ));
}

fn line(value: &Value) -> String {
    crate::cli::printable::excerpt(&value.to_string(), TEXT_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn action(value: Value) -> ActionInfo {
        serde_json::from_value(value).expect("an action")
    }

    #[test]
    fn arguments_are_drawn_by_type_with_what_the_schema_says() {
        let schema = json!({ "properties": { "user_id": { "type": "integer", "description": "who" } }, "required": ["user_id"] });
        let args = json!({ "user_id": 7, "script": "a\nb", "to": { "city": "Rahway" }, "tags": ["x", "y"], "card": "‹hidden›" });
        let redactions = json!([{ "path": "/card", "rule": "card" }]);
        let action = action(
            json!({ "tool": "t", "args": args, "args_schema": schema, "redactions": redactions }),
        );
        let rows = rows(&action, false);
        let seen: Vec<(&str, usize, &str, &str)> = rows
            .iter()
            .map(|row| {
                (
                    row.path.as_str(),
                    row.depth,
                    row.value.as_str(),
                    row.note.as_str(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("/user_id", 0, "7", "integer, required, who"),
                ("/script", 0, "a\nb", ""),
                ("/to", 0, "", ""),
                ("/to/city", 1, "\"Rahway\"", ""),
                ("/tags", 0, "[\"x\",\"y\"]", ""),
                ("/card", 0, "\"‹hidden›\"", "redacted: card"),
            ]
        );
    }

    #[test]
    fn a_long_text_is_cut_and_says_how_to_see_all_of_it() {
        let action = action(json!({ "tool": "t", "args": { "a": "x".repeat(1000) } }));
        let cut = &rows(&action, false)[0];
        assert_eq!(cut.value.chars().count(), TEXT_CHARS_MAX + 1);
        assert_eq!(cut.note, "602 more characters: --full");
        assert_eq!(rows(&action, true)[0].value.chars().count(), 1002);
    }

    #[test]
    fn hostile_names_and_values_are_shown_and_not_obeyed() {
        let action =
            action(json!({ "tool": "t", "args": { "a\u{202e}": "x\n\u{1b}[2J\u{200b}" } }));
        let row = &rows(&action, true)[0];
        assert_eq!(row.name, "a\\u{202e}");
        assert_eq!(row.value, "x\n\\u{1b}[2J\\u{200b}");
    }

    #[track_caller]
    fn check_set(before: Value, schema: Option<&Value>, assignment: &str, after: &Value) {
        let mut args = before;
        set(&mut args, schema, assignment).expect("it can be set");
        assert_eq!(args, *after, "{assignment}");
    }

    #[test]
    fn a_value_is_set_by_its_path_and_keeps_its_type() {
        let args = || json!({ "user_id": 7, "name": "7", "to": { "zip": "1" }, "list": [1, 2] });
        let with = |pointer: &str, value: Value| {
            let mut args = args();
            *args.pointer_mut(pointer).expect("there") = value;
            args
        };
        check_set(args(), None, "user_id=8", &with("/user_id", json!(8)));
        check_set(args(), None, "name=8", &with("/name", json!("8")));
        check_set(
            args(),
            None,
            "to.zip=07065",
            &with("/to/zip", json!("07065")),
        );
        check_set(args(), None, "/list/1=5", &with("/list/1", json!(5)));
        check_set(
            args(),
            None,
            "user_id=\"bob\"",
            &with("/user_id", json!("bob")),
        );
        check_set(json!({}), None, "a.b=true", &json!({ "a": { "b": true } }));
        check_set(json!(null), None, "a==", &json!({ "a": "=" }));
        let schema = json!({ "properties": { "code": { "type": "string" } } });
        check_set(json!({}), Some(&schema), "code=7", &json!({ "code": "7" }));
    }

    #[test]
    fn what_cannot_be_set_says_why() {
        for assignment in [
            "user_id",
            "=7",
            "user_id.x=1",
            "list.9=1",
            "a..b=1",
            "/=1",
            // No schema would refuse the text.
            "user_id=bob",
            "list=1,2",
        ] {
            let mut args = json!({ "user_id": 7, "list": [1] });
            let failure = set(&mut args, None, assignment).expect_err(assignment);
            assert_eq!(failure.exit, crate::exit::Exit::Usage);
        }
    }

    #[test]
    fn an_edit_shows_what_it_changes() {
        let before =
            json!({ "user_id": 7, "old": 1, "to": { "a/b": 1 }, "list": [1, { "b": 1 }, 3] });
        let after =
            json!({ "user_id": 8, "to": { "a/b": 2 }, "list": [1, { "b": 2 }], "new": "x" });
        assert_eq!(
            differences(&before, &after),
            [
                "/user_id: 7 → 8",
                "/old: 1 → removed",
                "/to/a~1b: 1 → 2",
                "/list/1/b: 1 → 2",
                "/list/2: 3 → removed",
                "/new: new → \"x\""
            ]
        );
        assert!(differences(&before, &before).is_empty());
    }
}
