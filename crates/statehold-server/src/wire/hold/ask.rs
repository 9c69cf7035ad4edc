//! What a worker asks.

use serde::Deserialize;
use utoipa::ToSchema;

use super::kept::ReasonOut;
use super::words::{DecisionWire, EffectWire, HoldKindWire, OnExpiryWire, RiskWire};
use crate::wire::Raw;
use crate::wire::item::ItemIn;
use crate::wire::schema::NameText;

/// What a worker asks a person.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HoldIn {
    pub(crate) fence: u64,
    pub(crate) kind: HoldKindWire,
    /// What is asked, in one line.
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) title: String,
    #[serde(default)]
    #[schema(max_length = 16_384)]
    pub(crate) message: Option<String>,
    /// The action that waits, for approvals.
    #[serde(default)]
    pub(crate) action: Option<ActionIn>,
    /// What an answer must look like, as JSON Schema.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) response_schema: Option<Raw>,
    /// Where to go, for links.
    #[serde(default)]
    pub(crate) url: Option<String>,
    /// Reasons that a person may choose from.
    #[serde(default)]
    #[schema(value_type = Option<Vec<ReasonOut>>)]
    pub(crate) reasons: Option<Raw>,
    /// Ties holds that are asked together.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64)]
    pub(crate) group_id: Option<String>,
    /// The decisions that may be taken; all that fit the kind, if left out.
    #[serde(default)]
    pub(crate) allowed: Vec<DecisionWire>,
    /// How many people must approve.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 32)]
    pub(crate) quorum: Option<u16>,
    #[serde(default)]
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub(crate) expires_in_seconds: Option<u64>,
    #[serde(default)]
    pub(crate) on_expiry: Option<OnExpiryWire>,
    /// Who decides: `other`, `user` or `role:x`.
    #[serde(default)]
    #[schema(pattern = "^(other|user|role:[A-Za-z0-9][A-Za-z0-9._-]{0,127})$")]
    pub(crate) decide_by: Option<String>,
    #[serde(default)]
    pub(crate) items: Vec<ItemIn>,
}

/// An action that waits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActionIn {
    #[schema(value_type = NameText)]
    pub(crate) tool: String,
    #[schema(value_type = serde_json::Value)]
    pub(crate) args: Raw,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) args_schema: Option<Raw>,
    /// The caller's own name of the call.
    #[serde(default)]
    pub(crate) call_id: Option<String>,
    #[serde(default)]
    pub(crate) effect: Option<EffectWire>,
    #[serde(default)]
    pub(crate) risk: Option<RiskWire>,
    /// Whether the tool honours the execution key. The policy's word, or no, if left out.
    #[serde(default)]
    pub(crate) idempotent: Option<bool>,
}
