//! A session that the store cannot read.

use std::time::Duration;

use statehold_core::command::Command;
use statehold_core::session::{SessionStatus, TimeToLive, TtlMode};
use statehold_engine::api::operations;
use statehold_engine::{Call, Caller, Claim, EngineError, Payloads};

use crate::rig::{Rig, request_of, start_helper};

const BRIEF: Option<TimeToLive> = Some(TimeToLive {
    mode: TtlMode::Fixed,
    ms: 1_000,
});

#[tokio::test]
async fn a_damaged_session_is_refused_and_stops_no_timer() {
    let mut rig = Rig::new(None).await;
    let mut sessions = Vec::new();
    for n in 0..3 {
        sessions.push(rig.another(n, "alice", BRIEF).await);
    }
    rig.engine.forget_idle_sessions();
    rig.engine.forget_idle_sessions();
    rig.store.set_damaged(sessions[0], true);
    rig.clock.pass_ms(2_000);
    for _ in 0..2 {
        let run = rig.engine.run_timers(false).await;
        run.expect("one damaged session stops nothing");
    }
    for healthy in &sessions[1..] {
        let found = rig.engine.session(&rig.caller, *healthy).await;
        assert_eq!(found.expect("it is there").status, SessionStatus::Closed);
    }
    rig.session = sessions[0];
    let refused = rig.send(&Command::CloseSession { cancel_live: true }).await;
    assert!(matches!(refused, Err(EngineError::Damaged(_))));
    let ready = operations::ready(&rig.engine).await;
    assert_eq!(ready.require().expect("the others go on").sessions, 1);
    // Once it is repaired, it is back.
    rig.store.set_damaged(sessions[0], false);
    let run = rig.engine.run_timers(true).await;
    run.expect("the store answers");
    let ready = operations::ready(&rig.engine).await;
    assert_eq!(ready.require().expect("all go on").sessions, 0);
    let found = rig.engine.session(&rig.caller, sessions[0]).await;
    assert_eq!(found.expect("it is there").status, SessionStatus::Closed);
}

#[tokio::test]
async fn a_damaged_request_stops_no_other_claim() {
    let mut rig = Rig::new(None).await;
    let damaged = rig.session;
    rig.start(None).await.expect("started");
    rig.session = rig.another(1, "alice", None).await;
    rig.payloads().await;
    let sound = request_of(&rig.start(None).await.expect("started"));
    rig.engine.forget_idle_sessions();
    rig.engine.forget_idle_sessions();
    rig.store.set_damaged(damaged, true);
    let claim = Claim {
        agent: "helper".parse().expect("a name"),
        request: None,
        max: 1,
        lease_ms: 10_000,
        wait: Duration::ZERO,
    };
    let claimed = rig.engine.claim(&rig.caller, &claim).await;
    let claimed = claimed.expect("the damaged one is left out");
    let claimed: Vec<_> = claimed.iter().map(|one| one.detail.request.id()).collect();
    assert_eq!(claimed, [sound]);
    let claimed = rig.engine.claim(&rig.caller, &claim).await;
    assert!(claimed.expect("nothing is left").is_empty());
}

#[tokio::test]
async fn a_damaged_session_does_not_stop_the_start() {
    let rig = Rig::new(None).await;
    let tenant = rig.caller.tenant.clone();
    let agent = "helper".parse().expect("a name");
    let server = Call::by(Caller::worker_of_server(tenant.clone()));
    let start = |payloads: &mut Payloads| start_helper(payloads, Some(10_000));
    let started = rig.submit_as(&server, None, start).await;
    started.expect("started");
    rig.engine.forget_idle_sessions();
    rig.engine.forget_idle_sessions();
    rig.store.set_damaged(rig.session, true);
    let given_back = rig.engine.give_back_lost_work(&tenant, &agent).await;
    assert_eq!(given_back.expect("the others go on"), 0);
    let ready = operations::ready(&rig.engine).await;
    assert_eq!(ready.require().expect("the others go on").sessions, 1);
}

#[tokio::test]
async fn a_session_that_cannot_be_written_is_reported_and_its_timers_stand_still() {
    let rig = Rig::new(None).await;
    let session = rig.another(1, "alice", BRIEF).await;
    rig.store.set_unwritable(session, true);
    rig.clock.pass_ms(2_000);
    let mut tried = Vec::new();
    for _ in 0..5 {
        rig.store.take_begun();
        let run = rig.engine.run_timers(false).await;
        run.expect("one damaged session stops nothing");
        tried.push(rig.store.take_begun());
    }
    assert_eq!(tried, [1, 0, 0, 0, 0]);
    let ready = operations::ready(&rig.engine).await;
    assert_eq!(ready.require().expect("the others go on").sessions, 1);
    // Once a minute it is tried again.
    rig.store.set_unwritable(session, false);
    rig.engine.run_timers(true).await.expect("all go on");
    let ready = operations::ready(&rig.engine).await;
    assert_eq!(ready.require().expect("all go on").sessions, 0);
    let found = rig.engine.session(&rig.caller, session).await;
    assert_eq!(found.expect("it is there").status, SessionStatus::Closed);
}

#[tokio::test]
async fn many_requests_of_a_damaged_session_hide_no_younger_one() {
    let mut rig = Rig::new(None).await;
    let mut damaged = Vec::new();
    for n in 1..=2 {
        rig.session = rig.another(n, "alice", None).await;
        rig.payloads().await;
        for _ in 0..30 {
            rig.start(None).await.expect("started");
        }
        damaged.push(rig.session);
    }
    rig.session = rig.another(3, "alice", None).await;
    rig.payloads().await;
    let sound = request_of(&rig.start(None).await.expect("started"));
    rig.engine.forget_idle_sessions();
    rig.engine.forget_idle_sessions();
    // One cannot be read, the other not be written.
    rig.store.set_damaged(damaged[0], true);
    rig.store.set_unwritable(damaged[1], true);
    let claim = Claim {
        agent: "helper".parse().expect("a name"),
        request: None,
        max: 1,
        lease_ms: 10_000,
        wait: Duration::ZERO,
    };
    let claimed = rig.engine.claim(&rig.caller, &claim).await;
    let claimed = claimed.expect("the damaged ones are left out");
    let claimed: Vec<_> = claimed.iter().map(|one| one.detail.request.id()).collect();
    assert_eq!(claimed, [sound]);
    // Requests of one moment have no order, so the first claim may not have met both.
    let claimed = rig.engine.claim(&rig.caller, &claim).await;
    assert!(claimed.expect("nothing is left").is_empty());
    let ready = operations::ready(&rig.engine).await;
    assert_eq!(ready.require().expect("the others go on").sessions, 2);
}
