//! What a person decides.

use serde::Deserialize;
use statehold_core::ids::HoldId;
use utoipa::ToSchema;

use super::words::DecisionWire;
use crate::wire::Raw;
use crate::wire::schema::HoldIdText;

/// What a person decides.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionIn {
    pub(crate) decision: DecisionWire,
    /// The digest that was shown.
    #[serde(default)]
    #[schema(pattern = "^(sha256:)?[0-9a-f]{64}$")]
    pub(crate) digest: Option<String>,
    /// Other arguments, for `edit`.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) args: Option<Raw>,
    /// The answer, for `respond`.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) content: Option<Raw>,
    #[serde(default)]
    pub(crate) comment: Option<String>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// A decision for a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeIn {
    /// Which hold, if the request had several.
    #[serde(default)]
    #[schema(value_type = Option<HoldIdText>)]
    pub(crate) hold_id: Option<HoldId>,
    pub(crate) decision: DecisionWire,
    /// The digest that was shown.
    #[serde(default)]
    #[schema(pattern = "^(sha256:)?[0-9a-f]{64}$")]
    pub(crate) digest: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) args: Option<Raw>,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) content: Option<Raw>,
    #[serde(default)]
    pub(crate) comment: Option<String>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

impl ResumeIn {
    pub(crate) fn split(self) -> (Option<HoldId>, DecisionIn) {
        let decision = DecisionIn {
            decision: self.decision,
            digest: self.digest,
            args: self.args,
            content: self.content,
            comment: self.comment,
            reason: self.reason,
        };
        (self.hold_id, decision)
    }
}
