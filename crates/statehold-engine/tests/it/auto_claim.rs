//! Requests for agents that the process runs itself: claimed when they start.

use std::sync::Arc;
use std::time::Duration;

use statehold_core::command::Rejection;
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::record::CommandName;
use statehold_core::request::LiveStatus;
use statehold_engine::{AutoClaim, Caller, Claim, EngineError, Shares};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use crate::order::settle;
use crate::rig::{Rig, request_of};

fn helper() -> Name {
    "helper".parse().expect("a name")
}

/// Claims requests of the session's agent when they start, with permits for `turns` turns.
fn take(rig: &Rig, turns: usize) -> (UnboundedReceiver<AutoClaim>, Shares) {
    let room = Shares::of_turns(turns);
    let tenant = &rig.caller.tenant;
    let taken = rig
        .engine
        .claim_on_start(tenant, &helper(), room.clone(), (30_000, false));
    rig.store.take_begun();
    (taken, room)
}

/// Whether the commit of a claim has failed.
async fn is_lost(claim: AutoClaim) -> bool {
    let durable = claim.turn.request.durable().await;
    matches!(durable, Err(EngineError::NotFound))
}

/// A worker that waits for work finds a request whose claim was decided with its start, and failed.
#[tokio::test]
async fn a_worker_that_waits_is_woken_by_a_lost_claim() {
    let rig = Arc::new(Rig::new(None).await);
    let (mut taken, _room) = take(&rig, 2);
    let waiting = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move { claimed(&rig, Duration::from_secs(20)).await }
    });
    settle().await;
    rig.store.fail_at(2);
    rig.start(None).await.expect("it starts");
    assert_eq!(waiting.await.expect("no panic"), 1);
    let lost = taken.recv().await.expect("it was decided");
    assert!(is_lost(lost).await);
}

/// Looks for work as a worker does that finds it in line.
async fn claimed_in_line(rig: &Rig) -> usize {
    claimed(rig, Duration::ZERO).await
}

async fn claimed(rig: &Rig, wait: Duration) -> usize {
    let claim = Claim {
        agent: helper(),
        max: 8,
        wait,
        lease_ms: 30_000,
        request: None,
    };
    let worker = Caller::worker_of_server(rig.caller.tenant.clone());
    let claimed = rig.engine.claim(&worker, &claim).await;
    claimed.expect("it may look").len()
}

#[tokio::test]
async fn it_is_claimed_behind_its_start_by_the_server_and_told_when_both_are_decided() {
    let rig = Arc::new(Rig::new(None).await);
    let (mut taken, room) = take(&rig, 1);
    rig.store.set_open(false);
    let started = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move { rig.start(None).await }
    });
    settle().await;
    assert_eq!(rig.store.take_begun(), 2);
    let begun = taken.try_recv().expect("it is told");
    // Its worker waits before it asks anything outside, and the caller waits for its answer.
    let durable = tokio::spawn({
        let request = begun.turn.request.clone();
        async move { request.durable().await }
    });
    settle().await;
    assert!(!durable.is_finished() && !started.is_finished());
    rig.store.set_open(true);
    let started = started.await.expect("no panic").expect("it starts");
    assert_eq!(started.revision, 2);
    durable.await.expect("no panic").expect("it is durable");
    let ids = begun.turn.request.ids;
    assert_eq!((ids.request, ids.fence), (request_of(&started), 1));
    let worker = Caller::worker_of_server(rig.caller.tenant.clone());
    // Under another fence it would be somebody else's turn.
    let other = rig
        .engine
        .leased_request(&worker, ids.session, ids.request, 2)
        .await;
    let stale = Rejection::StaleFence {
        shown: 2,
        current: 1,
    };
    assert!(
        matches!(&other, Err(EngineError::Rejected(why)) if *why == stale),
        "{other:?}"
    );
    let claimed = rig
        .engine
        .leased_request(&worker, ids.session, ids.request, 1)
        .await
        .expect("it is the server's");
    let live = claimed.detail.request.live().expect("it is live").clone();
    assert_eq!((live.fence, live.status), (1, LiveStatus::Running));
    assert_eq!(begun.turn.started, claimed.detail.started);
    let records = rig.records_from(2).await;
    let made: Vec<_> = records
        .iter()
        .map(|record| (record.command, record.principal))
        .collect();
    let right = [
        (CommandName::StartRequest, rig.caller.principal),
        (CommandName::ClaimRequest, Principal::System),
    ];
    assert_eq!(made, right);
    assert_eq!(room.free(), 0);
    drop(begun);
    assert_eq!(room.free(), 1);
    assert_eq!(claimed_in_line(&rig).await, 0);
}

#[tokio::test]
async fn where_there_is_no_room_or_nobody_takes_it_waits_in_line() {
    let rig = Rig::new(None).await;
    let (mut taken, _room) = take(&rig, 0);
    rig.start(None).await.expect("it starts");
    assert_eq!(rig.store.take_begun(), 1);
    assert!(matches!(taken.try_recv(), Err(TryRecvError::Empty)));
    let (taken, room) = take(&rig, 1);
    drop(taken);
    rig.start(None).await.expect("it starts");
    assert_eq!(rig.store.take_begun(), 1);
    assert_eq!(room.free(), 1);
    assert_eq!(claimed_in_line(&rig).await, 2);
}

#[tokio::test]
async fn one_that_is_started_with_a_lease_is_not_taken_from_whoever_has_it() {
    let rig = Rig::new(None).await;
    let (mut taken, room) = take(&rig, 1);
    rig.start(Some(30_000)).await.expect("it starts");
    assert_eq!((rig.store.take_begun(), room.free()), (1, 1));
    assert!(matches!(taken.try_recv(), Err(TryRecvError::Empty)));
}

#[tokio::test]
async fn if_its_claim_is_lost_it_waits_in_line_and_if_its_start_is_there_is_nothing() {
    let rig = Rig::new(None).await;
    let (mut taken, room) = take(&rig, 1);
    rig.store.fail_at(2);
    let started = rig.start(None).await.expect("it starts");
    assert_eq!(started.revision, 2);
    assert!(is_lost(taken.try_recv().expect("it was decided")).await);
    assert_eq!(room.free(), 1);
    assert_eq!(claimed_in_line(&rig).await, 1);
    rig.store.fail_next();
    let lost = rig.start(None).await;
    assert!(matches!(lost, Err(EngineError::Full)), "{lost:?}");
    assert!(is_lost(taken.try_recv().expect("it was decided")).await);
    assert_eq!((rig.revision().await, room.free()), (3, 1));
}

#[tokio::test]
async fn what_is_on_its_way_to_whoever_took_them_arrives_when_somebody_else_takes_them() {
    let rig = Arc::new(Rig::new(None).await);
    let (mut before, _) = take(&rig, 8);
    rig.store.set_open(false);
    let start = || {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move { rig.start(None).await })
    };
    let first = start();
    settle().await;
    let (mut after, _) = take(&rig, 8);
    let second = start();
    settle().await;
    rig.store.set_open(true);
    let [first, second] = [first, second].map(|started| async {
        let done = started.await.expect("no panic").expect("it starts");
        request_of(&done)
    });
    let (first, second) = (first.await, second.await);
    let handed = |one: Option<AutoClaim>| one.map(|one| one.turn.request.ids.request);
    assert_eq!(handed(before.recv().await), Some(first));
    assert!(before.recv().await.is_none(), "nothing more comes there");
    assert_eq!(handed(after.recv().await), Some(second));
    // And when nobody takes them any more, they wait in line.
    rig.engine.stop_claiming(&rig.caller.tenant, &helper());
    assert!(
        after.recv().await.is_none(),
        "nothing more comes here either"
    );
    rig.start(None).await.expect("it starts");
    assert_eq!(claimed_in_line(&rig).await, 1);
}

#[tokio::test]
async fn whoever_stops_looking_for_work_still_gets_what_is_being_claimed_for_them() {
    let rig = Arc::new(Rig::new(None).await);
    let claim = Claim {
        agent: helper(),
        max: 8,
        wait: Duration::from_mins(1),
        lease_ms: 30_000,
        request: None,
    };
    let worker = Caller::worker_of_server(rig.caller.tenant.clone());
    // Without any work, the wait ends.
    let none = rig.engine.claim_until(&worker, &claim, async {}).await;
    assert_eq!(none.expect("it may look").len(), 0);
    rig.start(None).await.expect("it starts");
    rig.store.set_open(false);
    let (enough, stop) = tokio::sync::oneshot::channel::<()>();
    let looking = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move {
            let stop = async move { drop(stop.await) };
            rig.engine.claim_until(&worker, &claim, stop).await
        }
    });
    settle().await;
    drop(enough);
    settle().await;
    assert!(!looking.is_finished());
    rig.store.set_open(true);
    let claimed = looking.await.expect("no panic").expect("it may look");
    assert_eq!(claimed.len(), 1);
}
