//! What nobody but the worker may see: looked for in every answer, in the files, and in the log.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::hold::DecisionKind;
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_engine::api::hold::{DecisionInput, decide_shown};
use statehold_engine::policy::{AgentPolicy, Policies, ToolPolicy};
use statehold_engine::{Call, Caller, EngineError, PathRule};
use statehold_store::{PageLimit, Store};

use crate::hidden::Canaries;
use crate::rest::{act, claim, new_session, start};
use crate::rig::{Rig, Setup, Who, log, open_store, text, until};

/// `pin` of the tool `pay` is for the worker alone.
fn hides_pin() -> Setup {
    let path = PathRule::try_from("/pin".to_owned()).expect("a path");
    let every_tool = ToolPolicy {
        redact: Some(vec![path]),
        ..ToolPolicy::default()
    };
    let agent = AgentPolicy {
        every_tool,
        ..AgentPolicy::default()
    };
    let helper: Name = "helper".parse().expect("a name");
    Setup {
        policies: Arc::new(Policies {
            agents: [(helper, agent)].into(),
            ..Policies::default()
        }),
        ..Setup::default()
    }
}

fn decision_path(hold: &Value) -> String {
    format!("/v1/holds/{}/decision", text(hold, "id"))
}

/// Every byte that lies in a directory, and every payload of a session as it was before compression.
async fn everything(directory: &Path, session: &str) -> Vec<u8> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        found.extend(std::fs::read(path).expect("a file"));
    }
    let store = open_store(directory).expect("opens");
    let session: SessionId = session.parse().expect("an id");
    let records = store
        .records(session, 0, PageLimit::entries(1_000))
        .await
        .expect("records");
    for record in records {
        found.extend(record.bodies.into_iter().flatten().flatten());
    }
    found
}

async fn claim_short(helper: &Who) -> Value {
    let body = json!({"agent": "helper", "lease_seconds": 3, "wait_seconds": 10});
    helper.post("/v1/work/claim", &body).await.ok(200)["requests"][0].clone()
}

/// Waits until a short lease is over: what is approved then is nobody's until the next claim.
async fn lapse() {
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(3_200);
    until("the lease is over", || async {
        (jiff::Timestamp::now() > end).then_some(())
    })
    .await;
}

/// Opens three holds with the same secret, in each of the ways there are.
async fn open_three(helper: &Who, request: &Value, pin: &str) -> [Value; 3] {
    let body = |call: &str| {
        json!({
            "fence": request["fence"], "kind": "approval", "title": "Pay?",
            "action": {"tool": "pay", "args": {"pin": pin, "to": "ACME"}, "call_id": call},
        })
    };
    let path = format!("/v1/requests/{}/holds", text(request, "id"));
    let key = [("idempotency-key", "open-1")];
    let opened = helper
        .send("POST", &path, &key, body("a").to_string())
        .await;
    let first = opened.ok(201);
    assert_eq!(first["action"]["args"], json!({"pin": pin, "to": "ACME"}));
    assert_eq!(
        first["action"]["redactions"],
        json!([{"path": "/pin", "rule": "path"}])
    );
    let again = helper
        .send("POST", &path, &key, body("a").to_string())
        .await;
    assert_eq!((again.status, &again.body), (201, &opened.body));
    // The call may also be recorded in the same body.
    let mut with_item = body("b");
    with_item["items"] = json!([{"kind": "tool_call", "name": "pay", "call_id": "b", "gated": true,
                                 "arguments": {"to": "ACME", "pin": pin}}]);
    let second = helper.post(&path, &with_item).await.ok(201);
    let third = helper.post(&path, &body("c")).await.ok(201);
    [first, second, third]
}

/// Approves the first, edits the second around the secret, and gives the third another.
async fn decide_three(boss: &Who, [first, second, third]: &[Value; 3], edited_pin: &str) {
    let seen = boss
        .get(&format!("/v1/holds/{}", text(first, "id")))
        .await
        .ok(200);
    let preview = json!({"pin": "[redacted:path]", "to": "ACME"});
    assert_eq!(seen["action"]["args"], preview);
    assert_eq!(seen["action"]["digest"], first["action"]["digest"]);
    let approve = json!({"decision": "approve", "digest": first["action"]["digest"]});
    boss.post(&decision_path(first), &approve).await.ok(200);
    let edit = |hold: &Value, args: Value| json!({"decision": "edit", "digest": hold["action"]["digest"], "args": args});
    // What an editor leaves as it is shown keeps its value, and can go nowhere else.
    let moved = edit(second, json!({"pin": "1", "note": "[redacted:path]"}));
    let moved = boss.post(&decision_path(second), &moved).await;
    assert_eq!(
        moved.refused(422, "invalid_args")["errors"][0]["path"],
        "/note"
    );
    let kept = edit(second, json!({"pin": "[redacted:path]", "to": "EMCA"}));
    boss.post(&decision_path(second), &kept).await.ok(200);
    let other = edit(third, json!({"pin": edited_pin}));
    boss.post(&decision_path(third), &other).await.ok(200);
}

/// Everything that could show the arguments.
fn places(session: &str, request: &Value, holds: &[Value; 3]) -> Vec<String> {
    let task = format!("/v1/tasks/{}", text(request, "task_id"));
    let mut paths = vec![
        "/v1/holds?status=decided".to_owned(),
        format!("/v1/requests/{}", text(request, "id")),
        format!("/v1/sessions/{session}/messages?view=trace&limit=200"),
        format!("/v1/sessions/{session}/records"),
        format!("{task}?view=trace"),
        task,
    ];
    let holds = holds.iter();
    paths.extend(holds.map(|hold| format!("/v1/holds/{}", text(hold, "id"))));
    paths
}

#[tokio::test]
async fn a_secret_in_arguments_is_the_workers_alone_and_gone_when_the_action_ends() {
    let rig = Rig::on_disk_with(hides_pin()).await;
    let mut canaries = Canaries::new();
    let (pin, edited_pin) = (canaries.plant("pin"), canaries.plant("edited"));
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let operator = rig.key(&["operator"]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim_short(&helper).await;
    let holds = open_three(&helper, &request, &pin).await;
    assert!(rig.data().join("hold-keys").is_file());
    lapse().await;
    decide_three(&boss, &holds, &edited_pin).await;
    for who in [&ann, &boss, &operator, &helper] {
        for path in places(&session, &request, &holds) {
            let answer = who.get(&path).await;
            let found = canaries.found_in(&answer.body);
            assert!(found.is_empty(), "{found:?} in {path}: {}", answer.text());
        }
    }
    let task = format!("/v1/tasks/{}", text(&request, "task_id"));
    let history = helper.get(&task).await.text();
    assert!(history.contains("[redacted:path]"), "{history}");

    // A restart changes nothing: the worker that claims gets everything.
    let rig = rig.restart().await;
    let helper = Who {
        address: rig.address,
        ..helper
    };
    let claimed = claim(&helper, "helper").await;
    let decisions = claimed["decisions"].as_array().expect("a list").clone();
    let of = |hold: &Value| {
        let mut all = decisions.iter();
        let found = all.find(|one| one["id"] == hold["id"]);
        found.expect("it is decided").clone()
    };
    assert_eq!(of(&holds[0])["action"]["args"]["pin"], pin.as_str());
    let kept = json!({"pin": pin, "to": "EMCA"});
    assert_eq!(of(&holds[1])["decision"]["args"], kept);
    let other = json!({"pin": edited_pin});
    assert_eq!(of(&holds[2])["decision"]["args"], other);
    let calls = claimed["calls"].as_array().expect("a list").clone();
    let result =
        |call: &Value| json!({"kind": "tool_result", "call_id": call["id"], "result": "paid"});
    let results: Vec<Value> = calls.iter().map(result).collect();
    assert_eq!(results.len(), 3);
    act(&helper, &claimed, "items", json!({"items": results}))
        .await
        .ok(200);
    let keys = std::fs::read(rig.data().join("hold-keys")).expect("the file stays");
    assert!(keys.iter().all(|byte| *byte == 0), "keys are overwritten");
    act(&helper, &claimed, "complete", json!({"output": "paid"}))
        .await
        .ok(200);

    let data = rig.stop().await.expect("on disk");
    {
        let store = open_store(data.path()).expect("opens");
        let backup = data.path().join("copy.db");
        store.backup(backup).await.expect("a backup");
    }
    let found = everything(data.path(), &session).await;
    assert!(canaries.found_in(&found).is_empty());
    assert!(canaries.found_in(log().as_bytes()).is_empty());
}

#[tokio::test]
async fn what_an_open_hold_hides_stays_hidden_whatever_is_laid_down_later() {
    let rig = Rig::on_disk_with(hides_pin()).await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim(&helper, "helper").await;
    let mut holds = Vec::new();
    for _ in 0..2 {
        let args = json!({"pin": "pin-1234", "pin2": "shown", "to": "ACME"});
        let hold =
            json!({"kind": "approval", "title": "Pay?", "action": {"tool": "pay", "args": args}});
        holds.push(act(&helper, &request, "holds", hold).await.ok(201));
    }
    rig.engine.set_policies(Policies::default());
    for (hold, pin, meant) in [
        (&holds[0], "[redacted:path]", "pin-1234"),
        (&holds[1], "pin-9999", "pin-9999"),
    ] {
        let args = json!({"pin": pin, "pin2": "shown", "to": "EMCA"});
        let edit = json!({"decision": "edit", "digest": hold["action"]["digest"], "args": args});
        boss.post(&decision_path(hold), &edit).await.ok(200);
        let seen = boss.get(&format!("/v1/holds/{}", text(hold, "id"))).await;
        let seen = seen.ok(200);
        let preview = json!({"pin": "[redacted:path]", "pin2": "shown", "to": "EMCA"});
        assert_eq!(seen["decision"]["args"], preview, "{seen}");
        assert!(!seen.to_string().contains(meant), "{seen}");
        let path = format!("/v1/requests/{}", text(&request, "id"));
        let worker = helper.get(&path).await.ok(200);
        assert!(worker.to_string().contains(meant), "the worker gets it");
    }
}

#[tokio::test]
async fn keys_are_destroyed_however_the_action_ends() {
    for end in ["reject", "respond", "dismiss", "expire", "cancel", "fail"] {
        let rig = Rig::on_disk_with(hides_pin()).await;
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let session = new_session(&ann).await;
        start(&ann, &session, "helper", "pay").await;
        let request = claim(&helper, "helper").await;
        let mut hold = json!({"kind": "approval", "title": "Pay?",
                              "action": {"tool": "pay", "args": {"pin": 1234}}});
        if end == "expire" {
            hold["expires_in_seconds"] = json!(3);
        }
        let hold = act(&helper, &request, "holds", hold).await.ok(201);
        let keys = || std::fs::read(rig.data().join("hold-keys")).expect("a file");
        assert!(keys().iter().any(|byte| *byte != 0), "there is a key");
        let path = format!("/v1/requests/{}", text(&request, "id"));
        match end {
            "cancel" => drop(
                ann.post(&format!("{path}/cancel"), &json!({}))
                    .await
                    .ok(200),
            ),
            "fail" => {
                let approve = json!({"decision": "approve", "digest": hold["action"]["digest"]});
                boss.post(&decision_path(&hold), &approve).await.ok(200);
                assert!(keys().iter().any(|byte| *byte != 0), "it may still run");
                act(&helper, &request, "fail", json!({"error": 1}))
                    .await
                    .ok(200);
            }
            "expire" => {
                until("the key is gone", || async {
                    keys().iter().all(|byte| *byte == 0).then_some(())
                })
                .await;
            }
            decision => {
                let body = json!({"decision": decision, "comment": "so"});
                boss.post(&decision_path(&hold), &body).await.ok(200);
            }
        }
        assert!(keys().iter().all(|byte| *byte == 0), "{end}");
    }
}

#[tokio::test]
async fn a_hold_that_was_refused_leaves_no_key() {
    let rig = Rig::on_disk_with(hides_pin()).await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim(&helper, "helper").await;
    let mut hold = json!({"kind": "approval", "title": "Pay?", "quorum": 33,
                          "action": {"tool": "pay", "args": {"pin": 1234}}});
    act(&helper, &request, "holds", hold.clone())
        .await
        .refused(422, "limit_reached");
    let keys = std::fs::read(rig.data().join("hold-keys")).expect("a file");
    assert!(keys.iter().all(|byte| *byte == 0));
    // Nothing is sealed where nothing is hidden.
    hold["quorum"] = json!(1);
    hold["action"]["args"] = json!({"to": "ACME"});
    act(&helper, &request, "holds", hold).await.ok(201);
    let keys = std::fs::read(rig.data().join("hold-keys")).expect("a file");
    assert!(keys.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn without_its_key_an_action_is_lost_and_says_so() {
    let rig = Rig::on_disk_with(hides_pin()).await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim_short(&helper).await;
    let hold = json!({"kind": "approval", "title": "Pay?",
                      "action": {"tool": "pay", "args": {"pin": 1234}}});
    let hold = act(&helper, &request, "holds", hold).await.ok(201);
    // As after a restore from a backup: the keys are not in it.
    let data = rig.stop().await.expect("on disk");
    std::fs::remove_file(data.path().join("hold-keys")).expect("there were keys");
    let rig = Rig::start(Some(data), hides_pin()).await;
    let (boss, helper) = (
        Who {
            address: rig.address,
            ..boss
        },
        Who {
            address: rig.address,
            ..helper
        },
    );
    let edit = json!({"decision": "edit", "digest": hold["action"]["digest"], "args": {"pin": "[redacted:path]"}});
    let refused = boss
        .post(&decision_path(&hold), &edit)
        .await
        .refused(422, "invalid_args");
    assert_eq!(refused["errors"][0]["path"], "/pin");
    let approve = json!({"decision": "approve", "digest": hold["action"]["digest"]});
    lapse().await;
    boss.post(&decision_path(&hold), &approve).await.ok(200);
    let claimed = claim(&helper, "helper").await;
    let decided = &claimed["decisions"][0];
    assert_eq!(decided["decision"]["args_lost"], true);
    assert_eq!(decided["action"]["args"], Value::Null);
}

#[tokio::test]
async fn a_credential_that_a_person_gives_is_kept_nowhere() {
    let rig = Rig::on_disk().await;
    let mut canaries = Canaries::new();
    let value = canaries.plant("credential");
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim(&helper, "helper").await;
    let hold = json!({"kind": "credential", "title": "Your token, please"});
    let hold = act(&helper, &request, "holds", hold).await.ok(201);
    // The answer goes to the request, so there is one question at a time.
    let second = json!({"kind": "credential", "title": "And another"});
    act(&helper, &request, "holds", second)
        .await
        .refused(422, "hold_malformed");
    let path = decision_path(&hold);
    for bad in [json!({"t": 1}), json!("")] {
        let respond = json!({"decision": "respond", "content": bad});
        ann.post(&path, &respond)
            .await
            .refused(422, "invalid_content");
    }
    ann.post(&path, &json!({"decision": "respond", "comment": "x"}))
        .await
        .refused(422, "answer_missing");
    // Somebody else's is not taken.
    let bob = rig.client("bob").await;
    let foreign = json!({"decision": "respond", "content": "mine"});
    bob.post(&path, &foreign).await.refused(404, "not_found");
    act(&helper, &request, "release", json!({})).await.ok(200);
    let respond = json!({"decision": "respond", "content": value});
    let done = ann.post(&path, &respond).await;
    assert_eq!(done.ok(200)["status"], "answered");
    // Given once; a duplicate changes nothing, whatever it holds.
    let other = json!({"decision": "respond", "content": "another"});
    let again = ann.post(&path, &other).await;
    assert_eq!((again.status, &again.body), (200, &done.body));
    let claimed = claim(&helper, "helper").await;
    let handed_out = json!({"value": value, "source": "hold"});
    assert_eq!(claimed["credential"], handed_out);
    // It goes to one claim and to no other.
    act(&helper, &claimed, "release", json!({})).await.ok(200);
    let claimed = claim(&helper, "helper").await;
    assert_eq!(claimed["credential"], Value::Null);
    let seen = ann.get(&format!("/v1/holds/{}", text(&hold, "id"))).await;
    assert_eq!(seen.ok(200)["decision"]["given"], true);
    let operator = rig.key(&["operator"]).await;
    for path in [
        format!("/v1/sessions/{session}/records"),
        format!("/v1/holds/{}", text(&hold, "id")),
    ] {
        let answer = operator.get(&path).await;
        assert_eq!(canaries.found_in(&answer.body), [""; 0]);
    }
    let data = rig.stop().await.expect("on disk");
    let found = everything(data.path(), &session).await;
    assert!(canaries.found_in(&found).is_empty());
    assert!(canaries.found_in(log().as_bytes()).is_empty());
}

#[tokio::test]
async fn what_is_wrong_with_an_edit_does_not_tell_what_is_hidden() {
    let rig = Rig::with(hides_pin()).await;
    let mut canaries = Canaries::new();
    let pin = canaries.plant("pin");
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim(&helper, "helper").await;
    let schema = json!({
        "maxProperties": 2, "anyOf": [{"required": ["x"]}],
        "properties": {"pin": {"type": "integer"}},
    });
    let action = json!({"tool": "pay", "args": {"pin": pin, "to": "ACME"}, "args_schema": schema});
    for allowed in [json!(["approve", "edit"]), json!(["approve"])] {
        let hold = json!({
            "kind": "approval", "title": "Pay?", "action": action, "allowed": allowed,
        });
        let hold = act(&helper, &request, "holds", hold).await.ok(201);
        let edit = json!({
            "decision": "edit", "digest": hold["action"]["digest"],
            "args": {"pin": "[redacted:path]", "to": "a", "note": "b"},
        });
        let answer = boss.post(&decision_path(&hold), &edit).await;
        assert_eq!(answer.status, 422, "{}", answer.text());
        assert_eq!(canaries.found_in(&answer.body), [""; 0]);
        // A name that is hidden cannot come back as what stands for it.
        let renamed = json!({
            "decision": "edit", "digest": hold["action"]["digest"],
            "args": {"[redacted:path]": 1},
        });
        let answer = boss.post(&decision_path(&hold), &renamed).await;
        assert_eq!(answer.status, 422, "{}", answer.text());
    }
}

#[tokio::test]
async fn a_user_does_not_see_what_their_own_worker_sees() {
    let rig = Rig::with(hides_pin()).await;
    let mut canaries = Canaries::new();
    let pin = canaries.plant("pin");
    let ann = rig.client("ann").await;
    let helper = rig.key_for(&["worker"], Some("ann"), &["helper"]).await;
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "pay").await;
    let request = claim(&helper, "helper").await;
    let action = json!({"tool": "pay", "args": {"pin": pin, "to": "ACME"}});
    let hold = json!({"kind": "approval", "title": "Pay?", "action": action});
    let hold = act(&helper, &request, "holds", hold).await.ok(201);
    let approve = json!({"decision": "approve", "digest": hold["action"]["digest"]});
    boss.post(&decision_path(&hold), &approve).await.ok(200);
    let path = format!("/v1/requests/{}", text(&request, "id"));
    // One person, two keys: the worker that kept its lease goes on, the client reads what clients read.
    let seen = helper.get(&path).await.ok(200);
    assert_eq!(seen["holds"][0]["action"]["args"]["pin"], pin);
    let seen = ann.get(&path).await;
    assert_eq!(seen.ok(200)["holds"][0].get("action"), None);
    assert_eq!(canaries.found_in(&seen.body), [""; 0]);
}

#[tokio::test]
async fn an_edit_that_loses_a_race_hears_that_the_hold_is_decided() {
    let rig = Rig::with(hides_pin()).await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let claimed = claim(&helper, "helper").await;
    let action = json!({"tool": "pay", "args": {"pin": "1234", "to": "ACME"}});
    let hold = json!({"kind": "approval", "title": "Pay?", "action": action});
    let hold = act(&helper, &claimed, "holds", hold).await.ok(201);
    // Somebody else looks at the hold, and is slower.
    let slow = Caller::local("default".parse().expect("a name"));
    let id = text(&hold, "id").parse().expect("an id");
    let seen = rig.engine.hold(&slow, id).await.expect("it is seen");
    boss.post(&decision_path(&hold), &json!({"decision": "reject"}))
        .await
        .ok(200);
    let args = json!({"pin": "[redacted:path]", "to": "EMCA"}).to_string();
    let edit = DecisionInput {
        decision: DecisionKind::Edit,
        digest: seen.hold.digest.map(|digest| digest.to_string()),
        args: Some(serde_json::from_str(&args).expect("arguments")),
        content: None,
        comment: None,
        reason: None,
    };
    let late = decide_shown(&rig.engine, &Call::by(slow), None, &seen, edit).await;
    assert!(
        matches!(late, Err(EngineError::DecidedBefore { .. })),
        "{late:?}"
    );
}
