//! The memory of a request: what its worker gets, page by page, and who gets nothing.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::name::Name;
use statehold_core::task::CloseOn;
use statehold_engine::policy::Policies;

use super::{act, claim, new_session, start};
use crate::rig::{Rig, Setup, Who, text};

/// A turn of the agent `helper` that leaves private state.
async fn turn(ann: &Who, worker: &Who, session: &str, n: u64) -> Value {
    start(ann, session, "helper", &format!("question {n}")).await;
    let claimed = claim(worker, "helper").await;
    let note = json!({"items": [{"kind": "note", "name": "n", "data": {"n": n}}]});
    act(worker, &claimed, "items", note).await.ok(200);
    let done = json!({"output": format!("answer {n}"), "task_state": {"n": n}});
    act(worker, &claimed, "complete", done).await.ok(200)
}

fn memory(request: &Value) -> String {
    format!("/v1/requests/{}/memory", text(request, "id"))
}

fn contents(exchange: &Value) -> Vec<&str> {
    let items = exchange["items"].as_array().expect("a list");
    items
        .iter()
        .filter_map(|item| item["content"].as_str())
        .collect()
}

#[tokio::test]
async fn a_worker_reads_what_its_request_knows() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let session = new_session(&ann).await;
        let mut done = Vec::new();
        for n in 1..=3 {
            done.push(turn(&ann, &worker, &session, n).await);
        }
        start(&ann, &session, "helper", "question 4").await;
        let claimed = claim(&worker, "helper").await;
        assert_eq!(claimed["memory"], json!({"exchanges": 3}));
        assert_eq!(claimed["task_state"], json!({"n": 3}));

        let answer = worker.get(&memory(&claimed)).await;
        assert_eq!(
            answer.header("x-statehold-task"),
            claimed["task_id"].as_str()
        );
        let page = answer.ok(200);
        let exchanges = page["exchanges"].as_array().expect("a list").clone();
        assert!(page.get("next_cursor").is_none());
        assert_eq!(exchanges.len(), 3);
        for (exchange, ended) in exchanges.iter().zip(done.iter().rev()) {
            assert_eq!(exchange["request_id"], ended["id"], "newest first");
            assert_eq!(exchange["task_id"], ended["task_id"]);
            assert_eq!(exchange["ended_at"], ended["finished_at"]);
            assert_eq!(exchange["outcome"], "completed");
        }
        assert_eq!(contents(&exchanges[0]), ["question 3", "answer 3"]);
        assert_eq!(exchanges[0]["items"].as_array().map(Vec::len), Some(3));
        assert_eq!(exchanges[0]["task_state"], json!({"n": 3}));

        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("{}?limit=1{cursor}", memory(&claimed));
            let page = worker.get(&path).await.ok(200);
            found.extend(page["exchanges"].as_array().expect("a list").clone());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(found, exchanges, "page by page");
        let other = format!("{}?limit=1{cursor}", memory(&done[2]));
        worker.get(&other).await.refused(400, "bad_cursor");
        for bad in ["limit=0", "limit=201", "before=1"] {
            let path = format!("{}?{bad}", memory(&claimed));
            worker.get(&path).await.refused(400, "bad_query");
        }

        // The state that the request writes itself comes first, also when it is claimed again.
        let state = json!({"task_state": {"mine": true}});
        act(&worker, &claimed, "items", state).await.ok(200);
        act(&worker, &claimed, "release", json!({})).await.ok(200);
        let again = claim(&worker, "helper").await;
        assert_eq!(again["task_state"], json!({"mine": true}));
        assert_eq!(again["memory"], json!({"exchanges": 3}));
        act(&worker, &again, "fail", json!({"error": "broken"}))
            .await
            .ok(200);
        start(&ann, &session, "helper", "question 5").await;
        let next = claim(&worker, "helper").await;
        assert_eq!(next["memory"], json!({"exchanges": 3}), "no tool ran");
        assert_eq!(
            next["task_state"],
            json!({"n": 3}),
            "only completed ones count"
        );
        let ended = worker.get(&memory(&claimed)).await.ok(200);
        assert_eq!(ended["exchanges"], json!(exchanges), "also after its end");
        rig.stop().await;
    }
}

#[tokio::test]
async fn only_a_worker_of_the_agent_reads_a_memory() {
    let rig = Rig::in_memory().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    turn(&ann, &worker, &session, 1).await;
    let request = start(&ann, &session, "helper", "question 2").await;
    let path = memory(&request);
    worker.get(&path).await.ok(200);
    rig.worker(&[]).await.get(&path).await.ok(200);
    ann.get(&path).await.refused(403, "forbidden");
    let operator = rig.key_for(&["operator"], None, &[]).await;
    operator.get(&path).await.refused(403, "forbidden");
    let other = rig.worker(&["math"]).await;
    other.get(&path).await.refused(404, "not_found");
    let bound = rig.key_for(&["worker"], Some("bob"), &["helper"]).await;
    bound.get(&path).await.refused(404, "not_found");
    let missing = "/v1/requests/req_01a1dc81019474778000000000300001/memory";
    worker.get(missing).await.refused(404, "not_found");
    rig.stop().await;
}

#[tokio::test]
async fn the_agent_view_of_a_task_is_asked_for_by_name() {
    let rig = Rig::in_memory().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    let done = turn(&ann, &worker, &session, 1).await;
    let path = format!("/v1/tasks/{}", text(&done, "task_id"));
    let both = rig.key_for(&["client", "worker"], Some("ann"), &[]).await;
    let own = both.get(&path).await.ok(200);
    assert_eq!(own["history"].as_array().map(Vec::len), Some(2));
    assert!(own.get("state").is_none());
    let agent = both.get(&format!("{path}?view=agent")).await.ok(200);
    assert_eq!(agent["history"].as_array().map(Vec::len), Some(3));
    assert_eq!(agent["state"], json!({"n": 1}));
    assert_eq!(
        worker.get(&format!("{path}?view=agent")).await.ok(200),
        agent
    );
    ann.get(&format!("{path}?view=agent"))
        .await
        .refused(403, "forbidden");
    let other = rig.worker(&["math"]).await;
    other
        .get(&format!("{path}?view=agent"))
        .await
        .refused(404, "not_found");
    both.get(&format!("{path}?view=all"))
        .await
        .refused(400, "bad_query");
    rig.stop().await;
}

#[tokio::test]
async fn the_declaration_of_an_agent_says_what_closes_its_tasks_and_the_memory_stays() {
    let helper: Name = "helper".parse().expect("a name");
    let rig = Rig::with(Setup {
        policies: Arc::new(Policies {
            close_on: [(helper, CloseOn::Reply)].into(),
            ..Policies::default()
        }),
        ..Setup::default()
    })
    .await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    let first = turn(&ann, &worker, &session, 1).await;
    let second = turn(&ann, &worker, &session, 2).await;
    assert_ne!(first["task_id"], second["task_id"], "its answer closed it");
    let task = ann
        .get(&format!("/v1/tasks/{}", text(&first, "task_id")))
        .await;
    assert_eq!(task.ok(200)["status"], "completed");
    start(&ann, &session, "helper", "question 3").await;
    let claimed = claim(&worker, "helper").await;
    assert_eq!(claimed["memory"], json!({"exchanges": 2}));
    // The caller comes first.
    let path = format!("/v1/sessions/{session}/requests");
    let input = json!({"agent": "helper", "input": "question 4", "close_on": "never"});
    let kept = ann.post(&path, &input).await.ok(201);
    let claimed = claim(&worker, "helper").await;
    assert_eq!(claimed["id"], kept["id"]);
    let done = json!({"output": "answer 4"});
    act(&worker, &claimed, "complete", done).await.ok(200);
    let task = ann
        .get(&format!("/v1/tasks/{}", text(&kept, "task_id")))
        .await;
    assert_eq!(task.ok(200)["status"], "idle");
}
