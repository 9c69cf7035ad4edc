//! Pipelines: phases in order, answers handed on, errors by policy, loop-backs, pauses, and crashes at
//! every step.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, StepKind};
use statehold_agents::spec::{
    AgentKind, AgentSpec, LoopLimitPolicy, LoopRule, PhaseErrorPolicy, PhaseInput, PhaseSpec,
    PipelineSpec, SeenAnswers,
};
use statehold_core::ids::SessionId;
use statehold_core::item::ItemKind;
use statehold_core::record::CommandName;
use statehold_core::request::{LiveStatus, RequestOutcome};
use statehold_engine::bodies::{ItemBody, parse};
use statehold_engine::testing;

use crate::crashes::lost_at;
use crate::rig::{Outcome, PATIENCE, Rig, agent, error, name};

/// A phase whose agent has its name.
pub(crate) fn phase(text: &str) -> PhaseSpec {
    PhaseSpec {
        name: name(text),
        agent: name(text),
        input: PhaseInput::Request,
        sees: SeenAnswers::All,
        instructions: None,
        retries: 0,
        on_error: PhaseErrorPolicy::Fail,
        loop_back: Vec::new(),
    }
}

pub(crate) fn pipeline(phases: Vec<PhaseSpec>) -> PipelineSpec {
    PipelineSpec {
        phases,
        loops_max: 2,
        on_loop_limit: LoopLimitPolicy::Continue,
        answer_from: None,
        show_phases: false,
    }
}

/// The pipeline `line`, and a worker for each of its phases.
fn book_of(spec: PipelineSpec) -> Vec<Arc<AgentSpec>> {
    let mut agents: Vec<Arc<AgentSpec>> = Vec::new();
    for phase in &spec.phases {
        if agents.iter().all(|known| known.name != phase.agent) {
            agents.push(agent(phase.agent.as_str(), AgentKind::Worker));
        }
    }
    agents.push(agent("line", AgentKind::Pipeline(Arc::new(spec))));
    agents
}

fn back_to(pattern: &str, to: &str) -> LoopRule {
    LoopRule {
        pattern: regex::Regex::new(pattern).expect("a pattern"),
        to: name(to),
    }
}

/// The next message of a worker, and the claim.
async fn asked(rig: &Rig, agent: &str) -> (statehold_engine::ClaimedRequest, String) {
    let claimed = rig.claim(agent).await;
    let task = claimed.detail.task.id;
    let session = claimed.detail.session.id;
    let said = rig.history(session, task).await;
    (claimed, said.last().expect("an input").clone())
}

async fn fail(rig: &Rig, claimed: &statehold_engine::ClaimedRequest, code: &str) {
    let error = json!({"code": code, "message": "it broke"});
    let error = serde_json::value::to_raw_value(&error).expect("JSON");
    rig.leased(claimed).fail(&error).await.expect("a failure");
}

/// The phases of the trace in order: `parse began`, `parse completed` and so on.
async fn phases_of(rig: &Rig, session: SessionId) -> Vec<String> {
    let tasks = testing::tasks_of(&rig.engine, session, &name("line")).await;
    let task = tasks.expect("tasks")[0];
    let page = testing::task_items(&rig.engine, session, task, None, 200).await;
    let mut told = Vec::new();
    for item in page.expect("items").items.iter().rev() {
        let body: ItemBody = parse(item.body.as_deref());
        if body.name.as_deref() != Some("phase") {
            continue;
        }
        let data: Value = serde_json::from_str(body.data.expect("data").get()).expect("JSON");
        let data = match item.placed.item.kind {
            ItemKind::Step => data["result"].clone(),
            _ => data,
        };
        let words = |value: &Value, status: &str| {
            let phase = value["phase"].as_str().unwrap_or_default();
            let mut words = vec![phase.to_owned(), status.to_owned()];
            for name in ["cycle", "attempt"] {
                if value[name] != 1 {
                    words.push(format!("{name} {}", value[name]));
                }
            }
            words.join(" ")
        };
        if let Some(status) = data["ended"]["status"].as_str() {
            told.push(words(&data["ended"], status));
        }
        if data["began"].is_object() {
            told.push(words(&data["began"], "began"));
        }
    }
    told
}

#[tokio::test]
async fn phases_run_in_order_and_each_sees_the_answers_before_it() -> Outcome {
    let mut write = phase("write");
    write.sees = SeenAnswers::Named(vec![name("parse")]);
    let rig = Rig::new(book_of(pipeline(vec![
        phase("parse"),
        phase("check"),
        write,
    ])))
    .await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Sales?").await;
    let (claimed, said) = asked(&rig, "parse").await;
    assert_eq!(said, "Sales?");
    rig.answer(&claimed, "rows").await;
    let (claimed, said) = asked(&rig, "check").await;
    assert_eq!(
        said,
        "Sales?\n\n[phase answers]\n{\"parse\":\"rows\"}\n[/phase answers]"
    );
    rig.answer(&claimed, "fine").await;
    let (claimed, said) = asked(&rig, "write").await;
    assert_eq!(
        said,
        "Sales?\n\n[phase answers]\n{\"parse\":\"rows\"}\n[/phase answers]"
    );
    rig.answer(&claimed, "Up by 3 %.").await;
    rig.ended(request).await;
    // Clients see the message and the answer; the phases are in the trace.
    assert_eq!(rig.transcript(session).await, ["Sales?", "Up by 3 %."]);
    let expected = [
        "parse began",
        "parse completed",
        "check began",
        "check completed",
        "write began",
        "write completed",
    ];
    assert_eq!(phases_of(&rig, session).await, expected);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_phase_costs_one_step_and_one_request() -> Outcome {
    use CommandName::{AppendItems, ClaimRequest, CompleteRequest, StartRequest};
    let rig = Rig::new(book_of(pipeline(vec![phase("parse"), phase("write")]))).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Go").await;
    for agent in ["parse", "write"] {
        let claimed = rig.claim(agent).await;
        rig.answer(&claimed, "done").await;
    }
    rig.ended(request).await;
    let commands = rig.commands_after(session, 1).await;
    let phase = [AppendItems, StartRequest, ClaimRequest, CompleteRequest];
    let mut expected = vec![StartRequest, ClaimRequest];
    expected.extend([phase, phase].concat());
    expected.push(CompleteRequest);
    assert_eq!(commands, expected);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_phase_may_take_the_answer_before_it_as_its_message() -> Outcome {
    let mut second = phase("second");
    second.input = PhaseInput::Answer;
    second.sees = SeenAnswers::None;
    second.instructions = Some("Shorter.".to_owned());
    let mut spec = pipeline(vec![phase("first"), second]);
    spec.answer_from = Some(name("first"));
    let rig = Rig::new(book_of(spec)).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Go").await;
    let claimed = rig.claim("first").await;
    rig.answer(&claimed, "A long text").await;
    let (claimed, said) = asked(&rig, "second").await;
    assert_eq!(said, "A long text\n\nShorter.");
    rig.answer(&claimed, "A text").await;
    rig.ended(request).await;
    assert_eq!(rig.transcript(session).await, ["Go", "A long text"]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_failed_phase_fails_the_turn_and_a_later_turn_begins_anew() -> Outcome {
    let rig = Rig::new(book_of(pipeline(vec![phase("parse"), phase("write")]))).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Go").await;
    let claimed = rig.claim("parse").await;
    fail(&rig, &claimed, "agent_error").await;
    let failed = error(&rig.ended(request).await);
    assert_eq!(failed["code"], "agent_error");
    assert_eq!(failed["message"], "phase `parse`, parse: it broke");
    assert_eq!(
        phases_of(&rig, session).await,
        ["parse began", "parse failed"]
    );
    let request = rig.ask(session, "line", "Again").await;
    for agent in ["parse", "write"] {
        let claimed = rig.claim(agent).await;
        rig.answer(&claimed, "done").await;
    }
    let ended = rig.ended(request).await;
    let outcome = ended.request.ended().map(|ended| ended.outcome);
    assert_eq!(outcome, Some(RequestOutcome::Completed));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_phase_is_retried_and_then_skipped_and_the_turn_goes_on_without_its_answer() -> Outcome {
    let mut enrich = phase("enrich");
    enrich.retries = 1;
    enrich.on_error = PhaseErrorPolicy::Skip;
    let rig = Rig::new(book_of(pipeline(vec![
        phase("parse"),
        enrich,
        phase("write"),
    ])))
    .await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Go").await;
    let claimed = rig.claim("parse").await;
    rig.answer(&claimed, "rows").await;
    for _ in 0..2 {
        let claimed = rig.claim("enrich").await;
        fail(&rig, &claimed, "agent_timeout").await;
    }
    let (claimed, said) = asked(&rig, "write").await;
    assert!(
        said.ends_with("{\"parse\":\"rows\"}\n[/phase answers]"),
        "{said}"
    );
    rig.answer(&claimed, "Done.").await;
    rig.ended(request).await;
    assert_eq!(rig.transcript(session).await, ["Go", "Done."]);
    let expected = [
        "parse began",
        "parse completed",
        "enrich began",
        "enrich failed",
        "enrich began attempt 2",
        "enrich skipped attempt 2",
        "write began",
        "write completed",
    ];
    assert_eq!(phases_of(&rig, session).await, expected);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_pipeline_whose_phases_are_all_skipped_fails_with_the_last_error() -> Outcome {
    let mut only = phase("only");
    only.on_error = PhaseErrorPolicy::Skip;
    let rig = Rig::new(book_of(pipeline(vec![only]))).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Go").await;
    let claimed = rig.claim("only").await;
    fail(&rig, &claimed, "agent_timeout").await;
    assert_eq!(error(&rig.ended(request).await)["code"], "agent_timeout");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

fn written_and_reviewed() -> PipelineSpec {
    let mut review = phase("review");
    review.loop_back = vec![back_to("(?i)^again", "write")];
    pipeline(vec![phase("parse"), phase("write"), review])
}

#[tokio::test]
async fn a_phase_goes_back_as_its_answer_says_and_not_more_often_than_it_may() -> Outcome {
    for policy in [LoopLimitPolicy::Continue, LoopLimitPolicy::Fail] {
        let mut spec = written_and_reviewed();
        spec.on_loop_limit = policy;
        let rig = Rig::new(book_of(spec)).await;
        let runner = rig.runner().await;
        let session = rig.session("line").await;
        let request = rig.ask(session, "line", "Go").await;
        let claimed = rig.claim("parse").await;
        rig.answer(&claimed, "rows").await;
        for cycle in 1..=3 {
            let (claimed, said) = asked(&rig, "write").await;
            // The writer sees what the reviewer said about its last draft.
            let is_told = said.contains(&format!("Again: {}", cycle - 1));
            assert_eq!(is_told, cycle > 1, "{said}");
            rig.answer(&claimed, &format!("draft {cycle}")).await;
            let (claimed, said) = asked(&rig, "review").await;
            assert!(said.contains(&format!("draft {cycle}")), "{said}");
            rig.answer(&claimed, &format!("Again: {cycle}")).await;
        }
        let ended = rig.ended(request).await;
        match policy {
            LoopLimitPolicy::Continue => {
                assert_eq!(rig.transcript(session).await, ["Go", "Again: 3"]);
                let told = phases_of(&rig, session).await;
                assert_eq!(
                    told.last().map(String::as_str),
                    Some("review completed cycle 3")
                );
            }
            LoopLimitPolicy::Fail => {
                let failed = error(&ended);
                assert_eq!(failed["code"], "loop_limit", "{failed}");
            }
        }
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_pause_in_a_phase_pauses_the_pipeline_and_the_decision_resumes_it() -> Outcome {
    let rig = Rig::new(book_of(pipeline(vec![
        phase("parse"),
        phase("weather"),
        phase("write"),
    ])))
    .await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Go").await;
    let claimed = rig.claim("parse").await;
    rig.answer(&claimed, "rows").await;
    let claimed = rig.claim("weather").await;
    rig.leased(&claimed).open_hold(crate::question()).await?;
    let paused = rig
        .until(request, |detail| {
            let live = detail.request.live();
            live.is_some_and(|live| live.lease.is_none())
        })
        .await;
    let status = paused.request.live().map(|live| live.status);
    assert_eq!(status, Some(LiveStatus::Waiting));
    // The server is replaced while the pipeline waits.
    runner.stop().await;
    let runner = rig.runner().await;
    crate::respond(&rig, paused.pending.holds[0].hold.id, "Illinois").await?;
    rig.answer(&claimed, "Rain").await;
    let (claimed, said) = asked(&rig, "write").await;
    let block = "{\"parse\":\"rows\",\"weather\":\"Rain\"}";
    assert!(said.contains(block), "{said}");
    rig.answer(&claimed, "Take a coat.").await;
    rig.ended(request).await;
    assert_eq!(rig.transcript(session).await, ["Go", "Take a coat."]);
    let commands = rig.commands_after(session, 1).await;
    let started = commands
        .iter()
        .filter(|command| **command == CommandName::StartRequest);
    assert_eq!(started.count(), 4, "each phase ran once");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_turn_that_goes_on_from_a_failure_asks_only_the_phase_that_failed() -> Outcome {
    let mut enrich = phase("enrich");
    enrich.on_error = PhaseErrorPolicy::Skip;
    let spec = pipeline(vec![phase("parse"), enrich, phase("write"), phase("check")]);
    let rig = Rig::new(book_of(spec)).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Go").await;
    let claimed = rig.claim("parse").await;
    rig.answer(&claimed, "rows").await;
    for agent in ["enrich", "write"] {
        let claimed = rig.claim(agent).await;
        fail(&rig, &claimed, "agent_timeout").await;
    }
    let failed = rig.ended(request).await;
    assert_eq!(error(&failed)["code"], "agent_timeout");
    let request = rig.go_on(&failed, "Go").await;
    let (claimed, said) = asked(&rig, "write").await;
    assert!(said.contains("{\"parse\":\"rows\"}"), "{said}");
    rig.answer(&claimed, "text").await;
    let (claimed, said) = asked(&rig, "check").await;
    assert!(
        said.contains("{\"parse\":\"rows\",\"write\":\"text\"}"),
        "{said}"
    );
    rig.answer(&claimed, "Fine.").await;
    let ended = rig.ended(request).await;
    let outcome = ended.request.ended().map(|ended| ended.outcome);
    assert_eq!(outcome, Some(RequestOutcome::Completed));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// Workers that answer for ever: `parse` and `write` with their count, `enrich` fails, `review` goes back
/// once. Each counts how often it was asked.
async fn work(rig: &Rig, agent: &str, count: &AtomicUsize, seen: &Mutex<Vec<String>>) {
    loop {
        let (claimed, said) = asked(rig, agent).await;
        let nth = count.fetch_add(1, Ordering::SeqCst) + 1;
        seen.lock().expect("not poisoned").push(said);
        match agent {
            "enrich" => fail(rig, &claimed, "agent_timeout").await,
            "review" if nth == 1 => rig.answer(&claimed, "Again").await,
            agent => rig.answer(&claimed, &format!("{agent} {nth}")).await,
        }
    }
}

/// The phases of the turn below: five phases, one of them skipped after a retry, and a loop-back.
fn eventful() -> PipelineSpec {
    let mut enrich = phase("enrich");
    enrich.retries = 1;
    enrich.on_error = PhaseErrorPolicy::Skip;
    let mut review = phase("review");
    review.loop_back = vec![back_to("Again", "write")];
    pipeline(vec![phase("parse"), enrich, phase("write"), review])
}

#[tokio::test]
async fn a_pipeline_goes_on_from_every_step_and_asks_no_phase_twice() -> Outcome {
    let places = [
        (StepKind::Phase, 7),
        (StepKind::Child, 7),
        (StepKind::Answer, 1),
    ];
    for (kind, times) in places {
        for moment in [CommitPhase::Before, CommitPhase::After] {
            for nth in 1..=times {
                let place = format!("{kind:?} {moment:?} {nth}");
                let rig = Rig::new(book_of(eventful())).await;
                let (hook, reached) = lost_at(kind, moment, nth);
                let first = rig.watched(hook).await;
                let session = rig.session("line").await;
                let request = rig.ask(session, "line", "Go").await;
                let counts: [AtomicUsize; 4] = std::array::from_fn(|_| AtomicUsize::new(0));
                let seen = Mutex::new(Vec::new());
                let [parse, enrich, write, review] = &counts;
                let story = async {
                    reached.notified().await;
                    first.stop().await;
                    let second = rig.runner().await;
                    let ended = rig.ended(request).await;
                    second.stop().await;
                    ended
                };
                let ended = tokio::select! {
                    ended = tokio::time::timeout(PATIENCE, story) => ended.expect(&place),
                    () = work(&rig, "parse", parse, &seen) => unreachable!("it works for ever"),
                    () = work(&rig, "enrich", enrich, &seen) => unreachable!("it works for ever"),
                    () = work(&rig, "write", write, &seen) => unreachable!("it works for ever"),
                    () = work(&rig, "review", review, &seen) => unreachable!("it works for ever"),
                };
                let outcome = ended.request.ended().map(|ended| ended.outcome);
                assert_eq!(outcome, Some(RequestOutcome::Completed), "{place}");
                let counted = counts.map(AtomicUsize::into_inner);
                assert_eq!(counted, [1, 2, 2, 2], "{place}");
                assert_eq!(rig.transcript(session).await, ["Go", "review 2"], "{place}");
                let expected = [
                    "parse began",
                    "parse completed",
                    "enrich began",
                    "enrich failed",
                    "enrich began attempt 2",
                    "enrich skipped attempt 2",
                    "write began",
                    "write completed",
                    "review began",
                    "review completed",
                    "write began cycle 2",
                    "write completed cycle 2",
                    "review began cycle 2",
                    "review completed cycle 2",
                ];
                assert_eq!(phases_of(&rig, session).await, expected, "{place}");
                // The last phase sees the same answers, whichever process asks it.
                let seen = seen.into_inner().expect("not poisoned");
                let last = seen.last().expect("messages");
                assert!(
                    last.contains(r#"{"parse":"parse 1","review":"Again","write":"write 2"}"#),
                    "{place}: {last}"
                );
                rig.engine.shut_down().await;
            }
        }
    }
    Ok(())
}
