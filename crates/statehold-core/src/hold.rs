//! The hold: one reason why a request waits for a person.
//!
//! A request may open several, also at once. Each has its own id and exactly one decision, ever.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::digest::{BodyRef, Digest};
use crate::ids::{HoldId, ItemId, RequestId, TaskId};
use crate::name::Name;
use crate::principal::Principal;
use crate::time::Timestamp;

/// Kind of a hold. It determines the decisions that a person may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HoldKind {
    /// Approval of an action before it runs.
    Approval,
    /// A question, answered in free text.
    Question,
    /// A question with typed answers.
    Form,
    /// A task behind a link; the value the person enters there never passes through Statehold.
    Link,
    /// A credential that this one request needs again.
    Credential,
    /// An action whose outcome is unknown after a crash: did it run?
    Reconcile,
}

/// Kind of a decision on a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// The stored action runs. For `reconcile`: it runs again under the same key.
    Approve,
    /// The action runs with other arguments.
    Edit,
    /// The action does not run, and the agent gets the refusal as its result.
    Reject,
    /// The action does not run; the answer is its result. For questions and forms: the answer.
    Respond,
    /// The person declines to answer; the request and everything below it is cancelled.
    Dismiss,
}

/// Outcome of a hold whose deadline passes without a decision. There is no `approve`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// The hold is rejected.
    #[default]
    Reject,
    /// The hold is dismissed, which cancels the request.
    Dismiss,
    /// The request fails.
    Fail,
}

/// Status of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HoldStatus {
    /// Waiting for a decision.
    Open,
    /// Approved unchanged.
    Approved,
    /// Approved with other arguments.
    Edited,
    /// Answered.
    Answered,
    /// Refused by a person.
    Rejected,
    /// The deadline passed without a decision.
    Expired,
    /// Dismissed, or its request ended otherwise.
    Cancelled,
}

/// Who may decide a hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecideBy {
    /// An approver who is neither the session's user nor the principal that opened the hold.
    Other,
    /// The session's user, or an approver.
    User,
    /// Principals with this role, except the session's user and the principal that opened the hold.
    Role(Name),
}

/// Effect of an action on the outside world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The action only reads.
    Read,
    /// The action makes a change that can be undone.
    Write,
    /// The action cannot be undone.
    Destructive,
}

/// Risk of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum Risk {
    Low,
    Medium,
    High,
}

/// The right by which a principal decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// The developer at a development server.
    Local,
    /// It is their own session, and the policy says `user`.
    User,
    /// They hold the role that the policy of the hold asks for: the one it names, or `approver`.
    Role,
}

/// Why a principal may not decide a hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhyNot {
    /// It is their own session.
    OwnSession,
    /// They opened it, or it is about their own action.
    OwnHold,
    /// They started its request, or one above it.
    OwnRequest,
    /// They do not hold the role.
    NeedsRole(Name),
    /// The server decides nothing.
    Server,
}

impl std::fmt::Display for WhyNot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OwnSession => f.write_str("it is about your own session; somebody else decides"),
            Self::OwnHold => f.write_str("you asked for it yourself; somebody else decides"),
            Self::OwnRequest => {
                f.write_str("you, or a key of yours, started the request that asks for it; somebody else decides")
            }
            Self::NeedsRole(role) => write!(f, "it needs the role `{role}`"),
            Self::Server => f.write_str("a person decides, never the server"),
        }
    }
}

/// A hold as a worker sends it. The id comes with the command, because the digest covers it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewHold {
    /// Fresh id of the hold.
    pub id: HoldId,
    /// The kind of the hold.
    pub kind: HoldKind,
    /// Title, message, action, schemas: everything a person reads.
    pub body: BodyRef,
    /// The tool call that waits, for `approval`.
    pub call: Option<CallTarget>,
    /// The digest a person approves, for `approval`.
    pub digest: Option<Digest>,
    /// The decisions that may be taken. Empty means all that fit the kind.
    pub allowed: BTreeSet<DecisionKind>,
    /// How many people must approve.
    pub need: u16,
    /// When the hold expires.
    pub expires_in_ms: Option<u64>,
    /// The outcome at the deadline.
    pub on_expiry: OnExpiry,
    /// Who may decide. `None` takes the default of the kind.
    pub decide_by: Option<DecideBy>,
    /// The effect of the action on the outside world.
    pub effect: Option<Effect>,
    /// The risk of the action.
    pub risk: Option<Risk>,
    /// The policy it is opened under.
    pub policy: Option<Digest>,
}

/// Which tool call a hold is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallTarget {
    /// A tool call that was recorded before.
    Recorded(ItemId),
    /// The n-th item of the same command.
    SameCommand(usize),
}

/// An open hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// The id, the same at every ancestor.
    pub id: HoldId,
    /// The n of the alias `R8.hn`.
    pub number: u32,
    /// The request that waits.
    pub request: RequestId,
    /// The task of that request.
    pub task: TaskId,
    /// The revision that opened it.
    pub opened_at: u64,
    /// The kind of the hold.
    pub kind: HoldKind,
    /// Everything a person reads. Absent for holds the server opens itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyRef>,
    /// The tool call that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<ItemId>,
    /// The digest a person approves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The decisions that may be taken. Invariant: never empty.
    pub allowed: BTreeSet<DecisionKind>,
    /// How many people must approve. Invariant: at least 1.
    pub need: u16,
    /// Who may decide.
    pub decide_by: DecideBy,
    /// Who opened it, and so never decides it.
    pub opened_by: Principal,
    /// The users and keys that started its request, or a request above it. They never decide it either.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub starters: BTreeSet<Principal>,
    /// The effect of the action on the outside world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// The risk of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// The policy it was opened under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Digest>,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// The outcome at the deadline.
    pub on_expiry: OnExpiry,
    /// Approvals so far, one per person.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub votes: BTreeMap<Principal, Vote>,
}

/// One person's approval of a hold that needs several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vote {
    /// The decision key it came with.
    pub key: Digest,
    /// Digest of the whole decision, to tell a retry from another decision.
    pub fingerprint: Digest,
    /// The revision that recorded it.
    pub revision: u64,
    /// The right by which they approved.
    pub right: Right,
}

/// A decision as a person sends it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewDecision {
    /// The decision key: the same key again gets the same answer.
    pub key: Digest,
    /// Digest of everything that was decided, to tell a retry from another decision.
    pub fingerprint: Digest,
    /// The kind of the decision.
    pub kind: DecisionKind,
    /// The digest that was shown. Required for `approve` and `edit` of an action.
    pub digest: Option<Digest>,
    /// The digest of the edited action, for `edit`.
    pub edited: Option<Digest>,
    /// Comment, reason, answer, edited arguments.
    pub body: Option<BodyRef>,
}

/// The one decision that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Comment, reason, answer, edited arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyRef>,
    /// Who decided. The server, for expiry and cancellation.
    pub by: Principal,
    /// Digest of the whole decision, to tell a retry from another decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Digest>,
    /// The decision key. Absent when no person decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Digest>,
    /// The digest of the action that may run, if one may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Digest>,
    /// The right by which they decided. Absent when no person decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<Right>,
    /// The digest that the person was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<Digest>,
    /// How the hold ended.
    pub status: HoldStatus,
}

impl HoldKind {
    /// The decisions that make sense for this kind.
    pub fn decisions(self) -> BTreeSet<DecisionKind> {
        use DecisionKind::{Approve, Dismiss, Edit, Reject, Respond};
        match self {
            Self::Approval => [Approve, Edit, Reject, Respond, Dismiss].into(),
            Self::Question | Self::Form => [Respond, Reject, Dismiss].into(),
            Self::Link | Self::Credential | Self::Reconcile => {
                [Approve, Respond, Reject, Dismiss].into()
            }
        }
    }

    /// Who decides this kind when no policy says otherwise.
    pub fn default_decide_by(self) -> DecideBy {
        match self {
            Self::Approval | Self::Reconcile => DecideBy::Other,
            Self::Question | Self::Form | Self::Link | Self::Credential => DecideBy::User,
        }
    }
}

impl Hold {
    /// Whether the deadline has passed at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}
