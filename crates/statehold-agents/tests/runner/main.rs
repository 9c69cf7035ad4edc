//! Turns of hosted agents: routed, waiting, paused, and resumed after a crash.

mod approvals;
mod commits;
mod crashes;
mod disk;
mod echoes;
mod llm;
mod logged;
mod memory;
mod phase_tools;
mod phases;
mod questions;
mod redacted;
mod reload;
mod resumed;
mod rig;
mod routed;
mod scopes;
mod staged;
mod unanswered;
mod waits;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rig::{Outcome, PATIENCE, Rig, agent, error, name, router};
use statehold_agents::runner::{CommitPhase, SimulatedCrash, StepKind};
use statehold_agents::spec::AgentKind;
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::HoldId;
use statehold_core::request::{LiveStatus, RequestOutcome};
use statehold_engine::api::hold::{DecisionInput, decide_shown};
use statehold_engine::{HoldSpec, testing};

async fn math_and_weather() -> Rig {
    let rules = [
        ("[0-9]", "math"),
        ("(?i)weather", "weather"),
        ("(?i)lost", "nobody"),
    ];
    Rig::new(vec![
        router("coordinator", &rules, &["math", "weather"]),
        agent("math", AgentKind::Worker),
        agent("weather", AgentKind::Worker),
    ])
    .await
}

#[tokio::test]
async fn a_turn_goes_to_the_agent_that_the_rules_name_and_its_answer_is_passed_on() -> Outcome {
    let rig = math_and_weather().await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let request = rig.ask(session, "coordinator", "What's 2+2").await;
    let claimed = rig.claim("math").await;
    rig.answer(&claimed, "2+2 is 4").await;
    let ended = rig.ended(request).await;
    assert_eq!(
        ended.request.ended().map(|ended| ended.outcome),
        Some(RequestOutcome::Completed)
    );
    assert_eq!(rig.transcript(session).await, ["What's 2+2", "2+2 is 4"]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn follow_on_turns_reach_the_same_tasks() -> Outcome {
    let rig = math_and_weather().await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    for (said, agent, answer) in [
        ("What's 2+2", "math", "2+2 is 4"),
        ("Weather in Rahway", "weather", "Sunny, 72"),
        ("What's the square root of 121?", "math", "11"),
    ] {
        let request = rig.ask(session, "coordinator", said).await;
        let claimed = rig.claim(agent).await;
        rig.answer(&claimed, answer).await;
        rig.ended(request).await;
    }
    let tree =
        statehold_engine::api::tree::read(&rig.engine, &rig.local, session, None, 100).await?;
    let counts: Vec<(String, usize)> = tree
        .tasks
        .iter()
        .map(|task| (task.agent.to_string(), task.requests.len()))
        .collect();
    assert_eq!(counts, [("coordinator".to_owned(), 3)]);
    // Each agent has one task, with exactly its input and its answer.
    let math = [
        "What's 2+2",
        "2+2 is 4",
        "What's the square root of 121?",
        "11",
    ];
    let weather = ["Weather in Rahway", "Sunny, 72"];
    for (agent, expected) in [("math", math.as_slice()), ("weather", weather.as_slice())] {
        let tasks = testing::tasks_of(&rig.engine, session, &name(agent)).await?;
        let [task] = tasks.as_slice() else {
            panic!("{agent} has one task, not {}", tasks.len());
        };
        assert_eq!(rig.history(session, *task).await, expected, "{agent}");
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_turn_that_needs_no_history_reads_no_items() -> Outcome {
    let rig = math_and_weather().await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    for _ in 0..20 {
        let request = rig.ask(session, "coordinator", "What's 2+2").await;
        let claimed = rig.claim("math").await;
        rig.answer(&claimed, "2+2 is 4").await;
        rig.ended(request).await;
    }
    assert_eq!(rig.engine.items_read(), 0);
    // The counter works: reading a history increases it.
    let math = testing::tasks_of(&rig.engine, session, &name("math")).await?;
    assert_eq!(rig.history(session, math[0]).await.len(), 40);
    assert_eq!(rig.engine.items_read(), 40);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_a_clear_error_and_the_session_goes_on() -> Outcome {
    let rig = math_and_weather().await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let lost = rig.ask(session, "coordinator", "lost").await;
    let ended = rig.ended(lost).await;
    assert_eq!(error(&ended)["code"], "agent_unknown");
    let none = rig.ask(session, "coordinator", "hm").await;
    let ended = rig.ended(none).await;
    assert_eq!(error(&ended)["code"], "no_route");
    let request = rig.ask(session, "coordinator", "1+1").await;
    let claimed = rig.claim("math").await;
    rig.answer(&claimed, "2").await;
    rig.ended(request).await;
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_can_never_be_done_ends_the_turn_instead_of_being_tried_for_ever() -> Outcome {
    // The router calls itself until the tree reaches its maximum depth.
    let rig = Rig::new(vec![router("loop", &[(".", "loop")], &["loop"])]).await;
    let runner = rig.runner().await;
    let session = rig.session("loop").await;
    let request = rig.ask(session, "loop", "go").await;
    let ended = rig.ended(request).await;
    assert_eq!(error(&ended)["code"], "limit_reached");
    // The input is erased.
    let nothing = statehold_engine::bodies::ItemBody::default();
    let request = rig.ask_body(session, "loop", &nothing, &[]).await;
    let ended = rig.ended(request).await;
    assert_eq!(error(&ended)["code"], "input_erased");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// A question to a person.
fn question() -> HoldSpec {
    HoldSpec {
        kind: HoldKind::Question,
        title: "Which Springfield?".to_owned(),
        message: None,
        action: None,
        response_schema: None,
        url: None,
        reasons: None,
        group_id: None,
        allowed: [DecisionKind::Respond].into(),
        quorum: None,
        expires_in_seconds: None,
        on_expiry: None,
        decide_by: None,
    }
}

/// A person answers a question.
async fn respond(rig: &Rig, hold: HoldId, text: &str) -> Outcome {
    let detail = rig.engine.hold(&rig.local, hold).await?;
    let answer = DecisionInput {
        decision: DecisionKind::Respond,
        digest: None,
        args: None,
        content: Some(serde_json::value::to_raw_value(text).expect("text")),
        comment: None,
        reason: None,
    };
    decide_shown(&rig.engine, &rig.call(), None, &detail, answer).await?;
    Ok(())
}

/// The weather agent opens a hold; it is shown at the top, answered, and the answer comes back up.
async fn pause_and_resume(rig: &Rig, top: &str) -> Outcome {
    let session = rig.session(top).await;
    let request = rig.ask(session, top, "weather?").await;
    let claimed = rig.claim("weather").await;
    rig.leased(&claimed).open_hold(question()).await?;
    // The coordinator's lease is released while it waits.
    let paused = rig
        .until(request, |detail| {
            detail
                .request
                .live()
                .is_some_and(|live| live.lease.is_none())
        })
        .await;
    assert_eq!(
        paused.request.live().map(|live| live.status),
        Some(LiveStatus::Waiting)
    );
    let hold = paused.pending.holds[0].hold.id;
    respond(rig, hold, "Illinois").await?;
    rig.answer(&claimed, "Rain, 50").await;
    let ended = rig.ended(request).await;
    assert_eq!(
        ended.request.ended().map(|ended| ended.outcome),
        Some(RequestOutcome::Completed)
    );
    assert_eq!(rig.transcript(session).await, ["weather?", "Rain, 50"]);
    Ok(())
}

#[tokio::test]
async fn a_pause_below_gives_the_lease_back_and_the_decision_wakes_the_turn() -> Outcome {
    let rig = math_and_weather().await;
    let runner = rig.runner().await;
    pause_and_resume(&rig, "coordinator").await?;
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

async fn three_coordinators() -> Rig {
    Rig::new(vec![
        router("top", &[(".", "middle")], &["middle"]),
        router("middle", &[(".", "bottom")], &["bottom"]),
        router("bottom", &[(".", "weather")], &["weather"]),
        agent("weather", AgentKind::Worker),
    ])
    .await
}

#[tokio::test]
async fn coordinators_of_coordinators_wait_and_go_on_together() -> Outcome {
    let rig = three_coordinators().await;
    let runner = rig.runner().await;
    pause_and_resume(&rig, "top").await?;
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_the_last_agent_writes_is_seen_at_the_top_while_it_writes() -> Outcome {
    let rig = three_coordinators().await;
    let runner = rig.runner().await;
    let session = rig.session("top").await;
    let request = rig.ask(session, "top", "weather?").await;
    let mut draft = rig.engine.follow_draft(request);
    let claimed = rig.claim("weather").await;
    let _draft = rig.engine.open_draft(rig.leased(&claimed).ids.request);
    rig.engine
        .write_draft(rig.leased(&claimed).ids.request, "Sunny");
    let first = tokio::time::timeout(PATIENCE, draft.next()).await;
    assert_eq!(first.expect("it takes too long").as_deref(), Some("Sunny"));
    rig.engine
        .write_draft(rig.leased(&claimed).ids.request, ", 72");
    rig.answer(&claimed, "Sunny, 72").await;
    rig.ended(request).await;
    let mut rest = String::new();
    while let Some(piece) = draft.next().await {
        rest.push_str(&piece);
    }
    assert_eq!(rest, ", 72");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// Stops the runner before and after each step and starts another: the turn resumes, and its agent is
/// called once.
#[tokio::test]
async fn a_runner_that_is_lost_at_any_step_is_followed_by_one_that_goes_on() -> Outcome {
    for kind in [StepKind::Route, StepKind::Child, StepKind::Answer] {
        for moment in [CommitPhase::Before, CommitPhase::After] {
            let rig = math_and_weather().await;
            let reached = Arc::new(tokio::sync::Notify::new());
            let told = Arc::clone(&reached);
            let first = rig
                .watched(Arc::new(move |at, when| {
                    if (at, when) == (kind, moment) {
                        told.notify_one();
                        std::panic::resume_unwind(Box::new(SimulatedCrash));
                    }
                }))
                .await;
            let session = rig.session("coordinator").await;
            let request = rig.ask(session, "coordinator", "What's 2+2").await;
            let asked = Arc::new(AtomicUsize::new(0));
            let math = async {
                loop {
                    let claimed = rig.claim("math").await;
                    asked.fetch_add(1, Ordering::Relaxed);
                    rig.answer(&claimed, "2+2 is 4").await;
                }
            };
            let story = async {
                reached.notified().await;
                first.stop().await;
                let second = rig.runner().await;
                let ended = rig.ended(request).await;
                second.stop().await;
                ended
            };
            let ended = tokio::select! {
                ended = tokio::time::timeout(PATIENCE, story) => ended.expect("it takes too long"),
                () = math => unreachable!("the agent works for ever"),
            };
            let outcome = ended.request.ended().map(|ended| ended.outcome);
            assert_eq!(
                outcome,
                Some(RequestOutcome::Completed),
                "{kind:?} {moment:?}"
            );
            assert_eq!(asked.load(Ordering::Relaxed), 1, "{kind:?} {moment:?}");
            assert_eq!(rig.transcript(session).await, ["What's 2+2", "2+2 is 4"]);
            rig.engine.shut_down().await;
        }
    }
    Ok(())
}
