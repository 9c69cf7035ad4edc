//! What is kept of items, holds and decisions beside their records, as JSON. Records only name these
//! payloads by digest.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::digest::Digest;
use statehold_core::hold::{Effect, Risk};
use statehold_core::ids::{HoldId, ItemId};

/// JSON as it came, validated and never interpreted.
pub type Raw = Box<RawValue>;

/// What is kept of an item's words.
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
    /// Of an input: a credential came with it. The credential itself is nowhere but in memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub had_credential: bool,
}

/// What is kept of a file that goes with an item: behind a URL, behind the URL of what it was made from,
/// or here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct AttachmentBody {
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// What a `reconcile` hold is called: nobody gave it a title.
pub const RECONCILE_TITLE: &str = "It is not known what became of this action: did it run?";

/// What a note is called that says that a tool gave no answer.
pub const NO_ANSWER: &str = "tool_no_answer";

/// What is kept, under `data` of a note, of a call whose tool gave no answer: why the next claim asks
/// people about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoAnswerBody {
    /// The call.
    pub call: ItemId,
    /// Why nobody knows what became of it.
    pub reason: NoAnswerReason,
    /// How many holds its request had opened by then. One that is opened later may be about this.
    pub holds_opened: u32,
}

/// Why nobody knows what became of a call. Never in the words of the other side: clients read what this
/// comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoAnswerReason {
    /// It did not answer in time.
    Timeout,
    /// The connection was lost.
    ConnectionLost,
    /// What came back is no answer.
    Unclear,
}

/// What is kept of a hold's words.
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
    /// Holds of one group were asked together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// Whether a person who rejects must say why.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub comment_required: bool,
}

/// A reason that a person may choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct Reason {
    pub id: String,
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What is kept of an action.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the words of the API")]
pub struct ActionBody {
    pub tool: String,
    /// The preview: the arguments without what the policy hides.
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
    /// The digest that an approval names: over the full arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// What the preview hides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redactions: Vec<Redaction>,
    /// The full arguments, where the preview hides something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
}

/// One thing that a preview hides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redaction {
    /// Where, as a JSON Pointer into the arguments.
    pub path: String,
    /// By which rule: `path`, `secret`, `email` or `card`.
    pub rule: String,
}

/// Arguments under the key of a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// Whose key it is.
    pub hold: HoldId,
    /// The nonce and the ciphertext, in base64.
    pub bytes: String,
}

/// What is kept of the words that came with a decision.
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
    /// A credential was given. It is kept nowhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The stored form of one of these.
///
/// # Panics
///
/// Never: these types always serialize to JSON.
pub fn to_bytes<T: Serialize>(body: &T) -> Vec<u8> {
    serde_json::to_vec(body).expect("our own types always serialize to JSON")
}

/// What was stored, or nothing where it is gone or damaged.
pub fn parse<T: Default + for<'de> Deserialize<'de>>(body: Option<&[u8]>) -> T {
    body.and_then(|body| serde_json::from_slice(body).ok())
        .unwrap_or_default()
}
