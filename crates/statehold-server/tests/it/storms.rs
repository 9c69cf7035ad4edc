//! Many at once: nothing is lost, nothing is done twice, and every refusal says what is there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::rest::{act, claim, new_session, new_session_of, start};
use crate::rig::{Answer, Rig, Who, text};

const WRITERS: usize = 64;
/// More than any number of tries that a server would make for one of them.
const MERGERS: usize = 150;

/// Runs the same thing many times at once.
async fn storm<T, F>(count: usize, make: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let running: Vec<_> = (0..count).map(|index| tokio::spawn(make(index))).collect();
    let mut results = Vec::new();
    for one in running {
        results.push(one.await.expect("nobody panics"));
    }
    results
}

/// The revisions of a session by its records, which are dense.
async fn check_dense(operator: &Who, session: &str) -> u64 {
    let path = format!("/v1/sessions/{session}/records?limit=1000");
    let page = operator.get(&path).await.ok(200);
    let records = page["records"].as_array().expect("a list");
    for (record, seq) in records.iter().zip(1_u64..) {
        assert_eq!(record["seq"], seq);
    }
    assert_eq!(page["revision"], records.len());
    records.len() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_that_name_a_revision_win_once_each() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let session = new_session(&ann).await;
        let path = format!("/v1/sessions/{session}/state");
        let revisions = storm(WRITERS, |index| {
            let (ann, path) = (ann.clone(), path.clone());
            async move {
                let body = json!({"set": {format!("k{index}"): index, "last": index}}).to_string();
                let mut expected = 1_u64;
                loop {
                    let tag = format!("\"{expected}\"");
                    let answer = ann
                        .send("PATCH", &path, &[("if-match", &tag)], body.clone())
                        .await;
                    if answer.status == 200 {
                        assert_eq!(answer.revision(), expected + 1);
                        return answer.revision();
                    }
                    let problem = answer.refused(412, "revision_mismatch");
                    let current = problem["current"].as_u64().expect("the current revision");
                    assert!(current > expected, "{problem}");
                    expected = current;
                }
            }
        })
        .await;
        let distinct: BTreeSet<u64> = revisions.iter().copied().collect();
        let all: BTreeSet<u64> = (2..=WRITERS as u64 + 1).collect();
        assert_eq!(distinct, all);
        assert_eq!(check_dense(&operator, &session).await, WRITERS as u64 + 1);
        let state = ann.get(&path).await.ok(200);
        for index in 0..WRITERS {
            assert_eq!(state["state"][format!("k{index}")], index);
        }
        let winner = revisions.iter().position(|r| *r == WRITERS as u64 + 1);
        assert_eq!(
            state["state"]["last"],
            winner.expect("the last revision has a writer")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_without_a_condition_all_get_a_revision_of_their_own() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let session = new_session(&ann).await;
        let path = format!("/v1/sessions/{session}/state");
        let mut feed = ann
            .follow(&format!("/v1/sessions/{session}/events"), None)
            .await;
        let revisions = storm(WRITERS, |index| {
            let (ann, path) = (ann.clone(), path.clone());
            async move {
                let body = json!({"set": {format!("k{index}"): index}});
                ann.patch(&path, &body).await.ok(200)["revision"].as_u64()
            }
        })
        .await;
        let distinct: BTreeSet<Option<u64>> = revisions.iter().copied().collect();
        assert_eq!(distinct.len(), WRITERS);
        assert_eq!(check_dense(&operator, &session).await, WRITERS as u64 + 1);
        let state = ann.get(&path).await.ok(200);
        assert_eq!(
            state["state"].as_object().map(serde_json::Map::len),
            Some(WRITERS)
        );
        for (event, revision) in feed.take(WRITERS).await.iter().zip(2_u64..) {
            assert_eq!(event.id, revision.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sums_are_exact_however_many_add() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let session = new_session(&ann).await;
        let path = format!("/v1/sessions/{session}/state");
        for key in ["n", "user:n"] {
            storm(MERGERS, |index| {
                let (ann, path) = (ann.clone(), path.clone());
                async move {
                    let body = json!({"set": {key: index}, "merge": {key: "add"}});
                    ann.patch(&path, &body).await.ok(200);
                }
            })
            .await;
            let state = ann.get(&path).await.ok(200);
            assert_eq!(state["state"][key], MERGERS * (MERGERS - 1) / 2, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sums_inside_turns_are_exact_and_never_a_conflict() {
    const EACH: usize = 48;
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let session = new_session_of(&ann, "helper").await;
        let requests = format!("/v1/sessions/{session}/requests");
        let state = json!({"set": {"n": 1, "user:n": 1}, "merge": {"n": "add", "user:n": "add"}});
        let lease = json!({"ttl_seconds": 60});
        let begin = json!({"agent": "helper", "input": "x", "lease": lease});
        let shared = helper.post(&requests, &begin).await.ok(201);
        storm(4 * EACH, |index| {
            let (ann, helper) = (ann.clone(), helper.clone());
            let (requests, shared) = (requests.clone(), shared.clone());
            let (state, mut begin) = (state.clone(), begin.clone());
            let session = session.clone();
            async move {
                match index % 4 {
                    0 => {
                        let path = format!("/v1/sessions/{session}/state");
                        ann.patch(&path, &state).await.ok(200);
                    }
                    1 => {
                        (begin["state"], begin["output"]) = (state, json!("done"));
                        helper.post(&requests, &begin).await.ok(201);
                    }
                    2 => {
                        let items = act(&helper, &shared, "items", json!({"state": state}));
                        items.await.ok(200);
                    }
                    _ => {
                        let own = helper.post(&requests, &begin).await.ok(201);
                        let body = json!({"output": "done", "state": state});
                        act(&helper, &own, "complete", body).await.ok(200);
                    }
                }
            }
        })
        .await;
        let path = format!("/v1/sessions/{session}/state");
        let found = ann.get(&path).await.ok(200);
        for key in ["n", "user:n"] {
            assert_eq!(found["state"][key], 4 * EACH, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_user_scope_takes_writes_of_many_sessions_and_routes() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let mut paths = vec!["/v1/state/user/demo/ann".to_owned()];
    for _ in 0..3 {
        paths.push(format!("/v1/sessions/{}/state", new_session(&ann).await));
    }
    storm(WRITERS, |index| {
        let (ann, path) = (ann.clone(), paths[index % paths.len()].clone());
        async move {
            let body = json!({"set": {"user:n": 1}, "merge": {"user:n": "add"}});
            ann.patch(&path, &body).await.ok(200);
        }
    })
    .await;
    let state = ann.get("/v1/state/user/demo/ann").await.ok(200);
    assert_eq!(state["state"]["user:n"], WRITERS);
    assert_eq!(state["versions"]["user:n"], WRITERS);
}

/// One answer, many times.
#[track_caller]
fn check_one(answers: &[Answer], status: u16) -> Value {
    let first = &answers[0];
    for answer in answers {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.body, first.body);
        assert_eq!(answer.header("etag"), first.header("etag"));
    }
    let fresh = answers
        .iter()
        .filter(|answer| answer.header("idempotency-replayed").is_none());
    assert_eq!(fresh.count(), 1);
    first.ok(status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_key_makes_one_thing_however_often_it_is_sent() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let send = |path: String, body: &'static str| {
            let ann = ann.clone();
            move |_| {
                let (ann, path) = (ann.clone(), path.clone());
                async move {
                    let key = format!("one-{path}");
                    let headers = [("idempotency-key", key.as_str())];
                    ann.send("POST", &path, &headers, body).await
                }
            }
        };
        let answers = storm(100, send("/v1/sessions".to_owned(), r#"{"app":"demo"}"#)).await;
        let session = text(&check_one(&answers, 201), "id");
        let list = ann.get("/v1/sessions").await.ok(200);
        assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1));
        let path = format!("/v1/sessions/{session}/requests");
        let answers = storm(100, send(path, r#"{"agent":"helper","input":"x"}"#)).await;
        check_one(&answers, 201);
        let read = ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
        assert_eq!(read["revision"], 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hold_is_decided_once_however_many_decide() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let mut people = Vec::new();
        for index in 0..10 {
            let name = format!("boss{index}");
            people.push(rig.key_for(&["approver"], Some(&name), &[]).await);
        }
        let session = new_session(&ann).await;
        start(&ann, &session, "helper", "x").await;
        let claimed = claim(&helper, "helper").await;
        let hold = json!({"kind": "approval", "title": "t", "action": {"tool": "pay", "args": {}}});
        let hold = act(&helper, &claimed, "holds", hold).await.ok(201);
        let path = format!("/v1/holds/{}/decision", text(&hold, "id"));
        let digest = text(&hold["action"], "digest");
        let answers = storm(100, |index| {
            let (who, path) = (people[index % 10].clone(), path.clone());
            let body = if index % 2 == 0 {
                json!({"decision": "approve", "digest": digest})
            } else {
                json!({"decision": "reject"})
            };
            let key = format!("d{index}");
            async move {
                let headers = [("idempotency-key", key.as_str())];
                who.send("POST", &path, &headers, body.to_string()).await
            }
        })
        .await;
        let mut outcomes: BTreeMap<u16, usize> = BTreeMap::new();
        for answer in &answers {
            *outcomes.entry(answer.status).or_default() += 1;
        }
        assert_eq!(outcomes, BTreeMap::from([(200, 1), (409, 99)]));
        let won = answers.iter().find(|answer| answer.status == 200);
        let won = won.expect("one").ok(200);
        for answer in answers.iter().filter(|answer| answer.status == 409) {
            let problem = answer.refused(409, "hold_decided");
            assert_eq!(problem["hold_status"], won["status"]);
            assert_eq!(problem["decided_by"], won["decided_by"]);
        }
        let records = operator
            .get(&format!("/v1/sessions/{session}/records"))
            .await
            .ok(200);
        let count = records.to_string().matches("\"hold_decided\"").count();
        assert_eq!(count, 1, "{records}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_request_is_claimed_once() {
    let rig = Rig::on_disk().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    for _ in 0..20 {
        let session = new_session(&ann).await;
        start(&ann, &session, "helper", "x").await;
    }
    let claimed = storm(40, |_| {
        let helper = helper.clone();
        async move {
            let body = json!({"agent": "helper", "max": 3});
            let claimed = helper.post("/v1/work/claim", &body).await.ok(200);
            let requests = claimed["requests"].as_array().cloned();
            requests.unwrap_or_default()
        }
    })
    .await;
    let ids: Vec<String> = claimed.iter().flatten().map(|r| text(r, "id")).collect();
    let distinct: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "no request is handed out twice");
    let mut rest = 20 - ids.len();
    while rest > 0 {
        claim(&helper, "helper").await;
        rest -= 1;
    }
}
