//! Who decides what, under which policy, and what a decision must look like.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::hold::{DecideBy, Effect, OnExpiry, Risk};
use statehold_core::name::Name;
use statehold_engine::policy::{AgentPolicy, Approval, ArgsCondition, Policies, ToolPolicy};

use crate::rest::{act, claim, new_session, new_session_of, start};
use crate::rig::{Answer, Rig, Setup, Who, text, until};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A policy for one tool of the agent `helper`.
pub(crate) fn for_tool(tool: &str, policy: ToolPolicy) -> Setup {
    let agent = AgentPolicy {
        tools: [(name(tool), policy)].into(),
        ..AgentPolicy::default()
    };
    let policies = Policies {
        agents: [(name("helper"), agent)].into(),
        ..Policies::default()
    };
    Setup {
        policies: Arc::new(policies),
        ..Setup::default()
    }
}

/// A request of ann's that a worker has claimed.
struct Work {
    ann: Who,
    helper: Who,
    session: String,
    request: Value,
}

impl Work {
    async fn begin(rig: &Rig) -> Self {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let session = new_session_of(&ann, "helper").await;
        start(&ann, &session, "helper", "please").await;
        let request = claim(&helper, "helper").await;
        Self {
            ann,
            helper,
            session,
            request,
        }
    }

    /// Asks whether `pay` may run, with some fields changed.
    async fn ask(&self, changes: Value) -> Answer {
        let mut hold = json!({
            "kind": "approval", "title": "Pay?",
            "action": {"tool": "pay", "args": {"amount": 4}},
        });
        hold = statehold_core::merge::merge(
            statehold_core::scope::MergePolicy::Patch,
            Some(hold),
            changes,
        )
        .expect("objects merge");
        self.hold(hold).await
    }

    async fn hold(&self, hold: Value) -> Answer {
        act(&self.helper, &self.request, "holds", hold).await
    }
}

fn approval(hold: &Value) -> Value {
    json!({"decision": "approve", "digest": hold["action"]["digest"]})
}

fn decision_path(hold: &Value) -> String {
    format!("/v1/holds/{}/decision", text(hold, "id"))
}

#[tokio::test]
async fn every_way_of_saying_who_decides_is_kept() {
    // (what the policy says, who may decide, who may not and why)
    let cases = [
        (
            None,
            vec!["approver"],
            vec![
                ("ann", "own_session"),
                ("worker-approver", "own_hold"),
                ("treasurer", "needs_role"),
            ],
        ),
        (
            Some(DecideBy::Other),
            vec!["approver"],
            vec![
                ("ann", "own_session"),
                ("ann-approver", "own_session"),
                ("worker-approver", "own_hold"),
            ],
        ),
        (Some(DecideBy::User), vec!["ann"], vec![]),
        (Some(DecideBy::User), vec!["approver"], vec![]),
        (
            Some(DecideBy::Role(name("treasurer"))),
            vec!["treasurer"],
            vec![
                ("ann", "own_session"),
                ("approver", "needs_role"),
                ("ann-treasurer", "own_session"),
            ],
        ),
    ];
    for (decide_by, may, may_not) in cases {
        let policy = ToolPolicy {
            decide_by: decide_by.clone(),
            ..ToolPolicy::default()
        };
        let rig = Rig::with(for_tool("pay", policy)).await;
        let mut work = Work::begin(&rig).await;
        let opener = rig
            .key_for(&["worker", "approver"], None, &["helper"])
            .await;
        // Whoever opens a hold holds the lease.
        work.helper = opener.clone();
        act(
            &work.helper,
            &work.request,
            "items",
            json!({"items": [{"kind": "note"}]}),
        )
        .await
        .refused(409, "not_lease_holder");
        let session = new_session(&work.ann).await;
        start(&work.ann, &session, "helper", "again").await;
        work.request = claim(&opener, "helper").await;
        let hold = work.ask(json!({})).await.ok(201);
        let who = async |name: &str| match name {
            "ann" => work.ann.clone(),
            "worker-approver" => opener.clone(),
            "ann-approver" => rig.key_for(&["client", "approver"], Some("ann"), &[]).await,
            "approver" => rig.key_for(&["approver"], Some("boss"), &[]).await,
            "ann-treasurer" => {
                rig.key_for(&["client", "treasurer"], Some("ann"), &[])
                    .await
            }
            _ => rig.key_for(&["treasurer"], Some("tess"), &[]).await,
        };
        for (name, why) in may_not {
            let answer = who(name)
                .await
                .post(&decision_path(&hold), &approval(&hold))
                .await;
            // Those who cannot even see it are told nothing of it.
            if answer.status == 404 {
                assert_eq!(why, "needs_role", "{name} of {decide_by:?}");
                continue;
            }
            let problem = answer.refused(403, "may_not_decide");
            assert_eq!(problem["why"], why, "{name} of {decide_by:?}");
        }
        for name in may {
            let done = who(name)
                .await
                .post(&decision_path(&hold), &approval(&hold))
                .await;
            assert_eq!(
                done.ok(200)["status"],
                "approved",
                "{name} of {decide_by:?}"
            );
        }
    }
}

#[tokio::test]
async fn two_keys_of_one_person_are_one_vote() {
    let policy = ToolPolicy {
        quorum: Some(2),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("pay", policy)).await;
    let work = Work::begin(&rig).await;
    let hold = work.ask(json!({})).await.ok(201);
    assert_eq!(hold["quorum"], 2);
    let first = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let second = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let other = rig.key_for(&["approver"], Some("chief"), &[]).await;
    let open = first
        .post(&decision_path(&hold), &approval(&hold))
        .await
        .ok(200);
    assert_eq!(
        (&open["status"], &open["approvals"]),
        (&json!("open"), &json!(1))
    );
    let send = [("idempotency-key", "another")];
    second
        .send(
            "POST",
            &decision_path(&hold),
            &send,
            approval(&hold).to_string(),
        )
        .await
        .refused(409, "already_voted");
    let done = other
        .post(&decision_path(&hold), &approval(&hold))
        .await
        .ok(200);
    assert_eq!(
        (&done["status"], &done["approvals"]),
        (&json!("approved"), &json!(2))
    );
}

#[tokio::test]
async fn a_developer_alone_decides_everything() {
    let mut setup = for_tool(
        "pay",
        ToolPolicy {
            decide_by: Some(DecideBy::Role(name("boss"))),
            ..ToolPolicy::default()
        },
    );
    setup.server.keys_required = false;
    let rig = Rig::with(setup).await;
    let me = rig.nobody();
    let made = me
        .post("/v1/sessions", &json!({"app": "demo", "user": "ann"}))
        .await;
    let session = text(&made.ok(201), "id");
    start(&me, &session, "helper", "x").await;
    let request = claim(&me, "helper").await;
    let hold = json!({"kind": "approval", "title": "Pay?", "action": {"tool": "pay", "args": {}}});
    let hold = act(&me, &request, "holds", hold).await.ok(201);
    let done = me
        .post(&decision_path(&hold), &approval(&hold))
        .await
        .ok(200);
    assert_eq!(done["status"], "approved");
}

#[tokio::test]
async fn a_worker_tightens_a_policy_and_never_loosens_it() {
    let policy = ToolPolicy {
        effect: Some(Effect::Write),
        risk: Some(Risk::Medium),
        quorum: Some(2),
        idempotent: Some(false),
        expires_in_seconds: Some(600),
        on_expiry: Some(OnExpiry::Fail),
        decide_by: Some(DecideBy::Role(name("boss"))),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("pay", policy)).await;
    let work = Work::begin(&rig).await;
    for (change, field, value) in [
        (json!({"action": {"effect": "read"}}), "effect", "write"),
        (json!({"action": {"risk": "low"}}), "risk", "medium"),
        (
            json!({"action": {"idempotent": true}}),
            "idempotent",
            "false",
        ),
        (json!({"quorum": 1}), "quorum", "2"),
        (
            json!({"expires_in_seconds": 601}),
            "expires_in_seconds",
            "600",
        ),
        (json!({"on_expiry": "reject"}), "on_expiry", "fail"),
        (json!({"decide_by": "user"}), "decide_by", "role:boss"),
        (
            json!({"decide_by": "role:worker"}),
            "decide_by",
            "role:boss",
        ),
    ] {
        let problem = work.ask(change).await.refused(422, "policy_stricter");
        assert_eq!(
            (&problem["field"], &problem["policy"]),
            (&json!(field), &json!(value))
        );
    }
    let tighter = json!({"quorum": 3, "expires_in_seconds": 60,
                         "action": {"effect": "destructive", "risk": "high"}});
    let hold = work.ask(tighter).await.ok(201);
    assert_eq!(hold["quorum"], 3);
    assert_eq!(hold["action"]["effect"], "destructive");
    assert_eq!(hold["action"]["risk"], "high");
    let plain = work.ask(json!({})).await.ok(201);
    assert_eq!(plain["on_expiry"], "fail");
    assert_eq!(plain["action"]["risk"], "medium");
    assert!(plain["expires_at"].is_string());
    // Of a tool without a policy the worker may say who decides, but not anybody.
    let other = |decide_by: &str| json!({"decide_by": decide_by, "action": {"tool": "look"}});
    for bad in ["user", "role:client", "role:worker"] {
        work.ask(other(bad)).await.refused(422, "policy_stricter");
    }
    work.ask(other("role:boss")).await.ok(201);
}

#[tokio::test]
async fn a_call_whose_arguments_need_approval_cannot_just_be_made() {
    let large = json!({"properties": {"amount": {"minimum": 100}}, "required": ["amount"]});
    let policy = ToolPolicy {
        approval: Some(Approval::Never),
        approval_if: Some(ArgsCondition::new(large).expect("a schema")),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("pay", policy)).await;
    let work = Work::begin(&rig).await;
    let call = |id: &str, args: Value, gated: bool| {
        let call = json!({"kind": "tool_call", "name": "pay", "call_id": id, "arguments": args, "gated": gated});
        act(
            &work.helper,
            &work.request,
            "items",
            json!({ "items": [call] }),
        )
    };
    call("a", json!({"amount": 99}), false).await.ok(200);
    for args in [
        json!({"amount": 100}),
        json!("{\"amount\": 100}"),
        json!("pay all"),
    ] {
        let problem = call("b", args, false).await;
        assert_eq!(problem.refused(422, "approval_needed")["tool"], "pay");
    }
    call("b", json!({"amount": 100}), true).await.ok(200);
}

#[tokio::test]
async fn a_tool_that_needs_approval_cannot_just_be_called() {
    let policy = ToolPolicy {
        approval: Some(Approval::Always),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("pay", policy)).await;
    let work = Work::begin(&rig).await;
    let call = json!({"kind": "tool_call", "name": "pay", "call_id": "c", "arguments": {}});
    let items = json!({"items": [call]});
    let problem = act(&work.helper, &work.request, "items", items.clone()).await;
    assert_eq!(problem.refused(422, "approval_needed")["tool"], "pay");
    let complete = json!({"output": "done", "items": [call]});
    act(&work.helper, &work.request, "complete", complete)
        .await
        .refused(422, "approval_needed");
    let question = json!({"kind": "question", "title": "?", "items": [call]});
    work.hold(question).await.refused(422, "approval_needed");
    let whole =
        json!({"agent": "helper", "input": "x", "lease": {"ttl_seconds": 30}, "items": [call]});
    let path = format!("/v1/sessions/{}/requests", work.session);
    work.helper
        .post(&path, &whole)
        .await
        .refused(422, "approval_needed");
    // Another tool may be called, and a gated call of this one may be recorded.
    let fine = json!({"items": [
        {"kind": "tool_call", "name": "look", "call_id": "l", "arguments": {}},
        {"kind": "tool_call", "name": "pay", "call_id": "p", "arguments": {"amount": 4}, "gated": true},
    ]});
    let written = act(&work.helper, &work.request, "items", fine)
        .await
        .ok(200);
    let call_id = &written["items"][1]["id"];
    // Only that very call is approved.
    for other in [json!({"tool": "look"}), json!({"args": {"amount": 5}})] {
        let mut action = json!({"tool": "pay", "args": {"amount": 4}, "call_id": call_id});
        for (field, value) in other.as_object().expect("an object") {
            action[field] = value.clone();
        }
        let problem = work
            .ask(json!({"action": action}))
            .await
            .refused(422, "hold_malformed");
        assert_eq!(problem["path"], "action");
    }
    work.ask(json!({"action": {"call_id": call_id}}))
        .await
        .ok(201);
}

#[tokio::test]
async fn a_rejection_needs_a_comment_where_the_policy_says_so() {
    let policy = ToolPolicy {
        comment_required: Some(true),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("pay", policy)).await;
    let work = Work::begin(&rig).await;
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let hold = work.ask(json!({})).await.ok(201);
    for empty in [
        json!({"decision": "reject"}),
        json!({"decision": "reject", "comment": "  "}),
    ] {
        boss.post(&decision_path(&hold), &empty)
            .await
            .refused(422, "comment_needed");
    }
    let reject = json!({"decision": "reject", "comment": "too much"});
    let done = boss.post(&decision_path(&hold), &reject).await.ok(200);
    assert_eq!(done["status"], "rejected");
    // Whoever comes later is told what was decided.
    let late = boss
        .post(&decision_path(&hold), &approval(&hold))
        .await
        .refused(409, "hold_decided");
    assert_eq!(late["decision"]["status"], "rejected");
    assert_eq!(late["decision"]["comment"], "too much");
    assert_eq!(late["decision"]["by"], done["decided_by"]);
    assert_eq!(late["decision"]["at"], done["decided_at"]);
}

#[tokio::test]
async fn a_hold_that_nobody_decides_ends_as_it_says() {
    for (word, request_status) in [
        ("reject", "running"),
        ("dismiss", "cancelled"),
        ("fail", "failed"),
    ] {
        let rig = Rig::in_memory().await;
        let work = Work::begin(&rig).await;
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let hold = work
            .ask(json!({"expires_in_seconds": 1, "on_expiry": word}))
            .await
            .ok(201);
        let path = format!("/v1/requests/{}", text(&work.request, "id"));
        until("the hold expires", || async {
            let request = work.ann.get(&path).await.ok(200);
            (request["status"] == request_status).then_some(())
        })
        .await;
        let late = boss
            .post(&decision_path(&hold), &approval(&hold))
            .await
            .refused(410, "hold_expired");
        assert_eq!(late["decision"]["status"], "expired", "{word}");
    }
}

#[tokio::test]
async fn answers_are_checked_against_what_was_asked() {
    let rig = Rig::in_memory().await;
    let work = Work::begin(&rig).await;
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let schema = json!({"type": "object", "properties": {"amount": {"type": "integer", "maximum": 10}}, "required": ["amount"]});
    let hold = work
        .ask(json!({"action": {"args_schema": schema}}))
        .await
        .ok(201);
    let edit =
        |args: Value| json!({"decision": "edit", "digest": hold["action"]["digest"], "args": args});
    let path = decision_path(&hold);
    let problem = boss
        .post(&path, &edit(json!({"amount": 11})))
        .await
        .refused(422, "invalid_args");
    assert_eq!(problem["errors"][0]["path"], "/amount");
    assert!(
        problem["errors"][0]["message"]
            .as_str()
            .is_some_and(|text| text.contains("10"))
    );
    // Whoever may not decide learns nothing of the schema.
    work.ann
        .post(&path, &edit(json!({"amount": 11})))
        .await
        .refused(403, "may_not_decide");
    let done = boss.post(&path, &edit(json!({"amount": 9}))).await.ok(200);
    assert_eq!(done["status"], "edited");

    let form = json!({"kind": "form", "title": "Which?", "response_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}});
    let form = work.hold(form).await.ok(201);
    let respond = |content: Value| json!({"decision": "respond", "content": content});
    let path = decision_path(&form);
    let problem = work
        .ann
        .post(&path, &respond(json!({"n": "x"})))
        .await
        .refused(422, "invalid_content");
    assert_eq!(problem["errors"][0]["path"], "/n");
    let wordless = json!({"decision": "respond", "comment": "no form"});
    work.ann
        .post(&path, &wordless)
        .await
        .refused(422, "answer_missing");
    work.ann
        .post(&path, &respond(json!({"n": 1})))
        .await
        .ok(200);

    let question = work
        .hold(json!({"kind": "question", "title": "Why?"}))
        .await
        .ok(201);
    let path = decision_path(&question);
    work.ann
        .post(&path, &respond(json!({"x": 1})))
        .await
        .refused(422, "invalid_content");
    work.ann
        .post(&path, &json!({"decision": "reject", "content": "x"}))
        .await
        .refused(422, "invalid_body");
    work.ann
        .post(&path, &respond(json!("because")))
        .await
        .ok(200);
}

#[tokio::test]
async fn holds_that_make_no_sense_are_refused_by_name() {
    let rig = Rig::in_memory().await;
    let work = Work::begin(&rig).await;
    let link = |url: Value| json!({"kind": "link", "title": "Go", "url": url});
    for (hold, path) in [
        (json!({"kind": "form", "title": "x"}), "response_schema"),
        (
            json!({"kind": "form", "title": "x", "response_schema": {"type": "nothing"}}),
            "response_schema/type",
        ),
        (
            json!({"kind": "form", "title": "x", "response_schema": {"$ref": "https://x.test/"}}),
            "response_schema/$ref",
        ),
        (
            json!({"kind": "form", "title": "x", "response_schema": {"properties": {"a": {"pattern": "(?<=x)"}}}}),
            "response_schema/properties/a/pattern",
        ),
        (link(Value::Null), "url"),
        (link(json!("javascript:alert(1)")), "url"),
        (
            json!({"kind": "question", "title": "x", "group_id": "g".repeat(65)}),
            "group_id",
        ),
        (
            json!({"kind": "question", "title": "x", "reasons": ["no"]}),
            "reasons",
        ),
        (
            json!({"kind": "question", "title": "x", "reasons": [{"id": "a", "title": "A"}, {"id": "a", "title": "B"}]}),
            "reasons",
        ),
        (json!({"kind": "reconcile", "title": "x"}), ""),
    ] {
        let problem = work.hold(hold.clone()).await.refused(422, "hold_malformed");
        assert_eq!(problem["path"].as_str().unwrap_or_default(), path, "{hold}");
    }
    let bad_args = json!({"action": {"args_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}});
    let problem = work.ask(bad_args).await.refused(422, "hold_malformed");
    assert!(text(&problem, "path").starts_with("action.args_schema/"));
    // A reason is one of those that were offered.
    let reasons =
        json!({"reasons": [{"id": "wrong", "title": "Wrong user", "text": "Not the one."}]});
    let hold = work.ask(reasons).await.ok(201);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let seen = boss
        .get(&format!("/v1/holds/{}", text(&hold, "id")))
        .await
        .ok(200);
    assert_eq!(seen["reasons"][0]["title"], "Wrong user");
    let reject = |reason: &str| json!({"decision": "reject", "reason": reason});
    let path = decision_path(&hold);
    boss.post(&path, &reject("other"))
        .await
        .refused(422, "invalid_body");
    boss.post(&path, &reject("wrong")).await.ok(200);
}

#[tokio::test]
async fn a_late_duplicate_never_decides_the_next_hold() {
    let rig = Rig::on_disk().await;
    let work = Work::begin(&rig).await;
    let boss = rig
        .key_for(&["approver", "client"], Some("boss"), &[])
        .await;
    let first = work.ask(json!({})).await.ok(201);
    let resume = format!("/v1/requests/{}/resume", text(&work.request, "id"));
    let plain = json!({"decision": "approve", "digest": first["action"]["digest"]});
    let done = boss.post(&resume, &plain).await;
    assert_eq!(done.ok(200)["id"], first["id"]);
    let second = work.ask(json!({"title": "Again?"})).await.ok(201);
    // The same message comes again: it still means the first.
    let again = boss.post(&resume, &plain).await;
    assert_eq!(again.ok(200)["id"], first["id"]);
    assert_eq!(again.body, done.body);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    boss.post(&resume, &json!({"decision": "reject"}))
        .await
        .refused(409, "several_holds");
    let open = boss
        .get(&format!("/v1/holds/{}", text(&second, "id")))
        .await
        .ok(200);
    assert_eq!(open["status"], "open");
    // Also with a key, and after a restart.
    let named = [("idempotency-key", "k1")];
    let approve = approval(&second).to_string();
    let done = boss
        .send("POST", &decision_path(&second), &named, approve.clone())
        .await;
    done.ok(200);
    let rig = rig.restart().await;
    let boss = Who {
        address: rig.address,
        ..boss
    };
    let again = boss
        .send("POST", &decision_path(&second), &named, approve)
        .await;
    assert_eq!((again.status, &again.body), (200, &done.body));
    let other = boss
        .post(&decision_path(&second), &json!({"decision": "reject"}))
        .await;
    other.refused(409, "hold_decided");
}

#[tokio::test]
async fn a_lost_action_is_asked_about_with_what_it_was() {
    let policy = ToolPolicy {
        decide_by: Some(DecideBy::Role(name("treasurer"))),
        risk: Some(Risk::Medium),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("look", policy)).await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let short = json!({"agent": "helper", "lease_seconds": 3});
    let request = helper.post("/v1/work/claim", &short).await.ok(200)["requests"][0].clone();
    let hold = json!({"kind": "approval", "title": "Pay ACME?",
                      "action": {"tool": "pay", "args": {"amount": 4, "password": "hunter2"}, "risk": "high"},
                      "items": [{"kind": "tool_call", "name": "look", "call_id": "l", "arguments": {"password": "t", "q": 1}}]});
    let hold = act(&helper, &request, "holds", hold).await.ok(201);
    boss.post(&decision_path(&hold), &approval(&hold))
        .await
        .ok(200);
    // The worker is lost; the next claim finds two calls that may have run.
    until("the lease lapses", || async {
        let claimed = helper.post("/v1/work/claim", &short).await.ok(200);
        assert_eq!(claimed["requests"], json!([]));
        let read = ann
            .get(&format!("/v1/requests/{}", text(&request, "id")))
            .await
            .ok(200);
        (read["status"] == "held").then_some(())
    })
    .await;
    // Of a call that nobody was asked about, the policy says who finds out.
    let unknown = boss.get("/v1/holds?kind=reconcile").await.ok(200)["holds"].clone();
    assert_eq!(unknown.as_array().map(Vec::len), Some(1), "{unknown}");
    let boss = rig
        .key_for(&["approver", "treasurer"], Some("boss"), &[])
        .await;
    let open = boss.get("/v1/holds?kind=reconcile").await.ok(200)["holds"].clone();
    let open = open.as_array().expect("a list");
    assert_eq!(open.len(), 2, "{open:?}");
    let of = |tool: &str| {
        open.iter()
            .find(|hold| hold["action"]["tool"] == tool)
            .expect("asked")
            .clone()
    };
    let pay = of("pay");
    assert_eq!(
        pay["action"]["args"],
        json!({"amount": 4, "password": "[redacted:secret-key-name]"})
    );
    assert_eq!(pay["action"]["digest"], hold["action"]["digest"]);
    assert_eq!(pay["action"]["risk"], "high");
    assert!(text(&pay, "title").contains("Pay ACME?"));
    let look = of("look");
    assert_eq!(look["action"]["risk"], "medium");
    assert_eq!(
        look["action"]["args"],
        json!({"password": "[redacted:secret-key-name]", "q": 1})
    );
    for bad in [
        json!({}),
        json!({"outcome": "failed"}),
        json!("ran"),
        json!({"outcome": "ran", "x": 1}),
    ] {
        let respond = json!({"decision": "respond", "content": bad});
        boss.post(&decision_path(&look), &respond)
            .await
            .refused(422, "invalid_content");
    }
    let ran = json!({"decision": "respond", "content": {"outcome": "ran", "result": 5}});
    boss.post(&decision_path(&look), &ran).await.ok(200);
    // Run again: the worker gets the whole action once more.
    boss.post(&decision_path(&pay), &approval(&pay))
        .await
        .ok(200);
    let claimed = claim(&helper, "helper").await;
    let decisions = claimed["decisions"].as_array().expect("a list").clone();
    let again = decisions
        .iter()
        .find(|one| one["id"] == pay["id"])
        .expect("decided");
    assert_eq!(again["action"]["args"]["password"], "hunter2");
    assert!(again["decision"].get("args_lost").is_none(), "{again}");
}

#[tokio::test]
async fn a_decider_with_a_custom_role_repeats_a_decision_and_hears_that_it_is_taken() {
    let policy = ToolPolicy {
        decide_by: Some(DecideBy::Role(name("treasurer"))),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("pay", policy)).await;
    let work = Work::begin(&rig).await;
    let treasurer = rig.key_for(&["treasurer"], Some("tom"), &[]).await;
    let hold = work.ask(json!({})).await.ok(201);
    let (path, approval) = (decision_path(&hold), approval(&hold).to_string());
    let key = [("idempotency-key", "k1")];
    let decide = || treasurer.send("POST", &path, &key, approval.clone());
    let first = decide().await;
    first.ok(200);
    let again = decide().await;
    again.ok(200);
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let other = treasurer.post(&path, &json!({"decision": "reject"})).await;
    other.refused(409, "hold_decided");
    // A role that this hold does not ask for sees no hold at all.
    let cook = rig.key_for(&["cook"], Some("cat"), &[]).await;
    let body = json!({"decision": "reject"});
    cook.post(&path, &body).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_worker_of_the_owner_learns_nothing_from_a_decision_that_it_may_not_make() {
    let rig = Rig::in_memory().await;
    let work = Work::begin(&rig).await;
    let schema = json!({"type": "object", "required": ["secret_field"]});
    let form = json!({"kind": "form", "title": "?", "response_schema": schema});
    let path = decision_path(&work.hold(form).await.ok(201));
    let worker = rig.key_for(&["worker"], Some("ann"), &["helper"]).await;
    let cook = rig
        .key_for(&["worker", "cook"], Some("ann"), &["helper"])
        .await;
    for body in [
        json!({"decision": "respond", "content": {}}),
        json!({"decision": "approve"}),
        json!({"decision": "respond", "content": 1, "digest": "x"}),
        json!({"decision": "reject", "args": {}}),
    ] {
        let answer = worker.post(&path, &body).await;
        answer.refused(403, "forbidden");
        let answer = cook.post(&path, &body).await;
        answer.refused(403, "may_not_decide");
        assert!(!answer.text().contains("secret_field"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_decision_that_is_repeated_with_its_revision_gets_the_same_answer() {
    let rig = Rig::in_memory().await;
    let work = Work::begin(&rig).await;
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let hold = work.ask(json!({})).await.ok(201);
    let session = work
        .ann
        .get(&format!("/v1/sessions/{}", work.session))
        .await;
    let revision = format!("\"{}\"", session.revision());
    let (path, body) = (decision_path(&hold), approval(&hold).to_string());
    let send = async |key: &str| {
        let headers = [("idempotency-key", key), ("if-match", revision.as_str())];
        boss.send("POST", &path, &headers, body.clone()).await
    };
    let first = send("once").await;
    first.ok(200);
    let again = send("once").await;
    assert_eq!(again.body, first.body, "{}", again.text());
    send("another").await.refused(412, "revision_mismatch");
}

#[tokio::test]
async fn a_resume_that_is_repeated_gets_its_answer_although_another_hold_has_come() {
    let rig = Rig::in_memory().await;
    let work = Work::begin(&rig).await;
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let question = |title: &str| json!({"kind": "question", "title": title});
    work.hold(question("Which?")).await.ok(201);
    let path = format!("/v1/requests/{}/resume", text(&work.request, "id"));
    let body = json!({"decision": "respond", "content": "this one"}).to_string();
    let key = [("idempotency-key", "once")];
    let first = boss.send("POST", &path, &key, body.clone()).await;
    first.ok(200);
    let next = work.hold(question("And then?")).await.ok(201);
    let again = boss.send("POST", &path, &key, body.clone()).await;
    assert_eq!(again.body, first.body, "{}", again.text());
    let path = format!("/v1/holds/{}", text(&next, "id"));
    assert_eq!(boss.get(&path).await.ok(200)["status"], "open");
}

/// A key without a user that belongs to a person.
async fn key_owned_by(rig: &Rig, owner: &str, roles: &[&str]) -> Who {
    let admin = rig.key(&["admin"]).await;
    let body = json!({"roles": roles, "owner": owner});
    let made = admin.post("/v1/keys", &body).await.ok(201);
    assert_eq!(made["owner"], owner);
    Who {
        address: rig.address,
        key: Some(text(&made, "key")),
        id: text(&made, "id"),
    }
}

#[tokio::test]
async fn people_who_started_a_request_do_not_approve_it() {
    let rig = Rig::with(for_tool("pay", ToolPolicy::default())).await;
    let helper = rig.worker(&["helper"]).await;
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let carol = rig.key_for(&["approver"], Some("carol"), &[]).await;
    let own = rig.key(&["client", "approver"]).await;
    let owned = key_owned_by(&rig, "carol", &["client", "approver"]).await;
    let backend = key_owned_by(&rig, "carol", &["client"]).await;
    // (who starts it, on behalf of a user, who must not approve it)
    let cases = [
        (&own, None, &own),
        (&owned, None, &owned),
        (&owned, None, &carol),
        (&backend, Some("ann"), &carol),
        (&backend, Some("ann"), &owned),
    ];
    for (starter, user, approver) in cases {
        let headers: Vec<(&str, &str)> = user
            .map(|user| ("x-statehold-user", user))
            .into_iter()
            .collect();
        let post = async |path: &str, body: Value| {
            let answer = starter.send("POST", path, &headers, body.to_string()).await;
            answer.ok(201)
        };
        let named = user.map_or_else(|| json!("ann"), |_| Value::Null);
        let mut new = json!({"app": "app", "agent": "helper"});
        if !named.is_null() {
            new["user"] = named;
        }
        let session = text(&post("/v1/sessions", new).await, "id");
        let path = format!("/v1/sessions/{session}/requests");
        post(&path, json!({"agent": "helper", "input": "please"})).await;
        let request = claim(&helper, "helper").await;
        let ask = json!({
            "kind": "approval", "title": "Pay?",
            "action": {"tool": "pay", "args": {"amount": 4}},
        });
        let hold = act(&helper, &request, "holds", ask).await.ok(201);
        let refused = approver.post(&decision_path(&hold), &approval(&hold)).await;
        let problem = refused.refused(403, "may_not_decide");
        assert_eq!(problem["why"], "own_request");
        let path = format!("/v1/holds/{}", text(&hold, "id"));
        let seen = approver.get(&path).await.ok(200);
        assert_eq!(seen["why_not"], "own_request");
        assert_eq!(seen["action"].get("args"), None, "{seen}");
        let done = boss.post(&decision_path(&hold), &approval(&hold)).await;
        assert_eq!(done.ok(200)["status"], "approved");
    }
}

#[tokio::test]
async fn an_approver_without_the_client_role_is_told_that_the_session_is_their_own() {
    let rig = Rig::in_memory().await;
    let work = Work::begin(&rig).await;
    let hold = work.ask(json!({})).await.ok(201);
    let ann = rig.key_for(&["approver"], Some("ann"), &[]).await;
    let refused = ann.post(&decision_path(&hold), &approval(&hold)).await;
    let problem = refused.refused(403, "may_not_decide");
    assert_eq!(problem["why"], "own_session");
    let seen = ann.get(&format!("/v1/holds/{}", text(&hold, "id"))).await;
    let seen = seen.ok(200);
    assert_eq!(seen["why_not"], "own_session");
    assert_eq!(seen.get("action"), None, "{seen}");
}

#[tokio::test]
async fn deciders_are_shown_by_name_to_people_who_may_decide_and_by_pseudonym_to_others() {
    let rig = Rig::in_memory().await;
    let work = Work::begin(&rig).await;
    let hold = work.ask(json!({"quorum": 2})).await.ok(201);
    let path = format!("/v1/holds/{}", text(&hold, "id"));
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let carol = rig.key_for(&["approver"], Some("carol"), &[]).await;
    let first = boss.post(&decision_path(&hold), &approval(&hold)).await;
    assert_eq!(first.ok(200)["decided_by"], "boss");
    assert_eq!(carol.get(&path).await.ok(200)["votes"], json!(["boss"]));
    let done = carol.post(&decision_path(&hold), &approval(&hold)).await;
    assert_eq!(done.ok(200)["decided_by"], "carol");
    assert_eq!(boss.get(&path).await.ok(200)["decision"]["by"], "carol");
    for other in [&work.ann, &work.helper] {
        let seen = other.get(&path).await.ok(200);
        let by = text(&seen["decision"], "by");
        assert!(by.starts_with("usr_"), "{by}");
    }
}

#[tokio::test]
async fn two_keys_with_one_owner_are_one_vote() {
    let policy = ToolPolicy {
        quorum: Some(2),
        ..ToolPolicy::default()
    };
    let rig = Rig::with(for_tool("pay", policy)).await;
    let work = Work::begin(&rig).await;
    let hold = work.ask(json!({})).await.ok(201);
    let first = key_owned_by(&rig, "carol", &["approver"]).await;
    let second = key_owned_by(&rig, "carol", &["approver"]).await;
    let bound = rig.key_for(&["approver"], Some("carol"), &[]).await;
    let path = decision_path(&hold);
    let open = first.post(&path, &approval(&hold)).await.ok(200);
    assert_eq!(open["status"], "open");
    for (n, other) in [second, bound].into_iter().enumerate() {
        let key = format!("another-{n}");
        let headers = [("idempotency-key", key.as_str())];
        let again = other.send("POST", &path, &headers, approval(&hold).to_string());
        again.await.refused(409, "already_voted");
    }
}
