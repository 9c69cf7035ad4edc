//! The state of one session, limited to the facts that decisions need.
//!
//! Open tasks, live requests, open holds, the versions of session keys, and for each agent path the number
//! and the newest of its exchanges. Finished things leave it,
//! so a command costs the same at turn 10,000 as at turn 1.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::hold::Hold;
use crate::ids::{HoldId, RequestId, SessionId, TaskId, UserId};
use crate::memory::{AgentPath, Memory};
use crate::mutant::{self, Mutant};
use crate::name::Name;
use crate::request::{LiveRequest, LiveStatus};
use crate::scope::StateKey;
use crate::task::{Task, TaskStatus};
use crate::time::Timestamp;

/// Whose session it is. Set once, by the first record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The agent that answers when none is named.
    pub agent: Name,
    /// The app.
    pub app: Name,
    /// The isolation wall.
    pub tenant: Name,
    /// The user, as a pseudonym.
    pub user: UserId,
}

/// Status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// An agent works.
    Running,
    /// Waits for a person.
    Paused,
    /// No root task is running or paused.
    Idle,
    /// Takes no more commands.
    Closed,
}

/// Time after which an open session expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeToLive {
    /// The start of the time to live.
    pub mode: TtlMode,
    /// The length in milliseconds.
    pub ms: u64,
}

/// Start of a session's time to live.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TtlMode {
    /// The last commit: every commit starts it again.
    #[default]
    Sliding,
    /// The commit that set it.
    Fixed,
}

/// The value of a session key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyVersion {
    /// The length of the value.
    pub bytes: u32,
    /// The revision that put or restored it.
    pub revision: u64,
}

/// The agent of sessions that only carry writes of shared state. Lists leave them out.
pub const STATE_KEEPER: &str = "statehold.state";

/// The state on which the next command is decided: the fold of the session's records.
///
/// The maps are shared on clone and copied on the first write, so a draft of the next state is
/// cheap.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionState {
    /// The session.
    pub session: SessionId,
    /// How many records were committed; the number of the last one.
    pub revision: u64,
    /// Hash of the last record.
    pub head: Digest,
    /// Commit time of the last record.
    pub last_at: Timestamp,
    /// Whose session it is. None before the first record.
    pub owner: Option<Owner>,
    /// Whether it takes no more commands.
    pub closed: bool,
    /// Whether its payloads were removed for good; it answers like one that never was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// How long it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<TimeToLive>,
    /// When that ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// How long it keeps its hidden payloads after the last commit, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_ttl_ms: Option<u64>,
    /// When that ends. None while a request is live, which may need them, and once they are erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_expires_at: Option<Timestamp>,
    /// Tasks opened so far: the last alias `Tn`.
    pub tasks_opened: u64,
    /// Requests started so far: the last alias `Rn`.
    pub requests_started: u64,
    /// Items appended so far: the last `seq`.
    pub items_appended: u64,
    /// Open tasks.
    pub tasks: Arc<BTreeMap<TaskId, Task>>,
    /// Live requests.
    pub requests: Arc<BTreeMap<RequestId, LiveRequest>>,
    /// Open holds.
    pub holds: Arc<BTreeMap<HoldId, Hold>>,
    /// The session keys with a value.
    pub keys: Arc<BTreeMap<StateKey, KeyVersion>>,
    /// The memories of the agents, by path. A path without an exchange has none.
    pub memories: Arc<BTreeMap<AgentPath, Memory>>,
}

impl SessionState {
    /// A session before its first record.
    pub fn new(session: SessionId) -> Self {
        Self {
            session,
            revision: 0,
            head: Digest::ZERO,
            last_at: Timestamp::default(),
            owner: None,
            closed: false,
            deleted: false,
            ttl: None,
            expires_at: None,
            hidden_ttl_ms: None,
            hidden_expires_at: None,
            tasks_opened: 0,
            requests_started: 0,
            items_appended: 0,
            tasks: Arc::default(),
            requests: Arc::default(),
            holds: Arc::default(),
            keys: Arc::default(),
            memories: Arc::default(),
        }
    }

    /// The snapshot of the state, from which recovery continues without folding the whole log.
    ///
    /// # Panics
    ///
    /// Never: a state always serializes to JSON.
    pub fn to_snapshot(&self) -> Vec<u8> {
        if mutant::is_on(Mutant::SnapshotForgetsVotes) {
            let mut forgetful = self.clone();
            for hold in Arc::make_mut(&mut forgetful.holds).values_mut() {
                hold.votes.clear();
            }
            return serde_json::to_vec(&forgetful).expect("a state always serializes");
        }
        serde_json::to_vec(self).expect("a state always serializes")
    }

    /// The state from the bytes of a snapshot.
    ///
    /// # Errors
    ///
    /// If the bytes are not a snapshot of a known shape.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The revision that last wrote a session key; 0 for a key without a value.
    pub fn version_of(&self, key: &StateKey) -> u64 {
        self.keys.get(key).map_or(0, |known| known.revision)
    }

    /// The bytes of all values of session keys together.
    pub fn state_bytes(&self) -> u64 {
        self.keys.values().map(|key| u64::from(key.bytes)).sum()
    }

    /// Whether the session has expired. The deadline counts, even before a timer commits the
    /// expiry.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        let now = now.max(self.last_at);
        self.expires_at.is_some_and(|deadline| now >= deadline)
    }

    /// Whether the time of the hidden payloads is over.
    pub fn is_hidden_due(&self, now: Timestamp) -> bool {
        let now = now.max(self.last_at);
        self.hidden_expires_at
            .is_some_and(|deadline| now >= deadline)
    }

    /// The status of the session, derived from its root tasks.
    pub fn status(&self) -> SessionStatus {
        let roots = || self.tasks.values().filter(|task| task.parent.is_none());
        if self.closed {
            SessionStatus::Closed
        } else if roots().any(|task| task.status == TaskStatus::Paused) {
            SessionStatus::Paused
        } else if roots().any(|task| task.status == TaskStatus::Running) {
            SessionStatus::Running
        } else {
            SessionStatus::Idle
        }
    }

    /// The task with this request's id in `live`, if the request is live.
    pub fn task_of(&self, request: RequestId) -> Option<&Task> {
        self.requests
            .get(&request)
            .and_then(|live| self.tasks.get(&live.task))
    }

    /// The request at the root above this one. All ancestors of a live request are live.
    pub fn root_of(&self, request: RequestId) -> RequestId {
        let mut root = request;
        while let Some(above) = self.requests.get(&root).and_then(|live| live.parent) {
            root = above;
        }
        root
    }

    /// The open holds that keep `task` paused, with the leaf's own ids, at any depth.
    pub fn pending_holds(&self, task: TaskId) -> Vec<HoldId> {
        let live = self.tasks.get(&task).and_then(|task| task.live);
        live.map_or_else(Vec::new, |live| self.holds_below(live))
    }

    /// The open holds that a request and everything it waits for wait for, with the leaf's own ids.
    pub fn holds_below(&self, request: RequestId) -> Vec<HoldId> {
        let mut found = Vec::new();
        self.collect_holds(request, &mut found);
        found
    }

    fn collect_holds(&self, request: RequestId, found: &mut Vec<HoldId>) {
        let Some(live) = self.requests.get(&request) else {
            return;
        };
        found.extend(live.holds.iter().map(|hold| {
            if mutant::is_on(Mutant::RenameHold) && live.depth > 0 {
                HoldId::from_uuid(uuid::Uuid::from_u128(hold.as_uuid().as_u128() ^ 1))
            } else {
                *hold
            }
        }));
        for child in &live.children {
            if mutant::is_on(Mutant::InboxMissesReused) && self.is_reused(*child) {
                continue;
            }
            self.collect_holds(*child, found);
        }
    }

    /// Whether this request runs in a task that another request spawned.
    fn is_reused(&self, request: RequestId) -> bool {
        let parent = self.requests.get(&request).and_then(|live| live.parent);
        let spawner = self
            .task_of(request)
            .and_then(|task| task.parent)
            .map(|link| link.request);
        parent != spawner
    }

    /// The status that a task's cache must hold, given the caches of the tasks below it.
    pub(crate) fn status_from_children(&self, task: &Task) -> TaskStatus {
        let Some(live) = task.live.and_then(|live| self.requests.get(&live)) else {
            return TaskStatus::Idle;
        };
        let has_paused_child = || {
            live.children
                .iter()
                .filter_map(|child| self.task_of(*child))
                .any(|child| child.status == TaskStatus::Paused)
        };
        match live.status {
            LiveStatus::Held => TaskStatus::Paused,
            LiveStatus::Waiting if has_paused_child() => TaskStatus::Paused,
            LiveStatus::Waiting | LiveStatus::Queued | LiveStatus::Running => TaskStatus::Running,
        }
    }

    /// Whether `task` is `ancestor` or below it.
    pub fn is_in_subtree(&self, task: TaskId, ancestor: TaskId) -> bool {
        let mut at = Some(task);
        while let Some(id) = at {
            if id == ancestor {
                return true;
            }
            at = self
                .tasks
                .get(&id)
                .and_then(|task| task.parent)
                .map(|link| link.task);
        }
        false
    }
}
