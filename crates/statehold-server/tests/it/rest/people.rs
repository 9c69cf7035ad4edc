//! Names of people: readers of traces and people who may decide see them, everybody else sees pseudonyms.

use serde_json::{Value, json};

use super::{act, claim, new_session_of, start};
use crate::rig::{Rig, text};

/// Whether a text has a pseudonym of a user in it.
fn has_pseudonym(value: &Value) -> bool {
    value.to_string().contains("usr_")
}

#[tokio::test]
async fn a_decision_names_the_person_to_those_who_may_know_and_a_pseudonym_to_others() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let [carol, dave] = [
            rig.key_for(&["approver"], Some("carol"), &[]).await,
            rig.key_for(&["approver"], Some("dave"), &[]).await,
        ];
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        start(&ann, &session, "helper", "Pay").await;
        let request = claim(&helper, "helper").await;
        let mut feeds = Vec::new();
        let events = format!("/v1/sessions/{session}/events");
        for who in [&operator, &ann] {
            feeds.push(who.follow(&events, None).await);
        }
        let hold =
            json!({"kind": "approval", "title": "Pay", "action": {"tool": "pay", "args": {}}});
        let made = act(&helper, &request, "holds", hold).await.ok(201);
        let path = format!("/v1/holds/{}", text(&made, "id"));
        let decided = format!("{path}/decision");
        let reject = json!({"decision": "reject"});
        let receipt = carol.post(&decided, &reject).await.ok(200);
        assert_eq!(receipt["decided_by"], "carol");
        // The loser of the race reads the name too.
        let approve = json!({"decision": "approve", "digest": made["action"]["digest"]});
        let lost = dave
            .post(&decided, &approve)
            .await
            .refused(409, "hold_decided");
        assert_eq!(lost["decided_by"], "carol");
        for who in [&dave, &operator] {
            let seen = who.get(&path).await.ok(200);
            assert_eq!(seen["decision"]["by"], "carol");
            let listed = who.get("/v1/holds?status=decided").await.ok(200);
            assert_eq!(listed["holds"][0]["decision"]["by"], "carol", "{listed}");
            assert!(!has_pseudonym(&listed), "{listed}");
        }
        for who in [&ann, &helper] {
            let seen = who.get(&path).await.ok(200);
            assert!(text(&seen["decision"], "by").starts_with("usr_"), "{seen}");
        }
        let tree = format!("/v1/sessions/{session}/tree");
        let hold_in = |tree: &Value| tree["tasks"][0]["requests"][0]["holds"][0].clone();
        let seen = operator.get(&tree).await.ok(200);
        assert_eq!(hold_in(&seen)["decided_by"], "carol");
        let seen = ann.get(&tree).await.ok(200);
        assert_eq!(hold_in(&seen).get("decided_by"), None);
        for (feed, is_named) in feeds.iter_mut().zip([true, false]) {
            let events = feed.take(2).await;
            let decided = &events[1].data;
            let by = decided["events"].as_array().expect("events").iter();
            let by: Vec<&Value> = by.filter_map(|event| event.get("by")).collect();
            assert_eq!(by.len(), 1, "{decided}");
            assert_eq!(by[0] == "carol", is_named, "{decided}");
        }
        let records = format!("/v1/sessions/{session}/records");
        let seen = operator.get(&records).await.ok(200);
        let names = seen["names"].as_object().expect("names");
        let mut names: Vec<&Value> = names.values().collect();
        names.sort_by_key(ToString::to_string);
        assert_eq!(names, ["ann", "carol"]);
    }
}

#[tokio::test]
async fn the_audit_stream_names_people_until_they_are_erased() {
    let rig = Rig::on_disk().await;
    let admin = rig.key(&["admin"]).await;
    let key = json!({"roles": ["client"], "user": "zoe"});
    admin.post("/v1/keys", &key).await.ok(201);
    let names = async || {
        let seen = admin.get("/v1/audit/records?limit=200").await.ok(200);
        let names = seen["names"].as_object().expect("names");
        names.values().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["\"zoe\""]);
    admin.post("/v1/users/zoe/erase", &json!({})).await.ok(200);
    assert!(names().await.is_empty());
}

#[tokio::test]
async fn traces_say_why_a_request_failed_and_clients_do_not_read_it() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        start(&ann, &session, "helper", "Pay").await;
        let request = claim(&helper, "helper").await;
        let error = json!({"error": {"code": "upstream", "message": "secret reason"}});
        act(&helper, &request, "fail", error).await.ok(200);
        let messages = format!("/v1/sessions/{session}/messages");
        let task = format!("/v1/tasks/{}", text(&request, "task_id"));
        for path in [&messages, &task] {
            let seen = operator.get(&format!("{path}?view=trace")).await.ok(200);
            let failed = &seen["failures"][0];
            assert_eq!(failed["request_id"], request["id"], "{seen}");
            assert_eq!(failed["error"]["message"], "secret reason");
            let seen = ann.get(path).await.ok(200);
            assert!(!seen.to_string().contains("secret"), "{seen}");
        }
    }
}
