//! A session that the store cannot read.

use statehold_core::command::Command;
use statehold_core::session::{SessionStatus, TimeToLive, TtlMode};
use statehold_engine::EngineError;
use statehold_engine::api::operations;

use crate::rig::Rig;

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
    assert_eq!(ready.expect("the others go on"), 1);
    // Once it is repaired, it is back.
    rig.store.set_damaged(sessions[0], false);
    let run = rig.engine.run_timers(true).await;
    run.expect("the store answers");
    let ready = operations::ready(&rig.engine).await;
    assert_eq!(ready.expect("all go on"), 0);
    let found = rig.engine.session(&rig.caller, sessions[0]).await;
    assert_eq!(found.expect("it is there").status, SessionStatus::Closed);
}
