//! Input of decisions.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Deserialize;
use statehold_core::hold::DecisionKind;
use statehold_core::ids::HoldId;
use utoipa::ToSchema;

use crate::api::json::Raw;

/// A decision on a hold.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DecisionIn)]
pub struct DecisionInput {
    pub decision: DecisionKind,
    /// The digest of the action, as the hold shows it.
    #[serde(default)]
    #[schema(pattern = "^(sha256:)?[0-9a-f]{64}$")]
    pub digest: Option<String>,
    /// The edited arguments, for `edit`.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub args: Option<Raw>,
    /// The answer, for `respond`.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub content: Option<Raw>,
    #[serde(default)]
    pub comment: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

/// A decision on the hold of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResumeIn)]
pub struct ResumeInput {
    /// The hold, if the request had several.
    #[serde(default)]
    pub hold_id: Option<HoldId>,
    pub decision: DecisionKind,
    /// The digest of the action, as the hold shows it.
    #[serde(default)]
    #[schema(pattern = "^(sha256:)?[0-9a-f]{64}$")]
    pub digest: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub args: Option<Raw>,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub content: Option<Raw>,
    #[serde(default)]
    pub comment: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

impl ResumeInput {
    pub(crate) fn split(self) -> (Option<HoldId>, DecisionInput) {
        let decision = DecisionInput {
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
