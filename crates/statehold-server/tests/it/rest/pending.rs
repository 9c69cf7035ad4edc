//! What waits for people is shown on everything above it, under the ids of the request that asks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{act, claim, new_session, start};
use crate::rig::{Rig, Who, text};

const AGENTS: [&str; 7] = ["a1", "a2", "a3", "a4", "a5", "b4", "b5"];

/// A request below another, claimed by its worker.
async fn below(worker: &Who, parent: &Value, agent: &str) -> Value {
    let body = json!({
        "agent": agent, "input": "x",
        "parent_request_id": parent["id"], "parent_fence": parent["fence"],
    });
    let path = format!("/v1/sessions/{}/requests", text(parent, "session_id"));
    let made = worker.post(&path, &body).await.ok(201);
    assert_eq!(
        (&made["pending"], &made["pending_total"]),
        (&json!([]), &json!(0))
    );
    claim(worker, agent).await
}

async fn ask(worker: &Who, request: &Value, title: &str) -> Value {
    let question = json!({"kind": "question", "title": title, "expires_in_seconds": 600});
    act(worker, request, "holds", question).await.ok(201)
}

async fn answer(who: &Who, hold: &Value) {
    let path = format!("/v1/holds/{}/decision", text(hold, "id"));
    let respond = json!({"decision": "respond", "content": "1"});
    who.post(&path, &respond).await.ok(200);
}

/// The titles of what something waits for, by hold.
fn titles(of: &Value) -> Vec<String> {
    let pending = of["pending"].as_array().expect("a list");
    assert_eq!(of["pending_total"], pending.len(), "{of}");
    pending.iter().map(|hold| text(hold, "title")).collect()
}

struct Scene {
    ann: Who,
    session: String,
    /// Every request with its task, by agent.
    made: BTreeMap<&'static str, Value>,
}

impl Scene {
    /// Asks everything at every level what it waits for, and compares ids, aliases and chains.
    async fn check(&self, step: &str, expected: &[(&str, &[&str], &str)]) {
        let session = format!("/v1/sessions/{}", self.session);
        let of_session = self.ann.get(&session).await.ok(200);
        let mut by_id: BTreeMap<String, Value> = BTreeMap::new();
        for hold in of_session["pending"].as_array().expect("a list") {
            by_id.insert(text(hold, "id"), hold.clone());
        }
        let tree = self.ann.get(&format!("{session}/tree")).await.ok(200);
        let each = expected.iter().flat_map(|(agents, waits, status)| {
            let agents = agents.split(' ');
            agents.map(move |agent| (agent, *waits, *status))
        });
        for (agent, waits, status) in each {
            let made = &self.made[agent];
            let request = format!("/v1/requests/{}", text(made, "id"));
            let request = self.ann.get(&request).await.ok(200);
            let task = format!("/v1/tasks/{}", text(made, "task_id"));
            let task = self.ann.get(&task).await.ok(200);
            assert_eq!(task["status"], status, "task of {agent} {step}");
            for of in [&request, &task] {
                assert_eq!(titles(of), waits, "{agent} {step}");
                for hold in of["pending"].as_array().expect("a list") {
                    assert_eq!(by_id[&text(hold, "id")], *hold, "the same at every level");
                }
            }
        }
        for hold in by_id.values() {
            let whole = format!("/v1/holds/{}", text(hold, "id"));
            let whole = self.ann.get(&whole).await.ok(200);
            for field in [
                "id",
                "alias",
                "kind",
                "title",
                "agent",
                "session_id",
                "task_id",
                "request_id",
                "task_path",
                "chain",
                "expires_at",
            ] {
                assert_eq!(hold[field], whole[field], "{field} {step}");
            }
            let shown = in_tree(&tree["tasks"], &text(hold, "id")).expect("it is in the tree");
            for field in ["id", "alias", "kind", "title", "expires_at"] {
                assert_eq!(shown[field], hold[field], "{field} in the tree {step}");
            }
        }
    }
}

fn in_tree(tasks: &Value, id: &str) -> Option<Value> {
    for task in tasks.as_array()? {
        for request in task["requests"].as_array()? {
            let mut holds = request["holds"].as_array()?.iter();
            if let Some(found) = holds.find(|hold| hold["id"] == id) {
                return Some(found.clone());
            }
            if let Some(found) = in_tree(&request["tasks"], id) {
                return Some(found);
            }
        }
    }
    None
}

/// a1 - a2 - a3 - a4 - a5, and from a3 also b4 - b5.
async fn scene(rig: &Rig) -> (Scene, Who) {
    let (ann, worker) = (rig.client("ann").await, rig.worker(&AGENTS).await);
    let session = new_session(&ann).await;
    start(&ann, &session, "a1", "x").await;
    let mut made = BTreeMap::from([("a1", claim(&worker, "a1").await)]);
    for (parent, agent) in [
        ("a1", "a2"),
        ("a2", "a3"),
        ("a3", "a4"),
        ("a4", "a5"),
        ("a3", "b4"),
        ("b4", "b5"),
    ] {
        let request = below(&worker, &made[parent], agent).await;
        made.insert(agent, request);
    }
    let scene = Scene { ann, session, made };
    (scene, worker)
}

#[tokio::test]
async fn what_waits_at_two_leaves_is_shown_on_every_ancestor_after_every_step() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (scene, worker) = scene(&rig).await;
        let of = |agent: &str| &scene.made[agent];
        let all = AGENTS.join(" ");
        scene.check("at first", &[(&all, &[], "running")]).await;

        let first = ask(&worker, of("a5"), "first").await;
        let chain = "T1 ← R1 ← T2 ← R2 ← T3 ← R3 ← T4 ← R4 ← T5 ← R5";
        assert_eq!(first["chain"], chain);
        assert_eq!(first["task_path"].as_array().map(Vec::len), Some(5));
        let expected: [(&str, &[&str], &str); 2] = [
            ("a1 a2 a3 a4 a5", &["first"], "paused"),
            ("b4 b5", &[], "running"),
        ];
        scene.check("after one asks", &expected).await;

        let second = ask(&worker, of("b5"), "second").await;
        let third = ask(&worker, of("a5"), "third").await;
        let expected: [(&str, &[&str], &str); 3] = [
            ("a1 a2 a3", &["first", "second", "third"], "paused"),
            ("a4 a5", &["first", "third"], "paused"),
            ("b4 b5", &["second"], "paused"),
        ];
        scene.check("after three were asked", &expected).await;
        let listed = format!("/v1/holds?session_id={}", scene.session);
        let listed = scene.ann.get(&listed).await.ok(200);
        assert_eq!(listed["holds"].as_array().map(Vec::len), Some(3));

        answer(&scene.ann, &first).await;
        let expected: [(&str, &[&str], &str); 3] = [
            ("a1 a2 a3", &["second", "third"], "paused"),
            ("a4 a5", &["third"], "paused"),
            ("b4 b5", &["second"], "paused"),
        ];
        scene.check("after the first answer", &expected).await;

        // One branch fails; the other is as it was.
        answer(&scene.ann, &second).await;
        let failed = act(&worker, of("b5"), "fail", json!({"error": "no"})).await;
        failed.ok(200);
        let expected: [(&str, &[&str], &str); 3] = [
            ("a1 a2 a3 a4 a5", &["third"], "paused"),
            ("b4", &[], "running"),
            ("b5", &[], "idle"),
        ];
        scene.check("after a branch failed", &expected).await;

        // The branch that waits is cancelled in the middle.
        let path = format!("/v1/requests/{}/cancel", text(of("a4"), "id"));
        scene.ann.post(&path, &json!({})).await.ok(200);
        let expected: [(&str, &[&str], &str); 2] =
            [("a1 a2 a3 b4", &[], "running"), ("a4 a5 b5", &[], "idle")];
        scene.check("after a branch was cancelled", &expected).await;
        let path = format!("/v1/holds/{}", text(&third, "id"));
        let decided = scene.ann.get(&path).await.ok(200);
        assert_eq!(decided["status"], "cancelled");
        assert_eq!(decided["chain"], chain, "also when all of it has ended");
        assert_eq!(decided["task_path"], third["task_path"]);
        check_reuse(scene, &worker).await;
    }
}

/// A task that is used again shows its holds where they hang now, and not where they hung.
async fn check_reuse(mut scene: Scene, worker: &Who) {
    let again = below(worker, &scene.made["a3"], "a4").await;
    assert_eq!(again["task_id"], scene.made["a4"]["task_id"]);
    let late = ask(worker, &again, "late").await;
    assert_eq!(late["chain"], "T1 ← R1 ← T2 ← R2 ← T3 ← R3 ← T4 ← R8");
    let ended = scene.made.insert("a4", again).expect("it was there");
    let expected: [(&str, &[&str], &str); 2] =
        [("a1 a2 a3 a4", &["late"], "paused"), ("b4", &[], "running")];
    scene.check("after a task was used again", &expected).await;
    let ended = format!("/v1/requests/{}", text(&ended, "id"));
    let ended = scene.ann.get(&ended).await.ok(200);
    assert_eq!(titles(&ended), Vec::<String>::new());
}

#[tokio::test]
async fn at_most_a_hundred_are_told_and_the_others_are_counted() {
    let rig = Rig::in_memory().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["a1", "a2"]).await);
    let session = new_session(&ann).await;
    let root = start(&ann, &session, "a1", "x").await;
    let above = claim(&worker, "a1").await;
    let leaf = below(&worker, &above, "a2").await;
    for n in 0..103 {
        ask(&worker, &leaf, &n.to_string()).await;
    }
    for path in [
        format!("/v1/sessions/{session}"),
        format!("/v1/requests/{}", text(&root, "id")),
        format!("/v1/tasks/{}", text(&root, "task_id")),
    ] {
        let seen = ann.get(&path).await.ok(200);
        assert_eq!(
            seen["pending"].as_array().map(Vec::len),
            Some(100),
            "{path}"
        );
        assert_eq!(seen["pending_total"], 103);
        assert_eq!(seen["pending"][0]["title"], "0", "the oldest first");
    }
}
