//! The runner crashes at every step of a turn with tools, before and after the commit. Another resumes:
//! recorded steps are not repeated, and calls that may have run are not repeated silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, SimulatedCrash, StepHook, StepKind};
use statehold_agents::spec::AgentKind;
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::request::RequestOutcome;
use statehold_engine::policy::Policies;
use statehold_fakes::chat::{ModelReply, ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolServer, tool};

use crate::approvals::{decide, paused, policies, tools};
use crate::llm::{Declared, assistant_book, completed};
use crate::rig::{Outcome, PATIENCE, Rig, agent, error, router};

/// Crashes the turn when a step is reached for the n-th time.
pub(crate) fn lost_at(
    kind: StepKind,
    moment: CommitPhase,
    nth: usize,
) -> (StepHook, Arc<tokio::sync::Notify>) {
    let reached = Arc::new(tokio::sync::Notify::new());
    let (told, seen) = (Arc::clone(&reached), AtomicUsize::new(0));
    let hook: StepHook = Arc::new(move |at, when| {
        if (at, when) == (kind, moment) && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            told.notify_one();
            std::panic::resume_unwind(Box::new(SimulatedCrash));
        }
    });
    (hook, reached)
}

fn annotated(name: &str, idempotent: bool) -> Value {
    let mut tool = tool(name);
    tool["annotations"] = json!({"idempotentHint": idempotent});
    tool
}

/// Two rounds with idempotent tools, then the answer.
fn script() -> [ModelReply; 3] {
    [
        calls(&[("a", "one", json!({"n": 1})), ("b", "two", json!({"n": 2}))]),
        calls(&[("c", "one", json!({"n": 3}))]),
        text("Done."),
    ]
}

#[tokio::test]
async fn a_turn_with_tools_goes_on_from_every_step() -> Outcome {
    let places = [
        (StepKind::Model, 3),
        (StepKind::ToolCall, 2),
        (StepKind::ToolResult, 3),
        (StepKind::Answer, 1),
    ];
    for (kind, times) in places {
        for moment in [CommitPhase::Before, CommitPhase::After] {
            for nth in 1..=times {
                let place = format!("{kind:?} {moment:?} {nth}");
                let tools = ToolServer::start(
                    vec![annotated("one", true), annotated("two", true)],
                    |call| format!("{} {}", call.tool, call.args["n"]),
                )
                .await;
                let model = ScriptedModel::start([]).await;
                let declared = Declared {
                    trust_hints: true,
                    ..Declared::with_tools(&tools)
                };
                let rig = Rig::with(assistant_book(&model, &declared), Policies::default()).await;
                let (hook, reached) = lost_at(kind, moment, nth);
                let first = rig.watched(hook).await;
                let mut says: Vec<ModelReply> = script().into();
                // An unrecorded model call is repeated. The final answer is recorded with the end.
                let unrecorded = match (kind, moment) {
                    // The calls are recorded with the reply that wants them.
                    (StepKind::Model | StepKind::ToolCall, CommitPhase::Before) => Some(nth),
                    (StepKind::Answer, CommitPhase::Before) => Some(says.len()),
                    _ => None,
                };
                if let Some(nth) = unrecorded {
                    says.insert(nth, says[nth - 1].clone());
                }
                model.then(says);
                let session = rig.session("assistant").await;
                let request = rig.ask(session, "assistant", "Go").await;
                tokio::time::timeout(PATIENCE, reached.notified())
                    .await
                    .expect(&place);
                first.stop().await;
                let second = rig.runner().await;
                let ended = rig.ended(request).await;
                completed(&ended);
                assert_eq!(rig.transcript(session).await, ["Go", "Done."], "{place}");
                let repeated = usize::from(unrecorded.is_some());
                assert_eq!(model.asked().len(), 3 + repeated, "{place}");
                // A tool is called again only if its outcome is unknown, and with the same execution
                // key.
                let called = tools.called();
                let mut keys: Vec<&str> = called.iter().map(|call| call.key.as_str()).collect();
                keys.sort_unstable();
                keys.dedup();
                assert_eq!(keys.len(), 3, "{place}");
                // The first two calls run concurrently, so one crash may lose both.
                let again = match (kind, moment, nth) {
                    (StepKind::ToolResult, CommitPhase::Before, 1) => 1..=2,
                    (StepKind::ToolResult, CommitPhase::Before, _) => 1..=1,
                    (StepKind::ToolResult, CommitPhase::After, 1) => 0..=1,
                    _ => 0..=0,
                };
                assert!(again.contains(&(called.len() - 3)), "{place}: {called:?}");
                let last = model.asked();
                let last = last.last().expect("calls")["messages"]
                    .as_array()
                    .expect("messages")
                    .clone();
                let told: Vec<&Value> = last
                    .iter()
                    .filter(|message| message["role"] == "tool")
                    .map(|message| &message["content"])
                    .collect();
                assert_eq!(told, ["one 1", "two 2", "one 3"], "{place}");
                second.stop().await;
                rig.engine.shut_down().await;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_approval_is_asked_once_and_the_call_is_made_once_whatever_is_lost() -> Outcome {
    let places = [
        (StepKind::Model, CommitPhase::After, 1),
        (StepKind::ToolCall, CommitPhase::After, 1),
        (StepKind::Hold, CommitPhase::Before, 1),
        (StepKind::Hold, CommitPhase::After, 1),
        (StepKind::ToolResult, CommitPhase::After, 1),
        (StepKind::Model, CommitPhase::After, 2),
        (StepKind::Answer, CommitPhase::Before, 1),
    ];
    for (kind, moment, nth) in places {
        let place = format!("{kind:?} {moment:?} {nth}");
        let tools = tools().await;
        let mut says = vec![
            calls(&[("c1", "delete_user", json!({"user_id": 7}))]),
            text("Deleted."),
        ];
        // The final answer is recorded with the end.
        if (kind, moment) == (StepKind::Answer, CommitPhase::Before) {
            says.push(text("Deleted."));
        }
        let asked = says.len();
        let model = ScriptedModel::start(says).await;
        let rig = Rig::with(
            assistant_book(&model, &Declared::with_tools(&tools)),
            policies(),
        )
        .await;
        let (hook, reached) = lost_at(kind, moment, nth);
        let first = rig.watched(hook).await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "Delete 7").await;
        let before_pause = matches!(kind, StepKind::ToolCall | StepKind::Hold)
            || (kind, nth) == (StepKind::Model, 1);
        let second = if before_pause {
            tokio::time::timeout(PATIENCE, reached.notified())
                .await
                .expect(&place);
            first.stop().await;
            let second = rig.runner().await;
            let holds = paused(&rig, request, 1).await;
            decide(&rig, &holds[0], DecisionKind::Approve, json!({})).await;
            second
        } else {
            let holds = paused(&rig, request, 1).await;
            decide(&rig, &holds[0], DecisionKind::Approve, json!({})).await;
            tokio::time::timeout(PATIENCE, reached.notified())
                .await
                .expect(&place);
            first.stop().await;
            rig.runner().await
        };
        let ended = rig.ended(request).await;
        completed(&ended);
        assert_eq!(ended.holds.len(), 1, "{place}");
        assert_eq!(tools.called().len(), 1, "{place}");
        assert_eq!(model.asked().len(), asked, "{place}");
        assert_eq!(
            rig.transcript(session).await,
            ["Delete 7", "Deleted."],
            "{place}"
        );
        second.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_may_have_run_is_asked_about_if_its_tool_knows_no_keys() -> Outcome {
    for (kind, with, runs, told) in [
        (DecisionKind::Approve, json!({}), 2, "list_users done"),
        (
            DecisionKind::Respond,
            json!({"content": {"outcome": "ran", "result": "three users"}}),
            1,
            "three users",
        ),
        (
            DecisionKind::Reject,
            json!({"comment": "It hung."}),
            1,
            "It hung.",
        ),
    ] {
        let tools = tools().await;
        let model =
            ScriptedModel::start([calls(&[("c1", "list_users", json!({}))]), text("Listed.")])
                .await;
        let rig = Rig::with(
            assistant_book(&model, &Declared::with_tools(&tools)),
            Policies::default(),
        )
        .await;
        let (hook, reached) = lost_at(StepKind::ToolResult, CommitPhase::Before, 1);
        let first = rig.watched(hook).await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "List").await;
        tokio::time::timeout(PATIENCE, reached.notified())
            .await
            .expect("it takes too long");
        first.stop().await;
        let second = rig.runner().await;
        let holds = paused(&rig, request, 1).await;
        assert_eq!(holds[0].hold.kind, HoldKind::Reconcile);
        assert_eq!(tools.called().len(), 1);
        decide(&rig, &holds[0], kind, with).await;
        completed(&rig.ended(request).await);
        let called = tools.called();
        assert_eq!(called.len(), runs, "{kind:?}");
        assert!(
            called.iter().all(|call| call.key == called[0].key),
            "{called:?}"
        );
        let said = model.messages(1)[3]["content"].clone();
        assert!(
            said.as_str().is_some_and(|said| said.contains(told)),
            "{kind:?}: {said}"
        );
        second.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn hidden_arguments_that_were_lost_before_anybody_was_asked_are_not_made_up() -> Outcome {
    for (kind, moment) in [
        (StepKind::Model, CommitPhase::After),
        (StepKind::Hold, CommitPhase::Before),
    ] {
        let tools = tools().await;
        let model = ScriptedModel::start([
            calls(&[(
                "c1",
                "delete_user",
                json!({"user_id": 7, "pin": "pin-4711"}),
            )]),
            text("It was lost."),
        ])
        .await;
        let rig = Rig::with(
            assistant_book(&model, &Declared::with_tools(&tools)),
            policies(),
        )
        .await;
        let (hook, reached) = lost_at(kind, moment, 1);
        let first = rig.watched(hook).await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "Delete 7").await;
        tokio::time::timeout(PATIENCE, reached.notified())
            .await
            .expect("it takes too long");
        first.stop().await;
        // The text for the model is recorded first, so the resumed turn sends the same.
        let (hook, reached) = lost_at(StepKind::ToolResult, CommitPhase::After, 1);
        let next = rig.watched(hook).await;
        tokio::time::timeout(PATIENCE, reached.notified())
            .await
            .expect("it takes too long");
        next.stop().await;
        let second = rig.runner().await;
        let ended = rig.ended(request).await;
        completed(&ended);
        assert_eq!((tools.called().len(), ended.holds.len()), (0, 0));
        assert_eq!(model.asked().len(), 2);
        let told = model.messages(1)[3]["content"].clone();
        assert!(
            told.as_str().is_some_and(|told| told.contains("not kept")),
            "{told}"
        );
        second.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_declared_anew_while_a_turn_is_paused_cannot_go_on_with_it() -> Outcome {
    let tools = tools().await;
    let model =
        ScriptedModel::start([calls(&[("c1", "delete_user", json!({"user_id": 7}))])]).await;
    let mut rig = Rig::with(
        assistant_book(&model, &Declared::with_tools(&tools)),
        policies(),
    )
    .await;
    let first = rig.runner().await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Delete 7").await;
    let holds = paused(&rig, request, 1).await;
    first.stop().await;
    let agents = vec![
        router("assistant", &[(".", "other")], &["other"]),
        agent("other", AgentKind::Worker),
    ];
    rig.book = Arc::new(crate::rig::book(agents));
    let second = rig.runner().await;
    decide(&rig, &holds[0], DecisionKind::Approve, json!({})).await;
    let ended = rig.ended(request).await;
    assert_eq!(
        ended.request.ended().map(|ended| ended.outcome),
        Some(RequestOutcome::Failed)
    );
    assert_eq!(error(&ended)["code"], "step_mismatch");
    assert_eq!(tools.called(), []);
    second.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
