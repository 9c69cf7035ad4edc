//! What happens by itself, on a clock that goes on when it is told to.

use statehold_core::command::{Command, Output, Rejection, StatePatch};
use statehold_core::session::{SessionStatus, TimeToLive, TtlMode};
use statehold_engine::api::{feed, session};
use statehold_engine::{Call, EngineError};

use crate::rig::{Rig, fenced, request_of};

async fn status(rig: &Rig) -> SessionStatus {
    let found = rig.engine.session(&rig.caller, rig.session).await;
    found.expect("it is there").status
}

async fn tick(rig: &Rig) {
    rig.engine
        .run_timers(true)
        .await
        .expect("the store answers");
}

#[tokio::test]
async fn timers_go_on_while_payloads_are_erased() {
    let rig = Rig::new(None).await;
    rig.store.set_erases_open(false);
    let delete = rig.another(1, "mallory", None).await;
    let call = Call::by(rig.caller.clone());
    let deleted = session::delete(&rig.engine, &call, delete).await;
    deleted.expect("it is deleted");
    let engine = rig.engine.clone();
    let erasing = tokio::spawn(async move { engine.erase_payloads().await });
    rig.store.erased(1).await;
    let life = TimeToLive {
        mode: TtlMode::Fixed,
        ms: 1_000,
    };
    let brief = rig.another(2, "bob", Some(life)).await;
    rig.clock.pass_ms(2_000);
    tick(&rig).await;
    let found = rig.engine.session(&rig.caller, brief).await;
    assert_eq!(
        found.expect("it is there").status,
        SessionStatus::Closed,
        "its time ended while another session was erased"
    );
    rig.store.set_erases_open(true);
    let erased = erasing.await.expect("it ends");
    erased.expect("the store answers");
}

#[tokio::test]
async fn a_lease_lapses_unless_heartbeats_extend_it() {
    let rig = Rig::new(None).await;
    let request = request_of(&rig.start(Some(10_000)).await.expect("started"));
    for _ in 0..5 {
        rig.clock.pass_ms(8_000);
        let beat = rig.engine.heartbeat(&rig.caller, rig.session, request, 1);
        beat.await.expect("the lease is held");
        tick(&rig).await;
    }
    assert_eq!(rig.revision().await, 2, "heartbeats are not commits");
    rig.clock.pass_ms(10_000);
    tick(&rig).await;
    let late = rig.engine.heartbeat(&rig.caller, rig.session, request, 1);
    assert!(matches!(
        late.await,
        Err(EngineError::Rejected(Rejection::NotLeased { .. }))
    ));
}

#[tokio::test]
async fn a_lease_gets_one_full_ttl_after_a_restart() {
    let mut rig = Rig::new(None).await;
    let request = request_of(&rig.start(Some(10_000)).await.expect("started"));
    rig.clock.pass_ms(60_000);
    rig.restart().await;
    rig.clock.pass_ms(9_000);
    tick(&rig).await;
    let answer = |payload| Command::CompleteRequest {
        by: fenced(request, 1),
        output: Output {
            body: payload,
            attachments: Vec::new(),
        },
        items: Vec::new(),
        state: StatePatch::default(),
        task_state: None,
        close_task: false,
        cancel_children: false,
    };
    let beat = rig.engine.heartbeat(&rig.caller, rig.session, request, 1);
    beat.await.expect("nobody could beat while it was down");
    rig.clock.pass_ms(10_000);
    tick(&rig).await;
    let nothing = statehold_core::digest::BodyRef {
        bytes: 0,
        digest: statehold_core::digest::Digest::ZERO,
    };
    let refused = rig.send(&answer(nothing)).await;
    assert!(matches!(
        refused,
        Err(EngineError::Rejected(Rejection::NotLeased { .. }))
    ));
}

#[tokio::test]
async fn a_sliding_life_goes_on_with_use_and_a_fixed_one_does_not() {
    for (mode, lives) in [(TtlMode::Sliding, true), (TtlMode::Fixed, false)] {
        let rig = Rig::new(Some(TimeToLive { mode, ms: 60_000 })).await;
        rig.clock.pass_ms(40_000);
        rig.start(None).await.expect("it lives");
        rig.clock.pass_ms(40_000);
        tick(&rig).await;
        assert_eq!(
            status(&rig).await != SessionStatus::Closed,
            lives,
            "{mode:?}"
        );
        rig.clock.pass_ms(60_000);
        tick(&rig).await;
        assert_eq!(status(&rig).await, SessionStatus::Closed, "{mode:?}");
    }
}

#[tokio::test]
async fn a_session_that_nobody_uses_leaves_memory_and_comes_back_as_it_was() {
    let rig = Rig::new(None).await;
    let request = request_of(&rig.start(Some(10_000)).await.expect("started"));
    let hot = rig.engine.hot_sessions();
    rig.engine.forget_idle_sessions();
    assert_eq!(rig.engine.hot_sessions(), hot, "it was used a moment ago");
    // Somebody waits for what is new in it: it stays however long nothing happens.
    let feed = feed::session(&rig.engine, &rig.caller, rig.session, Some(2));
    let mut feed = feed.await.expect("it may be read");
    {
        let mut waits = std::pin::pin!(feed.changed());
        assert!(futures_util::poll!(&mut waits).is_pending());
        rig.engine.forget_idle_sessions();
        rig.engine.forget_idle_sessions();
        assert_eq!(rig.engine.hot_sessions(), 1);
    }
    rig.engine.forget_idle_sessions();
    assert_eq!(rig.engine.hot_sessions(), 0);
    let beat = rig.engine.heartbeat(&rig.caller, rig.session, request, 1);
    beat.await.expect("its lease is still held");
    assert_eq!(rig.revision().await, 2);
}
