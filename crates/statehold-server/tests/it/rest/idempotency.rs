use serde_json::json;

use super::{act, claim, new_session, start};
use crate::rig::{Answer, Rig, Who, text};

#[track_caller]
fn check_replay(first: &Answer, again: &Answer) {
    assert!((200..300).contains(&first.status), "{}", first.text());
    assert_eq!(again.status, first.status, "{}", again.text());
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    for name in [
        "etag",
        "x-statehold-session",
        "x-statehold-request",
        "x-statehold-task",
    ] {
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
}

/// Makes one call of each kind under a key, and gives what it sent and what came back.
async fn one_of_each(
    rig: &Rig,
    ann: &Who,
    helper: &Who,
    boss: &Who,
) -> Vec<(Who, String, String, String, Answer)> {
    let mut made = Vec::new();
    let mut number = 0;
    let mut call = async |who: &Who, method: &str, path: String, body: String| {
        number += 1;
        let key = format!("key-{number}");
        let answer = who
            .send(method, &path, &[("idempotency-key", &key)], body.clone())
            .await;
        assert!(
            (200..300).contains(&answer.status),
            "{method} {path} {}",
            answer.text()
        );
        made.push((who.clone(), method.to_owned(), path, body, answer.clone()));
        answer
    };
    let admin = rig.key(&["admin"]).await;
    let session = call(
        ann,
        "POST",
        "/v1/sessions".into(),
        r#"{"app":"demo","name":"n"}"#.into(),
    )
    .await;
    let session = text(&session.ok(201), "id");
    let path = format!("/v1/sessions/{session}");
    call(ann, "PATCH", path.clone(), r#"{"labels":{"a":"b"}}"#.into()).await;
    call(
        ann,
        "PATCH",
        format!("{path}/state"),
        r#"{"set":{"n":1},"merge":{"n":"add"}}"#.into(),
    )
    .await;
    call(
        ann,
        "PATCH",
        "/v1/state/user/demo/ann".into(),
        r#"{"set":{"n":1},"merge":{"n":"add"}}"#.into(),
    )
    .await;
    call(
        &admin,
        "PATCH",
        "/v1/state/app/demo".into(),
        r#"{"set":{"n":1}}"#.into(),
    )
    .await;
    call(
        ann,
        "POST",
        format!("{path}/requests"),
        r#"{"agent":"helper","input":"x"}"#.into(),
    )
    .await;
    let claimed = claim(helper, "helper").await;
    let request = format!("/v1/requests/{}", text(&claimed, "id"));
    let items = r#"{"fence":1,"items":[{"kind":"note","data":1}]}"#;
    call(helper, "POST", format!("{request}/items"), items.into()).await;
    let hold = r#"{"fence":1,"kind":"approval","title":"t","action":{"tool":"pay","args":{}}}"#;
    let hold = call(helper, "POST", format!("{request}/holds"), hold.into())
        .await
        .ok(201);
    let decision =
        json!({"decision": "approve", "digest": hold["action"]["digest"], "comment": "fine"});
    let hold = format!("/v1/holds/{}/decision", text(&hold, "id"));
    call(boss, "POST", hold, decision.to_string()).await;
    call(
        helper,
        "POST",
        format!("{request}/complete"),
        r#"{"fence":1,"output":"y"}"#.into(),
    )
    .await;
    let next = call(
        ann,
        "POST",
        format!("{path}/requests"),
        r#"{"agent":"helper","input":"z"}"#.into(),
    )
    .await;
    let next = text(&next.ok(201), "id");
    call(
        ann,
        "POST",
        format!("/v1/requests/{next}/cancel"),
        "{}".into(),
    )
    .await;
    let task = text(&claimed, "task_id");
    call(ann, "POST", format!("/v1/tasks/{task}/close"), "{}".into()).await;
    call(ann, "POST", format!("{path}/close"), "{}".into()).await;
    made
}

#[tokio::test]
async fn the_same_call_under_the_same_key_gets_the_same_bytes_also_after_a_restart() {
    let rig = Rig::on_disk().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let made = one_of_each(&rig, &ann, &helper, &boss).await;
    let replay = async |address| {
        for (index, (who, method, path, body, first)) in made.iter().enumerate() {
            let who = Who {
                address,
                ..who.clone()
            };
            let key = format!("key-{}", index + 1);
            let headers = [("idempotency-key", key.as_str())];
            let again = who.send(method, path, &headers, body.clone()).await;
            check_replay(first, &again);
        }
    };
    replay(rig.address).await;
    let session = text(&made[0].4.ok(201), "id");
    let read = ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
    let rig = rig.restart().await;
    replay(rig.address).await;
    let ann = Who {
        address: rig.address,
        ..ann
    };
    let after = ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
    assert_eq!(after, read, "nothing was done twice");
}

#[tokio::test]
async fn a_delete_is_replayed_when_there_is_nothing_left() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let path = format!("/v1/sessions/{}", new_session(&ann).await);
    let key = [("idempotency-key", "gone")];
    let first = ann.send("DELETE", &path, &key, "").await;
    let again = ann.send("DELETE", &path, &key, "").await;
    check_replay(&first, &again);
}

#[tokio::test]
async fn refusals_are_not_kept() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let path = format!("/v1/sessions/{session}/close");
    let key = [("idempotency-key", "close")];
    ann.send("POST", &path, &key, "{}")
        .await
        .refused(409, "requests_live");
    let claimed = claim(&helper, "helper").await;
    act(&helper, &claimed, "complete", json!({"output": "y"}))
        .await
        .ok(200);
    ann.send("POST", &path, &key, "{}").await.ok(200);
}

#[tokio::test]
async fn a_key_must_be_visible_ascii_and_stands_for_one_call() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let long = "x".repeat(256);
    for bad in ["", "a b", "é", &long, "a\tb"] {
        ann.send(
            "POST",
            "/v1/sessions",
            &[("idempotency-key", bad)],
            r#"{"app":"demo"}"#,
        )
        .await
        .refused(400, "bad_header");
    }
    let key = [("idempotency-key", "k")];
    ann.send("POST", "/v1/sessions", &key, r#"{"app":"demo"}"#)
        .await
        .ok(201);
    ann.send("POST", "/v1/sessions", &key, r#"{"app":"other"}"#)
        .await
        .refused(422, "key_reused");
    let session = new_session(&ann).await;
    ann.send("DELETE", &format!("/v1/sessions/{session}"), &key, "")
        .await
        .refused(422, "key_reused");
}

#[tokio::test]
async fn a_repeat_that_names_its_own_call_gets_the_same_bytes_after_the_request_ended() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let session = new_session(&ann).await;
        start(&ann, &session, "helper", "x").await;
        let claimed = claim(&helper, "helper").await;
        let call =
            |id: &str| json!({"kind": "tool_call", "name": "t", "call_id": id, "arguments": {}});
        let result = |id: &str| json!({"kind": "tool_result", "call_id": id, "result": 1});
        let calls = json!({"items": [call("one"), call("two"), call("three")]});
        act(&helper, &claimed, "items", calls).await.ok(200);
        let fence = &claimed["fence"];
        let made = [
            ("items", json!({"fence": fence, "items": [result("one")]})),
            (
                "holds",
                json!({"fence": fence, "kind": "question", "title": "?", "items": [result("two")]}),
            ),
            (
                "complete",
                json!({"fence": fence, "output": "done", "items": [result("three")],
                       "cancel_children": true}),
            ),
        ];
        let send = async |what: &str, body: &serde_json::Value| {
            let path = format!("/v1/requests/{}/{what}", text(&claimed, "id"));
            let key = [("idempotency-key", what)];
            helper.send("POST", &path, &key, body.to_string()).await
        };
        let mut first = Vec::new();
        for (what, body) in &made {
            let answer = send(what, body).await;
            if *what == "holds" {
                let hold = text(&answer.ok(201), "id");
                let decision = json!({"decision": "respond", "content": "yes"});
                let path = format!("/v1/holds/{hold}/decision");
                ann.post(&path, &decision).await.ok(200);
            }
            first.push(answer);
        }
        for ((what, body), first) in made.iter().zip(&first) {
            check_replay(first, &send(what, body).await);
        }
        // Under a new key it is a new call, and the request has ended.
        let late = act(
            &helper,
            &claimed,
            "items",
            json!({"items": [result("one")]}),
        )
        .await;
        assert!((400..500).contains(&late.status), "{}", late.text());
    }
}
