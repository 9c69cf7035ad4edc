use serde_json::{Value, json};

use crate::rig::{Rig, text};

#[tokio::test]
async fn operators_verify_everything_and_see_the_key_of_the_roots() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let operator = rig.key(&["operator"]).await;
        let ann = rig.client("ann").await;
        let kept = ann
            .post("/v1/sessions", &json!({"app": "demo"}))
            .await
            .ok(201);
        let gone = ann
            .post("/v1/sessions", &json!({"app": "demo"}))
            .await
            .ok(201);
        let path = format!("/v1/sessions/{}/requests", text(&kept, "id"));
        let hello = json!({"agent": "helper", "input": "hello"});
        ann.post(&path, &hello).await.ok(201);
        ann.delete(&format!("/v1/sessions/{}", text(&gone, "id")))
            .await;
        rig.engine.sign_heads().await.expect("the store answers");
        let found = operator.post("/v1/audit/verify", &json!({})).await.ok(200);
        assert_eq!(found["ok"], true, "{found}");
        assert_eq!(found["problems"], json!([]));
        for (member, count) in [
            ("sessions", 2),
            ("records", 4),
            ("payloads", 1),
            ("unverified_payloads", 0),
            ("entries", 3),
            ("roots", 1),
            ("unverified_roots", 0),
            ("problems_total", 0),
        ] {
            assert_eq!(found[member], count, "{member}: {found}");
        }
        let stream = operator.get("/v1/audit/records").await.ok(200);
        assert_eq!(stream["public_key"], found["public_key"]);
        assert_eq!(stream["head"], found["head"]);
        let last = &stream["records"][2];
        assert_eq!(last["hash"], found["head"]["hash"]);
        assert_eq!(last["event"]["act"], "heads_signed");
        assert_eq!(last["event"]["public_key"], found["public_key"]);
        let heads = last["event"]["heads"].as_array().expect("a list");
        let named: Vec<&Value> = heads.iter().map(|head| &head["session"]).collect();
        assert!(named.contains(&&kept["id"]) && named.contains(&&gone["id"]));
    }
}

#[tokio::test]
async fn roots_go_on_after_a_restart() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    ann.post("/v1/sessions", &json!({"app": "demo"}))
        .await
        .ok(201);
    let rig = rig.restart().await;
    let operator = rig.key(&["operator"]).await;
    let found = operator.post("/v1/audit/verify", &json!({})).await.ok(200);
    assert_eq!((&found["ok"], &found["roots"]), (&json!(true), &json!(1)));
    assert_eq!(found["entries"], 3, "a key, the root of the stop, a key");
}

#[tokio::test]
async fn verifying_is_for_operators_and_takes_nothing_else() {
    let rig = Rig::in_memory().await;
    let path = "/v1/audit/verify";
    for roles in [&["client"][..], &["worker"], &["approver"]] {
        let who = rig.key(roles).await;
        who.post(path, &json!({})).await.refused(403, "forbidden");
    }
    let nobody = rig.nobody();
    nobody
        .post(path, &json!({}))
        .await
        .refused(401, "unauthenticated");
    let operator = rig.key(&["operator"]).await;
    let odd = operator.post(path, &json!({"all": true})).await;
    odd.refused(422, "invalid_body");
    operator.get(path).await.refused(405, "method_not_allowed");
    let admin = rig.key(&["admin"]).await;
    admin.post(path, &json!({})).await.ok(200);
}

#[tokio::test]
async fn a_tenant_verifies_its_own_and_learns_of_no_other() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        ann.post("/v1/sessions", &json!({"app": "demo"}))
            .await
            .ok(201);
        rig.engine.sign_heads().await.expect("the store answers");
        let other = rig.key_of("other", &["operator"], None, &[]).await;
        let found = other.post("/v1/audit/verify", &json!({})).await.ok(200);
        assert_eq!(found["ok"], true, "{found}");
        assert_eq!(
            (&found["sessions"], &found["entries"]),
            (&json!(0), &json!(1))
        );
    }
}
