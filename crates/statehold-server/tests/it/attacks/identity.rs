//! Who is who, and who sees what.

use std::time::Duration;

use serde_json::{Value, json};
use statehold_server::ServerOptions;

use crate::rest::{act, claim, new_session, start, turn};
use crate::rig::{Answer, Rig, Setup, Who, panics, text, until};

/// Things of ann's, of every kind.
struct Target {
    session: String,
    live: String,
    live_task: String,
    ended: String,
    closed_task: String,
    open_hold: String,
    decided_hold: String,
    key: String,
}

async fn target(rig: &Rig) -> Target {
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    let put = json!({"set": {"n": 1, "list": [1], "user:n": 1}});
    ann.patch(&format!("/v1/sessions/{session}/state"), &put)
        .await
        .ok(200);
    let ended = turn(&helper, &session, "helper", "a", "b").await;
    let closed_task = text(&ended, "task_id");
    ann.post(&format!("/v1/tasks/{closed_task}/close"), &json!({}))
        .await
        .ok(200);
    start(&ann, &session, "helper", "c").await;
    let claimed = claim(&helper, "helper").await;
    let mut holds = Vec::new();
    for tool in ["one", "two"] {
        let hold = json!({
            "kind": "approval", "title": "t", "action": {"tool": tool, "args": {}, "call_id": tool},
        });
        holds.push(act(&helper, &claimed, "holds", hold).await.ok(201));
    }
    let decided_hold = text(&holds[0], "id");
    boss.post(
        &format!("/v1/holds/{decided_hold}/decision"),
        &json!({"decision": "reject"}),
    )
    .await
    .ok(200);
    Target {
        session,
        live: text(&claimed, "id"),
        live_task: text(&claimed, "task_id"),
        ended: text(&ended, "id"),
        closed_task,
        open_hold: text(&holds[1], "id"),
        decided_hold,
        key: boss.id,
    }
}

/// Every route that names an object, with bodies that are right and bodies that are wrong inside.
fn probes(target: &Target) -> Vec<(&'static str, String, String)> {
    let mut probes = Vec::new();
    let mut add = |method: &'static str, path: String, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        probes.push((method, path, body));
    };
    let session = format!("/v1/sessions/{}", target.session);
    for query in ["", "/messages", "/messages?view=trace", "/tree", "/records", "/state", "/events"] {
        add("GET", format!("{session}{query}"), Value::Null);
    }
    add("GET", format!("{session}/state?request_id={}", target.live), Value::Null);
    add("GET", format!("{session}/messages?cursor=AAAA"), Value::Null);
    add("PATCH", session.clone(), json!({"name": "x"}));
    add("PATCH", session.clone(), json!({"labels": {"a": "b"}}));
    add("PATCH", session.clone(), json!({"name": ""}));
    add("PATCH", session.clone(), json!({"ttl_mode": "fixed"}));
    add("POST", format!("{session}/close"), json!({"cancel_live": true}));
    let requests = format!("{session}/requests");
    let lease = json!({"ttl_seconds": 5});
    for body in [
        json!({"agent": "helper", "input": "x"}),
        json!({"input": 5}),
        json!({"agent": "not a name", "input": "x"}),
        json!({"input": "x", "parent_fence": 1}),
        json!({"input": "x", "task_id": target.live_task}),
        json!({"input": "x", "task_id": target.closed_task}),
        json!({"agent": "other", "input": "x", "lease": lease, "output": "y"}),
        json!({"agent": "other", "input": "x", "lease": lease, "output": 5}),
        json!({"agent": "other", "input": "x", "lease": lease,
               "items": [{"kind": "tool_result", "call_id": "no", "result": 1}]}),
        json!({"agent": "other", "input": "x", "lease": lease,
               "state": {"set": {"list": 1}, "merge": {"list": "add"}}}),
        json!({"agent": "other", "input": "x", "lease": lease, "state": {"set": {"temp:a": 1}}}),
        json!({"agent": "other", "input": "x", "parent_request_id": target.live, "parent_fence": 1}),
        json!({"agent": "other", "input": "x", "parent_request_id": target.ended, "parent_fence": 1}),
    ] {
        add("POST", requests.clone(), body);
    }
    for body in [
        json!({"set": {"n": 2}}),
        json!({"set": {"list": 1}, "merge": {"list": "add"}}),
        json!({"set": {"n": 1}, "merge": {"n": "append"}}),
        json!({"set": {"n": 1}, "if_versions": {"n": 0}}),
        json!({"set": {"user:n": 1}, "if_versions": {"user:n": 0}}),
        json!({"set": {"n": 1}, "request_id": target.live, "fence": 1}),
        json!({"set": {"n": 1}, "request_id": target.ended, "fence": 1}),
        json!({"set": {"temp:n": 1}, "request_id": target.live, "fence": 1}),
    ] {
        add("PATCH", format!("{session}/state"), body);
    }
    for (request, hold) in [(&target.live, &target.open_hold), (&target.ended, &target.decided_hold)] {
        let request = format!("/v1/requests/{request}");
        add("GET", request.clone(), Value::Null);
        add("GET", format!("{request}?wait=1"), Value::Null);
        for body in [
            json!({"fence": 1, "items": [{"kind": "note"}]}),
            json!({"fence": 7, "items": [{"kind": "note"}]}),
            json!({"fence": 1}),
            json!({"fence": 1, "items": [{"kind": "message"}]}),
            json!({"fence": 1, "items": [{"kind": "tool_result", "call_id": "no", "result": 1}]}),
            json!({"fence": 1, "items": [{"kind": "tool_result", "call_id": "two", "result": 1}]}),
            json!({"fence": 1, "state": {"set": {"list": 1}, "merge": {"list": "add"}}}),
        ] {
            add("POST", format!("{request}/items"), body);
        }
        add("POST", format!("{request}/complete"), json!({"fence": 1, "output": "x"}));
        add("POST", format!("{request}/complete"), json!({"fence": 1, "output": 5}));
        add("POST", format!("{request}/fail"), json!({"fence": 1, "error": "x"}));
        add("POST", format!("{request}/cancel"), json!({}));
        add("POST", format!("{request}/heartbeat"), json!({"fence": 1}));
        add("POST", format!("{request}/heartbeat"), json!({"fence": 7}));
        let hold_in = json!({"fence": 1, "kind": "question", "title": "t"});
        add("POST", format!("{request}/holds"), hold_in);
        let approval = json!({"fence": 1, "kind": "approval", "title": "t", "decide_by": "x",
                              "action": {"tool": "a b", "args": 1e3}});
        add("POST", format!("{request}/holds"), approval);
        for body in [
            json!({"decision": "reject"}),
            json!({"decision": "approve", "digest": "x"}),
            json!({"decision": "reject", "hold_id": hold}),
            json!({"decision": "edit", "digest": "0".repeat(64), "args": {}}),
        ] {
            add("POST", format!("{request}/resume"), body.clone());
            if body.get("hold_id").is_none() {
                add("POST", format!("/v1/holds/{hold}/decision"), body);
            }
        }
        add("GET", format!("/v1/holds/{hold}"), Value::Null);
        let claim = json!({"agent": "other", "request_id": request.trim_start_matches("/v1/requests/")});
        add("POST", "/v1/work/claim".to_owned(), claim);
    }
    for task in [&target.live_task, &target.closed_task] {
        add("GET", format!("/v1/tasks/{task}"), Value::Null);
        add("GET", format!("/v1/tasks/{task}?view=trace"), Value::Null);
        add("POST", format!("/v1/tasks/{task}/close"), json!({}));
        add("POST", format!("/v1/tasks/{task}/cancel"), json!({}));
    }
    add("DELETE", format!("/v1/keys/{}", target.key), Value::Null);
    add("DELETE", session, Value::Null);
    probes
}

/// The same call about things that nobody ever made.
fn guessed(text: &str, target: &Target) -> String {
    let mut guessed = text.to_owned();
    for id in [
        &target.session,
        &target.live,
        &target.live_task,
        &target.ended,
        &target.closed_task,
        &target.open_hold,
        &target.decided_hold,
        &target.key,
    ] {
        let last = if id.ends_with('0') { '1' } else { '0' };
        let mut other = id.clone();
        other.pop();
        // The digits before carry the randomness of the id.
        let other = format!("{}{last}", &other[..other.len() - 4].to_owned()) + "beef";
        guessed = guessed.replace(id.as_str(), &other);
    }
    guessed
}

/// What an answer looks like from outside, except for the clock.
fn seen(answer: &Answer) -> (u16, String, Vec<String>) {
    let names = answer.headers.iter().filter(|(name, _)| *name != "date");
    let headers = names.map(|(name, value)| format!("{name}: {value:?}"));
    (answer.status, answer.text(), headers.collect())
}

#[tokio::test]
async fn attack_01_a_foreign_object_answers_like_one_that_was_never_made() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let target = target(&rig).await;
        let panicked = panics();
        let far = &["client", "worker", "approver", "operator", "admin"];
        let callers = [
            ("another user", rig.client("bob").await),
            ("everything in another tenant", rig.key_of("far", far, None, &[]).await),
            ("the same name in another tenant", rig.key_of("far", far, Some("ann"), &[]).await),
            ("a worker of another agent", rig.worker(&["other"]).await),
            ("a worker of another user", rig.key_for(&["worker"], Some("bob"), &[]).await),
            ("another user who works too", rig.key_for(&["client", "worker"], Some("bob"), &[]).await),
        ];
        let mut differences = Vec::new();
        for (name, who) in &callers {
            for (method, path, body) in probes(&target) {
                let foreign = send(who, method, &path, &body).await;
                let (path_2, body_2) = (guessed(&path, &target), guessed(&body, &target));
                let guess = send(who, method, &path_2, &body_2).await;
                if seen(&foreign) != seen(&guess) {
                    differences.push(format!(
                        "{name}: {method} {path} {body}\n    foreign {} {}\n    guessed {} {}",
                        foreign.status,
                        foreign.text(),
                        guess.status,
                        guess.text()
                    ));
                }
                assert!((400..500).contains(&foreign.status) || foreign.text() == r#"{"requests":[]}"#,
                    "{name}: {method} {path} {body} {}", foreign.text());
            }
        }
        assert!(
            differences.is_empty(),
            "{} differences\n{}",
            differences.len(),
            differences.join("\n")
        );
        assert_eq!(panics(), panicked);
    }
}

async fn send(who: &Who, method: &str, path: &str, body: &str) -> Answer {
    who.send(method, path, &[], body.to_owned()).await
}

#[tokio::test]
async fn attack_02_a_guessed_session_is_not_created_by_writing_to_it() {
    let rig = Rig::on_disk().await;
    let target = target(&rig).await;
    let bob = rig.client("bob").await;
    let helper = rig.worker(&["helper"]).await;
    let far = rig.key_of("far", &["client", "worker"], None, &[]).await;
    let random = guessed(&target.session, &target);
    for session in [&target.session, &random] {
        for who in [&bob, &far] {
            let path = format!("/v1/sessions/{session}/requests");
            let body = json!({"agent": "helper", "input": "x"});
            who.post(&path, &body).await.refused(404, "not_found");
            let path = format!("/v1/sessions/{session}/state");
            let body = json!({"set": {"a": 1}});
            who.patch(&path, &body).await.refused(404, "not_found");
        }
    }
    let turn = json!({"agent": "helper", "input": "x", "output": "y", "lease": {"ttl_seconds": 5}});
    helper
        .post(&format!("/v1/sessions/{random}/requests"), &turn)
        .await
        .refused(404, "not_found");
    let operator = rig.key(&["operator"]).await;
    let sessions = operator.get("/v1/sessions").await.ok(200);
    assert_eq!(sessions["sessions"].as_array().map(Vec::len), Some(1));
    let far = rig.key_of("far", &["operator"], None, &[]).await;
    let sessions = far.get("/v1/sessions").await.ok(200);
    assert_eq!(sessions["sessions"], json!([]));
}

#[tokio::test]
async fn attack_03_own_objects_do_not_mix_with_those_of_another_session() {
    let rig = Rig::in_memory().await;
    let theirs = target(&rig).await;
    let (bob, helper) = (rig.client("bob").await, rig.key_for(&["worker"], Some("bob"), &[]).await);
    let (one, two) = (new_session(&bob).await, new_session(&bob).await);
    let done = turn(&helper, &two, "mixer", "a", "b").await;
    start(&bob, &one, "mixer", "x").await;
    let claimed = claim(&helper, "mixer").await;
    let path = format!("/v1/sessions/{one}/requests");
    let never = guessed(&theirs.live_task, &theirs);
    let with_task = |task: &str| json!({"agent": "mixer", "input": "x", "task_id": task});
    let of_nobody = bob.post(&path, &with_task(&never)).await;
    assert!((400..500).contains(&of_nobody.status), "{}", of_nobody.text());
    for task in [&theirs.live_task, &theirs.closed_task, &text(&done, "task_id")] {
        let answer = bob.post(&path, &with_task(task)).await;
        let (body, plain) = (answer.text().replace(task, ""), of_nobody.text().replace(&never, ""));
        assert_eq!((answer.status, body), (of_nobody.status, plain));
    }
    // A parent of another session.
    let path = format!("/v1/sessions/{two}/requests");
    let body = json!({"agent": "mixer", "input": "x", "parent_request_id": claimed["id"], "parent_fence": 1});
    let answer = helper.post(&path, &body).await;
    assert!((400..500).contains(&answer.status), "{}", answer.text());
    // Values beside a request of another session.
    let state = format!("/v1/sessions/{two}/state");
    let body = json!({"set": {"temp:a": 1}, "request_id": claimed["id"], "fence": 1});
    helper.patch(&state, &body).await.refused(404, "not_found");
    let body = json!({"set": {"a": 1}, "request_id": claimed["id"], "fence": 1});
    let answer = helper.patch(&state, &body).await;
    assert!((400..500).contains(&answer.status), "{}", answer.text());
    helper
        .get(&format!("{state}?request_id={}", text(&claimed, "id")))
        .await
        .refused(404, "not_found");
    // A decision for a hold of another request.
    let body = json!({"decision": "reject", "hold_id": theirs.open_hold});
    bob.post(&format!("/v1/requests/{}/resume", text(&claimed, "id")), &body)
        .await
        .refused(404, "not_found");
}

#[tokio::test]
async fn attack_04_lists_without_a_filter_show_own_objects_only() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let target = target(&rig).await;
        let ids = [&target.session, &target.live, &target.open_hold, &target.decided_hold, &target.key];
        for who in [
            rig.client("bob").await,
            rig.key_of("far", &["client", "approver", "operator", "admin"], None, &[]).await,
            rig.key_for(&["client", "worker"], Some("bob"), &[]).await,
            rig.key_for(&["worker"], Some("bob"), &[]).await,
            rig.worker(&["other"]).await,
        ] {
            for path in [
                "/v1/sessions",
                "/v1/sessions?user=ann",
                "/v1/sessions?q=",
                "/v1/sessions?user=",
                "/v1/holds",
                "/v1/holds?status=decided",
                "/v1/holds?agent=helper",
                "/v1/keys",
                "/v1/audit/records",
            ] {
                let answer = who.get(path).await;
                for id in ids {
                    assert!(!answer.text().contains(id.as_str()), "{path}: {}", answer.text());
                }
                if answer.status == 200 && !path.contains("keys") && !path.contains("audit") {
                    let body = answer.ok(200);
                    let only: Vec<&String> = body.as_object().expect("an object").keys().collect();
                    assert_eq!(only.len(), 1, "no counts, no cursor: {body}");
                    let list = body.as_object().and_then(|body| body.values().next());
                    assert_eq!(list, Some(&json!([])), "{path}");
                }
            }
        }
        // Whether a user is known is nobody's business who may not list.
        let worker = rig.worker(&["other"]).await;
        let known = worker.get("/v1/sessions?user=ann").await;
        let unknown = worker.get("/v1/sessions?user=zoe").await;
        assert_eq!(seen(&known), seen(&unknown));
    }
}

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
    let session = new_session(&ann).await;
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
        who.get(&format!("{path}?limit=1&cursor={cursor}")).await.ok(200);
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
        for broken in [&cursor[..cursor.len() - 1], "", "0", "null", "..", &cursor.to_uppercase()] {
            bodies.push(bad(who.get(&format!("{path}?cursor={broken}")).await));
        }
    }
    // Another caller with the right to the list.
    bodies.push(bad(bob.get(&format!("/v1/sessions?cursor={}", cursors[0])).await));
    let operator = rig.key(&["operator"]).await;
    for (index, (_, path)) in lists.iter().enumerate() {
        bodies.push(bad(operator.get(&format!("{path}?cursor={}", cursors[index])).await));
    }
    // Another filter.
    for filter in ["app=demo", "user=ann", "status=idle", "label=x", "q=x"] {
        bodies.push(bad(ann.get(&format!("/v1/sessions?{filter}&cursor={}", cursors[0])).await));
    }
    for filter in ["status=decided", "status=open", "kind=approval", "agent=helper", "risk=low"] {
        bodies.push(bad(boss.get(&format!("/v1/holds?{filter}&cursor={}", cursors[3])).await));
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "a refusal tells nothing: {bodies:?}");
    // A restart changes nothing for those who hold one.
    let rig = rig.restart().await;
    let ann = Who { address: rig.address, ..ann };
    ann.get(&format!("/v1/sessions?limit=1&cursor={}", cursors[0]))
        .await
        .ok(200);
}

#[tokio::test]
async fn attack_06_neighbours_of_a_hold_id_all_answer_alike() {
    let rig = Rig::in_memory().await;
    let target = target(&rig).await;
    let bob = rig.client("bob").await;
    let digits = target.open_hold.trim_start_matches("hld_").to_owned();
    let number = u128::from_str_radix(&digits, 16).expect("hexadecimal");
    let mut answers = Vec::new();
    let near = (0..64_u128).map(|n| number.wrapping_add(n)).chain((0..128).map(|bit| number ^ (1 << bit)));
    for guess in near {
        let path = format!("/v1/holds/hld_{guess:032x}");
        answers.push(seen(&bob.get(&path).await));
        let decision = json!({"decision": "reject"});
        answers.push(seen(&bob.post(&format!("{path}/decision"), &decision).await));
    }
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].0, 404);
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
    for none in ["", " ", "\u{a0}", "\u{200b}", "\u{3000}", "ann ", " ann", "ann\u{200b}", "a\u{ad}nn", "\u{202e}nna"] {
        for (method, path, body) in [("POST", "/v1/sessions", create), ("GET", "/v1/sessions", ""), ("GET", &path, "")] {
            let answer = backend
                .send(method, path, &[("x-statehold-user", none)], body)
                .await;
            // White space around a header is no part of it.
            let is_trimmed = none.trim_matches(' ') == "ann";
            assert!(is_trimmed || answer.status == 422, "{none:?} {}", answer.text());
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
    for body in [json!({"app": "demo", "user": 0}), json!({"app": "demo", "user": []})] {
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
    for other in ["Ann", "ANN", "аnn", "ａnn", "ann\u{301}", "null", "undefined", "*", "%", "ann'--"] {
        let as_other = [("x-statehold-user", other)];
        backend
            .send("GET", &path, &as_other, "")
            .await
            .refused(404, "not_found");
        let page = backend.send("GET", "/v1/sessions", &as_other, "").await.ok(200);
        assert_eq!(page["sessions"], json!([]), "{other}");
    }
    // A key has one spelling.
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
            let value = if header == "authorization" { format!("Bearer {wrong}") } else { wrong.clone() };
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
    for query in [format!("api_key={key}"), format!("key={key}"), format!("access_token={key}")] {
        rig.nobody()
            .get(&format!("{path}?{query}"))
            .await
            .refused(401, "unauthenticated");
    }
    // A role in other letters is a role that nobody knows.
    let odd = rig.key_for(&["Admin", "Operator", "Client"], None, &[]).await;
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
    revoked.get("/v1/keys").await.refused(401, "unauthenticated");
    for host in ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test", "[::1].evil.test", "127.0.0.1@evil.test"] {
        let mut bytes = format!("GET /v1/keys HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = raw(&rig, &bytes).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
        bytes = format!("GET /v1/keys HTTP/1.1\r\nhost: localhost\r\norigin: http://{host}\r\nconnection: close\r\n\r\n");
        let answer = raw(&rig, &bytes).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
    }
    for origin in ["null", "http://", "file://", "localhost"] {
        let answer = nobody.send("GET", "/v1/keys", &[("origin", origin)], "").await;
        answer.refused(403, "foreign_host");
    }
}

async fn raw(rig: &Rig, bytes: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(rig.address).await.expect("a connection");
    stream.write_all(bytes.as_bytes()).await.expect("the server listens");
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
        assert!(matches!(one.next_within(soon).await, Ok(None)), "closed, and nothing more");
        assert!(matches!(all.next_within(soon).await, Ok(None)), "closed, and nothing more");
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
        ann.patch(&format!("{path}/state"), &json!({"set": {"a": 2}})).await.ok(200);
        busy.await.expect("nobody panics");
        // What was on its way may arrive; what was committed afterwards may not.
        let mut last = 0;
        while let Some(event) = feed.next_within(Duration::from_secs(5)).await.expect("the feed ends") {
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
    let (waited, polled) = (waiting.await.expect("no panic"), polling.await.expect("no panic"));
    waited.refused(401, "unauthenticated");
    polled.refused(401, "unauthenticated");
    let next = ann.get(&format!("/v1/requests/{}", text(&next, "id"))).await.ok(200);
    assert_eq!(next["status"], "queued", "the work is still there");
}
