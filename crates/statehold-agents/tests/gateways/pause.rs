//! Remote agents that pause: the hold is opened here, and the decision is delivered to the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use statehold_agents::spec::ChatMemory;
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::RequestId;
use statehold_core::item::{CallMark, CallOutcome, ItemKind};
use statehold_engine::bodies::{HoldBody, parse};
use statehold_engine::{HoldDetail, testing};
use statehold_fakes::chat::{streamed, streamed_with};
use statehold_fakes::conversations::Conversations;
use statehold_fakes::dial;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest};
use tokio::sync::Notify;

use crate::rig::{Outcome, Rig, error, name, router};
use crate::world::{answer_of, chat, conversations};

pub(crate) fn paused(holds: &Value) -> ScriptedResponse {
    let said = json!({
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "It waits: see http://far.test"}}],
        "statehold": {"status": "paused", "session": "ses_far", "request": "req_far", "holds": holds},
    });
    ScriptedResponse::json(200, &said).with_header("x-statehold-session", "ses_far")
}

pub(crate) fn decisions(seen: &SeenRequest) -> Option<Vec<Value>> {
    let body = seen.json();
    let decisions = body["statehold"]["decisions"].as_array();
    decisions.cloned()
}

/// An agent that waits for these holds, then answers with the decisions.
async fn waiting(holds: Value) -> FakeService {
    FakeService::start(move |seen| match decisions(seen) {
        None => paused(&holds),
        Some(decided) => {
            let words = decided
                .iter()
                .map(|one| one["decision"].as_str().unwrap_or("?"));
            let words: Vec<&str> = words.collect();
            streamed(&words.join(" ")).with_header("x-statehold-session", "ses_far")
        }
    })
    .await
}

pub(crate) async fn asked(rig: &Rig, request: RequestId) -> Vec<HoldDetail> {
    let detail = rig.paused(request).await;
    let mut holds = Vec::new();
    for hold in &detail.holds {
        holds.push(
            rig.engine
                .hold(&rig.local, hold.hold.id)
                .await
                .expect("the hold"),
        );
    }
    holds
}

fn body(hold: &HoldDetail) -> HoldBody {
    parse(hold.body.as_deref())
}

#[tokio::test]
async fn a_decision_waits_for_an_agent_that_is_away() -> Outcome {
    let holds = json!([{"id": "hld_a", "kind": "approval", "title": "Delete Bob?"}]);
    let is_back = Arc::new(AtomicBool::new(false));
    let seen_back = Arc::clone(&is_back);
    let server = FakeService::start(move |seen| match decisions(seen) {
        None => paused(&holds),
        Some(_) if seen_back.load(Ordering::Relaxed) => {
            streamed("deleted").with_header("x-statehold-session", "ses_far")
        }
        Some(_) => ScriptedResponse::json(503, &json!({"error": {"message": "restarting"}})),
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    let request = rig.ask(session, "far", "delete Bob").await;
    let holds = asked(&rig, request).await;
    rig.decide(&holds[0], DecisionKind::Approve, None).await;
    // No other turn waits for the agent.
    let other = rig.ask(session, "far", "and Ann").await;
    assert_eq!(error(&rig.ended(other).await)["code"], "agent_busy");
    let told = || -> Vec<_> { server.seen().iter().filter_map(decisions).collect() };
    while told().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    is_back.store(true, Ordering::Relaxed);
    assert_eq!(answer_of(&rig.ended(request).await), "deleted");
    // The decision was delivered more than once, under the same key.
    let told = told();
    assert!(told.len() > 1, "{told:?}");
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    assert!(told[0][0]["key"].is_string(), "{told:?}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_waits_in_one_place_can_be_asked_in_another() -> Outcome {
    let server =
        waiting(json!([{"id": "hld_a", "kind": "approval", "title": "Delete Bob?"}])).await;
    let rig = Rig::new(vec![
        Arc::new(chat("far", &server, ChatMemory::Track)),
        router("front", &[(".", "far")], &["far"]),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let request = rig.ask(session, "far", "delete Bob").await;
    let holds = asked(&rig, request).await;
    let below = rig.ask(session, "front", "delete Bob").await;
    let waits = rig.until(below, |detail| {
        let live = detail.request.live();
        live.is_some_and(|live| !live.children.is_empty())
    });
    let waits = waits.await;
    let live = waits.request.live().expect("it waits");
    let child = *live.children.first().expect("a child");
    let more = asked(&rig, child).await;
    for (request, hold) in [(below, &more[0]), (request, &holds[0])] {
        rig.decide(hold, DecisionKind::Approve, None).await;
        assert_eq!(answer_of(&rig.ended(request).await), "approve");
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_an_agent_asks_is_asked_here_and_what_is_decided_is_told_to_it() -> Outcome {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let server = waiting(json!([
        {"id": "hld_a", "kind": "approval", "title": "Delete\u{202e} Bob?\u{7}\nnow", "message": "Really.",
         "allowed": ["approve", "edit", "reject"],
         "action": {"tool": "delete_user", "args": {"id": 7}, "digest": "sha256:abc"}},
        {"id": "hld_q", "kind": "question", "title": "Which one?"},
        {"id": "hld_f", "kind": "form", "title": "How many?", "response_schema": schema},
        {"id": "hld_l", "kind": "link", "title": "Sign in", "url": "https://far.test/in"},
        {"id": "hld_q", "kind": "question", "title": "Again?"},
    ]))
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    let request = rig.ask(session, "far", "go on").await;
    let holds = asked(&rig, request).await;
    let kinds: Vec<HoldKind> = holds.iter().map(|hold| hold.hold.kind).collect();
    assert_eq!(
        kinds,
        [
            HoldKind::Approval,
            HoldKind::Question,
            HoldKind::Form,
            HoldKind::Link
        ]
    );
    let approval = body(&holds[0]);
    assert_eq!(approval.title, "Delete Bob? now");
    let action = approval.action.expect("an action");
    assert_eq!(action.tool, "delete_user");
    assert_eq!(
        action.args.get(),
        r#"{"args":{"id":7},"remote_hold":"hld_a"}"#
    );
    let allowed: Vec<DecisionKind> = holds[0].hold.allowed.iter().copied().collect();
    assert_eq!(allowed, [DecisionKind::Approve, DecisionKind::Reject]);
    assert_eq!(body(&holds[3]).url.as_deref(), Some("https://far.test/in"));
    rig.decide(&holds[0], DecisionKind::Approve, None).await;
    rig.decide(&holds[1], DecisionKind::Respond, Some("the second"))
        .await;
    rig.decide(&holds[2], DecisionKind::Reject, None).await;
    rig.decide(&holds[3], DecisionKind::Approve, None).await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), "approve respond reject approve");
    let seen = server.seen();
    assert_eq!(seen.len(), 2, "it is told once");
    assert_eq!(seen[1].header("x-statehold-session"), Some("ses_far"));
    assert_eq!(seen[1].said(), "go on");
    let told = decisions(&seen[1]).expect("decisions");
    assert_eq!(
        told[0],
        json!({"hold_id": "hld_a", "decision": "approve", "digest": "sha256:abc", "key": holds[0].hold.id.to_string()})
    );
    assert_eq!(
        told[1],
        json!({"hold_id": "hld_q", "decision": "respond", "content": "the second", "key": holds[1].hold.id.to_string()})
    );
    // The call that stands for the agent's action has a result.
    let tasks = testing::tasks_of(&rig.engine, session, &name("far")).await?;
    let page = testing::task_items(&rig.engine, session, tasks[0], None, 100).await?;
    let items = page.items;
    let results = items.iter().filter_map(|item| match item.placed.item.call {
        Some(CallMark::Result { outcome, .. }) => Some(outcome),
        _ => None,
    });
    assert_eq!(results.collect::<Vec<_>>(), [CallOutcome::Ran]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_approval_that_is_refused_is_told_as_refused_and_nothing_ran() -> Outcome {
    let server = waiting(json!([{"id": "hld_a", "kind": "approval", "title": "Send it?"}])).await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    let request = rig.ask(session, "far", "go on").await;
    let mut draft = rig.engine.follow_draft(request);
    let holds = asked(&rig, request).await;
    assert_eq!(
        body(&holds[0]).action.expect("an action").tool,
        "remote_action"
    );
    rig.decide(&holds[0], DecisionKind::Reject, None).await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), "reject");
    let results = rig.items(session, "far", ItemKind::ToolResult).await;
    assert_eq!(results.len(), 1);
    // Our users do not see the text in which the agent tells its own users that it waits.
    let mut written = String::new();
    while let Some(piece) = draft.next().await {
        written.push_str(&piece);
    }
    assert_eq!(written, "reject");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_asks_too_much_at_once_is_mirrored_in_parts() -> Outcome {
    let server = FakeService::start(|seen| {
        let hold = |n: usize| json!({"id": format!("hld_{n}"), "kind": "question", "title": "Hm?"});
        let (first, last) = match decisions(seen).and_then(|told| told.last().cloned()) {
            None => (0, 20),
            Some(told) if told["hold_id"] == "hld_15" => (16, 20),
            Some(_) => return streamed("done").with_header("x-statehold-session", "ses_far"),
        };
        paused(&Value::Array((first..last).map(hold).collect()))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    let request = rig.ask(session, "far", "go on").await;
    for open in [16, 4] {
        let holds = asked(&rig, request).await;
        let holds: Vec<_> = holds.iter().filter(|hold| hold.closed.is_none()).collect();
        assert_eq!(holds.len(), open);
        for hold in holds {
            rig.decide(hold, DecisionKind::Respond, Some("yes")).await;
        }
    }
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), "done");
    assert_eq!(ended.holds.len(), 20);
    assert_eq!(server.seen().len(), 3);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_never_stops_asking_fails_and_says_what_to_do() -> Outcome {
    let server = FakeService::start(|seen| {
        let asked = decisions(seen).map_or(0, |told| {
            let last = told[0]["hold_id"].as_str().expect("an id");
            last["hld_".len()..].parse::<usize>().expect("a number") + 1
        });
        paused(&json!([{"id": format!("hld_{asked}"), "kind": "question", "title": "Why?"}]))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    let request = rig.ask(session, "far", "go on").await;
    for _ in 0..64 {
        let holds = asked(&rig, request).await;
        let open = holds.iter().find(|hold| hold.closed.is_none());
        let open = open.expect("an open question");
        rig.decide(open, DecisionKind::Respond, Some("because"))
            .await;
    }
    let error = error(&rig.ended(request).await);
    assert_eq!(error["code"], "agent_pauses_too_often", "{error}");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("ask for less at once"), "{message}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_asked_here_is_a_clear_error_and_the_session_goes_on() -> Outcome {
    let long = "x".repeat(20_000);
    let holds = [
        (
            json!([{"id": "h", "kind": "credential", "title": "?"}]),
            "agent_pause_unsupported",
        ),
        (json!([]), "agent_malformed"),
        (json!("none"), "agent_malformed"),
        (json!("x".repeat(1_000_000)), "agent_malformed"),
        (
            json!([{"id": "a b", "kind": "question"}]),
            "agent_malformed",
        ),
        (
            json!([{"id": "h", "kind": "form", "title": "?"}]),
            "cannot_ask",
        ),
        (
            json!([{"id": "h", "kind": "form", "response_schema": {"description": long}}]),
            "agent_malformed",
        ),
        (
            json!([{"id": "h", "kind": "form", "response_schema": {"$ref": "http://x.test/s"}}]),
            "agent_malformed",
        ),
        (
            json!([{"id": "h", "kind": "link", "url": "javascript:alert(1)"}]),
            "cannot_ask",
        ),
        (json!([{"id": "h", "kind": "link"}]), "cannot_ask"),
        (
            json!([{"id": "h", "kind": "approval", "action": {"tool": "t", "args": {"x": "y".repeat(70_000)}}}]),
            "agent_pause_unsupported",
        ),
        // One valid hold before an invalid one.
        (
            json!([{"id": "a", "kind": "question"}, {"id": "h", "kind": "link"}]),
            "cannot_ask",
        ),
    ];
    for (holds, code) in holds {
        let shown = holds.to_string();
        let server = FakeService::start(move |seen| {
            if seen.said() == "wait" {
                return paused(&holds);
            }
            streamed("fine").with_header("x-statehold-session", "ses_far")
        })
        .await;
        let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
        let runner = rig.runner().await;
        let session = rig.session("far").await;
        let request = rig.ask(session, "far", "wait").await;
        let ended = rig.ended(request).await;
        let error = error(&ended);
        assert_eq!(error["code"], code, "{shown:.200}: {error:.200}");
        // The error says what to do.
        if code == "agent_malformed" {
            assert!(error.to_string().contains("ask again"), "{error:.200}");
        }
        // The error does not repeat the agent's text.
        let kept = error.to_string().len();
        assert!(kept < 1_000, "{shown:.200}: {kept} bytes");
        assert_eq!(ended.holds.len(), 0, "{shown:.200}");
        assert_eq!(rig.turn(session, "far", "go on").await, "fine");
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn decisions_go_where_it_was_asked_and_nothing_else_does_meanwhile() -> Outcome {
    // The agent names its session when it creates it, and never again.
    let server = FakeService::start(|seen| {
        let play = match (seen.said().as_str(), decisions(seen)) {
            (_, Some(_)) => return streamed("thanks"),
            ("wait", None) => {
                let hold = json!([{"id": "h", "kind": "question", "title": "Which one?"}]);
                let said = json!({
                    "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Hm"}}],
                    "statehold": {"status": "paused", "holds": hold},
                });
                ScriptedResponse::json(200, &said)
            }
            _ => streamed("fine"),
        };
        match seen.header("x-statehold-session") {
            Some("new") => play.with_header("x-statehold-session", "ses_far"),
            _ => play,
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    assert_eq!(rig.turn(session, "far", "hello").await, "fine");
    let request = rig.ask(session, "far", "wait").await;
    let holds = asked(&rig, request).await;
    // The agent would take the message of another turn for the answer.
    let error = rig.failing_turn(session, "far", "something else").await;
    assert_eq!(error["code"], "agent_busy");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("Which one?"), "{message}");
    runner.stop().await;
    let runner = rig.runner().await;
    rig.decide(&holds[0], DecisionKind::Respond, Some("this"))
        .await;
    assert_eq!(answer_of(&rig.ended(request).await), "thanks");
    assert_eq!(rig.turn(session, "far", "and now?").await, "fine");
    let seen = server.seen();
    let told: Vec<_> = seen
        .iter()
        .map(|seen| seen.header("x-statehold-session"))
        .collect();
    let far = Some("ses_far");
    assert_eq!(told, [Some("new"), far, far, far]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// An agent that keeps nothing pauses with its state, and gets its exchanges, that state and the decision in one call.
#[tokio::test]
async fn an_agent_without_memory_gets_its_state_back_with_the_decision() -> Outcome {
    const STATE: &str = r#"{"z":1.0,"todo":["delete Bob"],"index":0}"#;
    let server = FakeService::start(|seen| {
        let told = decisions(seen).map(|told| told[0]["decision"].clone());
        match (seen.said().as_str(), told) {
            ("delete Bob", _) => {
                let message = format!(
                    r#"{{"content":"May I?","custom_content":{{"state":{STATE}}}}}"#
                );
                let hold = r#"{"id":"h","kind":"approval","title":"Delete Bob?","action":{"tool":"delete","args":{"user":"Bob"},"digest":"sha256:abc"}}"#;
                ScriptedResponse::json(200, &format!(
                    r#"{{"choices":[{{"message":{message},"finish_reason":"stop"}}],"statehold":{{"status":"paused","holds":[{hold}]}}}}"#
                ))
            }
            (_, Some(decision)) => streamed_with(&format!("it is {decision}"), r#"{"state":{"done":true}}"#),
            _ => streamed("fine"),
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    assert_eq!(rig.turn(session, "far", "hello").await, "fine");
    let request = rig.ask(session, "far", "delete Bob").await;
    let holds = asked(&rig, request).await;
    // Other turns go on: the agent remembers nothing, so it cannot take them for the answer.
    assert_eq!(rig.turn(session, "far", "and now?").await, "fine");
    // Another process takes the decision.
    runner.stop().await;
    let runner = rig.runner().await;
    rig.decide(&holds[0], DecisionKind::Approve, None).await;
    assert_eq!(answer_of(&rig.ended(request).await), r#"it is "approve""#);
    assert_eq!(rig.turn(session, "far", "last").await, "fine");
    let seen = server.seen();
    assert_eq!(seen.len(), 5);
    let told = decisions(&seen[3]).expect("decisions");
    assert_eq!(told[0]["digest"], "sha256:abc");
    assert_eq!(told[0]["key"], holds[0].hold.id.to_string());
    let paused = format!(
        r#"{{"role":"user","content":"delete Bob"}},{{"role":"assistant","content":"May I?","custom_content":{{"state":{STATE}}}}},{{"role":"user","content":"approve"}}]"#
    );
    assert!(seen[3].text.contains(&paused), "{}", seen[3].text);
    assert_eq!(
        seen[3].messages()[0],
        ("user".to_owned(), "hello".to_owned())
    );
    let keys: Vec<_> = seen
        .iter()
        .map(|seen| seen.header("idempotency-key"))
        .collect();
    assert_ne!(keys[1], keys[3]);
    // Only the last answer and its state are an exchange.
    let last = &seen[4].text;
    assert!(
        !last.contains("May I?") && last.contains(r#""state":{"done":true}"#),
        "{last}"
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// An application made with DIAL's SDK says that it waits in its state, and reads there what was decided.
#[tokio::test]
async fn an_application_of_dial_pauses_in_its_state_and_reads_the_decision_in_that_of_the_message()
-> Outcome {
    let server = FakeService::start(|seen| {
        if let Some(refusal) = dial::refusal(seen) {
            return refusal;
        }
        let body = seen.json();
        let last = body["messages"].as_array().and_then(|all| all.last()).expect("a message");
        let told = &last["custom_content"]["state"]["statehold"]["decisions"];
        match told.as_array() {
            None => dial::answer(vec![
                dial::opens(0, "Search"),
                dial::say("Which one?"),
                dial::state(r#"{"found":[1,2],"statehold":{"status":"paused","holds":[{"id":"q","kind":"question","title":"Which one?"},{"id":"a","kind":"approval","title":"Pay?"}]}}"#),
            ]),
            Some(told) => {
                let state = &body["messages"][1]["custom_content"]["state"];
                let words = last["content"].as_str().expect("text");
                dial::answer(vec![dial::say(&format!("{} of {}: {words}", told[0]["content"], state["found"]))])
            }
        }
    })
    .await;
    let rig = Rig::new(vec![
        Arc::new(crate::world::dial("gpa", &server)),
        router("front", &[(".", "gpa")], &["gpa"]),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let request = rig.ask(session, "front", "find it").await;
    let waits = rig.until(request, |detail| {
        let live = detail.request.live();
        live.is_some_and(|live| live.lease.is_none() && !live.children.is_empty())
    });
    let waits = waits.await;
    let live = waits.request.live().expect("it waits");
    let child = *live.children.first().expect("a child");
    let holds = asked(&rig, child).await;
    rig.decide(&holds[0], DecisionKind::Respond, Some("the second"))
        .await;
    rig.decide(&holds[1], DecisionKind::Reject, None).await;
    assert_eq!(
        answer_of(&rig.ended(request).await),
        "\"the second\" of [1,2]: the second\nreject"
    );
    assert_eq!(server.seen().len(), 2);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// Its words before a pause address its own users, and are no part of the answer here.
#[tokio::test]
async fn the_words_of_an_application_that_is_declared_to_pause_are_streamed_when_it_does_not()
-> Outcome {
    let followed = Arc::new(Notify::new());
    let gate = Arc::clone(&followed);
    let server = FakeService::start(move |seen| {
        let body = seen.json();
        let last = body["messages"].as_array().and_then(|all| all.last()).expect("a message");
        if last["custom_content"]["state"]["statehold"]["decisions"].is_array() {
            return dial::answer(vec![dial::say("Paid"), dial::say(", all of it.")]);
        }
        dial::answer(vec![
            BodyStep::Until(Arc::clone(&gate)),
            dial::say("Open http://internal.test to approve."),
            dial::state(r#"{"statehold":{"status":"paused","holds":[{"id":"a","kind":"approval","title":"Pay?"}]}}"#),
        ])
    })
    .await;
    for pauses in [true, false] {
        let mut spec = crate::world::dial("gpa", &server);
        spec.pauses = pauses;
        let rig = Rig::new(vec![Arc::new(spec)]).await;
        let runner = rig.runner().await;
        let session = rig.session("gpa").await;
        let request = rig.ask(session, "gpa", "pay").await;
        let mut draft = rig.engine.follow_draft(request);
        followed.notify_one();
        let mut streamed = String::new();
        if !pauses {
            streamed = draft.next().await.expect("its words");
        }
        let holds = asked(&rig, request).await;
        rig.decide(&holds[0], DecisionKind::Approve, None).await;
        assert_eq!(answer_of(&rig.ended(request).await), "Paid, all of it.");
        while let Some(piece) = draft.next().await {
            streamed.push_str(&piece);
        }
        if pauses {
            assert_eq!(streamed, "Paid, all of it.");
        } else {
            assert!(streamed.starts_with("Open http"), "{streamed}");
        }
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_service_that_keeps_conversations_is_told_of_a_decision_with_its_next_message() -> Outcome
{
    let service = Arc::new(Conversations::default());
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    let server = FakeService::start(move |seen| {
        if let Some(created) = service.begin_or_list(seen) {
            return created;
        }
        match (seen.said().as_str(), decisions(seen)) {
            ("delete Bob", None) => {
                let hold = json!({"id": "h", "kind": "question", "title": "Which Bob?"});
                let paused = json!({"status": "paused", "holds": [hold]});
                let said =
                    json!({"content": "Which?", "conversation_id": "c-1", "statehold": paused});
                ScriptedResponse::json(200, &said)
            }
            (_, Some(_)) if away.swap(false, Ordering::Relaxed) => {
                ScriptedResponse::json(503, &json!({"error": {"message": "restarting"}}))
            }
            (said, Some(told)) => streamed(&format!("{said}: {}", told[0]["hold_id"])),
            _ => streamed("fine"),
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    assert_eq!(rig.turn(session, "ums", "hello").await, "fine");
    let request = rig.ask(session, "ums", "delete Bob").await;
    let holds = asked(&rig, request).await;
    // The service would take the message of another turn for the answer.
    let error = rig.failing_turn(session, "ums", "something else").await;
    assert_eq!(error["code"], "agent_busy");
    runner.stop().await;
    let runner = rig.runner().await;
    rig.decide(&holds[0], DecisionKind::Respond, Some("the old one"))
        .await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), r#"the old one: "h""#);
    assert_eq!(rig.turn(session, "ums", "thanks").await, "fine");
    let chats = server.seen();
    let chats: Vec<&SeenRequest> = chats
        .iter()
        .filter(|seen| seen.path.ends_with("/chat"))
        .collect();
    let said: Vec<String> = chats.iter().map(|seen| seen.said()).collect();
    assert_eq!(
        said,
        [
            "hello",
            "delete Bob",
            "the old one",
            "the old one",
            "thanks"
        ]
    );
    let keys: Vec<_> = chats
        .iter()
        .map(|seen| seen.header("idempotency-key"))
        .collect();
    assert_eq!(keys[2], keys[3]);
    assert!(
        chats
            .iter()
            .all(|seen| seen.path == "/v1/conversations/c-1/chat")
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
