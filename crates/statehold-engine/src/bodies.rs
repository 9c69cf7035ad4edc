//! Stored bodies of items, holds and decisions, as JSON. Records name these payloads only by digest.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use statehold_core::digest::{BodyRef, Digest};
use statehold_core::hold::{Effect, Risk};
use statehold_core::ids::{HoldId, ItemId, RequestId};
use statehold_core::item::{Item, Role};
use statehold_core::record::Event;
use statehold_store::StoredRecord;
use utoipa::ToSchema;

/// JSON as received: validated, never interpreted.
pub type Raw = Box<RawValue>;

/// The stored body of an item.
#[derive(Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct ItemBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// For a gated call: the preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Raw>,
    /// Of an input: a credential came with it. The credential itself stays in memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub had_credential: bool,
    /// Of an input: a credential came with it that was valid while its call was open, for the agents of this audience.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_audience: Option<String>,
    /// Of an event of a framework: its id and times. The event itself is `data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventMark>,
    /// The secrets that were redacted in it before it was stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redactions: Vec<Redaction>,
    /// Of a message that came as parts with files: their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartBody>,
}

/// Metadata of an event of a framework.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventMark {
    /// The id that its framework gave it.
    pub id: String,
    /// The time that its framework gave it, in seconds since 1970.
    pub time: f64,
    /// The latest time of the events of its session up to here.
    pub last_update: f64,
    /// The run of its framework that it belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub invocation: String,
    /// Whether clients read all of it. A worker's event is the worker's: clients read its message only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_open: bool,
}

/// The place of a text or a file in a message that came as parts. Files are attachments of its item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartBody {
    /// The next bytes of the content. A line feed separates texts.
    Text(usize),
    /// A picture.
    Image {
        /// Its place among the attachments.
        attachment: usize,
        /// How closely a model should look at it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// Another file.
    File {
        /// Its place among the attachments.
        attachment: usize,
    },
}

/// A file: its URL, the URL of its source, or its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Attachment)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct AttachmentBody {
    /// The media type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The media type of its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_url: Option<String>,
    /// The bytes, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// The title of a `reconcile` hold, which the server opens by itself.
pub const RECONCILE_TITLE: &str = "It is not known what became of this action: did it run?";

/// The name of the note with the state of an agent behind a gateway: `{"state": …}` in the record that ended its request.
pub const AGENT_STATE_NOTE: &str = "agent_state";

/// The name of a note about a call without an answer.
pub const NO_ANSWER: &str = "tool_no_answer";

/// The `data` of a note about a call without an answer. The next claim asks people about the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoAnswerBody {
    /// The call.
    pub call: ItemId,
    /// Why its outcome is unknown.
    pub reason: NoAnswerReason,
    /// How many holds its request had opened by then. A later hold may be about this call.
    pub holds_opened: u32,
}

/// Why the outcome of a call is unknown. Never contains text from the tool, because clients read the
/// message made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoAnswerReason {
    /// The tool did not answer in time.
    Timeout,
    /// The connection was lost.
    ConnectionLost,
    /// The response is not an answer.
    Unclear,
}

/// The stored body of a hold.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct HoldBody {
    #[serde(default)]
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<ActionBody>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<Reason>>,
    /// Holds opened together share a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// Whether a rejection needs a comment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub comment_required: bool,
    /// Of a `credential` hold: the next call of the user with a credential for this audience lets the turn go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

/// A reason that a person may choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct Reason {
    pub id: String,
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The stored body of an action.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct ActionBody {
    pub tool: String,
    /// The preview: the redacted arguments.
    pub args: Raw,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_schema: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    #[serde(default)]
    pub idempotent: bool,
    /// The digest over the full arguments, which an approval names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The redactions in the preview.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redactions: Vec<Redaction>,
    /// The full arguments, encrypted, if the preview is redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
}

/// A redacted place in a preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Redaction {
    /// The place, as a JSON Pointer into the arguments.
    pub path: String,
    /// The rule that redacts it: `path`, `email`, `card`, or the name of a rule for secrets.
    pub rule: String,
}

/// Arguments encrypted with the key of a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The hold whose key encrypts them.
    pub hold: HoldId,
    /// The nonce and the ciphertext, in base64.
    pub bytes: String,
}

/// The stored body of a decision.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct DecisionBody {
    /// The preview of edited arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Raw>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redactions: Vec<Redaction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Raw>,
    /// The person gave a credential. It is never stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Serializes a body for the store.
///
/// # Panics
///
/// Never: these types always serialize to JSON.
pub fn to_bytes<T: Serialize>(body: &T) -> Vec<u8> {
    serde_json::to_vec(body).expect("our own types always serialize to JSON")
}

/// Parses a stored body; the default if it is erased or damaged.
pub fn parse<T: Default + for<'de> Deserialize<'de>>(body: Option<&[u8]>) -> T {
    body.and_then(|body| serde_json::from_slice(body).ok())
        .unwrap_or_default()
}

/// A payload that a record names. None if it was erased.
pub fn payload<'a>(
    stored: impl Into<Option<&'a StoredRecord>>,
    name: impl Into<Option<BodyRef>>,
) -> Option<&'a [u8]> {
    let (stored, name) = (stored.into()?, name.into()?);
    let mut named = stored.record.content.events.iter().flat_map(Event::bodies);
    let index = named.position(|body| body == name)?;
    stored.bodies.get(index)?.as_deref()
}

/// The first message of a user, or the last message of another role, that a record wrote for a request.
pub fn message_in(events: &[Event], of: RequestId, role: Role) -> Option<&Item> {
    let mut written = events.iter().filter_map(|event| match event {
        Event::ItemsAppended { request, items, .. } if *request == of => Some(items),
        _ => None,
    });
    let is_said = |item: &&Item| item.role == Some(role);
    match role {
        Role::User => written.next()?.iter().find(is_said),
        Role::Assistant | Role::Tool => written.next_back()?.iter().rfind(is_said),
    }
}

/// The error that a record ended a request with.
pub fn error_in(events: &[Event], of: RequestId) -> Option<BodyRef> {
    events.iter().find_map(|event| match event {
        Event::RequestEnded { request, error, .. } if *request == of => *error,
        _ => None,
    })
}

/// The text of content: itself, or the texts of its parts.
pub fn text_of(content: &RawValue) -> String {
    serde_json::from_str(content.get()).map_or_else(|_| String::new(), text_of_value)
}

/// The text of parsed content.
pub fn text_of_value(content: Value) -> String {
    match content {
        Value::String(text) => text,
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_parts_is_that_of_its_text_parts() {
        let check = |content: &str, text: &str| {
            let content = RawValue::from_string(content.to_owned()).expect("JSON");
            assert_eq!(text_of(&content), text);
        };
        check(r#""one""#, "one");
        check(
            r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"b"}]"#,
            "a\nb",
        );
        check("{}", "");
    }
}
