//! A paused turn as text that any chat window can show.

use statehold_core::hold::HoldKind;

use crate::api::hold::{HoldView, title_of};
use crate::holds::HoldDetail;

/// The text for a person who waits for a paused turn. `base` is the address of the server.
pub fn pause_text(holds: &[HoldDetail], base: &str) -> String {
    let mut lines: Vec<String> = holds.iter().map(|hold| hold_text(hold, base)).collect();
    lines.push("The answer comes with your next message here.".to_owned());
    lines.join("\n")
}

fn hold_text(detail: &HoldDetail, base: &str) -> String {
    let HoldView {
        id,
        alias,
        agent,
        message,
        url,
        ..
    } = HoldView::of(detail);
    let title = title_of(detail.hold.kind, detail.body.as_deref());
    let may_decide = detail.why_not.is_none();
    let place = format!("{base}/v1/holds/{id}");
    let what = match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{title} {message}"),
        None => title,
    };
    match detail.hold.kind {
        HoldKind::Question if may_decide => {
            format!("{agent} asks ({alias}): {what}\nAnswer with your next message.")
        }
        HoldKind::Question | HoldKind::Form => format!(
            "{agent} asks ({alias}): {what}\nAnswer at {place} or with: \
             statehold approvals respond {alias}"
        ),
        HoldKind::Link => {
            let url = url.unwrap_or_else(|| place.clone());
            format!(
                "{agent} waits for you ({alias}): {what}\nOpen {url}, then confirm at {place} or \
                 with: statehold approvals respond {alias}"
            )
        }
        HoldKind::Credential => format!(
            "{agent} needs a credential ({alias}): {what}\nGive it at {place} or with: \
             statehold approvals respond {alias}"
        ),
        HoldKind::Approval | HoldKind::Reconcile => {
            let who = if may_decide { "" } else { " of somebody else" };
            // Approving a reconcile hold runs the action again: the person has to look at it first.
            let verb = match detail.hold.kind {
                HoldKind::Reconcile => "show",
                _ => "approve",
            };
            format!(
                "{agent} waits for a decision{who} ({alias}): {what}\nDecide at {place} or with: \
                 statehold approvals {verb} {alias}"
            )
        }
    }
}
