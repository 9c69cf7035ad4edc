//! What belongs to others is not there.

use serde_json::{Value, json};

use crate::rest::{act, claim, new_session, new_session_of, start, turn};
use crate::rig::{Answer, Rig, Who, panics, text};

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
    let session = new_session_of(&ann, "helper").await;
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

/// A call: method, path and body.
type Probe = (&'static str, String, String);

/// Every route that names an object, with bodies that are right and bodies that are wrong inside.
fn probes(target: &Target) -> Vec<Probe> {
    let mut probes = Vec::new();
    let mut add = |method: &'static str, path: String, body: Value| {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        probes.push((method, path, body));
    };
    probe_sessions(target, &mut add);
    probe_requests(target, &mut add);
    for task in [&target.live_task, &target.closed_task] {
        add("GET", format!("/v1/tasks/{task}"), Value::Null);
        add("GET", format!("/v1/tasks/{task}?view=trace"), Value::Null);
        add("POST", format!("/v1/tasks/{task}/close"), json!({}));
        add("POST", format!("/v1/tasks/{task}/cancel"), json!({}));
    }
    add("DELETE", format!("/v1/keys/{}", target.key), Value::Null);
    let session = format!("/v1/sessions/{}", target.session);
    add("DELETE", session, Value::Null);
    probes
}

fn probe_sessions(target: &Target, add: &mut impl FnMut(&'static str, String, Value)) {
    let session = format!("/v1/sessions/{}", target.session);
    for query in [
        "",
        "/messages",
        "/messages?view=trace",
        "/messages?at=1",
        "/messages?at=1&view=trace",
        "/messages?at=99",
        "/state?at=1",
        "/state?at=99",
        "/diff",
        "/diff?from=99",
        "/tree",
        "/records",
        "/state",
        "/events",
    ] {
        add("GET", format!("{session}{query}"), Value::Null);
    }
    add(
        "GET",
        format!("{session}/state?request_id={}", target.live),
        Value::Null,
    );
    add(
        "GET",
        format!("{session}/messages?cursor=AAAA"),
        Value::Null,
    );
    add("PATCH", session.clone(), json!({"name": "x"}));
    add("PATCH", session.clone(), json!({"labels": {"a": "b"}}));
    add("PATCH", session.clone(), json!({"name": ""}));
    add("PATCH", session.clone(), json!({"ttl_mode": "fixed"}));
    add(
        "POST",
        format!("{session}/close"),
        json!({"cancel_live": true}),
    );
    for at in [1, 1_u64 << 40] {
        add("POST", format!("{session}/fork"), json!({"at": at}));
        add("POST", format!("{session}/rewind"), json!({"to": at}));
    }
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
}

fn probe_requests(target: &Target, add: &mut impl FnMut(&'static str, String, Value)) {
    for (request, hold) in [
        (&target.live, &target.open_hold),
        (&target.ended, &target.decided_hold),
    ] {
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
        add(
            "POST",
            format!("{request}/complete"),
            json!({"fence": 1, "output": "x"}),
        );
        add(
            "POST",
            format!("{request}/complete"),
            json!({"fence": 1, "output": 5}),
        );
        add(
            "POST",
            format!("{request}/fail"),
            json!({"fence": 1, "error": "x"}),
        );
        add("POST", format!("{request}/cancel"), json!({}));
        add("POST", format!("{request}/heartbeat"), json!({"fence": 1}));
        add("POST", format!("{request}/heartbeat"), json!({"fence": 7}));
        add("POST", format!("{request}/release"), json!({"fence": 1}));
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
        let claim =
            json!({"agent": "other", "request_id": request.trim_start_matches("/v1/requests/")});
        add("POST", "/v1/work/claim".to_owned(), claim);
    }
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
            (
                "everything in another tenant",
                rig.key_of("far", far, None, &[]).await,
            ),
            (
                "the same name in another tenant",
                rig.key_of("far", far, Some("ann"), &[]).await,
            ),
            ("a worker of another agent", rig.worker(&["other"]).await),
            (
                "a worker of another user",
                rig.key_for(&["worker"], Some("bob"), &[]).await,
            ),
            (
                "another user who works too",
                rig.key_for(&["client", "worker"], Some("bob"), &[]).await,
            ),
        ];
        let mut differences = Vec::new();
        for (name, who) in &callers {
            for (method, path, body) in probes(&target) {
                let foreign = send(who, method, &path, &body).await;
                let (path_2, body_2) = (guessed(&path, &target), guessed(&body, &target));
                let guess = send(who, method, &path_2, &body_2).await;
                let is_refused = (400..500).contains(&foreign.status);
                let is_empty = foreign.text() == r#"{"requests":[]}"#;
                if seen(&foreign) != seen(&guess) || !is_refused && !is_empty {
                    differences.push(format!(
                        "{name}: {method} {path} {body}\n    foreign {} {}\n    guessed {} {}",
                        foreign.status,
                        foreign.text(),
                        guess.status,
                        guess.text()
                    ));
                }
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

#[tokio::test]
async fn a_call_without_the_right_is_refused_before_its_input_is_read() {
    let rig = Rig::in_memory().await;
    let target = target(&rig).await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let (helper, other) = (rig.worker(&["helper"]).await, rig.worker(&["other"]).await);
    let (boss, unbound) = (rig.key(&["approver"]).await, rig.key(&["worker"]).await);
    let session = format!("/v1/sessions/{}", target.session);
    let state = format!("{session}/state");
    let (forbidden, missing) = ((403, "forbidden"), (404, "not_found"));
    let cases = [
        (
            &boss,
            "POST",
            "/v1/work/claim",
            json!({"agent": "", "max": 0}),
            forbidden,
        ),
        (
            &other,
            "POST",
            "/v1/work/claim",
            json!({"agent": "helper", "max": 0}),
            (403, "wrong_agent"),
        ),
        (
            &helper,
            "PATCH",
            &state,
            json!({"set": {"App:x": 1}}),
            forbidden,
        ),
        (&bob, "PATCH", &state, json!({"set": {"App:x": 1}}), missing),
        (
            &bob,
            "PATCH",
            &state,
            json!({"set": {}, "fence": 1}),
            missing,
        ),
        (
            &ann,
            "PATCH",
            &state,
            json!({"set": {}, "request_id": target.live}),
            forbidden,
        ),
        (
            &other,
            "PATCH",
            &state,
            json!({"set": {}, "request_id": target.live}),
            missing,
        ),
        (&ann, "PATCH", "/v1/state/app/demo", json!({}), forbidden),
        (
            &ann,
            "PATCH",
            "/v1/state/app/a%20b",
            json!({"set": {"user:a": 1}}),
            forbidden,
        ),
        (
            &helper,
            "PATCH",
            "/v1/state/user/demo/ann",
            json!({}),
            forbidden,
        ),
        (&bob, "PATCH", "/v1/state/user/demo/ann", json!({}), missing),
        (&bob, "PATCH", "/v1/state/user/demo/zoe", json!({}), missing),
        (&helper, "PATCH", &session, json!({"name": ""}), forbidden),
        (&bob, "PATCH", &session, json!({"name": ""}), missing),
        (
            &bob,
            "PATCH",
            &session,
            json!({"ttl_mode": "fixed"}),
            missing,
        ),
        (
            &unbound,
            "POST",
            "/v1/sessions",
            json!({"app": "a b"}),
            forbidden,
        ),
    ];
    for (who, method, path, body, (status, code)) in cases {
        let answer = send(who, method, path, &body.to_string()).await;
        println!("{method} {path} {body}");
        answer.refused(status, code);
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
    let (bob, helper) = (
        rig.client("bob").await,
        rig.key_for(&["worker"], Some("bob"), &[]).await,
    );
    let (one, two) = (new_session(&bob).await, new_session(&bob).await);
    let done = turn(&helper, &two, "mixer", "a", "b").await;
    start(&bob, &one, "mixer", "x").await;
    let claimed = claim(&helper, "mixer").await;
    let path = format!("/v1/sessions/{one}/requests");
    let never = guessed(&theirs.live_task, &theirs);
    let with_task = |task: &str| json!({"agent": "mixer", "input": "x", "task_id": task});
    let of_nobody = bob.post(&path, &with_task(&never)).await;
    assert!(
        (400..500).contains(&of_nobody.status),
        "{}",
        of_nobody.text()
    );
    for task in [
        &theirs.live_task,
        &theirs.closed_task,
        &text(&done, "task_id"),
    ] {
        let answer = bob.post(&path, &with_task(task)).await;
        let (body, plain) = (
            answer.text().replace(task, ""),
            of_nobody.text().replace(&never, ""),
        );
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
    bob.post(
        &format!("/v1/requests/{}/resume", text(&claimed, "id")),
        &body,
    )
    .await
    .refused(404, "not_found");
}

#[tokio::test]
async fn attack_04_lists_without_a_filter_show_own_objects_only() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let target = target(&rig).await;
        let ids = [
            &target.session,
            &target.live,
            &target.open_hold,
            &target.decided_hold,
            &target.key,
        ];
        for who in [
            rig.client("bob").await,
            rig.key_of(
                "far",
                &["client", "approver", "operator", "admin"],
                None,
                &[],
            )
            .await,
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
                    assert!(
                        !answer.text().contains(id.as_str()),
                        "{path}: {}",
                        answer.text()
                    );
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
async fn attack_06_neighbours_of_a_hold_id_all_answer_alike() {
    let rig = Rig::in_memory().await;
    let target = target(&rig).await;
    let bob = rig.client("bob").await;
    let digits = target.open_hold.trim_start_matches("hld_").to_owned();
    let number = u128::from_str_radix(&digits, 16).expect("hexadecimal");
    let mut answers = Vec::new();
    let near = (0..64_u128)
        .map(|n| number.wrapping_add(n))
        .chain((0..128).map(|bit| number ^ (1 << bit)));
    for guess in near {
        let path = format!("/v1/holds/hld_{guess:032x}");
        answers.push(seen(&bob.get(&path).await));
        let decision = json!({"decision": "reject"});
        answers.push(seen(
            &bob.post(&format!("{path}/decision"), &decision).await,
        ));
    }
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].0, 404);
}
