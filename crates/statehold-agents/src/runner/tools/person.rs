//! Approval holds for tool calls, and the texts that report decisions to the model.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use statehold_core::command::Rejection;
use statehold_core::hold::{CallTarget, Effect, HoldKind, HoldStatus};
use statehold_core::ids::ItemId;
use statehold_core::request::CallState;
use statehold_engine::bodies::{DecisionBody, HoldBody, ItemBody, Raw, parse};
use statehold_engine::{EngineError, HoldDetail, HoldSpec, NewAction, Schema};

use super::{CallReport, PendingCall, Toolbox, is_chosen_tool};
use crate::mcp::{McpTool, ToolReply};
use crate::message::raw;
use crate::runner::journal::StepKind;
use crate::runner::run::{AgentRun, CommitPhase};
use crate::turn::TurnError;

/// Between a note and the result.
pub(super) const NOTE_GAP: &str = "\n\n";
/// Longest text of one result for the model. The history keeps the complete result.
const RESULT_TEXT_BYTES_MAX: usize = 256 * 1024;

impl AgentRun {
    /// Opens an approval hold for each call. Returns reports for the calls that cannot be put before a
    /// person.
    pub(super) async fn open_approvals(
        &self,
        calls: &[&PendingCall<'_>],
        toolbox: &mut Toolbox,
    ) -> Result<Vec<(ItemId, CallReport)>, TurnError> {
        let Some(first) = calls.first() else {
            return Ok(Vec::new());
        };
        // Editing needs the schema, but an approval without one is better than none.
        let listing = toolbox.tools().await;
        let group = (calls.len() > 1).then(|| first.call.id.to_string());
        let mut stuck = Vec::new();
        for one in calls {
            let tool = listing
                .tools
                .iter()
                .find(|tool| is_chosen_tool(tool, one.requested));
            if let Some(text) = self.open_approval(one, tool, group.clone()).await? {
                stuck.push((one.call.id, CallReport::skipped(text)));
            }
        }
        Ok(stuck)
    }

    /// Opens an approval hold for one call. Returns a text for the model if the engine refuses the
    /// hold.
    async fn open_approval(
        &self,
        one: &PendingCall<'_>,
        tool: Option<&McpTool>,
        group_id: Option<String>,
    ) -> Result<Option<String>, TurnError> {
        let (Ok(name), Some(args)) = (one.call.tool.parse(), one.arguments.clone()) else {
            return Ok(Some(refused_hold_text("people cannot be asked about it")));
        };
        let schema = tool.map(|tool| tool.input_schema.to_string());
        let schema = schema.filter(|schema| Schema::new(schema).is_ok());
        let schema = schema.and_then(|schema| serde_json::from_str(&schema).ok());
        let destroys = tool.is_some_and(|tool| tool.destructive == Some(true));
        let spec = HoldSpec {
            kind: HoldKind::Approval,
            title: title(&one.call.tool),
            // Two servers may have tools of the same name.
            message: Some(format!(
                "It is a tool of the server `{}`.",
                one.requested.server
            )),
            action: Some(NewAction {
                tool: name,
                args,
                args_schema: schema,
                call_id: one.call.call_id.clone(),
                call: Some(CallTarget::Recorded(one.call.id)),
                // Hints of the tool server can only raise the risk shown, never lower it.
                effect: destroys.then_some(Effect::Destructive),
                risk: None,
                idempotent: Some(one.call.idempotent),
            }),
            response_schema: None,
            url: None,
            reasons: None,
            group_id,
            allowed: BTreeSet::new(),
            quorum: None,
            expires_in_seconds: None,
            on_expiry: None,
            decide_by: None,
        };
        self.notify_hook(StepKind::Hold, CommitPhase::Before);
        match self.request.open_hold(spec).await {
            Ok(()) => {
                self.notify_hook(StepKind::Hold, CommitPhase::After);
                Ok(None)
            }
            Err(
                error @ (EngineError::HoldMalformed { .. }
                | EngineError::InvalidField { .. }
                | EngineError::PolicyStricter { .. }),
            ) => Ok(Some(refused_hold_text(&error.to_string()))),
            Err(EngineError::Rejected(Rejection::Limit { limit, max })) => {
                let message = format!(
                    "no approval of `{}` can be requested: there are {max} {limit} already; decide \
                     some of them, then ask again",
                    one.call.tool
                );
                Err(TurnError::failed("limit_reached", message))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn refused_hold_text(why: &str) -> String {
    format!("It was not called: it needs an approval, and {why}.")
}

/// Title of the hold, which every reader of the session sees. Only deciders see the arguments, in the
/// action.
fn title(tool: &str) -> String {
    format!("{tool} needs an approval")
}

/// Truncates a text and appends `rest` in place of the missing part.
fn clip(text: &str, most: usize, rest: &str) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    format!("{}{rest}", &text[..end.unwrap_or(0)])
}

/// Renders a recorded result as text for the model.
pub(crate) fn render_for_model(body: &ItemBody) -> String {
    let result = body.result.as_ref();
    let result = result.and_then(|result| serde_json::from_str(result.get()).ok());
    let text = match result {
        Some(Value::Null) | None => "Nothing came back.".to_owned(),
        Some(Value::Object(mut members)) if members.len() == 1 && members.contains_key("error") => {
            let error = members.remove("error").unwrap_or_default();
            format!("Error: {}", content_text(error))
        }
        Some(result) => content_text(result),
    };
    let rest = format!("\n… (cut here; all of it has {} bytes)", text.len());
    let text = clip(&text, RESULT_TEXT_BYTES_MAX, &rest);
    match note_of(body) {
        Some(note) => format!("{note}{NOTE_GAP}{text}"),
        None => text,
    }
}

/// The note for the model that a recorded result begins with.
pub(super) fn note_of(body: &ItemBody) -> Option<String> {
    let data: Value = serde_json::from_str(body.data.as_ref()?.get()).ok()?;
    data.get("note")?.as_str().map(str::to_owned)
}

/// Whether a recorded result is an error that the tool reported.
pub(super) fn is_error_result(result: &RawValue) -> bool {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ErrorResult {
        #[serde(rename = "error")]
        _error: IgnoredAny,
    }
    serde_json::from_str::<ErrorResult>(result.get()).is_ok()
}

fn content_text(content: Value) -> String {
    const PARTS: [&str; 3] = ["text", "structured", "parts"];
    match content {
        Value::Object(members) if members.keys().all(|name| PARTS.contains(&name.as_str())) => {
            let content = Value::Object(members);
            let is_error = false;
            ToolReply { content, is_error }.for_model()
        }
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Decision about a call that did not simply release it.
pub(super) enum CallDecision {
    Refused(String),
    Answered(Raw),
    Ran(Raw),
}

pub(super) fn call_decision(state: CallState, hold: Option<&HoldDetail>) -> CallDecision {
    let words: DecisionBody = parse(hold.and_then(|hold| hold.decision_body.as_deref()));
    match state {
        CallState::Answered => CallDecision::Answered(words.content.unwrap_or_else(|| raw(&()))),
        CallState::Confirmed => {
            let content = words
                .content
                .map(|content| serde_json::from_str(content.get()));
            let result = match content {
                Some(Ok(Value::Object(mut found))) => found.remove("result"),
                _ => None,
            };
            CallDecision::Ran(raw(&result.unwrap_or(Value::Null)))
        }
        _ => CallDecision::Refused(refusal(hold, &words)),
    }
}

fn refusal(hold: Option<&HoldDetail>, words: &DecisionBody) -> String {
    let status = hold.and_then(|hold| Some(hold.closed.as_ref()?.decision.status));
    let is_lost = hold.is_some_and(|hold| hold.hold.kind == HoldKind::Reconcile);
    let mut text = match (status, is_lost) {
        (Some(HoldStatus::Rejected), false) => "A person refused this call. It was not made, and must not be made again.",
        (Some(HoldStatus::Rejected), true) => {
            "It was not known whether this call ran. A person found that it did not, and it must not be made again."
        }
        (Some(HoldStatus::Expired), _) => "Nobody decided in time whether this call may be made. It was not made.",
        _ => "The question whether this call may be made was withdrawn. It was not made.",
    }
    .to_owned();
    let reason = words.reason.as_ref().and_then(|id| {
        let body: HoldBody = parse(hold?.body.as_deref());
        let chosen = body.reasons?.into_iter().find(|reason| reason.id == *id)?;
        Some(chosen.text.unwrap_or(chosen.title))
    });
    let said = reason.iter().chain(&words.comment);
    for words in said
        .map(|words| words.trim())
        .filter(|words| !words.is_empty())
    {
        write!(text, " They say: {words}").expect("a text takes everything");
    }
    text
}

/// Tool of an approval hold.
pub(super) fn tool_of(hold: &HoldDetail) -> String {
    let body: HoldBody = parse(hold.body.as_deref());
    body.action.map(|action| action.tool).unwrap_or_default()
}

/// Tells the model that a person edited its arguments. Shows the redacted preview only.
pub(super) fn edit_note(hold: &HoldDetail) -> String {
    let words: DecisionBody = parse(hold.decision_body.as_deref());
    let shown = words.args.map(|args| args.get().to_owned());
    format!(
        "A person changed the arguments of this call before it was made, to: {}",
        shown.as_deref().unwrap_or("others")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_is_told_in_part_and_says_so() {
        let body = |result: Raw, data: Option<Raw>| ItemBody {
            result: Some(result),
            data,
            ..ItemBody::default()
        };
        let note = raw(&serde_json::json!({"note": "Changed."}));
        assert_eq!(
            render_for_model(&body(raw(&"ok"), Some(note))),
            "Changed.\n\nok"
        );
        for (result, told) in [
            (serde_json::json!([1]), "[1]"),
            (serde_json::json!({"a": 1}), r#"{"a":1}"#),
            (
                serde_json::json!({"text": "one", "structured": {"n": 1}}),
                "one",
            ),
            (
                serde_json::json!({"error": "no such user"}),
                "Error: no such user",
            ),
            (serde_json::json!(null), "Nothing came back."),
        ] {
            assert_eq!(render_for_model(&body(raw(&result), None)), told);
        }
        let told = render_for_model(&body(raw(&"x".repeat(RESULT_TEXT_BYTES_MAX + 1)), None));
        assert!(
            told.ends_with("all of it has 262145 bytes)"),
            "{}",
            &told[RESULT_TEXT_BYTES_MAX..]
        );
    }
}
