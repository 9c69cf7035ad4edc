//! What a repeated decision costs, counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_engine::{Call, Caller, Engine, EngineOptions, MemoryKeys, UnmeteredMemory, api};
use statehold_store::sqlite::{Meter, SqliteOptions, SqliteStore};

use crate::rig::StillClock;

/// The records between two waypoints, so that both decisions are as far from one.
const BETWEEN_WAYPOINTS: usize = 64;

fn input<T: DeserializeOwned>(json: &Value) -> T {
    serde_json::from_str(&json.to_string()).expect("an input of the API")
}

/// Opens a hold and answers it.
async fn decide_one(engine: &Engine, call: &Call, request: RequestId, fence: u64) -> HoldId {
    let ask = json!({"fence": fence, "kind": "question", "title": "Which one?"});
    let hold = api::hold::open(engine, call, request, input(&ask)).await;
    let hold = hold.expect("it is opened").view.id;
    answer(engine, call, hold).await;
    hold
}

/// The bytes of the answer, and whether it is one of before.
async fn answer(engine: &Engine, call: &Call, hold: HoldId) -> (Vec<u8>, bool) {
    let answer = json!({"decision": "respond", "content": "this one"});
    let decided =
        api::hold::decide(engine, call, None, hold, input(&answer), &UnmeteredMemory).await;
    let decided = decided.expect("the same decision again is no conflict");
    (decided.body, decided.replayed)
}

async fn fill(engine: &Engine, call: &Call, session: SessionId, records: usize) {
    for n in 0..records {
        let patch = json!({"set": {"n": n}});
        let patched = api::state::patch(engine, call, session, input(&patch)).await;
        patched.expect("it is written");
    }
}

#[tokio::test]
async fn a_repeated_decision_costs_as_much_in_a_long_session_as_in_a_short_one() {
    let data = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        sync: false,
        tail_bytes_max: 0,
        meter: Some(Arc::clone(&meter)),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(data.path(), options).expect("it opens");
    let options = EngineOptions {
        tick: std::time::Duration::from_hours(1),
        ..EngineOptions::default()
    };
    let (keys, clock) = (Arc::new(MemoryKeys::default()), Arc::new(StillClock::new()));
    let engine = Engine::start(Arc::new(store), keys, clock, options).await;
    let engine = engine.expect("it starts");
    let call = Call::by(Caller::local("default".parse().expect("a name")));
    let create = json!({"app": "app", "user": "bob", "agent": "helper"});
    let session = api::session::create(&engine, &call, input(&create)).await;
    let session = session.expect("it begins").view.id;
    let start = json!({"input": "x", "lease": {"ttl_seconds": 3_600}});
    let request = api::request::start(&engine, &call, session, input(&start), None).await;
    let request = request.expect("it starts").view;
    let fence = request.fence.expect("it is leased");
    fill(&engine, &call, session, BETWEEN_WAYPOINTS).await;
    let early = decide_one(&engine, &call, request.id, fence).await;
    fill(&engine, &call, session, 8 * BETWEEN_WAYPOINTS - 2).await;
    let late = decide_one(&engine, &call, request.id, fence).await;
    let mut costs = Vec::new();
    for hold in [early, late] {
        let first = answer(&engine, &call, hold).await;
        let before = meter.read_steps.load(Ordering::Relaxed);
        assert_eq!(answer(&engine, &call, hold).await, first);
        assert!(first.1, "it is the answer of before");
        costs.push(meter.read_steps.load(Ordering::Relaxed) - before);
    }
    println!("instructions: {costs:?}");
    assert!(costs[1] <= costs[0] + costs[0] / 2, "{costs:?}");
}
