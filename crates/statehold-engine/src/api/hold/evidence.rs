//! The evidence of a decision: the action that was shown, the decider and their right, and the tool runs.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::hold::{DecideBy, Right};
use statehold_core::ids::ItemId;
use statehold_core::item::CallOutcome;
use statehold_core::principal::APPROVER;
use utoipa::ToSchema;

use crate::api::json::Time;
use crate::holds::HoldDetail;

/// The evidence of a decision. Revisions and hashes point to the records.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Evidence)]
pub struct EvidenceView {
    pub opened_revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_hash: Option<Digest>,
    pub decided_revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_hash: Option<Digest>,
    pub decided_by: String,
    /// The right to decide: `local`, `user` or `role:x`. Left out if the hold ended without a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub right: Option<String>,
    /// The digest of the action that the person saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shown: Option<Digest>,
    /// The digest of the action that may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<Digest>,
    /// The digest of the policy at the time of opening.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Digest>,
    /// The runs of the action. Empty until a result is recorded.
    pub ran: Vec<ToolRunView>,
}

/// A run of an action.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Ran)]
pub struct ToolRunView {
    /// The execution key.
    pub key: ItemId,
    pub outcome: CallOutcome,
    /// The revision of the record with the result.
    pub revision: u64,
    pub at: Time,
}

impl EvidenceView {
    /// None while the hold is open.
    pub(crate) fn of(detail: &HoldDetail) -> Option<Self> {
        let closed = detail.closed.as_ref()?;
        let (hold, decision) = (&detail.hold, &closed.decision);
        let right = decision.right.map(|right| match (right, &hold.decide_by) {
            (Right::Local, _) => "local".to_owned(),
            (Right::User, _) => "user".to_owned(),
            (Right::Role, DecideBy::Role(role)) => format!("role:{role}"),
            (Right::Role, DecideBy::Other | DecideBy::User) => format!("role:{APPROVER}"),
        });
        let result = hold.call.zip(detail.result);
        let ran = result.map(|(call, result)| ToolRunView {
            key: call,
            outcome: result.outcome,
            revision: result.revision,
            at: result.at.into(),
        });
        Some(Self {
            opened_revision: hold.opened_at,
            opened_hash: detail.opened_hash,
            decided_revision: closed.decided_by,
            decided_hash: detail.decided_hash,
            decided_by: detail.decided_by.clone().unwrap_or_default(),
            right,
            shown: decision.shown,
            released: decision.released,
            policy: hold.policy,
            ran: ran.into_iter().collect(),
        })
    }
}
