//! Requests as callers see them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId};
use statehold_core::item::Role;
use statehold_core::memory::Memory;
use statehold_core::name::Name;
use statehold_core::request::{CallState, LiveStatus, RequestStatus};
use statehold_store::StoredRecord;
use utoipa::ToSchema;

use crate::api::hold::{HoldView, PendingHoldView, pending_views};
use crate::api::item::ItemRef;
use crate::api::json::{Raw, Time, raw_bytes, raw_null};
use crate::api::memory::MemorySize;
use crate::api::schema::Content;
use crate::api::work::CredentialView;
use crate::bodies::{ItemBody, error_in, message_in, parse, payload};
use crate::claim::ClaimedRequest;
use crate::commit::call::DecidedCommit;
use crate::read::RequestDetail;

/// The ids of the written items.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ItemsWritten)]
pub struct ItemsWritten {
    pub items: Vec<ItemRef>,
    pub revision: u64,
}

/// The lease after a heartbeat.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Heartbeat)]
pub struct HeartbeatView {
    pub request_id: RequestId,
    pub fence: u64,
    pub status: LiveStatus,
    pub lease_until: Time,
}

/// The claimed requests.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Claimed)]
pub struct ClaimView {
    pub requests: Vec<RequestView>,
}

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Request)]
pub struct RequestView {
    pub id: RequestId,
    pub alias: String,
    pub session_id: SessionId,
    pub task_id: TaskId,
    pub agent: Name,
    /// `queued`, `running`, `held`, `waiting`, `completed`, `failed` or `cancelled`.
    pub status: RequestStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_request_id: Option<RequestId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Content>)]
    pub input: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Content>)]
    pub output: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub error: Option<Raw>,
    /// Its newest holds, oldest first. Left out in the answer to a command on an existing request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<Vec<HoldView>>,
    /// For the page of earlier holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Open holds of this request and its child requests, oldest first, at most 100. Left out in the answer
    /// to a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Vec<PendingHoldView>>,
    /// Number of open holds of this request and its child requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_total: Option<usize>,
    #[schema(value_type = Time)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// On a claim: the decided holds. If they do not fit, the ones that were decided last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decisions: Option<Vec<HoldView>>,
    /// On a claim: the number of decided holds, if `decisions` leaves some out. Read the request for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decisions_total: Option<usize>,
    /// On a claim: the newest 1,024 child requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub child_results: Option<Vec<RequestView>>,
    /// On a claim: the number of child requests, if `child_results` leaves some out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_results_total: Option<usize>,
    /// Of a child request on a claim: its input, output, error and holds are left out, because they did not fit. Read
    /// it alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub too_large: bool,
    /// On a claim: how much the request knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySize>,
    /// On a claim: the agent's private state: the one that this request wrote, or the last one that a
    /// completed request of its memory wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub task_state: Option<Raw>,
    /// On a claim: tool calls without a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Vec<CallView>>,
    /// On a claim: `temp:` values were lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub temp_lost: bool,
    /// On a claim: the credential for the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialView>,
    /// On a claim: a credential was given, but is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub credential_lost: bool,
}

/// A tool call without a result.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Call)]
pub struct CallView {
    /// The execution key.
    pub id: ItemId,
    pub state: CallProgress,
    pub gated: bool,
    pub idempotent: bool,
    /// The approved digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// The state of a tool call without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CallState)]
pub enum CallProgress {
    Proposed,
    Started,
    Released,
    Unknown,
    Refused,
    Answered,
    Confirmed,
}

impl From<&CallState> for CallProgress {
    fn from(state: &CallState) -> Self {
        match state {
            CallState::Proposed => Self::Proposed,
            CallState::Started { .. } => Self::Started,
            CallState::Released => Self::Released,
            CallState::Unknown { .. } => Self::Unknown,
            CallState::Refused => Self::Refused,
            CallState::Answered => Self::Answered,
            CallState::Confirmed => Self::Confirmed,
        }
    }
}

impl RequestView {
    /// The request after a commit that is not yet durable.
    pub(crate) fn of_commit(
        done: &DecidedCommit<'_>,
        id: RequestId,
        agent_view: bool,
    ) -> Option<Self> {
        let content = &done.record.content;
        let live = done
            .after
            .requests
            .get(&id)
            .or_else(|| done.before.requests.get(&id));
        let ended = done
            .changes
            .ended_requests
            .iter()
            .find(|ended| ended.id == id);
        let (task, number, parent, started_by) = match (live, ended) {
            (_, Some(ended)) => (ended.task, ended.number, ended.parent, ended.started_by),
            (Some(live), None) => (live.task, live.number, live.parent, live.started_by),
            (None, None) => return None,
        };
        let agent = done
            .after
            .tasks
            .get(&task)
            .or_else(|| done.before.tasks.get(&task))
            .map(|task| task.agent.clone())
            .or_else(|| {
                let closed = done.changes.closed_tasks.iter();
                let mut closed = closed.filter(|closed| closed.task.id == task);
                closed.next().map(|closed| closed.task.agent.clone())
            })?;
        let is_root = parent.is_none();
        let sees = is_root || agent_view;
        let words = |role| {
            let said = message_in(&content.events, id, role)?;
            parse::<ItemBody>(done.payload(&said.body)).content
        };
        let live = done.after.requests.get(&id);
        let is_new = started_by == content.seq;
        Some(Self {
            id,
            alias: format!("R{number}"),
            session_id: content.session,
            task_id: task,
            agent,
            status: match (live, ended) {
                (Some(live), _) => live.status.into(),
                (None, Some(ended)) => ended.outcome.into(),
                (None, None) => RequestStatus::Cancelled,
            },
            parent_request_id: parent,
            fence: live
                .map(|live| live.fence)
                .filter(|fence| *fence > 0 && agent_view),
            lease_until: live
                .and_then(|live| live.lease)
                .filter(|_| agent_view)
                .map(|lease| lease.until.into()),
            input: words(Role::User).filter(|_| sees && is_new),
            output: words(Role::Assistant).filter(|_| sees && ended.is_some()),
            error: None,
            holds: is_new.then(Vec::new),
            next_cursor: None,
            pending: is_new.then(Vec::new),
            pending_total: is_new.then_some(0),
            created_at: is_new.then(|| content.at.into()),
            finished_at: ended.map(|ended| ended.ended_at.into()),
            decisions: None,
            decisions_total: None,
            child_results: None,
            child_results_total: None,
            too_large: false,
            memory: None,
            task_state: None,
            calls: None,
            temp_lost: false,
            credential: None,
            credential_lost: false,
        })
    }

    /// A request as it was read.
    pub(crate) fn of(detail: &RequestDetail) -> Self {
        let request = &detail.request;
        let (id, parent, live) = (request.id(), request.parent(), request.live());
        let sees_answer = detail.sees_hidden || detail.sees_answer;
        let sees = parent.is_none() || sees_answer;
        let started = detail.started.as_ref();
        let finished = detail.finished.as_ref();
        let error = finished.and_then(|stored| {
            let error = error_in(&stored.record.content.events, id)?;
            Some(payload(stored, error).map_or_else(raw_null, raw_bytes))
        });
        let (pending, pending_total) = pending_views(&detail.pending);
        Self {
            id,
            alias: request.alias(),
            session_id: detail.session.id,
            task_id: detail.task.id,
            agent: detail.task.agent.clone(),
            status: request.status(),
            parent_request_id: parent,
            fence: live
                .map(|live| live.fence)
                .filter(|fence| *fence > 0 && detail.sees_hidden),
            lease_until: detail
                .lease_until
                .filter(|_| detail.sees_hidden)
                .map(Into::into),
            input: started
                .filter(|_| sees)
                .and_then(|stored| words_in(stored, id, Role::User)),
            output: finished
                .filter(|_| sees)
                .and_then(|stored| words_in(stored, id, Role::Assistant)),
            // Errors tell how an agent works inside.
            error: error.filter(|_| sees_answer),
            holds: Some(detail.holds.iter().map(HoldView::of).collect()),
            next_cursor: None,
            pending: Some(pending),
            pending_total: Some(pending_total),
            created_at: started.map(|stored| stored.record.content.at.into()),
            finished_at: request.ended().map(|ended| ended.ended_at.into()),
            decisions: None,
            decisions_total: None,
            child_results: None,
            child_results_total: None,
            too_large: detail.too_large,
            memory: None,
            task_state: None,
            calls: None,
            temp_lost: false,
            credential: None,
            credential_lost: false,
        }
    }

    /// A request as its new worker gets it.
    pub(crate) fn of_claim(claimed: &ClaimedRequest) -> Self {
        let decided = claimed
            .detail
            .holds
            .iter()
            .filter(|hold| hold.closed.is_some());
        let decisions = decided.map(HoldView::of).collect();
        let calls = claimed.calls.iter().map(|(id, call)| CallView {
            id: *id,
            state: (&call.state).into(),
            gated: call.gated,
            idempotent: call.idempotent,
            digest: call.digest,
        });
        let children = claimed.children.iter().map(|child| {
            // A parent sees what its children answered.
            let mut child = child.clone();
            (child.sees_answer, child.sees_hidden) = (true, false);
            Self::of(&child)
        });
        let (credential, credential_lost) = CredentialView::of_claim(claimed);
        let memory = claimed.detail.request.live().and_then(|live| live.memory);
        let exchanges = Memory::count(memory);
        Self {
            memory: Some(MemorySize { exchanges }),
            task_state: claimed.task_state.as_deref().map(raw_bytes),
            credential,
            credential_lost,
            decisions: Some(decisions),
            child_results: Some(children.collect()),
            decisions_total: claimed.decisions_total,
            child_results_total: claimed.children_total,
            calls: Some(calls.collect()),
            temp_lost: claimed.temp_lost,
            ..Self::of(&claimed.detail)
        }
    }
}

fn words_in(stored: &StoredRecord, id: RequestId, role: Role) -> Option<Raw> {
    let said = message_in(&stored.record.content.events, id, role)?;
    parse::<ItemBody>(payload(stored, said.body)).content
}
