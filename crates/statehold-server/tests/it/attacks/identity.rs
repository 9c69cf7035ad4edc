//! Who is who, and for how long.

use std::time::Duration;

use serde_json::json;
use statehold_server::ServerOptions;

use crate::rest::{act, claim, new_session, new_session_of, start, turn};
use crate::rig::{Answer, Rig, Setup, Who, text, until};

#[tokio::test]
async fn attack_05_a_cursor_works_for_its_caller_its_list_and_its_filter_only() {
    let rig = Rig::on_disk().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let helper = rig.worker(&["helper"]).await;
    for who in [&ann, &bob] {
        for _ in 0..3 {
            new_session(who).await;
        }
    }
    let session = new_session_of(&ann, "helper").await;
    let request = turn(&helper, &session, "helper", "a", "b").await;
    turn(&helper, &session, "helper", "a", "b").await;
    let task = text(&request, "task_id");
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    start(&ann, &session, "helper", "c").await;
    let claimed = claim(&helper, "helper").await;
    for tool in ["one", "two"] {
        let hold = json!({"kind": "approval", "title": "t", "action": {"tool": tool, "args": {}}});
        act(&helper, &claimed, "holds", hold).await.ok(201);
    }
    let messages = format!("/v1/sessions/{session}/messages");
    let history = format!("/v1/tasks/{task}");
    let lists = [
        (&ann, "/v1/sessions".to_owned()),
        (&ann, messages),
        (&ann, history),
        (&boss, "/v1/holds".to_owned()),
    ];
    let mut cursors = Vec::new();
    for (who, path) in &lists {
        let page = who.get(&format!("{path}?limit=1")).await.ok(200);
        cursors.push(text(&page, "next_cursor"));
    }
    let bad = |answer: Answer| answer.refused(400, "bad_cursor");
    let mut bodies = Vec::new();
    for (index, (who, path)) in lists.iter().enumerate() {
        let cursor = &cursors[index];
        who.get(&format!("{path}?limit=1&cursor={cursor}"))
            .await
            .ok(200);
        for (other, cursor) in cursors.iter().enumerate() {
            if other != index {
                bodies.push(bad(who.get(&format!("{path}?cursor={cursor}")).await));
            }
        }
        for at in (0..cursor.len()).step_by(7) {
            let mut flipped = cursor.clone().into_bytes();
            flipped[at] = if flipped[at] == b'A' { b'B' } else { b'A' };
            let flipped = String::from_utf8(flipped).expect("ASCII");
            bodies.push(bad(who.get(&format!("{path}?cursor={flipped}")).await));
        }
        for broken in [
            &cursor[..cursor.len() - 1],
            "",
            "0",
            "null",
            "..",
            &cursor.to_uppercase(),
        ] {
            bodies.push(bad(who.get(&format!("{path}?cursor={broken}")).await));
        }
    }
    // Another caller with the right to the list.
    bodies.push(bad(bob
        .get(&format!("/v1/sessions?cursor={}", cursors[0]))
        .await));
    let operator = rig.key(&["operator"]).await;
    for (index, (_, path)) in lists.iter().enumerate() {
        bodies.push(bad(operator
            .get(&format!("{path}?cursor={}", cursors[index]))
            .await));
    }
    // Another filter.
    for filter in ["app=demo", "user=ann", "status=idle", "label=x", "q=x"] {
        bodies.push(bad(ann
            .get(&format!("/v1/sessions?{filter}&cursor={}", cursors[0]))
            .await));
    }
    for filter in [
        "status=decided",
        "status=open",
        "kind=approval",
        "agent=helper",
        "risk=low",
    ] {
        bodies.push(bad(boss
            .get(&format!("/v1/holds?{filter}&cursor={}", cursors[3]))
            .await));
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "a refusal tells nothing: {bodies:?}");
    // A restart changes nothing for those who hold one.
    let rig = rig.restart().await;
    let ann = Who {
        address: rig.address,
        ..ann
    };
    ann.get(&format!("/v1/sessions?limit=1&cursor={}", cursors[0]))
        .await
        .ok(200);
}

#[tokio::test]
async fn attack_07_a_principal_that_is_missing_or_looks_like_another_is_not_that_other() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}");
    let backend = rig.key(&["client"]).await;
    let create = r#"{"app":"demo"}"#;
    // No user is no user.
    for none in [
        "",
        " ",
        "\u{a0}",
        "\u{200b}",
        "\u{3000}",
        "ann ",
        " ann",
        "ann\u{200b}",
        "a\u{ad}nn",
        "\u{202e}nna",
    ] {
        for (method, path, body) in [
            ("POST", "/v1/sessions", create),
            ("GET", "/v1/sessions", ""),
            ("GET", &path, ""),
        ] {
            let answer = backend
                .send(method, path, &[("x-statehold-user", none)], body)
                .await;
            // White space around a header is no part of it.
            let is_trimmed = none.trim_matches(' ') == "ann";
            assert!(
                is_trimmed || answer.status == 422,
                "{none:?} {}",
                answer.text()
            );
        }
        let body = json!({"app": "demo", "user": none});
        backend
            .post("/v1/sessions", &body)
            .await
            .refused(422, "invalid_body");
    }
    for body in [json!({"app": "demo"}), json!({"app": "demo", "user": null})] {
        backend
            .post("/v1/sessions", &body)
            .await
            .refused(422, "user_needed");
    }
    for body in [
        json!({"app": "demo", "user": 0}),
        json!({"app": "demo", "user": []}),
    ] {
        backend
            .post("/v1/sessions", &body)
            .await
            .refused(422, "invalid_body");
    }
    // An empty filter is not every user.
    let page = ann.get("/v1/sessions?user=").await.ok(200);
    assert_eq!(page["sessions"], json!([]));
    let page = backend.get("/v1/sessions?user=").await.ok(200);
    assert_eq!(page["sessions"], json!([]));
    // Others that look alike are others.
    for other in [
        "Ann",
        "ANN",
        "аnn",
        "ａnn",
        "ann\u{301}",
        "null",
        "undefined",
        "*",
        "%",
        "ann'--",
    ] {
        let as_other = [("x-statehold-user", other)];
        backend
            .send("GET", &path, &as_other, "")
            .await
            .refused(404, "not_found");
        let page = backend
            .send("GET", "/v1/sessions", &as_other, "")
            .await
            .ok(200);
        assert_eq!(page["sessions"], json!([]), "{other}");
    }
}

#[tokio::test]
async fn attack_07_a_key_and_a_role_have_one_spelling() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let path = format!("/v1/sessions/{}", new_session(&ann).await);
    let key = ann.key.clone().expect("a key");
    for wrong in [
        key.to_uppercase(),
        key.replace("shk_", "SHK_"),
        format!("{key}="),
        key[..key.len() - 1].to_owned(),
        "shk_".to_owned(),
        "null".to_owned(),
        "undefined".to_owned(),
        String::new(),
        "ann".to_owned(),
        ann.id.clone(),
    ] {
        for header in ["authorization", "api-key"] {
            let value = if header == "authorization" {
                format!("Bearer {wrong}")
            } else {
                wrong.clone()
            };
            rig.nobody()
                .send("GET", &path, &[(header, &value)], "")
                .await
                .refused(401, "unauthenticated");
        }
    }
    let basic = format!("Basic {}", data_encoding::BASE64.encode(key.as_bytes()));
    rig.nobody()
        .send("GET", &path, &[("authorization", &basic)], "")
        .await
        .refused(401, "unauthenticated");
    for query in [
        format!("api_key={key}"),
        format!("key={key}"),
        format!("access_token={key}"),
    ] {
        rig.nobody()
            .get(&format!("{path}?{query}"))
            .await
            .refused(401, "unauthenticated");
    }
    // A role in other letters is a role that nobody knows.
    let odd = rig
        .key_for(&["Admin", "Operator", "Client"], None, &[])
        .await;
    odd.get("/v1/keys").await.refused(403, "forbidden");
    odd.get(&path).await.refused(403, "forbidden");
    odd.get("/v1/sessions").await.refused(403, "forbidden");
}

#[tokio::test]
async fn attack_07_a_key_that_does_not_count_is_nobody_even_on_a_development_server() {
    let setup = Setup {
        server: ServerOptions {
            keys_required: false,
            ..ServerOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let nobody = rig.nobody();
    nobody.get("/v1/keys").await.ok(200);
    let wrong = [("authorization", "Bearer shk_wrong")];
    nobody
        .send("GET", "/v1/keys", &wrong, "")
        .await
        .refused(401, "unauthenticated");
    let revoked = rig.key(&["admin"]).await;
    nobody
        .delete(&format!("/v1/keys/{}", revoked.id))
        .await
        .ok(204);
    revoked
        .get("/v1/keys")
        .await
        .refused(401, "unauthenticated");
    for host in [
        "evil.test",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "[::1].evil.test",
        "127.0.0.1@evil.test",
    ] {
        let mut bytes =
            format!("GET /v1/keys HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = raw(&rig, &bytes).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
        bytes = format!(
            "GET /v1/keys HTTP/1.1\r\nhost: localhost\r\norigin: http://{host}\r\nconnection: close\r\n\r\n"
        );
        let answer = raw(&rig, &bytes).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
    }
    for origin in ["null", "http://", "file://", "localhost"] {
        let answer = nobody
            .send("GET", "/v1/keys", &[("origin", origin)], "")
            .await;
        answer.refused(403, "foreign_host");
    }
}

async fn raw(rig: &Rig, bytes: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(rig.address)
        .await
        .expect("a connection");
    stream
        .write_all(bytes.as_bytes())
        .await
        .expect("the server listens");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    let read = tokio::time::timeout(Duration::from_secs(10), read).await;
    read.expect("an answer in time").expect("an answer");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn attack_09_calls_with_the_same_key_in_flight_get_their_own_answers() {
    let rig = Rig::on_disk().await;
    let mut running = Vec::new();
    for index in 0..32 {
        let name = format!("u{index}");
        let who = rig.client(&name).await;
        running.push(tokio::spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..3 {
                let headers = [("idempotency-key", "1")];
                let answer = who
                    .send("POST", "/v1/sessions", &headers, r#"{"app":"demo"}"#)
                    .await;
                assert_eq!(answer.ok(201)["user"], name.as_str());
                answers.push(text(&answer.ok(201), "id"));
            }
            answers.dedup();
            assert_eq!(answers.len(), 1);
            answers.remove(0)
        }));
    }
    let mut ids = std::collections::BTreeSet::new();
    for one in running {
        ids.insert(one.await.expect("nobody panics"));
    }
    assert_eq!(ids.len(), 32);
}

#[tokio::test]
async fn attack_10_a_feed_ends_with_the_key_it_was_opened_with() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
        let twin = rig.client("ann").await;
        let session = new_session(&ann).await;
        let path = format!("/v1/sessions/{session}");
        let mut one = twin.follow(&format!("{path}/events"), None).await;
        let mut all = twin.follow("/v1/events", None).await;
        let put = json!({"set": {"a": 1}});
        ann.patch(&format!("{path}/state"), &put).await.ok(200);
        assert_eq!(one.take(1).await[0].id, "2");
        all.take(1).await;
        admin.delete(&format!("/v1/keys/{}", twin.id)).await.ok(204);
        ann.patch(&format!("{path}/state"), &put).await.ok(200);
        let soon = Duration::from_secs(5);
        assert!(
            matches!(one.next_within(soon).await, Ok(None)),
            "closed, and nothing more"
        );
        assert!(
            matches!(all.next_within(soon).await, Ok(None)),
            "closed, and nothing more"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn attack_10_nothing_that_happens_after_a_revocation_is_sent() {
    let rig = Rig::in_memory().await;
    let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
    let session = new_session(&ann).await;
    let path = format!("/v1/sessions/{session}");
    for _ in 0..40 {
        let twin = rig.client("ann").await;
        let mut feed = twin.follow(&format!("{path}/events"), None).await;
        // Commits go on while the key is taken back.
        let busy = {
            let (ann, path) = (ann.clone(), format!("{path}/state"));
            tokio::spawn(async move {
                for _ in 0..5 {
                    ann.patch(&path, &json!({"set": {"a": 1}})).await.ok(200);
                }
            })
        };
        admin.delete(&format!("/v1/keys/{}", twin.id)).await.ok(204);
        let at = ann.get(&path).await.revision();
        ann.patch(&format!("{path}/state"), &json!({"set": {"a": 2}}))
            .await
            .ok(200);
        busy.await.expect("nobody panics");
        // What was on its way may arrive; what was committed afterwards may not.
        let mut last = 0;
        while let Some(event) = feed
            .next_within(Duration::from_secs(5))
            .await
            .expect("the feed ends")
        {
            last = event.id.parse().expect("a revision");
        }
        assert!(last <= at + 1, "{last} was sent, the key was gone at {at}");
    }
}

#[tokio::test]
async fn attack_10_whoever_waits_with_a_key_that_is_taken_back_gets_nothing() {
    let rig = Rig::in_memory().await;
    let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
    let (helper, thief) = (rig.worker(&["helper"]).await, rig.worker(&["helper"]).await);
    let twin = rig.client("ann").await;
    let session = new_session(&ann).await;
    let request = start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let waiting = {
        let (twin, id) = (twin.clone(), text(&request, "id"));
        tokio::spawn(async move { twin.get(&format!("/v1/requests/{id}?wait=10")).await })
    };
    let polling = {
        let thief = thief.clone();
        tokio::spawn(async move {
            let body = json!({"agent": "helper", "wait_seconds": 10});
            thief.post("/v1/work/claim", &body).await
        })
    };
    until("both wait", || async {
        (rig.connections.load(std::sync::atomic::Ordering::Relaxed) >= 2).then_some(())
    })
    .await;
    for key in [&twin.id, &thief.id] {
        admin.delete(&format!("/v1/keys/{key}")).await.ok(204);
    }
    act(&helper, &claimed, "complete", json!({"output": "secret"}))
        .await
        .ok(200);
    let next = start(&ann, &session, "helper", "work").await;
    let (waited, polled) = (
        waiting.await.expect("no panic"),
        polling.await.expect("no panic"),
    );
    waited.refused(401, "unauthenticated");
    polled.refused(401, "unauthenticated");
    let next = ann
        .get(&format!("/v1/requests/{}", text(&next, "id")))
        .await
        .ok(200);
    assert_eq!(next["status"], "queued", "the work is still there");
}

#[tokio::test]
async fn unknown_keys_are_limited_by_address_and_keep_nobody_else_out() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let (mut refused, mut limited) = (0, 0);
    for n in 0..700 {
        let stranger = Who {
            key: Some(format!("shk_{n:0>52}")),
            ..ann.clone()
        };
        let answer = stranger.get("/v1/sessions").await;
        match answer.status {
            401 => refused += 1,
            429 => {
                let problem = answer.refused(429, "rate_limited");
                assert!(
                    problem["retry_after_seconds"].as_u64() >= Some(1),
                    "{problem}"
                );
                limited += 1;
            }
            other => panic!("{other}: {}", answer.text()),
        }
        if n % 50 == 0 {
            ann.get("/v1/sessions").await.ok(200);
        }
    }
    assert!(refused >= 500, "{refused} keys were looked up");
    assert!(
        limited > 0,
        "{limited} calls were refused before the store was asked"
    );
    ann.get("/v1/sessions").await.ok(200);
    // Without a key nothing is looked up.
    rig.nobody()
        .get("/v1/sessions")
        .await
        .refused(401, "unauthenticated");
}
