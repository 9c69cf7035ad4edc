//! Folds records into state. The fold is total: every record that `decide` returns applies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::digest::BodyRef;
use crate::hold::{Decision, Hold, HoldKind, HoldStatus, Vote};
use crate::ids::{HoldId, ItemId, RequestId, TaskId};
use crate::item::{CallMark, CallOutcome, Item};
use crate::memory::{AgentPath, Memory};
use crate::mutant::{self, Mutant};
use crate::principal::Principal;
use crate::record::{Change, ErasedPayloads, Event, Record};
use crate::request::{
    AskedAbout, CallState, Lease, LiveRequest, LiveStatus, OpenCall, RequestOutcome,
};
use crate::session::{KeyVersion, SessionState, TimeToLive, TtlMode};
use crate::task::{ParentLink, Task, TaskStatus};
use crate::time::Timestamp;

/// Folds one record into the state.
pub fn apply(state: &mut SessionState, record: &Record) {
    let content = &record.content;
    for event in &content.events {
        apply_event(state, event, content.seq, content.principal);
    }
    end_record(state, record);
}

/// Folds everything of a record but its events.
pub(crate) fn end_record(state: &mut SessionState, record: &Record) {
    let content = &record.content;
    state.expires_at = expiry(state, &content.events, content.at);
    state.hidden_expires_at = hidden_expiry(state, &content.events, content.at);
    state.session = content.session;
    state.revision = content.seq;
    state.last_at = content.at;
    state.head = record.hash;
}

/// The expiry of the session after a record of these events.
fn expiry(state: &SessionState, events: &[Event], at: Timestamp) -> Option<Timestamp> {
    let TimeToLive { mode, ms } = state.ttl?;
    let is_set = events.iter().any(|event| {
        matches!(
            event,
            Event::SessionCreated { .. } | Event::SessionPatched { ttl: Some(_), .. }
        )
    });
    match mode {
        // A timer does not keep an unused session alive.
        TtlMode::Sliding if erases(events) => state.expires_at,
        TtlMode::Sliding => Some(at.plus_ms(ms)),
        TtlMode::Fixed if is_set => Some(at.plus_ms(ms)),
        TtlMode::Fixed => state.expires_at,
    }
}

/// When the hidden payloads are due after a record of these events.
fn hidden_expiry(state: &SessionState, events: &[Event], at: Timestamp) -> Option<Timestamp> {
    let ms = state.hidden_ttl_ms?;
    let is_live = !state.requests.is_empty() && !mutant::is_on(Mutant::EraseWhileLive);
    (!is_live && !erases(events)).then(|| at.plus_ms(ms))
}

fn erases(events: &[Event]) -> bool {
    events
        .iter()
        .any(|event| matches!(event, Event::PayloadsErased { .. }))
}

/// Folds one event of record `seq`, sent by `principal`.
#[expect(clippy::too_many_lines, reason = "one arm per event, nothing else")]
pub(crate) fn apply_event(state: &mut SessionState, event: &Event, seq: u64, principal: Principal) {
    match event {
        Event::SessionCreated {
            owner,
            ttl,
            hidden_ttl_ms,
            ..
        } => {
            state.owner = Some(owner.clone());
            state.ttl = *ttl;
            state.hidden_ttl_ms = *hidden_ttl_ms;
        }
        Event::SessionPatched {
            ttl, hidden_ttl_ms, ..
        } => {
            if let Some(ttl) = ttl {
                state.ttl = Change::value(*ttl);
            }
            if let Some(hidden_ttl_ms) = hidden_ttl_ms {
                state.hidden_ttl_ms = Change::value(*hidden_ttl_ms);
            }
        }
        Event::PayloadsErased { payloads } => {
            if state.closed {
                // A closed session is erased once: clear both lifetimes, so that no timer lists it again.
                state.ttl = None;
                state.hidden_ttl_ms = None;
            }
            state.deleted |= *payloads == ErasedPayloads::All;
        }
        Event::SessionClosed => state.closed = true,
        Event::SessionForked { session, .. } => {
            state.session = *session;
            state.closed = false;
        }
        Event::TaskOpened {
            task,
            number,
            agent,
            parent,
            close_on,
        } => {
            state.tasks_opened = *number;
            let above = parent.and_then(|link| state.tasks.get(&link.task));
            let path = AgentPath::of(above.map(|above| &above.path), agent);
            let opened = Task {
                id: *task,
                number: *number,
                agent: agent.clone(),
                path,
                parent: *parent,
                status: TaskStatus::Idle,
                live: None,
                last_outcome: None,
                failed: None,
                close_on: *close_on,
                opened_at: seq,
            };
            Arc::make_mut(&mut state.tasks).insert(*task, opened);
        }
        Event::TaskStatusChanged { task, status } => {
            if let Some(task) = Arc::make_mut(&mut state.tasks).get_mut(task) {
                task.status = *status;
            }
        }
        Event::TaskClosed { task, .. } => {
            Arc::make_mut(&mut state.tasks).remove(task);
        }
        Event::TaskRenamed { from, to } => rename_task(state, *from, *to),
        Event::RequestStarted {
            request,
            number,
            task,
            parent,
            key_owner,
            continues,
            ..
        } => {
            let people = [Some(principal), *key_owner].into_iter().flatten();
            start_request(state, (*request, *number), *task, *parent, seq, people);
            if let Some(continued) = continues {
                with_request(state, *request, |live| {
                    (live.memory, live.ran) = (continued.memory, continued.ran);
                });
            }
        }
        Event::RequestLeased {
            request,
            fence,
            worker,
            ttl_ms,
            until,
        } => {
            with_request(state, *request, |live| {
                live.fence = *fence;
                live.status = LiveStatus::Running;
                live.last_worker = Some(*worker);
                live.lease = Some(Lease {
                    worker: *worker,
                    ttl_ms: *ttl_ms,
                    until: *until,
                });
                start_released(live);
            });
            if mutant::is_on(Mutant::MemoryMoves) {
                let task = state.requests.get(request).map(|live| live.task);
                let memory = task.and_then(|task| memory_of(state, task));
                with_request(state, *request, |live| live.memory = memory);
            }
        }
        Event::LeaseLapsed { request } => {
            with_request(state, *request, |live| {
                set_status(live, LiveStatus::Queued);
            });
        }
        Event::FenceRaised { fence, request } => {
            with_request(state, *request, |live| {
                live.fence = *fence;
                live.lease = None;
            });
        }
        Event::LeaseReleased { request } => {
            with_request(state, *request, |live| {
                live.lease = None;
                if live.status == LiveStatus::Running {
                    set_status(live, LiveStatus::Queued);
                }
            });
        }
        Event::RequestStatusChanged { request, status } => {
            with_request(state, *request, |live| set_status(live, *status));
        }
        Event::RequestEnded {
            request, outcome, ..
        } => {
            let Some(ended) = Arc::make_mut(&mut state.requests).remove(request) else {
                return;
            };
            if ended.is_exchange(*outcome) || mutant::is_on(Mutant::RememberFailures) {
                remember(state, &ended, seq);
            }
            if let Some(task) = Arc::make_mut(&mut state.tasks).get_mut(&ended.task) {
                task.live = None;
                task.last_outcome = Some(*outcome);
                task.failed = (*outcome == RequestOutcome::Failed).then_some(*request);
            }
            if let Some(parent) = ended.parent {
                with_request(state, parent, |live| {
                    live.children.remove(request);
                    live.ran |= ended.ran && !mutant::is_on(Mutant::ForgetRunsBelow);
                });
            }
        }
        Event::ItemsAppended { request, items, .. } => {
            state.items_appended = items.last().map_or(state.items_appended, |item| item.seq);
            with_request(state, *request, |live| {
                for item in items {
                    note_call(live, item);
                }
            });
        }
        Event::HoldOpened { .. } => open_hold(state, event, seq),
        Event::VoteRecorded {
            hold,
            key,
            fingerprint,
            right,
        } => {
            let vote = Vote {
                key: *key,
                fingerprint: *fingerprint,
                revision: seq,
                right: *right,
            };
            if let Some(hold) = Arc::make_mut(&mut state.holds).get_mut(hold) {
                hold.votes.insert(principal, vote);
            }
        }
        Event::HoldDecided {
            hold,
            request,
            decision,
            to_worker,
        } => {
            close_hold(state, *hold, *request, decision, *to_worker);
        }
        Event::StatePut {
            key,
            value: BodyRef { bytes, .. },
            ..
        }
        | Event::StateRestored { key, bytes, .. } => {
            let (bytes, revision) = (*bytes, seq);
            let written = KeyVersion { bytes, revision };
            Arc::make_mut(&mut state.keys).insert(key.clone(), written);
        }
        Event::StateDeleted { key, .. } => {
            Arc::make_mut(&mut state.keys).remove(key);
        }
        Event::MemoryRestored { path, memory } => {
            let memories = Arc::make_mut(&mut state.memories);
            match memory {
                Some(memory) => memories.insert(path.clone(), *memory),
                None => memories.remove(path),
            };
        }
        Event::Rewound { .. } => {
            for task in Arc::make_mut(&mut state.tasks).values_mut() {
                task.failed = None;
            }
        }
        // These change stored values; no later decision of this session depends on them.
        Event::SharedStatePut { .. } | Event::TaskStatePut { .. } => {}
    }
}

/// The memory of the path of a task.
fn memory_of(state: &SessionState, task: TaskId) -> Option<Memory> {
    let path = &state.tasks.get(&task)?.path;
    state.memories.get(path).copied()
}

/// Adds an exchange, which record `seq` ended, to the memory of its path.
fn remember(state: &mut SessionState, ended: &LiveRequest, seq: u64) {
    let Some(path) = state.tasks.get(&ended.task).map(|task| task.path.clone()) else {
        return;
    };
    let newest = Memory {
        exchanges: Memory::count(state.memories.get(&path).copied()) + 1,
        record: seq,
        request: ended.id,
    };
    Arc::make_mut(&mut state.memories).insert(path, newest);
}

fn with_request(state: &mut SessionState, id: RequestId, change: impl FnOnce(&mut LiveRequest)) {
    if let Some(live) = Arc::make_mut(&mut state.requests).get_mut(&id) {
        change(live);
    }
}

/// Sets the status. A queued request has no lease; a running one has started its released calls.
fn set_status(live: &mut LiveRequest, status: LiveStatus) {
    live.status = status;
    match status {
        LiveStatus::Queued => live.lease = None,
        LiveStatus::Running => start_released(live),
        LiveStatus::Held | LiveStatus::Waiting => {}
    }
}

fn start_released(live: &mut LiveRequest) {
    for call in live.calls.values_mut() {
        if matches!(call.state, CallState::Released | CallState::Started { .. }) {
            call.state = CallState::Started { fence: live.fence };
        }
    }
}

fn start_request(
    state: &mut SessionState,
    (request, number): (RequestId, u64),
    task: TaskId,
    parent: Option<RequestId>,
    started_by: u64,
    people: impl Iterator<Item = Principal>,
) {
    state.requests_started = number;
    let is_person = |by: &Principal| matches!(by, Principal::Key(_) | Principal::User(_));
    let mut starters: BTreeSet<Principal> = people.filter(is_person).collect();
    let mut depth = 0;
    if let Some(parent) = parent {
        with_request(state, parent, |live| {
            live.children.insert(request);
            depth = live.depth + 1;
            starters.extend(&live.starters);
        });
    }
    let memory = memory_of(state, task);
    let started = LiveRequest {
        id: request,
        number,
        started_by,
        starters,
        task,
        parent,
        depth,
        status: LiveStatus::Queued,
        fence: 0,
        lease: None,
        last_worker: None,
        children: BTreeSet::new(),
        holds: BTreeSet::new(),
        holds_opened: 0,
        calls: BTreeMap::new(),
        ran: false,
        memory,
    };
    Arc::make_mut(&mut state.requests).insert(request, started);
    if let Some(task) = Arc::make_mut(&mut state.tasks).get_mut(&task) {
        task.live = Some(request);
        task.failed = None;
    }
}

fn note_call(live: &mut LiveRequest, item: &Item) {
    match item.call {
        Some(CallMark::Call { idempotent, gated }) => {
            let state = if gated {
                CallState::Proposed
            } else {
                CallState::Started { fence: live.fence }
            };
            live.calls.insert(
                item.id,
                OpenCall {
                    idempotent,
                    gated,
                    state,
                    digest: None,
                    asked: None,
                },
            );
        }
        Some(CallMark::Result { call, outcome, .. }) => {
            live.calls.remove::<ItemId>(&call);
            live.ran |= outcome == CallOutcome::Ran;
        }
        None => {}
    }
}

fn open_hold(state: &mut SessionState, event: &Event, seq: u64) {
    let Event::HoldOpened {
        hold,
        number,
        request,
        kind,
        opened_by,
        body,
        call,
        digest,
        allowed,
        need,
        decide_by,
        deadline,
        on_expiry,
        effect,
        risk,
        policy,
    } = event
    else {
        return;
    };
    let Some((task, starters)) = state
        .requests
        .get(request)
        .map(|live| (live.task, live.starters.clone()))
    else {
        return;
    };
    with_request(state, *request, |live| {
        live.holds.insert(*hold);
        live.holds_opened = *number;
        let Some(call) = call.and_then(|call| live.calls.get_mut(&call)) else {
            return;
        };
        if *kind == HoldKind::Reconcile {
            call.state = CallState::Unknown { hold: *hold };
        } else {
            call.asked = Some(AskedAbout {
                decide_by: decide_by.clone(),
                effect: *effect,
                policy: *policy,
                risk: *risk,
            });
        }
    });
    let opened = Hold {
        id: *hold,
        number: *number,
        request: *request,
        task,
        opened_at: seq,
        kind: *kind,
        body: *body,
        call: *call,
        digest: *digest,
        allowed: allowed.iter().copied().collect(),
        need: *need,
        decide_by: decide_by.clone(),
        opened_by: *opened_by,
        starters,
        effect: *effect,
        risk: *risk,
        policy: *policy,
        deadline: *deadline,
        on_expiry: *on_expiry,
        votes: BTreeMap::new(),
    };
    Arc::make_mut(&mut state.holds).insert(*hold, opened);
}

fn close_hold(
    state: &mut SessionState,
    hold: HoldId,
    request: RequestId,
    decision: &Decision,
    to_worker: bool,
) {
    let Some(decided) = Arc::make_mut(&mut state.holds).remove(&hold) else {
        return;
    };
    with_request(state, request, |live| {
        live.holds.remove(&hold);
        let fence = live.fence;
        let Some(call) = decided.call.and_then(|call| live.calls.get_mut(&call)) else {
            return;
        };
        call.state = match decision.status {
            HoldStatus::Approved | HoldStatus::Edited if to_worker => CallState::Started { fence },
            HoldStatus::Approved | HoldStatus::Edited => CallState::Released,
            HoldStatus::Answered if decided.kind == HoldKind::Reconcile => CallState::Confirmed,
            HoldStatus::Answered => CallState::Answered,
            HoldStatus::Rejected
            | HoldStatus::Expired
            | HoldStatus::Cancelled
            | HoldStatus::Open => CallState::Refused,
        };
        call.digest = decision.released.or(call.digest);
    });
}

fn rename_task(state: &mut SessionState, from: TaskId, to: TaskId) {
    let tasks = Arc::make_mut(&mut state.tasks);
    let Some(mut task) = tasks.remove(&from) else {
        return;
    };
    task.id = to;
    tasks.insert(to, task);
    for task in tasks.values_mut() {
        if let Some(ParentLink { task: parent, .. }) = &mut task.parent
            && *parent == from
        {
            *parent = to;
        }
    }
}
