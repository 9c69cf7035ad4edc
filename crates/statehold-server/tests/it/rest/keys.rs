use serde_json::{Value, json};

use super::{new_session, start};
use crate::rig::{Rig, Who, text, until};

#[tokio::test]
async fn keys_are_made_shown_once_listed_and_taken_back() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let admin = rig.key(&["admin"]).await;
        let body = json!({"name": "laptop", "roles": ["client", "worker"], "user": "ann", "agents": ["a"]});
        let made = admin.post("/v1/keys", &body).await.ok(201);
        let key = text(&made, "key");
        assert!(key.starts_with("shk_") && key.len() > 50, "{key}");
        assert_eq!(made["roles"], json!(["client", "worker"]));
        assert_eq!(
            (&made["user"], &made["agents"]),
            (&json!("ann"), &json!(["a"]))
        );
        let list = admin.get("/v1/keys").await;
        assert!(!list.text().contains(&key));
        let listed = list.ok(200)["keys"].as_array().expect("a list").clone();
        let found = listed.iter().find(|listed| listed["id"] == made["id"]);
        assert_eq!(found.expect("it is listed")["name"], "laptop");
        let ann = Who {
            address: rig.address,
            key: Some(key),
            id: text(&made, "id"),
        };
        ann.get("/v1/sessions").await.ok(200);
        let path = format!("/v1/keys/{}", ann.id);
        admin.delete(&path).await.ok(204);
        ann.get("/v1/sessions")
            .await
            .refused(401, "unauthenticated");
        admin.delete(&path).await.ok(204);
        let list = admin.get("/v1/keys").await.ok(200);
        let revoked = list["keys"].as_array().expect("a list").iter();
        assert!(
            revoked
                .filter(|key| key.get("revoked_at").is_some())
                .count()
                == 1
        );
        admin
            .delete("/v1/keys/key_0190c5b0-0000-7000-8000-000000000000")
            .await
            .refused(404, "not_found");
    }
}

#[tokio::test]
async fn keys_are_listed_page_by_page() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let admin = rig.key(&["admin"]).await;
        let mut made = vec![admin.id.clone()];
        for _ in 0..4 {
            made.push(rig.key(&["client"]).await.id);
        }
        // Keys of one millisecond are in any order.
        made.sort();
        let (mut listed, mut cursor) = (Vec::new(), String::new());
        for expected in [2, 2, 1] {
            let page = admin
                .get(&format!("/v1/keys?limit=2{cursor}"))
                .await
                .ok(200);
            let keys = page["keys"].as_array().expect("a list");
            assert_eq!(keys.len(), expected);
            listed.extend(keys.iter().map(|key| text(key, "id")));
            cursor = match page["next_cursor"].as_str() {
                Some(next) => format!("&cursor={next}"),
                None => String::new(),
            };
        }
        assert_eq!((listed, cursor.as_str()), (made, ""));
        for wrong in ["limit=0", "limit=201", "cursor=x", "after=1"] {
            let refused = admin.get(&format!("/v1/keys?{wrong}")).await;
            assert_eq!(refused.status, 400, "{wrong}");
        }
    }
}

#[tokio::test]
async fn a_key_has_a_bounded_number_of_roles_and_agents() {
    let rig = Rig::in_memory().await;
    let admin = rig.key(&["admin"]).await;
    let names = |prefix: &str, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{prefix}{n}")).collect()
    };
    let mut roles = names("desk", 31);
    roles.push("worker".to_owned());
    let most = json!({"roles": roles, "agents": names("a", 256)});
    admin.post("/v1/keys", &most).await.ok(201);
    for body in [
        json!({"roles": names("desk", 33)}),
        json!({"roles": ["worker"], "agents": names("a", 257)}),
    ] {
        let refused = admin.post("/v1/keys", &body).await;
        refused.refused(422, "invalid_body");
    }
}

#[tokio::test]
async fn a_bad_owner_is_named_as_the_owner() {
    let rig = Rig::in_memory().await;
    let admin = rig.key(&["admin"]).await;
    for field in ["owner", "user"] {
        let mut body = json!({"roles": ["client"]});
        body[field] = "".into();
        let refused = admin.post("/v1/keys", &body).await;
        let detail = text(&refused.refused(422, "invalid_body"), "detail");
        assert!(detail.contains(&format!("`{field}`")), "{detail}");
    }
}

#[tokio::test]
async fn keys_are_for_admins_and_must_make_sense() {
    let rig = Rig::in_memory().await;
    let admin = rig.key(&["admin"]).await;
    for roles in [&["client"][..], &["worker"], &["approver"], &["operator"]] {
        let who = rig.key(roles).await;
        who.get("/v1/keys").await.refused(403, "forbidden");
        // The role comes before a cursor that is not sound.
        who.get("/v1/keys?cursor=x").await.refused(403, "forbidden");
        let body = json!({"roles": ["admin"]});
        who.post("/v1/keys", &body).await.refused(403, "forbidden");
        let path = format!("/v1/keys/{}", admin.id);
        who.delete(&path).await.refused(403, "forbidden");
    }
    for body in [
        json!({"roles": []}),
        json!({"roles": ["client"], "agents": ["a"]}),
        json!({"roles": ["client"], "user": ""}),
        json!({"roles": ["client"], "user": " ann"}),
        json!({"roles": ["client"], "name": ""}),
        json!({"roles": ["client"], "name": "boss\u{202e}nimda"}),
        json!({"roles": ["client"], "name": "boss\u{34f}"}),
        json!({"roles": ["client"], "name": "\u{3164}"}),
        json!({"roles": ["client"], "user": "ann\u{34f}"}),
        json!({"roles": ["client"], "user": "\u{3164}"}),
        json!({"roles": ["no such role!"]}),
        json!({"roles": ["client"], "expires_in_seconds": -1}),
        json!({"roles": "client"}),
    ] {
        let answer = admin.post("/v1/keys", &body).await;
        assert_eq!(answer.status, 422, "{body} {}", answer.text());
    }
}

#[tokio::test]
async fn a_key_ends_with_its_time() {
    let rig = Rig::in_memory().await;
    let admin = rig.key(&["admin"]).await;
    let body = json!({"roles": ["client"], "user": "ann", "expires_in_seconds": 1});
    let made = admin.post("/v1/keys", &body).await.ok(201);
    text(&made, "expires_at");
    let ann = Who {
        address: rig.address,
        key: Some(text(&made, "key")),
        id: String::new(),
    };
    until("the key has ended", || async {
        (ann.get("/v1/sessions").await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn operations_answer_without_a_key_except_for_numbers() {
    let rig = Rig::on_disk().await;
    let nobody = rig.nobody();
    assert_eq!(nobody.get("/healthz").await.ok(200)["status"], "ok");
    assert_eq!(nobody.get("/readyz").await.ok(200)["status"], "ok");
    let schema = nobody.get("/openapi.json").await.ok(200);
    assert!(schema["paths"].get("/v1/sessions").is_some());
    nobody.get("/metrics").await.refused(401, "unauthenticated");
    rig.client("ann")
        .await
        .get("/metrics")
        .await
        .refused(403, "forbidden");
    let numbers = rig.key(&["operator"]).await.get("/metrics").await;
    assert_eq!(numbers.status, 200);
    assert!(
        numbers.text().contains("statehold_calls_total"),
        "{}",
        numbers.text()
    );
    nobody.get("/nowhere").await.refused(404, "not_found");
    for method in ["PUT", "POST", "DELETE", "PATCH", "TRACE", "BREW"] {
        let answer = nobody.send(method, "/healthz", &[], "").await;
        answer.refused(405, "method_not_allowed");
    }
}

#[tokio::test]
async fn a_trusted_backend_acts_for_the_user_it_names() {
    let rig = Rig::in_memory().await;
    let backend = rig.key(&["client"]).await;
    let as_ann = [("x-statehold-user", "ann")];
    let made = backend
        .send("POST", "/v1/sessions", &as_ann, r#"{"app":"demo"}"#)
        .await
        .ok(201);
    assert_eq!(made["user"], "ann");
    let path = format!("/v1/sessions/{}", text(&made, "id"));
    backend.send("GET", &path, &as_ann, "").await.ok(200);
    backend
        .send("GET", &path, &[("x-statehold-user", "bob")], "")
        .await
        .refused(404, "not_found");
    for who in [
        rig.client("carl").await,
        rig.key(&["client", "approver"]).await,
    ] {
        who.send("GET", &path, &as_ann, "")
            .await
            .refused(403, "wrong_user");
    }
}

#[tokio::test]
async fn a_call_that_waits_gets_nothing_after_its_key_has_expired() {
    let rig = Rig::with_clock().await;
    let (admin, ann) = (rig.key(&["admin"]).await, rig.client("ann").await);
    let session = new_session(&ann).await;
    let request = start(&ann, &session, "other", "x").await;
    let short = async |body: Value| {
        let mut body = body;
        body["expires_in_seconds"] = json!(600);
        let made = admin.post("/v1/keys", &body).await.ok(201);
        Who {
            key: Some(text(&made, "key")),
            ..ann.clone()
        }
    };
    let worker = short(json!({"roles": ["worker"], "agents": ["helper"]})).await;
    let client = short(json!({"roles": ["client"], "user": "ann"})).await;
    let claim = json!({"agent": "helper", "wait_seconds": 20});
    let poll = format!("/v1/requests/{}?wait=20", text(&request, "id"));
    let (claiming, polling) = (worker.clone(), client.clone());
    let claiming = tokio::spawn(async move { claiming.post("/v1/work/claim", &claim).await });
    let polling = tokio::spawn(async move { polling.get(&poll).await });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let step = async |seconds: i64| {
        let body = json!({"step_seconds": seconds});
        admin.post("/v1/dev/clock", &body).await.ok(200);
    };
    step(601).await;
    let started = start(&ann, &session, "helper", "x").await;
    let path = format!("/v1/requests/{}", text(&request, "id"));
    ann.post(&format!("{path}/cancel"), &json!({}))
        .await
        .ok(200);
    for waiting in [claiming, polling] {
        let answer = waiting.await.expect("an answer");
        answer.refused(401, "unauthenticated");
    }
    let path = format!("/v1/requests/{}", text(&started, "id"));
    assert_eq!(ann.get(&path).await.ok(200)["status"], "queued");
    // The clock steps back, and the keys stay ended.
    step(-1_200).await;
    for who in [&worker, &client] {
        let answer = who.get(&path).await;
        answer.refused(401, "unauthenticated");
    }
}

#[tokio::test]
async fn a_key_that_ends_while_its_body_is_sent_does_nothing() {
    let rig = Rig::in_memory().await;
    let admin = rig.key(&["admin"]).await;
    let made = json!({"roles": ["admin"], "name": "lost laptop"});
    let made = admin.post("/v1/keys", &made).await.ok(201);
    let (sender, pieces) = tokio::sync::mpsc::channel::<Result<&str, std::io::Error>>(1);
    let pieces = futures_util::stream::unfold(pieces, |mut pieces| async move {
        pieces.recv().await.map(|piece| (piece, pieces))
    });
    let request = http::Request::post("/v1/keys")
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", text(&made, "key")))
        .body(axum::body::Body::from_stream(pieces))
        .expect("a request");
    let calling = tokio::spawn(tower::ServiceExt::oneshot(rig.router.clone(), request));
    sender
        .send(Ok(r#"{"roles":["admin"]"#))
        .await
        .expect("it is read");
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let path = format!("/v1/keys/{}", text(&made, "id"));
    admin.delete(&path).await.ok(204);
    sender.send(Ok("}")).await.expect("it is read");
    drop(sender);
    let answer = calling.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status().as_u16(), 401);
    let listed = admin.get("/v1/keys").await.ok(200);
    let listed = listed["keys"].as_array().expect("keys").len();
    assert_eq!(listed, 2, "it made no key");
}
