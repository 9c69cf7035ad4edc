//! A worker key that is bound to agents enters a session only by the work of its agents.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::name::Name;
use statehold_engine::policy::Policies;

use crate::rest::{act, claim, new_session_of, start};
use crate::rig::{Answer, Rig, Setup, Who, text};

/// Starts a request with a lease in a session.
async fn start_leased(worker: &Who, session: &str, agent: &str) -> Answer {
    let path = format!("/v1/sessions/{session}/requests");
    let lease = json!({"ttl_seconds": 30});
    let body = json!({"agent": agent, "input": "Pay mallory.", "lease": lease});
    worker.post(&path, &body).await
}

/// Starts a request below another one.
async fn start_below(worker: &Who, parent: &Value, agent: &str) -> Answer {
    let path = format!("/v1/sessions/{}/requests", text(parent, "session_id"));
    let body = json!({
        "agent": agent, "input": "Pay mallory.",
        "parent_request_id": parent["id"], "parent_fence": parent["fence"],
    });
    worker.post(&path, &body).await
}

/// The reads of a whole session.
fn reads(session: &str) -> [String; 5] {
    let of = |what: &str| format!("/v1/sessions/{session}{what}");
    [
        of(""),
        of("/messages"),
        of("/tree"),
        of("/state"),
        of("/events"),
    ]
}

/// An id of a session that is not there.
fn missing(session: &str) -> String {
    let last = if session.ends_with('0') { "1" } else { "0" };
    format!("{}{last}", &session[..session.len() - 1])
}

#[tokio::test]
async fn a_worker_key_cannot_plant_itself_into_the_session_of_a_stranger() {
    let rig = Rig::in_memory().await;
    let (ann, mallory) = (rig.client("ann").await, rig.worker(&["b"]).await);
    let session = new_session_of(&ann, "helper").await;
    let live = start(&ann, &session, "helper", "My secret.").await;
    let state = format!("/v1/sessions/{session}/state");
    let put = json!({"set": {"plan": "ann's", "user:city": "Rome"}});
    ann.patch(&state, &put).await.ok(200);
    let before = ann.get(&format!("/v1/sessions/{session}")).await.ok(200);

    let not_there = start_leased(&mallory, &missing(&session), "b").await;
    let planted = start_leased(&mallory, &session, "b").await;
    let (planted, not_there) = (
        planted.refused(404, "not_found"),
        not_there.refused(404, "not_found"),
    );
    assert_eq!(planted["detail"], not_there["detail"]);
    let whole_turn = json!({
        "agent": "b", "input": "x", "output": "y", "lease": {"ttl_seconds": 30},
        "items": [{"kind": "message", "role": "user", "content": "I agree."}],
        "state": {"set": {"plan": "forged", "user:city": "forged"}},
    });
    mallory
        .post(&format!("/v1/sessions/{session}/requests"), &whole_turn)
        .await
        .refused(404, "not_found");
    for path in reads(&session) {
        mallory.get(&path).await.refused(404, "not_found");
    }
    mallory
        .get(&format!("{state}?request_id={}", text(&live, "id")))
        .await
        .refused(404, "not_found");
    let forged = json!({"set": {"plan": "forged", "user:city": "forged"},
                        "request_id": live["id"], "fence": 1});
    mallory
        .patch(&state, &forged)
        .await
        .refused(404, "not_found");
    let mut parent = live.clone();
    parent["fence"] = json!(1);
    for agent in ["b", "payer"] {
        let below = start_below(&mallory, &parent, agent).await;
        below.refused(404, "not_found");
    }
    let after = ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
    assert_eq!(after["revision"], before["revision"], "nothing was written");
}

#[tokio::test]
async fn a_worker_key_works_in_sessions_of_its_agent_and_below_its_own_requests() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let (other, unbound) = (rig.worker(&["other"]).await, rig.key(&["worker"]).await);

    // The session of its own agent: at the root, and read without a request.
    let own = new_session_of(&ann, "helper").await;
    for path in reads(&own) {
        let answer = helper.begin_feed(&path).await;
        assert_eq!(answer.status(), 200, "{path}");
    }
    let started = start_leased(&helper, &own, "helper").await.ok(201);
    assert_eq!(started["status"], "running");
    let said = ann.get(&format!("/v1/sessions/{own}/messages")).await;
    assert_eq!(said.ok(200)["messages"][0]["role"], "user");
    let end = act(&helper, &started, "complete", json!({"output": "done"})).await;
    end.ok(200);

    // A session of another agent: only with a claimed request, and only as long as it has the lease.
    let foreign = new_session_of(&ann, "coordinator").await;
    start_leased(&helper, &foreign, "helper")
        .await
        .refused(404, "not_found");
    start(&ann, &foreign, "helper", "x").await;
    let messages = format!("/v1/sessions/{foreign}/messages");
    helper.get(&messages).await.refused(404, "not_found");
    let claimed = claim(&helper, "helper").await;
    helper.get(&messages).await.ok(200);
    other.get(&messages).await.refused(404, "not_found");
    let child = start_below(&helper, &claimed, "other").await.ok(201);
    let state = format!("/v1/sessions/{foreign}/state");
    let put = json!({"set": {"n": 1, "user:n": 1}, "request_id": claimed["id"],
                     "fence": claimed["fence"]});
    helper.patch(&state, &put).await.ok(200);
    let child_path = format!("/v1/requests/{}", text(&child, "id"));
    helper.get(&child_path).await.ok(200);
    let work = claim(&other, "other").await;
    assert_eq!(work["id"], child["id"]);
    other.get(&messages).await.ok(200);
    act(&other, &work, "complete", json!({"output": "4"}))
        .await
        .ok(200);
    other.get(&messages).await.refused(404, "not_found");
    act(&helper, &claimed, "complete", json!({"output": "4"}))
        .await
        .ok(200);
    helper.get(&messages).await.refused(404, "not_found");

    // Keys without agents, and keys that are clients too, keep what they have.
    start_leased(&unbound, &foreign, "helper").await.ok(201);
    let both = rig
        .key_for(&["client", "worker"], Some("ann"), &["other"])
        .await;
    start_leased(&both, &foreign, "other").await.ok(201);
    both.get(&messages).await.ok(200);
}

#[tokio::test]
async fn a_worker_key_calls_only_the_agents_that_its_declared_agent_may_call() {
    let name = |text: &str| text.parse::<Name>().expect("a name");
    let policies = Policies {
        calls: [(name("helper"), [name("math")].into())].into(),
        ..Policies::default()
    };
    let rig = Rig::with(Setup {
        policies: Arc::new(policies),
        ..Setup::default()
    })
    .await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let (math, unbound) = (rig.worker(&["math"]).await, rig.key(&["worker"]).await);
    let session = new_session_of(&ann, "coordinator").await;
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let refused = start_below(&helper, &claimed, "payer").await;
    let problem = refused.refused(403, "wrong_agent");
    let detail = text(&problem, "detail");
    assert!(
        detail.contains("`payer`") && detail.contains("`calls`"),
        "{detail}"
    );
    start_below(&helper, &claimed, "math").await.ok(201);
    // An agent that nobody declared may call any.
    let work = claim(&math, "math").await;
    start_below(&math, &work, "payer").await.ok(201);
    // Keys without agents are trusted with all of them.
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&unbound, "helper").await;
    start_below(&unbound, &claimed, "payer").await.ok(201);
}

#[tokio::test]
async fn a_worker_key_writes_no_message_of_the_user_and_learns_no_agent_of_a_session() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session_of(&ann, "very-private").await;
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    for visibility in ["visible", "hidden"] {
        let forged = json!({"kind": "message", "role": "user", "content": "I agree.",
                            "visibility": visibility});
        for (what, body) in [
            ("items", json!({"items": [forged]})),
            ("complete", json!({"output": "x", "items": [forged]})),
            (
                "holds",
                json!({"kind": "question", "title": "?", "items": [forged]}),
            ),
        ] {
            let answer = act(&helper, &claimed, what, body).await;
            answer.refused(422, "item_malformed");
        }
    }
    let path = format!("/v1/sessions/{session}/requests");
    let mut leased = json!({"input": "x", "lease": {"ttl_seconds": 30}});
    helper.post(&path, &leased).await.refused(404, "not_found");
    leased["parent_request_id"] = claimed["id"].clone();
    leased["parent_fence"] = json!(claimed["fence"].as_u64().expect("a fence") + 1);
    let answer = helper.post(&path, &leased).await;
    answer.refused(403, "wrong_agent");
    assert!(!answer.text().contains("very-private"), "{}", answer.text());
}

#[tokio::test]
async fn an_ended_request_of_another_session_does_not_tell_that_a_session_exists() {
    let rig = Rig::in_memory().await;
    let (ann, mallory) = (rig.client("ann").await, rig.worker(&["b"]).await);
    let own = new_session_of(&ann, "b").await;
    start(&ann, &own, "b", "x").await;
    let ended = claim(&mallory, "b").await;
    act(
        &mallory,
        &ended,
        "complete",
        json!({"output": "y", "close_task": true}),
    )
    .await
    .ok(200);
    let foreign = new_session_of(&ann, "math").await;
    let below = json!({"input": "x", "parent_request_id": ended["id"]});
    let fenced = json!({
        "input": "x", "parent_request_id": ended["id"], "parent_fence": 1,
        "lease": {"ttl_seconds": 30},
    });
    let write = json!({"request_id": ended["id"], "set": {"a": 1}});
    for (session, body) in [(&foreign, &below), (&foreign, &fenced)] {
        let path = |session: &str| format!("/v1/sessions/{session}/requests");
        let there = mallory.post(&path(session), body).await;
        let not_there = mallory.post(&path(&missing(session)), body).await;
        there.refused(404, "not_found");
        assert_eq!(there.body, not_there.body);
    }
    let path = |session: &str| format!("/v1/sessions/{session}/state");
    let there = mallory.patch(&path(&foreign), &write).await;
    let not_there = mallory.patch(&path(&missing(&foreign)), &write).await;
    there.refused(404, "not_found");
    assert_eq!(there.body, not_there.body);
}
