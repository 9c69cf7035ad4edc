//! What a run must have seen so that its agreement means something.

use std::collections::BTreeMap;

use statehold_core::hold::HoldKind;
use statehold_core::invariant::{Findings, Invariant};
use statehold_core::record::{ErasedPayloads, Event, Record};
use statehold_core::request::{CallState, LiveStatus};
use statehold_core::session::SessionState;
use statehold_core::task::TaskStatus;
use statehold_model::reference::World;

/// How often things were seen, by name.
pub(super) type Counts = BTreeMap<String, u64>;

/// Refuses a run that saw too little.
pub(super) fn require_seen(counts: &Counts, findings: Findings) {
    let seen = |name: &str| counts.get(name).copied().unwrap_or(0);
    let missing: Vec<&str> = REQUIRED
        .iter()
        .filter(|(name, least)| seen(name) < *least)
        .map(|(name, _)| *name)
        .collect();
    assert!(missing.is_empty(), "seen too rarely: {missing:?}");
    // The two that are about crashes need a store.
    let unseen: Vec<&str> = Invariant::ALL
        .into_iter()
        .filter(|one| {
            !matches!(
                one,
                Invariant::AcknowledgedMeansDurable | Invariant::PrefixRecovery
            )
        })
        .filter(|one| findings.exercised & one.bit() == 0)
        .map(Invariant::name)
        .collect();
    assert!(
        unseen.is_empty(),
        "promises that had nothing to say: {unseen:?}"
    );
}

/// Situations that no name of an event tells.
pub(super) fn seen(
    was: &World,
    now: &World,
    before: &SessionState,
    after: &SessionState,
    record: &Record,
) -> Vec<&'static str> {
    let mut cases = Vec::new();
    for event in &record.content.events {
        match event {
            Event::RequestStarted {
                task,
                request,
                parent: Some(parent),
                ..
            } => {
                let task = now.task_named(*task).expect("a known task");
                let spawner = now.tasks[task].spawned_by.map(|at| now.request_id(at));
                if spawner != Some(*parent) {
                    cases.push("child task reused by another request");
                } else if was.task_named(now.task_id(task)).is_some() {
                    cases.push("child task reused by the request that opened it");
                }
                if now.request_named(*request).map(|at| now.depth(at)) >= Some(4) {
                    cases.push("request at depth 4 or more");
                }
            }
            Event::RequestLeased { request, fence, .. } if *fence > 1 => {
                let status = before.requests.get(request).map(|live| live.status);
                cases.push(match status {
                    Some(LiveStatus::Running) => "lost worker replaced at once",
                    _ => "claimed again",
                });
            }
            Event::HoldOpened { request, kind, .. } => {
                let at = now.request_named(*request).expect("a known request");
                if now.open_holds(at).len() > 1 {
                    cases.push("several open holds of one request");
                }
                if *kind == HoldKind::Reconcile {
                    cases.push("reconcile hold");
                }
            }
            Event::HoldDecided {
                hold,
                decision,
                to_worker,
                ..
            } => {
                let known = &now.holds[now.hold_named(*hold).expect("a known hold")];
                if known.need > 1 && decision.released.is_some() {
                    cases.push("quorum met");
                }
                if known.kind == HoldKind::Reconcile && decision.key.is_some() {
                    cases.push("reconcile hold decided");
                }
                if decision.released.is_some() {
                    cases.push(if *to_worker {
                        "released to a worker"
                    } else {
                        "released to nobody"
                    });
                }
            }
            Event::RequestStatusChanged { request, status } => {
                let from = before.requests.get(request).map(|live| live.status);
                cases.extend(from.and_then(|from| wake(from, *status)));
            }
            Event::PayloadsErased { payloads } => {
                let is_live = !before.requests.is_empty();
                cases.push(match (payloads, before.closed) {
                    (ErasedPayloads::Hidden, true) => "closed session expired",
                    (ErasedPayloads::Hidden, false) if is_live => "busy session expired",
                    (ErasedPayloads::Hidden, false) => "idle session expired",
                    (ErasedPayloads::All, true) => "closed session deleted",
                    (ErasedPayloads::All, false) => "open session deleted",
                });
            }
            Event::TaskClosed {
                status: TaskStatus::Failed,
                ..
            } => {
                cases.push("task closed by failure");
            }
            _ => {}
        }
    }
    match (before.expires_at, after.expires_at) {
        (Some(earlier), Some(later)) if later > earlier => cases.push("life slid on"),
        (Some(earlier), Some(later)) if later == earlier => cases.push("life stayed fixed"),
        _ => {}
    }
    let ends = |event: &&Event| matches!(event, Event::RequestEnded { .. });
    if record.content.events.iter().filter(ends).count() > 2 {
        cases.push("more than two requests ended by one command");
    }
    let mut calls = after.requests.values().flat_map(|live| live.calls.values());
    if calls.any(|call| matches!(call.state, CallState::Started { fence } if fence > 1)) {
        cases.push("call started under a later fence");
    }
    cases
}

fn wake(from: LiveStatus, to: LiveStatus) -> Option<&'static str> {
    match (from, to) {
        (LiveStatus::Held, LiveStatus::Queued) => Some("held, then queued"),
        (LiveStatus::Held, LiveStatus::Running) => Some("held, then running"),
        (LiveStatus::Held, LiveStatus::Waiting) => Some("held, then waiting"),
        (LiveStatus::Waiting, LiveStatus::Queued) => Some("waiting, then queued"),
        (LiveStatus::Waiting, LiveStatus::Running) => Some("waiting, then running"),
        (LiveStatus::Waiting, LiveStatus::Held) => Some("waiting, then held"),
        _ => None,
    }
}

/// What a full run must have seen, and how often at least.
const REQUIRED: &[(&str, u64)] = &[
    ("already done", 50),
    ("busy session expired", 5),
    ("call started under a later fence", 100),
    ("child task reused by another request", 10),
    ("child task reused by the request that opened it", 10),
    ("claimed again", 50),
    ("command AppendItems", 500),
    ("command CancelRequest", 50),
    ("command CancelTask", 50),
    ("command ClaimRequest", 500),
    ("command CloseSession", 25),
    ("command CloseTask", 100),
    ("command CompleteRequest", 500),
    ("command CreateSession", 100),
    ("command DecideHold", 500),
    ("command DeleteSession", 10),
    ("command EraseHidden", 20),
    ("command ExpireHold", 100),
    ("command ExpireSession", 100),
    ("command FailRequest", 100),
    ("command LapseLease", 100),
    ("command OpenHold", 500),
    ("command PatchSession", 100),
    ("command PutState", 250),
    ("command RaiseFence", 50),
    ("command RecordTurn", 100),
    ("command ReleaseLease", 100),
    ("command Rewind", 25),
    ("command StartRequest", 1_000),
    ("committed while the clock was behind", 1_000),
    ("committed, then refused", 100),
    ("event FenceRaised", 50),
    ("event HoldDecided", 250),
    ("event HoldOpened", 500),
    ("event ItemsAppended", 1_000),
    ("event LeaseLapsed", 50),
    ("event LeaseReleased", 50),
    ("event MemoryRestored", 25),
    ("event PayloadsErased", 20),
    ("event RequestEnded", 1_000),
    ("event RequestLeased", 1_000),
    ("event RequestStarted", 1_000),
    ("event RequestStatusChanged", 1_000),
    ("event Rewound", 25),
    ("event SessionClosed", 5),
    ("event SessionCreated", 100),
    ("event SessionForked", 25),
    ("event SessionPatched", 100),
    ("event SharedStatePut", 100),
    ("event StateDeleted", 25),
    ("event StatePut", 250),
    ("event StateRestored", 5),
    ("event TaskClosed", 250),
    ("event TaskOpened", 1_000),
    ("event TaskStatePut", 25),
    ("event TaskStatusChanged", 1_000),
    ("event VoteRecorded", 25),
    ("held, then queued", 50),
    ("held, then running", 25),
    ("held, then waiting", 50),
    ("life slid on", 100),
    ("life stayed fixed", 100),
    ("lost worker replaced at once", 50),
    ("more than two requests ended by one command", 50),
    ("open session deleted", 10),
    ("quorum met", 5),
    ("reconcile hold", 10),
    ("reconcile hold decided", 10),
    ("refused AlreadyVoted", 2),
    ("refused AnswerMissing", 2),
    ("refused CallNotReleased", 100),
    ("refused CallUnknown", 100),
    ("refused ChildrenLive", 100),
    ("refused DecisionNotOffered", 5),
    ("refused DigestMismatch", 5),
    ("refused DigestMissing", 5),
    ("refused DuplicateKey", 25),
    ("refused EditImpossible", 5),
    ("refused EmptyPatch", 10),
    ("refused HoldDecided", 100),
    ("refused HoldExists", 10),
    ("refused HoldExpired", 50),
    ("refused HoldMalformed", 100),
    ("refused HoldsOpen", 10),
    ("refused ItemMalformed", 25),
    ("refused LeaseLive", 100),
    ("refused LeaseNeeded", 10),
    ("refused Limit bytes of one payload", 10),
    ("refused Limit depth of calls", 10),
    ("refused Limit lease milliseconds", 25),
    ("refused Limit milliseconds a session lives", 3),
    ("refused Limit quorum", 25),
    ("refused MayNotDecide", 50),
    ("refused MergeOfSessionKey", 5),
    ("refused NotClaimable", 100),
    ("refused NotExpired", 25),
    ("refused NotFound", 100),
    ("refused NotInThePast", 5),
    ("refused NotLeaseHolder", 50),
    ("refused NotLeased", 50),
    ("refused RequestEnded", 250),
    ("refused RequestsLive", 10),
    ("refused SessionClosed", 250),
    ("refused SessionExists", 25),
    ("refused SessionExpired", 100),
    ("refused SessionNotExpired", 50),
    ("refused StaleFence", 100),
    ("refused TaskBusy", 50),
    ("refused TaskElsewhere", 50),
    ("refused TaskFinal", 50),
    ("refused TempKey", 10),
    ("refused VersionConflict", 10),
    ("refused VersionWithoutWrite", 25),
    ("released to a worker", 10),
    ("released to nobody", 10),
    ("request at depth 4 or more", 100),
    ("restart", 50),
    ("several open holds of one request", 100),
    ("task closed by failure", 25),
    ("waiting, then held", 100),
    ("waiting, then queued", 25),
    ("waiting, then running", 25),
];
