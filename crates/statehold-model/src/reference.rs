//! A second opinion on the core: the whole world of one session, kept for ever in plain lists.
//!
//! Nothing leaves the lists when it ends, and no status is stored: each is worked out from the
//! lists at every question, the slow and obvious way. It shares the vocabulary of the core
//! (ids, enums, commands) and none of its decisions, so that a property test can hold the two
//! against each other. Limits that no test sequence can reach are left out.

mod commands;
mod history;
mod holds;
mod shape;

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::command::{Command, Context, Rejection};
use statehold_core::digest::{BodyRef, Digest};
use statehold_core::hold::{
    DecideBy, Decision, DecisionKind, Effect, HoldKind, HoldStatus, OnExpiry, Risk, Vote,
};
use statehold_core::ids::{HoldId, ItemId, RequestId, TaskId};
use statehold_core::item::{CallOutcome, ItemKind, Role, Visibility};
use statehold_core::memory::{AgentPath, Memory};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::request::{CallState, Lease, LiveStatus, RequestOutcome};
use statehold_core::scope::StateKey;
use statehold_core::session::{KeyVersion, Owner, SessionStatus, TimeToLive, TtlMode};
use statehold_core::task::{CloseOn, TaskStatus};
use statehold_core::time::Timestamp;

/// How far the fence of a request jumps when the data is restored from a backup.
const RESTORE_STEP: u64 = 0x1_0000_0000;

/// Everything that ever was in one session. Objects refer to each other by place in these lists;
/// the place plus one is the number of the alias.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Whose session it is, once it exists.
    pub owner: Option<Owner>,
    /// Whether it takes no more commands.
    pub closed: bool,
    /// Whether its payloads were removed for good.
    pub deleted: bool,
    /// How long it lives, and when that was said.
    pub life: Option<(TimeToLive, Timestamp)>,
    /// How long it keeps hidden payloads after its last use, in milliseconds.
    pub hidden_life: Option<u64>,
    /// The last command that erased hidden payloads of a session that goes on.
    pub hidden_erased_by: Option<u64>,
    /// How many commands were committed.
    pub revision: u64,
    /// When the last one was.
    pub last_at: Timestamp,
    /// When the one before it was.
    pub was_at: Timestamp,
    /// When it was used last: erasing hidden payloads is no use.
    pub used_at: Timestamp,
    /// When it was used before that.
    pub was_used_at: Timestamp,
    /// All tasks, in the order of their aliases.
    pub tasks: Vec<KnownTask>,
    /// All requests, in the order of their aliases.
    pub requests: Vec<KnownRequest>,
    /// All holds, in the order they were opened.
    pub holds: Vec<KnownHold>,
    /// All items, in the order of `seq`.
    pub items: Vec<KnownItem>,
    /// Every write of a session key.
    pub writes: Vec<KeyWrite>,
    /// The requests that have ended, in that order, each with the revision that ended it.
    pub ends: Vec<(usize, u64)>,
    /// Every rewind: its revision, and the one it went back to.
    pub rewinds: Vec<(u64, u64)>,
}

/// A task that was opened once.
#[derive(Debug, Clone)]
pub struct KnownTask {
    /// Its id, once a record told it.
    pub id: Option<TaskId>,
    /// Its agent.
    pub agent: Name,
    /// The request that first spawned it; its place in the tree follows from that.
    pub spawned_by: Option<usize>,
    /// When it closes by itself.
    pub close_on: CloseOn,
    /// The revision that opened it.
    pub opened_at: u64,
    /// How it ended, if it did.
    pub closed: Option<TaskStatus>,
    /// Its last request, if that failed and no rewind came after.
    pub failed: Option<usize>,
}

/// A request that was started once.
#[derive(Debug, Clone)]
pub struct KnownRequest {
    /// Its id, once a record told it.
    pub id: Option<RequestId>,
    /// Its task.
    pub task: usize,
    /// The request that asked.
    pub parent: Option<usize>,
    /// The revision that started it.
    pub started_by: u64,
    /// Who started it, and the person who acted for them.
    pub started_for: [Option<Principal>; 2],
    /// Every lease it ever had.
    pub leases: Vec<Lease>,
    /// How many of them it had at each restore of the data.
    pub restored_after: Vec<usize>,
    /// Whether the records still give the lease to the last worker. An expired lease stays until a
    /// command gives it up.
    pub attended: bool,
    /// Whether it waited for something when the last command was done.
    pub waited: bool,
    /// How it ended, if it did.
    pub ended: Option<RequestOutcome>,
    /// The failed request that it goes on from.
    pub continues: Option<usize>,
}

/// A hold that was opened once.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are those of the core's hold")]
pub struct KnownHold {
    pub id: Option<HoldId>,
    pub request: usize,
    pub number: u32,
    pub opened_at: u64,
    pub kind: HoldKind,
    pub body: Option<BodyRef>,
    pub call: Option<usize>,
    pub digest: Option<Digest>,
    pub allowed: BTreeSet<DecisionKind>,
    pub need: u16,
    pub decide_by: DecideBy,
    pub effect: Option<Effect>,
    pub risk: Option<Risk>,
    pub policy: Option<Digest>,
    pub opened_by: Principal,
    pub deadline: Option<Timestamp>,
    pub on_expiry: OnExpiry,
    /// Votes in the order they came.
    pub votes: Vec<(Principal, Vote)>,
    /// The one decision, with the revision that committed it.
    pub decided: Option<(Decision, u64)>,
    /// Whether a worker could have acted on the decision.
    pub handed_over: bool,
}

/// An item that was written once.
#[derive(Debug, Clone)]
pub struct KnownItem {
    /// Its id, once a record told it.
    pub id: Option<ItemId>,
    /// The request that wrote it.
    pub request: usize,
    /// The revision that wrote it.
    pub revision: u64,
    /// Its kind.
    pub kind: ItemKind,
    /// Whether clients may see it.
    pub visibility: Visibility,
    /// The author of a message.
    pub role: Option<Role>,
    /// Its part in a tool call.
    pub mark: Option<KnownMark>,
}

/// The part of an item in a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownMark {
    /// It is the call.
    Call {
        /// Whether calling again is harmless.
        idempotent: bool,
        /// Whether it needs an approval.
        gated: bool,
    },
    /// It is the result.
    Result {
        /// The item that is the call.
        call: usize,
        /// The outcome of the call.
        outcome: CallOutcome,
        /// The digest of what ran, if that was approved.
        executed: Option<Digest>,
    },
}

/// One write of a session key.
#[derive(Debug, Clone)]
pub struct KeyWrite {
    /// The key.
    pub key: StateKey,
    /// The revision that wrote it.
    pub revision: u64,
    /// The length of the value that was there afterwards, if one was.
    pub bytes: Option<u32>,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// A deadline had passed: that was committed, and the command refused.
    Late(Rejection),
    /// It was done before, by that revision.
    Again {
        /// The revision that did it.
        revision: u64,
    },
    /// It was refused.
    Refused(Rejection),
}

impl World {
    /// Does a command, or refuses it and changes nothing.
    pub fn run(&mut self, command: &Command, ctx: &Context) -> Answer {
        let mut next = self.clone();
        next.revision += 1;
        next.was_at = self.last_at;
        next.last_at = ctx.now.max(self.last_at);
        (next.was_used_at, next.used_at) = (self.used_at, next.last_at);
        let answer = next.perform(command, ctx).unwrap_or_else(Answer::Refused);
        if matches!(answer, Answer::Done | Answer::Late(_)) {
            next.look_around(ctx);
            *self = next;
        }
        answer
    }

    /// Notes which requests stopped waiting, and what workers may have acted on since.
    fn look_around(&mut self, ctx: &Context) {
        for request in 0..self.requests.len() {
            let waits = self.has_reason_to_wait(request);
            if self.requests[request].waited && !waits {
                self.requests[request].attended = self.has_live_lease(request, ctx);
            }
            self.requests[request].waited = waits;
        }
        for hold in 0..self.holds.len() {
            let request = self.holds[hold].request;
            if self.holds[hold].decided.is_some()
                && self.is_live(request)
                && self.request_status(request) == LiveStatus::Running
            {
                self.holds[hold].handed_over = true;
            }
        }
    }

    /// When the session ends by itself.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let (ttl, since) = self.life?;
        Some(match ttl.mode {
            TtlMode::Sliding => self.used_at.plus_ms(ttl.ms),
            TtlMode::Fixed => since.plus_ms(ttl.ms),
        })
    }

    /// When the hidden payloads are erased.
    pub fn hidden_expires_at(&self) -> Option<Timestamp> {
        let ms = self.hidden_life?;
        let is_live = (0..self.requests.len()).any(|request| self.is_live(request));
        let is_erased = self.hidden_erased_by == Some(self.revision);
        (!is_live && !is_erased).then(|| self.used_at.plus_ms(ms))
    }

    /// Whether a request has not ended.
    pub fn is_live(&self, request: usize) -> bool {
        self.requests[request].ended.is_none()
    }

    /// The live requests that `request` asked for.
    pub fn live_children(&self, request: usize) -> Vec<usize> {
        (0..self.requests.len())
            .filter(|child| self.requests[*child].parent == Some(request) && self.is_live(*child))
            .collect()
    }

    /// The open holds of `request` itself.
    pub fn open_holds(&self, request: usize) -> Vec<usize> {
        (0..self.holds.len())
            .filter(|hold| {
                self.holds[*hold].request == request && self.holds[*hold].decided.is_none()
            })
            .collect()
    }

    fn has_reason_to_wait(&self, request: usize) -> bool {
        self.is_live(request)
            && !(self.open_holds(request).is_empty() && self.live_children(request).is_empty())
    }

    /// The status of a live request.
    pub fn request_status(&self, request: usize) -> LiveStatus {
        if !self.open_holds(request).is_empty() {
            LiveStatus::Held
        } else if !self.live_children(request).is_empty() {
            LiveStatus::Waiting
        } else if self.requests[request].attended {
            LiveStatus::Running
        } else {
            LiveStatus::Queued
        }
    }

    /// The fence that counts: one for each lease, and a big step for each restore.
    pub fn fence(&self, request: usize) -> u64 {
        let known = &self.requests[request];
        known.leases.len() as u64 + RESTORE_STEP * known.restored_after.len() as u64
    }

    /// The fence of the last worker.
    pub fn last_fence(&self, request: usize) -> u64 {
        let known = &self.requests[request];
        let leases = known.leases.len();
        let restores = known.restored_after.iter().filter(|at| **at < leases);
        leases as u64 + RESTORE_STEP * restores.count() as u64
    }

    /// The lease that counts, unless it was given up.
    pub fn lease(&self, request: usize) -> Option<&Lease> {
        let known = &self.requests[request];
        known.leases.last().filter(|_| known.attended)
    }

    /// Whether the lease is live, heartbeats included.
    pub fn has_live_lease(&self, request: usize, ctx: &Context) -> bool {
        let now = ctx.now.max(self.last_at);
        let extended = self.requests[request].id.and_then(|id| ctx.leases.get(&id));
        self.lease(request).is_some_and(|lease| {
            now < lease.until || extended.is_some_and(|extended| now < *extended)
        })
    }

    /// How many requests are above one.
    pub fn depth(&self, request: usize) -> usize {
        self.requests[request]
            .parent
            .map_or(0, |parent| 1 + self.depth(parent))
    }

    /// The live request of a task.
    pub fn live_request_of(&self, task: usize) -> Option<usize> {
        (0..self.requests.len())
            .find(|request| self.requests[*request].task == task && self.is_live(*request))
    }

    /// The task above one in the tree.
    pub fn task_above(&self, task: usize) -> Option<usize> {
        self.tasks[task]
            .spawned_by
            .map(|request| self.requests[request].task)
    }

    /// Whether `task` is `top` or below it.
    pub fn is_below(&self, task: usize, top: usize) -> bool {
        task == top
            || self
                .task_above(task)
                .is_some_and(|above| self.is_below(above, top))
    }

    /// The open holds at `request` and below it, over live requests.
    pub fn reachable_holds(&self, request: usize) -> Vec<usize> {
        let mut found = self.open_holds(request);
        for child in self.live_children(request) {
            found.extend(self.reachable_holds(child));
        }
        found
    }

    /// The status of a task.
    pub fn task_status(&self, task: usize) -> TaskStatus {
        match (self.tasks[task].closed, self.live_request_of(task)) {
            (Some(ended), _) => ended,
            (None, None) => TaskStatus::Idle,
            (None, Some(request)) if self.reachable_holds(request).is_empty() => {
                TaskStatus::Running
            }
            (None, Some(_)) => TaskStatus::Paused,
        }
    }

    /// The status of the session.
    pub fn session_status(&self) -> SessionStatus {
        let roots = (0..self.tasks.len()).filter(|task| self.task_above(*task).is_none());
        let statuses: Vec<TaskStatus> = roots.map(|task| self.task_status(task)).collect();
        if self.closed {
            SessionStatus::Closed
        } else if statuses.contains(&TaskStatus::Paused) {
            SessionStatus::Paused
        } else if statuses.contains(&TaskStatus::Running) {
            SessionStatus::Running
        } else {
            SessionStatus::Idle
        }
    }

    /// Whether an item is a tool call without a result.
    pub fn is_open_call(&self, item: usize) -> bool {
        let has_result = self.items.iter().any(
            |other| matches!(other.mark, Some(KnownMark::Result { call, .. }) if call == item),
        );
        matches!(self.items[item].mark, Some(KnownMark::Call { .. })) && !has_result
    }

    /// How far an open tool call is, from the holds that were ever about it.
    ///
    /// # Panics
    ///
    /// If no record told the id of a hold.
    pub fn call_state(&self, item: usize) -> CallState {
        let fence = self.last_fence(self.items[item].request);
        let asked = self.holds.iter().rev().find(|hold| hold.call == Some(item));
        let is_gated = matches!(
            self.items[item].mark,
            Some(KnownMark::Call { gated: true, .. })
        );
        let Some(hold) = asked else {
            return if is_gated {
                CallState::Proposed
            } else {
                CallState::Started { fence }
            };
        };
        match hold.decided.map(|(decision, _)| decision.status) {
            None | Some(HoldStatus::Open) if hold.kind == HoldKind::Reconcile => {
                CallState::Unknown {
                    hold: hold.id.expect("a record told the id of the hold"),
                }
            }
            None | Some(HoldStatus::Open) => CallState::Proposed,
            Some(HoldStatus::Approved | HoldStatus::Edited) if hold.handed_over => {
                CallState::Started { fence }
            }
            Some(HoldStatus::Approved | HoldStatus::Edited) => CallState::Released,
            Some(HoldStatus::Answered) if hold.kind == HoldKind::Reconcile => CallState::Confirmed,
            Some(HoldStatus::Answered) => CallState::Answered,
            Some(HoldStatus::Rejected | HoldStatus::Expired | HoldStatus::Cancelled) => {
                CallState::Refused
            }
        }
    }

    /// The digest of the action that people let run last, for a call.
    pub fn approved_digest(&self, item: usize) -> Option<Digest> {
        let mut about = self
            .holds
            .iter()
            .rev()
            .filter(|hold| hold.call == Some(item));
        about.find_map(|hold| hold.decided?.0.released)
    }

    /// The open tool calls of a request.
    pub fn open_calls(&self, request: usize) -> Vec<usize> {
        (0..self.items.len())
            .filter(|item| self.items[*item].request == request && self.is_open_call(*item))
            .collect()
    }

    /// The session keys at a revision.
    pub fn keys_at(&self, revision: u64) -> BTreeMap<StateKey, KeyVersion> {
        let mut keys = BTreeMap::new();
        for write in self
            .writes
            .iter()
            .filter(|write| write.revision <= revision)
        {
            if let Some(bytes) = write.bytes {
                let revision = write.revision;
                keys.insert(write.key.clone(), KeyVersion { bytes, revision });
            } else {
                keys.remove(&write.key);
            }
        }
        keys
    }

    /// The agents from the root down to a task.
    ///
    /// # Panics
    ///
    /// Never: names between slashes are a path.
    pub fn path(&self, task: usize) -> AgentPath {
        let (mut names, mut at) = (Vec::new(), Some(task));
        while let Some(task) = at {
            names.push(self.tasks[task].agent.as_str());
            at = self.task_above(task);
        }
        names.reverse();
        names.join("/").parse().expect("names make a path")
    }

    /// Whether a tool ran for a request, or for one below it that has ended.
    pub fn has_run(&self, request: usize) -> bool {
        let ran = |mark: KnownMark| matches!(mark, KnownMark::Result { outcome, .. } if outcome == CallOutcome::Ran);
        let mut own = self.items.iter().filter(|item| item.request == request);
        let is_below = |child: &usize| self.requests[*child].parent == Some(request);
        let mut below = (0..self.requests.len()).filter(is_below);
        let continued = self.requests[request].continues;
        own.any(|item| item.mark.is_some_and(ran))
            || below.any(|child| !self.is_live(child) && self.has_run(child))
            || continued.is_some_and(|failed| self.has_run(failed))
    }

    /// The request that a chain of continuations began with.
    pub fn first_attempt(&self, request: usize) -> usize {
        let continued = |at: &usize| self.requests[*at].continues;
        std::iter::successors(Some(request), continued)
            .last()
            .unwrap_or(request)
    }

    /// Whether an ended request is one that its agent knows of later.
    pub fn is_exchange(&self, request: usize) -> bool {
        self.requests[request].ended == Some(RequestOutcome::Completed) || self.has_run(request)
    }

    /// The memories of the agents after a revision.
    pub fn memories_at(&self, revision: u64) -> BTreeMap<AgentPath, Memory> {
        let rewinds = self.rewinds.iter().filter(|(at, _)| *at <= revision);
        let rewinds: Vec<_> = rewinds.copied().collect();
        self.exchanges_until(revision, &rewinds)
    }

    /// The memories that a rewind to this revision gives back now.
    pub fn memories_kept(&self, to: u64) -> BTreeMap<AgentPath, Memory> {
        self.exchanges_until(to, &self.rewinds)
    }

    /// The exchanges until a revision that no rewind has taken back.
    fn exchanges_until(
        &self,
        revision: u64,
        rewinds: &[(u64, u64)],
    ) -> BTreeMap<AgentPath, Memory> {
        let is_rewound = |ended: u64| rewinds.iter().any(|(at, to)| *to < ended && ended <= *at);
        let mut memories = BTreeMap::new();
        for (request, ended) in &self.ends {
            if *ended <= revision && !is_rewound(*ended) && self.is_exchange(*request) {
                let path = self.path(self.requests[*request].task);
                let newest = Memory {
                    exchanges: memories
                        .get(&path)
                        .map_or(1, |known: &Memory| known.exchanges + 1),
                    record: *ended,
                    request: self.request_id(*request),
                };
                memories.insert(path, newest);
            }
        }
        memories
    }

    /// How many items there were at a revision.
    pub fn items_at(&self, revision: u64) -> u64 {
        self.items
            .iter()
            .filter(|item| item.revision <= revision)
            .count() as u64
    }
}
