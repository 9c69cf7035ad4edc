//! The question that a message can answer.

use serde_json::Value;
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::RequestId;
use statehold_store::HoldOrder;

use super::{TurnInput, UserMessage};
use crate::bodies::{HoldBody, parse};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::schema::Schema;
use crate::holds::{HoldDetail, HoldFilter};

/// How many open holds of a session are read at a time.
const PAGE: usize = 200;

/// The only open question that the caller may answer with a message to this agent, with the turn that waits for
/// it. None if there are several.
pub(super) async fn only_question(
    engine: &Engine,
    input: &TurnInput,
) -> Result<Option<(HoldDetail, RequestId)>, EngineError> {
    let state = engine.durable_state(input.session).await?;
    if state.holds.is_empty() {
        return Ok(None);
    }
    let open = HoldFilter {
        session: Some(input.session),
        kind: Some(HoldKind::Question),
        order: HoldOrder::Oldest,
        ..HoldFilter::default()
    };
    let caller = &input.call.caller;
    let (mut after, mut only) = (None, None);
    loop {
        let page = engine.holds(caller, &open, after, PAGE).await?;
        for detail in page.entries {
            let takes_text =
                detail.why_not.is_none() && detail.hold.allowed.contains(&DecisionKind::Respond);
            let root = asking_turn(&detail, input).filter(|_| takes_text);
            if let Some(root) = root
                && only.replace((detail, root)).is_some()
            {
                return Ok(None);
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(only);
        }
    }
}

/// The turn that waits for a question, if it is a turn of the agent, and of the task, that the call names.
fn asking_turn(question: &HoldDetail, input: &TurnInput) -> Option<RequestId> {
    let root = question.lineage.first()?;
    let is_task = input.task.is_none_or(|task| task == root.task);
    (is_task && root.agent == input.agent).then_some(root.request)
}

/// Whether a message can answer a question: it is a text, and fits the response schema.
pub(super) async fn fits_question(question: &HoldDetail, message: &UserMessage) -> bool {
    if !message.files.is_empty() {
        return false;
    }
    let body: HoldBody = parse(question.body.as_deref());
    let Some(schema) = body.response_schema else {
        return true;
    };
    let text = Value::String(message.text.clone());
    // Compiling a large schema takes long enough to block other tasks.
    let fits = tokio::task::spawn_blocking(move || {
        Schema::new(schema.get()).is_ok_and(|schema| schema.errors(&text).is_empty())
    });
    fits.await.unwrap_or(false)
}

/// The choices that a question lists.
pub(super) fn choices(question: &HoldDetail) -> Vec<String> {
    let body: HoldBody = parse(question.body.as_deref());
    let schema = body.response_schema.as_ref();
    let schema = schema.and_then(|schema| serde_json::from_str::<Value>(schema.get()).ok());
    schema.as_ref().map(listed).unwrap_or_default()
}

/// The texts that a schema names as values, by itself or in one of its alternatives.
fn listed(schema: &Value) -> Vec<String> {
    let alternatives = ["oneOf", "anyOf"].into_iter();
    let alternatives = alternatives.flat_map(|word| schema[word].as_array().into_iter().flatten());
    let values = std::iter::once(schema)
        .chain(alternatives)
        .flat_map(|schema| {
            let named = schema["enum"].as_array().into_iter().flatten();
            named.chain(schema.get("const"))
        });
    values
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_lists_its_choices_and_nothing_else() {
        let lists = |schema: &str| {
            let schema: Value = serde_json::from_str(schema).expect("JSON");
            listed(&schema).iter().any(|choice| choice == "yes")
        };
        assert!(lists(r#"{"enum": ["no", "yes"]}"#));
        assert!(lists(r#"{"const": "yes"}"#));
        assert!(lists(r#"{"oneOf": [{"const": "no"}, {"const": "yes"}]}"#));
        assert!(lists(r#"{"anyOf": [{"enum": ["yes"]}]}"#));
        assert!(!lists(r#"{"type": "string"}"#));
        assert!(!lists(r#"{"enum": ["no"], "title": "yes"}"#));
        assert!(!lists("true"));
    }
}
