//! The confirmation before an action runs: a plain yes, or for high risk the text of the action, typed or
//! passed with `--confirm`.

use clap::Args;
use serde_json::Value;
use statehold_engine::api::hold;

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

/// Arguments that confirm an action.
#[derive(Debug, Default, Args)]
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
        return Ok(given.yes || ask::ask_yes(&format!("Approve {}?", hold.in_question()))?);
    }
    if ask::can_ask() {
        let typed = ask::ask_line(&format!(
            "Type \"{text}\" to approve {}: ",
            hold.in_question()
        ))?;
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

/// The confirmation text of an action. Never empty. `args` are the arguments of an edit.
pub(super) fn confirmation_text(hold: &HoldInfo, args: Option<&Value>) -> String {
    let from_action = |action: &ActionInfo| {
        // An edit shows its own values: the person typed them, so they are not redacted.
        let is_hidden = |pointer: &str| args.is_none() && action.is_redacted(pointer);
        hold::confirmation_text(&action.tool, args.unwrap_or(&action.args), is_hidden)
    };
    match hold.action.as_ref().map(from_action) {
        Some(text) if !text.trim().is_empty() => cell(&text),
        _ => cell(&hold.alias),
    }
}

/// The option that approves an action of high risk, after a space. Empty for other actions.
pub(in crate::cli) fn confirm_option(hold: &HoldInfo) -> String {
    let text = hold.is_high_risk().then(|| confirmation_text(hold, None));
    text.map_or_else(String::new, |text| format!(" --confirm \"{text}\""))
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
