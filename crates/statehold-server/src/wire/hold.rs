//! Holds and decisions on the wire.

mod ask;
mod decide;
mod evidence;
mod kept;
mod pending;
mod shown;
mod words;

use std::collections::BTreeMap;

use serde::Serialize;
use statehold_core::hold::{HoldKind, HoldStatus, Risk};
use statehold_core::ids::HoldId;
use statehold_core::record::Event;
use statehold_engine::kept::{RECONCILE_TITLE, parse};
use statehold_engine::{Committed, HoldChangeKind, HoldCounts, HoldDetail, LineageStep};
use utoipa::ToSchema;

pub(crate) use ask::{ActionIn, HoldIn};
pub(crate) use decide::{DecisionIn, ResumeIn};
pub(crate) use kept::HoldBody;
pub(crate) use pending::{PendingHoldOut, pending_out};
pub(crate) use shown::HoldOut;
pub(crate) use words::{DecisionWire, HoldKindWire, RiskWire};

use super::schema::{
    HoldIdText, HoldStatusWord, RequestIdText, RequestStatusWord, SessionIdText, TimeText,
};
use super::time;

/// The title of a hold, also of one that nobody gave a title.
pub(crate) fn title_of(kind: HoldKind, body: Option<&[u8]>) -> String {
    let body: HoldBody = parse(body);
    if body.title.is_empty() && kind == HoldKind::Reconcile {
        RECONCILE_TITLE.to_owned()
    } else {
        body.title
    }
}

/// The way down to a request: `T1 ← R7 ← T4 ← R8`, from the root task.
fn chain(lineage: &[LineageStep]) -> String {
    let steps = lineage
        .iter()
        .map(|step| format!("T{} ← R{}", step.task_number, step.number));
    steps.collect::<Vec<_>>().join(" ← ")
}

fn task_path(lineage: &[LineageStep]) -> Vec<String> {
    lineage.iter().map(|step| step.task.to_string()).collect()
}

/// What people call a hold.
fn alias(lineage: &[LineageStep], number: u32) -> String {
    let request = lineage.last().map_or(0, |step| step.number);
    format!("R{request}.h{number}")
}

/// A hold in few words.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HoldRef {
    #[schema(value_type = HoldIdText)]
    pub(crate) id: String,
    pub(crate) alias: String,
    #[schema(value_type = HoldKindWire)]
    pub(crate) kind: HoldKind,
    #[schema(value_type = HoldStatusWord)]
    pub(crate) status: HoldStatus,
    pub(crate) title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TimeText>)]
    pub(crate) expires_at: Option<String>,
}

impl HoldRef {
    pub(crate) fn of(detail: &HoldDetail) -> Self {
        let hold = &detail.hold;
        let closed = detail.closed.as_ref();
        Self {
            id: hold.id.to_string(),
            alias: alias(&detail.lineage, hold.number),
            kind: hold.kind,
            status: closed.map_or(HoldStatus::Open, |closed| closed.decision.status),
            title: title_of(hold.kind, detail.body.as_deref()),
            expires_at: hold.deadline.map(time),
        }
    }
}

/// A page of holds.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct HoldPage {
    pub(crate) holds: Vec<HoldOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

/// How many open holds the caller may see.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HoldCounts)]
pub(crate) struct HoldCountsOut {
    pub(crate) open: usize,
    pub(crate) by_kind: KindCounts,
    /// Holds whose risk the caller may not know count as `none`.
    pub(crate) by_risk: RiskCounts,
    /// Those that expire within ten minutes.
    pub(crate) expiring_soon: usize,
    /// Those that the caller may decide.
    pub(crate) mine: usize,
    /// Whether there are more than were counted.
    pub(crate) capped: bool,
}

/// How many of each kind.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KindCounts {
    approval: usize,
    question: usize,
    form: usize,
    link: usize,
    credential: usize,
    reconcile: usize,
}

/// How many of each risk.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RiskCounts {
    high: usize,
    medium: usize,
    low: usize,
    none: usize,
}

impl HoldCountsOut {
    pub(crate) fn of(counts: &HoldCounts) -> Self {
        fn count<K: Ord>(counts: &BTreeMap<K, usize>, key: &K) -> usize {
            counts.get(key).copied().unwrap_or(0)
        }
        let kind = |kind| count(&counts.by_kind, &kind);
        let risk = |risk| count(&counts.by_risk, &risk);
        Self {
            open: counts.open,
            by_kind: KindCounts {
                approval: kind(HoldKind::Approval),
                question: kind(HoldKind::Question),
                form: kind(HoldKind::Form),
                link: kind(HoldKind::Link),
                credential: kind(HoldKind::Credential),
                reconcile: kind(HoldKind::Reconcile),
            },
            by_risk: RiskCounts {
                high: risk(Some(Risk::High)),
                medium: risk(Some(Risk::Medium)),
                low: risk(Some(Risk::Low)),
                none: risk(None),
            },
            expiring_soon: counts.expiring_soon,
            mine: counts.mine,
            capped: counts.capped,
        }
    }
}

/// One event of the feed of holds.
#[derive(Debug, Serialize)]
pub(crate) struct HoldNewsOut {
    pub(crate) change: HoldChangeKind,
    pub(crate) hold: HoldOut,
}

/// What a decision came to. The same decision sent again gets the same words.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Decided)]
pub(crate) struct DecidedOut {
    #[schema(value_type = HoldIdText)]
    pub(crate) id: String,
    #[schema(value_type = SessionIdText)]
    pub(crate) session_id: String,
    #[schema(value_type = RequestIdText)]
    pub(crate) request_id: String,
    /// `open` while others must still approve.
    #[schema(value_type = HoldStatusWord)]
    pub(crate) status: HoldStatus,
    /// How many have approved, and how many must.
    pub(crate) approvals: u16,
    pub(crate) quorum: u16,
    /// What the request does now.
    #[schema(value_type = RequestStatusWord)]
    pub(crate) request_status: String,
    pub(crate) decided_by: String,
    #[schema(value_type = TimeText)]
    pub(crate) decided_at: String,
    pub(crate) revision: u64,
}

impl DecidedOut {
    pub(crate) fn of_commit(done: &Committed<'_>, id: HoldId) -> Self {
        let content = &done.record.content;
        let hold = done
            .before
            .holds
            .get(&id)
            .or_else(|| done.after.holds.get(&id));
        let decided = content.events.iter().find_map(|event| match event {
            Event::HoldDecided { hold, decision, .. } if *hold == id => Some(decision.status),
            _ => None,
        });
        let request = hold.map(|hold| hold.request);
        let live = request.and_then(|request| done.after.requests.get(&request));
        let ended = request.and_then(|request| {
            let mut ended = done.changes.ended_requests.iter();
            ended.find(|ended| ended.id == request)
        });
        let request_status = match (live, ended) {
            (Some(live), _) => super::feed::word(&live.status),
            (None, Some(ended)) => super::feed::word(&ended.outcome),
            (None, None) => String::new(),
        };
        let before = hold.map_or(0, |hold| hold.votes.len());
        let votes = match decided {
            Some(HoldStatus::Approved | HoldStatus::Edited) => before + 1,
            Some(_) => before,
            None => done.after.holds.get(&id).map_or(0, |hold| hold.votes.len()),
        };
        Self {
            id: id.to_string(),
            session_id: content.session.to_string(),
            request_id: request.map_or_else(String::new, |request| request.to_string()),
            status: decided.unwrap_or(HoldStatus::Open),
            approvals: u16::try_from(votes).unwrap_or(u16::MAX),
            quorum: hold.map_or(1, |hold| hold.need),
            request_status,
            decided_by: content.principal.to_string(),
            decided_at: time(content.at),
            revision: content.seq,
        }
    }
}
