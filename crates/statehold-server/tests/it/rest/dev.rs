//! The clock that a development server lets be moved: what follows from it, and who may.

use serde_json::json;

use super::{act, claim, new_session, start};
use crate::rig::{Rig, Setup, Who, text};

async fn step(admin: &Who, seconds: i64) -> serde_json::Value {
    let body = json!({ "step_seconds": seconds });
    admin.post("/v1/dev/clock", &body).await.ok(200)
}

#[tokio::test]
async fn only_a_server_that_was_told_to_has_a_clock_to_move() {
    let rig = Rig::in_memory().await;
    let admin = rig.key(&["admin"]).await;
    let body = json!({"step_seconds": 1});
    admin
        .post("/v1/dev/clock", &body)
        .await
        .refused(404, "not_found");
    let document = admin.get("/openapi.json").await.text();
    assert!(!document.contains("/v1/dev"), "it is in the document");

    let rig = Rig::with(Setup::with_clock(-60)).await;
    let (admin, client) = (rig.key(&["admin"]).await, rig.client("ann").await);
    client
        .post("/v1/dev/clock", &body)
        .await
        .refused(403, "forbidden");
    rig.nobody()
        .post("/v1/dev/clock", &body)
        .await
        .refused(401, "unauthenticated");
    admin
        .post("/v1/dev/clock", &json!({"step_seconds": 0.5}))
        .await
        .refused(422, "invalid_body");
    admin
        .get("/v1/dev/clock")
        .await
        .refused(405, "method_not_allowed");
    assert_eq!(step(&admin, 0).await["offset_seconds"], -60);
    let moved = step(&admin, 3_660).await;
    assert_eq!(moved["offset_seconds"], 3_600);
    assert!(text(&moved, "now").ends_with('Z'), "{moved}");
}

#[tokio::test]
async fn holds_leases_keys_answers_and_sessions_all_go_by_the_same_clock() {
    let rig = Rig::with_clock().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let admin = rig.key(&["admin"]).await;
    let short = json!({"roles": ["client"], "user": "ann", "expires_in_seconds": 600});
    let mut short_lived = ann.clone();
    let made = admin.post("/v1/keys", &short).await.ok(201);
    short_lived.key = Some(text(&made, "key"));
    short_lived.get("/v1/sessions").await.ok(200);

    let session = new_session(&ann).await;
    let mortal = ann
        .post("/v1/sessions", &json!({"app": "demo", "ttl_seconds": 900}))
        .await;
    let mortal = text(&mortal.ok(201), "id");
    let key = [("idempotency-key", "one")];
    let body = r#"{"app":"demo"}"#;
    let first = ann.send("POST", "/v1/sessions", &key, body).await;
    first.ok(201);
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let hold = json!({"kind": "question", "title": "Which?", "expires_in_seconds": 1200});
    let hold = text(&act(&helper, &claimed, "holds", hold).await.ok(201), "id");

    step(&admin, 601).await;
    short_lived
        .get("/v1/sessions")
        .await
        .refused(401, "unauthenticated");
    let read = ann.get(&format!("/v1/sessions/{mortal}")).await.ok(200);
    assert_eq!(read["status"], "idle");
    step(&admin, 300).await;
    let read = ann.get(&format!("/v1/sessions/{mortal}")).await.ok(200);
    assert_eq!(read["status"], "closed");
    let read = ann.get(&format!("/v1/holds/{hold}")).await.ok(200);
    assert_eq!(read["status"], "open");
    step(&admin, 300).await;
    let read = ann.get(&format!("/v1/holds/{hold}")).await.ok(200);
    assert_eq!(read["status"], "expired");
    // The lease was over long ago, so the request went back to the queue when its hold was settled.
    let id = text(&claimed, "id");
    let read = ann.get(&format!("/v1/requests/{id}")).await.ok(200);
    assert_eq!(read["status"], "queued");

    let again = ann.send("POST", "/v1/sessions", &key, body).await;
    assert_eq!(again.body, first.body);
    step(&admin, 24 * 3_600).await;
    let another = ann.send("POST", "/v1/sessions", &key, body).await;
    assert_ne!(text(&another.ok(201), "id"), text(&first.ok(201), "id"));
}
