//! What an answer or a piece of one looks like on the wire. One type for all forms: whole completions,
//! chunks, and the shorter form of services that keep conversations. Members that have no name here are
//! ignored.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A completion, a chunk, or `{"content", "conversation_id"}`.
#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    pub(super) choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) statehold: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) conversation_id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) shared_context: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) delta: Option<Message<'a>>,
    #[serde(borrow)]
    pub(super) message: Option<Message<'a>>,
    pub(super) finish_reason: Option<String>,
}

/// A message, or what is added to one.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    pub(super) refusal: Option<String>,
    #[serde(borrow)]
    pub(super) tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow)]
    pub(super) custom_content: Option<CustomContent<'a>>,
    #[serde(borrow)]
    pub(super) statehold: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct CustomContent<'a> {
    #[serde(borrow)]
    pub(super) state: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) shared_context: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) attachments: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
pub(super) struct ToolCall<'a> {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    #[serde(borrow)]
    pub(super) function: Option<Function<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Function<'a> {
    pub(super) name: Option<String>,
    /// Text with JSON in it, or, from some services, the JSON itself.
    #[serde(borrow)]
    pub(super) arguments: Option<&'a RawValue>,
}

/// One part of a content that is a list.
#[derive(Deserialize)]
pub(super) struct ContentPart {
    pub(super) text: Option<String>,
    pub(super) refusal: Option<String>,
}
