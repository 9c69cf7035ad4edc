//! Answers leave only when what they were decided on is durable; what was decided on nothing is
//! decided again.

use std::time::Duration;

use statehold_core::command::{Command, Rejection};
use statehold_core::ids::{IdMint, RequestId, SessionId, Shard};
use statehold_engine::api::operations;
use statehold_engine::{Call, Clock, EngineError, Payloads, testing};

use crate::rig::{Rig, request_of};

/// Lets everything that can go on go on.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_acceptance_waits_until_it_is_durable() {
    let rig = std::sync::Arc::new(Rig::new(None).await);
    rig.store.set_open(false);
    let started = tokio::spawn({
        let rig = rig.clone();
        async move { rig.start(None).await }
    });
    settle().await;
    assert!(!started.is_finished(), "nothing is durable yet");
    assert_eq!(rig.revision().await, 1, "reads see what is durable");
    rig.store.set_open(true);
    let done = started.await.expect("no panic").expect("it is done");
    assert_eq!((done.revision, rig.revision().await), (2, 2));
}

#[tokio::test]
async fn a_refusal_waits_for_the_revision_it_was_decided_on() {
    let rig = std::sync::Arc::new(Rig::new(None).await);
    rig.store.set_open(false);
    let close = Command::CloseSession { cancel_live: true };
    let closing = tokio::spawn({
        let (rig, close) = (rig.clone(), close.clone());
        async move { rig.send(&close).await }
    });
    settle().await;
    // It is decided on the closed session, which is not durable yet.
    let refused = tokio::spawn({
        let rig = rig.clone();
        async move { rig.start(None).await }
    });
    settle().await;
    assert!(!refused.is_finished(), "nobody may know of the close yet");
    rig.store.set_open(true);
    closing.await.expect("no panic").expect("it is closed");
    let refused = refused.await.expect("no panic");
    assert!(matches!(
        refused,
        Err(EngineError::Rejected(Rejection::SessionClosed))
    ));
}

#[tokio::test]
async fn what_was_decided_on_a_commit_that_failed_is_decided_again() {
    let rig = std::sync::Arc::new(Rig::new(None).await);
    rig.store.set_open(false);
    rig.store.fail_next();
    let close = Command::CloseSession { cancel_live: true };
    let closing = tokio::spawn({
        let (rig, close) = (rig.clone(), close.clone());
        async move { rig.send(&close).await }
    });
    settle().await;
    let started = tokio::spawn({
        let rig = rig.clone();
        async move { rig.start(None).await }
    });
    settle().await;
    rig.store.set_open(true);
    let closed = closing.await.expect("no panic");
    assert!(matches!(closed, Err(EngineError::Full)), "{closed:?}");
    // It would have been refused on the closed session, which never was.
    let done = started.await.expect("no panic").expect("it is open");
    assert_eq!(done.revision, 2);
}

#[tokio::test]
async fn a_full_disk_with_room_again_is_ready_before_anybody_writes() {
    let rig = Rig::new(None).await;
    rig.store.set_room(false);
    rig.store.fail_next();
    let refused = rig.start(None).await;
    assert!(matches!(refused, Err(EngineError::Full)), "{refused:?}");
    let is_full = async || operations::ready(&rig.engine).await.is_full;
    assert!(is_full().await);
    rig.store.set_room(true);
    assert!(is_full().await, "the store is asked once a second");
    rig.clock.step_ms(1_000);
    assert!(!is_full().await);
    assert!(operations::ready(&rig.engine).await.require().is_ok());
}

#[tokio::test]
async fn commits_behind_one_that_failed_are_made_again_in_order() {
    let rig = std::sync::Arc::new(Rig::new(None).await);
    rig.store.set_open(false);
    rig.store.fail_next();
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let rig = rig.clone();
        waiting.push(tokio::spawn(async move { rig.start(None).await }));
        settle().await;
    }
    rig.store.set_open(true);
    let mut revisions = Vec::new();
    let mut failed = 0;
    for one in waiting {
        match one.await.expect("no panic") {
            Ok(done) => revisions.push(done.revision),
            Err(EngineError::Full) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    revisions.sort_unstable();
    assert_eq!((failed, revisions), (1, (2..=8).collect()));
    assert!(
        operations::ready(&rig.engine).await.require().is_ok(),
        "there is room again"
    );
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_hold_up_the_session() {
    let rig = std::sync::Arc::new(Rig::new(None).await);
    rig.store.set_open(false);
    let gone = tokio::spawn({
        let rig = rig.clone();
        async move { rig.start(None).await }
    });
    settle().await;
    gone.abort();
    rig.store.set_open(true);
    let next = rig.start(None).await.expect("the session goes on");
    assert_eq!(next.revision, 3, "what it asked for was done all the same");
    assert_ne!(request_of(&next).to_string(), "");
}

#[tokio::test]
async fn ids_that_do_not_exist_get_no_mailbox_and_evict_nothing() {
    let rig = Rig::with_hot_sessions(4).await;
    rig.revision().await;
    assert_eq!(rig.engine.hot_sessions(), 1);
    let shard = Shard::of_owner("default", "app", "eve");
    let mut mint = IdMint::new(rig.engine.now(), shard, 1);
    let close = Command::CloseSession { cancel_live: true };
    let (call, payloads) = (Call::by(rig.caller.clone()), Payloads::none());
    for _ in 0..100 {
        let missing = SessionId::from_uuid(mint.next_uuid());
        let engine = &rig.engine;
        let read = engine.session(&rig.caller, missing).await;
        assert!(matches!(read, Err(EngineError::NotFound)), "{read:?}");
        let payload_keys = testing::payloads(engine, missing).await;
        assert!(matches!(payload_keys, Err(EngineError::NotFound)));
        let changed = engine.changed_after(missing, 0).await;
        assert!(matches!(changed, Err(EngineError::NotFound)), "{changed:?}");
        let sent = testing::commit(engine, missing, &call, (&close, &payloads), None).await;
        assert!(matches!(sent, Err(EngineError::NotFound)), "{sent:?}");
        assert_eq!(engine.hot_sessions(), 1);
    }
}

#[tokio::test]
async fn a_call_about_a_missing_request_does_not_hold_up_the_session() {
    let rig = Rig::new(None).await;
    let missing = IdMint::new(rig.clock.now(), rig.session.shard(), 9).next_uuid();
    let missing = RequestId::from_uuid(missing);
    rig.store.set_open(false);
    let beat = rig.engine.heartbeat(&rig.caller, rig.session, missing, 1);
    let calls = async { tokio::join!(rig.start(None), beat, rig.start(None)) };
    let opened = async {
        // The second start is decided while the call between them waits for the first to be durable.
        rig.store.in_line(2).await;
        rig.store.set_open(true);
    };
    let both = Box::pin(async { tokio::join!(calls, opened) });
    let ended = tokio::time::timeout(Duration::from_secs(10), both).await;
    let ((first, beat, second), ()) = ended.expect("the session goes on");
    first.expect("started");
    second.expect("started");
    assert!(matches!(beat, Err(EngineError::NotFound)), "{beat:?}");
}
