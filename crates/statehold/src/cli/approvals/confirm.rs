//! The confirmation before an action runs.
//!
//! A plain yes is enough for most actions. High risk needs a confirmation text specific to the
//! action, so that people do not approve by habit: they type it, or pass it with `--confirm`. The
//! text is derived from the arguments by a fixed rule:
//!
//! 1. the first argument called `id`, `name` or `…_id` that is a short word or a number, as the
//!    name without `_id` and the value: `user_id=7` is `user 7`; for `id` and `name` alone, the
//!    last word of the tool is the name: `delete_user(id=7)` is `user 7` too;
//! 2. otherwise the name of the tool.
//!
//! Values that are redacted, longer than 40 characters or not plain text are never part of it.

use clap::Args;
use serde_json::Value;

use crate::cli::ask;
use crate::cli::hold::{ActionInfo, HoldInfo};
use crate::cli::printable::cell;
use crate::exit::Failure;

/// Help text about the confirmation text.
pub(super) const HELP: &str = "\
High risk (risk `high`, or effect `destructive`) needs the confirmation text of the action:
typed when asked, or given with --confirm; --yes is never enough. The text is made from the
first argument called `id`, `name` or `…_id` whose value is short and plain: user_id=7 is
\"user 7\", and so is id=7 of the tool delete_user. Without such an argument it is the name of
the tool.";

/// The longest argument value used in a confirmation text.
const VALUE_CHARS_MAX: usize = 40;

/// Arguments that confirm an action.
#[derive(Debug, Args)]
pub(super) struct ConfirmationArgs {
    /// Do not ask. Not enough for high risk.
    #[arg(short, long)]
    yes: bool,
    /// The confirmation text, for high risk.
    #[arg(long, value_name = "TEXT")]
    confirm: Option<String>,
    /// Decide only if this is the digest of the action.
    #[arg(long, value_name = "DIGEST")]
    pub(super) digest: Option<String>,
}

/// Returns whether the person confirms the action. `args` are the arguments that will run.
///
/// # Errors
///
/// With exit code 2 if there is no terminal to ask on, or the given text is wrong.
pub(super) fn confirm_action(
    hold: &HoldInfo,
    args: Option<&Value>,
    given: &ConfirmationArgs,
) -> anyhow::Result<bool> {
    let text = confirmation_text(hold, args);
    match &given.confirm {
        Some(typed) if typed.trim() == text => return Ok(true),
        Some(_) => return Err(wrong_confirmation(&text).into()),
        None => {}
    }
    if !hold.is_high_risk() {
        ask::require_person(given.yes, "an approval")?;
        return Ok(given.yes || ask::ask_yes("Approve it?")?);
    }
    if ask::can_ask() {
        let typed = ask::ask_line(&format!("Type \"{text}\" to approve: "))?;
        return Ok(typed.unwrap_or_default().trim() == text);
    }
    let enough = if given.yes {
        "; --yes is not enough for that"
    } else {
        ""
    };
    Err(Failure::usage(format!(
        "{} is high risk and needs its confirmation text{enough}",
        hold.alias
    ))
    .hint(format!(
        "check the action, then confirm it with: --confirm \"{text}\""
    ))
    .into())
}

fn wrong_confirmation(text: &str) -> Failure {
    Failure::usage("the confirmation text does not match this action; nothing was decided")
        .hint(format!("the text of this action is: --confirm \"{text}\""))
}

/// The confirmation text of an action. Never empty.
pub(super) fn confirmation_text(hold: &HoldInfo, args: Option<&Value>) -> String {
    let from_action = |action: &ActionInfo| {
        let fields = args.unwrap_or(&action.args).as_object();
        let mut fields = fields.into_iter().flatten();
        let target = fields.find_map(|(name, value)| {
            let pointer = format!("/{name}");
            // An edit shows its own values: the person typed them, so they are not redacted.
            let is_hidden = args.is_none() && action.is_redacted(&pointer);
            let noun = target_noun(name, &action.tool).filter(|_| !is_hidden)?;
            Some(format!("{noun} {}", plain_value(value)?))
        });
        target.unwrap_or_else(|| cell(&action.tool))
    };
    match hold.action.as_ref().map(from_action) {
        Some(text) if !text.trim().is_empty() => text,
        _ => cell(&hold.alias),
    }
}

/// The noun for the target that an argument identifies, if it identifies one.
fn target_noun(name: &str, tool: &str) -> Option<String> {
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

    fn hold(action: &Value) -> HoldInfo {
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
            assert_eq!(confirmation_text(&hold, None), text, "{tool} {args}");
        }
    }

    #[test]
    fn what_is_redacted_is_not_asked_for_and_an_edit_asks_for_its_own_target() {
        let action = json!({ "tool": "pay", "args": { "card_id": "‹card›" }, "redactions": [{ "path": "/card_id", "rule": "card" }] });
        assert_eq!(confirmation_text(&hold(&action), None), "pay");
        let edited = json!({ "card_id": 8 });
        assert_eq!(confirmation_text(&hold(&action), Some(&edited)), "card 8");
    }

    #[test]
    fn high_risk_is_confirmed_with_its_text_and_nothing_else() {
        let risky =
            hold(&json!({ "tool": "delete_user", "args": { "user_id": 7 }, "risk": "high" }));
        let answer = |yes, confirm: Option<&str>| {
            let given = ConfirmationArgs {
                yes,
                confirm: confirm.map(str::to_owned),
                digest: None,
            };
            confirm_action(&risky, None, &given)
        };
        assert!(answer(false, Some("user 7")).expect("the text"));
        for wrong in ["user 8", "", "y", "USER 7", "user  7"] {
            assert!(answer(true, Some(wrong)).is_err(), "{wrong}");
        }
    }
}
