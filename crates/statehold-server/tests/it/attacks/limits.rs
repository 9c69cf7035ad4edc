//! Too much of everything: streams, trees, readers that do not read.

use std::time::Duration;

use serde_json::{Value, json};
use statehold_server::ServerOptions;
use statehold_server::accept::AcceptOptions;
use statehold_store::Store;

use crate::rest::{claim, new_session, new_session_of, start};
use crate::rig::{Rig, Setup, text, until};

#[tokio::test]
async fn attack_35_feeds_are_counted_and_their_places_come_back() {
    let setup = Setup {
        server: ServerOptions {
            streams_max: 16,
            ..ServerOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}/events");
    let mut feeds = Vec::new();
    for _ in 0..4 {
        feeds.push(ann.follow(&path, None).await);
    }
    for path in [path.as_str(), "/v1/events"] {
        let answer = ann.get(path).await;
        answer.refused(429, "too_many");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
    drop(feeds.pop());
    until("there is a place", || async {
        // A commit, so that the server sees that the reader has gone.
        let body = json!({"set": {"a": 1}});
        ann.patch(&format!("/v1/sessions/{session}/state"), &body)
            .await
            .ok(200);
        let asked = ann.begin_feed(&path).await;
        (asked.status() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn attack_35_a_key_with_all_its_feeds_and_calls_leaves_room_for_others() {
    let setup = Setup {
        server: ServerOptions {
            calls_max: 32,
            streams_max: 16,
            ..ServerOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let backend = rig.key(&["client"]).await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}/events");
    let mut feeds = Vec::new();
    for _ in 0..4 {
        feeds.push(backend.follow(&path, None).await);
    }
    let mine = backend.get(&path).await.refused(429, "too_many");
    assert!(mine["detail"].to_string().contains("4 feeds"), "{mine}");
    // Another name for a user is not another share.
    let as_ann = [("x-statehold-user", "ann")];
    let again = backend.send("GET", &path, &as_ann, "").await;
    again.refused(429, "too_many");
    feeds.push(ann.follow(&path, None).await);

    // Four feeds and four long polls are as many calls as one key may have in progress.
    let worker = rig.worker(&["helper"]).await;
    let mut polls = Vec::new();
    for _ in 0..8 {
        let worker = worker.clone();
        let wait = json!({"agent": "helper", "wait_seconds": 30});
        polls.push(tokio::spawn(async move {
            worker.post("/v1/work/claim", &wait).await
        }));
    }
    until("the worker has its share", || async {
        let answer = worker.get("/v1/agents").await;
        (answer.status == 429).then_some(())
    })
    .await;
    ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
    rig.nobody().get("/healthz").await.ok(200);
    for poll in polls {
        poll.abort();
    }
    until("the calls that were given up are over", || async {
        (worker.get("/v1/agents").await.status != 429).then_some(())
    })
    .await;
}

#[tokio::test]
async fn attack_06_a_key_that_calls_too_often_is_told_when_to_call_again() {
    let few = std::num::NonZeroU32::new(3).expect("not zero");
    let setup = Setup {
        server: ServerOptions {
            rate: Some(statehold_server::RateLimit {
                calls_per_second: few,
                burst: few,
            }),
            ..ServerOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let mut refused = None;
    for _ in 0..50 {
        let answer = ann.get("/v1/sessions").await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("fifty calls at once are too many");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let problem = refused.refused(429, "rate_limited");
    assert_eq!(problem["retry_after_seconds"], 1);
    bob.get("/v1/sessions").await.ok(200);
    until("the pause is over", || async {
        (ann.get("/v1/sessions").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn reading_for_a_user_who_is_not_known_creates_no_user() {
    let rig = Rig::on_disk().await;
    let backend = rig.key(&["client"]).await;
    let as_new = [("x-statehold-user", "nobody-yet")];
    let list = backend
        .send("GET", "/v1/sessions", &as_new, "")
        .await
        .ok(200);
    assert_eq!(list["sessions"], json!([]));
    let tenant = "default".parse().expect("a name");
    let store = rig.store.as_ref().expect("it is on disk");
    let known = store.user(tenant, "nobody-yet".to_owned()).await;
    assert_eq!(known.expect("the store is healthy"), None);
    backend
        .send("POST", "/v1/sessions", &as_new, r#"{"app":"demo"}"#)
        .await
        .ok(201);
    let list = backend
        .send("GET", "/v1/sessions", &as_new, "")
        .await
        .ok(200);
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn attack_35_a_reader_that_does_not_read_is_cut_and_resumes_without_a_gap() {
    let setup = Setup {
        accept: AcceptOptions {
            write_stall_timeout: Duration::from_millis(300),
            ..AcceptOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session_of(&ann, "helper").await;
    let path = format!("/v1/sessions/{session}");
    let stalled = ann.begin_feed(&format!("{path}/events?after=0")).await;
    let big = "x".repeat(1 << 20);
    for _ in 0..24 {
        let body =
            json!({"agent": "helper", "input": big, "output": "ok", "lease": {"ttl_seconds": 5}});
        helper
            .post(&format!("{path}/requests"), &body)
            .await
            .ok(201);
    }
    until("the reader is cut", || async {
        let open = rig.connections.load(std::sync::atomic::Ordering::Relaxed);
        (open == 0).then_some(())
    })
    .await;
    drop(stalled);
    let mut feed = ann.follow(&format!("{path}/events"), Some("3")).await;
    for (event, revision) in feed.take(22).await.iter().zip(4_u64..) {
        assert_eq!(event.id, revision.to_string());
    }
}

#[tokio::test]
async fn attack_36_trees_have_a_depth() {
    let rig = Rig::in_memory().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&[]).await);
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}");
    start(&ann, &session, "a0", "x").await;
    let mut parent = claim(&worker, "a0").await;
    let mut depth = 1;
    let refused = loop {
        let body = json!({
            "agent": format!("a{depth}"), "input": "x", "parent_request_id": parent["id"],
            "parent_fence": parent["fence"], "lease": {"ttl_seconds": 60},
        });
        let answer = worker.post(&format!("{path}/requests"), &body).await;
        if answer.status != 201 {
            break answer;
        }
        parent = answer.ok(201);
        depth += 1;
        assert!(depth < 100, "there is no end");
    };
    let problem = refused.refused(422, "limit_reached");
    assert!(problem["max"].as_u64().is_some(), "{problem}");
    let revision = ann.get(&path).await.revision();
    assert_eq!(revision, depth + 2, "the refused one wrote nothing");
    let tree = ann.get(&format!("{path}/tree")).await;
    assert_eq!(tree.status, 200);
    assert!(tree.text().contains(&text(&parent, "id")));
}

#[tokio::test]
async fn attack_36_a_request_has_a_bounded_number_of_children() {
    let rig = Rig::in_memory().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&[]).await);
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}");
    start(&ann, &session, "a", "x").await;
    let parent = claim(&worker, "a").await;
    let body = json!({
        "agent": "b", "input": "x", "parent_request_id": parent["id"], "parent_fence": 1,
    })
    .to_string();
    let mut connection = worker.connect().await;
    let mut count = 0;
    let refused = loop {
        let answer = connection
            .send("POST", &format!("{path}/requests"), body.clone())
            .await;
        if answer.status != 201 {
            break answer;
        }
        count += 1;
        assert!(count < 5_000, "there is no end");
    };
    refused.refused(422, "limit_reached");
    assert_eq!(ann.get(&path).await.revision(), count + 3);
    assert_eq!(count, 1_024);
    // Whoever made the mess can end it in one commit.
    let close = json!({"cancel_live": true});
    let closed = ann.post(&format!("{path}/close"), &close).await.ok(200);
    assert_eq!(closed["status"], "closed");
}

#[tokio::test]
async fn attack_36_nothing_is_below_itself() {
    let rig = Rig::in_memory().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&[]).await);
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}/requests");
    start(&ann, &session, "a", "x").await;
    let root = claim(&worker, "a").await;
    let child = json!({
        "agent": "b", "input": "x", "parent_request_id": root["id"], "parent_fence": 1,
        "lease": {"ttl_seconds": 60},
    });
    let child = worker.post(&path, &child).await.ok(201);
    let below = |task: &Value| {
        json!({
            "agent": "a", "input": "x", "parent_request_id": child["id"], "parent_fence": child["fence"],
            "task_id": task, "lease": {"ttl_seconds": 60},
        })
    };
    let before = ann.get(&format!("/v1/sessions/{session}")).await.revision();
    for task in [&root["task_id"], &child["task_id"]] {
        let answer = worker.post(&path, &below(task)).await;
        assert!((400..500).contains(&answer.status), "{}", answer.text());
    }
    let after = ann.get(&format!("/v1/sessions/{session}")).await.revision();
    assert_eq!(after, before);
    // Its own parent, by a name that is not there yet.
    let never = json!({"agent": "a", "input": "x", "parent_request_id": "req_01a1de3ef2ff70dfb547109e64fb34ae", "parent_fence": 1});
    let answer = worker.post(&path, &never).await;
    assert_eq!(answer.status, 404, "{}", answer.text());
}

#[tokio::test]
async fn a_union_of_200_000_elements_is_refused_while_other_sessions_commit() {
    let rig = Rig::on_disk().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let path = |session: &str| format!("/v1/sessions/{session}/state");
    let (long, other) = (new_session(&ann).await, new_session(&bob).await);
    let list: Vec<usize> = (0..200_000).collect();
    for key in ["list", "user:list"] {
        let union = json!({"set": {key: list}, "merge": {key: "union"}});
        let refused = tokio::spawn({
            let (ann, path) = (ann.clone(), path(&long));
            async move { ann.patch(&path, &union).await }
        });
        for round in 0..20 {
            let body = json!({"set": {"n": round, "user:n": round}});
            bob.patch(&path(&other), &body).await.ok(200);
        }
        let problem = refused.await.expect("no panic");
        let problem = problem.refused(422, "merge_refused");
        assert_eq!(problem["key"], key);
        let detail = text(&problem, "detail");
        assert!(detail.contains("100000 elements"), "{detail}");
    }
    let state = ann.get(&path(&long)).await.ok(200);
    assert_eq!(state["state"], json!({}));
}

#[tokio::test]
async fn appends_stop_at_8_mib_and_the_value_stays_usable() {
    let rig = Rig::on_disk().await;
    let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
    let path = format!("/v1/sessions/{}/state", new_session(&ann).await);
    let text_of = |mib: usize| "x".repeat(mib << 20);
    for key in ["list", "user:list"] {
        let append = |mib: usize| json!({"set": {key: [text_of(mib)]}, "merge": {key: "append"}});
        ann.patch(&path, &append(5)).await.ok(200);
        ann.patch(&path, &append(2)).await.ok(200);
        for mib in [2, 5] {
            let refused = ann.patch(&path, &append(mib)).await;
            let problem = refused.refused(422, "merge_refused");
            assert_eq!(problem["key"], key);
            let detail = text(&problem, "detail");
            assert!(detail.contains("8388608 bytes"), "{detail}");
        }
        let state = ann.get(&path).await.ok(200);
        assert_eq!(state["state"][key].as_array().map(Vec::len), Some(2));
        // A plain write has its own, higher limit, and nothing is merged into what it leaves.
        let replace = json!({"set": {key: [text_of(7)]}});
        ann.patch(&path, &replace).await.ok(200);
        ann.patch(&path, &append(2))
            .await
            .refused(422, "merge_refused");
        let found = operator.post("/v1/audit/verify", &json!({})).await.ok(200);
        assert_eq!(found["ok"], true, "{found}");
        ann.patch(&path, &json!({"delete": [key]})).await.ok(200);
        ann.patch(&path, &append(1)).await.ok(200);
        ann.patch(&path, &json!({"delete": [key]})).await.ok(200);
    }
    let found = operator.post("/v1/audit/verify", &json!({})).await.ok(200);
    assert_eq!(found["ok"], true, "{found}");
}

#[tokio::test]
async fn names_and_labels_that_draw_as_nothing_or_reorder_text_are_refused() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    for hidden in [
        "\u{34f}", "\u{3164}", "\u{2800}", "\u{202e}", "\u{200b}", "\u{85}",
    ] {
        let text = format!("pay{hidden}roll");
        for body in [
            json!({"app": "demo", "name": text}),
            json!({"app": "demo", "labels": {"team": text}}),
            json!({"app": "demo", "labels": {text.clone(): "x"}}),
        ] {
            let answer = ann.post("/v1/sessions", &body).await;
            answer.refused(422, "invalid_body");
        }
    }
    let plain = json!({"app": "demo", "name": "Löhne 💶", "labels": {"team": "données"}});
    ann.post("/v1/sessions", &plain).await.ok(201);
}
