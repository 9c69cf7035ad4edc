//! Answers with more than one long payload: they end before they are too long, and nothing is lost.

use serde_json::{Value, json};

use super::{act, claim, new_session_of, start};
use crate::rig::{Rig, Who, text};

const LENGTH: usize = 300_000;

fn ids(list: &Value) -> Vec<String> {
    let list = list.as_array().expect("a list");
    list.iter().map(|one| text(one, "id")).collect()
}

async fn claim_many(worker: &Who, max: usize) -> Vec<Value> {
    let body = json!({"agent": "helper", "max": max});
    let claimed = worker.post("/v1/work/claim", &body).await.ok(200);
    claimed["requests"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_claim_ends_before_its_payloads_are_too_long_and_the_rest_stays_in_the_queue() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let lengths = [LENGTH, LENGTH, LENGTH, LENGTH, 3_000_000, 10, 10, 10];
        let mut started = Vec::new();
        for length in lengths {
            let session = new_session_of(&ann, "helper").await;
            let request = start(&ann, &session, "helper", &"x".repeat(length)).await;
            started.push((text(&request, "id"), length));
        }
        let mut claimed = Vec::new();
        let mut counts = Vec::new();
        while claimed.len() < started.len() {
            let requests = claim_many(&helper, 10).await;
            counts.push(requests.len());
            claimed.extend(requests.iter().map(|request| {
                let input = request["input"].as_str().expect("an input");
                (text(request, "id"), input.len())
            }));
        }
        // Three fit 1 MiB; the long one would not fit beside the fourth.
        assert_eq!(counts, [3, 1, 1, 3]);
        assert_eq!(claimed, started);
        assert!(claim_many(&helper, 10).await.is_empty());
    }
}

/// A request of the helper with five approvals that have long arguments.
async fn with_long_holds(rig: &Rig) -> (Who, Who, Value, Vec<Value>) {
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session_of(&ann, "helper").await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim(&helper, "helper").await;
    let mut holds = Vec::new();
    for n in 0..5 {
        let action = json!({"tool": "pay", "args": {"n": n, "text": "x".repeat(LENGTH)}});
        let hold = json!({"kind": "approval", "title": format!("Pay {n}?"), "action": action});
        holds.push(act(&helper, &request, "holds", hold).await.ok(201));
    }
    (ann, helper, request, holds)
}

#[tokio::test]
async fn a_request_with_long_holds_is_read_in_pages() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper, request, holds) = with_long_holds(&rig).await;
        let path = format!("/v1/requests/{}", text(&request, "id"));
        for (who, limit, counts) in [(&ann, 256, vec![3, 2]), (&helper, 2, vec![2, 2, 1])] {
            let (mut found, mut pages) = (Vec::new(), Vec::new());
            let mut next = format!("{path}?limit={limit}");
            loop {
                let page = who.get(&next).await.ok(200);
                assert_eq!(page["pending_total"], 5);
                assert_eq!(page["pending"][4]["title"], "Pay 4?");
                let page_ids = ids(&page["holds"]);
                pages.push(page_ids.len());
                found.splice(0..0, page_ids);
                let Some(cursor) = page["next_cursor"].as_str() else {
                    break;
                };
                next = format!("{path}?limit={limit}&cursor={cursor}");
            }
            assert_eq!(pages, counts);
            let all: Vec<String> = holds.iter().map(|hold| text(hold, "id")).collect();
            assert_eq!(found, all, "every hold, once, in order");
        }
        ann.get(&format!("{path}?limit=257"))
            .await
            .refused(400, "bad_query");
        let foreign = format!("{path}?cursor=x");
        ann.get(&foreign).await.refused(400, "bad_cursor");
    }
}

#[tokio::test]
async fn long_holds_are_listed_and_followed_one_by_one_and_their_decisions_are_claimed_newest_first()
 {
    let rig = Rig::on_disk().await;
    let boss = rig.key(&["approver"]).await;
    let begin = boss.get("/v1/holds").await.ok(200);
    assert_eq!(begin["holds"], json!([]));
    let mut feed = boss.follow("/v1/holds/events", None).await;
    let (_, helper, request, holds) = with_long_holds(&rig).await;
    let all: Vec<String> = holds.iter().map(|hold| text(hold, "id")).collect();
    let opened = feed.take(5).await;
    let told: Vec<String> = opened
        .iter()
        .map(|event| text(&event.data["hold"], "id"))
        .collect();
    assert_eq!(told, all);

    let (mut found, mut next) = (Vec::new(), "/v1/holds?order=oldest".to_owned());
    loop {
        let page = boss.get(&next).await.ok(200);
        let page_ids = ids(&page["holds"]);
        assert!((1..=3).contains(&page_ids.len()));
        found.extend(page_ids);
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        next = format!("/v1/holds?order=oldest&cursor={cursor}");
    }
    assert_eq!(found, all);

    act(&helper, &request, "release", json!({})).await.ok(200);
    for hold in holds.iter().rev() {
        let path = format!("/v1/holds/{}/decision", text(hold, "id"));
        let approve = json!({"decision": "approve", "digest": hold["action"]["digest"]});
        boss.post(&path, &approve).await.ok(200);
    }
    let claimed = claim(&helper, "helper").await;
    // The first were decided last. All five are decided.
    assert_eq!(ids(&claimed["decisions"]), all[..3]);
    assert_eq!(claimed["decisions_total"], 5);
    let long = claimed["decisions"][0]["action"]["args"]["text"].as_str();
    assert_eq!(long.map(str::len), Some(LENGTH));
}

#[tokio::test]
async fn children_whose_payloads_do_not_fit_a_claim_are_read_alone() {
    let rig = Rig::on_disk().await;
    let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper", "b"]).await);
    let session = new_session_of(&ann, "helper").await;
    start(&ann, &session, "helper", "x").await;
    let parent = claim(&worker, "helper").await;
    let child = json!({
        "agent": "b", "input": "x", "parent_request_id": parent["id"], "parent_fence": parent["fence"],
    });
    let path = format!("/v1/sessions/{session}/requests");
    for output in [LENGTH, 100_000, 100_000] {
        worker.post(&path, &child).await.ok(201);
        let child = claim(&worker, "b").await;
        let output = json!({"output": "y".repeat(output)});
        act(&worker, &child, "complete", output).await.ok(200);
    }
    act(&worker, &parent, "release", json!({})).await;
    let claimed = claim(&worker, "helper").await;
    let children = claimed["child_results"].as_array().expect("a list");
    let shown: Vec<_> = children
        .iter()
        .map(|child| {
            let output = child["output"].as_str().map(str::len);
            (child["too_large"] == true, output)
        })
        .collect();
    let short = (false, Some(100_000));
    assert_eq!(shown, [(true, None), short, short]);
    let alone = format!("/v1/requests/{}", text(&children[0], "id"));
    let alone = worker.get(&alone).await.ok(200);
    assert_eq!(alone["output"].as_str().map(str::len), Some(LENGTH));
}
