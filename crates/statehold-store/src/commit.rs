//! The commit of one decision: a store writes all of it or nothing.

use statehold_core::digest::{BodyRef, Digest};
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId};
use statehold_core::item::{Attachment, CallMark, Item, ItemKind, Role, Visibility};
use statehold_core::name::Name;
use statehold_core::projection::{Changes, project};
use statehold_core::record::{Change, ErasedPayloads, Event, ItemGroup, Record, RecordItems};
use statehold_core::scope::{MergePolicy, StateKey};
use statehold_core::session::SessionState;
use statehold_core::task::Task;
use statehold_core::time::Timestamp;

use crate::codec;
use crate::port::{CallResult, HoldChange, HoldChangeKind, StoreError};

/// How many of its newest requests a session is found by, if chat calls started them.
pub const CHAT_REQUESTS_MAX: u64 = 256;

/// Everything one decision wants written. Made by [`Commit::new`], away from the writer, so that
/// encoding and compression do not hold up other commits.
#[derive(Debug)]
pub struct Commit {
    /// The record.
    pub record: Record,
    /// The state after it.
    pub after: SessionState,
    /// The rows it changes in the projections.
    pub changes: Changes,
    /// The answer to keep for the idempotency key of the call.
    pub answer: Option<Answer>,
    /// The name of the session's user, if this is the first commit that is theirs.
    pub new_user: Option<String>,
    /// The texts by which rows are found, if the store keeps some.
    pub(crate) texts: TextColumns,
    /// The checksum of the answer, if the store keeps one.
    pub(crate) answer_sum: Option<Vec<u8>>,
    pub(crate) packed_record: Vec<u8>,
    pub(crate) packed_bodies: Vec<u8>,
    /// Payloads that are long enough to be stored once.
    pub(crate) once: Vec<OncePayload>,
    /// Long payloads, each packed.
    pub(crate) blobs: Vec<(Digest, Vec<u8>)>,
    pub(crate) writes: Writes,
    pub(crate) items: ItemFacts,
}

/// Texts of a session and of its user, as columns of a table have them.
#[derive(Debug, Default)]
pub(crate) struct TextColumns {
    pub(crate) name: Option<Change<FoundText>>,
    pub(crate) labels: Option<Change<Vec<u8>>>,
    pub(crate) new_user: Option<FoundText>,
}

/// A text, and the bytes that a row is found by in its place.
#[derive(Debug, Clone)]
pub(crate) struct FoundText {
    pub(crate) lookup: Vec<u8>,
    pub(crate) column: Vec<u8>,
}

/// The facts about the items of a record that its row in memory needs before a reader parses them.
#[derive(Debug)]
pub(crate) struct ItemFacts {
    /// For each group of items, whether its task is a root task.
    pub(crate) in_root_task: Vec<bool>,
    /// The bytes on the heap that the items take once they are read.
    pub(crate) heap_bytes: usize,
}

impl ItemFacts {
    fn of(record: &Record, is_root: impl Fn(TaskId) -> bool) -> Self {
        let (mut in_root_task, mut heap_bytes) = (Vec::new(), 0);
        for event in &record.content.events {
            if let Event::ItemsAppended { task, items, .. } = event {
                in_root_task.push(is_root(*task));
                heap_bytes += size_of::<WrittenGroup>() + items_bytes(items);
            }
        }
        Self {
            in_root_task,
            heap_bytes,
        }
    }
}

/// The bytes of items on the heap.
fn items_bytes(items: &[Item]) -> usize {
    let files = items.iter().map(|item| item.attachments.len());
    size_of_val(items) + files.sum::<usize>() * size_of::<Attachment>()
}

/// The items that a record wrote, as histories read them.
#[derive(Debug)]
pub(crate) struct WrittenItems {
    /// Commit time.
    pub(crate) at: Timestamp,
    pub(crate) groups: Vec<WrittenGroup>,
}

/// Items that one request wrote to one task.
#[derive(Debug)]
pub(crate) struct WrittenGroup {
    /// The place of the first payload among those of the record.
    pub(crate) first_body: usize,
    /// Whether the task is a root task.
    pub(crate) is_root: bool,
    pub(crate) written: ItemGroup,
}

impl WrittenItems {
    /// Adds to the items of a record which tasks are root tasks.
    pub(crate) fn of<E>(
        items: RecordItems,
        mut is_root: impl FnMut(TaskId) -> Result<bool, E>,
    ) -> Result<Self, E> {
        let groups = items.groups.into_iter().map(|(first_body, written)| {
            Ok(WrittenGroup {
                first_body,
                is_root: is_root(written.task)?,
                written,
            })
        });
        Ok(Self {
            at: items.at,
            groups: groups.collect::<Result<_, E>>()?,
        })
    }

    /// The bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let groups = self.groups.iter();
        let bytes = groups.map(|group| items_bytes(&group.written.items));
        size_of_val(self.groups.as_slice()) + bytes.sum::<usize>()
    }
}

/// A payload of a commit that the session may have already, or get again.
#[derive(Debug)]
pub(crate) struct OncePayload {
    /// How many payloads of the record come before it.
    pub(crate) index: u32,
    pub(crate) digest: Digest,
    /// Whether this commit keeps it as a blob.
    pub(crate) is_blob: bool,
}

/// The payloads of a record, by purpose.
#[derive(Debug, Default, Clone)]
pub(crate) struct Writes {
    /// The new name of the session.
    pub(crate) name: Option<Change<String>>,
    pub(crate) labels: Option<Change<String>>,
    /// Payloads of all records so far that are to be removed.
    pub(crate) erased: Option<ErasedPayloads>,
    pub(crate) state: Vec<StateWrite>,
    pub(crate) shared: Vec<SharedWrite>,
    /// Private states, packed.
    pub(crate) task_states: Vec<(TaskId, RequestId, Vec<u8>)>,
    /// Tasks whose history grew.
    pub(crate) grown_tasks: Vec<TaskId>,
    pub(crate) fork: Option<ForkWrite>,
}

/// Where a fork comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForkWrite {
    /// The session that wrote the last record which both share.
    pub(crate) origin: SessionId,
    /// The revision of that record.
    pub(crate) at: u64,
    /// The fork whose history was copied, if that is not the origin.
    pub(crate) through: Option<SessionId>,
}

impl ForkWrite {
    /// The origin, and the last revision that both share.
    pub(crate) fn point(self) -> (SessionId, u64) {
        (self.origin, self.at)
    }
}

/// A change of one session key.
#[derive(Debug, Clone)]
pub(crate) enum StateWrite {
    /// The new value, packed, and its length.
    Put {
        key: StateKey,
        bytes: u32,
        packed: Vec<u8>,
    },
    Delete(StateKey),
    /// The value that the key had at a revision, and its length.
    Restore {
        key: StateKey,
        bytes: u32,
        from: u64,
    },
}

/// A change of one shared key.
#[derive(Debug, Clone)]
pub(crate) struct SharedWrite {
    pub(crate) key: StateKey,
    pub(crate) change: SharedChange,
    pub(crate) expected: Option<u64>,
    pub(crate) request: Option<RequestId>,
}

/// The value that a shared key gets.
#[derive(Debug, Clone)]
pub(crate) enum SharedChange {
    /// None: the key is removed.
    Remove,
    /// This value, packed. If it was merged, the key must still have the version it was merged with.
    Put {
        packed: Vec<u8>,
        merged_with: Option<u64>,
    },
    /// Not merged yet: the payload must be merged with the existing value.
    Unmerged,
}

/// A shared value that was merged before its commit: a store compares versions and writes bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedValue {
    /// The key.
    pub key: StateKey,
    /// The version of the value that the operand was merged with; 0 for none.
    pub merged_with: u64,
    /// The result.
    pub value: Vec<u8>,
}

/// The answer to a call, kept for its idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Digest of tenant, principal and key.
    pub key: Digest,
    /// Digest of the call.
    pub fingerprint: Digest,
    /// The session it committed to.
    pub session: SessionId,
    /// The revision it committed.
    pub revision: u64,
    /// The body of the answer.
    pub body: Vec<u8>,
    /// When the answer may be forgotten; the key is free once it is.
    pub expires_at: Timestamp,
}

/// Payloads that do not fit their record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("payload {index} of {expected} does not fit the record")]
pub struct BodyMismatch {
    /// Which payload.
    pub index: usize,
    /// How many the record names.
    pub expected: usize,
}

impl Commit {
    /// Prepares a commit: `record` was decided on `before`, `bodies` are its payloads in the order of
    /// [`Record::bodies`].
    ///
    /// # Errors
    ///
    /// If there are more or fewer payloads than the record names, or one has another length.
    pub fn new(
        before: &SessionState,
        record: Record,
        bodies: Vec<Vec<u8>>,
    ) -> Result<Self, BodyMismatch> {
        let named = record.bodies();
        require_fitting(&named, &bodies)?;
        let (after, changes) = project(before, &record);
        let blob_bytes_min = record.content.events.iter().flat_map(blob_bytes_min);
        let is_blob = blob_bytes_min
            .zip(&bodies)
            .map(|(min, body)| body.len() >= min);
        let is_blob: Vec<bool> = is_blob.collect();
        let kept = || named.iter().zip(is_blob.iter().copied());
        let once = (0..)
            .zip(kept())
            .map(|(index, (name, is_blob))| OncePayload {
                index,
                digest: name.digest,
                is_blob,
            });
        let lengths = codec::ONCE_BYTES_MIN..codec::BLOB_BYTES_MIN;
        let is_once = |one: &OncePayload| lengths.contains(&bodies[one.index as usize].len());
        let blobs = kept().zip(&bodies).filter(|((_, is_blob), _)| *is_blob);
        let blobs = blobs.map(|((name, _), body)| (name.digest, codec::pack(body)));
        let is_root = |id: TaskId| {
            let task = task_of(&after, &changes, id);
            task.is_some_and(|task| task.parent.is_none())
        };
        let items = ItemFacts::of(&record, is_root);
        Ok(Self {
            items,
            once: once.filter(is_once).collect(),
            packed_record: codec::pack_record(record.as_bytes()),
            packed_bodies: codec::pack_bodies(bodies.iter().zip(is_blob.iter().copied())),
            blobs: blobs.collect(),
            writes: Writes::of(&record, bodies),
            record,
            after,
            changes,
            answer: None,
            texts: TextColumns::default(),
            answer_sum: None,
            new_user: None,
        })
    }

    /// Gives shared keys with a merge policy their values. A store refuses a commit that lacks one. Keys
    /// that the record does not merge are left out.
    pub fn set_merged(&mut self, merged: impl IntoIterator<Item = MergedValue>) {
        for merged in merged {
            let mut writes = self.writes.shared.iter_mut();
            let Some(write) = writes.find(|write| write.key == merged.key) else {
                continue;
            };
            if let SharedChange::Unmerged = write.change {
                write.change = SharedChange::Put {
                    packed: codec::pack(&merged.value),
                    merged_with: Some(merged.merged_with),
                };
            }
        }
    }

    /// About the bytes that it writes.
    pub(crate) fn stored_bytes(&self) -> usize {
        let blobs = self.blobs.iter().map(|(_, packed)| packed.len());
        let state = self.writes.state.iter().map(|write| match write {
            StateWrite::Put { packed, .. } => packed.len(),
            StateWrite::Delete(_) | StateWrite::Restore { .. } => 0,
        });
        let shared = self.writes.shared.iter().map(|write| match &write.change {
            SharedChange::Put { packed, .. } => packed.len(),
            SharedChange::Remove | SharedChange::Unmerged => 0,
        });
        let private = self
            .writes
            .task_states
            .iter()
            .map(|(_, _, value)| value.len());
        let answer = self.answer.as_ref().map_or(0, |answer| answer.body.len());
        let payloads = blobs
            .chain(state)
            .chain(shared)
            .chain(private)
            .sum::<usize>();
        let user = self.new_user.as_ref().map_or(0, String::len);
        self.packed_record.len() + self.packed_bodies.len() + payloads + answer + user + 512
    }

    /// The session it belongs to.
    pub fn session(&self) -> SessionId {
        self.record.content.session
    }

    /// Whether it removes payloads.
    pub fn removes_payloads(&self) -> bool {
        self.writes.erased.is_some()
    }

    /// The agent of a task that is open after the commit, or closed by it.
    pub(crate) fn agent_of(&self, task: TaskId) -> Option<&Name> {
        task_of(&self.after, &self.changes, task).map(|task| &task.agent)
    }

    /// The revision it must find.
    pub fn expected(&self) -> u64 {
        self.record.content.seq - 1
    }
}

/// From which length on each payload of an event is a blob.
fn blob_bytes_min(event: &Event) -> Vec<usize> {
    let Event::ItemsAppended { items, .. } = event else {
        return vec![codec::BLOB_BYTES_MIN; event.bodies().len()];
    };
    let mut lengths = Vec::new();
    for item in items {
        let (kind, role) = (item.kind, item.role);
        // Messages of root tasks are visible.
        let is_hidden = item.visibility == Visibility::Hidden;
        let is_answer = kind == ItemKind::Message && role == Some(Role::Assistant);
        lengths.push(if is_answer && is_hidden {
            codec::ONCE_BYTES_MIN
        } else {
            codec::BLOB_BYTES_MIN
        });
        lengths.extend(item.attachments.iter().map(|_| codec::BLOB_BYTES_MIN));
    }
    lengths
}

/// A task that is open after a commit, or closed by it.
fn task_of<'a>(after: &'a SessionState, changes: &'a Changes, id: TaskId) -> Option<&'a Task> {
    let mut closed = changes.closed_tasks.iter().map(|closed| &closed.task);
    let open = after.tasks.get(&id);
    open.or_else(|| closed.find(|task| task.id == id))
}

fn require_fitting(named: &[BodyRef], bodies: &[Vec<u8>]) -> Result<(), BodyMismatch> {
    let expected = named.len();
    if bodies.len() != expected {
        return Err(BodyMismatch {
            index: bodies.len().min(expected),
            expected,
        });
    }
    let differs = |(name, body): (&BodyRef, &Vec<u8>)| name.bytes as usize != body.len();
    match named.iter().zip(bodies).position(differs) {
        Some(index) => Err(BodyMismatch { index, expected }),
        None => Ok(()),
    }
}

impl SharedChange {
    fn of(policy: MergePolicy, operand: Option<Vec<u8>>) -> Self {
        match (policy, operand) {
            (_, None) => Self::Remove,
            (MergePolicy::Replace, Some(value)) => Self::Put {
                packed: codec::pack(&value),
                merged_with: None,
            },
            (_, Some(_)) => Self::Unmerged,
        }
    }
}

impl SharedWrite {
    /// The new value, packed; None removes the key. `found` is the current version, 0 for none.
    pub(crate) fn packed_at(&self, found: u64) -> Result<Option<&[u8]>, StoreError> {
        let (packed, merged_with) = match &self.change {
            SharedChange::Remove => (None, None),
            SharedChange::Put {
                packed,
                merged_with,
            } => (Some(packed.as_slice()), *merged_with),
            SharedChange::Unmerged => {
                let detail = format!("`{}` must be merged before its commit", self.key);
                return Err(StoreError::Unusable(detail));
            }
        };
        let mut wanted = [self.expected, merged_with].into_iter().flatten();
        match wanted.find(|expected| *expected != found) {
            Some(expected) => Err(StoreError::SharedConflict {
                key: self.key.clone(),
                expected,
                found,
            }),
            None => Ok(packed),
        }
    }
}

impl Writes {
    fn of(record: &Record, bodies: Vec<Vec<u8>>) -> Self {
        let mut bodies = bodies.into_iter();
        let mut writes = Self::default();
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        for event in &record.content.events {
            let mut own: Vec<Vec<u8>> = bodies.by_ref().take(event.bodies().len()).collect();
            match event {
                Event::SessionCreated { name, labels, .. } => {
                    let mut own = own.iter().map(text);
                    writes.name = name.and_then(|_| own.next()).map(Change::Set);
                    writes.labels = labels.and_then(|_| own.next()).map(Change::Set);
                }
                Event::SessionPatched { labels, name, .. } => {
                    let mut own = own.iter().map(text);
                    writes.labels = labels.and_then(|_| own.next()).map(Change::Set);
                    writes.name = name.map(|name| match name {
                        Change::Set(_) => own.next().map_or(Change::Clear, Change::Set),
                        Change::Clear => Change::Clear,
                    });
                }
                Event::PayloadsErased { payloads } => {
                    writes.erased = Some(*payloads);
                    if *payloads == ErasedPayloads::All {
                        (writes.name, writes.labels) = (Some(Change::Clear), Some(Change::Clear));
                    }
                }
                Event::SessionForked {
                    origin,
                    at,
                    through,
                    ..
                } => {
                    writes.fork = Some(ForkWrite {
                        origin: *origin,
                        at: *at,
                        through: *through,
                    });
                }
                Event::ItemsAppended { task, .. } => writes.grown_tasks.push(*task),
                Event::StatePut { key, value, .. } => {
                    let packed = codec::pack(&own.swap_remove(0));
                    let (key, bytes) = (key.clone(), value.bytes);
                    writes.state.push(StateWrite::Put { key, bytes, packed });
                }
                Event::StateDeleted { key, .. } => {
                    writes.state.push(StateWrite::Delete(key.clone()));
                }
                Event::StateRestored { bytes, key, from } => {
                    let (key, bytes, from) = (key.clone(), *bytes, *from);
                    writes.state.push(StateWrite::Restore { key, bytes, from });
                }
                Event::SharedStatePut {
                    key,
                    merge,
                    expected,
                    request,
                    ..
                } => {
                    writes.shared.push(SharedWrite {
                        key: key.clone(),
                        change: SharedChange::of(*merge, own.pop()),
                        expected: *expected,
                        request: *request,
                    });
                }
                Event::TaskStatePut { task, request, .. } => {
                    let packed = codec::pack(&own.swap_remove(0));
                    writes.task_states.push((*task, *request, packed));
                }
                _ => {}
            }
        }
        writes
    }
}

/// The results of tool calls that a record brings.
pub(crate) fn results_in(record: &Record) -> impl Iterator<Item = (ItemId, CallResult)> + '_ {
    let content = &record.content;
    let items = content.events.iter().filter_map(|event| match event {
        Event::ItemsAppended { items, .. } => Some(items),
        _ => None,
    });
    items.flatten().filter_map(|item| match item.call {
        Some(CallMark::Result { call, outcome, .. }) => Some((
            call,
            CallResult {
                at: content.at,
                outcome,
                revision: content.seq,
            },
        )),
        _ => None,
    })
}

/// The request that a chat call started with this record: its number, its id, and the digest of its input.
pub(crate) fn chat_request_in(record: &Record) -> Option<(u64, RequestId, Digest)> {
    let mut events = record.content.events.iter();
    events.find_map(|event| match event {
        Event::RequestStarted {
            chat: Some(digest),
            number,
            request,
            ..
        } => Some((*number, *request, *digest)),
        _ => None,
    })
}

/// The changes of holds in a record committed at `place`. A fork ends copies; the holds of the
/// origin do not change.
pub(crate) fn hold_changes_in(record: &Record, place: u64) -> Vec<HoldChange> {
    let content = &record.content;
    let is_fork = |event: &Event| matches!(event, Event::SessionForked { .. });
    if content.events.iter().any(is_fork) {
        return Vec::new();
    }
    let changes = content.events.iter().filter_map(|event| match event {
        Event::HoldOpened { hold, .. } => Some((*hold, HoldChangeKind::Opened)),
        Event::VoteRecorded { hold, .. } => Some((*hold, HoldChangeKind::Voted)),
        Event::HoldDecided { hold, .. } => Some((*hold, HoldChangeKind::Decided)),
        _ => None,
    });
    let numbered = changes.zip(0..);
    let placed = numbered.map(|((hold, kind), index)| HoldChange {
        place,
        index,
        session: content.session,
        revision: content.seq,
        hold,
        kind,
    });
    placed.collect()
}
