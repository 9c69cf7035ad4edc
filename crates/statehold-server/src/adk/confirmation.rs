//! Open approvals in the form in which ADK asks for a confirmation.
//!
//! Such an event is made for each answer. It is stored when an event answers it, so that the history has both.

use serde_json::{Value, json};
use statehold_engine::api::event::EventInput;
use statehold_engine::api::hold::HoldView;
use statehold_engine::api::json::Raw;

use super::event::{CONFIRMATION, made_event};

/// The event that asks for a decision.
pub(super) fn confirmation(hold: &HoldView) -> Raw {
    let id = hold.id.to_string();
    // The action is left out for readers who may not see it.
    let action = hold.action.as_ref();
    let (tool, args) = match action {
        Some(action) => {
            let args: Option<Value> = serde_json::from_str(action.args.get()).ok();
            let args = args.filter(Value::is_object).unwrap_or_else(|| json!({}));
            (action.tool.clone(), args)
        }
        None => (hold.title.clone(), json!({})),
    };
    let hint = hold.message.as_deref().unwrap_or(&hold.title);
    let mut call = json!({"name": tool, "args": args});
    if let Some(key) = hold.execution_key {
        call["id"] = key.to_string().into();
    }
    let mut asked = json!({"hint": hint, "confirmed": false});
    if let Some(digest) = action.and_then(|action| action.digest) {
        // A client that sends it back decides on exactly this action.
        asked["payload"] = json!({"digest": digest});
    }
    made_event(json!({
        "id": id,
        "invocationId": hold.request_id.to_string(),
        "author": hold.agent.to_string(),
        "timestamp": asked_at(hold),
        "longRunningToolIds": [id],
        "content": {"role": "model", "parts": [{"functionCall": {
            "id": id,
            "name": CONFIRMATION,
            "args": {"originalFunctionCall": call, "toolConfirmation": asked},
        }}]},
    }))
}

/// The same event, to be stored before the one that answers it. It has the title in place of the action: every reader
/// of the session reads it later, and few of them may see the action.
pub(super) fn question_event(hold: &HoldView) -> EventInput {
    let hold = &HoldView {
        action: None,
        execution_key: None,
        ..hold.clone()
    };
    EventInput {
        id: hold.id.to_string(),
        invocation: hold.request_id.to_string(),
        time: asked_at(hold),
        json: confirmation(hold),
        message: None,
        state: std::collections::BTreeMap::new(),
    }
}

fn asked_at(hold: &HoldView) -> f64 {
    hold.created_at.map_or(0.0, |at| {
        #[expect(clippy::cast_precision_loss, reason = "exact for 285 years from 1970")]
        let micros = at.0.as_micros() as f64;
        micros / 1e6
    })
}
