//! People and tool calls: how they are asked, and what a model is told of what they decided.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;
use statehold_core::command::Rejection;
use statehold_core::hold::{CallTarget, Effect, HoldKind, HoldStatus};
use statehold_core::ids::ItemId;
use statehold_core::request::CallState;
use statehold_engine::kept::{DecisionBody, HoldBody, ItemBody, Raw, parse};
use statehold_engine::{EngineError, HoldDetail, NewAction, NewAsk, Schema};

use super::{Open, Told, Toolbox, is_meant};
use crate::mcp::{Tool, ToolReply};
use crate::runner::journal::StepKind;
use crate::runner::run::{Moment, Run};
use crate::turn::TurnError;
use crate::words::raw;

/// What a model is told of one result. The whole stays in the history.
const TOLD_BYTES_MAX: usize = 256 * 1024;

impl Run {
    /// Opens an approval for each call. Those that nobody can be asked about are told so.
    pub(super) async fn ask_about(
        &self,
        calls: &[&Open<'_>],
        toolbox: &mut Toolbox,
    ) -> Result<Vec<(ItemId, Told)>, TurnError> {
        let Some(first) = calls.first() else {
            return Ok(Vec::new());
        };
        // What edits must look like is worth having, but not worth losing the approval for.
        let tools = toolbox.tools().await.unwrap_or_default();
        let group = (calls.len() > 1).then(|| first.call.id.to_string());
        let mut stuck = Vec::new();
        for one in calls {
            let tool = tools.iter().find(|tool| is_meant(tool, one.wish));
            if let Some(text) = self.ask_one(one, tool, group.clone()).await? {
                let outcome = None;
                stuck.push((one.call.id, Told { outcome, text }));
            }
        }
        Ok(stuck)
    }

    /// Asks about one call. Says why if that makes no sense.
    async fn ask_one(
        &self,
        one: &Open<'_>,
        tool: Option<&Tool>,
        group_id: Option<String>,
    ) -> Result<Option<String>, TurnError> {
        let (Ok(name), Some(args)) = (one.call.tool.parse(), one.arguments.clone()) else {
            return Ok(Some(unaskable("people cannot be asked about it")));
        };
        let schema = tool.map(|tool| tool.input_schema.to_string());
        let schema = schema.filter(|schema| Schema::new(schema).is_ok());
        let schema = schema.and_then(|schema| serde_json::from_str(&schema).ok());
        let destroys = tool.is_some_and(|tool| tool.destructive == Some(true));
        let ask = NewAsk {
            kind: HoldKind::Approval,
            title: title(&one.call.tool),
            // Two servers may have tools of the same name.
            message: Some(format!("It is a tool of the server `{}`.", one.wish.server)),
            action: Some(NewAction {
                tool: name,
                args,
                args_schema: schema,
                call_id: one.call.call_id.clone(),
                call: Some(CallTarget::Recorded(one.call.id)),
                // The server of a tool can only make it look more dangerous.
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
        let nothing = (Vec::new(), self.payloads().await?);
        self.reach(StepKind::Hold, Moment::Before);
        let (session, call, by) = (self.place.session, self.call(), self.fenced());
        let opened = self
            .engine
            .open_hold(session, &call, by, ask, nothing)
            .await;
        match opened {
            Ok(_) => {
                self.reach(StepKind::Hold, Moment::After);
                Ok(None)
            }
            Err(
                error @ (EngineError::HoldMalformed { .. }
                | EngineError::InvalidField { .. }
                | EngineError::PolicyStricter { .. }),
            ) => Ok(Some(unaskable(&error.to_string()))),
            Err(EngineError::Rejected(Rejection::Limit { limit, max })) => {
                let message = format!(
                    "nobody can be asked whether `{}` may run: there are {max} {limit} already; decide \
                     some of them, then ask again",
                    one.call.tool
                );
                Err(TurnError::failed("limit_reached", message))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn unaskable(why: &str) -> String {
    format!("It was not called: it needs an approval, and {why}.")
}

/// What everybody who sees the hold reads. The arguments are for those who may decide: they are in the
/// action.
fn title(tool: &str) -> String {
    format!("{tool} needs an approval")
}

/// The beginning of a text, and what is put in place of the rest.
fn clip(text: &str, most: usize, rest: &str) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    format!("{}{rest}", &text[..end.unwrap_or(0)])
}

/// What a model is told of a recorded result.
pub(crate) fn told_of(body: &ItemBody) -> String {
    let result = body.result.as_ref();
    let result = result.and_then(|result| serde_json::from_str(result.get()).ok());
    let text = match result {
        Some(Value::Null) | None => "Nothing came back.".to_owned(),
        Some(Value::Object(mut members)) if members.len() == 1 && members.contains_key("error") => {
            let error = members.remove("error").unwrap_or_default();
            format!("Error: {}", in_words(error))
        }
        Some(result) => in_words(result),
    };
    let rest = format!("\n… (cut here; all of it has {} bytes)", text.len());
    let text = clip(&text, TOLD_BYTES_MAX, &rest);
    let data = body.data.as_ref();
    let data = data.and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
    let note = data.as_ref().and_then(|data| data.get("note")?.as_str());
    match note {
        Some(note) => format!("{note}\n\n{text}"),
        None => text,
    }
}

fn in_words(content: Value) -> String {
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

/// What people decided about a call that they did not just let run.
pub(super) enum Decided {
    Refused(String),
    Answered(Raw),
    Ran(Raw),
}

pub(super) fn decided(state: CallState, hold: Option<&HoldDetail>) -> Decided {
    let words: DecisionBody = parse(hold.and_then(|hold| hold.decision_body.as_deref()));
    match state {
        CallState::Answered => Decided::Answered(words.content.unwrap_or_else(|| raw(&()))),
        CallState::Confirmed => {
            let content = words
                .content
                .map(|content| serde_json::from_str(content.get()));
            let result = match content {
                Some(Ok(Value::Object(mut found))) => found.remove("result"),
                _ => None,
            };
            Decided::Ran(raw(&result.unwrap_or(Value::Null)))
        }
        _ => Decided::Refused(refusal(hold, &words)),
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

/// The tool that a hold is about.
pub(super) fn tool_of(hold: &HoldDetail) -> String {
    let body: HoldBody = parse(hold.body.as_deref());
    body.action.map(|action| action.tool).unwrap_or_default()
}

/// What a model is told when a person changed what it wanted: the preview, never what is hidden.
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
        assert_eq!(told_of(&body(raw(&"ok"), Some(note))), "Changed.\n\nok");
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
            assert_eq!(told_of(&body(raw(&result), None)), told);
        }
        let told = told_of(&body(raw(&"x".repeat(TOLD_BYTES_MAX + 1)), None));
        assert!(
            told.ends_with("all of it has 262145 bytes)"),
            "{}",
            &told[TOLD_BYTES_MAX..]
        );
    }
}
