//! Rules of state keys: policies of writes that name none, and schemas that no surface escapes.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::scope::MergePolicy;
use statehold_engine::policy::Policies;
use statehold_engine::{Schema, StateRule, StateRules};

use super::{act, claim, new_session, start};
use crate::rig::{Rig, Who, text};

/// A rig with rules: the keys, their policy and their schema.
async fn ruled(rules: &[(&str, Option<MergePolicy>, Value)]) -> Rig {
    let rig = Rig::on_disk().await;
    let rules = rules.iter().map(|(keys, merge, schema)| {
        let schema = Schema::new(&schema.to_string()).expect("a schema");
        let rule = StateRule {
            merge: *merge,
            schema: Some(Arc::new(schema)),
        };
        (keys.parse().expect("keys"), rule)
    });
    let state: StateRules = rules.collect();
    rig.engine.set_policies(Policies {
        state,
        ..Policies::default()
    });
    rig
}

fn path(session: &str) -> String {
    format!("/v1/sessions/{session}/state")
}

async fn state_of(who: &Who, session: &str) -> Value {
    who.get(&path(session)).await.ok(200)["state"].clone()
}

#[tokio::test]
async fn a_write_without_a_policy_merges_as_its_key_is_ruled() {
    let add = Some(MergePolicy::Add);
    let rig = ruled(&[
        ("user:visits", add, json!({"maximum": 100})),
        ("count/*", add, json!({})),
        ("log", Some(MergePolicy::Append), json!({})),
    ])
    .await;
    let (ann, worker) = (rig.client("ann").await, rig.key(&["worker"]).await);
    let begin =
        json!({"app": "demo", "state": {"user:visits": 1, "count/a": 1, "log": [1], "x": 1}});
    let session = text(&ann.post("/v1/sessions", &begin).await.ok(201), "id");
    let again = json!({"set": {"user:visits": 2, "count/a": 2, "log": [2], "x": 2}});
    ann.patch(&path(&session), &again).await.ok(200);
    let user = json!({"set": {"visits": 3}});
    ann.patch("/v1/state/user/demo/ann", &user).await.ok(200);
    start(&ann, &session, "demo", "hi").await;
    let request = claim(&worker, "demo").await;
    let written = json!({"output": "done", "state": {"set": {"count/a": 4, "log": [3]}}});
    act(&worker, &request, "complete", written).await.ok(200);
    let expected = json!({"user:visits": 6, "count/a": 7, "log": [1, 2, 3], "x": 2});
    assert_eq!(state_of(&ann, &session).await, expected);
    // A policy that the call names counts.
    let replaced = json!({"set": {"count/a": 0}, "merge": {"count/a": "replace"}});
    ann.patch(&path(&session), &replaced).await.ok(200);
    assert_eq!(state_of(&ann, &session).await["count/a"], 0);
    // The schema is about the merged value.
    let more = json!({"set": {"user:visits": 95}});
    let refused = ann.patch(&path(&session), &more).await;
    assert_eq!(refused.refused(422, "invalid_state")["key"], "user:visits");
    assert_eq!(state_of(&ann, &session).await["user:visits"], 6);
}

#[tokio::test]
async fn no_route_stores_a_value_that_does_not_fit() {
    let texts = json!({"type": "string"});
    let all = ["*", "user:*", "app:*", "temp:*"];
    let rules = all.map(|keys| (keys, None, texts.clone()));
    let rig = ruled(&rules).await;
    let (ann, worker) = (rig.client("ann").await, rig.key(&["worker"]).await);
    let admin = rig.key(&["admin"]).await;
    let session = new_session(&ann).await;
    let started = start(&ann, &session, "demo", "hi").await;
    let request = claim(&worker, "demo").await;
    let fenced = |set: Value| {
        let (id, fence) = (&started["id"], &request["fence"]);
        json!({"set": set, "request_id": id, "fence": fence})
    };
    let before = ann.get(&format!("/v1/sessions/{session}")).await.ok(200)["revision"].clone();
    for key in ["x", "user:x"] {
        let answers = [
            ann.patch(&path(&session), &json!({"set": {key: 1}})).await,
            ann.post("/v1/sessions", &json!({"app": "demo", "state": {key: 1}}))
                .await,
            worker
                .patch(&path(&session), &fenced(json!({key: 1})))
                .await,
            act(
                &worker,
                &request,
                "items",
                json!({"items": [], "state": {"set": {key: 1}}}),
            )
            .await,
            act(
                &worker,
                &request,
                "complete",
                json!({"output": "x", "state": {"set": {key: 1}}}),
            )
            .await,
        ];
        for answer in answers {
            let problem = answer.refused(422, "invalid_state");
            assert_eq!(problem["key"], key);
            assert_eq!(problem["errors"][0]["path"], "");
        }
    }
    let temp = worker
        .patch(&path(&session), &fenced(json!({"temp:x": 1})))
        .await;
    temp.refused(422, "invalid_state");
    let list = ann
        .patch(&path(&session), &json!({"append": {"items/": ["a", 1]}}))
        .await;
    list.refused(422, "invalid_state");
    let shared = admin
        .patch("/v1/state/app/demo", &json!({"set": {"x": 1}}))
        .await;
    shared.refused(422, "invalid_state");
    // A refused first write makes no user.
    let client = rig.key(&["client"]).await;
    let new = client
        .patch("/v1/state/user/demo/zoe", &json!({"set": {"x": 1}}))
        .await;
    new.refused(422, "invalid_state");
    client
        .get("/v1/state/user/demo/zoe")
        .await
        .refused(404, "not_found");
    let after = ann.get(&format!("/v1/sessions/{session}")).await.ok(200)["revision"].clone();
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_prefix_that_only_adk_knows_escapes_no_schema() {
    let rig = ruled(&[("*", None, json!({"type": "string"}))]).await;
    let ann = rig.client("ann").await;
    let sessions = "/apps/shop/users/ann/sessions";
    ann.post(
        sessions,
        &json!({"sessionId": "s", "state": {"a": "b", "user:n": 1}}),
    )
    .await
    .ok(200);
    let event = json!({"id": "e", "author": "agent", "timestamp": 5.0,
        "actions": {"stateDelta": {"other:x": 1}}});
    let answers = [
        ann.post(
            sessions,
            &json!({"sessionId": "t", "state": {"other:x": 1}}),
        )
        .await,
        ann.patch(
            &format!("{sessions}/s"),
            &json!({"stateDelta": {"other:x": 1}}),
        )
        .await,
        ann.post(&format!("{sessions}/s/events"), &json!({"event": event}))
            .await,
    ];
    for answer in answers {
        answer.ok(422);
        assert_eq!(answer.header("x-statehold-error"), Some("invalid_state"));
    }
    let fits = json!({"stateDelta": {"other:x": "y"}});
    let path = format!("{sessions}/s");
    let answer = ann.patch(&path, &fits).await;
    answer.ok(200);
    let session = answer.header("x-statehold-session").expect("a session");
    let parts = ["keys=other:x", "prefix=other:", "keys=other:x&after=a"];
    for part in parts {
        let state = ann
            .get(&format!("/v1/sessions/{session}/state?{part}"))
            .await;
        assert_eq!(state.ok(200)["state"], json!({"other:x": "y"}), "{part}");
    }
    let written = json!({"set": {"other:x": "z"}});
    let path = format!("/v1/sessions/{session}/state");
    ann.patch(&path, &written)
        .await
        .refused(422, "bad_state_key");
    let found = ann.get(&format!("{sessions}/s")).await.ok(200);
    assert_eq!(
        found["state"],
        json!({"a": "b", "other:x": "y", "user:n": 1})
    );
    assert_eq!(found["events"].as_array().map(Vec::len), Some(1));
    ann.get(&format!("{sessions}/t")).await.ok(404);
}

#[tokio::test]
async fn long_values_are_validated_whole() {
    let rig = ruled(&[("*", None, json!({"items": {"type": "number"}}))]).await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let mut list = vec![json!(7); 200_000];
    ann.patch(&path(&session), &json!({"set": {"x": list}}))
        .await
        .ok(200);
    list[199_999] = json!("seven");
    let refused = ann
        .patch(&path(&session), &json!({"set": {"x": list}}))
        .await;
    let problem = refused.refused(422, "invalid_state");
    assert_eq!(problem["errors"][0]["path"], "/199999");
}
