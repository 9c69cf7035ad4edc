//! An orchestrator is a worker like any other, often in another process: however it waits for a request
//! that it started, it learns of decisions and answers below.

use serde_json::{Value, json};

use super::{act, claim, new_session, start};
use crate::rig::{Rig, Who, text, until};

struct Scene {
    rig: Rig,
    ann: Who,
    orchestrator: Who,
    math: Who,
    above: Value,
    below: Value,
}

/// A child that asks a person, started by a worker of another agent.
async fn scene(rig: Rig, lease_seconds: u64) -> Scene {
    let ann = rig.client("ann").await;
    let (orchestrator, math) = (rig.worker(&["boss"]).await, rig.worker(&["math"]).await);
    let session = new_session(&ann).await;
    start(&ann, &session, "boss", "x").await;
    let body = json!({"agent": "boss", "lease_seconds": lease_seconds});
    let claimed = orchestrator.post("/v1/work/claim", &body).await.ok(200);
    let above = claimed["requests"][0].clone();
    let child = json!({
        "agent": "math", "input": "2+2",
        "parent_request_id": above["id"], "parent_fence": above["fence"],
    });
    let path = format!("/v1/sessions/{session}/requests");
    orchestrator.post(&path, &child).await.ok(201);
    let below = claim(&math, "math").await;
    Scene {
        rig,
        ann,
        orchestrator,
        math,
        above,
        below,
    }
}

impl Scene {
    async fn ask(&self) -> Value {
        let question = json!({"kind": "question", "title": "Sure?"});
        act(&self.math, &self.below, "holds", question)
            .await
            .ok(201)
    }

    async fn answer(&self, hold: &Value) {
        let path = format!("/v1/holds/{}/decision", text(hold, "id"));
        let respond = json!({"decision": "respond", "content": "yes"});
        self.ann.post(&path, &respond).await.ok(200);
    }

    async fn finish(&self) {
        act(&self.math, &self.below, "complete", json!({"output": "4"}))
            .await
            .ok(200);
    }
}

#[tokio::test]
async fn an_orchestrator_waits_for_a_child_by_a_long_poll() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let scene = scene(rig, 60).await;
        let path = format!("/v1/requests/{}", text(&scene.below, "id"));
        let wait = |path: &str, until: &str| {
            let (who, path) = (
                scene.orchestrator.clone(),
                format!("{path}?wait=20&{until}"),
            );
            tokio::spawn(async move { who.get(&path).await.ok(200) })
        };
        let last = wait(&path, "until=final");
        // A change since what it knows is never missed, whenever the call comes.
        let known = scene.orchestrator.get(&path).await.revision();
        let changed = wait(&path, &format!("until=changed&after={known}"));
        let hold = scene.ask().await;
        let seen = changed.await.expect("the wait ends");
        assert_eq!(seen["status"], "held");
        assert_eq!(seen["pending"][0]["id"], hold["id"], "{seen}");
        assert!(
            seen.get("fence").is_none(),
            "the fence is the child's: {seen}"
        );

        // Its own request changes when something below does.
        let above = format!("/v1/requests/{}", text(&scene.above, "id"));
        let before = scene.orchestrator.get(&above).await;
        assert_eq!(before.ok(200)["pending"][0]["id"], hold["id"]);
        let until = format!("until=changed&after={}", before.revision());
        let changed = wait(&above, &until);
        scene.answer(&hold).await;
        let after = changed.await.expect("the wait ends");
        assert_eq!(after["pending"], json!([]), "{after}");
        scene
            .orchestrator
            .get(&format!("{above}?wait=1&after=1"))
            .await
            .refused(400, "bad_query");

        scene.finish().await;
        let seen = last.await.expect("the wait ends");
        assert_eq!(
            (&seen["status"], &seen["output"]),
            (&json!("completed"), &json!("4"))
        );
        // A worker that did not ask for it is told nothing.
        let other = scene.rig.worker(&["other"]).await;
        other.get(&path).await.refused(404, "not_found");
        let bobs = scene.rig.key_for(&["worker"], Some("bob"), &["boss"]).await;
        bobs.get(&path).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn an_orchestrator_waits_for_a_child_by_the_feed_of_the_session() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let scene = scene(rig, 60).await;
        let session = text(&scene.above, "session_id");
        let mut feed = scene
            .orchestrator
            .follow(&format!("/v1/sessions/{session}/events"), None)
            .await;
        let hold = scene.ask().await;
        scene.answer(&hold).await;
        scene.finish().await;
        let mut told = Vec::new();
        for event in feed.take(3).await {
            for one in event.data["events"].as_array().expect("a list") {
                let kind = text(one, "type");
                if kind == "hold_opened" || kind == "hold_decided" {
                    assert_eq!(one["hold_id"], hold["id"]);
                    told.push(kind);
                } else if kind == "request_ended" {
                    assert_eq!(one["request_id"], scene.below["id"]);
                    told.push(kind);
                }
            }
        }
        assert_eq!(told, ["hold_opened", "hold_decided", "request_ended"]);
    }
}

#[tokio::test]
async fn an_orchestrator_that_went_away_claims_the_answer_of_its_child() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let scene = scene(rig, 3).await;
        let hold = scene.ask().await;
        let end: jiff::Timestamp = text(&scene.above, "lease_until").parse().expect("a time");
        until("the lease is over", || async {
            (jiff::Timestamp::now() > end).then_some(())
        })
        .await;
        let waits = scene.orchestrator.clone();
        let claiming = tokio::spawn(async move { claim(&waits, "boss").await });
        scene.answer(&hold).await;
        scene.finish().await;
        let claimed = claiming.await.expect("the claim is answered");
        assert_eq!(claimed["id"], scene.above["id"]);
        assert_eq!(claimed["fence"], 2);
        let child = &claimed["child_results"][0];
        assert_eq!(
            (&child["id"], &child["output"]),
            (&scene.below["id"], &json!("4"))
        );
        assert_eq!(
            (&child["pending"], &child["pending_total"]),
            (&json!([]), &json!(0))
        );
        assert!(child.get("fence").is_none() && child.get("lease_until").is_none());
    }
}

#[tokio::test]
async fn a_claim_shows_what_children_still_wait_for() {
    let rig = Rig::on_disk().await;
    let scene = scene(rig, 3).await;
    let own = json!({"kind": "question", "title": "Me too?"});
    // The orchestrator asks too, and its lease lapses; only its own question is answered.
    let asked = act(&scene.orchestrator, &scene.above, "holds", own)
        .await
        .ok(201);
    let hold = scene.ask().await;
    let path = format!("/v1/requests/{}", text(&scene.above, "id"));
    let seen = scene.orchestrator.get(&path).await.ok(200);
    let ids: Vec<&Value> = seen["pending"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert_eq!(ids, [&asked["id"], &hold["id"]]);
    assert_eq!(seen["holds"][0]["id"], asked["id"]);
}
