//! Commands, their context, and their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::digest::{BodyRef, Digest};
use crate::hold::{Decision, DecisionKind, Hold, NewDecision, NewHold, WhyNot};
use crate::ids::{HoldId, ItemId, RequestId, SessionId, TaskId};
use crate::item::{Attachment, NewItem};
use crate::memory::{AgentPath, Memory};
use crate::name::Name;
use crate::principal::Actor;
use crate::record::{Change, CommandName, Record};
use crate::request::{AskedAbout, Continuation, LiveStatus, RequestOutcome};
use crate::scope::{KeyPrefix, MergePolicy, StateKey};
use crate::session::{KeyVersion, Owner, SessionState, TimeToLive};
use crate::task::CloseOn;
use crate::time::Timestamp;

/// A change that a caller asks for in one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Command {
    /// Begin a session.
    CreateSession {
        /// Whose it is.
        owner: Owner,
        /// The name the client gives it.
        name: Option<BodyRef>,
        /// The labels the client gives it.
        labels: Option<BodyRef>,
        /// Its first state.
        state: StatePatch,
        /// How long it lives.
        ttl: Option<TimeToLive>,
        /// How long it keeps its hidden payloads after the last commit, in milliseconds.
        hidden_ttl_ms: Option<u64>,
    },
    /// Change the name, labels or lifetimes of a session.
    PatchSession {
        /// All of its labels from now on.
        labels: Option<BodyRef>,
        /// Its name from now on.
        name: Option<Change<BodyRef>>,
        /// How long it lives from now on.
        ttl: Option<Change<TimeToLive>>,
        /// How long it keeps its hidden payloads from now on.
        hidden_ttl_ms: Option<Change<u64>>,
    },
    /// Close the session: it accepts no more commands.
    CloseSession {
        /// Cancel live requests; otherwise they are a reason to refuse.
        cancel_live: bool,
    },
    /// Close an expired session and erase its hidden payloads.
    ExpireSession,
    /// Erase the hidden payloads of a session that goes on, because their time is over.
    EraseHidden,
    /// Remove every payload of a session. Its records stay.
    DeleteSession,
    /// Invoke an agent. One call may carry a whole turn.
    StartRequest(StartRequest),
    /// Write a turn that ran outside of the server: its request begins and ends in this command.
    RecordTurn(RecordTurn),
    /// Take a request that waits for a worker.
    ClaimRequest {
        /// The request.
        request: RequestId,
        /// How long the lease lasts without renewal.
        ttl_ms: u64,
    },
    /// Give up on a worker whose lease ran out.
    LapseLease {
        /// The request.
        request: RequestId,
    },
    /// Shut out the workers that another copy of the data has, or will have, for a request.
    RaiseFence {
        /// The request.
        request: RequestId,
    },
    /// Release the lease, because the worker does not wait.
    ReleaseLease {
        /// The request, and who gives it back.
        by: Fenced,
    },
    /// Add to a task's history.
    AppendItems {
        /// The request that writes.
        by: Fenced,
        /// The items.
        items: Vec<NewItem>,
        /// Scoped state to write along.
        state: StatePatch,
        /// The agent's private state.
        task_state: Option<BodyRef>,
    },
    /// Ask a person.
    OpenHold {
        /// The request that waits.
        by: Fenced,
        /// The hold to open.
        hold: NewHold,
        /// Items to write along.
        items: Vec<NewItem>,
    },
    /// Answer a hold.
    DecideHold {
        /// The hold.
        hold: HoldId,
        /// The decision.
        decision: NewDecision,
    },
    /// Settle a hold whose deadline has passed.
    ExpireHold {
        /// The hold.
        hold: HoldId,
    },
    /// End a request with its answer.
    CompleteRequest {
        /// The request.
        by: Fenced,
        /// The answer.
        output: Output,
        /// Items to write before it.
        items: Vec<NewItem>,
        /// Scoped state to write along.
        state: StatePatch,
        /// The agent's private state.
        task_state: Option<BodyRef>,
        /// Close the task too.
        close_task: bool,
        /// Stop child requests that still run; otherwise they are a reason to refuse.
        cancel_children: bool,
    },
    /// End a request with an error.
    FailRequest {
        /// The request.
        by: Fenced,
        /// The error.
        error: BodyRef,
        /// Stop child requests that still run; otherwise they are a reason to refuse.
        cancel_children: bool,
    },
    /// Stop a request and everything it waits for. Its task stays open.
    CancelRequest {
        /// The request.
        request: RequestId,
    },
    /// End a task that has nothing to do.
    CloseTask {
        /// The task.
        task: TaskId,
    },
    /// Stop a task for good, with everything below it.
    CancelTask {
        /// The task.
        task: TaskId,
    },
    /// Write scoped state.
    PutState {
        /// The values to write.
        patch: StatePatch,
        /// The request that writes, if one does.
        by: Option<Fenced>,
    },
    /// Begin a session as a copy of this one, decided on the state it had at that revision.
    Fork {
        /// The new session.
        session: SessionId,
        /// The fork that the caller asked to copy, if the state is of a session which it was forked from. The new
        /// session then has no payload that either of the two has removed.
        through: Option<SessionId>,
    },
    /// Go back to an earlier revision, by appending.
    Rewind {
        /// The revision.
        to: u64,
    },
}

/// A new invocation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StartRequest {
    /// The agent. Must be the task's, if a task is named.
    pub agent: Name,
    /// The task to continue. None takes the agent's idle task here, or opens one.
    pub task: Option<TaskId>,
    /// The request that asks, if an agent asks.
    pub parent: Option<Fenced>,
    /// The input of the request.
    pub input: BodyRef,
    /// Files that go with it.
    pub attachments: Vec<Attachment>,
    /// The keyed digest by which a chat client that repeats the input finds the request again.
    pub chat: Option<Digest>,
    /// The failed request that it goes on from: the newest of its task.
    pub continues: Option<RequestId>,
    /// The event that closes a newly opened task automatically.
    pub close_on: CloseOn,
    /// Claim the request in the same commit, with a lease of this many milliseconds.
    pub lease_ttl_ms: Option<u64>,
    /// With a lease: items to write at once.
    pub items: Vec<NewItem>,
    /// With a lease: scoped state to write at once.
    pub state: StatePatch,
    /// With a lease: the answer, which makes this a whole turn.
    pub output: Option<Output>,
}

/// A turn, or a part of one, that ran outside of the server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecordTurn {
    /// The agent whose history it belongs to.
    pub agent: Name,
    /// The id of its request, chosen by the caller so that a repeat of the command is found by it. It must be new:
    /// the core does not know requests that have ended. None for a fresh one.
    pub request: Option<RequestId>,
    /// Its messages and notes. The user's own messages are among them, so a visible one is allowed.
    pub items: Vec<NewItem>,
    /// Scoped state to write along.
    pub state: StatePatch,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Output {
    /// The content of the answer.
    pub body: BodyRef,
    /// Files that go with it.
    pub attachments: Vec<Attachment>,
}

/// A worker's proof that it may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fenced {
    /// The request.
    pub request: RequestId,
    /// The fence its lease was given under.
    pub fence: u64,
}

/// Writes of scoped state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct StatePatch {
    /// Keys to write.
    pub set: Vec<StateSet>,
    /// Keys to remove.
    pub delete: Vec<StateKey>,
    /// Versions that must be met; 0 means the key must not exist.
    pub if_versions: BTreeMap<StateKey, u64>,
    /// Values to add to lists, under keys that the decision numbers.
    pub append: Vec<StateAppend>,
    /// Beginnings of session keys, all of which are removed.
    pub delete_prefix: Vec<KeyPrefix>,
}

/// Values to add to one list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateAppend {
    /// The list.
    pub list: KeyPrefix,
    /// The values, in order.
    pub values: Vec<BodyRef>,
}

/// One key to write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateSet {
    /// The key.
    pub key: StateKey,
    /// The value.
    pub value: BodyRef,
    /// The policy that merges it with the existing value. `Replace` for session keys: the engine
    /// merges them before the command is decided.
    pub merge: MergePolicy,
}

impl StatePatch {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
            && self.delete.is_empty()
            && self.append.is_empty()
            && self.delete_prefix.is_empty()
    }
}

/// Everything a decision needs besides the state and the command.
#[derive(Debug, Clone)]
pub struct Context {
    /// The wall clock.
    pub now: Timestamp,
    /// Who sends the command.
    pub actor: Actor,
    /// Makes the ids of this command unique among all commands of the same millisecond.
    pub entropy: u64,
    /// How far heartbeats extended leases. In memory only.
    pub leases: BTreeMap<RequestId, Timestamp>,
    /// Facts that the state does not have, loaded for this command.
    pub loaded: LoadedFacts,
}

/// Facts outside the live state: the finished objects that a command names, and the past of a rewind.
#[derive(Debug, Clone, Default)]
pub struct LoadedFacts {
    /// The hold it decides, if that is decided.
    pub hold: Option<DecidedHold>,
    /// The request it names, if that has ended.
    pub request: Option<(RequestId, RequestOutcome)>,
    /// The task it names, if that is final.
    pub task: Option<TaskId>,
    /// The failed request that a start continues.
    pub continued: Option<Continuation>,
    /// The revision that a rewind returns to.
    pub past: Option<Past>,
    /// For a claim: the policy terms of calls without an approval hold. A `reconcile` hold about
    /// such a call uses them.
    pub policy_terms: BTreeMap<ItemId, AskedAbout>,
    /// For a claim: calls whose tools gave no answer, even after a retry. They get a `reconcile` hold
    /// even if they are idempotent.
    pub unanswered: BTreeSet<ItemId>,
}

/// A hold with its one decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DecidedHold {
    /// The hold as it was, with its votes.
    pub hold: Hold,
    /// The decision that stands.
    pub decision: Decision,
    /// The revision that committed it.
    pub revision: u64,
}

/// The facts about an earlier revision that a rewind to it needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past {
    /// The last item at that revision.
    pub items_appended: u64,
    /// The session keys at that revision.
    pub keys: BTreeMap<StateKey, KeyVersion>,
    /// The memories that the rewind gives back: those at that revision, or, if a rewind has taken that
    /// revision back, at the one that it went back to.
    pub memories: Arc<BTreeMap<AgentPath, Memory>>,
}

impl From<&SessionState> for Past {
    fn from(state: &SessionState) -> Self {
        Self {
            items_appended: state.items_appended,
            keys: (*state.keys).clone(),
            memories: Arc::clone(&state.memories),
        }
    }
}

/// The result of a command that is not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Commit this record.
    Commit(Record),
    /// Commit this record, then refuse: a deadline passed, and that comes first.
    CommitThenRefuse(Record, Rejection),
    /// The same decision of a hold was taken before, by the record of this revision; give the same
    /// answer.
    AlreadyDone {
        /// The revision of the first decision.
        revision: u64,
    },
}

impl Outcome {
    /// The record to commit, if there is one.
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Commit(record) | Self::CommitThenRefuse(record, _) => Some(record),
            Self::AlreadyDone { .. } => None,
        }
    }
}

/// A value as records and the API spell it.
fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn words(values: &BTreeSet<DecisionKind>) -> String {
    let words: Vec<String> = values.iter().map(word).collect();
    words.join(", ")
}

/// Why a command is not allowed now. Changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rejection {
    /// The object does not exist, or it belongs to another tenant or user.
    #[error("there is no such object")]
    NotFound,
    /// The session exists already.
    #[error("the session exists already")]
    SessionExists,
    /// The session takes no more commands.
    #[error("the session is closed; start a new one")]
    SessionClosed,
    /// The time of the session is over.
    #[error("the session has expired; start a new one")]
    SessionExpired,
    /// The time of the session is not over.
    #[error("the session has not expired")]
    SessionNotExpired,
    /// The hidden payloads are kept longer, or a request is live.
    #[error("hidden payloads are not due")]
    HiddenNotDue,
    /// A patch that changes nothing.
    #[error("name at least one thing to change")]
    EmptyPatch,
    /// The session still has live requests.
    #[error("live requests: {live}; cancel them first, or close with `cancel_live`")]
    RequestsLive {
        /// How many.
        live: usize,
    },
    /// The task has ended for good.
    #[error("task {task} is final; leave out `task_id` to open a new one")]
    TaskFinal {
        /// The task.
        task: TaskId,
    },
    /// The task has a live request.
    #[error("task {task} is busy with {request}; wait for it, or leave out `task_id`")]
    TaskBusy {
        /// The task.
        task: TaskId,
        /// Its live request.
        request: RequestId,
    },
    /// The task has another parent, or belongs to another agent.
    #[error("task {task} does not belong to this agent under this parent")]
    TaskElsewhere {
        /// The task.
        task: TaskId,
    },
    /// The request has ended.
    #[error("request {request} has already ended: it is {}", word(outcome))]
    RequestEnded {
        /// The request.
        request: RequestId,
        /// How it ended.
        outcome: RequestOutcome,
    },
    /// The request cannot be claimed now.
    #[error("request {request} is {} and cannot be claimed now", word(status))]
    NotClaimable {
        /// The request.
        request: RequestId,
        /// Its status.
        status: LiveStatus,
    },
    /// The lease has not run out.
    #[error("the lease of request {request} is live")]
    LeaseLive {
        /// The request.
        request: RequestId,
    },
    /// No worker holds the lease of the request.
    #[error("request {request} waits for a worker; claim it first")]
    NotLeased {
        /// The request.
        request: RequestId,
    },
    /// Another worker holds the lease of the request now.
    #[error("fence {shown} is stale, the current one is {current}; claim the request again")]
    StaleFence {
        /// The fence that was shown.
        shown: u64,
        /// The current fence.
        current: u64,
    },
    /// The lease belongs to another principal.
    #[error("the lease belongs to another principal")]
    NotLeaseHolder,
    /// Only the holder of a lease may do this.
    #[error("items, state and output need a lease; add `lease`")]
    LeaseNeeded,
    /// Child requests are live.
    #[error("live child requests: {live}; wait for them, or pass `cancel_children`")]
    ChildrenLive {
        /// How many.
        live: usize,
    },
    /// Holds are open.
    #[error("open holds: {open}; they must be decided first")]
    HoldsOpen {
        /// How many.
        open: usize,
    },
    /// The hold id is taken.
    #[error("hold {hold} exists already")]
    HoldExists {
        /// The hold.
        hold: HoldId,
    },
    /// The hold has its decision.
    #[error("hold {hold} was already decided: {}", word(&decision.status))]
    HoldDecided {
        /// The hold.
        hold: HoldId,
        /// The decision that stands.
        decision: Box<Decision>,
    },
    /// The deadline of the hold passed without a decision.
    #[error("hold {hold} has expired")]
    HoldExpired {
        /// The hold.
        hold: HoldId,
    },
    /// The hold has no deadline, or its deadline has not passed.
    #[error("hold {hold} has not expired")]
    NotExpired {
        /// The hold.
        hold: HoldId,
    },
    /// This actor may not decide this hold.
    #[error("you may not decide this hold: {why}")]
    MayNotDecide {
        /// Why not.
        why: WhyNot,
    },
    /// This person has approved before.
    #[error("you have already approved this hold; it waits for others")]
    AlreadyVoted,
    /// The hold does not offer this decision.
    #[error(
        "`{}` is not offered; choose one of {}",
        word(decision),
        words(allowed)
    )]
    DecisionNotOffered {
        /// The decision that was sent.
        decision: DecisionKind,
        /// The decisions that the hold allows.
        allowed: BTreeSet<DecisionKind>,
    },
    /// The decision was made on another action.
    #[error("the digest is not that of the stored action; look again before you decide")]
    DigestMismatch {
        /// The digest of the stored action.
        expected: Digest,
    },
    /// The decision does not say which action it is about.
    #[error(
        "`approve` and `edit` need the `digest` of the action; send the one that the hold shows"
    )]
    DigestMissing,
    /// An answer or an edit without content.
    #[error("`respond` needs the answer and `edit` needs the edited arguments")]
    AnswerMissing,
    /// An edit needs the digest of the edited action.
    #[error("an edit needs the edited action, and a hold that one person decides")]
    EditImpossible,
    /// A hold is malformed.
    #[error("{0}")]
    HoldMalformed(&'static str),
    /// An item is malformed.
    #[error("{0}")]
    ItemMalformed(&'static str),
    /// There is no such open tool call.
    #[error("there is no such open tool call in this request")]
    CallUnknown {
        /// The call, if it was named by id.
        call: Option<ItemId>,
    },
    /// The action was not approved.
    #[error("tool call {call} was not approved, so it cannot have this result")]
    CallNotReleased {
        /// The call.
        call: ItemId,
    },
    /// The key has another version.
    #[error("`{key}` is at version {found}, not {expected}")]
    VersionConflict {
        /// The key.
        key: StateKey,
        /// The version that was expected.
        expected: u64,
        /// The current version.
        found: u64,
    },
    /// `temp:` values are never written.
    #[error("`{key}` lives in memory only and cannot be part of a record")]
    TempKey {
        /// The key.
        key: StateKey,
    },
    /// The version of a shared key is compared only when the key is written.
    #[error(
        "`{key}` has an expected version but is not written; shared keys are compared on write"
    )]
    VersionWithoutWrite {
        /// The key.
        key: StateKey,
    },
    /// A key stands twice in one patch.
    #[error("`{key}` stands twice in one patch")]
    DuplicateKey {
        /// The key.
        key: StateKey,
    },
    /// The core takes no merge policies for session keys: the engine merges them before it decides.
    #[error("`{key}` is a session key; merge policies are for `app:` and `user:` keys")]
    MergeOfSessionKey {
        /// The key.
        key: StateKey,
    },
    /// The revision is not in the past.
    #[error("revision {to} is not in the past of revision {current}")]
    NotInThePast {
        /// The revision that was named.
        to: u64,
        /// The current one.
        current: u64,
    },
    /// The values of the session would be too long together.
    #[error(
        "the state of the session would have {bytes} bytes, and {max} are the most; remove keys, or write less"
    )]
    StateTooLarge {
        /// How long they would be.
        bytes: u64,
        /// How long they may be.
        max: u64,
    },
    /// A limit is reached.
    #[error("limit reached: {limit} is at most {max}")]
    Limit {
        /// The name of the limit.
        limit: &'static str,
        /// The most there may be.
        max: u64,
    },
}

/// The objects that a command names. The caller must load the finished ones into the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Named {
    /// The hold it opens or decides.
    pub hold: Option<HoldId>,
    /// The request it is about, or that acts.
    pub request: Option<RequestId>,
    /// The task it is about.
    pub task: Option<TaskId>,
    /// The revision it goes back to.
    pub past: Option<u64>,
}

impl Command {
    /// The objects that the command names.
    pub fn named(&self) -> Named {
        let mut named = Named::default();
        match self {
            Self::StartRequest(start) => {
                named.request = start.parent.map(|by| by.request);
                named.task = start.task;
            }
            Self::ClaimRequest { request, .. }
            | Self::LapseLease { request }
            | Self::RaiseFence { request }
            | Self::CancelRequest { request } => named.request = Some(*request),
            Self::ReleaseLease { by }
            | Self::AppendItems { by, .. }
            | Self::CompleteRequest { by, .. }
            | Self::FailRequest { by, .. } => named.request = Some(by.request),
            Self::OpenHold { by, hold, .. } => {
                named.request = Some(by.request);
                named.hold = Some(hold.id);
            }
            Self::DecideHold { hold, .. } | Self::ExpireHold { hold } => named.hold = Some(*hold),
            Self::CloseTask { task } | Self::CancelTask { task } => named.task = Some(*task),
            Self::PutState { by, .. } => named.request = by.map(|by| by.request),
            Self::Rewind { to } => named.past = Some(*to),
            Self::CreateSession { .. }
            | Self::PatchSession { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession
            | Self::EraseHidden
            | Self::DeleteSession
            | Self::RecordTurn(_)
            | Self::Fork { .. } => {}
        }
        named
    }

    /// The scoped state that the command writes.
    pub fn state(&self) -> Option<&StatePatch> {
        match self {
            Self::CreateSession { state, .. }
            | Self::AppendItems { state, .. }
            | Self::CompleteRequest { state, .. } => Some(state),
            Self::StartRequest(start) => Some(&start.state),
            Self::RecordTurn(turn) => Some(&turn.state),
            Self::PutState { patch, .. } => Some(patch),
            _ => None,
        }
    }

    /// The items that the command writes for a request with a worker.
    pub fn items(&self) -> &[NewItem] {
        match self {
            Self::StartRequest(start) => &start.items,
            Self::AppendItems { items, .. }
            | Self::CompleteRequest { items, .. }
            | Self::OpenHold { items, .. } => items,
            _ => &[],
        }
    }

    /// The name that records carry.
    pub fn name(&self) -> CommandName {
        match self {
            Self::CreateSession { .. } => CommandName::CreateSession,
            Self::PatchSession { .. } => CommandName::PatchSession,
            Self::CloseSession { .. } => CommandName::CloseSession,
            Self::ExpireSession => CommandName::ExpireSession,
            Self::EraseHidden => CommandName::EraseHidden,
            Self::DeleteSession => CommandName::DeleteSession,
            Self::StartRequest(_) => CommandName::StartRequest,
            Self::RecordTurn(_) => CommandName::RecordTurn,
            Self::ClaimRequest { .. } => CommandName::ClaimRequest,
            Self::LapseLease { .. } => CommandName::LapseLease,
            Self::RaiseFence { .. } => CommandName::RaiseFence,
            Self::ReleaseLease { .. } => CommandName::ReleaseLease,
            Self::AppendItems { .. } => CommandName::AppendItems,
            Self::OpenHold { .. } => CommandName::OpenHold,
            Self::DecideHold { .. } => CommandName::DecideHold,
            Self::ExpireHold { .. } => CommandName::ExpireHold,
            Self::CompleteRequest { .. } => CommandName::CompleteRequest,
            Self::FailRequest { .. } => CommandName::FailRequest,
            Self::CancelRequest { .. } => CommandName::CancelRequest,
            Self::CloseTask { .. } => CommandName::CloseTask,
            Self::CancelTask { .. } => CommandName::CancelTask,
            Self::PutState { .. } => CommandName::PutState,
            Self::Fork { .. } => CommandName::Fork,
            Self::Rewind { .. } => CommandName::Rewind,
        }
    }
}
