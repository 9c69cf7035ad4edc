//! Sessions as they were.

use serde_json::{Value, json};

use super::{act, claim, new_session, new_session_of, start, turn};
use crate::rig::{Rig, Who, text};

async fn put(who: &Who, session: &str, body: Value) -> u64 {
    let path = format!("/v1/sessions/{session}/state");
    who.patch(&path, &body).await.revision()
}

async fn state_at(who: &Who, session: &str, at: u64) -> Value {
    let path = format!("/v1/sessions/{session}/state?at={at}");
    let read = who.get(&path).await;
    let found = read.ok(200);
    assert_eq!(found["revision"], at);
    assert_eq!(
        read.revision(),
        at,
        "the ETag names the revision that is shown"
    );
    found
}

fn contents(page: &Value) -> Vec<String> {
    let messages = page["messages"].as_array().expect("a list").iter();
    messages.map(|message| text(message, "content")).collect()
}

async fn messages_at(who: &Who, session: &str, at: u64) -> Vec<String> {
    let path = format!("/v1/sessions/{session}/messages?at={at}");
    let page = who.get(&path).await.ok(200);
    assert_eq!(page["revision"], at);
    contents(&page)
}

#[tokio::test]
async fn state_at_a_revision_has_the_session_keys_of_then_with_their_versions() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let body = json!({"app": "demo", "state": {"a": 1, "b": [1]}});
        let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
        put(
            &ann,
            &session,
            json!({"set": {"a": 2, "user:x": "not of the session"}}),
        )
        .await;
        put(&ann, &session, json!({"set": {"c": 3}, "delete": ["b"]})).await;
        let rewind = format!("/v1/sessions/{session}/rewind");
        operator.post(&rewind, &json!({"to": 1})).await.ok(200);
        let expected = [
            (json!({"a": 1, "b": [1]}), json!({"a": 1, "b": 1})),
            (json!({"a": 2, "b": [1]}), json!({"a": 2, "b": 1})),
            (json!({"a": 2, "c": 3}), json!({"a": 2, "c": 3})),
            (json!({"a": 1, "b": [1]}), json!({"a": 4, "b": 4})),
        ];
        for (at, (state, versions)) in (1..).zip(expected) {
            let found = state_at(&ann, &session, at).await;
            assert_eq!(found["state"], state, "at revision {at}");
            assert_eq!(found["versions"], versions, "at revision {at}");
        }
    }
}

#[tokio::test]
async fn state_at_a_revision_comes_in_pages_of_that_revision() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let session = new_session(&ann).await;
        let long = "x".repeat(700 * 1024);
        put(
            &ann,
            &session,
            json!({"set": {"a": long, "b": long, "c": 1}}),
        )
        .await;
        put(&ann, &session, json!({"delete": ["a", "b", "c"]})).await;
        let path = format!("/v1/sessions/{session}/state?at=2");
        let mut found = Vec::new();
        let mut next = path.clone();
        loop {
            let page = ann.get(&next).await.ok(200);
            let keys = page["state"].as_object().expect("an object").keys();
            found.push(keys.cloned().collect::<Vec<_>>());
            let Some(cursor) = page["next_cursor"].as_str() else {
                break;
            };
            // A cursor is of one revision.
            let present = format!("/v1/sessions/{session}/state?cursor={cursor}");
            ann.get(&present).await.refused(400, "bad_cursor");
            next = format!("{path}&cursor={cursor}");
        }
        assert_eq!(
            found,
            [vec!["a"], vec!["b", "c"]],
            "pages are short in bytes"
        );
        let one = ann.get(&format!("{path}&limit=1")).await.ok(200);
        assert_eq!(one["state"].as_object().map(serde_json::Map::len), Some(1));
    }
}

#[tokio::test]
async fn messages_at_a_revision_are_those_of_then_also_after_a_rewind() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        turn(&helper, &session, "helper", "first", "one").await;
        turn(&helper, &session, "helper", "second", "two").await;
        let rewind = format!("/v1/sessions/{session}/rewind");
        operator.post(&rewind, &json!({"to": 2})).await.ok(200);
        turn(&helper, &session, "helper", "third", "three").await;
        assert!(messages_at(&ann, &session, 1).await.is_empty());
        assert_eq!(messages_at(&ann, &session, 2).await, ["first", "one"]);
        let all = ["first", "one", "second", "two"];
        assert_eq!(messages_at(&ann, &session, 3).await, all);
        assert_eq!(messages_at(&ann, &session, 4).await, ["first", "one"]);
        let path = format!("/v1/sessions/{session}/messages");
        let now = contents(&ann.get(&path).await.ok(200));
        assert_eq!(now, ["first", "one", "third", "three"]);
        assert_eq!(messages_at(&ann, &session, 5).await, now);
        let last = ann.get(&format!("{path}?at=3&limit=3")).await.ok(200);
        assert_eq!(contents(&last), all[1..]);
        let cursor = text(&last, "next_cursor");
        let rest = ann
            .get(&format!("{path}?at=3&cursor={cursor}"))
            .await
            .ok(200);
        assert_eq!(contents(&rest), all[..1]);
        let elsewhere = ann.get(&format!("{path}?at=2&cursor={cursor}")).await;
        elsewhere.refused(400, "bad_cursor");
    }
}

#[tokio::test]
async fn hidden_items_of_the_past_are_in_the_trace_alone_which_is_audited() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        start(&ann, &session, "helper", "ask").await;
        let claimed = claim(&helper, "helper").await;
        let hidden = json!({"items": [{
            "kind": "message", "role": "assistant", "visibility": "hidden", "content": "secret-7",
        }]});
        act(&helper, &claimed, "items", hidden).await.ok(200);
        let done = act(&helper, &claimed, "complete", json!({"output": "done"})).await;
        let at = done.revision();
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        let path = format!("/v1/sessions/{session}/messages?at={at}");
        for who in [&ann, &operator] {
            let shown = who.get(&path).await;
            assert_eq!(contents(&shown.ok(200)), ["ask", "done"]);
            assert!(!shown.text().contains("secret-7"));
        }
        let trace = format!("{path}&view=trace");
        ann.get(&trace).await.refused(403, "forbidden");
        let read = operator.get(&trace).await;
        assert!(read.text().contains("secret-7"), "{}", read.text());
        let admin = rig.key(&["admin"]).await;
        let audit = admin.get("/v1/audit/records").await.text();
        assert!(audit.contains("trace_read"), "{audit}");
    }
}

#[tokio::test]
async fn a_revision_that_the_session_does_not_have_is_refused_with_the_newest() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let session = new_session(&ann).await;
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        for route in ["state", "messages", "messages?view=trace"] {
            let path = format!("/v1/sessions/{session}/{route}");
            let glue = if path.contains('?') { '&' } else { '?' };
            for at in [0_u64, 3, 1 << 40] {
                let refused = operator.get(&format!("{path}{glue}at={at}")).await;
                let problem = refused.refused(400, "bad_query");
                assert_eq!(problem["current"], 2, "{problem}");
            }
            for at in ["-1", "x", "1.5", "9007199254740992", ""] {
                let refused = operator.get(&format!("{path}{glue}at={at}")).await;
                refused.refused(400, "bad_query");
            }
        }
    }
}

#[tokio::test]
async fn the_past_of_a_session_is_for_its_readers_until_it_is_deleted() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
        let (operator, approver) = (rig.key(&["operator"]).await, rig.key(&["approver"]).await);
        let far = rig.key_of("far", &["operator"], None, &[]).await;
        let session = new_session(&ann).await;
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        let missing = format!("{}beef", &session[..session.len() - 4]);
        for route in [
            "state?at=1",
            "messages?at=1",
            "state?at=99",
            "messages?at=99",
        ] {
            let (own, gone) = (
                format!("/v1/sessions/{session}/{route}"),
                format!("/v1/sessions/{missing}/{route}"),
            );
            for who in [&bob, &far] {
                let foreign = who.get(&own).await.refused(404, "not_found");
                assert_eq!(foreign, who.get(&gone).await.refused(404, "not_found"));
            }
            approver.get(&own).await.refused(403, "forbidden");
            rig.nobody().get(&own).await.refused(401, "unauthenticated");
            let status = if route.ends_with("99") { 400 } else { 200 };
            for who in [&ann, &operator] {
                who.get(&own).await.ok(status);
                who.get(&gone).await.refused(404, "not_found");
            }
        }
        ann.delete(&format!("/v1/sessions/{session}")).await.ok(204);
        for route in ["state?at=2", "messages?at=2", "messages?at=2&view=trace"] {
            let path = format!("/v1/sessions/{session}/{route}");
            operator.get(&path).await.refused(404, "not_found");
        }
    }
}

#[tokio::test]
async fn a_fork_has_the_past_of_its_origin_up_to_its_revision() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        turn(&helper, &session, "helper", "first", "one").await;
        put(&ann, &session, json!({"set": {"n": 2}})).await;
        let path = format!("/v1/sessions/{session}");
        let fork = operator
            .post(&format!("{path}/fork"), &json!({"at": 3}))
            .await;
        let fork = text(&fork.ok(201), "id");
        put(&ann, &fork, json!({"set": {"n": 3}})).await;
        // The fork keeps what it shares when the origin is deleted.
        for _ in 0..2 {
            assert_eq!(state_at(&ann, &fork, 1).await["state"], json!({}));
            assert_eq!(state_at(&ann, &fork, 2).await["state"], json!({"n": 1}));
            assert_eq!(state_at(&ann, &fork, 4).await["state"], json!({"n": 1}));
            assert_eq!(state_at(&ann, &fork, 5).await["state"], json!({"n": 3}));
            assert!(messages_at(&ann, &fork, 2).await.is_empty());
            assert_eq!(messages_at(&ann, &fork, 3).await, ["first", "one"]);
            ann.delete(&path).await;
        }
    }
}
