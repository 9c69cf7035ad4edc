//! The difference between two revisions, and who made it.

use serde_json::{Value, json};

use super::{act, claim, new_session, new_session_of, start, turn};
use crate::rig::{Rig, Who, text};

async fn put(who: &Who, session: &str, body: Value) -> u64 {
    let path = format!("/v1/sessions/{session}/state");
    who.patch(&path, &body).await.revision()
}

async fn diff(who: &Who, session: &str, query: &str) -> Value {
    let path = format!("/v1/sessions/{session}/diff{query}");
    who.get(&path).await.ok(200)
}

/// All changes of a difference, page by page, and the ranges of the pages.
async fn pages(who: &Who, session: &str, query: &str) -> (Vec<Value>, Vec<(u64, u64)>) {
    let (mut changes, mut ranges) = (Vec::new(), Vec::new());
    let mut next = query.to_owned();
    loop {
        let page = diff(who, session, &next).await;
        changes.extend(page["changes"].as_array().expect("a list").iter().cloned());
        let number = |name: &str| page[name].as_u64().expect("a number");
        ranges.push((number("from"), number("to")));
        match page["next_cursor"].as_str() {
            Some(cursor) => next = format!("{query}&cursor={cursor}"),
            None => return (changes, ranges),
        }
    }
}

#[tokio::test]
async fn a_difference_has_each_changed_key_before_and_after_and_who_wrote_it() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let body = json!({"app": "demo", "agent": "helper", "state": {"a": 1, "b": 1, "kept": 1}});
        let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
        put(
            &ann,
            &session,
            json!({"set": {"a": 2, "brief": 1, "user:x": 1}}),
        )
        .await;
        start(&ann, &session, "helper", "go").await;
        let claimed = claim(&helper, "helper").await;
        let items = json!({
            "items": [{"kind": "message", "role": "assistant", "visibility": "hidden", "content": "secret-7"}],
            "state": {"set": {"a": 3, "c": {"d": null}}},
        });
        let wrote = act(&helper, &claimed, "items", items).await.revision();
        let removed = put(&ann, &session, json!({"delete": ["b", "brief"]})).await;
        let page = diff(&operator, &session, "?from=1").await;
        assert_eq!((&page["from"], &page["to"]), (&json!(1), &json!(removed)));
        let changes = page["changes"].as_array().expect("a list");
        let keys: Vec<String> = changes.iter().map(|change| text(change, "key")).collect();
        assert_eq!(keys, ["a", "b", "c"], "`brief` came and went");
        let [a, b, c] = &changes[..] else {
            unreachable!("three keys")
        };
        assert_eq!(a["before"], json!({"version": 1, "bytes": 1, "value": 1}));
        assert_eq!(
            a["after"],
            json!({"version": wrote, "bytes": 1, "value": 3})
        );
        assert_eq!((&a["writes"], &a["revision"]), (&json!(2), &json!(wrote)));
        assert_eq!(a["request_id"], claimed["id"]);
        assert_eq!(a["command"], "append_items");
        let records = operator
            .get(&format!("/v1/sessions/{session}/records"))
            .await;
        for change in changes {
            let body = records.ok(200);
            let mut all = body["records"].as_array().into_iter().flatten();
            let record = all.find(|record| record["seq"] == change["revision"]);
            let record = record.expect("a record with the revision of the change");
            let named = &body["names"][text(record, "principal")];
            let by = if named.is_null() {
                &record["principal"]
            } else {
                named
            };
            assert_eq!(change["by"], *by);
            assert!(change["at"].is_string());
        }
        assert_eq!(b["before"]["value"], 1);
        assert!(b.get("after").is_none() && b.get("request_id").is_none());
        assert_eq!(b["revision"], removed);
        assert!(c.get("before").is_none());
        assert_eq!(c["after"]["value"], json!({"d": null}));
        let messages = page["messages"].as_array().expect("a list");
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0]["visibility"], "visible");
        assert_eq!(messages[1]["visibility"], "hidden");
        assert!(!page.to_string().contains("secret-7"), "ids, no content");
        let none = diff(&operator, &session, "?from=2&to=2").await;
        assert_eq!(
            (&none["changes"], &none["messages"]),
            (&json!([]), &json!([]))
        );
        let first = diff(&operator, &session, "?to=1").await;
        let first: Vec<String> = first["changes"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|change| text(change, "key"))
            .collect();
        assert_eq!(
            first,
            ["a", "b", "kept"],
            "initial state has its writer too"
        );
    }
}

#[tokio::test]
async fn a_rewind_is_a_difference_that_says_where_its_values_come_from() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let body = json!({"app": "demo", "state": {"a": "initial"}});
        let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
        put(&ann, &session, json!({"set": {"a": 2, "b": 2}})).await;
        let path = format!("/v1/sessions/{session}/rewind");
        operator.post(&path, &json!({"to": 1})).await.ok(200);
        let page = diff(&operator, &session, "?from=2").await;
        assert_eq!(page["rewinds"], json!([{"revision": 3, "to": 1}]));
        let (a, b) = (&page["changes"][0], &page["changes"][1]);
        assert_eq!(
            a["after"],
            json!({"version": 3, "bytes": 9, "value": "initial"})
        );
        assert_eq!(
            (&a["restored_from"], &a["command"]),
            (&json!(1), &json!("rewind"))
        );
        assert!(b.get("after").is_none());
        let fork = format!("/v1/sessions/{session}/fork");
        let fork = text(&operator.post(&fork, &json!({})).await.ok(201), "id");
        put(&ann, &fork, json!({"set": {"a": 5}})).await;
        let page = diff(&operator, &fork, "?from=2").await;
        assert_eq!(page["changes"][0]["before"]["value"], 2, "before the fork");
        assert_eq!(page["changes"][0]["after"]["value"], 5);
    }
}

#[tokio::test]
async fn a_difference_comes_in_pages_of_records_and_of_bytes() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let session = new_session(&ann).await;
        for n in 0..5 {
            put(&ann, &session, json!({"set": {"n": n}})).await;
        }
        let (changes, ranges) = pages(&operator, &session, "?limit=2").await;
        assert_eq!(ranges, [(0, 2), (2, 4), (4, 6)]);
        let steps: Vec<_> = changes
            .iter()
            .map(|change| (&change["before"]["value"], &change["after"]["value"]))
            .collect();
        let expected = [
            (Value::Null, json!(0)),
            (json!(0), json!(2)),
            (json!(2), json!(4)),
        ];
        assert_eq!(steps.len(), 3);
        for (found, expected) in steps.iter().zip(&expected) {
            assert_eq!((found.0, found.1), (&expected.0, &expected.1));
        }
        let (every, _) = pages(&operator, &session, "?every_write=true&key=n&limit=4").await;
        let revisions: Vec<_> = every
            .iter()
            .map(|change| change["revision"].as_u64())
            .collect();
        assert_eq!(revisions, (2..=6).map(Some).collect::<Vec<_>>());
        // One record with more than a page of values, and one value that is too long for any.
        let short = "x".repeat(16_000);
        let mut set: serde_json::Map<String, Value> = (0..100)
            .map(|n| (format!("k{n:03}"), json!(short)))
            .collect();
        set.insert("long".into(), json!("x".repeat(20_000)));
        put(&ann, &session, json!({ "set": set })).await;
        let (changes, ranges) = pages(&operator, &session, "?from=6").await;
        assert_eq!(ranges, [(6, 7), (6, 7)]);
        let keys: std::collections::BTreeSet<_> =
            changes.iter().map(|change| text(change, "key")).collect();
        assert_eq!((keys.len(), changes.len()), (101, 101));
        let long = changes.iter().find(|change| change["key"] == "long");
        let long = &long.expect("it changed")["after"];
        assert_eq!(*long, json!({"version": 7, "bytes": 20_002}));
    }
}

#[tokio::test]
async fn a_cursor_stays_at_the_newest_revision_of_the_first_page() {
    let rig = Rig::on_disk().await;
    let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
    let session = new_session(&ann).await;
    put(&ann, &session, json!({"set": {"n": 1}})).await;
    let first = diff(&operator, &session, "?limit=1").await;
    put(&ann, &session, json!({"set": {"n": 2}})).await;
    let cursor = text(&first, "next_cursor");
    let second = diff(&operator, &session, &format!("?limit=5&cursor={cursor}")).await;
    assert_eq!(
        (&second["to"], second.get("next_cursor")),
        (&json!(2), None)
    );
    let path = format!("/v1/sessions/{session}/diff?from=1&cursor={cursor}");
    operator.get(&path).await.refused(400, "bad_cursor");
}

#[tokio::test]
async fn differences_need_the_right_to_read_records() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let session = new_session_of(&ann, "helper").await;
        turn(&helper, &session, "helper", "a", "b").await;
        let missing = format!("{}beef", &session[..session.len() - 4]);
        for query in ["", "?from=1&to=2", "?from=99", "?key=n&every_write=true"] {
            let (own, gone) = (
                format!("/v1/sessions/{session}/diff{query}"),
                format!("/v1/sessions/{missing}/diff{query}"),
            );
            for role in ["client", "worker", "approver"] {
                let anns = rig.key_for(&[role], Some("ann"), &[]).await;
                anns.get(&own).await.refused(403, "forbidden");
                anns.get(&gone).await.refused(403, "forbidden");
            }
            for role in ["operator", "admin"] {
                let far = rig.key_of("far", &[role], None, &[]).await;
                let foreign = far.get(&own).await.refused(404, "not_found");
                assert_eq!(foreign, far.get(&gone).await.refused(404, "not_found"));
                let who = rig.key(&[role]).await;
                let status = if query == "?from=99" { 400 } else { 200 };
                who.get(&own).await.ok(status);
                who.get(&gone).await.refused(404, "not_found");
            }
            rig.nobody().get(&own).await.refused(401, "unauthenticated");
        }
        let operator = rig.key(&["operator"]).await;
        for query in [
            "?from=2&to=1",
            "?to=99",
            "?key=user:x",
            "?key=",
            "?from=-1",
            "?limit=0",
        ] {
            let path = format!("/v1/sessions/{session}/diff{query}");
            operator.get(&path).await.refused(400, "bad_query");
        }
        ann.delete(&format!("/v1/sessions/{session}")).await.ok(204);
        let path = format!("/v1/sessions/{session}/diff");
        operator.get(&path).await.refused(404, "not_found");
    }
}
