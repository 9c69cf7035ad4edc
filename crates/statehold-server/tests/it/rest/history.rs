//! Forks and rewinds.

use serde_json::{Value, json};
use statehold_core::digest::{Digest, canonical_bytes};

use super::{act, claim, new_session, new_session_of, start, turn};
use crate::rig::{Rig, Who, text};

async fn put(who: &Who, session: &str, body: Value) -> u64 {
    let path = format!("/v1/sessions/{session}/state");
    who.patch(&path, &body).await.revision()
}

async fn state(who: &Who, session: &str) -> Value {
    let path = format!("/v1/sessions/{session}/state");
    who.get(&path).await.ok(200)["state"].clone()
}

#[tokio::test]
async fn operators_and_admins_fork_and_rewind_every_session_of_their_tenant_and_others_none() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let session = new_session(&ann).await;
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        let missing = format!("{}beef", &session[..session.len() - 4]);
        for (route, body) in [("fork", json!({})), ("rewind", json!({"to": 1}))] {
            let (own, gone) = (
                format!("/v1/sessions/{session}/{route}"),
                format!("/v1/sessions/{missing}/{route}"),
            );
            for role in ["client", "worker", "approver", "reviewer"] {
                let unbound = rig.key(&[role]).await;
                let anns = rig.key_for(&[role], Some("ann"), &[]).await;
                let bobs = rig.key_for(&[role], Some("bob"), &[]).await;
                for who in [unbound, anns, bobs] {
                    who.post(&own, &body).await.refused(403, "forbidden");
                    who.post(&gone, &body).await.refused(403, "forbidden");
                }
            }
            for role in ["operator", "admin"] {
                let who = rig.key(&[role]).await;
                let far = rig.key_of("far", &[role], None, &[]).await;
                who.post(&gone, &body).await.refused(404, "not_found");
                let foreign = far.post(&own, &body).await.refused(404, "not_found");
                let never = far.post(&gone, &body).await.refused(404, "not_found");
                assert_eq!(foreign, never);
                let status = if route == "fork" { 201 } else { 200 };
                who.post(&own, &body).await.ok(status);
            }
            rig.nobody().post(&own, &body).await.ok(401);
        }
    }
}

#[tokio::test]
async fn a_rewind_gives_session_keys_their_earlier_values_the_initial_ones_too() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let initial = json!({"kept": [1, {"a": null}], "changed": "first", "removed": 0.5});
        let body = json!({"app": "demo", "state": initial});
        let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
        let change = json!({
            "set": {"changed": "second", "added": true, "user:name": "Ann"}, "delete": ["removed"],
        });
        put(&ann, &session, change).await;
        let later = state(&ann, &session).await;
        let path = format!("/v1/sessions/{session}/rewind");
        let rewound = operator.post(&path, &json!({"to": 1})).await;
        assert_eq!(rewound.ok(200)["revision"], 3);
        assert_eq!(rewound.revision(), 3);
        let mut expected = initial.clone();
        expected["user:name"] = json!("Ann");
        assert_eq!(state(&ann, &session).await, expected, "user: values stay");
        // Back again, to before the rewind.
        operator.post(&path, &json!({"to": 2})).await.ok(200);
        assert_eq!(state(&ann, &session).await, later);
        operator.post(&path, &json!({"to": 3})).await.ok(200);
        assert_eq!(state(&ann, &session).await, expected);
    }
}

#[tokio::test]
async fn a_rewind_takes_later_messages_out_and_cancels_what_runs() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        turn(&helper, &session, "helper", "first", "one").await;
        turn(&helper, &session, "helper", "second", "two").await;
        let live = start(&ann, &session, "helper", "third").await;
        let path = format!("/v1/sessions/{session}");
        let rewound = operator
            .post(&format!("{path}/rewind"), &json!({"to": 2}))
            .await;
        assert_eq!(rewound.ok(200)["status"], "idle");
        let messages = ann.get(&format!("{path}/messages")).await.ok(200);
        let contents = messages["messages"].as_array().expect("a list").iter();
        let contents: Vec<String> = contents.map(|message| text(message, "content")).collect();
        assert_eq!(contents, ["first", "one"]);
        let live = format!("/v1/requests/{}", text(&live, "id"));
        assert_eq!(ann.get(&live).await.ok(200)["status"], "cancelled");
        let records = operator.get(&format!("{path}/records")).await.ok(200);
        assert_eq!(records["records"].as_array().map(Vec::len), Some(5));
    }
}

#[tokio::test]
async fn a_fork_begins_with_the_state_and_messages_of_its_revision_and_says_where_it_comes_from() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let body = json!({"app": "demo", "agent": "helper", "name": "mine", "labels": {"a": "b"}});
        let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        turn(&helper, &session, "helper", "first", "one").await;
        put(&ann, &session, json!({"set": {"n": 2}})).await;
        let path = format!("/v1/sessions/{session}/fork");
        let made = operator.post(&path, &json!({"at": 3})).await;
        let fork = made.ok(201);
        let id = text(&fork, "id");
        assert_ne!(id, session);
        assert_eq!(made.header("x-statehold-session"), Some(id.as_str()));
        assert_eq!(
            fork["forked_from"],
            json!({"session_id": session, "revision": 3})
        );
        assert_eq!(fork["user"], "ann");
        assert_eq!(fork["revision"], 4);
        assert!(fork.get("name").is_none() && fork["labels"] == json!({}));
        assert_eq!(
            ann.get(&format!("/v1/sessions/{id}")).await.ok(200),
            fork,
            "its user reads it"
        );
        assert_eq!(state(&ann, &id).await, json!({"n": 1}));
        let messages = ann.get(&format!("/v1/sessions/{id}/messages")).await;
        let messages = messages.ok(200)["messages"].clone();
        assert_eq!(messages.as_array().map(Vec::len), Some(2));
        // Each goes on alone; the newest revision is the default.
        put(&ann, &id, json!({"set": {"n": 3}})).await;
        assert_eq!(state(&ann, &session).await, json!({"n": 2}));
        let newest = operator.post(&path, &json!({})).await.ok(201);
        assert_eq!(newest["forked_from"]["revision"], 4);
        assert_eq!(state(&ann, &text(&newest, "id")).await, json!({"n": 2}));
        let listed = ann.get("/v1/sessions").await.ok(200);
        assert_eq!(listed["sessions"][0]["forked_from"], newest["forked_from"]);
        let origin = ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
        assert!(origin.get("forked_from").is_none());
    }
}

#[tokio::test]
async fn a_hold_stays_with_the_origin_of_a_fork() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        start(&ann, &session, "helper", "pay").await;
        let claimed = claim(&helper, "helper").await;
        let hold = json!({"kind": "approval", "title": "t", "action": {"tool": "pay", "args": {}}});
        let hold = act(&helper, &claimed, "holds", hold).await.ok(201);
        let path = format!("/v1/sessions/{session}/fork");
        let fork = operator.post(&path, &json!({})).await.ok(201);
        assert_eq!(fork["status"], "idle");
        assert_eq!(fork["pending_total"], 0);
        let read = ann
            .get(&format!("/v1/sessions/{}", text(&fork, "id")))
            .await;
        assert_eq!(read.ok(200)["pending"], json!([]));
        let inbox = boss.get("/v1/holds").await.ok(200);
        assert_eq!(inbox["holds"].as_array().map(Vec::len), Some(1));
        assert_eq!(inbox["holds"][0]["session_id"], session.as_str());
        let decision = json!({"decision": "approve", "digest": hold["action"]["digest"]});
        let path = format!("/v1/holds/{}/decision", text(&hold, "id"));
        boss.post(&path, &decision).await.ok(200);
    }
}

#[tokio::test]
async fn a_revision_that_is_not_in_the_past_is_refused_with_the_current_one() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let session = new_session(&ann).await;
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        let path = format!("/v1/sessions/{session}");
        for to in [0_u64, 2, 3, 1_u64 << 40] {
            let refused = operator
                .post(&format!("{path}/rewind"), &json!({"to": to}))
                .await;
            let problem = refused.refused(422, "invalid_body");
            assert_eq!(
                (&problem["path"], &problem["current"]),
                (&json!("to"), &json!(2))
            );
        }
        for at in [0_u64, 3, 1_u64 << 40] {
            let refused = operator
                .post(&format!("{path}/fork"), &json!({"at": at}))
                .await;
            assert_eq!(refused.refused(422, "invalid_body")["path"], "at");
        }
        for body in [
            json!({}),
            json!({"to": "1"}),
            json!({"to": -1}),
            json!({"to": 1, "x": 1}),
        ] {
            let refused = operator.post(&format!("{path}/rewind"), &body).await;
            refused.refused(422, "invalid_body");
        }
        let closed = ann.post(&format!("{path}/close"), &json!({})).await;
        closed.ok(200);
        let rewind = operator
            .post(&format!("{path}/rewind"), &json!({"to": 1}))
            .await;
        rewind.refused(409, "session_closed");
        let fork = operator.post(&format!("{path}/fork"), &json!({})).await;
        assert_eq!(fork.ok(201)["status"], "idle", "a closed session is copied");
        ann.delete(&path).await.ok(204);
        for (route, body) in [("fork", json!({"at": 1})), ("rewind", json!({"to": 1}))] {
            let refused = operator.post(&format!("{path}/{route}"), &body).await;
            refused.refused(404, "not_found");
        }
    }
}

#[tokio::test]
async fn forks_and_rewinds_keep_their_answers_and_their_conditions() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        for (route, body) in [("fork", "{}"), ("rewind", r#"{"to":1}"#)] {
            let session = new_session(&ann).await;
            put(&ann, &session, json!({"set": {"n": 1}})).await;
            let path = format!("/v1/sessions/{session}/{route}");
            let stale = [("if-match", "\"1\"")];
            let refused = operator.send("POST", &path, &stale, body).await;
            assert_eq!(refused.refused(412, "revision_mismatch")["current"], 2);
            let headers = [("if-match", "\"2\""), ("idempotency-key", route)];
            let first = operator.send("POST", &path, &headers, body).await;
            assert!(first.status < 300, "{}", first.text());
            put(&ann, &session, json!({"set": {"n": 2}})).await;
            let again = operator.send("POST", &path, &headers, body).await;
            assert_eq!(again.status, first.status, "{}", again.text());
            assert_eq!(again.body, first.body);
            assert_eq!(again.header("etag"), first.header("etag"));
            assert_eq!(again.header("idempotency-replayed"), Some("true"));
            let other = if route == "fork" {
                r#"{"at":1}"#
            } else {
                r#"{"to":2}"#
            };
            let changed = operator.send("POST", &path, &headers[1..], other).await;
            changed.refused(422, "key_reused");
        }
        let sessions = ann.get("/v1/sessions").await.ok(200);
        assert_eq!(sessions["sessions"].as_array().map(Vec::len), Some(3));
    }
}

#[tokio::test]
async fn a_revision_before_a_fork_is_forked_while_its_origin_is_there() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let session = new_session(&ann).await;
        put(&ann, &session, json!({"set": {"n": 1}})).await;
        let path = format!("/v1/sessions/{session}");
        let fork = operator.post(&format!("{path}/fork"), &json!({})).await;
        let fork = format!("/v1/sessions/{}/fork", text(&fork.ok(201), "id"));
        let older = operator.post(&fork, &json!({"at": 1})).await.ok(201);
        assert_eq!(older["forked_from"]["session_id"], session.as_str());
        ann.delete(&path).await.ok(204);
        let refused = operator.post(&fork, &json!({"at": 1})).await;
        assert_eq!(refused.refused(422, "invalid_body")["path"], "at");
        operator.post(&fork, &json!({"at": 3})).await.ok(201);
    }
}

/// The digest of everything that a client reads of a session: its values, and its messages without their times.
async fn digest(who: &Who, session: &str) -> Digest {
    let messages = format!("/v1/sessions/{session}/messages?limit=200");
    let messages = who.get(&messages).await.ok(200)["messages"].clone();
    let said: Vec<_> = messages.as_array().into_iter().flatten().collect();
    let said = said
        .iter()
        .map(|one| json!([one["seq"], one["role"], one["content"]]));
    let said: Vec<Value> = said.collect();
    let all = json!([state(who, session).await, said]);
    Digest::sha256(&canonical_bytes(&all))
}

#[tokio::test]
async fn a_fork_and_a_rewind_have_exactly_the_state_of_every_revision() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, worker) = (rig.client("ann").await, rig.key(&["worker"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session(&ann).await;
        let mut known = vec![(1, digest(&ann, &session).await)];
        for n in 0..40_u64 {
            let key = format!("k{}", n * 7 % 5);
            let change = match n % 6 {
                0 => json!({"set": {key: n, "other": {"n": n}}}),
                1 => json!({"append": {"log/": [n, n + 1]}}),
                2 => json!({"set": {"sum": 1}, "merge": {"sum": "add"}}),
                3 => json!({"delete": [key, "sum"]}),
                4 => json!({"delete_prefix": ["log/"], "set": {"log/0": n}}),
                _ => Value::Null,
            };
            let revision = if change.is_null() {
                turn(&worker, &session, "demo", "again", &format!("{n} times")).await;
                let found = ann.get(&format!("/v1/sessions/{session}")).await;
                found.ok(200)["revision"].as_u64().expect("a revision")
            } else {
                put(&ann, &session, change).await
            };
            known.push((revision, digest(&ann, &session).await));
        }
        for (revision, expected) in &known {
            let path = format!("/v1/sessions/{session}/fork");
            let fork = operator.post(&path, &json!({"at": revision})).await;
            let fork = text(&fork.ok(201), "id");
            assert_eq!(digest(&ann, &fork).await, *expected, "fork at {revision}");
        }
        let rewind = format!("/v1/sessions/{session}/rewind");
        for (revision, expected) in known.iter().rev().skip(1) {
            let to = json!({"to": revision});
            operator.post(&rewind, &to).await.ok(200);
            assert_eq!(digest(&ann, &session).await, *expected, "at {revision}");
        }
        // Later revisions are taken back now. A fork still has them.
        let (revision, expected) = &known[30];
        let refused = operator.post(&rewind, &json!({"to": revision})).await;
        assert_eq!(refused.refused(422, "invalid_body")["path"], "to");
        let path = format!("/v1/sessions/{session}/fork");
        let fork = operator.post(&path, &json!({"at": revision})).await;
        let fork = text(&fork.ok(201), "id");
        assert_eq!(digest(&ann, &fork).await, *expected);
    }
}
