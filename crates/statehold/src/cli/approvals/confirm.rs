//! The last question before an action runs.
//!
//! A plain yes is enough for most actions. High risk needs a text that belongs to the action, so
//! that nobody approves it by habit: it is typed, or given with `--confirm`. The text is made from
//! what runs, by a rule that does not change:
//!
//! 1. the first argument called `id`, `name` or `…_id` that is a short word or a number, as the name
//!    without `_id` and the value: `user_id=7` is `user 7`; for `id` and `name` alone, the last word
//!    of the tool is the name: `delete_user(id=7)` is `user 7` too;
//! 2. otherwise the name of the tool.
//!
//! What is redacted, longer than 40 characters or not plain is never part of it.

use serde_json::Value;

use crate::cli::ask;
use crate::cli::hold::{Action, Hold};
use crate::cli::printable::cell;
use crate::exit::Failure;

/// What the help says about the text.
pub(super) const HELP: &str = "\
High risk (risk `high`, or effect `destructive`) needs the confirmation text of the action:
typed when asked, or given with --confirm; --yes is never enough. The text is made from the
first argument called `id`, `name` or `…_id` whose value is short and plain: user_id=7 is
\"user 7\", and so is id=7 of the tool delete_user. Without such an argument it is the name of
the tool.";

/// The longest value that is part of a text.
const VALUE_CHARS_MAX: usize = 40;

/// How the person has answered before being asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers<'a> {
    pub(super) yes: bool,
    pub(super) confirm: Option<&'a str>,
}

/// Asks whether the action is meant. `args` are those that will run.
///
/// # Errors
///
/// With exit code 2 if nobody can be asked, or the text that was given is wrong.
pub(super) fn is_meant(
    hold: &Hold,
    args: Option<&Value>,
    answers: Answers<'_>,
) -> anyhow::Result<bool> {
    let text = phrase(hold, args);
    match answers.confirm {
        Some(given) if given.trim() == text => return Ok(true),
        Some(_) => return Err(wrong(&text).into()),
        None => {}
    }
    if !hold.is_high_risk() {
        return Ok(answers.yes || plain()?);
    }
    if ask::can_ask() {
        let typed = ask::line(&format!("Type \"{text}\" to approve: "))?;
        return Ok(typed.unwrap_or_default().trim() == text);
    }
    let enough = if answers.yes {
        "; --yes is not enough for that"
    } else {
        ""
    };
    Err(Failure::usage(format!(
        "{} is high risk and needs its confirmation text{enough}",
        hold.alias
    ))
    .hint(format!(
        "look at it first, then say that it is meant with: --confirm \"{text}\""
    ))
    .into())
}

fn plain() -> anyhow::Result<bool> {
    if ask::can_ask() {
        return ask::yes("Approve it?");
    }
    Err(
        Failure::usage("an approval is a decision, and nobody can be asked here")
            .hint("say that it is meant with: --yes")
            .into(),
    )
}

fn wrong(text: &str) -> Failure {
    Failure::usage("the confirmation text is of another action; nothing was decided")
        .hint(format!("for this one it is: --confirm \"{text}\""))
}

/// The confirmation text of an action. Never empty.
pub(super) fn phrase(hold: &Hold, args: Option<&Value>) -> String {
    let from_action = |action: &Action| {
        let fields = args.unwrap_or(&action.args).as_object();
        let mut fields = fields.into_iter().flatten();
        let target = fields.find_map(|(name, value)| {
            let pointer = format!("/{name}");
            // An edit shows its own values: what was redacted before is typed there.
            let is_hidden = args.is_none() && action.is_redacted(&pointer);
            let noun = noun(name, &action.tool).filter(|_| !is_hidden)?;
            Some(format!("{noun} {}", plain_value(value)?))
        });
        target.unwrap_or_else(|| cell(&action.tool))
    };
    match hold.action.as_ref().map(from_action) {
        Some(text) if !text.trim().is_empty() => text,
        _ => cell(&hold.alias),
    }
}

/// What an argument names, if it names the target.
fn noun(name: &str, tool: &str) -> Option<String> {
    let noun = match name {
        "id" | "name" => {
            let words = tool.rsplit(['_', '-', '.', '/', ' ']);
            words.into_iter().find(|word| !word.is_empty())?
        }
        _ => name.strip_suffix("_id").or(name.strip_suffix("Id"))?,
    };
    let is_plain =
        !noun.is_empty() && cell(noun) == noun && noun.chars().count() <= VALUE_CHARS_MAX;
    is_plain.then(|| noun.to_owned())
}

fn plain_value(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let is_plain = text.trim() == text
        && !text.is_empty()
        && text.chars().count() <= VALUE_CHARS_MAX
        && !text.contains('"')
        && cell(&text) == text;
    is_plain.then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hold(action: &Value) -> Hold {
        let whole = json!({
            "id": "hld_1", "alias": "R8.h1", "kind": "approval", "status": "open",
            "session_id": "ses_1", "task_id": "tsk_1", "request_id": "req_1", "agent": "ums-agent",
            "action": action
        });
        serde_json::from_value(whole).expect("a hold")
    }

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
            ("wipe", json!({ "disk_id": "" }), "wipe"),
            ("wipe", json!({ "disk_id": { "a": 1 } }), "wipe"),
        ] {
            let hold = hold(&json!({ "tool": tool, "args": args }));
            assert_eq!(phrase(&hold, None), text, "{tool} {args}");
        }
    }

    #[test]
    fn what_is_redacted_is_not_asked_for_and_an_edit_asks_for_its_own_target() {
        let action = json!({ "tool": "pay", "args": { "card_id": "‹card›" }, "redactions": [{ "path": "/card_id", "rule": "card" }] });
        assert_eq!(phrase(&hold(&action), None), "pay");
        let edited = json!({ "card_id": 8 });
        assert_eq!(phrase(&hold(&action), Some(&edited)), "card 8");
    }

    #[test]
    fn high_risk_is_confirmed_with_its_text_and_nothing_else() {
        let risky =
            hold(&json!({ "tool": "delete_user", "args": { "user_id": 7 }, "risk": "high" }));
        let answer = |yes, confirm| is_meant(&risky, None, Answers { yes, confirm });
        assert!(answer(false, Some("user 7")).expect("the text"));
        for wrong in ["user 8", "", "y", "USER 7", "user  7"] {
            assert!(answer(true, Some(wrong)).is_err(), "{wrong}");
        }
    }
}
