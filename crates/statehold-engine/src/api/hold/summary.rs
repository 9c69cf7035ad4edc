//! Short views of holds, their counts, and the receipt of a decision.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::hold::{Decision, Hold, HoldKind, HoldStatus, Risk};
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_core::record::Event;
use statehold_core::request::{LiveStatus, RequestStatus};
use utoipa::ToSchema;

use super::{HoldView, alias, title_of};
use crate::api::json::Time;
use crate::commit::call::DecidedCommit;
use crate::holds::HoldDetail;

/// A short view of a hold.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HoldRef {
    pub id: HoldId,
    pub alias: String,
    pub kind: HoldKind,
    pub status: HoldStatus,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// In a tree, for callers who may read traces: who decided it, the name of a person, the id of a key, `local` or
    /// `system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
}

impl HoldRef {
    pub(crate) fn of(detail: &HoldDetail) -> Self {
        let (hold, closed) = (&detail.hold, detail.closed.as_ref());
        Self {
            alias: alias(&detail.lineage, hold.number),
            ..Self::new(
                hold,
                closed.map(|closed| closed.decision),
                title_of(hold.kind, detail.body.as_deref()),
            )
        }
    }

    /// The view of a hold, with an alias inside its request.
    pub(crate) fn new(hold: &Hold, decision: Option<Decision>, title: String) -> Self {
        Self {
            id: hold.id,
            alias: format!(".h{}", hold.number),
            kind: hold.kind,
            status: decision.map_or(HoldStatus::Open, |decision| decision.status),
            title,
            expires_at: hold.deadline.map(Into::into),
            decided_by: None,
        }
    }
}

/// A page of holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct HoldPage {
    pub holds: Vec<HoldView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Counts of the open holds that the caller may see.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = HoldCounts)]
pub struct HoldCountsView {
    pub open: usize,
    pub by_kind: KindCounts,
    /// Holds whose risk the caller may not know count as `none`.
    pub by_risk: RiskCounts,
    /// Holds that expire within ten minutes.
    pub expiring_soon: usize,
    /// Holds that the caller may decide.
    pub mine: usize,
    /// True if there are more holds than were counted.
    pub capped: bool,
}

/// Counts by kind.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct KindCounts {
    pub approval: usize,
    pub question: usize,
    pub form: usize,
    pub link: usize,
    pub credential: usize,
    pub reconcile: usize,
}

/// Counts by risk.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct RiskCounts {
    pub high: usize,
    pub medium: usize,
    pub low: usize,
    pub none: usize,
}

impl HoldCountsView {
    /// Counts one more open hold.
    pub(crate) fn add(&mut self, kind: HoldKind, risk: Option<Risk>) {
        self.open += 1;
        let (kinds, risks) = (&mut self.by_kind, &mut self.by_risk);
        *match kind {
            HoldKind::Approval => &mut kinds.approval,
            HoldKind::Question => &mut kinds.question,
            HoldKind::Form => &mut kinds.form,
            HoldKind::Link => &mut kinds.link,
            HoldKind::Credential => &mut kinds.credential,
            HoldKind::Reconcile => &mut kinds.reconcile,
        } += 1;
        *match risk {
            Some(Risk::High) => &mut risks.high,
            Some(Risk::Medium) => &mut risks.medium,
            Some(Risk::Low) => &mut risks.low,
            None => &mut risks.none,
        } += 1;
    }
}

/// The receipt of a decision. A repeated decision gets the same receipt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Decided)]
pub struct DecisionReceipt {
    pub id: HoldId,
    pub session_id: SessionId,
    pub request_id: RequestId,
    /// `open` while more approvals are needed.
    pub status: HoldStatus,
    /// Approvals so far; `quorum` is the number needed.
    pub approvals: u16,
    pub quorum: u16,
    /// The status of the request after the decision.
    pub request_status: RequestStatus,
    /// The name of the person, the id of a key, or `local`.
    pub decided_by: String,
    pub decided_at: Time,
    pub revision: u64,
}

impl DecisionReceipt {
    /// The receipt of a commit by the person with this name.
    pub(crate) fn of_commit(done: &DecidedCommit<'_>, id: HoldId, by: &str) -> Option<Self> {
        let content = &done.record.content;
        let hold = done.before.holds.get(&id)?;
        let request = hold.request;
        // A request with an open hold is held, unless the record says something else.
        let mut request_status: RequestStatus = LiveStatus::Held.into();
        let mut decided = None;
        for event in &content.events {
            match event {
                Event::HoldDecided { hold, decision, .. } if *hold == id => {
                    decided = Some(decision.status);
                }
                Event::RequestStatusChanged {
                    request: changed,
                    status,
                } if *changed == request => request_status = (*status).into(),
                Event::RequestEnded {
                    request: ended,
                    outcome,
                    ..
                } if *ended == request => request_status = (*outcome).into(),
                _ => {}
            }
        }
        // Of a hold that was read later, only the approvals of then count.
        let earlier = hold.votes.values();
        let earlier = earlier.filter(|vote| vote.revision < content.seq).count();
        let votes = match decided {
            None | Some(HoldStatus::Approved | HoldStatus::Edited) => earlier + 1,
            Some(_) => earlier,
        };
        Some(Self {
            id,
            session_id: content.session,
            request_id: request,
            status: decided.unwrap_or(HoldStatus::Open),
            approvals: u16::try_from(votes).unwrap_or(u16::MAX),
            quorum: hold.need,
            request_status,
            decided_by: by.to_owned(),
            decided_at: content.at.into(),
            revision: content.seq,
        })
    }
}
