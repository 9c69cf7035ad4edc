//! A router with a model that chooses the agent and a model that writes the final answer.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, SimulatedCrash, StepKind};
use statehold_agents::spec::{AgentBook, AgentKind, AgentSpec, FinalAnswer, RouterSpec, Routing};
use statehold_engine::policy::Policies;
use statehold_engine::testing;
use statehold_fakes::chat::{ModelReply, ScriptedModel, text};

use crate::llm::{completed, model_spec};
use crate::rig::{Outcome, PATIENCE, Rig, agent, book, error, name};

fn described(text: &str, description: &str) -> Arc<AgentSpec> {
    let mut spec = Arc::into_inner(agent(text, AgentKind::Worker)).expect("new");
    spec.description = Some(description.to_owned());
    Arc::new(spec)
}

fn declared(model: &ScriptedModel, answer: FinalAnswer) -> AgentBook {
    let spec = RouterSpec {
        agents: vec![name("math"), name("weather")],
        routing: Routing::Model {
            model: name("main"),
            prompt: None,
        },
        answer,
    };
    AgentBook {
        models: [(name("main"), model_spec("main", &model.url()))].into(),
        ..book(vec![
            agent("coordinator", AgentKind::Router(Arc::new(spec))),
            described("math", "calculates"),
            described("weather", "knows the weather"),
        ])
    }
}

fn by_model() -> FinalAnswer {
    FinalAnswer::Model {
        model: name("main"),
        prompt: None,
    }
}

pub(crate) fn to(agent: &str, instructions: Option<&str>) -> ModelReply {
    text(&json!({"agent_name": agent, "additional_instructions": instructions}).to_string())
}

#[tokio::test]
async fn a_model_chooses_and_a_model_answers_from_what_the_agent_said() -> Outcome {
    let model = ScriptedModel::start([
        to("math", Some("Be exact.")),
        text("Two and two make four."),
        to("weather", None),
        text("It is sunny there."),
    ])
    .await;
    let rig = Rig::with(declared(&model, by_model()), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let request = rig.ask(session, "coordinator", "What's 2+2").await;
    let claimed = rig.claim("math").await;
    rig.answer(&claimed, "4").await;
    completed(&rig.ended(request).await);
    let asked = model.asked();
    assert_eq!(asked[0]["stream"], false);
    let format = &asked[0]["response_format"];
    assert_eq!(format["type"], "json_schema");
    let schema = &format["json_schema"]["schema"]["properties"];
    assert_eq!(schema["agent_name"]["enum"], json!(["math", "weather"]));
    assert_eq!(
        schema["additional_instructions"]["type"],
        json!(["string", "null"])
    );
    let prompt = asked[0]["messages"][0]["content"].as_str().expect("text");
    assert!(
        prompt.contains("- math: calculates") && prompt.contains("- weather: knows the weather")
    );
    assert_eq!(asked[1]["stream"], true);
    assert_eq!(
        asked[1]["messages"][1],
        json!({"role": "user", "content": "## CONTEXT:\n4\n---\n## USER_REQUEST:\nWhat's 2+2"})
    );
    // The next turn knows the router's own messages, and nothing else.
    let request = rig.ask(session, "coordinator", "And the weather?").await;
    let claimed = rig.claim("weather").await;
    rig.answer(&claimed, "sunny").await;
    completed(&rig.ended(request).await);
    let told: Vec<Value> = model.messages(2)[1..].to_vec();
    assert_eq!(
        told,
        [
            json!({"role": "user", "content": "What's 2+2"}),
            json!({"role": "assistant", "content": "Two and two make four."}),
            json!({"role": "user", "content": "And the weather?"}),
        ]
    );
    assert_eq!(
        rig.transcript(session).await,
        [
            "What's 2+2",
            "Two and two make four.",
            "And the weather?",
            "It is sunny there."
        ]
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_decision_that_cannot_be_read_is_asked_for_once_more() -> Outcome {
    let model = ScriptedModel::start([
        text("I think math."),
        to("math", None),
        text("I think math."),
        // All messages that the model got, as one text.
        text(r#""You are the coordinator of several agents.""#),
        to("plumber", None),
    ])
    .await;
    let rig = Rig::with(declared(&model, FinalAnswer::Pass), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let request = rig.ask(session, "coordinator", "2+2").await;
    let claimed = rig.claim("math").await;
    rig.answer(&claimed, "4").await;
    completed(&rig.ended(request).await);
    assert_eq!(model.messages(1).len(), model.messages(0).len() + 2);
    let request = rig.ask(session, "coordinator", "2+3").await;
    let failed = error(&rig.ended(request).await);
    assert_eq!(failed["code"], "route_malformed", "{failed}");
    assert!(!failed.to_string().contains("You are"), "{failed}");
    let request = rig.ask(session, "coordinator", "A leak").await;
    let failed = error(&rig.ended(request).await);
    assert_eq!(failed["code"], "agent_unknown", "{failed}");
    assert!(
        failed["message"]
            .as_str()
            .is_some_and(|said| said.contains("math, weather"))
    );
    assert_eq!(model.asked().len(), 5);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn last_words_that_fail_fail_the_turn_and_what_the_agent_said_stays() -> Outcome {
    let model = ScriptedModel::start([to("math", None), ModelReply::Status(400)]).await;
    let rig = Rig::with(declared(&model, by_model()), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let request = rig.ask(session, "coordinator", "2+2").await;
    let claimed = rig.claim("math").await;
    rig.answer(&claimed, "4").await;
    let failed = error(&rig.ended(request).await);
    assert_eq!(failed["code"], "agent_error", "{failed}");
    assert!(
        failed["message"]
            .as_str()
            .is_some_and(|said| said.contains("kept in its task"))
    );
    let task = claimed.detail.task.id;
    let items = testing::task_items(&rig.engine, session, task, None, 10).await?;
    let kept: String = items
        .items
        .iter()
        .map(|item| String::from_utf8_lossy(item.body.as_deref().unwrap_or_default()).into_owned())
        .collect();
    assert!(kept.contains(r#""content":"4""#), "{kept}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_a_model_decided_and_wrote_is_not_asked_for_again() -> Outcome {
    for (kind, nth_model_call) in [
        (StepKind::Route, 1),
        (StepKind::Child, 1),
        (StepKind::Model, 2),
    ] {
        let model = ScriptedModel::start([to("math", None), text("Four.")]).await;
        let rig = Rig::with(declared(&model, by_model()), Policies::default()).await;
        let reached = Arc::new(tokio::sync::Notify::new());
        let told = Arc::clone(&reached);
        let first = rig
            .watched(Arc::new(move |at, when| {
                if (at, when) == (kind, CommitPhase::After) {
                    told.notify_one();
                    std::panic::resume_unwind(Box::new(SimulatedCrash));
                }
            }))
            .await;
        let session = rig.session("coordinator").await;
        let request = rig.ask(session, "coordinator", "2+2").await;
        let story = async {
            if kind != StepKind::Route {
                let claimed = rig.claim("math").await;
                rig.answer(&claimed, "4").await;
            }
            reached.notified().await;
            assert_eq!(model.asked().len(), nth_model_call, "{kind:?}");
            first.stop().await;
            let second = rig.runner().await;
            if kind == StepKind::Route {
                let claimed = rig.claim("math").await;
                rig.answer(&claimed, "4").await;
            }
            completed(&rig.ended(request).await);
            second.stop().await;
        };
        tokio::time::timeout(PATIENCE, story)
            .await
            .expect("it takes too long");
        assert_eq!(model.asked().len(), 2, "{kind:?}");
        assert_eq!(rig.transcript(session).await, ["2+2", "Four."]);
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_model_chooses_by_everything_finished_and_a_turn_that_waits_goes_on_as_it_began()
-> Outcome {
    let model = ScriptedModel::start([
        to("math", None),
        text("A1"),
        to("math", None),
        to("weather", None),
        text("A3"),
        text("A2"),
        to("weather", None),
        text("A4"),
    ])
    .await;
    let rig = Rig::with(declared(&model, by_model()), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let first = rig.ask(session, "coordinator", "Q1").await;
    rig.answer(&rig.claim("math").await, "1").await;
    completed(&rig.ended(first).await);
    let waiting = rig.ask(session, "coordinator", "Q2").await;
    let held = rig.claim("math").await;
    let third = rig.ask(session, "coordinator", "Q3").await;
    rig.answer(&rig.claim("weather").await, "3").await;
    completed(&rig.ended(third).await);
    // The server comes back, and the steps of the turn that waits are replayed.
    runner.stop().await;
    let runner = rig.runner().await;
    rig.answer(&held, "2").await;
    completed(&rig.ended(waiting).await);
    let last = rig.ask(session, "coordinator", "Q4").await;
    rig.answer(&rig.claim("weather").await, "4").await;
    completed(&rig.ended(last).await);
    let told = |call: usize| -> Vec<String> {
        let messages = model.messages(call);
        let texts = messages[1..].iter();
        texts
            .map(|message| message["content"].as_str().expect("text").to_owned())
            .collect()
    };
    assert_eq!(told(3), ["Q1", "A1", "Q3"], "the open turn is not finished");
    assert_eq!(told(6), ["Q1", "A1", "Q3", "A3", "Q2", "A2", "Q4"]);
    assert_eq!(model.asked().len(), 8, "no choice is made twice");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
