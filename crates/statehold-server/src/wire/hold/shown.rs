//! A hold as people see it, each as much as they may.

use serde::Serialize;
use statehold_core::hold::{DecideBy, DecisionKind, HoldKind, HoldStatus, OnExpiry, WhyNot};
use statehold_core::ids::HoldId;
use statehold_core::principal::Principal;
use statehold_engine::kept::{Reason, parse};
use statehold_engine::{Committed, HoldDetail, OpenedArgs};
use utoipa::ToSchema;

use super::evidence::EvidenceOut;
use super::kept::{ActionOut, DecisionBody, HoldBody, ReasonOut};
use super::words::{DecisionWire, HoldKindWire, OnExpiryWire};
use super::{alias, chain, task_path};
use crate::problem;
use crate::wire::schema::{
    HoldIdText, HoldStatusWord, ItemIdText, NameText, RequestIdText, SessionIdText, TaskIdText,
    TimeText, WhyNotWord,
};
use crate::wire::{Raw, time};

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
    /// The tasks and requests from the root down to the one that asks: `T1 ← R7 ← T4 ← R8`.
    pub(crate) chain: String,
    #[schema(value_type = NameText)]
    pub(crate) agent: String,
    pub(crate) title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// The holds of the same turn. Left out in the answer to whoever opened it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<GroupOut>,
    /// Whether the caller may decide it now.
    pub(crate) may_decide: bool,
    /// Why not, while it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WhyNotWord>)]
    pub(crate) why_not: Option<&'static str>,
    /// The role that is needed, with `needs_role`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<NameText>)]
    pub(crate) role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<ActionOut>,
    /// The id of the tool call that waits: whoever runs it passes this key on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ItemIdText>)]
    pub(crate) execution_key: Option<String>,
    /// For whom the agent asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<NameText>)]
    pub(crate) app: Option<String>,
    /// Who decides: `other`, `user` or `role:x`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decide_by: Option<String>,
    /// Whether a refusal needs a comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comment_required: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) response_schema: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasons: Option<Vec<ReasonOut>>,
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
    /// What was decided on, by what right, and what came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<EvidenceOut>,
    #[schema(value_type = TimeText)]
    pub(crate) created_at: String,
}

/// Holds that belong together.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HoldGroup)]
pub(crate) struct GroupOut {
    pub(crate) id: String,
    /// How many the caller may see.
    pub(crate) holds: usize,
    /// How many of those are decided.
    pub(crate) decided: usize,
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
    /// A credential was given; it is kept nowhere.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) given: bool,
    /// For the worker: the arguments cannot be read any more. Fail the request, or ask again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) args_lost: bool,
}

fn reasons(kept: Option<Vec<Reason>>) -> Option<Vec<ReasonOut>> {
    kept.map(|reasons| reasons.into_iter().map(Into::into).collect())
}

/// Who decides, in one word.
fn decide_by(policy: &DecideBy) -> String {
    match policy {
        DecideBy::Other => "other".to_owned(),
        DecideBy::User => "user".to_owned(),
        DecideBy::Role(role) => format!("role:{role}"),
    }
}

impl HoldOut {
    /// A hold as the caller may see it; the worker that holds the lease sees the action itself.
    pub(crate) fn of(detail: &HoldDetail) -> Self {
        match &detail.opened {
            Some(opened) => Self::for_worker(detail, opened),
            None => Self::shown(detail, detail.sees_action),
        }
    }

    /// A hold as the worker that asked gets it back, with what it may run now.
    fn for_worker(detail: &HoldDetail, opened: &OpenedArgs) -> Self {
        let mut shown = Self::shown(detail, true);
        shown.action = shown.action.map(|action| action.opened(opened));
        if let Some(decision) = &mut shown.decision {
            decision.args_lost = opened.lost;
            if decision.args.is_some() {
                let edited = opened.edited.clone().filter(|_| !opened.lost);
                decision.args = edited.or_else(|| decision.args.take().filter(|_| !opened.lost));
            }
        }
        shown
    }

    /// The action, and the words of the decision, only for those who see it; whose it is and what came
    /// of it only for those who may decide, or read traces.
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
            given: words.given,
            args_lost: false,
        });
        let is_open = detail.closed.is_none();
        let why_not = detail.why_not.as_ref().filter(|_| is_open);
        let sees_whose = detail.sees_action;
        Self {
            id: hold.id.to_string(),
            alias: alias(&detail.lineage, hold.number),
            kind: hold.kind,
            status: detail
                .closed
                .as_ref()
                .map_or(HoldStatus::Open, |closed| closed.decision.status),
            session_id: detail.session.id.to_string(),
            task_id: hold.task.to_string(),
            request_id: hold.request.to_string(),
            task_path: task_path(&detail.lineage),
            chain: chain(&detail.lineage),
            agent: detail.agent.to_string(),
            title: body.title,
            message: body.message,
            group: detail.group.as_ref().map(|group| GroupOut {
                id: group.id.clone(),
                holds: group.holds,
                decided: group.decided,
            }),
            may_decide: is_open && detail.why_not.is_none(),
            why_not: why_not.map(problem::why_not),
            role: why_not.and_then(|why| match why {
                WhyNot::NeedsRole(role) => Some(role.to_string()),
                _ => None,
            }),
            action: body.action.filter(|_| sees_action).map(Into::into),
            execution_key: hold
                .call
                .filter(|_| sees_action)
                .map(|call| call.to_string()),
            user: sees_whose.then(|| detail.user.clone()),
            app: sees_whose.then(|| detail.session.owner.app.to_string()),
            decide_by: sees_whose.then(|| decide_by(&hold.decide_by)),
            comment_required: sees_whose.then_some(body.comment_required),
            response_schema: body.response_schema,
            url: body.url,
            reasons: reasons(body.reasons.filter(|_| sees_action)),
            allowed: hold.allowed.iter().copied().collect(),
            quorum: hold.need,
            votes: sees_action.then(|| detail.votes.iter().map(ToString::to_string).collect()),
            expires_at: hold.deadline.map(time),
            on_expiry: hold.on_expiry,
            decision,
            evidence: EvidenceOut::of(detail).filter(|_| sees_whose),
            created_at: detail.opened_at.map_or_else(String::new, time),
        }
    }

    /// A hold that a commit opens, as its opener sees it: it wrote all of it.
    pub(crate) fn of_commit(made: &Committed<'_>, id: HoldId, words: HoldBody) -> Option<Self> {
        let content = &made.record.content;
        let hold = made.after.holds.get(&id)?;
        let (mut path, mut steps) = (Vec::new(), Vec::new());
        let mut asking = made.after.requests.get(&hold.request);
        let number = asking.map_or(0, |live| live.number);
        while let Some(live) = asking {
            let task = made.after.tasks.get(&live.task)?;
            path.push(task.id.to_string());
            steps.push(format!("T{} ← R{}", task.number, live.number));
            asking = live
                .parent
                .and_then(|above| made.after.requests.get(&above));
        }
        path.reverse();
        steps.reverse();
        let agent = made.after.tasks.get(&hold.task)?.agent.to_string();
        let is_local = content.principal == Principal::Local;
        Some(Self {
            id: id.to_string(),
            alias: format!("R{number}.h{}", hold.number),
            kind: hold.kind,
            status: HoldStatus::Open,
            session_id: content.session.to_string(),
            task_id: hold.task.to_string(),
            request_id: hold.request.to_string(),
            task_path: path,
            chain: steps.join(" ← "),
            agent,
            title: words.title,
            message: words.message,
            // How many there are in it is known to those who read the hold.
            group: None,
            may_decide: is_local,
            why_not: (!is_local).then(|| problem::why_not(&WhyNot::OwnHold)),
            role: None,
            action: words.action.map(Into::into),
            execution_key: hold.call.map(|call| call.to_string()),
            user: None,
            app: None,
            decide_by: Some(decide_by(&hold.decide_by)),
            comment_required: None,
            response_schema: words.response_schema,
            url: words.url,
            reasons: reasons(words.reasons),
            allowed: hold.allowed.iter().copied().collect(),
            quorum: hold.need,
            votes: Some(Vec::new()),
            expires_at: hold.deadline.map(time),
            on_expiry: hold.on_expiry,
            decision: None,
            evidence: None,
            created_at: time(content.at),
        })
    }
}
