use serde_json::{Value, json};

use super::{claim, new_session, new_session_of, start, turn};
use crate::rig::{Rig, text, until};

#[tokio::test]
async fn a_session_is_made_read_changed_closed_and_deleted() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let body = json!({
            "app": "demo", "name": "first", "agent": "helper", "labels": {"team": "red", "x": "1"},
            "state": {"topic": "cats"}, "ttl_seconds": 3600, "ttl_mode": "fixed",
        });
        let made = ann.post("/v1/sessions", &body).await;
        let session = made.ok(201);
        let id = text(&session, "id");
        assert!(id.starts_with("ses_"), "{id}");
        assert_eq!(made.header("x-statehold-session"), Some(id.as_str()));
        assert_eq!(made.revision(), 1);
        for (field, value) in [
            ("app", json!("demo")),
            ("user", json!("ann")),
            ("name", json!("first")),
            ("agent", json!("helper")),
            ("status", json!("idle")),
            ("revision", json!(1)),
            ("labels", json!({"team": "red", "x": "1"})),
            ("ttl_seconds", json!(3600)),
            ("ttl_mode", json!("fixed")),
        ] {
            assert_eq!(session[field], value, "{field}");
        }
        for field in ["created_at", "updated_at", "expires_at"] {
            let time = text(&session, field);
            assert!(time.len() == 27 && time.ends_with('Z'), "{field}: {time}");
        }
        let path = format!("/v1/sessions/{id}");
        let read = ann.get(&path).await;
        assert_eq!(read.ok(200), session);
        assert_eq!(read.revision(), 1);

        let change = json!({"name": null, "labels": {"x": null, "y": "2"}, "ttl_seconds": null});
        let changed = ann.patch(&path, &change).await;
        let after = changed.ok(200);
        assert_eq!(after["labels"], json!({"team": "red", "y": "2"}));
        assert_eq!(after["revision"], 2);
        assert_eq!(changed.revision(), 2);
        for gone in ["name", "ttl_seconds", "ttl_mode", "expires_at"] {
            assert!(after.get(gone).is_none(), "{gone} in {after}");
        }
        let mut read = ann.get(&path).await.ok(200);
        // What it waits for is told when it is read.
        for field in ["pending", "pending_total"] {
            assert!(
                read.as_object_mut()
                    .is_some_and(|read| read.remove(field).is_some())
            );
        }
        assert_eq!(read, after);

        let closed = ann.post(&format!("{path}/close"), &json!({})).await.ok(200);
        assert_eq!(closed["status"], "closed");
        ann.post(&format!("{path}/requests"), &json!({"input": "hi"}))
            .await
            .refused(409, "session_closed");

        let gone = ann.delete(&path).await;
        assert_eq!(gone.ok(204), Value::Null);
        let missing = ann.get(&path).await.refused(404, "not_found");
        for (method, route) in [
            ("GET", "messages"),
            ("GET", "tree"),
            ("GET", "state"),
            ("GET", "events"),
            ("PATCH", "state"),
            ("POST", "requests"),
            ("POST", "close"),
        ] {
            let body = match route {
                "requests" => r#"{"input":"hi"}"#,
                "state" if method == "PATCH" => r#"{"set":{"a":1}}"#,
                _ => "",
            };
            let answer = ann
                .send(method, &format!("{path}/{route}"), &[], body)
                .await;
            assert_eq!(answer.refused(404, "not_found"), missing, "{route}");
        }
        ann.patch(&path, &json!({"name": "x"}))
            .await
            .refused(404, "not_found");
        ann.delete(&path).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn a_name_is_taken_once_per_app_and_user_and_free_after_a_delete() {
    let rig = Rig::on_disk().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let body = json!({"app": "demo", "name": "mine"});
    let first = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
    let taken = ann
        .post("/v1/sessions", &body)
        .await
        .refused(409, "name_taken");
    assert_eq!(taken["session_id"], first.as_str());
    let other_app = json!({"app": "other", "name": "mine"});
    ann.post("/v1/sessions", &other_app).await.ok(201);
    bob.post("/v1/sessions", &body).await.ok(201);
    let second = new_session(&ann).await;
    ann.patch(&format!("/v1/sessions/{second}"), &json!({"name": "mine"}))
        .await
        .refused(409, "name_taken");
    ann.delete(&format!("/v1/sessions/{first}")).await.ok(204);
    ann.patch(&format!("/v1/sessions/{second}"), &json!({"name": "mine"}))
        .await
        .ok(200);
}

#[tokio::test]
async fn bodies_of_the_wrong_shape_say_where() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    for (body, path) in [
        (json!({"app": 5}), "app"),
        (json!({"app": "demo", "labels": {"a": 1}}), "labels.a"),
        (json!({"app": "demo", "ttl_seconds": "x"}), "ttl_seconds"),
        (json!({"app": "demo", "name": ""}), "name"),
        (json!({"app": "not a name"}), "app"),
        (json!({"app": "demo", "agent": "statehold.keeper"}), "agent"),
        (json!({"app": "demo", "ttl_seconds": 0}), "ttl_seconds"),
        (json!({"app": "demo", "labels": {"a:b": "1"}}), "labels"),
    ] {
        let problem = ann
            .post("/v1/sessions", &body)
            .await
            .refused(422, "invalid_body");
        assert_eq!(problem["path"], path, "{problem}");
    }
    ann.post("/v1/sessions", &json!({"app": "demo", "surprise": 1}))
        .await
        .refused(422, "invalid_body");
    ann.post("/v1/sessions", &json!({}))
        .await
        .refused(422, "invalid_body");
    ann.post("/v1/sessions", &json!({"app": "demo", "user": "bob"}))
        .await
        .refused(403, "wrong_user");
    let backend = rig.key(&["client"]).await;
    backend
        .post("/v1/sessions", &json!({"app": "demo"}))
        .await
        .refused(422, "user_needed");
    rig.worker(&[])
        .await
        .post("/v1/sessions", &json!({"app": "demo", "user": "ann"}))
        .await
        .refused(403, "forbidden");
    ann.send(
        "POST",
        "/v1/sessions",
        &[("content-type", "text/plain")],
        "",
    )
    .await
    .refused(415, "unsupported_media_type");
    rig.nobody()
        .get("/v1/sessions")
        .await
        .refused(401, "unauthenticated");
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let mut made = Vec::new();
        for index in 0..7 {
            let body = json!({
                "app": if index % 2 == 0 { "even" } else { "odd" }, "name": format!("Trip {index}"),
                "labels": {"n": index.to_string(), "Colour": "Blue"},
            });
            made.push(text(&ann.post("/v1/sessions", &body).await.ok(201), "id"));
        }
        rig.client("bob")
            .await
            .post("/v1/sessions", &json!({"app": "even"}))
            .await
            .ok(201);
        made.reverse();
        let mut seen = Vec::new();
        let mut path = "/v1/sessions?limit=3".to_owned();
        loop {
            let page = ann.get(&path).await.ok(200);
            let sessions = page["sessions"].as_array().expect("a list");
            assert!(sessions.len() <= 3);
            seen.extend(sessions.iter().map(|session| text(session, "id")));
            match page.get("next_cursor") {
                Some(cursor) => {
                    let cursor = cursor.as_str().expect("text");
                    path = format!("/v1/sessions?limit=3&cursor={cursor}");
                }
                None => break,
            }
        }
        assert_eq!(seen, made);
        for (query, count) in [
            ("app=even", 4),
            ("app=none", 0),
            ("user=ann", 7),
            ("user=bob", 0),
            ("user=nobody", 0),
            ("status=idle", 7),
            ("status=closed", 0),
            ("label=n", 7),
            ("label=n:3", 1),
            ("label=n:33", 0),
            ("q=trip%203", 1),
            ("q=BLUE", 7),
            ("q=colour", 7),
            ("app=odd&label=n:3", 1),
        ] {
            let page = ann.get(&format!("/v1/sessions?{query}")).await.ok(200);
            assert_eq!(
                page["sessions"].as_array().map(Vec::len),
                Some(count),
                "{query}"
            );
        }
        for query in [
            "limit=0",
            "limit=201",
            "limit=-1",
            "limit=x",
            "status=Idle",
            "surprise=1",
            "limit=2147483648",
            "limit=99999999999999999999",
            "app=a&app=b",
            "q=%00",
        ] {
            let answer = ann.get(&format!("/v1/sessions?{query}")).await;
            answer.refused(400, "bad_query");
        }
        ann.get("/v1/sessions?cursor=x")
            .await
            .refused(400, "bad_cursor");
    }
}

#[tokio::test]
async fn messages_are_the_last_of_the_transcript_oldest_first() {
    let rig = Rig::on_disk().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session_of(&ann, "helper").await;
    for index in 0..5 {
        turn(
            &worker,
            &session,
            "helper",
            &format!("q{index}"),
            &format!("a{index}"),
        )
        .await;
    }
    let path = format!("/v1/sessions/{session}/messages");
    let mut contents = Vec::new();
    let mut next = format!("{path}?limit=4");
    loop {
        let answer = ann.get(&next).await;
        let page = answer.ok(200);
        assert_eq!(page["revision"], 6);
        assert_eq!(answer.revision(), 6);
        let messages = page["messages"].as_array().expect("a list").clone();
        for message in &messages {
            for field in ["id", "role", "task_id", "request_id", "created_at"] {
                text(message, field);
            }
        }
        let texts = messages.iter().map(|message| text(message, "content"));
        contents.splice(0..0, texts.collect::<Vec<_>>());
        match page.get("next_cursor") {
            Some(cursor) => {
                next = format!("{path}?limit=4&cursor={}", cursor.as_str().expect("text"));
            }
            None => break,
        }
    }
    assert_eq!(
        contents,
        ["q0", "a0", "q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]
    );
    ann.get(&format!("{path}?view=trace"))
        .await
        .refused(403, "forbidden");
    ann.get(&format!("{path}?view=agent"))
        .await
        .refused(400, "bad_query");
}

#[tokio::test]
async fn the_tree_shows_requests_under_those_that_asked() {
    let rig = Rig::on_disk().await;
    let (ann, worker) = (
        rig.client("ann").await,
        rig.worker(&["helper", "math"]).await,
    );
    let session = new_session(&ann).await;
    let root = start(&ann, &session, "helper", "2+2?").await;
    let claimed = claim(&worker, "helper").await;
    let child = json!({
        "agent": "math", "input": "2+2", "parent_request_id": root["id"],
        "parent_fence": claimed["fence"],
    });
    let child = worker
        .post(&format!("/v1/sessions/{session}/requests"), &child)
        .await
        .ok(201);
    let answer = ann.get(&format!("/v1/sessions/{session}/tree")).await;
    let tree = answer.ok(200);
    assert_eq!(tree["revision"], 4);
    assert_eq!(answer.revision(), 4);
    assert_eq!(tree["tasks"].as_array().map(Vec::len), Some(1));
    let task = &tree["tasks"][0];
    assert_eq!(task["agent"], "helper");
    assert_eq!(task["alias"], "T1");
    let request = &task["requests"][0];
    assert_eq!(request["id"], root["id"]);
    assert_eq!(request["status"], "waiting");
    let below = &request["tasks"][0];
    assert_eq!(below["agent"], "math");
    assert_eq!(below["parent_request_id"], root["id"]);
    assert_eq!(below["requests"][0]["id"], child["id"]);
    assert_eq!(below["requests"][0]["status"], "queued");
    for query in ["limit=0", "limit=1001", "before=x", "before=-1"] {
        ann.get(&format!("/v1/sessions/{session}/tree?{query}"))
            .await
            .refused(400, "bad_query");
    }
}

#[tokio::test]
async fn an_older_page_of_the_tree_shows_how_requests_and_holds_ended_later() {
    let rig = Rig::on_disk().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    let first = start(&ann, &session, "helper", "which one?").await;
    let claimed = claim(&worker, "helper").await;
    let path = format!("/v1/requests/{}", text(&first, "id"));
    let hold = json!({"fence": claimed["fence"], "kind": "question", "title": "Which?"});
    let hold = worker.post(&format!("{path}/holds"), &hold).await.ok(201);
    let before = ann.get(&format!("/v1/sessions/{session}")).await.revision() + 1;
    let answer = json!({"decision": "respond", "content": "the first"});
    let decision = format!("/v1/holds/{}/decision", text(&hold, "id"));
    ann.post(&decision, &answer).await.ok(200);
    let fail = json!({"fence": claimed["fence"], "error": "no"});
    worker.post(&format!("{path}/fail"), &fail).await.ok(200);
    let page = format!("/v1/sessions/{session}/tree?limit=2&before={before}");
    let tree = ann.get(&page).await.ok(200);
    let request = &tree["tasks"][0]["requests"][0];
    assert_eq!(request["status"], "failed", "{tree}");
    assert_eq!(request["holds"][0]["status"], "answered", "{tree}");
}

#[tokio::test]
async fn a_session_ends_with_its_time_and_hidden_payloads_go() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let body = json!({"app": "demo", "agent": "helper", "ttl_seconds": 3, "ttl_mode": "fixed"});
        let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
        let path = format!("/v1/sessions/{session}");
        let body = json!({
            "agent": "helper", "input": "hi", "output": "ho", "lease": {"ttl_seconds": 5},
            "items": [{"kind": "note", "data": {"secret": "hidden words"}}],
        });
        worker
            .post(&format!("{path}/requests"), &body)
            .await
            .ok(201);
        start(&ann, &session, "helper", "and then?").await;
        let closed = until("the session is closed", || async {
            let session = ann.get(&path).await.ok(200);
            (session["status"] == "closed").then_some(session)
        })
        .await;
        assert_eq!(closed["id"], session.as_str());
        let trace = format!("{path}/messages?view=trace");
        until("hidden payloads are removed", || async {
            let trace = operator.get(&trace).await.ok(200);
            let items = trace["messages"].as_array().expect("a list").clone();
            let note = items.iter().find(|item| item["kind"] == "note")?;
            (note["erased"] == true && note.get("data").is_none()).then_some(())
        })
        .await;
        let messages = ann.get(&format!("{path}/messages")).await.ok(200);
        assert_eq!(messages["messages"][0]["content"], "hi");
        let tree = ann.get(&format!("{path}/tree")).await.ok(200);
        assert!(tree.to_string().contains("cancelled"), "{tree}");
        let late = ann
            .post(&format!("{path}/requests"), &json!({"input": "late"}))
            .await;
        assert!(matches!(late.status, 409 | 410), "{}", late.text());
    }
}

#[tokio::test]
async fn a_sliding_time_to_live_starts_again_with_every_commit() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let body = json!({"app": "demo", "ttl_seconds": 60});
    let made = ann.post("/v1/sessions", &body).await.ok(201);
    assert_eq!(made["ttl_mode"], "sliding");
    let path = format!("/v1/sessions/{}", text(&made, "id"));
    let patched = ann
        .patch(&path, &json!({"labels": {"a": "b"}}))
        .await
        .ok(200);
    assert!(text(&patched, "expires_at") > text(&made, "expires_at"));
    ann.patch(&path, &json!({"ttl_mode": "fixed"}))
        .await
        .refused(422, "invalid_body");
}

#[tokio::test]
async fn labels_that_are_merged_at_once_are_all_there() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let path = format!("/v1/sessions/{}", new_session(&ann).await);
    let writers = (0..16).map(|index| {
        let (ann, path) = (ann.clone(), path.clone());
        tokio::spawn(async move {
            let labels = json!({"labels": {format!("l{index}"): "x"}});
            ann.patch(&path, &labels).await.ok(200);
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer");
    }
    let session = ann.get(&path).await.ok(200);
    assert_eq!(
        session["labels"].as_object().map(serde_json::Map::len),
        Some(16)
    );
    assert_eq!(session["revision"], 17);
}

#[tokio::test]
async fn writes_ask_for_a_revision_with_if_match() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let path = format!("/v1/sessions/{}", new_session(&ann).await);
    let at = |revision: &'static str| [("if-match", revision)];
    let body = r#"{"labels":{"a":"b"}}"#;
    let done = ann.send("PATCH", &path, &at("\"1\""), body).await;
    assert_eq!(done.revision(), 2);
    let state = format!("{path}/state");
    let late = r#"{"set":{"a":1}}"#;
    for (path, body) in [(&path, body), (&state, late)] {
        let problem = ann
            .send("PATCH", path, &at("\"1\""), body)
            .await
            .refused(412, "revision_mismatch");
        assert_eq!(problem["current"], 2);
        assert_eq!(problem["expected"], 1);
    }
    ann.send("DELETE", &path, &at("\"1\""), "")
        .await
        .refused(412, "revision_mismatch");
    ann.send("PATCH", &state, &at("*"), late).await.ok(200);
    for bad in ["1", "\"x\"", "W/\"1\"", "\"1\", \"2\"", ""] {
        ann.send("PATCH", &path, &[("if-match", bad)], body)
            .await
            .refused(400, "bad_header");
    }
}

#[tokio::test]
async fn a_session_is_found_by_its_name_or_made_once() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let body = json!({"app": "demo", "name": "main", "get_or_create": true});
        let calls = (0..4).map(|_| ann.post("/v1/sessions", &body));
        let answers = futures_util::future::join_all(calls).await;
        let made = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(made, 1);
        let ids: Vec<String> = answers
            .iter()
            .map(|answer| text(&answer.ok(answer.status), "id"))
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");

        let path = "/v1/sessions?app=demo&name=main";
        let found = ann.get(path).await.ok(200);
        assert_eq!(found["sessions"][0]["id"], json!(ids[0]));
        let none = ann.get("/v1/sessions?app=demo&name=mai").await.ok(200);
        assert_eq!(none, json!({"sessions": []}));
        ann.get("/v1/sessions?name=main")
            .await
            .refused(422, "invalid_body");
        let nameless = json!({"app": "demo", "get_or_create": true});
        let refused = ann.post("/v1/sessions", &nameless).await;
        refused.refused(422, "invalid_body");

        let bob = rig.client("bob").await;
        let other = bob.post("/v1/sessions", &body).await.ok(201);
        assert_ne!(other["id"], json!(ids[0]));
        let foreign = bob.get("/v1/sessions?app=demo&user=ann&name=main").await;
        assert_eq!(foreign.ok(200), json!({"sessions": []}));
    }
}

#[tokio::test]
async fn sessions_are_listed_by_their_last_change() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let mut made = Vec::new();
        for _ in 0..3 {
            let new = ann.post("/v1/sessions", &json!({"app": "demo"})).await;
            made.push(text(&new.ok(201), "id"));
        }
        let path = format!("/v1/sessions/{}", made[0]);
        ann.patch(&path, &json!({"labels": {"x": "1"}}))
            .await
            .ok(200);
        let list = "/v1/sessions?order=updated_at&limit=1";
        let (mut found, mut next) = (Vec::new(), list.to_owned());
        loop {
            let page = ann.get(&next).await.ok(200);
            found.extend(page["sessions"].as_array().expect("a list").clone());
            let Some(cursor) = page["next_cursor"].as_str() else {
                break;
            };
            let elsewhere = format!("/v1/sessions?limit=1&cursor={cursor}");
            ann.get(&elsewhere).await.refused(400, "bad_cursor");
            next = format!("{list}&cursor={cursor}");
        }
        let found: Vec<String> = found.iter().map(|one| text(one, "id")).collect();
        assert_eq!(found, [0, 2, 1].map(|n| made[n].clone()));
        ann.get("/v1/sessions?order=size")
            .await
            .refused(400, "bad_query");
    }
}

#[tokio::test]
async fn a_search_opens_a_bounded_number_of_bytes_per_call_and_goes_on_where_it_ended() {
    const SESSIONS: usize = 160;
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let mut labels = serde_json::Map::new();
        for n in 0..63 {
            labels.insert(format!("{n:064}"), "v".repeat(256).into());
        }
        for n in 0..SESSIONS {
            labels.insert("n".to_owned(), format!("-{n}-").into());
            let body = json!({"app": "demo", "labels": labels});
            ann.post("/v1/sessions", &body).await.ok(201);
        }
        // About 20 KB per session, so that the 2 MiB of a call are less than all of them.
        for query in ["q=-0-", "label=n:-0-", "label=n:-0-&order=updated_at"] {
            let (mut found, mut calls) = (0, 0);
            let mut next = format!("/v1/sessions?limit=200&{query}");
            loop {
                let page = ann.get(&next).await.ok(200);
                calls += 1;
                found += page["sessions"].as_array().map_or(0, Vec::len);
                let Some(cursor) = page["next_cursor"].as_str() else {
                    break;
                };
                next = format!("/v1/sessions?limit=200&{query}&cursor={cursor}");
            }
            assert_eq!((found, calls), (1, 2), "{query}");
        }
    }
}

#[tokio::test]
async fn every_lifetime_has_the_same_longest_value() {
    const LONGEST_SECONDS: u64 = 316_224_000;
    let rig = Rig::in_memory().await;
    let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
    let session = format!("/v1/sessions/{}", new_session(&ann).await);
    for field in ["ttl_seconds", "hidden_ttl_seconds"] {
        let new = |seconds: u64| json!({"app": "demo", field: seconds});
        let change = |seconds: u64| json!({field: seconds});
        let (fits, too_long) = (LONGEST_SECONDS, LONGEST_SECONDS + 1);
        ann.post("/v1/sessions", &new(fits)).await.ok(201);
        let refused = ann.post("/v1/sessions", &new(too_long)).await;
        refused.refused(422, "invalid_body");
        ann.patch(&session, &change(fits)).await.ok(200);
        let refused = ann.patch(&session, &change(too_long)).await;
        refused.refused(422, "invalid_body");
    }
    let key = |seconds: u64| json!({"roles": ["client"], "expires_in_seconds": seconds});
    admin.post("/v1/keys", &key(LONGEST_SECONDS)).await.ok(201);
    let refused = admin.post("/v1/keys", &key(LONGEST_SECONDS + 1)).await;
    refused.refused(422, "invalid_body");
}
