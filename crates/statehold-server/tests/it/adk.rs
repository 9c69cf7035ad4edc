//! The session routes of ADK's API server: rights, repeats, revisions and times. `scripts/test-adk` holds the same
//! routes to ADK's own contract.

use serde_json::{Value, json};

use crate::rest::{act, claim, start};
use crate::rig::{Answer, Rig, Who, text, until};

const ANN: &str = "/apps/shop/users/ann/sessions";

fn of_ann(id: &str) -> String {
    format!("{ANN}/{id}")
}

fn event(id: &str, time: f64) -> Value {
    json!({"id": id, "author": "user", "invocationId": "e-1", "timestamp": time,
        "content": {"role": "user", "parts": [{"text": id}]}})
}

fn wrote(id: &str, delta: &Value) -> Value {
    json!({"id": id, "author": "agent", "invocationId": "e-1", "timestamp": 5.0, "actions": {"stateDelta": delta}})
}

async fn create(who: &Who, id: &str, state: &Value) -> Value {
    let body = json!({"sessionId": id, "state": state});
    who.post(ANN, &body).await.ok(200)
}

async fn append(who: &Who, id: &str, event: &Value, revision: Option<u64>) -> Answer {
    let body = json!({"event": event, "revision": revision});
    who.post(&format!("{}/events", of_ann(id)), &body).await
}

async fn read(who: &Who, id: &str) -> Value {
    who.get(&of_ann(id)).await.ok(200)
}

/// The native id of a session.
async fn native(who: &Who, id: &str) -> String {
    let answer = who.get(&of_ann(id)).await;
    let id = answer.header("x-statehold-session");
    id.expect("the answer names the session").to_owned()
}

fn ids(session: &Value) -> Vec<&str> {
    let events = session["events"].as_array().expect("events");
    events
        .iter()
        .filter_map(|event| event["id"].as_str())
        .collect()
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) -> Value {
    let body = answer.ok(status);
    assert_eq!(answer.header("x-statehold-error"), Some(code), "{body}");
    body["detail"].clone()
}

#[tokio::test]
async fn a_foreign_session_answers_like_a_missing_one() {
    let rig = Rig::in_memory().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    create(&ann, "s1", &json!({"k": 1, "user:u": 2})).await;
    for who in [&bob, &rig.key_of("other", &["client"], None, &[]).await] {
        for id in ["s1", "missing"] {
            let path = of_ann(id);
            let gone = json!("Session not found");
            assert_eq!(refused(&who.get(&path).await, 404, "not_found"), gone);
            let delta = json!({"stateDelta": {"k": 2}});
            assert_eq!(
                refused(&who.patch(&path, &delta).await, 404, "not_found"),
                gone
            );
            let appended = append(who, id, &event("e", 1.0), None).await;
            assert_eq!(refused(&appended, 404, "not_found"), gone);
            // ADK deletes missing sessions without an error.
            assert_eq!(who.delete(&path).await.ok(200), Value::Null);
        }
        for user in ["ann", "nobody"] {
            let list = who.get(&format!("/apps/shop/users/{user}/sessions")).await;
            assert_eq!(list.ok(200), json!([]));
        }
    }
    for user in ["ann", "nobody"] {
        let created = bob
            .post(&format!("/apps/shop/users/{user}/sessions"), &json!({}))
            .await;
        refused(&created, 404, "not_found");
        refused(
            &bob.get(&format!("/apps/shop/users/{user}/state")).await,
            404,
            "not_found",
        );
    }
    assert_eq!(
        read(&ann, "s1").await["state"],
        json!({"k": 1, "user:u": 2})
    );
    rig.stop().await;
}

#[tokio::test]
async fn a_client_appends_to_its_own_sessions_and_reads_its_events_whole() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    create(&ann, "s1", &json!({})).await;
    let call = json!({"id": "e2", "author": "agent", "timestamp": 2.5, "unknown": [1, null],
        "content": {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"n": 1}}}]}});
    for one in [
        event("e1", 1.0),
        call.clone(),
        wrote("e3", &json!({"k": 1, "temp:t": 2})),
    ] {
        append(&ann, "s1", &one, None).await.ok(200);
    }
    let session = read(&ann, "s1").await;
    assert_eq!(session["events"][1], call);
    assert_eq!(
        session["events"][2]["actions"]["stateDelta"],
        json!({"k": 1})
    );
    assert_eq!(session["state"], json!({"k": 1}));
    // The native client view has the messages; an event that is none stays hidden there.
    let messages = ann
        .get(&format!(
            "/v1/sessions/{}/messages",
            native(&ann, "s1").await
        ))
        .await;
    let messages = messages.ok(200)["messages"].clone();
    assert_eq!(messages.as_array().map(Vec::len), Some(1), "{messages}");
    assert_eq!(messages[0]["content"], "e1");
    rig.stop().await;
}

#[tokio::test]
async fn only_an_admin_writes_app_keys_on_every_route() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    create(&ann, "s1", &json!({})).await;
    let worker = rig.key(&["client", "worker"]).await;
    for who in [&ann, &worker] {
        let app = json!({"app:a": 1, "k": 1});
        let body = json!({"sessionId": "s2", "state": app});
        refused(&who.post(ANN, &body).await, 403, "forbidden");
        let patched = who.patch(&of_ann("s1"), &json!({"stateDelta": app})).await;
        refused(&patched, 403, "forbidden");
        let appended = append(who, "s1", &wrote("e1", &app), None).await;
        refused(&appended, 403, "forbidden");
    }
    let session = read(&ann, "s1").await;
    assert_eq!((&session["state"], ids(&session).len()), (&json!({}), 0));
    refused(&ann.get(&of_ann("s2")).await, 404, "not_found");
    let admin = rig.key(&["client", "admin"]).await;
    append(&admin, "s1", &wrote("e1", &json!({"app:a": 1})), None)
        .await
        .ok(200);
    assert_eq!(read(&ann, "s1").await["state"], json!({"app:a": 1}));
    rig.stop().await;
}

#[tokio::test]
async fn an_event_of_any_age_is_stored_once() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    create(&ann, "s1", &json!({})).await;
    let first = append(&ann, "s1", &event("first", 1.0), None).await;
    let first = (first.ok(200), first.revision());
    // More than the newest requests of a session that an index of chats knows.
    for n in 0..300 {
        append(&ann, "s1", &event(&format!("e{n}"), 2.0), None)
            .await
            .ok(200);
    }
    let rig = rig.restart().await;
    let ann = Who {
        address: rig.address,
        ..ann
    };
    for revision in [None, Some(2), Some(9_999)] {
        let again = append(&ann, "s1", &event("first", 1.0), revision).await;
        assert_eq!((again.ok(200), again.revision()), first);
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
    }
    let other = append(&ann, "s1", &event("first", 7.0), None).await;
    refused(&other, 409, "event_taken");
    assert_eq!(ids(&read(&ann, "s1").await).len(), 301);
    rig.stop().await;
}

#[tokio::test]
async fn calls_at_once_store_each_event_once_and_none_is_lost() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    create(&ann, "s1", &json!({})).await;
    let calls = (0..16).map(|n| {
        let ann = ann.clone();
        tokio::spawn(async move {
            let event = event(&format!("e{}", n % 4), 1.0);
            append(&ann, "s1", &event, None).await
        })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        call.await.expect("no panic").ok(200);
    }
    let session = read(&ann, "s1").await;
    let mut stored = ids(&session);
    stored.sort_unstable();
    assert_eq!(stored, ["e0", "e1", "e2", "e3"]);
    rig.stop().await;
}

#[tokio::test]
async fn a_stale_writer_is_refused_whatever_the_times_of_events_are() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let begun = create(&ann, "s1", &json!({})).await["lastUpdateTime"].as_f64();
    let begun = begun.expect("a time");
    let stale = ann.get(&of_ann("s1")).await.revision();
    // Equal, later, and from 1970.
    for (n, time) in [begun, begun + 3_600.0, 1.0].into_iter().enumerate() {
        let now = ann.get(&of_ann("s1")).await.revision();
        append(&ann, "s1", &event(&format!("ok{n}"), time), Some(now))
            .await
            .ok(200);
        for late in [begun, begun + 7_200.0, 1.0] {
            let answer = append(&ann, "s1", &event("late", late), Some(stale)).await;
            let said = refused(&answer, 409, "revision_mismatch");
            assert!(
                said.as_str()
                    .is_some_and(|said| said.contains("modified in storage"))
            );
        }
    }
    assert_eq!(ids(&read(&ann, "s1").await), ["ok0", "ok1", "ok2"]);
    rig.stop().await;
}

#[tokio::test]
async fn the_time_of_a_session_never_goes_back() {
    let rig = Rig::in_memory().await;
    let (ann, worker) = (
        rig.client("ann").await,
        rig.key(&["client", "worker"]).await,
    );
    let begun = create(&ann, "s1", &json!({})).await["lastUpdateTime"].as_f64();
    let later = begun.expect("a time") + 3_600.0;
    append(&ann, "s1", &event("e1", later), None).await.ok(200);
    append(&ann, "s1", &event("e2", 1.0), None).await.ok(200);
    assert_eq!(read(&ann, "s1").await["lastUpdateTime"], later);
    // Native turns after it, and the end of the task that has the events.
    let session = native(&ann, "s1").await;
    for n in 0..6 {
        let turn = json!({"agent": "helper", "input": n.to_string(), "lease": {"ttl_seconds": 60},
            "output": "done"});
        worker
            .post(&format!("/v1/sessions/{session}/requests"), &turn)
            .await
            .ok(201);
    }
    assert_eq!(read(&ann, "s1").await["lastUpdateTime"], later);
    let tree = ann
        .get(&format!("/v1/sessions/{session}/tree"))
        .await
        .ok(200);
    let task = text(&tree["tasks"][0], "id");
    ann.post(&format!("/v1/tasks/{task}/close"), &json!({}))
        .await
        .ok(200);
    assert_eq!(read(&ann, "s1").await["lastUpdateTime"], later);
    let list = ann.get(ANN).await.ok(200);
    assert_eq!(list[0]["lastUpdateTime"], later);
    let appended = append(&ann, "s1", &event("e3", 2.0), None).await.ok(200);
    assert_eq!(appended["lastUpdateTime"], later);
    rig.stop().await;
}

#[tokio::test]
async fn a_rewind_gives_back_the_state_that_a_session_began_with() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    create(&ann, "s1", &json!({"k": {"first": true}, "other": 1})).await;
    let change = wrote("e1", &json!({"k": 2, "new": 3, "user:u": 4}));
    append(&ann, "s1", &change, None).await.ok(200);
    // ADK's own rewind takes the values for absent, since no event has them.
    let rewind = json!({"id": "r1", "author": "user", "invocationId": "e-2", "timestamp": 6.0,
        "actions": {"rewindBeforeInvocationId": "e-1", "stateDelta": {"k": null, "new": null}}});
    let stored = append(&ann, "s1", &rewind, None).await.ok(200)["event"].clone();
    assert_eq!(
        stored["actions"]["stateDelta"],
        json!({"k": {"first": true}, "new": null})
    );
    let state = json!({"k": {"first": true}, "other": 1, "new": null, "user:u": 4});
    assert_eq!(read(&ann, "s1").await["state"], state);
    append(&ann, "s1", &rewind, None).await.ok(200);
    assert_eq!(ids(&read(&ann, "s1").await), ["e1", "r1"]);
    rig.stop().await;
}

#[tokio::test]
async fn a_session_written_natively_is_read_over_adk() {
    let rig = Rig::in_memory().await;
    let worker = rig.key(&["client", "worker"]).await;
    let session = json!({"app": "shop", "user": "ann", "agent": "helper", "state": {"k": 1}});
    let session = text(&worker.post("/v1/sessions", &session).await.ok(201), "id");
    let turn = json!({"agent": "helper", "input": "hello", "lease": {"ttl_seconds": 60}, "output": "hi",
        "items": [{"kind": "note", "visibility": "hidden", "content": "secret"}]});
    worker
        .post(&format!("/v1/sessions/{session}/requests"), &turn)
        .await
        .ok(201);
    let ann = rig.client("ann").await;
    let loaded = read(&ann, &session).await;
    let said = loaded["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| {
            let content = &event["content"];
            (
                text(event, "author"),
                text(content, "role"),
                text(&content["parts"][0], "text"),
            )
        });
    let said: Vec<_> = said.collect();
    let line = |author: &str, role: &str, text: &str| (author.into(), role.into(), text.into());
    assert_eq!(
        said,
        [line("user", "user", "hello"), line("helper", "model", "hi")]
    );
    assert_eq!(
        (&loaded["id"], &loaded["state"]),
        (&json!(session), &json!({"k": 1}))
    );
    assert!(!loaded.to_string().contains("secret"));
    append(&ann, &session, &event("e1", 1.0), None)
        .await
        .ok(200);
    assert_eq!(ids(&read(&ann, &session).await).len(), 3);
    rig.stop().await;
}

#[tokio::test]
async fn a_worker_bound_to_agents_appends_in_sessions_of_its_agents_only() {
    let rig = Rig::in_memory().await;
    let client = rig.key(&["client"]).await;
    for agent in ["helper", "other"] {
        let session = json!({"app": "shop", "user": "ann", "agent": agent, "name": agent});
        client.post("/v1/sessions", &session).await.ok(201);
    }
    let worker = rig.worker(&["helper"]).await;
    append(&worker, "helper", &event("e1", 1.0), None)
        .await
        .ok(200);
    let foreign = append(&worker, "other", &event("e1", 1.0), None).await;
    refused(&foreign, 404, "not_found");
    let claim = json!({"agent": "statehold.adk", "worker": "w"});
    let claimed = client.post("/v1/work/claim", &claim).await;
    claimed.refused(403, "forbidden");
    rig.stop().await;
}

#[tokio::test]
async fn a_session_begins_with_events_or_not_at_all() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let seeded = |id: &str, events: Value| json!({"sessionId": id, "events": events});
    let made = ann
        .post(
            ANN,
            &seeded("s1", json!([event("e1", 1.0), event("e2", 2.0)])),
        )
        .await;
    assert_eq!(ids(&made.ok(200)), ["e1", "e2"]);
    let acts = seeded("s2", json!([wrote("e1", &json!({"k": 1}))]));
    let said = refused(&ann.post(ANN, &acts).await, 400, "invalid_body");
    assert_eq!(
        said,
        "Session initialization event 0 cannot include event actions."
    );
    let clash = seeded("s2", json!([event("e1", 1.0), event("e1", 2.0)]));
    refused(&ann.post(ANN, &clash).await, 409, "event_taken");
    refused(&ann.get(&of_ann("s2")).await, 404, "not_found");
    let taken = ann.post(ANN, &seeded("s1", json!([]))).await;
    assert_eq!(
        refused(&taken, 409, "name_taken"),
        "Session already exists: s1"
    );
    rig.stop().await;
}

#[tokio::test]
async fn lists_come_in_pages_and_long_bodies_are_refused() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    for n in 0..5 {
        create(&ann, &format!("s{n}"), &json!({})).await;
    }
    let (mut path, mut found) = (format!("{ANN}?limit=2"), Vec::new());
    loop {
        let page = ann.get(&path).await;
        let sessions = page.ok(200);
        let sessions = sessions.as_array().expect("a list");
        assert!(sessions.len() <= 2);
        found.extend(sessions.iter().map(|session| text(session, "id")));
        let Some(link) = page.header("link") else {
            break;
        };
        let next = link
            .trim_start_matches('<')
            .split_once('>')
            .expect("a link")
            .0;
        path = format!("{next}&limit=2");
    }
    found.sort_unstable();
    assert_eq!(found, ["s0", "s1", "s2", "s3", "s4"]);
    let long = event(&"x".repeat(9 * 1024 * 1024), 1.0);
    refused(
        &append(&ann, "s0", &long, None).await,
        413,
        "body_too_large",
    );
    for body in ["{", "{\"event\": 1}", "{\"event\": {}, \"event\": {}}"] {
        let path = format!("{}/events", of_ann("s0"));
        let answer = ann.send("POST", &path, &[], body).await;
        assert!(answer.ok(422)["detail"].is_array(), "{}", answer.text());
    }
    rig.stop().await;
}

/// A session of Ann with an open approval for an action that she may not see. Returns the hold.
async fn held(rig: &Rig, ann: &Who, id: &str) -> Value {
    let worker = rig.key(&["worker"]).await;
    create(ann, id, &json!({})).await;
    let session = native(ann, id).await;
    start(ann, &session, "payer", "pay").await;
    let request = claim(&worker, "payer").await;
    let action = json!({"tool": "internal_pay", "args": {"margin": "internal-42"}});
    let hold = json!({"kind": "approval", "title": "Pay?", "action": action});
    act(&worker, &request, "holds", hold).await.ok(201)
}

fn confirmation(event: &str, hold: &Value, confirmed: bool) -> Value {
    let response = json!({"confirmed": confirmed, "payload": {"digest": hold["action"]["digest"]}});
    let part = json!({"functionResponse": {"id": hold["id"], "name": "adk_request_confirmation",
        "response": response}});
    json!({"id": event, "author": "user", "invocationId": "e-2", "timestamp": 9.0,
        "content": {"role": "user", "parts": [part]}})
}

#[tokio::test]
async fn an_action_stays_hidden_from_the_user_after_its_approval() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let boss = rig.key(&["client", "approver"]).await;
        let hold = held(&rig, &ann, "s").await;
        let answered = append(&boss, "s", &confirmation("yes", &hold, true), None).await;
        answered.ok(200);
        let again = append(&boss, "s", &confirmation("yes", &hold, true), None).await;
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        for who in [&ann, &boss] {
            let session = read(who, "s").await;
            let shown = session.to_string();
            assert!(shown.contains("Pay?"), "{shown}");
            assert!(!shown.contains("internal"), "{shown}");
        }
    }
}

#[tokio::test]
async fn an_event_that_is_refused_decides_nothing() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let boss = rig.key(&["client", "approver"]).await;
    let hold = held(&rig, &ann, "s").await;
    let id = text(&hold, "id");
    let mut event = confirmation("yes", &hold, true);
    event["actions"] = json!({"stateDelta": {"app:x": 1}});
    refused(&append(&boss, "s", &event, None).await, 403, "forbidden");
    event["actions"] = json!({"stateDelta": {"user:": 1}});
    append(&boss, "s", &event, None).await.ok(422);
    let part = event["content"]["parts"][0].clone();
    event["actions"] = json!({});
    event["content"]["parts"] = json!([part, part]);
    append(&boss, "s", &event, None).await.ok(422);
    // Of two answers the second approves another action, so the first decides nothing either.
    let other = held(&rig, &ann, "t").await;
    let session = native(&ann, "s").await;
    let worker = rig.key(&["worker"]).await;
    start(&ann, &session, "payer", "pay more").await;
    let request = claim(&worker, "payer").await;
    let action = json!({"tool": "internal_pay", "args": {"sum": 2}});
    let second = json!({"kind": "approval", "title": "More?", "action": action});
    let second = act(&worker, &request, "holds", second).await.ok(201);
    let mut wrong = confirmation("yes", &second, true);
    wrong["content"]["parts"][0]["functionResponse"]["response"]["payload"] =
        json!({"digest": other["action"]["digest"]});
    event["content"]["parts"] = json!([part, wrong["content"]["parts"][0]]);
    refused(
        &append(&boss, "s", &event, None).await,
        409,
        "digest_mismatch",
    );
    for hold in [id, text(&second, "id")] {
        let open = boss.get(&format!("/v1/holds/{hold}")).await.ok(200);
        assert_eq!(open["status"], "open");
    }
}

#[tokio::test]
async fn a_repeated_creation_appends_its_events_once() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let first = json!({"author": "user", "content": {"role": "user", "parts": [{"text": "hi"}]}});
    let body = json!({"sessionId": "s", "events": [first]}).to_string();
    let key = [("idempotency-key", "once")];
    let made = ann.send("POST", ANN, &key, body.clone()).await.ok(200);
    assert_eq!(ids(&made).len(), 1);
    append(&ann, "s", &event("more", 5.0), None).await.ok(200);
    let closed = format!("/v1/sessions/{}/close", native(&ann, "s").await);
    ann.post(&closed, &json!({})).await.ok(200);
    let again = ann.send("POST", ANN, &key, body.clone()).await.ok(200);
    assert_eq!(ids(&again).len(), 2);
    assert_eq!(ids(&read(&ann, "s").await).len(), 2);
}

#[tokio::test]
async fn hidden_items_do_not_count_towards_the_bytes_of_events() {
    let rig = Rig::on_disk().await;
    let (ann, worker) = (rig.client("ann").await, rig.key(&["worker"]).await);
    create(&ann, "s", &json!({})).await;
    append(&ann, "s", &event("first", 1.0), None).await.ok(200);
    let session = native(&ann, "s").await;
    start(&ann, &session, "searcher", "search").await;
    let request = claim(&worker, "searcher").await;
    for n in 0..3 {
        let long = "x".repeat(4_000_000);
        let items = json!({"items": [{"kind": "note", "data": {"n": n, "long": long}}]});
        act(&worker, &request, "items", items).await.ok(200);
    }
    act(&worker, &request, "complete", json!({"output": "found"}))
        .await
        .ok(200);
    let session = read(&ann, "s").await;
    assert_eq!(session["events"].as_array().map(Vec::len), Some(3));
    let recent = ann
        .get(&format!("{}?num_recent_events=3", of_ann("s")))
        .await;
    assert_eq!(ids(&recent.ok(200))[0], "first");
}

#[tokio::test]
async fn a_session_that_is_too_large_to_show_hides_no_other_and_is_still_written() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    create(&ann, "old", &json!({})).await;
    create(&ann, "fat", &json!({})).await;
    let fat = native(&ann, "fat").await;
    for n in 0..3 {
        let set = json!({"set": {format!("k{n}"): "x".repeat(4_000_000)}});
        ann.patch(&format!("/v1/sessions/{fat}/state"), &set)
            .await
            .ok(200);
    }
    create(&ann, "new", &json!({})).await;
    let mut listed = Vec::new();
    let mut next = Some(ANN.to_owned());
    while let Some(path) = next {
        let page = ann.get(&path).await;
        let sessions = page.ok(200);
        let sessions = sessions.as_array().expect("a list").iter();
        listed.extend(sessions.map(|session| text(session, "id")));
        let link = page.header("link").map(ToOwned::to_owned);
        next = link.map(|link| link[1..].split('>').next().unwrap_or_default().to_owned());
    }
    listed.sort();
    assert_eq!(listed, ["fat", "new", "old"]);
    let written = ann
        .patch(&of_ann("fat"), &json!({"stateDelta": {"n": 1}}))
        .await;
    assert_eq!(written.ok(200)["id"], "fat");
    let state = ann.get(&format!("/v1/sessions/{fat}/state?keys=n")).await;
    assert_eq!(state.ok(200)["state"]["n"], 1);
    let long = json!({"id": "long", "author": "user", "timestamp": 5.0,
        "content": {"role": "user", "parts": [{"text": "x".repeat(4_000_000)}]}});
    refused(
        &append(&ann, "new", &long, None).await,
        422,
        "limit_reached",
    );
}

#[tokio::test]
async fn an_event_asks_nothing_in_the_name_of_the_server() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let hold = held(&rig, &ann, "s").await;
    let call = json!({"functionCall": {"id": hold["id"], "name": "adk_request_confirmation", "args": {"sum": 0}}});
    let forged = json!({"id": "forged", "author": "payer", "timestamp": 5.0,
        "content": {"role": "model", "parts": [call]}});
    refused(&append(&ann, "s", &forged, None).await, 422, "invalid_body");
    let forged = json!({"id": "forged", "author": "payer", "timestamp": 5.0, "longRunningToolIds": [hold["id"]]});
    refused(&append(&ann, "s", &forged, None).await, 422, "invalid_body");
    let both = json!({"stateDelta": {"a": 1}, "state_delta": {"temp:b": 1}});
    let twice = json!({"id": "twice", "author": "payer", "timestamp": 5.0, "actions": both});
    refused(&append(&ann, "s", &twice, None).await, 422, "invalid_body");
    let session = read(&ann, "s").await;
    // The question of the user, and the one that the server asks.
    assert_eq!(ids(&session).len(), 2);
    assert_eq!(ids(&session)[1], text(&hold, "id"));
}

#[tokio::test]
async fn a_worker_of_another_agent_reads_messages_only() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let payer = rig.key_for(&["worker"], None, &["shop"]).await;
    let other = rig.key_for(&["worker"], None, &["other"]).await;
    let body = json!({"app": "shop", "name": "s", "agent": "shop"});
    ann.post("/v1/sessions", &body).await.ok(201);
    let hidden = json!({"id": "e", "author": "shop", "timestamp": 5.0,
        "content": {"role": "model", "parts": [{"functionResponse": {"name": "f", "response": {"x": "HIDDEN"}}}]}});
    append(&payer, "s", &hidden, None).await.ok(200);
    let session = native(&ann, "s").await;
    start(&ann, &session, "other", "help").await;
    claim(&other, "other").await;
    assert!(read(&payer, "s").await.to_string().contains("HIDDEN"));
    assert!(!read(&other, "s").await.to_string().contains("HIDDEN"));
}

#[tokio::test]
async fn the_hidden_part_of_a_workers_event_expires_and_its_message_stays() {
    let rig = Rig::with_clock().await;
    let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
    let worker = rig.key(&["worker", "operator"]).await;
    let body = json!({"app": "shop", "name": "s", "ttl_seconds": 60, "ttl_mode": "fixed"});
    let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
    let spoken = json!({"id": "e", "author": "agent", "timestamp": 5.0, "content": {"role": "model",
        "parts": [{"text": "Found it."}, {"functionCall": {"name": "f", "args": {"x": "HIDDEN"}}}]}});
    append(&worker, "s", &spoken, None).await.ok(200);
    let again = append(&worker, "s", &spoken, None).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let whole = read(&worker, "s").await;
    assert_eq!(whole["events"], json!([spoken]));
    let seen = read(&ann, "s").await;
    assert_eq!(ids(&seen), ["e"]);
    assert!(!seen.to_string().contains("HIDDEN"));
    let messages = ann
        .get(&format!("/v1/sessions/{session}/messages"))
        .await
        .ok(200);
    assert_eq!(messages["messages"][0]["content"], "Found it.");
    let step = json!({"step_seconds": 61});
    admin.post("/v1/dev/clock", &step).await.ok(200);
    let trace = format!("/v1/sessions/{session}/messages?view=trace");
    let hidden_is_gone = || async {
        let trace = worker.get(&trace).await.ok(200).to_string();
        (!trace.contains("HIDDEN")).then_some(trace)
    };
    let trace = until("the hidden part is erased", hidden_is_gone).await;
    assert!(trace.contains("Found it."), "{trace}");
    for who in [&ann, &worker] {
        let session = read(who, "s").await;
        assert_eq!(ids(&session), ["e"]);
        assert!(!session.to_string().contains("HIDDEN"));
    }
}
