//! Holds and decisions on the wire.

mod ask;
mod decide;
mod kept;
mod words;

use serde::{Deserialize, Serialize};
use statehold_core::hold::{DecisionKind, HoldKind, HoldStatus, OnExpiry};
use statehold_core::ids::HoldId;
use statehold_core::record::Event;
use statehold_engine::{Committed, HoldDetail};
use utoipa::ToSchema;

pub(crate) use ask::{ActionIn, HoldIn};
pub(crate) use decide::{DecisionIn, ResumeIn};
pub(crate) use kept::{ActionBody, DecisionBody, HoldBody};
pub(crate) use words::{DecisionWire, HoldKindWire, OnExpiryWire, RiskWire};

use super::schema::{
    HoldIdText, HoldStatusWord, ItemIdText, NameText, RequestIdText, RequestStatusWord,
    SessionIdText, TaskIdText, TimeText,
};
use super::{Raw, time};

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
}

/// A hold.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Hold)]
pub(crate) struct HoldOut {
    #[schema(value_type = HoldIdText)]
    pub(crate) id: String,
    pub(crate) alias: String,
    #[schema(value_type = HoldKindWire)]
    pub(crate) kind: HoldKind,
    /// `open`, `approved`, `edited`, `answered`, `rejected`, `expired` or `cancelled`.
    #[schema(value_type = HoldStatusWord)]
    pub(crate) status: HoldStatus,
    #[schema(value_type = SessionIdText)]
    pub(crate) session_id: String,
    #[schema(value_type = TaskIdText)]
    pub(crate) task_id: String,
    #[schema(value_type = RequestIdText)]
    pub(crate) request_id: String,
    #[schema(value_type = Vec<TaskIdText>)]
    pub(crate) task_path: Vec<String>,
    #[schema(value_type = NameText)]
    pub(crate) agent: String,
    pub(crate) title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<ActionBody>,
    /// The tool call that waits: the key under which it runs, also in later attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ItemIdText>)]
    pub(crate) execution_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) response_schema: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) reasons: Option<Raw>,
    #[schema(value_type = Vec<DecisionWire>)]
    pub(crate) allowed: Vec<DecisionKind>,
    pub(crate) quorum: u16,
    /// Who has approved so far, for those who may see the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) votes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TimeText>)]
    pub(crate) expires_at: Option<String>,
    #[schema(value_type = OnExpiryWire)]
    pub(crate) on_expiry: OnExpiry,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<DecisionOut>,
    #[schema(value_type = TimeText)]
    pub(crate) created_at: String,
}

/// A decision that stands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Decision)]
pub(crate) struct DecisionOut {
    /// How the hold ended.
    #[schema(value_type = HoldStatusWord)]
    pub(crate) status: HoldStatus,
    pub(crate) by: String,
    #[schema(value_type = TimeText)]
    pub(crate) at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) args: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) content: Option<Raw>,
}

/// A page of holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HoldPage {
    pub(crate) holds: Vec<HoldOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

fn parse<T: Default + for<'de> Deserialize<'de>>(body: Option<&[u8]>) -> T {
    body.and_then(|body| serde_json::from_slice(body).ok())
        .unwrap_or_default()
}

impl HoldOut {
    /// A hold as the caller may see it.
    pub(crate) fn of(detail: &HoldDetail) -> Self {
        Self::shown(detail, detail.sees_action)
    }

    /// A hold as the worker that asked gets it back, with what it may run now.
    pub(crate) fn for_worker(detail: &HoldDetail) -> Self {
        Self::shown(detail, true)
    }

    fn shown(detail: &HoldDetail, sees_action: bool) -> Self {
        let hold = &detail.hold;
        let body: HoldBody = parse(detail.body.as_deref());
        let words: DecisionBody = parse(detail.decision_body.as_deref());
        let decision = detail.closed.as_ref().map(|closed| DecisionOut {
            status: closed.decision.status,
            by: closed.decision.by.to_string(),
            at: detail.decided_at.map_or_else(String::new, time),
            comment: words.comment.filter(|_| sees_action),
            reason: words.reason.filter(|_| sees_action),
            args: words.args.filter(|_| sees_action),
            // The user's own answer to a question is the user's to see.
            content: words.content.filter(|_| sees_action),
        });
        Self {
            id: hold.id.to_string(),
            alias: format!("R{}.h{}", detail.request_number, hold.number),
            kind: hold.kind,
            status: detail
                .closed
                .as_ref()
                .map_or(HoldStatus::Open, |closed| closed.decision.status),
            session_id: detail.session.id.to_string(),
            task_id: hold.task.to_string(),
            request_id: hold.request.to_string(),
            task_path: detail.path.iter().map(ToString::to_string).collect(),
            agent: detail.agent.to_string(),
            title: if body.title.is_empty() && hold.kind == HoldKind::Reconcile {
                "A worker was lost during this action: did it run?".to_owned()
            } else {
                body.title
            },
            message: body.message,
            action: body.action.filter(|_| sees_action),
            execution_key: hold
                .call
                .filter(|_| sees_action)
                .map(|call| call.to_string()),
            response_schema: body.response_schema,
            url: body.url,
            reasons: body.reasons.filter(|_| sees_action),
            allowed: hold.allowed.iter().copied().collect(),
            quorum: hold.need,
            votes: sees_action.then(|| detail.votes.iter().map(ToString::to_string).collect()),
            expires_at: hold.deadline.map(time),
            on_expiry: hold.on_expiry,
            decision,
            created_at: detail.opened_at.map_or_else(String::new, time),
        }
    }
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
