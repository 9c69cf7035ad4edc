//! Records: the commit of one command, all of its events or none.
//!
//! A record holds ids, enums, numbers, times, state keys, pseudonyms and keyed digests; never free
//! text. Its bytes are canonical JSON and contain the hash of the record before, so anyone who has a
//! chain can verify it. Fields are declared in the order of their names: that order is the format. See `docs/formats/record-v1.md`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::{BodyRef, Digest};
use crate::hold::{DecideBy, Decision, DecisionKind, Effect, HoldKind, OnExpiry, Right, Risk};
use crate::ids::{HoldId, ItemId, RequestId, SessionId, TaskId};
use crate::item::{Item, Visibility};
use crate::memory::{AgentPath, Memory};
use crate::name::Name;
use crate::principal::Principal;
use crate::request::{Continuation, LiveStatus, RequestOutcome};
use crate::scope::{MergePolicy, StateKey};
use crate::session::{Owner, TimeToLive};
use crate::task::{CloseOn, ParentLink, TaskStatus};
use crate::time::Timestamp;

/// The only version of the record format so far. A newer one is refused.
pub const RECORD_VERSION: u8 = 1;

/// The commit of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The content. `hash` covers its canonical bytes.
    pub content: RecordContent,
    /// SHA-256 of the canonical bytes of the content.
    pub hash: Digest,
    /// The canonical bytes, made once: they are hashed, stored and exported.
    bytes: Arc<[u8]>,
}

/// The hashed part of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordContent {
    /// Commit time. Never earlier than the record before.
    pub at: Timestamp,
    /// Which command it was.
    pub command: CommandName,
    /// The events, in order.
    pub events: Vec<Event>,
    /// Hash of the record before; zeros for the first.
    pub prev_hash: Digest,
    /// Who sent the command.
    pub principal: Principal,
    /// Its number in the session: 1, 2, 3, …
    pub seq: u64,
    /// The session it belongs to.
    pub session: SessionId,
    /// Format version.
    pub v: u8,
}

/// Which command a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each name is the command of that name")]
pub enum CommandName {
    CreateSession,
    PatchSession,
    CloseSession,
    ExpireSession,
    EraseHidden,
    DeleteSession,
    StartRequest,
    ClaimRequest,
    LapseLease,
    RaiseFence,
    ReleaseLease,
    AppendItems,
    OpenHold,
    DecideHold,
    ExpireHold,
    CompleteRequest,
    FailRequest,
    CancelRequest,
    CloseTask,
    CancelTask,
    PutState,
    Fork,
    Rewind,
    RecordTurn,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// A session began.
    SessionCreated {
        /// How long it keeps its hidden payloads after the last commit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hidden_ttl_ms: Option<u64>,
        /// The labels the client gave it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<BodyRef>,
        /// The name the client gave it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<BodyRef>,
        /// Whose it is.
        owner: Owner,
        /// How long it lives.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl: Option<TimeToLive>,
    },
    /// The name, labels or lifetimes of a session changed.
    SessionPatched {
        /// How long it keeps its hidden payloads from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hidden_ttl_ms: Option<Change<u64>>,
        /// All of its labels from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<BodyRef>,
        /// Its name from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<Change<BodyRef>>,
        /// How long it lives from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl: Option<Change<TimeToLive>>,
    },
    /// A session takes no more commands.
    SessionClosed,
    /// Payloads of all records so far were removed. Their digests stay.
    PayloadsErased {
        /// Which payloads.
        payloads: ErasedPayloads,
    },
    /// A session began as a copy of another.
    SessionForked {
        /// The last revision both share.
        at: u64,
        /// The session it was copied from.
        origin: SessionId,
        /// The new session.
        session: SessionId,
        /// The fork whose history was copied. None if that is the origin.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<SessionId>,
    },
    /// A session went back: the items in between are out of the conversation.
    Rewound {
        /// The last item that stays.
        items_kept: u64,
        /// The last item that the rewind removes.
        items_until: u64,
        /// The revision it went back to.
        to: u64,
    },
    /// A rewind gave the agent of a path back the memory that it had.
    MemoryRestored {
        /// The memory at the revision that the rewind went back to. None if there was none yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<Memory>,
        /// The path.
        path: AgentPath,
    },
    /// A task began.
    TaskOpened {
        /// Its agent.
        agent: Name,
        /// The event that closes it automatically.
        close_on: CloseOn,
        /// The n of its alias.
        number: u64,
        /// Its place in the tree.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<ParentLink>,
        /// The task.
        task: TaskId,
    },
    /// A task's derived status changed.
    TaskStatusChanged {
        /// Its status now.
        status: TaskStatus,
        /// The task.
        task: TaskId,
    },
    /// A task ended for good.
    TaskClosed {
        /// Its final status.
        status: TaskStatus,
        /// The task.
        task: TaskId,
    },
    /// A fork gave an inherited task an id of its own.
    TaskRenamed {
        /// The id in the origin.
        from: TaskId,
        /// The id here.
        to: TaskId,
    },
    /// An invocation began.
    RequestStarted {
        /// The owner of the backend's key, if a backend acted for the principal of the record.
        #[serde(rename = "acting", default, skip_serializing_if = "Option::is_none")]
        key_owner: Option<Principal>,
        /// The keyed digest by which a chat client that repeats the input finds the request again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chat: Option<Digest>,
        /// The failed request that it goes on from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        continues: Option<Continuation>,
        /// The n of its alias.
        number: u64,
        /// The request that waits for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<RequestId>,
        /// The request.
        request: RequestId,
        /// Its task.
        task: TaskId,
    },
    /// A worker got the right to write.
    RequestLeased {
        /// The number the worker must show.
        fence: u64,
        /// The request.
        request: RequestId,
        /// How long each renewal lasts.
        ttl_ms: u64,
        /// Until when it holds without renewal.
        until: Timestamp,
        /// The worker.
        worker: Principal,
    },
    /// A worker was lost.
    LeaseLapsed {
        /// The request.
        request: RequestId,
    },
    /// Only later claims may write: the data was restored, and the workers from before belong to another
    /// copy of it.
    FenceRaised {
        /// The number that no worker has.
        fence: u64,
        /// The request.
        request: RequestId,
    },
    /// A worker gave the right to write back.
    LeaseReleased {
        /// The request.
        request: RequestId,
    },
    /// The status of a live request changed.
    RequestStatusChanged {
        /// The request.
        request: RequestId,
        /// Its status now.
        status: LiveStatus,
    },
    /// An invocation ended.
    RequestEnded {
        /// The error of a failed request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<BodyRef>,
        /// How it ended.
        outcome: RequestOutcome,
        /// The request.
        request: RequestId,
    },
    /// A task's history grew.
    ItemsAppended {
        /// The items.
        items: Vec<Item>,
        /// The request that wrote them.
        request: RequestId,
        /// The task.
        task: TaskId,
    },
    /// A request waits for a person.
    HoldOpened {
        /// The decisions that may be taken.
        allowed: Vec<DecisionKind>,
        /// Everything a person reads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<BodyRef>,
        /// The tool call that waits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<ItemId>,
        /// When it expires.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
        /// Who may decide.
        decide_by: DecideBy,
        /// The digest a person approves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
        /// The effect of the action on the outside world.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effect: Option<Effect>,
        /// The hold.
        hold: HoldId,
        /// The kind of the hold.
        kind: HoldKind,
        /// How many people must approve.
        need: u16,
        /// The n of its alias.
        number: u32,
        /// The outcome at the deadline.
        on_expiry: OnExpiry,
        /// Who opened it, or whose lost action it is about.
        opened_by: Principal,
        /// The policy it was opened under.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Digest>,
        /// The request that waits.
        request: RequestId,
        /// The risk of the action.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        risk: Option<Risk>,
    },
    /// One of several people approved.
    VoteRecorded {
        /// Digest of the whole decision, to tell a retry from another decision.
        fingerprint: Digest,
        /// The hold.
        hold: HoldId,
        /// The decision key.
        key: Digest,
        /// The right by which they approved.
        right: Right,
    },
    /// A hold got its one decision.
    HoldDecided {
        /// The decision.
        decision: Decision,
        /// The hold.
        hold: HoldId,
        /// The request that waited.
        request: RequestId,
        /// Whether a worker with a live lease learns of it at once, so the action may run from now on.
        to_worker: bool,
    },
    /// A session key was written.
    StatePut {
        /// The key.
        key: StateKey,
        /// The request that wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestId>,
        /// The value.
        value: BodyRef,
    },
    /// A session key was removed.
    StateDeleted {
        /// The key.
        key: StateKey,
        /// The request that removed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestId>,
    },
    /// A session key got back the value that it had at an earlier revision.
    StateRestored {
        /// The length of the value.
        bytes: u32,
        /// A revision at which the key had the value.
        from: u64,
        /// The key.
        key: StateKey,
    },
    /// A value that other sessions see was written or removed.
    SharedStatePut {
        /// The version it must meet; 0 for none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected: Option<u64>,
        /// The key, with its prefix.
        key: StateKey,
        /// The policy that merges it with the existing value.
        merge: MergePolicy,
        /// The operand of the merge policy. None removes the key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operand: Option<BodyRef>,
        /// The request that wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<RequestId>,
    },
    /// An agent's private state was written.
    TaskStatePut {
        /// The request that wrote it.
        request: RequestId,
        /// The task it belongs to.
        task: TaskId,
        /// The value.
        value: BodyRef,
    },
}

/// An update of an optional value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change<T> {
    /// Sets this value.
    Set(T),
    /// Removes the value.
    Clear,
}

impl<T> Change<T> {
    /// The value, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Clear => None,
        }
    }
}

/// Which payloads are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErasedPayloads {
    /// Payloads hidden from clients: hidden items, private state, holds, errors.
    Hidden,
    /// Everything.
    All,
}

/// Why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON of the right shape.
    #[error("the bytes are not a record of a known shape")]
    Shape(#[source] serde_json::Error),
    /// Written by another version.
    #[error("record version {found} is not {RECORD_VERSION}, the one that this build knows")]
    Version {
        /// The version it says.
        found: u64,
    },
    /// The same content has another canonical form.
    #[error("the bytes are not in canonical form")]
    NotCanonical,
}

impl Record {
    /// Completes a record with its hash.
    ///
    /// # Panics
    ///
    /// Never: a record always serializes to JSON.
    pub fn seal(content: RecordContent) -> Self {
        // Every field in a record is declared in the order of its name, and the tag of an event
        // sorts before all of them, so plain serialization is the canonical form already.
        let bytes = serde_json::to_vec(&content).expect("records always serialize to JSON");
        Self {
            content,
            hash: Digest::sha256(&bytes),
            bytes: bytes.into(),
        }
    }

    /// The canonical bytes, as hashed, stored and exported.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A copy of the canonical bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }

    /// Reads a record back from its canonical bytes.
    ///
    /// # Errors
    ///
    /// Refuses newer versions, unknown fields and any byte that is not in its canonical place, so
    /// that one record has exactly one spelling and one hash.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Version {
            v: u64,
        }
        let version: Version = serde_json::from_slice(bytes).map_err(RecordError::Shape)?;
        if version.v != u64::from(RECORD_VERSION) {
            return Err(RecordError::Version { found: version.v });
        }
        let content: RecordContent = serde_json::from_slice(bytes).map_err(RecordError::Shape)?;
        let record = Self::seal(content);
        if record.as_bytes() == bytes {
            Ok(record)
        } else {
            Err(RecordError::NotCanonical)
        }
    }

    /// Reads only the items that a record wrote, from bytes that were verified when they were written.
    ///
    /// Histories are read far more often than anything else, and the other events of a record are
    /// most of it: they are skipped by their tag, which canonical bytes have in first place.
    ///
    /// # Errors
    ///
    /// If the bytes are not a record of a known shape and version.
    pub fn read_items(bytes: &[u8]) -> Result<RecordItems, RecordError> {
        #[derive(Deserialize)]
        struct Outline<'a> {
            at: Timestamp,
            #[serde(borrow)]
            events: Vec<&'a serde_json::value::RawValue>,
            seq: u64,
            v: u64,
        }
        // Text that is known to be text is scanned without looking at its encoding again.
        let text = std::str::from_utf8(bytes).map_err(|_| RecordError::NotCanonical)?;
        let outline: Outline<'_> = serde_json::from_str(text).map_err(RecordError::Shape)?;
        if outline.v != u64::from(RECORD_VERSION) {
            return Err(RecordError::Version { found: outline.v });
        }
        let is_items = |event: &&serde_json::value::RawValue| event.get().starts_with(ITEMS_TAG);
        let last = outline.events.iter().rposition(is_items);
        let mut groups = Vec::new();
        let mut first_body = 0;
        for event in outline.events.iter().take(last.map_or(0, |last| last + 1)) {
            if is_items(event) {
                let written: ItemGroup =
                    serde_json::from_str(event.get()).map_err(RecordError::Shape)?;
                let count = written.items.iter().map(|item| 1 + item.attachments.len());
                let count = count.sum::<usize>();
                groups.push((first_body, written));
                first_body += count;
                continue;
            }
            let mut tags = COMMON_TAGS.iter();
            if let Some((_, count)) = tags.find(|(tag, _)| event.get().starts_with(tag)) {
                first_body += count;
            } else {
                let event: Event = serde_json::from_str(event.get()).map_err(RecordError::Shape)?;
                first_body += event.bodies().len();
            }
        }
        Ok(RecordItems {
            at: outline.at,
            seq: outline.seq,
            groups,
        })
    }

    /// The payloads the record refers to, in the order a commit carries them.
    pub fn bodies(&self) -> Vec<BodyRef> {
        self.content.bodies()
    }

    /// For each of these payloads, whether such a removal takes it.
    pub fn erased(&self, payloads: ErasedPayloads) -> Vec<bool> {
        let events = self.content.events.iter();
        events.flat_map(|event| event.erased(payloads)).collect()
    }
}

/// How an event that wrote items begins.
const ITEMS_TAG: &str = "{\"act\":\"items_appended\",";
/// How the commonest other events begin, and how many payloads they always have.
const COMMON_TAGS: [(&str, usize); 7] = [
    ("{\"act\":\"task_opened\",", 0),
    ("{\"act\":\"request_started\",", 0),
    ("{\"act\":\"request_leased\",", 0),
    ("{\"act\":\"request_status_changed\",", 0),
    ("{\"act\":\"task_status_changed\",", 0),
    ("{\"act\":\"state_put\",", 1),
    ("{\"act\":\"task_state_put\",", 1),
];

/// The items that a record wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordItems {
    /// Commit time.
    pub at: Timestamp,
    /// Its number in the session.
    pub seq: u64,
    /// Groups of items, each with the place of its first payload among those of the record.
    pub groups: Vec<(usize, ItemGroup)>,
}

/// Items that one request wrote to one task.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ItemGroup {
    /// The items.
    pub items: Vec<Item>,
    /// The request that wrote them.
    pub request: RequestId,
    /// The task.
    pub task: TaskId,
}

impl RecordContent {
    /// The payloads the record refers to, in the order a commit carries them.
    pub fn bodies(&self) -> Vec<BodyRef> {
        self.events.iter().flat_map(Event::bodies).collect()
    }

    /// The items that the record writes.
    pub fn items(&self) -> RecordItems {
        let mut first_body = 0;
        let mut groups = Vec::new();
        for event in &self.events {
            if let Event::ItemsAppended {
                items,
                request,
                task,
            } = event
            {
                let group = ItemGroup {
                    items: items.clone(),
                    request: *request,
                    task: *task,
                };
                groups.push((first_body, group));
            }
            first_body += event.bodies().len();
        }
        RecordItems {
            at: self.at,
            seq: self.seq,
            groups,
        }
    }

    /// The request that the record starts.
    pub fn started_request(&self) -> Option<RequestId> {
        self.events.iter().find_map(|event| match event {
            Event::RequestStarted { request, .. } => Some(*request),
            _ => None,
        })
    }
}

impl Event {
    /// Which of [`Event::bodies`] are removed, in the same order.
    pub fn erased(&self, payloads: ErasedPayloads) -> Vec<bool> {
        let count = self.bodies().len();
        match (payloads, self) {
            (ErasedPayloads::All, _)
            | (
                _,
                Self::RequestEnded { .. }
                | Self::HoldOpened { .. }
                | Self::HoldDecided { .. }
                | Self::TaskStatePut { .. },
            ) => vec![true; count],
            (ErasedPayloads::Hidden, Self::ItemsAppended { items, .. }) => items
                .iter()
                .flat_map(|item| {
                    let is_hidden = item.visibility == Visibility::Hidden;
                    std::iter::repeat_n(is_hidden, 1 + item.attachments.len())
                })
                .collect(),
            (ErasedPayloads::Hidden, _) => vec![false; count],
        }
    }

    /// The payloads the event refers to, in the order a commit carries them.
    pub fn bodies(&self) -> Vec<BodyRef> {
        match self {
            Self::SessionCreated { name, labels, .. } => {
                name.iter().chain(labels).copied().collect()
            }
            Self::SessionPatched { labels, name, .. } => {
                let name = name.and_then(Change::value);
                labels.iter().copied().chain(name).collect()
            }
            Self::RequestEnded { error, .. } => error.iter().copied().collect(),
            Self::ItemsAppended { items, .. } => items
                .iter()
                .flat_map(|item| {
                    let attached = item.attachments.iter().map(|attachment| attachment.body);
                    std::iter::once(item.body).chain(attached)
                })
                .collect(),
            Self::HoldOpened { body, .. } => body.iter().copied().collect(),
            Self::HoldDecided { decision, .. } => decision.body.iter().copied().collect(),
            Self::StatePut { value, .. } | Self::TaskStatePut { value, .. } => vec![*value],
            Self::SharedStatePut { operand, .. } => operand.iter().copied().collect(),
            Self::SessionClosed
            | Self::PayloadsErased { .. }
            | Self::SessionForked { .. }
            | Self::Rewound { .. }
            | Self::MemoryRestored { .. }
            | Self::TaskOpened { .. }
            | Self::TaskStatusChanged { .. }
            | Self::TaskClosed { .. }
            | Self::TaskRenamed { .. }
            | Self::RequestStarted { .. }
            | Self::RequestLeased { .. }
            | Self::LeaseLapsed { .. }
            | Self::FenceRaised { .. }
            | Self::LeaseReleased { .. }
            | Self::RequestStatusChanged { .. }
            | Self::VoteRecorded { .. }
            | Self::StateDeleted { .. }
            | Self::StateRestored { .. } => Vec::new(),
        }
    }
}
