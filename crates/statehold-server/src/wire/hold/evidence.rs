//! The evidence of a decision: what was shown, who decided by what right, and what came of it.

use serde::Serialize;
use statehold_core::hold::{DecideBy, Right};
use statehold_core::item::CallOutcome;
use statehold_core::principal::APPROVER;
use statehold_engine::HoldDetail;
use utoipa::ToSchema;

use crate::wire::schema::{CallOutcomeWord, DigestText, ItemIdText, TimeText};
use crate::wire::time;

/// What a decision stands on, and what followed. Revisions and hashes are those of the records.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Evidence)]
pub(crate) struct EvidenceOut {
    opened_revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    opened_hash: Option<String>,
    decided_revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    decided_hash: Option<String>,
    decided_by: String,
    /// `local`, `user` or `role:x`. Left out when nobody decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<String>,
    /// The digest that the person was shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    shown: Option<String>,
    /// The digest of the action that may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    released: Option<String>,
    /// The digest of the policy it was opened under.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    policy: Option<String>,
    /// What came of the action. Empty until its result is recorded.
    ran: Vec<RanOut>,
}

/// What came of an action.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Ran)]
pub(crate) struct RanOut {
    /// The execution key.
    #[schema(value_type = ItemIdText)]
    key: String,
    #[schema(value_type = CallOutcomeWord)]
    outcome: CallOutcome,
    /// The record that says so.
    revision: u64,
    #[schema(value_type = TimeText)]
    at: String,
}

impl EvidenceOut {
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
        let ran = result.map(|(call, result)| RanOut {
            key: call.to_string(),
            outcome: result.outcome,
            revision: result.revision,
            at: time(result.at),
        });
        Some(Self {
            opened_revision: hold.opened_at,
            opened_hash: detail.opened_hash.map(|hash| hash.to_string()),
            decided_revision: closed.decided_by,
            decided_hash: detail.decided_hash.map(|hash| hash.to_string()),
            decided_by: decision.by.to_string(),
            right,
            shown: decision.shown.map(|digest| digest.to_string()),
            released: decision.released.map(|digest| digest.to_string()),
            policy: hold.policy.map(|digest| digest.to_string()),
            ran: ran.into_iter().collect(),
        })
    }
}
