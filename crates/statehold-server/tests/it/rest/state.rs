use serde_json::json;

use super::{act, claim, new_session, start};
use crate::rig::{Rig, text};

#[tokio::test]
async fn scopes_reach_as_far_as_they_say() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
        let admin = rig.key(&["admin"]).await;
        let (first, second) = (new_session(&ann).await, new_session(&ann).await);
        let bobs = new_session(&bob).await;
        let path = |session: &str| format!("/v1/sessions/{session}/state");
        let put = json!({"set": {"mine": 1, "user:name": "Ann"}});
        let written = ann.patch(&path(&first), &put).await;
        let body = written.ok(200);
        assert_eq!(body["revision"], 2);
        assert_eq!(written.revision(), 2);
        let app = json!({"set": {"motto": "be kind"}});
        admin.patch("/v1/state/app/demo", &app).await.ok(200);
        let state = ann.get(&path(&first)).await.ok(200);
        let all = json!({"mine": 1, "user:name": "Ann", "app:motto": "be kind"});
        assert_eq!(state["state"], all);
        let shared = json!({"user:name": "Ann", "app:motto": "be kind"});
        assert_eq!(ann.get(&path(&second)).await.ok(200)["state"], shared);
        let motto = json!({"app:motto": "be kind"});
        assert_eq!(bob.get(&path(&bobs)).await.ok(200)["state"], motto);
        assert_eq!(ann.get("/v1/state/app/demo").await.ok(200)["state"], motto);
        let own = ann.get("/v1/state/user/demo/ann").await.ok(200);
        assert_eq!(own["state"], json!({"user:name": "Ann"}));
        bob.get("/v1/state/user/demo/ann")
            .await
            .refused(404, "not_found");
        bob.patch("/v1/state/user/demo/ann", &json!({"set": {"name": "x"}}))
            .await
            .refused(404, "not_found");
        ann.patch("/v1/state/app/demo", &app)
            .await
            .refused(403, "forbidden");
        ann.patch(&path(&first), &json!({"set": {"app:motto": "x"}}))
            .await
            .refused(403, "forbidden");
        let direct = json!({"set": {"user:name": "Anna"}, "if_versions": {"name": 1}});
        ann.patch("/v1/state/user/demo/ann", &direct).await.ok(200);
        let state = ann.get(&path(&second)).await.ok(200);
        assert_eq!(state["state"]["user:name"], "Anna");
        assert_eq!(state["versions"]["user:name"], 2);
        let gone = json!({"delete": ["user:name", "mine"]});
        ann.patch(&path(&first), &gone).await.ok(200);
        assert_eq!(ann.get(&path(&first)).await.ok(200)["state"], motto);
    }
}

#[tokio::test]
async fn preconditions_are_told_before_a_value_that_cannot_be_merged() {
    let rig = Rig::on_disk().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}/state");
    let text = json!({"set": {"word": "a", "user:word": "a"}});
    ann.patch(&path, &text).await.ok(200);
    let request = start(&ann, &session, "helper", "hi").await;
    let claimed = claim(&worker, "helper").await;
    for key in ["word", "user:word"] {
        let merge = json!({"set": {key: [1]}, "merge": {key: "append"}});
        ann.patch(&path, &merge).await.refused(422, "merge_refused");
        let mut versioned = merge.clone();
        versioned["if_versions"] = json!({key: 9});
        let answer = ann.patch(&path, &versioned).await;
        answer.refused(409, "version_conflict");
        let mut stale = merge.clone();
        stale["request_id"] = request["id"].clone();
        stale["fence"] = json!(claimed["fence"].as_u64().expect("a fence") + 1);
        worker
            .patch(&path, &stale)
            .await
            .refused(409, "stale_fence");
    }
}

/// The id of the session behind the shared values of an app, which any caller can compute.
fn keeper_id(tenant: &str, app: &str) -> String {
    use statehold_core::ids::{IdMint, SessionId, Shard};
    let mut bytes = Vec::new();
    for part in [tenant, app, ""] {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    let digest = statehold_core::digest::Digest::sha256(&bytes);
    let entropy = digest.as_bytes()[..8].try_into().expect("eight bytes");
    let shard = Shard::of_owner(tenant, app, "");
    let mut mint = IdMint::new(
        statehold_core::time::Timestamp::default(),
        shard,
        u64::from_be_bytes(entropy),
    );
    SessionId::from_uuid(mint.next_uuid()).to_string()
}

#[tokio::test]
async fn the_session_behind_shared_values_is_out_of_reach() {
    let rig = Rig::on_disk().await;
    let admin = rig.key(&["admin", "client", "worker", "operator"]).await;
    let motto = json!({"set": {"motto": "be kind"}});
    admin.patch("/v1/state/app/demo", &motto).await.ok(200);
    let keeper = format!("/v1/sessions/{}", keeper_id("default", "demo"));
    for read in [
        "",
        "/messages",
        "/messages?view=trace",
        "/tree",
        "/records",
        "/state",
    ] {
        let answer = admin.get(&format!("{keeper}{read}")).await;
        answer.refused(404, "not_found");
    }
    let start = json!({"agent": "helper", "input": "hi"});
    let leased = json!({"agent": "helper", "input": "hi", "lease": {"ttl_seconds": 5}});
    for body in [start, leased] {
        let answer = admin.post(&format!("{keeper}/requests"), &body).await;
        answer.refused(404, "not_found");
    }
    let name = admin.patch(&keeper, &json!({"name": "mine"})).await;
    name.refused(404, "not_found");
    let put = admin
        .patch(&format!("{keeper}/state"), &json!({"set": {"a": 1}}))
        .await;
    put.refused(404, "not_found");
    let closed = admin.post(&format!("{keeper}/close"), &json!({})).await;
    closed.refused(404, "not_found");
    admin.delete(&keeper).await.refused(404, "not_found");
    let state = admin.get("/v1/state/app/demo").await.ok(200);
    assert_eq!(state["state"]["app:motto"], "be kind");
    admin.patch("/v1/state/app/demo", &motto).await.ok(200);
}

#[tokio::test]
async fn a_key_without_the_role_learns_nothing_about_users() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    new_session(&ann).await;
    let approver = rig.key(&["approver"]).await;
    for user in ["ann", "nobody-has-this-name"] {
        approver
            .get(&format!("/v1/state/user/demo/{user}"))
            .await
            .refused(403, "forbidden");
    }
}

#[tokio::test]
async fn versions_that_do_not_fit_are_named() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let path = format!("/v1/sessions/{}/state", new_session(&ann).await);
    for key in ["a", "user:a"] {
        let none = json!({"set": {key: 1}, "if_versions": {key: 0}});
        ann.patch(&path, &none).await.ok(200);
        let version = ann.get(&path).await.ok(200)["versions"][key].clone();
        let problem = ann
            .patch(&path, &none)
            .await
            .refused(409, "version_conflict");
        assert_eq!(problem["key"], key);
        assert_eq!(problem["expected"], 0);
        assert_eq!(problem["current"], version);
        let right = json!({"set": {key: 2}, "if_versions": {key: version}});
        ann.patch(&path, &right).await.ok(200);
    }
    ann.patch(&path, &json!({"set": {"a": 1}, "if_versions": {"b": 1}}))
        .await
        .refused(409, "version_conflict");
    ann.patch(
        &path,
        &json!({"set": {"a": 1}, "if_versions": {"user:b": 1}}),
    )
    .await
    .refused(422, "bad_state_key");
    ann.patch(&path, &json!({}))
        .await
        .refused(422, "empty_patch");
    ann.patch(&path, &json!({"set": {"a": 1}, "delete": ["a"]}))
        .await
        .refused(422, "bad_state_key");
}

#[tokio::test]
async fn values_are_merged_by_policy() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let session = format!("/v1/sessions/{}/state", new_session(&ann).await);
    for prefix in ["", "user:"] {
        for (policy, first, second, merged) in [
            ("replace", json!(1), json!(2), json!(2)),
            ("keep_first", json!(1), json!(2), json!(1)),
            ("add", json!(1), json!(2), json!(3)),
            ("append", json!([1]), json!([2, 1]), json!([1, 2, 1])),
            ("union", json!([1]), json!([2, 1]), json!([1, 2])),
            (
                "patch",
                json!({"a": 1, "b": 2}),
                json!({"b": null, "c": 3}),
                json!({"a": 1, "c": 3}),
            ),
        ] {
            let key = format!("{prefix}{policy}");
            for value in [first, second] {
                let body = json!({"set": {&key: value}, "merge": {&key: policy}});
                ann.patch(&session, &body).await.ok(200);
            }
            let state = ann.get(&session).await.ok(200);
            assert_eq!(state["state"][&key], merged, "{key}");
        }
        let key = format!("{prefix}append");
        let wrong = json!({"set": {&key: 1}, "merge": {&key: "add"}});
        let problem = ann
            .patch(&session, &wrong)
            .await
            .refused(422, "merge_refused");
        assert_eq!(problem["key"], key);
        let detail = text(&problem, "detail");
        for words in [
            &format!("`{key}`"),
            "`add`",
            "a number",
            "a list",
            "`replace`",
        ] {
            assert!(detail.contains(words), "{words} is not in {detail}");
        }
    }
    ann.patch(&session, &json!({"set": {"a": 1}, "merge": {"b": "add"}}))
        .await
        .refused(422, "bad_state_key");
    ann.patch(&session, &json!({"set": {"a": 1}, "merge": {"a": "Add"}}))
        .await
        .refused(422, "invalid_body");
}

#[tokio::test]
async fn temp_values_live_with_the_root_request_until_a_pause() {
    let rig = Rig::on_disk().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}/state");
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let id = text(&claimed, "id");
    let put = json!({"set": {"temp:draft": "abc"}, "request_id": id, "fence": 1});
    helper.patch(&path, &put).await.ok(200);
    let around = format!("{path}?request_id={id}");
    let seen = helper.get(&around).await.ok(200);
    assert_eq!(seen["state"]["temp:draft"], "abc");
    assert!(
        helper.get(&path).await.ok(200)["state"]
            .get("temp:draft")
            .is_none()
    );
    ann.get(&around).await.refused(403, "forbidden");
    ann.patch(&path, &json!({"set": {"temp:draft": 1}}))
        .await
        .refused(422, "bad_state_key");
    let stale = json!({"set": {"temp:draft": 1}, "request_id": id, "fence": 2});
    helper
        .patch(&path, &stale)
        .await
        .refused(409, "stale_fence");
    let mixed = json!({"set": {"temp:draft": 1, "a": 1}, "request_id": id, "fence": 1});
    helper
        .patch(&path, &mixed)
        .await
        .refused(422, "bad_state_key");
    let large = json!({"set": {"temp:large": "x".repeat(1 << 20)}, "request_id": id, "fence": 1});
    helper
        .patch(&path, &large)
        .await
        .refused(422, "limit_reached");
    let half = json!({"set": {"a": 1}, "request_id": id});
    helper
        .patch(&path, &half)
        .await
        .refused(422, "invalid_body");
    let fenced = json!({"set": {"a": 1}, "request_id": id, "fence": 1});
    helper.patch(&path, &fenced).await.ok(200);

    let question = json!({"kind": "question", "title": "?"});
    let hold = act(&helper, &claimed, "holds", question).await.ok(201);
    let seen = helper.get(&around).await.ok(200);
    assert!(seen["state"].get("temp:draft").is_none(), "{seen}");
    ann.post(
        &format!("/v1/holds/{}/decision", text(&hold, "id")),
        &json!({"decision": "respond", "comment": "yes"}),
    )
    .await
    .ok(200);
    act(&helper, &claimed, "complete", json!({"output": "y"}))
        .await
        .ok(200);
}
