//! The question that a message can answer.

use serde_json::Value;
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::RequestId;
use statehold_store::HoldOrder;

use super::TurnInput;
use crate::bodies::{HoldBody, parse};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::schema::Schema;
use crate::holds::{HoldDetail, HoldFilter};

/// How many open holds of a session are read at a time.
const PAGE: usize = 200;

/// The only open hold of the session that the caller may decide, with the turn that waits for it. None if
/// there are several, or if the message cannot answer it.
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
        order: HoldOrder::Oldest,
        ..HoldFilter::default()
    };
    let caller = &input.call.caller;
    let (mut after, mut only) = (None, None);
    loop {
        let page = engine.holds(caller, &open, after, PAGE).await?;
        for detail in page.entries {
            if detail.why_not.is_none() && only.replace(detail).is_some() {
                return Ok(None);
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let Some(only) = only else {
        return Ok(None);
    };
    let takes_text = only.hold.kind == HoldKind::Question
        && only.hold.allowed.contains(&DecisionKind::Respond)
        && input.message.files.is_empty();
    let root = only.lineage.first().filter(|root| {
        let is_task = input.task.is_none_or(|task| task == root.task);
        is_task && root.agent == input.agent
    });
    let root = root.map(|root| root.request);
    match root {
        Some(root) if takes_text && fits_schema(&only, &input.message.text).await => {
            Ok(Some((only, root)))
        }
        _ => Ok(None),
    }
}

/// Whether a text fits the response schema of a question.
async fn fits_schema(question: &HoldDetail, text: &str) -> bool {
    let body: HoldBody = parse(question.body.as_deref());
    let Some(schema) = body.response_schema else {
        return true;
    };
    let text = Value::String(text.to_owned());
    // Compiling a large schema takes long enough to block other tasks.
    let fits = tokio::task::spawn_blocking(move || {
        Schema::new(schema.get()).is_ok_and(|schema| schema.errors(&text).is_empty())
    });
    fits.await.unwrap_or(false)
}

/// Whether a text is one of the choices that a question lists.
pub(super) fn lists_choice(question: &HoldDetail, text: &str) -> bool {
    let body: HoldBody = parse(question.body.as_deref());
    let schema = body.response_schema.as_ref();
    let schema = schema.and_then(|schema| serde_json::from_str::<Value>(schema.get()).ok());
    schema.is_some_and(|schema| lists(&schema, text))
}

/// Whether a schema names a text as a value, by itself or in one of its alternatives.
fn lists(schema: &Value, text: &str) -> bool {
    let named = |schema: &Value| {
        let listed = schema["enum"].as_array().into_iter().flatten();
        listed.chain(schema.get("const")).any(|value| value == text)
    };
    let alternatives = ["oneOf", "anyOf"].into_iter();
    let mut alternatives =
        alternatives.flat_map(|word| schema[word].as_array().into_iter().flatten());
    named(schema) || alternatives.any(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_lists_its_choices_and_nothing_else() {
        let lists = |schema: &str| {
            let schema: Value = serde_json::from_str(schema).expect("JSON");
            lists(&schema, "yes")
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
