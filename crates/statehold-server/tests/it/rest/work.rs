use serde_json::{Value, json};

use super::{act, claim, new_session, new_session_of, start, turn};
use crate::rig::{Rig, Who, text, until};

#[tokio::test]
async fn one_call_carries_a_whole_turn_in_one_record() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, worker) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let session = new_session_of(&ann, "helper").await;
        let body = json!({
            "agent": "helper", "input": {"content": "hi", "attachments": [{"url": "https://x.test/a", "title": "a"}]},
            "lease": {"ttl_seconds": 30, "worker": "w1"},
            "items": [
                {"kind": "tool_call", "name": "search", "call_id": "c1", "arguments": {"q": 1}},
                {"kind": "tool_result", "call_id": "c1", "result": [1, 2]},
                {"kind": "step", "data": {"model": "m"}},
            ],
            "state": {"set": {"topic": "cats"}},
            "output": {"content": [{"type": "text", "text": "ho"}], "annotations": {"k": 1}},
        });
        let path = format!("/v1/sessions/{session}");
        let answer = worker.post(&format!("{path}/requests"), &body).await;
        let request = answer.ok(201);
        assert_eq!(answer.revision(), 2);
        assert_eq!(request["status"], "completed");
        assert_eq!(request["input"], "hi");
        assert_eq!(request["output"], json!([{"type": "text", "text": "ho"}]));
        assert_eq!(answer.header("x-statehold-session"), Some(session.as_str()));
        assert_eq!(answer.header("x-statehold-request"), request["id"].as_str());
        assert_eq!(
            answer.header("x-statehold-task"),
            request["task_id"].as_str()
        );
        text(&request, "finished_at");
        let read = ann
            .get(&format!("/v1/requests/{}", text(&request, "id")))
            .await
            .ok(200);
        assert_eq!(read["output"], request["output"]);
        assert_eq!(read["status"], "completed");
        let messages = ann.get(&format!("{path}/messages")).await.ok(200);
        let messages = messages["messages"].as_array().expect("a list").clone();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert_eq!(messages[0]["role"], "user");
        assert_eq!(messages[0]["attachments"][0]["url"], "https://x.test/a");
        assert_eq!(messages[1]["role"], "assistant");
        assert_eq!(messages[1]["annotations"], json!({"k": 1}));
        let state = ann.get(&format!("{path}/state")).await.ok(200);
        assert_eq!(state["state"]["topic"], "cats");
    }
}

#[tokio::test]
async fn a_worker_claims_asks_a_child_and_a_person_and_answers() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let (helper, math) = (rig.worker(&["helper"]).await, rig.worker(&["math"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let session = new_session(&ann).await;
        let root = start(&ann, &session, "helper", "pay 2+2").await;
        assert_eq!(root["status"], "queued");
        assert!(root.get("fence").is_none(), "{root}");

        let claimed = claim(&helper, "helper").await;
        assert_eq!(claimed["id"], root["id"]);
        assert_eq!(claimed["fence"], 1);
        assert_eq!(claimed["input"], "pay 2+2");
        text(&claimed, "lease_until");
        for list in ["decisions", "child_results", "calls", "holds"] {
            assert_eq!(claimed[list], json!([]), "{list}");
        }
        let alive = act(&helper, &claimed, "heartbeat", json!({})).await.ok(200);
        assert_eq!(alive["status"], "running");

        // A child request, claimed and answered by its own worker.
        let body = json!({
            "agent": "math", "input": "2+2", "parent_request_id": root["id"], "parent_fence": 1,
        });
        let path = format!("/v1/sessions/{session}/requests");
        let child = helper.post(&path, &body).await.ok(201);
        assert_eq!(child["parent_request_id"], root["id"]);
        act(&helper, &claimed, "complete", json!({"output": "early"}))
            .await
            .refused(409, "children_live");
        let sum = claim(&math, "math").await;
        assert_eq!(sum["id"], child["id"]);
        act(&math, &sum, "complete", json!({"output": "4"}))
            .await
            .ok(200);
        let hidden = ann
            .get(&format!("/v1/requests/{}", text(&child, "id")))
            .await
            .ok(200);
        assert!(hidden.get("input").is_none() && hidden.get("output").is_none());

        // Items, then an approval.
        let items = json!({
            "items": [
                {"kind": "tool_call", "name": "look", "call_id": "c1", "arguments": {}},
                {"kind": "message", "content": "working on it"},
            ],
            "task_state": {"step": 1},
        });
        let written = act(&helper, &claimed, "items", items).await.ok(200);
        assert_eq!(written["items"][0]["call_id"], "c1");
        let result = json!({"items": [{"kind": "tool_result", "call_id": "c1", "result": "ok"}]});
        act(&helper, &claimed, "items", result).await.ok(200);
        let hold = json!({
            "kind": "approval", "title": "Pay?", "message": "4 euro",
            "action": {"tool": "pay", "args": {"amount": 4}, "call_id": "p1", "risk": "high"},
            "allowed": ["approve", "reject"],
        });
        let hold = act(&helper, &claimed, "holds", hold).await.ok(201);
        assert_eq!(hold["status"], "open");
        assert_eq!(hold["alias"], "R1.h1");
        assert_eq!(
            ann.get(&format!("/v1/sessions/{session}")).await.ok(200)["status"],
            "paused"
        );
        act(&helper, &claimed, "complete", json!({"output": "early"}))
            .await
            .refused(409, "holds_open");

        check_one_decision(&ann, &boss, &hold).await;

        let result = json!({
            "output": "paid", "close_task": true, "task_state": {"step": 2},
            "items": [{"kind": "tool_result", "call_id": "p1", "result": {"paid": true}}],
            "state": {"set": {"paid": 4}},
        });
        let ended = act(&helper, &claimed, "complete", result).await.ok(200);
        assert_eq!(ended["status"], "completed");
        assert_eq!(ended["output"], "paid");
        let task = helper
            .get(&format!("/v1/tasks/{}", text(&root, "task_id")))
            .await;
        // A closed task is out of a bound worker's reach; its user still reads the visible part.
        assert!(matches!(task.status, 200 | 404), "{}", task.text());
        let task = ann
            .get(&format!("/v1/tasks/{}", text(&root, "task_id")))
            .await
            .ok(200);
        assert_eq!(task["status"], "completed");
        assert!(task.get("state").is_none(), "{task}");
        let kinds: Vec<&str> = task["history"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|item| item["kind"].as_str())
            .collect();
        assert_eq!(kinds, ["message", "message", "message"]);
        act(
            &helper,
            &claimed,
            "items",
            json!({"items": [{"kind": "note"}]}),
        )
        .await
        .refused(409, "request_ended");
    }
}

/// Whoever may not decide sees little and decides nothing; whoever may decides once.
async fn check_one_decision(ann: &Who, boss: &Who, hold: &Value) {
    let digest = text(&hold["action"], "digest");
    let inbox = boss
        .get("/v1/holds?risk=high&kind=approval&agent=helper")
        .await
        .ok(200);
    assert_eq!(inbox["holds"][0]["id"], hold["id"]);
    assert_eq!(inbox["holds"][0]["action"]["args"], json!({"amount": 4}));
    let path = format!("/v1/holds/{}", text(hold, "id"));
    let seen = ann.get(&path).await.ok(200);
    assert_eq!(seen["title"], "Pay?");
    assert!(
        seen.get("action").is_none() && seen.get("votes").is_none(),
        "{seen}"
    );
    let decision = format!("{path}/decision");
    ann.post(&decision, &json!({"decision": "approve", "digest": digest}))
        .await
        .refused(403, "may_not_decide");
    boss.post(
        &decision,
        &json!({"decision": "approve", "digest": "0".repeat(64)}),
    )
    .await
    .refused(409, "digest_mismatch");
    boss.post(&decision, &json!({"decision": "respond", "comment": "x"}))
        .await
        .refused(422, "decision_not_offered");
    let approve = json!({"decision": "approve", "digest": digest});
    let decided = boss.post(&decision, &approve).await.ok(200);
    assert_eq!(decided["status"], "approved");
    assert_eq!(decided["request_status"], "running");
    let again = boss.post(&decision, &approve).await;
    assert_eq!(again.ok(200), decided);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let other = boss
        .post(&decision, &json!({"decision": "reject"}))
        .await
        .refused(409, "hold_decided");
    assert_eq!(other["hold_id"], hold["id"]);
    assert_eq!(other["hold_status"], "approved");
}

#[tokio::test]
async fn a_claim_after_a_decision_brings_the_decision_and_the_children() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let helper = rig.worker(&["helper", "math"]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "which?").await;
    let body = json!({"agent": "helper", "lease_seconds": 3});
    let claimed = helper.post("/v1/work/claim", &body).await.ok(200)["requests"][0].clone();
    let question =
        json!({"kind": "form", "title": "Which one?", "response_schema": {"type": "object"}});
    let hold = act(&helper, &claimed, "holds", question).await.ok(201);
    let child = json!({
        "agent": "math", "input": "1+1", "parent_request_id": claimed["id"], "parent_fence": 1,
        "lease": {"ttl_seconds": 5}, "output": "2",
    });
    helper
        .post(&format!("/v1/sessions/{session}/requests"), &child)
        .await
        .ok(201);
    // The lease lapses in silence while a person is asked.
    let path = format!("/v1/requests/{}", text(&claimed, "id"));
    let end: jiff::Timestamp = text(&claimed, "lease_until").parse().expect("a time");
    until("the lease is over", || async {
        (jiff::Timestamp::now() > end).then_some(())
    })
    .await;
    let resume = json!({"decision": "respond", "content": {"choice": "red"}});
    let decided = ann.post(&format!("{path}/resume"), &resume).await.ok(200);
    assert_eq!(decided["id"], hold["id"]);
    assert_eq!(decided["status"], "answered");
    assert_eq!(decided["request_status"], "queued");
    let second = claim(&helper, "helper").await;
    assert_eq!(second["fence"], 2);
    assert_eq!(second["decisions"][0]["id"], hold["id"]);
    assert_eq!(
        second["decisions"][0]["decision"]["content"],
        json!({"choice": "red"})
    );
    assert_eq!(second["child_results"][0]["output"], "2");
    let stale = act(
        &helper,
        &claimed,
        "items",
        json!({"items": [{"kind": "note"}]}),
    )
    .await
    .refused(409, "stale_fence");
    assert_eq!(stale["current"], 2);
    act(&helper, &second, "complete", json!({"output": "red"}))
        .await
        .ok(200);
}

#[tokio::test]
async fn requests_fail_are_cancelled_and_are_waited_for() {
    let rig = Rig::on_disk().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    let first = start(&ann, &session, "helper", "one").await;
    let path = format!("/v1/requests/{}", text(&first, "id"));
    let waiting = {
        let (ann, path) = (ann.clone(), path.clone());
        tokio::spawn(async move { ann.get(&format!("{path}?wait=20")).await.ok(200) })
    };
    let claimed = claim(&helper, "helper").await;
    let failed = act(
        &helper,
        &claimed,
        "fail",
        json!({"error": {"why": "inner"}}),
    )
    .await
    .ok(200);
    assert_eq!(failed["status"], "failed");
    let seen = waiting.await.expect("the wait ends");
    assert_eq!(seen["status"], "failed");
    assert!(
        seen.get("error").is_none(),
        "errors are for workers: {seen}"
    );
    let inside = helper.get(&path).await.ok(200);
    assert_eq!(inside["error"], json!({"why": "inner"}));

    let second = start(&ann, &session, "helper", "two").await;
    assert_eq!(
        second["task_id"], first["task_id"],
        "an idle task is used again"
    );
    let busy = json!({"agent": "helper", "input": "x", "task_id": second["task_id"]});
    let busy = ann
        .post(&format!("/v1/sessions/{session}/requests"), &busy)
        .await
        .refused(409, "task_busy");
    assert_eq!(busy["request_id"], second["id"]);
    ann.post(&format!("/v1/sessions/{session}/close"), &json!({}))
        .await
        .refused(409, "requests_live");
    let path = format!("/v1/requests/{}", text(&second, "id"));
    let changed = {
        let (ann, path) = (ann.clone(), path.clone());
        tokio::spawn(async move {
            ann.get(&format!("{path}?wait=20&until=changed"))
                .await
                .ok(200)
        })
    };
    let cancelled = ann
        .post(&format!("{path}/cancel"), &json!({}))
        .await
        .ok(200);
    assert_eq!(cancelled["status"], "cancelled");
    let changed = changed.await.expect("the wait ends");
    assert!(matches!(
        changed["status"].as_str(),
        Some("cancelled" | "queued")
    ));
    ann.post(&format!("{path}/cancel"), &json!({}))
        .await
        .refused(409, "request_ended");
    for query in ["wait=61", "wait=-1", "until=now", "x=1"] {
        ann.get(&format!("{path}?{query}"))
            .await
            .refused(400, "bad_query");
    }
}

#[tokio::test]
async fn tasks_are_closed_and_cancelled() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session_of(&ann, "helper").await;
    let done = turn(&helper, &session, "helper", "a", "b").await;
    let path = format!("/v1/tasks/{}", text(&done, "task_id"));
    let task = helper.get(&path).await.ok(200);
    assert_eq!(task["status"], "idle");
    assert_eq!(task["last_outcome"], "completed");
    let closed = ann.post(&format!("{path}/close"), &json!({})).await;
    assert_eq!(closed.ok(200)["status"], "completed");
    ann.post(&format!("{path}/close"), &json!({}))
        .await
        .refused(409, "task_final");
    let next = start(&ann, &session, "helper", "more").await;
    assert_ne!(next["task_id"], done["task_id"]);
    let path = format!("/v1/tasks/{}", text(&next, "task_id"));
    ann.post(&format!("{path}/close"), &json!({}))
        .await
        .refused(409, "task_busy");
    let cancelled = ann.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(cancelled.ok(200)["status"], "cancelled");
    let ended = ann
        .get(&format!("/v1/requests/{}", text(&next, "id")))
        .await
        .ok(200);
    assert_eq!(ended["status"], "cancelled");
}

#[tokio::test]
async fn several_holds_are_told_apart() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let mut holds = Vec::new();
    for tool in ["one", "two"] {
        let hold = json!({
            "kind": "approval", "title": tool, "action": {"tool": tool, "args": {}},
        });
        holds.push(act(&helper, &claimed, "holds", hold).await.ok(201));
    }
    let path = format!("/v1/requests/{}/resume", text(&claimed, "id"));
    let several = boss
        .post(&path, &json!({"decision": "reject"}))
        .await
        .refused(409, "several_holds");
    assert_eq!(several["holds"].as_array().map(Vec::len), Some(2));
    let digest = text(&holds[1]["action"], "digest");
    let approve = json!({"decision": "approve", "digest": digest});
    assert_eq!(
        boss.post(&path, &approve).await.ok(200)["id"],
        holds[1]["id"]
    );
    let reject = json!({"decision": "reject", "hold_id": holds[0]["id"], "comment": "no"});
    assert_eq!(
        boss.post(&path, &reject).await.ok(200)["status"],
        "rejected"
    );
    let decided = boss.get("/v1/holds?status=decided").await.ok(200);
    assert_eq!(decided["holds"].as_array().map(Vec::len), Some(2));
    for query in ["status=x", "kind=x", "risk=x", "limit=0", "agent=a%20b"] {
        let answer = boss.get(&format!("/v1/holds?{query}")).await;
        assert!(
            matches!(answer.status, 400 | 422),
            "{query}: {}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn edits_quorums_and_deadlines_of_holds_count() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let chief = rig.key_for(&["approver"], Some("chief"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let open = |extra: Value| {
        let mut hold =
            json!({"kind": "approval", "title": "t", "action": {"tool": "pay", "args": {"n": 1}}});
        for (name, value) in extra.as_object().expect("an object") {
            hold[name] = value.clone();
        }
        act(&helper, &claimed, "holds", hold)
    };
    let edited = open(json!({})).await.ok(201);
    let path = format!("/v1/holds/{}/decision", text(&edited, "id"));
    let digest = text(&edited["action"], "digest");
    boss.post(&path, &json!({"decision": "edit", "digest": digest}))
        .await
        .refused(422, "answer_missing");
    boss.post(
        &path,
        &json!({"decision": "approve", "digest": digest, "args": {}}),
    )
    .await
    .refused(422, "invalid_body");
    let edit = json!({"decision": "edit", "digest": digest, "args": {"n": 2}});
    assert_eq!(boss.post(&path, &edit).await.ok(200)["status"], "edited");

    let both = open(json!({"quorum": 2})).await.ok(201);
    let path = format!("/v1/holds/{}/decision", text(&both, "id"));
    let approve = json!({"decision": "approve", "digest": both["action"]["digest"]});
    let first = boss.post(&path, &approve).await.ok(200);
    assert_eq!(first["status"], "open");
    assert_eq!(
        (&first["approvals"], &first["quorum"]),
        (&json!(1), &json!(2))
    );
    let same = boss.post(&path, &approve).await;
    assert!(
        same.status == 409 || same.header("idempotency-replayed") == Some("true"),
        "{}",
        same.text()
    );
    assert_eq!(
        chief.post(&path, &approve).await.ok(200)["status"],
        "approved"
    );

    let short = open(json!({"expires_in_seconds": 1})).await.ok(201);
    let path = format!("/v1/holds/{}", text(&short, "id"));
    until("the hold has expired", || async {
        let hold = boss.get(&path).await.ok(200);
        (hold["status"] == "expired").then_some(())
    })
    .await;
    let approve = json!({"decision": "approve", "digest": short["action"]["digest"]});
    boss.post(&format!("{path}/decision"), &approve)
        .await
        .refused(410, "hold_expired");
    for wrong in [
        json!({"title": ""}),
        json!({"title": "x".repeat(257)}),
        json!({"decide_by": "everybody"}),
    ] {
        open(wrong).await.refused(422, "hold_malformed");
    }
    for quorum in [0, 33] {
        let answer = open(json!({"quorum": quorum})).await;
        assert_eq!(answer.refused(422, "limit_reached")["max"], 32);
    }
}

#[tokio::test]
async fn workers_are_kept_to_their_agents() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let other = rig.worker(&["other"]).await;
    let session = new_session(&ann).await;
    let request = start(&ann, &session, "helper", "x").await;
    other
        .post("/v1/work/claim", &json!({"agent": "helper"}))
        .await
        .refused(403, "wrong_agent");
    ann.post("/v1/work/claim", &json!({"agent": "helper"}))
        .await
        .refused(403, "forbidden");
    let none = other
        .post("/v1/work/claim", &json!({"agent": "other"}))
        .await;
    assert_eq!(none.ok(200), json!({"requests": []}));
    for body in [
        json!({"agent": "helper", "max": 0}),
        json!({"agent": "helper", "max": 101}),
        json!({"agent": "helper", "wait_seconds": 61}),
        json!({"agent": "statehold.state"}),
        json!({"agent": ""}),
    ] {
        helper
            .post("/v1/work/claim", &body)
            .await
            .refused(422, "invalid_body");
    }
    let claimed = claim(&helper, "helper").await;
    assert_eq!(claimed["id"], request["id"]);
    for what in ["items", "fail", "complete", "heartbeat", "release"] {
        let body = match what {
            "items" => json!({"items": [{"kind": "note"}]}),
            "fail" => json!({"error": "x"}),
            "complete" => json!({"output": "x"}),
            _ => json!({}),
        };
        act(&other, &claimed, what, body.clone())
            .await
            .refused(404, "not_found");
        act(&ann, &claimed, what, body)
            .await
            .refused(403, "forbidden");
    }
    for item in [
        json!({"kind": "message"}),
        json!({"kind": "message", "role": "user", "content": "x"}),
        json!({"kind": "message", "content": 5}),
        json!({"kind": "tool_call", "name": "x"}),
        json!({"kind": "tool_result", "result": 1}),
        json!({"kind": "note", "gated": true}),
        json!({"kind": "note", "role": "user"}),
        json!({"kind": "note", "outcome": "ran"}),
        json!({"kind": "tool_call", "name": "x", "arguments": {}, "visibility": "visible"}),
        json!({"kind": "message", "content": "x", "attachments": [{}]}),
    ] {
        let answer = act(&helper, &claimed, "items", json!({"items": [item]})).await;
        assert_eq!(answer.status, 422, "{item} {}", answer.text());
    }
    act(&helper, &claimed, "items", json!({}))
        .await
        .refused(422, "empty_patch");
    let unknown = json!({"items": [{"kind": "tool_result", "call_id": "no", "result": 1}]});
    act(&helper, &claimed, "items", unknown)
        .await
        .refused(422, "call_unknown");
}

#[tokio::test]
async fn a_worker_that_kept_its_lease_reads_what_was_decided() {
    let rig = Rig::in_memory().await;
    let (ann, boss) = (
        rig.client("ann").await,
        rig.key_for(&["approver"], Some("boss"), &[]).await,
    );
    let (helper, other) = (rig.worker(&["helper"]).await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let question = json!({"kind": "question", "title": "Which?"});
    let question = act(&helper, &claimed, "holds", question).await.ok(201);
    let path = format!("/v1/holds/{}/decision", text(&question, "id"));
    let answer = json!({"decision": "respond", "content": "the blue one"});
    ann.post(&path, &answer).await.ok(200);
    let approval =
        json!({"kind": "approval", "title": "Pay?", "action": {"tool": "pay", "args": {"n": 1}}});
    let approval = act(&helper, &claimed, "holds", approval).await.ok(201);
    let path = format!("/v1/holds/{}/decision", text(&approval, "id"));
    let edit = json!({
        "decision": "edit", "digest": approval["action"]["digest"], "args": {"n": 2},
    });
    boss.post(&path, &edit).await.ok(200);

    let path = format!("/v1/requests/{}", text(&claimed, "id"));
    let read = helper.get(&path).await.ok(200);
    assert_eq!(read["status"], "running", "under the same fence");
    assert_eq!(read["holds"][0]["decision"]["content"], "the blue one");
    assert_eq!(read["holds"][1]["decision"]["args"], json!({"n": 2}));
    // Another worker of the agent is not at work on it.
    let read = other.get(&path).await.ok(200);
    assert_eq!(read["holds"][1]["decision"]["status"], "edited");
    assert_eq!(read["holds"][1]["decision"]["args"], Value::Null);
    assert_eq!(read["holds"][1]["action"], Value::Null);
}
