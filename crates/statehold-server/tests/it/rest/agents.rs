//! Where workers hear of decisions, and what callers send along for them.

use serde_json::{Value, json};

use super::{act, claim, new_session, start};
use crate::rig::{Rig, text};

const PLACE: &str = "/v1/agents/helper/resume_address";

fn body(url: &str) -> String {
    json!({ "url": url }).to_string()
}

#[tokio::test]
async fn an_address_is_set_by_its_worker_and_its_secret_is_shown_once() {
    let rig = Rig::in_memory().await;
    let helper = rig.worker(&["helper"]).await;
    let other = rig.worker(&["other"]).await;
    let admin = rig.key(&["admin"]).await;
    let url = "https://worker.example/resume";
    helper.get(PLACE).await.refused(404, "not_found");
    let set = helper.send("PUT", PLACE, &[], body(url)).await.ok(200);
    assert!(text(&set, "secret").starts_with("whsec_"));
    assert_eq!(
        (&set["agent"], &set["url"]),
        (&json!("helper"), &json!(url))
    );
    for who in [&helper, &admin] {
        let shown = who.get(PLACE).await;
        assert!(!shown.text().contains("whsec_") && !shown.text().contains("secret"));
        assert_eq!(shown.ok(200)["url"], url);
    }
    let again = admin.send("PUT", PLACE, &[], body(url)).await.ok(200);
    assert_ne!(again["secret"], set["secret"]);

    other.get(PLACE).await.refused(403, "wrong_agent");
    let foreign = other.send("PUT", PLACE, &[], body(url)).await;
    foreign.refused(403, "wrong_agent");
    for roles in [&["client"], &["approver"], &["operator"]] {
        let who = rig.key(roles).await;
        who.get(PLACE).await.refused(403, "forbidden");
        who.delete(PLACE).await.refused(403, "forbidden");
        let set = who.send("PUT", PLACE, &[], body(url)).await;
        set.refused(403, "forbidden");
    }

    helper.delete(PLACE).await.ok(204);
    helper.delete(PLACE).await.refused(404, "not_found");
    let audit = admin.get("/v1/audit/records").await;
    assert!(!audit.text().contains("worker.example"));
    let audit = audit.ok(200);
    let acts = audit["records"].as_array().expect("a list").iter();
    let acts: Vec<&Value> = acts.map(|record| &record["event"]["act"]).collect();
    let set = acts.iter().filter(|act| **act == "resume_address_set");
    assert_eq!(set.count(), 2);
    assert_eq!(acts.last(), Some(&&json!("resume_address_removed")));
}

#[tokio::test]
async fn an_address_that_cannot_be_called_is_refused() {
    let rig = Rig::in_memory().await;
    let helper = rig.worker(&["helper"]).await;
    for url in [
        "http://worker.example/",
        "https://127.0.0.1/",
        "https://[::ffff:10.0.0.1]/",
        "file:///etc/passwd",
        "",
        &format!("https://worker.example/{}", "x".repeat(2_048)),
    ] {
        let set = helper.send("PUT", PLACE, &[], body(url)).await;
        set.refused(422, "address_refused");
    }
    let own = "/v1/agents/statehold.state/resume_address";
    let admin = rig.key(&["admin"]).await;
    let set = admin.send("PUT", own, &[], body("https://a.example/"));
    set.await.refused(422, "invalid_body");
    helper.get(PLACE).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_credential_goes_to_whoever_claims_until_the_root_pauses() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let helper = rig.worker(&["helper"]).await;
    let session = new_session(&ann).await;
    let start = format!("/v1/sessions/{session}/requests");
    let carried = [("x-statehold-credential", "Bearer a-secret")];
    let input = json!({"agent": "helper", "input": "x"}).to_string();
    let made = ann.send("POST", &start, &carried, input.clone()).await;
    assert!(!made.text().contains("a-secret"));
    let request = text(&made.ok(201), "id");
    let claimed = claim(&helper, "helper").await;
    let expected = json!({"value": "Bearer a-secret", "source": "caller"});
    assert_eq!(claimed["credential"], expected);
    assert!(claimed.get("credential_lost").is_none());
    let read = helper.get(&format!("/v1/requests/{request}")).await;
    assert!(!read.text().contains("a-secret") && !read.text().contains("had_credential"));

    let ask = json!({"kind": "question", "title": "Really?"});
    let hold = act(&helper, &claimed, "holds", ask).await.ok(201);
    act(&helper, &claimed, "release", json!({})).await.ok(200);
    let answer = json!({"decision": "respond", "content": "yes"});
    let decide = format!("/v1/holds/{}/decision", text(&hold, "id"));
    ann.post(&decide, &answer).await.ok(200);
    let claimed = claim(&helper, "helper").await;
    assert_eq!(claimed["credential_lost"], true);
    assert!(claimed.get("credential").is_none());
    act(&helper, &claimed, "complete", json!({"output": "x"}))
        .await
        .ok(200);

    for wrong in ["", &"x".repeat(8_193), "caf\u{e9}"] {
        let carried = [("x-statehold-credential", wrong)];
        let refused = ann.send("POST", &start, &carried, input.clone()).await;
        refused.refused(400, "bad_header");
    }
}

#[tokio::test]
async fn a_worker_that_left_writes_no_more() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let helper = rig.worker(&["helper"]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let first = claim(&helper, "helper").await;
    let left = act(&helper, &first, "release", json!({})).await.ok(200);
    assert_eq!(left["status"], "queued");
    act(&helper, &first, "complete", json!({"output": "x"}))
        .await
        .refused(409, "not_leased");
    let second = claim(&helper, "helper").await;
    assert_eq!((&second["id"], &second["fence"]), (&first["id"], &json!(2)));
    act(&helper, &first, "release", json!({}))
        .await
        .refused(409, "stale_fence");
}
