//! Holds and decisions on the wire.

use serde::{Deserialize, Serialize};
use statehold_core::hold::{DecisionKind, HoldKind, HoldStatus, OnExpiry};
use statehold_core::ids::HoldId;
use statehold_core::record::Event;
use statehold_engine::{Committed, HoldDetail};
use utoipa::ToSchema;

use super::item::ItemIn;
use super::schema::{
    DigestText, HoldIdText, HoldStatusWord, NameText, RequestIdText, RequestStatusWord,
    SessionIdText, TaskIdText, TimeText,
};
use super::{Raw, time};

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
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) reasons: Option<Raw>,
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
    /// Whether the tool honours the execution key.
    #[serde(default)]
    pub(crate) idempotent: bool,
}

/// What an action does to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Effect)]
pub(crate) enum EffectWire {
    Read,
    Write,
    Destructive,
}

/// How much is at stake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Risk)]
pub(crate) enum RiskWire {
    Low,
    Medium,
    High,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = HoldKind)]
pub(crate) enum HoldKindWire {
    Approval,
    Question,
    Form,
    Link,
    Credential,
    Reconcile,
}

impl From<HoldKindWire> for HoldKind {
    fn from(wire: HoldKindWire) -> Self {
        match wire {
            HoldKindWire::Approval => Self::Approval,
            HoldKindWire::Question => Self::Question,
            HoldKindWire::Form => Self::Form,
            HoldKindWire::Link => Self::Link,
            HoldKindWire::Credential => Self::Credential,
            HoldKindWire::Reconcile => Self::Reconcile,
        }
    }
}

/// What may be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DecisionKind)]
pub(crate) enum DecisionWire {
    Approve,
    Edit,
    Reject,
    Respond,
    Dismiss,
}

impl From<DecisionWire> for DecisionKind {
    fn from(wire: DecisionWire) -> Self {
        match wire {
            DecisionWire::Approve => Self::Approve,
            DecisionWire::Edit => Self::Edit,
            DecisionWire::Reject => Self::Reject,
            DecisionWire::Respond => Self::Respond,
            DecisionWire::Dismiss => Self::Dismiss,
        }
    }
}

/// What follows if nobody decides in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnExpiry)]
pub(crate) enum OnExpiryWire {
    Reject,
    Dismiss,
    Fail,
}

impl From<OnExpiryWire> for OnExpiry {
    fn from(wire: OnExpiryWire) -> Self {
        match wire {
            OnExpiryWire::Reject => Self::Reject,
            OnExpiryWire::Dismiss => Self::Dismiss,
            OnExpiryWire::Fail => Self::Fail,
        }
    }
}

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
