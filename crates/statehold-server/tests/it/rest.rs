//! Each route: what it does, and what it refuses.

mod agents;
mod audit;
mod bytes;
mod declared;
mod deltas;
mod dev;
mod diff;
mod excerpt;
mod feeds;
mod history;
mod hold_feed;
mod idempotency;
mod inbox;
mod keys;
mod memory;
mod past;
mod pending;
mod people;
pub(crate) mod records;
mod sessions;
mod state;
mod state_parts;
mod state_rules;
mod trace;
mod waking;
mod work;

use serde_json::{Value, json};

use crate::rig::{Answer, Who, text};

/// A session of the caller's user.
pub(crate) async fn new_session(who: &Who) -> String {
    let made = who.post("/v1/sessions", &json!({"app": "demo"})).await;
    text(&made.ok(201), "id")
}

/// A session of the caller's user, with this agent.
pub(crate) async fn new_session_of(who: &Who, agent: &str) -> String {
    let body = json!({"app": "demo", "agent": agent});
    text(&who.post("/v1/sessions", &body).await.ok(201), "id")
}

/// A request that waits for a worker.
pub(crate) async fn start(who: &Who, session: &str, agent: &str, input: &str) -> Value {
    let body = json!({"agent": agent, "input": input});
    let made = who
        .post(&format!("/v1/sessions/{session}/requests"), &body)
        .await;
    made.ok(201)
}

/// The one request that waits for this agent.
pub(crate) async fn claim(worker: &Who, agent: &str) -> Value {
    let claimed = worker
        .post(
            "/v1/work/claim",
            &json!({"agent": agent, "wait_seconds": 10}),
        )
        .await
        .ok(200);
    let requests = claimed["requests"].as_array().expect("a list");
    assert_eq!(requests.len(), 1, "{claimed}");
    requests[0].clone()
}

/// Calls something about a request under its fence.
pub(crate) async fn act(worker: &Who, request: &Value, what: &str, body: Value) -> Answer {
    let mut body = body;
    body["fence"] = request["fence"].clone();
    worker
        .post(
            &format!("/v1/requests/{}/{what}", text(request, "id")),
            &body,
        )
        .await
}

/// A whole turn in one call.
pub(crate) async fn turn(
    worker: &Who,
    session: &str,
    agent: &str,
    input: &str,
    output: &str,
) -> Value {
    let body =
        json!({"agent": agent, "input": input, "output": output, "lease": {"ttl_seconds": 30}});
    let made = worker
        .post(&format!("/v1/sessions/{session}/requests"), &body)
        .await;
    made.ok(201)
}
