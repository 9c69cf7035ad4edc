//! Requests and work on the wire.

use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::item::Role;
use statehold_core::record::Event;
use statehold_core::request::{CallState, RequestOutcome, RequestStatus};
use statehold_core::task::CloseOn;
use statehold_engine::{ClaimedRequest, Committed, RequestDetail, StoredRecord};
use utoipa::ToSchema;

use super::credential::CredentialOut;
use super::hold::{HoldOut, PendingHoldOut, pending_out};
use super::item::{ItemBody, ItemIn};
use super::schema::{
    CallStateWord, Content, DigestText, ItemIdText, LiveStatusWord, NameText, RequestIdText,
    RequestStatusWord, SessionIdText, TaskIdText, TimeText, Words,
};
use super::state::PatchIn;
use super::{Raw, raw_bytes, raw_null, time};

/// An invocation to start. With a lease and an output it is a whole turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestIn {
    /// The agent; the session's own if none is named.
    #[serde(default)]
    #[schema(value_type = Option<NameText>)]
    pub(crate) agent: Option<String>,
    /// What is asked: text, or content with files.
    #[schema(value_type = Words)]
    pub(crate) input: Raw,
    /// The task to go on with.
    #[serde(default)]
    #[schema(value_type = Option<TaskIdText>)]
    pub(crate) task_id: Option<TaskId>,
    /// The request that asks, if an agent asks.
    #[serde(default)]
    #[schema(value_type = Option<RequestIdText>)]
    pub(crate) parent_request_id: Option<RequestId>,
    /// The fence of that request.
    #[serde(default)]
    pub(crate) parent_fence: Option<u64>,
    /// Claim it in the same commit.
    #[serde(default)]
    pub(crate) lease: Option<LeaseIn>,
    /// With a lease: items to write at once.
    #[serde(default)]
    pub(crate) items: Vec<ItemIn>,
    /// With a lease: state to write at once.
    #[serde(default)]
    pub(crate) state: Option<PatchIn>,
    /// With a lease: the answer.
    #[serde(default)]
    #[schema(value_type = Option<Words>)]
    pub(crate) output: Option<Raw>,
    /// When a newly opened task closes by itself.
    #[serde(default)]
    pub(crate) close_on: Option<CloseOnWire>,
}

/// The right to write for a while.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseIn {
    /// How long it lasts without a heartbeat.
    #[schema(minimum = 1, maximum = 86_400)]
    pub(crate) ttl_seconds: u64,
    /// Who works, for people.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub(crate) worker: Option<String>,
}

/// When a task closes by itself.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CloseOn)]
pub(crate) enum CloseOnWire {
    Never,
    Reply,
    Failure,
}

impl From<CloseOnWire> for CloseOn {
    fn from(wire: CloseOnWire) -> Self {
        match wire {
            CloseOnWire::Never => Self::Never,
            CloseOnWire::Reply => Self::Reply,
            CloseOnWire::Failure => Self::Failure,
        }
    }
}

/// Items to add to a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemsIn {
    pub(crate) fence: u64,
    #[serde(default)]
    pub(crate) items: Vec<ItemIn>,
    #[serde(default)]
    pub(crate) state: Option<PatchIn>,
    /// The agent's private state.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) task_state: Option<Raw>,
}

/// What became of the items.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ItemsWritten)]
pub(crate) struct ItemsOut {
    pub(crate) items: Vec<super::item::ItemRef>,
    pub(crate) revision: u64,
}

/// The answer of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompleteIn {
    pub(crate) fence: u64,
    /// What is answered: text, or content with files.
    #[schema(value_type = Words)]
    pub(crate) output: Raw,
    #[serde(default)]
    pub(crate) items: Vec<ItemIn>,
    #[serde(default)]
    pub(crate) state: Option<PatchIn>,
    /// The agent's private state.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) task_state: Option<Raw>,
    /// Close the task too.
    #[serde(default)]
    pub(crate) close_task: bool,
    /// Stop child requests that still run.
    #[serde(default)]
    pub(crate) cancel_children: bool,
}

/// The error of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailIn {
    pub(crate) fence: u64,
    /// What went wrong: text, or an object.
    #[schema(value_type = serde_json::Value)]
    pub(crate) error: Raw,
    /// Stop child requests that still run.
    #[serde(default)]
    pub(crate) cancel_children: bool,
}

/// A sign of life.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeartbeatIn {
    pub(crate) fence: u64,
}

/// A worker that leaves.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseIn {
    pub(crate) fence: u64,
}

/// How far the lease reaches now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Heartbeat)]
pub(crate) struct HeartbeatOut {
    #[schema(value_type = RequestIdText)]
    pub(crate) request_id: String,
    pub(crate) fence: u64,
    #[schema(value_type = LiveStatusWord)]
    pub(crate) status: RequestStatus,
    #[schema(value_type = TimeText)]
    pub(crate) lease_until: String,
}

/// Nothing more to say.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NothingIn {}

/// What a worker asks for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimIn {
    #[schema(value_type = NameText)]
    pub(crate) agent: String,
    /// Who works, for people.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub(crate) worker: Option<String>,
    /// At most so many, 1 to 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 100)]
    pub(crate) max: Option<usize>,
    /// How long to wait for the first, at most 60.
    #[serde(default)]
    #[schema(maximum = 60)]
    pub(crate) wait_seconds: Option<u64>,
    /// How long the lease lasts without a heartbeat.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400)]
    pub(crate) lease_seconds: Option<u64>,
    /// Only this request.
    #[serde(default)]
    #[schema(value_type = Option<RequestIdText>)]
    pub(crate) request_id: Option<RequestId>,
}

/// Requests that now belong to the worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Claimed)]
pub(crate) struct ClaimOut {
    pub(crate) requests: Vec<RequestOut>,
}

/// A request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Request)]
pub(crate) struct RequestOut {
    #[schema(value_type = RequestIdText)]
    pub(crate) id: String,
    pub(crate) alias: String,
    #[schema(value_type = SessionIdText)]
    pub(crate) session_id: String,
    #[schema(value_type = TaskIdText)]
    pub(crate) task_id: String,
    #[schema(value_type = NameText)]
    pub(crate) agent: String,
    /// `queued`, `running`, `held`, `waiting`, `completed`, `failed` or `cancelled`.
    #[schema(value_type = RequestStatusWord)]
    pub(crate) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RequestIdText>)]
    pub(crate) parent_request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TimeText>)]
    pub(crate) lease_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Content>)]
    pub(crate) input: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Content>)]
    pub(crate) output: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) error: Option<Raw>,
    /// Its holds. Left out in the answer to a command on a request that was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<Vec<HoldOut>>,
    /// Open holds at and below it, the oldest first, at most 100. Left out in the answer to a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<Vec<PendingHoldOut>>,
    /// How many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pending_total: Option<usize>,
    #[schema(value_type = TimeText)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TimeText>)]
    pub(crate) finished_at: Option<String>,
    /// On a claim: how its holds were decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decisions: Option<Vec<HoldOut>>,
    /// On a claim: the requests it had started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub(crate) child_results: Option<Vec<RequestOut>>,
    /// On a claim: tool calls without a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls: Option<Vec<CallOut>>,
    /// On a claim: whether `temp:` values were lost.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) temp_lost: bool,
    /// On a claim: what the worker may act with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential: Option<CredentialOut>,
    /// On a claim: whether a credential that was given is gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) credential_lost: bool,
}

/// A tool call without a result.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Call)]
pub(crate) struct CallOut {
    /// The execution key.
    #[schema(value_type = ItemIdText)]
    pub(crate) id: String,
    /// `proposed`, `started`, `released`, `unknown`, `refused`, `answered` or `confirmed`.
    #[schema(value_type = CallStateWord)]
    pub(crate) state: &'static str,
    pub(crate) gated: bool,
    pub(crate) idempotent: bool,
    /// The digest that was approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    pub(crate) digest: Option<String>,
}

impl RequestOut {
    /// What a commit made of a request, before it is durable.
    pub(crate) fn of_commit(done: &Committed<'_>, id: RequestId, agent_view: bool) -> Option<Self> {
        let content = &done.record.content;
        let session_id = content.session.to_string();
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
            .map(|task| task.agent.to_string())
            .or_else(|| {
                let closed = done.changes.closed_tasks.iter();
                let mut closed = closed.filter(|closed| closed.task.id == task);
                closed.next().map(|closed| closed.task.agent.to_string())
            })
            .unwrap_or_default();
        let is_root = parent.is_none();
        let sees = is_root || agent_view;
        let words = |role| {
            words_of(content.events.as_slice(), id, role, &|name| {
                done.payload(name).map(<[u8]>::to_vec)
            })
        };
        let live = done.after.requests.get(&id);
        let is_new = started_by == content.seq;
        Some(Self {
            id: id.to_string(),
            alias: format!("R{number}"),
            session_id,
            task_id: task.to_string(),
            agent,
            status: status_name(
                live.map(|live| live.status),
                ended.map(|ended| ended.outcome),
            ),
            parent_request_id: parent.map(|parent| parent.to_string()),
            fence: live
                .map(|live| live.fence)
                .filter(|fence| *fence > 0 && agent_view),
            lease_until: live
                .and_then(|live| live.lease)
                .filter(|_| agent_view)
                .map(|lease| time(lease.until)),
            input: words(Role::User).filter(|_| sees && is_new),
            output: words(Role::Assistant).filter(|_| sees && ended.is_some()),
            error: None,
            holds: is_new.then(Vec::new),
            pending: is_new.then(Vec::new),
            pending_total: is_new.then_some(0),
            created_at: is_new.then(|| time(content.at)),
            finished_at: ended.map(|ended| time(ended.ended_at)),
            decisions: None,
            child_results: None,
            calls: None,
            temp_lost: false,
            credential: None,
            credential_lost: false,
        })
    }

    /// A request as it was read.
    pub(crate) fn of(detail: &RequestDetail) -> Self {
        let (id, number, parent) = match (&detail.live, &detail.ended) {
            (Some(live), _) => (live.id, live.number, live.parent),
            (None, Some(ended)) => (ended.id, ended.number, ended.parent),
            (None, None) => unreachable!("a request is live or has ended"),
        };
        let sees_answer = detail.sees_hidden || detail.sees_answer;
        let sees = parent.is_none() || sees_answer;
        let started = detail.started.as_ref();
        let finished = detail.finished.as_ref();
        let live = detail.live.as_ref();
        let error = finished.and_then(|stored| error_of(stored, id));
        let (pending, pending_total) = pending_out(&detail.pending);
        Self {
            id: id.to_string(),
            alias: format!("R{number}"),
            session_id: detail.session.id.to_string(),
            task_id: detail.task.id.to_string(),
            agent: detail.task.agent.to_string(),
            status: status_name(
                live.map(|live| live.status),
                detail.ended.as_ref().map(|ended| ended.outcome),
            ),
            parent_request_id: parent.map(|parent| parent.to_string()),
            fence: live
                .map(|live| live.fence)
                .filter(|fence| *fence > 0 && detail.sees_hidden),
            lease_until: detail.lease_until.filter(|_| detail.sees_hidden).map(time),
            input: started
                .filter(|_| sees)
                .and_then(|stored| stored_words(stored, id, Role::User)),
            output: finished
                .filter(|_| sees)
                .and_then(|stored| stored_words(stored, id, Role::Assistant)),
            // What went wrong inside is for those who see inside.
            error: error.filter(|_| sees_answer),
            holds: Some(detail.holds.iter().map(HoldOut::of).collect()),
            pending: Some(pending),
            pending_total: Some(pending_total),
            created_at: started.map(|stored| time(stored.record.content.at)),
            finished_at: detail.ended.as_ref().map(|ended| time(ended.ended_at)),
            decisions: None,
            child_results: None,
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
        let decisions = decided.map(HoldOut::of).collect();
        let calls = claimed.calls.iter().map(|(id, call)| CallOut {
            id: id.to_string(),
            state: call_state(&call.state),
            gated: call.gated,
            idempotent: call.idempotent,
            digest: call.digest.map(|digest| digest.to_string()),
        });
        let children = claimed.children.iter().map(|child| {
            // A parent sees what its children answered.
            let mut child = child.clone();
            (child.sees_answer, child.sees_hidden) = (true, false);
            Self::of(&child)
        });
        let (credential, credential_lost) = CredentialOut::of_claim(claimed);
        Self {
            credential,
            credential_lost,
            decisions: Some(decisions),
            child_results: Some(children.collect()),
            calls: Some(calls.collect()),
            temp_lost: claimed.temp_lost,
            ..Self::of(&claimed.detail)
        }
    }
}

fn call_state(state: &CallState) -> &'static str {
    match state {
        CallState::Proposed => "proposed",
        CallState::Started { .. } => "started",
        CallState::Released => "released",
        CallState::Unknown { .. } => "unknown",
        CallState::Refused => "refused",
        CallState::Answered => "answered",
        CallState::Confirmed => "confirmed",
    }
}

fn status_name(status: Option<RequestStatus>, outcome: Option<RequestOutcome>) -> String {
    let name = match (status, outcome) {
        (Some(RequestStatus::Queued), _) => "queued",
        (Some(RequestStatus::Running), _) => "running",
        (Some(RequestStatus::Held), _) => "held",
        (Some(RequestStatus::Waiting), _) => "waiting",
        (None, Some(RequestOutcome::Completed)) => "completed",
        (None, Some(RequestOutcome::Failed)) => "failed",
        (None, Some(RequestOutcome::Cancelled) | None) => "cancelled",
    };
    name.to_owned()
}

/// The first message of a user, or the last of the assistant, that a record wrote for a request.
fn words_of(
    events: &[Event],
    id: RequestId,
    role: Role,
    payload: &dyn Fn(&statehold_core::digest::BodyRef) -> Option<Vec<u8>>,
) -> Option<Raw> {
    let mut items = events.iter().filter_map(|event| match event {
        Event::ItemsAppended { request, items, .. } if *request == id => Some(items),
        _ => None,
    });
    let found = match role {
        Role::User => items.next()?.iter().find(|item| item.role == Some(role)),
        _ => items
            .next_back()?
            .iter()
            .rfind(|item| item.role == Some(role)),
    };
    let body = payload(&found?.body)?;
    let body: ItemBody = serde_json::from_slice(&body).ok()?;
    body.content
}

fn stored_words(stored: &StoredRecord, id: RequestId, role: Role) -> Option<Raw> {
    let named = stored.record.bodies();
    words_of(&stored.record.content.events, id, role, &|name| {
        let index = named.iter().position(|body| body == name)?;
        stored.bodies.get(index).cloned().flatten()
    })
}

pub(crate) fn error_of(stored: &StoredRecord, id: RequestId) -> Option<Raw> {
    let named = stored.record.bodies();
    let error = stored
        .record
        .content
        .events
        .iter()
        .find_map(|event| match event {
            Event::RequestEnded { request, error, .. } if *request == id => *error,
            _ => None,
        })?;
    let index = named.iter().position(|body| *body == error)?;
    Some(
        stored
            .bodies
            .get(index)?
            .as_deref()
            .map_or_else(raw_null, raw_bytes),
    )
}
