//! A clock that was ahead for a while and is set back.

use statehold_core::command::Rejection;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::session::{SessionStatus, TimeToLive, TtlMode};
use statehold_engine::EngineError;

use crate::rig::{Rig, request_of};

const HOUR_MS: i64 = 3_600_000;
/// How far the clock was ahead.
const GLITCHES_MS: [i64; 2] = [2 * HOUR_MS, 75 * 366 * 24 * HOUR_MS];

const SLIDING: Option<TimeToLive> = Some(TimeToLive {
    mode: TtlMode::Sliding,
    ms: 60_000,
});

async fn tick(rig: &Rig) {
    let run = rig.engine.run_timers(false).await;
    run.expect("the store answers");
}

async fn is_closed(rig: &Rig, session: SessionId) -> bool {
    let found = rig.engine.session(&rig.caller, session).await;
    found.expect("it is there").status == SessionStatus::Closed
}

/// A session that started a request with a lease of 10 seconds while the clock was ahead.
async fn glitched(glitch_ms: i64, restarts: bool) -> (Rig, RequestId) {
    let mut rig = Rig::new(SLIDING).await;
    tick(&rig).await;
    rig.clock.step_ms(glitch_ms);
    // The life of a session that exists already would be over: give it another.
    rig.session = rig.another(1, "bob", SLIDING).await;
    rig.payloads().await;
    let request = request_of(&rig.start(Some(10_000)).await.expect("started"));
    rig.clock.step_ms(-glitch_ms);
    if restarts {
        rig.restart().await;
    }
    tick(&rig).await;
    (rig, request)
}

#[tokio::test]
async fn leases_and_lives_end_after_their_own_length_when_the_clock_is_set_back() {
    for glitch_ms in GLITCHES_MS {
        for restarts in [false, true] {
            let case = format!("{glitch_ms} ms, restart {restarts}");
            let (rig, request) = glitched(glitch_ms, restarts).await;
            rig.clock.pass_ms(9_000);
            tick(&rig).await;
            let beat = rig.engine.heartbeat(&rig.caller, rig.session, request, 1);
            beat.await.expect("the lease is held");
            rig.clock.pass_ms(11_000);
            tick(&rig).await;
            let late = rig.engine.heartbeat(&rig.caller, rig.session, request, 1);
            assert!(
                matches!(
                    late.await,
                    Err(EngineError::Rejected(Rejection::NotLeased { .. }))
                ),
                "{case}"
            );
            let new = rig.another(2, "bob", SLIDING).await;
            rig.clock.pass_ms(39_000);
            tick(&rig).await;
            assert!(!is_closed(&rig, rig.session).await, "{case}");
            assert!(!is_closed(&rig, new).await, "{case}");
            rig.clock.pass_ms(22_000);
            tick(&rig).await;
            // Its life was renewed when its lease lapsed, 61 seconds ago.
            assert!(is_closed(&rig, rig.session).await, "{case}");
            assert!(is_closed(&rig, new).await, "{case}");
        }
    }
}

#[tokio::test]
async fn times_of_a_session_stay_in_order_when_the_clock_is_set_back() {
    for glitch_ms in GLITCHES_MS {
        let (rig, _) = glitched(glitch_ms, false).await;
        for _ in 0..5 {
            rig.clock.pass_ms(1_000);
            rig.start(None).await.expect("it goes on");
        }
        let records = rig.records_from(1).await;
        let times: Vec<i64> = records.iter().map(|record| record.at.as_micros()).collect();
        assert!(times.is_sorted(), "{times:?}");
        let last = times.last_chunk::<2>().expect("several records");
        assert_eq!(last[1] - last[0], 1_000_000, "time passes in the session");
    }
}
