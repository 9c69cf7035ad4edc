//! Input to open a hold.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Deserialize;
use statehold_core::hold::{DecisionKind, Effect, HoldKind, OnExpiry, Risk};
use statehold_core::limits::COMMAND_ITEMS_MAX;
use statehold_core::name::Name;
use utoipa::ToSchema;

use crate::api::item::ItemInput;
use crate::api::json::{Raw, list_at_most};
use crate::bodies::Reason;

/// A hold to open.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HoldIn)]
pub struct HoldInput {
    pub fence: u64,
    pub kind: HoldKind,
    /// The question, in one line.
    #[schema(min_length = 1, max_length = 256)]
    pub title: String,
    #[schema(max_length = 16_384)]
    pub message: Option<String>,
    /// The action that waits for the decision, for approvals.
    pub action: Option<ActionInput>,
    /// The JSON Schema of the answer.
    #[schema(value_type = Option<serde_json::Value>)]
    pub response_schema: Option<Raw>,
    /// The address to visit, for links.
    pub url: Option<String>,
    /// Reasons that a person may choose from.
    #[schema(value_type = Option<Vec<Reason>>)]
    pub reasons: Option<Raw>,
    /// Groups holds that belong together.
    #[schema(min_length = 1, max_length = 64)]
    pub group_id: Option<String>,
    /// The allowed decisions; all decisions of the kind if left out.
    #[serde(default)]
    pub allowed: Vec<DecisionKind>,
    /// Number of people who must approve.
    #[schema(minimum = 1, maximum = 32)]
    pub quorum: Option<u16>,
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub expires_in_seconds: Option<u64>,
    pub on_expiry: Option<OnExpiry>,
    /// Who decides: `other`, `user` or `role:x`.
    #[schema(pattern = "^(other|user|role:[A-Za-z0-9][A-Za-z0-9._-]{0,127})$")]
    pub decide_by: Option<String>,
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_ITEMS_MAX }, _, _>"
    )]
    pub items: Vec<ItemInput>,
}

/// An action that waits for a decision.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ActionIn)]
pub struct ActionInput {
    #[schema(value_type = Name)]
    pub tool: String,
    #[schema(value_type = serde_json::Value)]
    pub args: Raw,
    #[schema(value_type = Option<serde_json::Value>)]
    pub args_schema: Option<Raw>,
    /// The caller's own id of the call.
    pub call_id: Option<String>,
    pub effect: Option<Effect>,
    pub risk: Option<Risk>,
    /// Whether the tool honours the execution key. If left out, the policy decides; the default is no.
    pub idempotent: Option<bool>,
}
