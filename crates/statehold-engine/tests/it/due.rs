//! Many deadlines at once.

use statehold_core::session::{SessionStatus, TimeToLive, TtlMode};

use crate::rig::Rig;

const BRIEF: Option<TimeToLive> = Some(TimeToLive {
    mode: TtlMode::Fixed,
    ms: 1_000,
});

#[tokio::test]
async fn deadlines_of_many_sessions_are_settled_in_few_commits() {
    let rig = Rig::new(None).await;
    for n in 0..1_000 {
        rig.another(n, "mallory", BRIEF).await;
    }
    rig.clock.pass_ms(2_000);
    rig.store.set_open(false);
    let engine = rig.engine.clone();
    let timers = tokio::spawn(async move { engine.run_timers(false).await });
    // All these wait for the same write to the disk.
    rig.store.in_line(256).await;
    rig.store.set_open(true);
    let settled = timers.await.expect("it ends");
    settled.expect("the store answers");
    rig.store.take_begun();
    let again = rig.engine.run_timers(false).await;
    again.expect("the store answers");
    assert_eq!(rig.store.take_begun(), 0, "one run has settled them all");
}

#[tokio::test]
async fn a_user_with_many_deadlines_does_not_delay_those_of_others() {
    let rig = Rig::new(None).await;
    for n in 0..3_000 {
        rig.another(n, "mallory", BRIEF).await;
    }
    rig.clock.pass_ms(2_000);
    let brief = rig.another(3_000, "alice", BRIEF).await;
    rig.clock.pass_ms(2_000);
    let run = rig.engine.run_timers(false).await;
    run.expect("the store answers");
    let found = rig.engine.session(&rig.caller, brief).await;
    let status = found.expect("it is there").status;
    assert_eq!(status, SessionStatus::Closed, "the first run settles it");
}
