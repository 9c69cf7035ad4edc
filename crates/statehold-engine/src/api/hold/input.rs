//! How a worker opens a hold.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Deserialize;
use statehold_core::hold::{DecisionKind, Effect, HoldKind, OnExpiry, Risk};
use statehold_core::name::Name;
use utoipa::ToSchema;

use super::ReasonView;
use crate::api::item::ItemInput;
use crate::api::json::Raw;

/// What a worker asks a person.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldIn)]
pub struct HoldInput {
    pub fence: u64,
    pub kind: HoldKind,
    /// What is asked, in one line.
    #[schema(min_length = 1, max_length = 256)]
    pub title: String,
    #[serde(default)]
    #[schema(max_length = 16_384)]
    pub message: Option<String>,
    /// The action that waits, for approvals.
    #[serde(default)]
    pub action: Option<ActionInput>,
    /// What an answer must look like, as JSON Schema.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub response_schema: Option<Raw>,
    /// Where to go, for links.
    #[serde(default)]
    pub url: Option<String>,
    /// Reasons that a person may choose from.
    #[serde(default)]
    #[schema(value_type = Option<Vec<ReasonView>>)]
    pub reasons: Option<Raw>,
    /// Ties holds that are asked together.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64)]
    pub group_id: Option<String>,
    /// The decisions that may be taken; all that fit the kind, if left out.
    #[serde(default)]
    pub allowed: Vec<DecisionKind>,
    /// How many people must approve.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 32)]
    pub quorum: Option<u16>,
    #[serde(default)]
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub expires_in_seconds: Option<u64>,
    #[serde(default)]
    pub on_expiry: Option<OnExpiry>,
    /// Who decides: `other`, `user` or `role:x`.
    #[serde(default)]
    #[schema(pattern = "^(other|user|role:[A-Za-z0-9][A-Za-z0-9._-]{0,127})$")]
    pub decide_by: Option<String>,
    #[serde(default)]
    pub items: Vec<ItemInput>,
}

/// An action that waits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ActionIn)]
pub struct ActionInput {
    #[schema(value_type = Name)]
    pub tool: String,
    #[schema(value_type = serde_json::Value)]
    pub args: Raw,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub args_schema: Option<Raw>,
    /// The caller's own name of the call.
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default)]
    pub effect: Option<Effect>,
    #[serde(default)]
    pub risk: Option<Risk>,
    /// Whether the tool honours the execution key. The policy's word, or no, if left out.
    #[serde(default)]
    pub idempotent: Option<bool>,
}
