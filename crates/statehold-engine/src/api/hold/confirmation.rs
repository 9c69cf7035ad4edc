//! The text that confirms an action of high risk on the command line.
//!
//! A plain yes is enough for most actions. High risk needs a text specific to the action, so that people do
//! not approve by habit. The text is derived from the arguments by a fixed rule:
//!
//! 1. the first argument called `id`, `name` or `…_id` that is a short word or a number, as the name without
//!    `_id` and the value: `user_id=7` is `user 7`; for `id` and `name` alone, the last word of the tool is the
//!    name: `delete_user(id=7)` is `user 7` too;
//! 2. otherwise the name of the tool.
//!
//! Values that are hidden, longer than 40 characters or not plain text are never part of it.

use serde_json::Value;
use statehold_core::name::is_deceptive;

/// The longest argument value in a confirmation text.
const VALUE_CHARS_MAX: usize = 40;

/// The confirmation text of an action. `is_hidden` tells whether the value at a JSON pointer is redacted.
pub fn confirmation_text(tool: &str, args: &Value, is_hidden: impl Fn(&str) -> bool) -> String {
    let mut fields = args.as_object().into_iter().flatten();
    let target = fields.find_map(|(name, value)| {
        let noun = target_noun(name, tool).filter(|_| !is_hidden(&format!("/{name}")))?;
        Some(format!("{noun} {}", plain_value(value)?))
    });
    target.unwrap_or_else(|| tool.to_owned())
}

/// The noun for the target that an argument identifies, if it identifies one.
fn target_noun<'a>(name: &'a str, tool: &'a str) -> Option<&'a str> {
    let noun = match name {
        "id" | "name" => {
            let words = tool.rsplit(['_', '-', '.', '/', ' ']);
            words.into_iter().find(|word| !word.is_empty())?
        }
        _ => name.strip_suffix("_id").or(name.strip_suffix("Id"))?,
    };
    is_plain(noun).then_some(noun)
}

fn plain_value(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    is_plain(&text).then_some(text)
}

/// Whether a text can be read, typed and quoted as it is.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.trim() == text
        && text.chars().count() <= VALUE_CHARS_MAX
        && !text
            .chars()
            .any(|c| c == '"' || c == '\\' || is_deceptive(c))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_is_the_target_or_the_tool() {
        for (tool, args, text) in [
            (
                "delete_user",
                json!({ "user_id": 7, "cascade": false }),
                "user 7",
            ),
            (
                "delete_user",
                json!({ "cascade": false, "id": "ab" }),
                "user ab",
            ),
            ("drop_table", json!({ "name": "orders" }), "table orders"),
            (
                "wire",
                json!({ "amount": 5, "accountId": "DE1" }),
                "account DE1",
            ),
            ("wipe", json!({ "everything": true }), "wipe"),
            ("wipe", json!(null), "wipe"),
            ("wipe", json!({ "disk_id": "x".repeat(41) }), "wipe"),
            ("wipe", json!({ "disk_id": "a\u{200b}" }), "wipe"),
            ("wipe", json!({ "disk_id": "a\" --yes" }), "wipe"),
            ("wipe", json!({ "disk_id": "" }), "wipe"),
            ("wipe", json!({ "disk_id": { "a": 1 } }), "wipe"),
        ] {
            let derived = confirmation_text(tool, &args, |_| false);
            assert_eq!(derived, text, "{tool} {args}");
        }
    }

    #[test]
    fn a_hidden_value_is_not_part_of_the_text() {
        let args = json!({ "card_id": "‹card›" });
        let is_hidden = |pointer: &str| pointer == "/card_id";
        assert_eq!(confirmation_text("pay", &args, is_hidden), "pay");
    }
}
