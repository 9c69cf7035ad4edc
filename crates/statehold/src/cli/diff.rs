//! Differences between revisions of a session, for `sessions diff`, `state diff` and `state history`.

use clap::Args;
use serde_json::{Value, json};

use super::answers::elements;
use super::output::{CliOutput, TableCell, TextTable, TextTone};
use super::printable::excerpt;
use crate::client::{Client, with_query};
use crate::exit::Failure;

/// The longest value in a cell.
pub(super) const VALUE_CHARS_MAX: usize = 60;

/// The two revisions of a difference.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct DiffRangeArgs {
    /// The earlier revision; 0 is the empty session before its first record.
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    from: u64,
    /// The later revision; the newest one by default.
    #[arg(long, value_name = "REVISION")]
    to: Option<u64>,
}

/// Reads a whole difference, page by page. Without `every_write` each key has one change: from its value on the first
/// page to that on the last one.
pub(super) async fn read(
    client: &Client,
    session: &str,
    range: DiffRangeArgs,
    key: Option<&str>,
    every_write: bool,
) -> Result<Value, Failure> {
    let path = format!("/v1/sessions/{session}/diff");
    let mut whole = json!({
        "session_id": session, "from": range.from, "to": range.to.unwrap_or(range.from),
        "changes": [], "messages": [], "items_added": 0, "rewinds": [],
    });
    let mut cursor: Option<String> = None;
    loop {
        let parameters = [
            ("from", Some(range.from.to_string())),
            ("to", range.to.map(|to| to.to_string())),
            ("key", key.map(str::to_owned)),
            ("every_write", every_write.then(|| "true".to_owned())),
            ("cursor", cursor),
        ];
        let page = client.get(&with_query(&path, &parameters)).await?.body;
        add_page(&mut whole, &page, every_write);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok(whole),
        }
    }
}

fn add_page(whole: &mut Value, page: &Value, every_write: bool) {
    for list in ["messages", "rewinds"] {
        if let Some(found) = whole[list].as_array_mut() {
            found.extend(elements(page, list).iter().cloned());
        }
    }
    let added = |value: &Value| value["items_added"].as_u64().unwrap_or(0);
    whole["items_added"] = json!(added(whole) + added(page));
    whole["to"] = page["to"].clone();
    let Some(changes) = whole["changes"].as_array_mut() else {
        return;
    };
    for change in elements(page, "changes") {
        let known = changes
            .iter_mut()
            .find(|known| !every_write && known["key"] == change["key"]);
        match known {
            Some(known) => *known = joined(known, change),
            None => changes.push(change.clone()),
        }
    }
    changes.retain(|change| change.get("before").is_some() || change.get("after").is_some());
}

/// Two changes of one key, one after the other, as one.
fn joined(first: &Value, second: &Value) -> Value {
    let mut joined = second.clone();
    let writes = |change: &Value| change["writes"].as_u64().unwrap_or(0);
    joined["writes"] = json!(writes(first) + writes(second));
    if let Some(fields) = joined.as_object_mut() {
        fields.shift_remove("before");
        if let Some(before) = first.get("before") {
            fields.insert("before".to_owned(), before.clone());
        }
    }
    joined
}

/// The changes of keys: what, by whom, and when.
pub(super) fn table(diff: &Value, output: &CliOutput) -> TextTable {
    let mut table = TextTable::new(&[
        "KEY", "BEFORE", "AFTER", "WRITES", "REVISION", "AT", "BY", "REQUEST",
    ])
    .spare(&["WRITES", "REQUEST", "REVISION"]);
    for change in elements(diff, "changes") {
        table.row(vec![
            TableCell::of(&change["key"]).tone(TextTone::Strong),
            value(change.get("before")),
            value(change.get("after")),
            TableCell::new(change["writes"].to_string()),
            TableCell::new(change["revision"].to_string()),
            output.time(&change["at"]),
            TableCell::of(&change["by"]),
            TableCell::id(&change["request_id"]),
        ]);
    }
    table
}

/// One side of a change: the beginning of the value, or its length.
pub(super) fn value(side: Option<&Value>) -> TableCell {
    let Some(side) = side else {
        return TableCell::new("-");
    };
    match side.get("value") {
        Some(value) => TableCell::shown(excerpt(&value.to_string(), VALUE_CHARS_MAX)),
        None => TableCell::new(format!("({} bytes)", side["bytes"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_key_on_several_pages_are_one_change() {
        let page =
            |changes: Value, to: u64| json!({"to": to, "changes": changes, "items_added": 1});
        let put = |before: Value, after: Value, revision: u64| {
            let mut change = json!({"key": "n", "writes": 1, "revision": revision});
            for (name, side) in [("before", before), ("after", after)] {
                if !side.is_null() {
                    change[name] = json!({ "value": side });
                }
            }
            json!([change])
        };
        let mut whole = json!({"changes": [], "items_added": 0});
        add_page(&mut whole, &page(put(Value::Null, json!(1), 2), 2), false);
        add_page(&mut whole, &page(put(json!(1), json!(2), 3), 3), false);
        let expected = json!([{"key": "n", "writes": 2, "revision": 3, "after": {"value": 2}}]);
        assert_eq!(whole["changes"], expected);
        assert_eq!(
            (&whole["to"], &whole["items_added"]),
            (&json!(3), &json!(2))
        );
        add_page(&mut whole, &page(put(json!(2), Value::Null, 4), 4), false);
        assert_eq!(whole["changes"], json!([]), "it came and went");
    }
}
