//! Wire format of chat responses. One type covers whole completions, stream chunks, and the short form
//! of conversation services. Unknown members are ignored. `borrow` on one field of a struct lets all its fields
//! borrow.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct ReplyEnvelope<'a> {
    #[serde(borrow)]
    pub(super) choices: Option<Vec<EnvelopeChoice<'a>>>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    pub(super) statehold: Option<&'a RawValue>,
    pub(super) content: Option<&'a RawValue>,
    pub(super) conversation_id: Option<&'a RawValue>,
    pub(super) shared_context: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct EnvelopeChoice<'a> {
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) delta: Option<EnvelopeMessage<'a>>,
    pub(super) message: Option<EnvelopeMessage<'a>>,
    pub(super) finish_reason: Option<String>,
}

/// A message, or the delta of a streamed one.
#[derive(Deserialize)]
pub(super) struct EnvelopeMessage<'a> {
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    pub(super) refusal: Option<String>,
    pub(super) tool_calls: Option<Vec<EnvelopeToolCall<'a>>>,
    pub(super) custom_content: Option<EnvelopeCustomContent<'a>>,
    pub(super) statehold: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct EnvelopeCustomContent<'a> {
    #[serde(borrow)]
    pub(super) state: Option<&'a RawValue>,
    pub(super) shared_context: Option<&'a RawValue>,
    pub(super) attachments: Option<Vec<&'a RawValue>>,
    pub(super) stages: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct EnvelopeToolCall<'a> {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    #[serde(borrow)]
    pub(super) function: Option<EnvelopeFunction<'a>>,
}

#[derive(Deserialize)]
pub(super) struct EnvelopeFunction<'a> {
    pub(super) name: Option<String>,
    /// A string with JSON in it; some services send the JSON value itself.
    #[serde(borrow)]
    pub(super) arguments: Option<&'a RawValue>,
}

/// One part of a content list.
#[derive(Deserialize)]
pub(super) struct ContentPart {
    pub(super) text: Option<String>,
    pub(super) refusal: Option<String>,
}
