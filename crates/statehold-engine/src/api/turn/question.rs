//! The question that a message can answer.

use serde_json::Value;
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::RequestId;
use statehold_store::HoldOrder;

use super::{TurnInput, UserMessage};
use crate::bodies::{HoldBody, parse};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::Audience;
use crate::guard::schema::Schema;
use crate::holds::{HoldDetail, HoldFilter};
use crate::read::own_page;

/// How many open holds of a session are read at a time.
const PAGE: usize = 200;

/// Among how many open questions the one is looked for that a message answers.
const QUESTIONS_MAX: usize = 8;

/// Messages of people who believe that they decide an approval.
const DECIDING_WORDS: [&str; 16] = [
    "y",
    "yes",
    "yes please",
    "ok",
    "okay",
    "approve",
    "approved",
    "i approve",
    "confirm",
    "confirmed",
    "go ahead",
    "do it",
    "n",
    "no",
    "reject",
    "deny",
];

/// The open questions that a caller may answer with a message to an agent.
#[derive(Default)]
pub(super) struct OpenQuestions {
    /// The only one that the message fits, with the turn that waits for it.
    pub(super) fitting: Option<(HoldDetail, RequestId)>,
    /// All of them, oldest first, if the message does not answer one.
    pub(super) unanswered: Vec<HoldDetail>,
}

/// Finds the open question that a message answers: the only one that it fits.
pub(super) async fn open_questions(
    engine: &Engine,
    input: &TurnInput,
) -> Result<OpenQuestions, EngineError> {
    let asked = asked_questions(engine, input).await?;
    let mut fitting = Vec::new();
    if asked.len() <= QUESTIONS_MAX {
        for (at, (question, _)) in asked.iter().enumerate() {
            if fits_question(question, &input.message).await {
                fitting.push(at);
            }
        }
    }
    let (mut asked, mut found) = (asked, OpenQuestions::default());
    match fitting.as_slice() {
        [only] => found.fitting = Some(asked.swap_remove(*only)),
        _ => found.unanswered = asked.into_iter().map(|(question, _)| question).collect(),
    }
    Ok(found)
}

/// The open questions that the caller may answer, each with the turn that waits for it: one more than
/// [`QUESTIONS_MAX`] at most.
async fn asked_questions(
    engine: &Engine,
    input: &TurnInput,
) -> Result<Vec<(HoldDetail, RequestId)>, EngineError> {
    let state = engine.durable_state(input.session).await?;
    let mut asked = Vec::new();
    if state.holds.is_empty() {
        return Ok(asked);
    }
    let open = HoldFilter {
        session: Some(input.session),
        kind: Some(HoldKind::Question),
        order: HoldOrder::Oldest,
        ..HoldFilter::default()
    };
    let caller = &input.call.caller;
    let mut after = None;
    loop {
        let read = |page| engine.holds(caller, &open, after, page);
        let page = own_page(PAGE, read).await?;
        for detail in page.entries {
            let takes_text =
                detail.why_not.is_none() && detail.hold.allowed.contains(&DecisionKind::Respond);
            let root = asking_turn(&detail, input).filter(|_| takes_text);
            asked.extend(root.map(|root| (detail, root)));
            if asked.len() > QUESTIONS_MAX {
                return Ok(asked);
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(asked);
        }
    }
}

/// The open holds that a call with a credential for this audience lets go on, with the turns that wait for them,
/// oldest first.
pub(super) async fn awaited_credentials(
    engine: &Engine,
    input: &TurnInput,
    audience: Audience,
) -> Result<Vec<(HoldDetail, RequestId)>, EngineError> {
    let state = engine.durable_state(input.session).await?;
    if state.holds.is_empty() {
        return Ok(Vec::new());
    }
    let open = HoldFilter {
        session: Some(input.session),
        kind: Some(HoldKind::Credential),
        order: HoldOrder::Oldest,
        ..HoldFilter::default()
    };
    let caller = &input.call.caller;
    let page = own_page(PAGE, |page| engine.holds(caller, &open, None, page));
    let waiting = page.await?.entries.into_iter().filter_map(|hold| {
        let body: HoldBody = parse(hold.body.as_deref());
        let is_for = body.audience.as_deref() == Some(audience.word());
        let may_decide = hold.why_not.is_none();
        let root = asking_turn(&hold, input).filter(|_| is_for && may_decide)?;
        Some((hold, root))
    });
    Ok(waiting.collect())
}

/// The oldest approval that a turn of the agent waits for, if the message sounds like a decision. Words decide
/// nothing, and their sender should learn that.
pub(super) async fn spoken_to_approval(
    engine: &Engine,
    input: &TurnInput,
) -> Result<Option<HoldDetail>, EngineError> {
    if !sounds_like_decision(&input.message.text) {
        return Ok(None);
    }
    let state = engine.durable_state(input.session).await?;
    if state.holds.is_empty() {
        return Ok(None);
    }
    let open = HoldFilter {
        session: Some(input.session),
        kind: Some(HoldKind::Approval),
        order: HoldOrder::Oldest,
        ..HoldFilter::default()
    };
    let caller = &input.call.caller;
    let page = own_page(QUESTIONS_MAX, |page| {
        engine.holds(caller, &open, None, page)
    });
    let mut holds = page.await?.entries.into_iter();
    Ok(holds.find(|hold| asking_turn(hold, input).is_some()))
}

fn sounds_like_decision(text: &str) -> bool {
    let text = text.trim().trim_end_matches(['.', '!']).to_lowercase();
    DECIDING_WORDS.contains(&text.as_str())
}

/// The turn that waits for a question, if it is a turn of the agent, and of the task, that the call names.
fn asking_turn(question: &HoldDetail, input: &TurnInput) -> Option<RequestId> {
    let root = question.lineage.first()?;
    let is_task = input.task.is_none_or(|task| task == root.task);
    (is_task && root.agent == input.agent).then_some(root.request)
}

/// Whether a message can answer a question: it is a text, and fits the response schema.
async fn fits_question(question: &HoldDetail, message: &UserMessage) -> bool {
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
    fn a_decision_is_heard_and_a_sentence_is_not() {
        for text in ["yes", " Yes! ", "OK.", "Go ahead"] {
            assert!(sounds_like_decision(text), "{text}");
        }
        for text in ["", "yes, and then list the users", "approve R1.h1", "note"] {
            assert!(!sounds_like_decision(text), "{text}");
        }
    }

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
