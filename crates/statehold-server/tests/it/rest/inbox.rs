//! The inbox: what waits for people, most urgent first, each as much as they may see.

use serde_json::{Value, json};

use super::{act, claim, new_session, start};
use crate::rig::{Rig, Who, text, until};

/// A request of the agent in a session of its own.
async fn claimed(client: &Who, worker: &Who, agent: &str) -> Value {
    let session = new_session(client).await;
    start(client, &session, agent, "x").await;
    claim(worker, agent).await
}

fn approval(title: &str, more: &Value) -> Value {
    let mut hold = json!({
        "kind": "approval", "title": title, "action": {"tool": "pay", "args": {"n": title}},
    });
    for (key, value) in more.as_object().expect("an object") {
        match key.as_str() {
            "risk" | "idempotent" | "call_id" => hold["action"][key] = value.clone(),
            _ => hold[key] = value.clone(),
        }
    }
    hold
}

fn titles(page: &Value) -> Vec<String> {
    let holds = page["holds"].as_array().expect("a list");
    holds.iter().map(|hold| text(hold, "title")).collect()
}

/// All pages of a list.
async fn pages(who: &Who, query: &str, limit: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/holds?limit={limit}{query}{cursor}");
        let page = who.get(&path).await.ok(200);
        found.extend(titles(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

#[tokio::test]
async fn open_holds_come_by_urgency_and_are_filtered_before_the_page_is_cut() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
        let (helper, math) = (rig.worker(&["helper"]).await, rig.worker(&["math"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let of_ann = claimed(&ann, &helper, "helper").await;
        let of_bob = claimed(&bob, &math, "math").await;
        for (worker, request, hold) in [
            (&helper, &of_ann, approval("none", &json!({}))),
            (&math, &of_bob, approval("low", &json!({"risk": "low"}))),
            (&helper, &of_ann, approval("high", &json!({"risk": "high"}))),
            (
                &math,
                &of_bob,
                approval(
                    "high soon",
                    &json!({"risk": "high", "expires_in_seconds": 900}),
                ),
            ),
            (
                &helper,
                &of_ann,
                approval("none soon", &json!({"expires_in_seconds": 300})),
            ),
            (
                &helper,
                &of_ann,
                approval("medium", &json!({"risk": "medium", "group_id": "g"})),
            ),
            (
                &math,
                &of_bob,
                json!({"kind": "question", "title": "which"}),
            ),
            (
                &math,
                &of_bob,
                approval("grouped", &json!({"group_id": "g"})),
            ),
        ] {
            act(worker, request, "holds", hold).await.ok(201);
        }
        let urgent = [
            "high soon",
            "high",
            "medium",
            "low",
            "none soon",
            "none",
            "which",
            "grouped",
        ];
        for limit in [1, 3, 8, 200] {
            assert_eq!(pages(&boss, "", limit).await, urgent, "pages of {limit}");
            assert_eq!(pages(&boss, "&order=urgency", limit).await, urgent);
            let high = pages(&boss, "&risk=high", limit).await;
            assert_eq!(high, ["high soon", "high"]);
        }
        let oldest = [
            "none",
            "low",
            "high",
            "high soon",
            "none soon",
            "medium",
            "which",
            "grouped",
        ];
        assert_eq!(pages(&boss, "&order=oldest", 3).await, oldest);
        let mut newest = oldest;
        newest.reverse();
        assert_eq!(pages(&boss, "&order=newest", 3).await, newest);
        let session = text(&of_ann, "session_id");
        for (query, expected) in [
            ("&agent=math", vec!["high soon", "low", "which", "grouped"]),
            (
                "&user=ann&kind=approval&agent=helper",
                vec!["high", "medium", "none soon", "none"],
            ),
            ("&kind=question", vec!["which"]),
            ("&group_id=g", vec!["medium", "grouped"]),
            ("&group_id=g&user=bob", vec!["grouped"]),
            ("&group_id=other", vec![]),
            ("&user=nobody", vec![]),
            (
                &format!("&session_id={session}&risk=medium"),
                vec!["medium"],
            ),
            ("&status=decided", vec![]),
        ] {
            assert_eq!(pages(&boss, query, 1).await, expected, "{query}");
        }
        check_queries(&boss).await;
    }
}

/// What makes no sense is refused, and a cursor is bound to the filter and order it was given for.
#[tokio::test]
async fn a_page_of_holds_ends_at_its_bytes_and_the_cursor_leads_on() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let request = claimed(&ann, &helper, "helper").await;
        let long = "x".repeat(700_000);
        for title in ["one", "two", "three"] {
            let mut hold = approval(title, &json!({}));
            hold["action"]["args"] = json!({"text": long});
            hold["items"] = json!([{"kind": "note", "name": "n", "data": {"text": long}}]);
            act(&helper, &request, "holds", hold).await.ok(201);
        }
        let page = boss.get("/v1/holds?limit=10").await.ok(200);
        assert_eq!(titles(&page).len(), 1, "each is longer than half a page");
        assert_eq!(pages(&boss, "", 10).await, ["one", "two", "three"]);
    }
}

async fn check_queries(boss: &Who) {
    for query in [
        "order=soon",
        "order=urgency&status=decided",
        "session_id=x",
        "risk=none",
        "x=1",
    ] {
        boss.get(&format!("/v1/holds?{query}"))
            .await
            .refused(400, "bad_query");
    }
    let page = boss.get("/v1/holds?limit=1").await.ok(200);
    let cursor = text(&page, "next_cursor");
    for query in ["order=oldest", "order=urgency", "risk=high", "user=ann"] {
        boss.get(&format!("/v1/holds?{query}&limit=1&cursor={cursor}"))
            .await
            .refused(400, "bad_cursor");
    }
}

#[tokio::test]
async fn no_hold_is_skipped_or_shown_twice_while_others_are_decided() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let request = claimed(&ann, &helper, "helper").await;
        let mut open = Vec::new();
        for n in 0..9 {
            let risk = ["low", "medium", "high"][n % 3];
            let hold = approval(&n.to_string(), &json!({"risk": risk}));
            let hold = act(&helper, &request, "holds", hold).await.ok(201);
            open.push((n.to_string(), text(&hold, "id")));
        }
        let expected = pages(&boss, "", 200).await;
        let mut seen: Vec<String> = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = boss.get(&format!("/v1/holds?limit=2{cursor}")).await;
            let page = page.ok(200);
            seen.extend(titles(&page));
            // What was shown last is decided, and something new and urgent comes.
            if let Some(last) = seen.last()
                && let Some(at) = open.iter().position(|(title, _)| title == last)
            {
                let (_, id) = open.swap_remove(at);
                let path = format!("/v1/holds/{id}/decision");
                boss.post(&path, &json!({"decision": "reject"}))
                    .await
                    .ok(200);
            }
            let new = approval("new", &json!({"risk": "high", "expires_in_seconds": 60}));
            act(&helper, &request, "holds", new).await.ok(201);
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, expected, "each once, in order");
    }
}

#[tokio::test]
async fn counts_and_lists_have_only_what_the_caller_may_see() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
        let helper = rig.worker(&["helper"]).await;
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let treasurer = rig.key_for(&["treasurer"], Some("tea"), &[]).await;
        let operator = rig.key(&["operator"]).await;
        let other = rig.worker(&["other"]).await;
        let far = rig
            .key_of("far", &["approver", "operator"], None, &[])
            .await;
        let of_ann = claimed(&ann, &helper, "helper").await;
        let of_bob = claimed(&bob, &helper, "helper").await;
        for (request, hold) in [
            (
                &of_ann,
                approval("a", &json!({"risk": "high", "expires_in_seconds": 500})),
            ),
            (&of_ann, json!({"kind": "question", "title": "q"})),
            (
                &of_ann,
                approval("t", &json!({"risk": "low", "decide_by": "role:treasurer"})),
            ),
            (&of_bob, approval("b", &json!({"risk": "medium"}))),
        ] {
            act(&helper, request, "holds", hold).await.ok(201);
        }
        let counts = |open: u8, kinds: [u8; 2], risks: [u8; 4], soon: u8, mine: u8| {
            json!({
                "open": open,
                "by_kind": {"approval": kinds[0], "question": kinds[1], "form": 0, "link": 0,
                            "credential": 0, "reconcile": 0},
                "by_risk": {"high": risks[0], "medium": risks[1], "low": risks[2], "none": risks[3]},
                "expiring_soon": soon, "mine": mine, "capped": false,
            })
        };
        for (who, expected, listed) in [
            // An approver decides everything but what another role decides.
            (
                &boss,
                counts(3, [2, 1], [1, 1, 0, 1], 1, 3),
                vec!["a", "b", "q"],
            ),
            (&treasurer, counts(1, [1, 0], [0, 0, 1, 0], 0, 1), vec!["t"]),
            // Whoever may not decide does not learn the risk: not by a count, an order or a filter.
            (
                &ann,
                counts(3, [2, 1], [0, 0, 0, 3], 1, 1),
                vec!["a", "q", "t"],
            ),
            (&bob, counts(1, [1, 0], [0, 0, 0, 1], 0, 0), vec!["b"]),
            (
                &helper,
                counts(4, [3, 1], [0, 0, 0, 4], 1, 0),
                vec!["a", "q", "t", "b"],
            ),
            (
                &operator,
                counts(4, [3, 1], [1, 1, 1, 1], 1, 0),
                vec!["a", "b", "t", "q"],
            ),
            (&other, counts(0, [0, 0], [0; 4], 0, 0), vec![]),
            (&far, counts(0, [0, 0], [0; 4], 0, 0), vec![]),
        ] {
            assert_eq!(who.get("/v1/holds/counts").await.ok(200), expected);
            assert_eq!(pages(who, "", 200).await, listed);
            assert_eq!(pages(who, "", 1).await, listed);
        }
        assert_eq!(pages(&ann, "&risk=high", 9).await, Vec::<String>::new());
        assert_eq!(pages(&ann, "&user=bob", 9).await, Vec::<String>::new());
        assert_eq!(pages(&boss, "&user=bob", 9).await, ["b"]);
        rig.nobody()
            .get("/v1/holds/counts")
            .await
            .refused(401, "unauthenticated");
    }
}

#[tokio::test]
async fn operators_list_actions_with_their_risk_and_read_arguments_one_by_one() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let operator = rig.key(&["operator"]).await;
    let request = claimed(&ann, &helper, "helper").await;
    let hold = approval("a", &json!({"risk": "high"}));
    let made = act(&helper, &request, "holds", hold).await.ok(201);
    let listed = operator.get("/v1/holds").await.ok(200);
    let action = &listed["holds"][0]["action"];
    assert_eq!(action["risk"], "high");
    assert_eq!(action["tool"], made["action"]["tool"]);
    assert_eq!(
        (&action["args"], action.get("digest")),
        (&Value::Null, None)
    );
    let path = format!("/v1/holds/{}", text(&made, "id"));
    let read = operator.get(&path).await.ok(200);
    assert_eq!(read["action"]["args"], made["action"]["args"]);
    let listed = ann.get("/v1/holds").await.ok(200);
    assert_eq!(listed["holds"][0].get("action"), None, "{listed}");
}

#[tokio::test]
async fn a_hold_says_who_may_decide_it_and_whose_it_is() {
    let rig = Rig::on_disk().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let request = claimed(&ann, &helper, "helper").await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let hold = approval(&n.to_string(), &json!({"group_id": "turn"}));
        let made = act(&helper, &request, "holds", hold).await.ok(201);
        assert_eq!(made["chain"], "T1 ← R1");
        assert_eq!(
            (&made["may_decide"], &made["why_not"]),
            (&json!(false), &json!("own_hold"))
        );
        ids.push(text(&made, "id"));
    }
    let path = format!("/v1/holds/{}", ids[0]);
    let seen = boss.get(&path).await.ok(200);
    assert_eq!(seen["may_decide"], true);
    assert_eq!(
        (&seen["user"], &seen["app"]),
        (&json!("ann"), &json!("demo"))
    );
    assert_eq!(
        (&seen["decide_by"], &seen["chain"]),
        (&json!("other"), &json!("T1 ← R1"))
    );
    assert_eq!(seen["comment_required"], false);
    assert!(text(&seen, "execution_key").starts_with("itm_"));
    assert_eq!(
        seen["group"],
        json!({"id": "turn", "holds": 3, "decided": 0})
    );
    assert!(
        seen.get("why_not").is_none() && seen.get("evidence").is_none(),
        "{seen}"
    );
    for (who, why, role) in [
        (&ann, "own_session", None),
        (&helper, "own_hold", None),
        (
            &rig.worker(&["helper"]).await,
            "needs_role",
            Some("approver"),
        ),
        (
            &rig.key(&["operator"]).await,
            "needs_role",
            Some("approver"),
        ),
    ] {
        let seen = who.get(&path).await.ok(200);
        assert_eq!(
            (&seen["may_decide"], &seen["why_not"]),
            (&json!(false), &json!(why))
        );
        assert_eq!(seen.get("role").and_then(Value::as_str), role);
        assert_eq!(seen["chain"], "T1 ← R1");
    }
    let reject = json!({"decision": "reject"});
    boss.post(&format!("/v1/holds/{}/decision", ids[1]), &reject)
        .await
        .ok(200);
    for who in [&ann, &boss] {
        let seen = who.get(&path).await.ok(200);
        assert_eq!(
            seen["group"],
            json!({"id": "turn", "holds": 3, "decided": 1})
        );
    }
    let gone = boss.get(&format!("/v1/holds/{}", ids[1])).await.ok(200);
    assert_eq!(gone["may_decide"], false, "it is decided");
    assert!(gone.get("why_not").is_none(), "{gone}");
    for group_id in [String::new(), "x".repeat(65)] {
        let hold = approval("x", &json!({"group_id": group_id}));
        act(&helper, &request, "holds", hold)
            .await
            .refused(422, "hold_malformed");
    }
}

/// What a decision stands on and what came of it, as those see it who may.
async fn evidence(who: &Who, hold: &str) -> Value {
    let seen = who.get(&format!("/v1/holds/{hold}")).await.ok(200);
    seen["evidence"].clone()
}

#[tokio::test]
async fn a_decided_hold_has_the_evidence_of_what_came_of_it() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let treasurer = rig.key_for(&["treasurer"], Some("tea"), &[]).await;
        let operator = rig.key(&["operator"]).await;
        let request = claimed(&ann, &helper, "helper").await;
        let open = async |more: Value| {
            let hold = approval("pay", &more);
            act(&helper, &request, "holds", hold).await.ok(201)
        };
        let run = open(json!({"call_id": "c1"})).await;
        let no = open(json!({"call_id": "c2", "decide_by": "role:treasurer"})).await;
        let digest = text(&run["action"], "digest");
        let (run, no) = (text(&run, "id"), text(&no, "id"));
        let approve = json!({"decision": "approve", "digest": digest});
        boss.post(&format!("/v1/holds/{run}/decision"), &approve)
            .await
            .ok(200);
        treasurer
            .post(
                &format!("/v1/holds/{no}/decision"),
                &json!({"decision": "reject"}),
            )
            .await
            .ok(200);
        let before = evidence(&boss, &run).await;
        assert_eq!(before["ran"], json!([]), "nothing yet");
        let results = json!({"items": [
            {"kind": "tool_result", "call_id": "c1", "result": 1},
            {"kind": "tool_result", "call_id": "c2", "result": "no", "outcome": "refused"},
        ]});
        let written = act(&helper, &request, "items", results).await.ok(200);
        act(&helper, &request, "complete", json!({"output": "done"}))
            .await
            .ok(200);
        let session = text(&request, "session_id");
        let records = operator
            .get(&format!("/v1/sessions/{session}/records"))
            .await
            .ok(200);
        let hash_of = |revision: &Value| {
            let all = records["records"].as_array().expect("a list");
            let found = all.iter().find(|record| record["seq"] == *revision);
            found.expect("the record is there")["hash"].clone()
        };
        let seen = boss.get(&format!("/v1/holds/{run}")).await.ok(200);
        let made = &seen["evidence"];
        assert_eq!(made["opened_hash"], hash_of(&made["opened_revision"]));
        assert_eq!(made["decided_hash"], hash_of(&made["decided_revision"]));
        assert_eq!(made["right"], "role:approver");
        assert_eq!(
            (&made["shown"], &made["released"]),
            (&json!(digest), &json!(digest))
        );
        assert_eq!(made["decided_by"], seen["decision"]["by"]);
        assert_eq!(made["ran"][0]["key"], seen["execution_key"]);
        assert_eq!(made["ran"][0]["outcome"], "ran");
        assert_eq!(made["ran"][0]["revision"], written["revision"]);
        text(&made["ran"][0], "at");
        let made = evidence(&treasurer, &no).await;
        assert_eq!(made["right"], "role:treasurer");
        assert_eq!(made["ran"][0]["outcome"], "refused");
        assert!(made.get("released").is_none(), "{made}");
        let listed = boss.get("/v1/holds?status=approved").await.ok(200);
        assert_eq!(listed["holds"][0]["evidence"], seen["evidence"]);
        assert_eq!(evidence(&operator, &run).await, seen["evidence"]);
        for who in [&ann, &helper] {
            assert_eq!(evidence(who, &run).await, Value::Null);
        }
    }
}

#[tokio::test]
async fn an_action_that_a_person_lets_run_again_leaves_evidence_too() {
    let rig = Rig::on_disk().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "x").await;
    let short = json!({"agent": "helper", "lease_seconds": 3});
    let first = helper.post("/v1/work/claim", &short).await.ok(200)["requests"][0].clone();
    let call =
        json!({"items": [{"kind": "tool_call", "name": "pay", "call_id": "p", "arguments": {}}]});
    act(&helper, &first, "items", call).await.ok(200);
    // The worker is lost, and nobody knows whether its action ran.
    until("somebody is asked", || async {
        let none = helper
            .post("/v1/work/claim", &json!({"agent": "helper"}))
            .await;
        assert_eq!(none.ok(200)["requests"], json!([]));
        let counts = boss.get("/v1/holds/counts").await.ok(200);
        (counts["by_kind"]["reconcile"] == 1).then_some(())
    })
    .await;
    let inbox = boss.get("/v1/holds?kind=reconcile").await.ok(200);
    let hold = &inbox["holds"][0];
    assert!(text(hold, "title").contains("did it run"), "{hold}");
    assert_eq!(hold["message"], "The worker was lost during this action.");
    let approve = json!({"decision": "approve"});
    boss.post(
        &format!("/v1/holds/{}/decision", text(hold, "id")),
        &approve,
    )
    .await
    .ok(200);
    let second = claim(&helper, "helper").await;
    let result =
        json!({"items": [{"kind": "tool_result", "call_id": "p", "result": 1}], "output": "ok"});
    act(&helper, &second, "complete", result).await.ok(200);
    let made = evidence(&boss, &text(hold, "id")).await;
    assert_eq!(made["ran"][0]["key"], hold["execution_key"]);
    assert_eq!(made["ran"][0]["outcome"], "ran");
    assert_eq!(made["right"], "role:approver");
}
