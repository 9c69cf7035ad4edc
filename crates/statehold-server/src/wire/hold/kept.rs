//! What is kept of a hold beside its record, as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words::{EffectWire, RiskWire};
use crate::wire::Raw;
use crate::wire::schema::{DigestText, NameText};

/// What is kept of a hold's words, as one JSON object.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HoldBody {
    #[serde(default)]
    pub(crate) title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<ActionBody>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) response_schema: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reasons: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group_id: Option<String>,
}

/// What is kept of an action.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Action)]
pub(crate) struct ActionBody {
    #[schema(value_type = NameText)]
    pub(crate) tool: String,
    #[schema(value_type = serde_json::Value)]
    pub(crate) args: Raw,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) args_schema: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<EffectWire>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) risk: Option<RiskWire>,
    #[serde(default)]
    pub(crate) idempotent: bool,
    /// The digest that an approval names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    pub(crate) digest: Option<String>,
}

/// What is kept of the words that came with a decision.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct DecisionBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) args: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}
