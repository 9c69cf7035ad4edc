//! The stages of a turn: what a coordinator and the agents below it show while they work, and what
//! is kept of it.

use std::sync::Arc;

use serde_json::{Value, json, value::to_raw_value};
use statehold_agents::spec::{AgentKind, AgentSpec, PhaseInput, PhaseSpec, StageDetail};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::item::ItemKind;
use statehold_engine::DraftChange;
use statehold_engine::api::turn::{AgentReply, ReplyParts};
use statehold_engine::bodies::ItemBody;
use statehold_engine::stage::{STAGES_NOTE, StageChange};

use crate::phases::{phase, pipeline};
use crate::rig::{Outcome, PATIENCE, Rig, agent, router, said};

fn detailed(spec: Arc<AgentSpec>, stages: StageDetail) -> Arc<AgentSpec> {
    let mut spec = Arc::into_inner(spec).expect("one owner");
    spec.stages = stages;
    Arc::new(spec)
}

async fn coordinators(top: StageDetail, bottom: StageDetail) -> Rig {
    Rig::new(vec![
        detailed(router("top", &[(".", "bottom")], &["bottom"]), top),
        detailed(router("bottom", &[(".", "weather")], &["weather"]), bottom),
        agent("weather", AgentKind::Worker),
    ])
    .await
}

/// Asks as a client that shows stages.
async fn ask(rig: &Rig, text: &str) -> RequestId {
    let session = rig.session("top").await;
    ask_in(rig, session, "top", text).await
}

async fn ask_in(rig: &Rig, session: SessionId, agent: &str, text: &str) -> RequestId {
    let body = ItemBody {
        content: Some(to_raw_value(text).expect("text")),
        data: Some(to_raw_value(&json!({"dial": {}})).expect("JSON")),
        ..ItemBody::default()
    };
    rig.ask_body(session, agent, &body, &[]).await
}

/// The stages in the end of a request, in short.
async fn kept(rig: &Rig, request: RequestId) -> Vec<String> {
    let ended = rig.ended(request).await;
    let parts = ReplyParts {
        stages: true,
        ..ReplyParts::default()
    };
    let reply = AgentReply::of(request, ended.finished.as_ref(), parts);
    let stages = reply.stages.iter().map(|stage| {
        let stage: Value = serde_json::to_value(stage).expect("JSON");
        let text = |name: &str| stage[name].as_str().unwrap_or_default().to_owned();
        let parent = stage["parent"].as_u64().map(|parent| format!("{parent}/"));
        let parent = parent.unwrap_or_default();
        let (name, content, status) = (text("name"), text("content"), text("status"));
        format!("{parent}{name} [{content}] {status}")
    });
    stages.collect()
}

#[tokio::test]
async fn the_stages_of_coordinators_nest_and_are_kept_with_the_answer() -> Outcome {
    let rig = coordinators(StageDetail::Full, StageDetail::Names).await;
    let runner = rig.runner().await;
    let request = ask(&rig, "weather?").await;
    rig.answer(&rig.claim("weather").await, "Sunny").await;
    assert_eq!(
        kept(&rig, request).await,
        [
            r#"Coordination Request [{"agent_name":"bottom"}] completed"#,
            "Call bottom Agent [] completed",
            "1/Coordination Request [] completed",
            "1/Call weather Agent [] completed",
        ]
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_shows_no_stages_hides_those_below_it() -> Outcome {
    let rig = coordinators(StageDetail::Names, StageDetail::None).await;
    let runner = rig.runner().await;
    let request = ask(&rig, "weather?").await;
    rig.answer(&rig.claim("weather").await, "Sunny").await;
    let shown = kept(&rig, request).await;
    assert_eq!(shown.len(), 2, "{shown:?}");
    let silent = coordinators(StageDetail::None, StageDetail::Full).await;
    let other = silent.runner().await;
    let request = ask(&silent, "weather?").await;
    silent.answer(&silent.claim("weather").await, "Sunny").await;
    assert!(kept(&silent, request).await.is_empty());
    for (rig, runner) in [(rig, runner), (silent, other)] {
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn stages_are_seen_while_the_turn_runs_and_stored_only_for_clients_that_show_them() -> Outcome
{
    let rig = coordinators(StageDetail::Names, StageDetail::Names).await;
    let runner = rig.runner().await;
    let session = rig.session("top").await;
    let request = rig.ask(session, "top", "weather?").await;
    let mut draft = rig.engine.follow_draft(request);
    let claimed = rig.claim("weather").await;
    let mut opened = Vec::new();
    while opened.len() < 4 {
        let change = tokio::time::timeout(PATIENCE, draft.next_change()).await;
        match change.expect("it takes too long").expect("a change") {
            DraftChange::Stage(StageChange::Opened { parent, name }) => opened.push((parent, name)),
            DraftChange::Stage(_) | DraftChange::Text(_) => {}
        }
    }
    let (parent, name) = opened.last().expect("four");
    assert_eq!((*parent, name.as_str()), (Some(1), "Call weather Agent"));
    rig.answer(&claimed, "Sunny").await;
    assert!(kept(&rig, request).await.is_empty());
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// A runner that takes over writes the same stages again; nothing is there twice.
#[tokio::test]
async fn a_turn_that_goes_on_after_a_lost_runner_keeps_each_stage_once() -> Outcome {
    let rig = coordinators(StageDetail::Names, StageDetail::Names).await;
    let first = rig.runner().await;
    let request = ask(&rig, "weather?").await;
    let claimed = rig.claim("weather").await;
    first.stop().await;
    let second = rig.runner().await;
    rig.answer(&claimed, "Sunny").await;
    assert_eq!(
        kept(&rig, request).await,
        [
            "Coordination Request [] completed",
            "Call bottom Agent [] completed",
            "1/Coordination Request [] completed",
            "1/Call weather Agent [] completed",
        ]
    );
    second.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// The answers of the phases that had ended come from their records.
#[tokio::test]
async fn a_pipeline_that_goes_on_after_a_lost_runner_has_the_stages_of_all_phases() -> Outcome {
    let answer_alone = PhaseSpec {
        input: PhaseInput::Answer,
        ..phase("check")
    };
    let line = AgentKind::Pipeline(Arc::new(pipeline(vec![phase("bottom"), answer_alone])));
    let check = router("check", &[(".", "weather")], &["weather"]);
    let bottom = router("bottom", &[(".", "weather")], &["weather"]);
    let rig = Rig::new(vec![
        detailed(agent("line", line), StageDetail::Full),
        detailed(bottom, StageDetail::Full),
        detailed(check, StageDetail::Names),
        agent("weather", AgentKind::Worker),
    ])
    .await;
    let first = rig.runner().await;
    let session = rig.session("line").await;
    let request = ask_in(&rig, session, "line", "weather?").await;
    rig.answer(&rig.claim("weather").await, "Sunny").await;
    let claimed = rig.claim("weather").await;
    first.stop().await;
    let second = rig.runner().await;
    rig.answer(&claimed, "Really").await;
    assert_eq!(
        kept(&rig, request).await,
        [
            "Call bottom Agent [Sunny] completed",
            r#"0/Coordination Request [{"agent_name":"weather"}] completed"#,
            "0/Call weather Agent [] completed",
            "Call check Agent [] completed",
            "3/Coordination Request [] completed",
            "3/Call weather Agent [] completed",
        ]
    );
    second.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn the_stages_that_a_worker_records_lie_below_its_call_as_its_policy_says() -> Outcome {
    for (detail, expected) in [
        (StageDetail::None, None),
        (StageDetail::Names, Some("1/lookup [] completed")),
        (StageDetail::Full, Some("1/lookup [at 5] completed")),
    ] {
        let worker = detailed(agent("weather", AgentKind::Worker), detail);
        let rig = Rig::new(vec![
            router("top", &[(".", "weather")], &["weather"]),
            worker,
        ])
        .await;
        let runner = rig.runner().await;
        let request = ask(&rig, "weather?").await;
        let leased = rig.leased(&rig.claim("weather").await);
        let mut batch = leased.batch().await?;
        let stages = json!([{"name": "lookup", "content": "at 5", "status": "completed"}]);
        let note = ItemBody {
            name: Some(STAGES_NOTE.to_owned()),
            data: Some(to_raw_value(&stages).expect("JSON")),
            ..ItemBody::default()
        };
        batch.push(ItemKind::Note, None, &note);
        let output = said("Sunny", batch.payloads());
        leased.complete(output, batch).await?;
        let shown = kept(&rig, request).await;
        assert_eq!(shown.get(2).map(String::as_str), expected, "{shown:?}");
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}
