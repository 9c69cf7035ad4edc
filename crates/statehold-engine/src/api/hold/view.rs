//! A hold as a caller may see it.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::hold::{DecisionKind, Hold, HoldKind, HoldStatus, OnExpiry, WhyNot};
use statehold_core::ids::{HoldId, ItemId, RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_store::LineageStep;
use utoipa::ToSchema;

use super::action::ActionView;
use super::evidence::EvidenceView;
use super::excerpt::ExcerptView;
use super::{alias, chain, task_path};
use crate::api::json::{Raw, Time};
use crate::bodies::{DecisionBody, HoldBody, Reason, parse};
use crate::commit::call::DecidedCommit;
use crate::guard::policy::decide_by_text;
use crate::guard::sealed::OpenedArgs;
use crate::holds::{HoldDetail, HoldGroup, lineage};

/// A hold.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Hold)]
pub struct HoldView {
    pub id: HoldId,
    pub alias: String,
    pub kind: HoldKind,
    /// `open`, `approved`, `edited`, `answered`, `rejected`, `expired` or `cancelled`.
    pub status: HoldStatus,
    pub session_id: SessionId,
    pub task_id: TaskId,
    pub request_id: RequestId,
    pub task_path: Vec<TaskId>,
    /// The tasks and requests from the root down to the one that asks: `T1 ← R7 ← T4 ← R8`.
    pub chain: String,
    pub agent: Name,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The group of the hold. Left out in the answer that opens the hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<HoldGroup>,
    /// Whether the caller may decide it now.
    pub may_decide: bool,
    /// The reason why the caller may not decide, while the hold is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<DecideRefusal>,
    /// The role that is needed, with `needs_role`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<ActionView>,
    /// The id of the waiting tool call. The worker passes it to the tool as idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_key: Option<ItemId>,
    /// The user of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<Name>,
    /// Who decides: `other`, `user` or `role:x`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decide_by: Option<String>,
    /// Whether a rejection needs a comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment_required: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub response_schema: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<Reason>>,
    pub allowed: Vec<DecisionKind>,
    pub quorum: u16,
    /// The approvers so far. Left out if the caller may not see the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub votes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    pub on_expiry: OnExpiry,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionView>,
    /// For callers who may decide the hold now, in the read of one hold: the last visible messages of the
    /// conversation when the hold was opened, as many as the policy of the agent shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<ExcerptView>,
    /// The evidence of the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Time, required = true)]
    pub created_at: Option<Time>,
}

/// Why a caller may not decide a hold, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WhyNot)]
pub enum DecideRefusal {
    OwnSession,
    OwnHold,
    OwnRequest,
    NeedsRole,
    Server,
}

impl From<&WhyNot> for DecideRefusal {
    fn from(why: &WhyNot) -> Self {
        match why {
            WhyNot::OwnSession => Self::OwnSession,
            WhyNot::OwnHold => Self::OwnHold,
            WhyNot::OwnRequest => Self::OwnRequest,
            WhyNot::NeedsRole(_) => Self::NeedsRole,
            WhyNot::Server => Self::Server,
        }
    }
}

/// The decision on a hold.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Decision)]
pub struct DecisionView {
    /// The outcome of the hold.
    pub status: HoldStatus,
    /// The name of the person, for callers who may decide or read traces; otherwise the pseudonym. Or the id of
    /// a key, `local` or `system`.
    pub by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Time, required = true)]
    pub at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub args: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub content: Option<Raw>,
    /// A credential was given; it is never stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub given: bool,
    /// For the worker: the arguments are lost. Fail the request, or ask again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub args_lost: bool,
}

impl HoldView {
    /// A hold as the caller may see it; the worker that holds the lease sees the action itself.
    pub fn of(detail: &HoldDetail) -> Self {
        match &detail.opened {
            Some(opened) => Self::for_worker(detail, opened),
            None => Self::shown(detail, detail.sees_action),
        }
    }

    /// A hold in a list. A caller who reads traces sees the action there without its arguments; the read of one
    /// hold shows them, and is audited.
    pub(super) fn listed(detail: &HoldDetail, reads_traces: bool) -> Self {
        let mut view = Self::of(detail);
        if reads_traces && view.action.is_none() {
            let body: HoldBody = parse(detail.body.as_deref());
            view.action = body
                .action
                .map(|action| ActionView::from(action).without_args());
        }
        view
    }

    /// A hold for the worker that opened it, with the action that it may run now.
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

    /// Shows the action, the content of the decision and its evidence only with `sees_action`; names, user and app
    /// only to callers who may see names.
    fn shown(detail: &HoldDetail, sees_action: bool) -> Self {
        let hold = &detail.hold;
        let body: HoldBody = parse(detail.body.as_deref());
        let words: DecisionBody = parse(detail.decision_body.as_deref());
        let sees_whose = detail.sees_names;
        let decider = detail.decided_by.clone().filter(|_| sees_whose);
        let decision = detail.closed.as_ref().map(|closed| DecisionView {
            status: closed.decision.status,
            by: decider.unwrap_or(closed.decision.by.to_string()),
            at: detail.decided_at.map(Into::into),
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
        let comment_required = body.comment_required;
        let base = (hold, detail.session.id, detail.agent.clone());
        Self {
            status: detail
                .closed
                .as_ref()
                .map_or(HoldStatus::Open, |closed| closed.decision.status),
            group: detail.group.clone(),
            may_decide: is_open && detail.why_not.is_none(),
            why_not: why_not.map(Into::into),
            role: why_not.and_then(|why| match why {
                WhyNot::NeedsRole(role) => Some(role.clone()),
                _ => None,
            }),
            user: sees_whose.then(|| detail.user.clone()),
            app: sees_whose.then(|| detail.session.owner.app.clone()),
            decide_by: sees_whose.then(|| decide_by_text(&hold.decide_by)),
            comment_required: sees_whose.then_some(comment_required),
            votes: sees_action.then(|| {
                let voters = || hold.votes.keys().map(ToString::to_string).collect();
                if sees_whose {
                    detail.voters.clone()
                } else {
                    voters()
                }
            }),
            decision,
            evidence: EvidenceView::of(detail).filter(|_| detail.sees_action),
            created_at: detail.opened_at.map(Into::into),
            ..Self::open(base, &detail.lineage, body, sees_action)
        }
    }

    /// A hold that a commit opens. The opener wrote its content and sees all of it.
    pub(crate) fn of_commit(made: &DecidedCommit<'_>, id: HoldId, words: HoldBody) -> Option<Self> {
        let content = &made.record.content;
        let hold = made.after.holds.get(&id)?;
        let lineage = lineage(made.after, hold.request);
        let agent = made.after.tasks.get(&hold.task)?.agent.clone();
        let is_local = content.principal == Principal::Local;
        Some(Self {
            may_decide: is_local,
            why_not: (!is_local).then_some(DecideRefusal::OwnHold),
            decide_by: Some(decide_by_text(&hold.decide_by)),
            votes: Some(Vec::new()),
            created_at: Some(content.at.into()),
            ..Self::open((hold, content.session, agent), &lineage, words, true)
        })
    }

    /// An open hold with its content, and without the fields that depend on the caller.
    fn open(
        (hold, session, agent): (&Hold, SessionId, Name),
        lineage: &[LineageStep],
        body: HoldBody,
        sees_action: bool,
    ) -> Self {
        Self {
            id: hold.id,
            alias: alias(lineage, hold.number),
            kind: hold.kind,
            status: HoldStatus::Open,
            session_id: session,
            task_id: hold.task,
            request_id: hold.request,
            task_path: task_path(lineage),
            chain: chain(lineage),
            agent,
            title: body.title,
            message: body.message,
            // The counts of the group need a read of the other holds.
            group: None,
            may_decide: false,
            why_not: None,
            role: None,
            action: body.action.filter(|_| sees_action).map(Into::into),
            execution_key: hold.call.filter(|_| sees_action),
            user: None,
            app: None,
            decide_by: None,
            comment_required: None,
            response_schema: body.response_schema,
            url: body.url,
            reasons: body.reasons.filter(|_| sees_action),
            allowed: hold.allowed.iter().copied().collect(),
            quorum: hold.need,
            votes: None,
            expires_at: hold.deadline.map(Into::into),
            on_expiry: hold.on_expiry,
            decision: None,
            excerpt: None,
            evidence: None,
            created_at: None,
        }
    }
}
