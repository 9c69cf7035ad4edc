//! Stages of agents behind DIAL: mirrored under numbers of our own, below the stage of the call,
//! and all closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use statehold_agents::spec::{AgentSpec, StageDetail};
use statehold_core::hold::DecisionKind;
use statehold_core::ids::RequestId;
use statehold_engine::DraftChange;
use statehold_engine::api::turn::{AgentReply, ReplyParts};
use statehold_engine::bodies::ItemBody;
use statehold_engine::stage::{StageChange, StageStatus};
use statehold_fakes::dial::{
    answer, closes, custom, error, opens, opens_below, say, stage, state, unended, whole, writes,
};
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse};
use tokio::sync::Barrier;

use crate::pause::asked;
use crate::rig::{Outcome, PATIENCE, Rig, error as error_of, router};
use crate::world::dial;

/// Asks as a client that shows stages.
async fn ask(rig: &Rig, agent: &str, text: &str) -> RequestId {
    let session = rig.session(agent).await;
    let body = ItemBody {
        content: Some(to_raw_value(text).expect("text")),
        data: Some(to_raw_value(&json!({"dial": {}})).expect("JSON")),
        ..ItemBody::default()
    };
    rig.ask_body(session, agent, &body, &[]).await
}

/// The stages in the end of a request.
async fn kept(rig: &Rig, request: RequestId) -> Vec<Value> {
    let ended = rig.ended(request).await;
    let parts = ReplyParts {
        stages: true,
        ..ReplyParts::default()
    };
    let reply = AgentReply::of(request, ended.finished.as_ref(), parts);
    let stages = reply.stages.iter();
    stages
        .map(|stage| serde_json::to_value(stage).expect("JSON"))
        .collect()
}

/// Stages in short: parent, name, text and end.
fn short(stages: &[Value]) -> Vec<String> {
    let stages = stages.iter().map(|stage| {
        let text = |name: &str| stage[name].as_str().unwrap_or_default();
        let parent = stage["parent"].as_u64().map(|parent| format!("{parent}/"));
        let parent = parent.unwrap_or_default();
        format!(
            "{parent}{} [{}] {}",
            text("name"),
            text("content"),
            text("status")
        )
    });
    stages.collect()
}

fn showing(server: &FakeService, detail: StageDetail) -> AgentSpec {
    let mut spec = dial("gpa", server);
    spec.stages = detail;
    spec
}

fn full_router() -> Arc<AgentSpec> {
    let mut front = Arc::into_inner(router("front", &[(".", "gpa")], &["gpa"])).expect("one owner");
    front.stages = StageDetail::Full;
    Arc::new(front)
}

/// The stream of an agent, and the stages of it that a client sees who asks the agent directly.
async fn mirrored(steps: Vec<BodyStep>) -> Vec<Value> {
    mirrored_answer(answer(steps)).await
}

async fn mirrored_answer(response: ScriptedResponse) -> Vec<Value> {
    let server = FakeService::start(move |_| response.clone()).await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let request = ask(&rig, "gpa", "go").await;
    let stages = kept(&rig, request).await;
    runner.stop().await;
    rig.engine.shut_down().await;
    stages
}

#[tokio::test]
async fn a_name_that_comes_later_is_not_lost() {
    let stages = mirrored(vec![
        stage(&json!({"index": 0, "name": null, "status": null})),
        stage(&json!({"index": 0, "name": "Search", "status": null})),
        stage(&json!({"index": 0, "name": " the web", "status": null})),
        closes(0, "completed"),
        say("done"),
    ])
    .await;
    assert_eq!(short(&stages), ["Search the web [] completed"]);
}

#[tokio::test]
async fn a_stage_that_failed_is_shown_as_failed() {
    let stages = mirrored(vec![opens(0, "pay"), closes(0, "failed"), say("sorry")]).await;
    assert_eq!(short(&stages), ["pay [] failed"]);
}

#[tokio::test]
async fn a_chunk_with_text_and_end_gives_both() {
    let last = json!({"index": 0, "content": "two", "name": "!", "status": "completed"});
    let stages = mirrored(vec![
        opens(0, "count"),
        writes(0, "one "),
        stage(&last),
        say("x"),
    ])
    .await;
    assert_eq!(short(&stages), ["count! [one two] completed"]);
}

#[tokio::test]
async fn an_opening_chunk_gives_its_text_and_its_files_too() {
    let file = json!({"index": 0, "type": "text/plain", "title": "t", "data": "d", "more": 1});
    let first = json!({"index": 4, "name": "all", "content": "text", "attachments": [file], "status": null});
    let later =
        json!({"index": 4, "attachments": [{"index": 1, "url": "files/b"}], "status": null});
    let stages = mirrored(vec![stage(&first), stage(&later), say("x")]).await;
    assert_eq!(short(&stages), ["all [text] completed"]);
    assert_eq!(
        stages[0]["attachments"],
        json!([{"type": "text/plain", "title": "t", "data": "d"}, {"url": "files/b"}]),
        "a file of a stage has no index"
    );
}

#[tokio::test]
async fn stages_of_an_agent_keep_their_order_and_their_parents_under_other_numbers() -> Outcome {
    let server = FakeService::start(|_| {
        answer(vec![
            opens(7, "plan"),
            opens_below(7, 3, "step"),
            opens(9, "other"),
            opens_below(3, 12, "deep"),
            opens_below(99, 13, "stray"),
            writes(12, "deeper"),
            closes(3, "completed"),
            writes(3, "too late"),
            closes(12, "failed"),
            closes(7, "completed"),
            closes(9, "completed"),
            closes(13, "completed"),
            say("done"),
        ])
    })
    .await;
    let rig = Rig::new(vec![full_router(), Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let request = ask(&rig, "front", "go").await;
    assert_eq!(
        short(&kept(&rig, request).await),
        [
            r#"Coordination Request [{"agent_name":"gpa"}] completed"#,
            "Call gpa Agent [] completed",
            "1/plan [] completed",
            "2/step [] completed",
            "1/other [] completed",
            "3/deep [deeper] failed",
            "1/stray [] completed",
        ]
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn the_stages_of_a_whole_answer_are_mirrored_in_their_order() {
    let stages = json!({"stages": [
        {"name": "Coordination", "status": "completed", "content": "Routing to GPA"},
        {"name": "child x", "status": "failed", "parent_stage_index": 0},
    ]});
    let stages = mirrored_answer(whole("Hello", &stages.to_string())).await;
    assert_eq!(
        short(&stages),
        [
            "Coordination [Routing to GPA] completed",
            "0/child x [] failed"
        ]
    );
}

#[tokio::test]
async fn open_stages_are_closed_with_the_stream_and_fail_if_it_broke() -> Outcome {
    let left = || vec![opens(0, "a"), opens_below(0, 1, "b"), writes(1, "half")];
    let stages = mirrored(left().into_iter().chain([say("done")]).collect()).await;
    assert_eq!(short(&stages), ["a [] completed", "0/b [half] completed"]);
    // A turn that failed keeps no stages. Its client has seen how they ended.
    for last in [BodyStep::Cut, error("it broke")] {
        // It goes on when its stages are followed.
        let followed = Arc::new(Barrier::new(2));
        let first = [BodyStep::Meet(Arc::clone(&followed))];
        let steps: Vec<BodyStep> = first.into_iter().chain(left()).chain([last]).collect();
        let server = FakeService::start(move |_| unended(steps.clone())).await;
        let rig = Rig::new(vec![full_router(), Arc::new(dial("gpa", &server))]).await;
        let runner = rig.runner().await;
        let session = rig.session("front").await;
        let request = rig.ask(session, "front", "go").await;
        let mut draft = rig.engine.follow_draft(request);
        followed.wait().await;
        let ended = rig.ended(request).await;
        assert!(
            error_of(&ended)["code"]
                .as_str()
                .is_some_and(|code| code.starts_with("agent_"))
        );
        let mut closed = Vec::new();
        while let Some(change) = draft.next_change().await {
            if let DraftChange::Stage(StageChange::Closed { status, .. }) = change {
                closed.push(status);
            }
        }
        let failed = closed
            .iter()
            .filter(|status| **status == StageStatus::Failed);
        // The two of the agent, and that of the call.
        assert_eq!(failed.count(), 3, "{closed:?}");
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn the_policy_of_an_agent_says_how_much_of_its_stages_is_seen() -> Outcome {
    for (detail, expected) in [
        (StageDetail::Full, vec!["tool [secret plan] completed"]),
        (StageDetail::Names, vec!["tool [] completed"]),
        (StageDetail::None, vec![]),
    ] {
        let server = FakeService::start(|_| {
            let file = json!({"index": 0, "attachments": [{"index": 0, "data": "d"}]});
            answer(vec![
                opens(0, "tool"),
                writes(0, "secret plan"),
                stage(&file),
                say("x"),
            ])
        })
        .await;
        let rig = Rig::new(vec![Arc::new(showing(&server, detail))]).await;
        let runner = rig.runner().await;
        let request = ask(&rig, "gpa", "go").await;
        let stages = kept(&rig, request).await;
        assert_eq!(short(&stages), expected);
        let has_files = stages.iter().any(|stage| stage["attachments"].is_array());
        assert_eq!(has_files, detail == StageDetail::Full);
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn stages_that_cannot_be_read_are_left_out_and_the_answer_counts() {
    let stages = mirrored(vec![
        custom(r#"{"stages":{"not":"a list"}}"#),
        custom(r#"{"stages":[7,null,{"index":"x"},{"index":-1},{"index":0,"name":"good\u202e\n!","status":7}]}"#),
        custom(r#"{"stages":[{"index":0,"name":"good\u202e\n!","status":"open"}]}"#),
        stage(&json!({"index": u64::MAX, "name": "last", "status": "completed"})),
        stage(&json!({"name": "none"})),
        say("fine"),
    ])
    .await;
    assert_eq!(short(&stages), ["good ! [] completed", "last [] completed"]);
}

#[tokio::test]
async fn more_stages_than_a_turn_may_have_are_left_out_and_all_others_are_closed() {
    let many = (0..1_200).map(|n| opens(n, "stage"));
    let texts = (0..1_200).map(|n| writes(n, &"x".repeat(1_000)));
    let stages = mirrored(many.chain(texts).chain([say("x")]).collect()).await;
    assert_eq!(stages.len(), 1_000);
    assert!(stages.iter().all(|stage| stage["status"] == "completed"));
    let bytes: usize = stages.iter().map(|stage| stage.to_string().len()).sum();
    assert!(bytes < 512 * 1024, "{bytes}");
}

/// The state of an agent that asks a person.
fn asks() -> BodyStep {
    state(
        r#"{"statehold":{"status":"paused","holds":[{"id":"q","kind":"question","title":"Which?"}]}}"#,
    )
}

/// An agent that searches, asks a person, and pays.
async fn payer() -> FakeService {
    FakeService::start(|seen| match seen.said().as_str() {
        "go" => answer(vec![
            opens(0, "search"),
            writes(0, "found two"),
            closes(0, "completed"),
            opens(1, "ask"),
            asks(),
        ]),
        _ => answer(vec![opens(0, "pay"), writes(0, "5"), say("paid")]),
    })
    .await
}

const PAID: [&str; 3] = [
    "search [found two] completed",
    "ask [] completed",
    "pay [5] completed",
];

/// The open questions of a request.
async fn answer_question(rig: &Rig, request: RequestId) {
    let holds = asked(rig, request).await;
    rig.decide(&holds[0], DecisionKind::Respond, Some("the red one"))
        .await;
}

#[tokio::test]
async fn the_stages_of_every_call_of_a_turn_are_shown_and_kept_after_a_pause() -> Outcome {
    let server = payer().await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let request = ask(&rig, "gpa", "go").await;
    // A stream that waits for the person.
    let mut draft = rig.engine.follow_draft(request);
    asked(&rig, request).await;
    answer_question(&rig, request).await;
    assert_eq!(short(&kept(&rig, request).await), PAID);
    let (mut names, mut ended) = (Vec::new(), Vec::new());
    rig.engine.forget_draft(request);
    while let Some(change) = draft.next_change().await {
        match change {
            DraftChange::Stage(StageChange::Opened { name, .. }) => names.push(name),
            DraftChange::Stage(StageChange::Closed { stage, .. }) => ended.push(stage),
            DraftChange::Stage(_) | DraftChange::Text(_) => {}
        }
    }
    assert_eq!(
        (names, ended),
        (
            vec!["search".into(), "ask".into(), "pay".into()],
            vec![0, 1, 2]
        )
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn the_stages_below_a_coordinator_are_kept_after_a_pause_and_after_a_restart() -> Outcome {
    for is_restarted in [false, true] {
        let server = payer().await;
        let rig = Rig::new(vec![full_router(), Arc::new(dial("gpa", &server))]).await;
        let mut runner = rig.runner().await;
        let request = ask(&rig, "front", "go").await;
        let waits = rig.until(request, |detail| {
            let live = detail.request.live();
            live.is_some_and(|live| live.lease.is_none() && !live.children.is_empty())
        });
        let waits = waits.await;
        let live = waits.request.live().expect("it waits");
        let child = *live.children.first().expect("a child");
        if is_restarted {
            asked(&rig, child).await;
            runner.stop().await;
            runner = rig.runner().await;
        }
        answer_question(&rig, child).await;
        let stages = short(&kept(&rig, request).await);
        let nested = PAID.map(|stage| format!("1/{stage}"));
        let own = [
            r#"Coordination Request [{"agent_name":"gpa"}] completed"#,
            "Call gpa Agent [] completed",
        ];
        assert_eq!(stages[..2], own);
        assert_eq!(stages[2..], nested);
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_child_that_waits_for_a_permit_writes_its_stages_below_its_call() -> Outcome {
    let (busy, free) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let gates = (Arc::clone(&busy), Arc::clone(&free));
    let server = FakeService::start(move |seen| {
        let mut steps = vec![opens(0, "tool"), writes(0, &seen.said()), say("done")];
        if seen.said() == "first" {
            let gates = [&gates.0, &gates.1].map(|gate| BodyStep::Meet(Arc::clone(gate)));
            steps = gates.into_iter().chain(steps).collect();
        }
        answer(steps)
    })
    .await;
    let rig = Rig::new(vec![full_router(), Arc::new(dial("gpa", &server))]).await;
    let runner = rig.limited(1).await;
    let first = ask(&rig, "gpa", "first").await;
    busy.wait().await;
    let second = ask(&rig, "front", "second").await;
    rig.until(second, |detail| {
        let live = detail.request.live();
        live.is_some_and(|live| !live.children.is_empty())
    })
    .await;
    free.wait().await;
    assert_eq!(short(&kept(&rig, first).await), ["tool [first] completed"]);
    let stages = short(&kept(&rig, second).await);
    assert_eq!(stages[2..], ["1/tool [second] completed"]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_decision_that_is_delivered_again_has_the_stages_of_both_attempts() -> Outcome {
    let attempts = AtomicUsize::new(0);
    let server = FakeService::start(move |seen| {
        if seen.said() == "go" {
            return answer(vec![asks()]);
        }
        let steps = vec![opens(0, "pay"), writes(0, "half")];
        match attempts.fetch_add(1, Ordering::SeqCst) {
            0 => unended(steps.into_iter().chain([BodyStep::Cut]).collect()),
            _ => answer(steps.into_iter().chain([say("paid")]).collect()),
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let request = ask(&rig, "gpa", "go").await;
    answer_question(&rig, request).await;
    let stages = short(&kept(&rig, request).await);
    assert_eq!(stages, ["pay [half] failed", "pay [half] completed"]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_file_of_a_stage_that_comes_in_parts_is_one_file() {
    let part = |file: &Value| stage(&json!({"index": 0, "attachments": [file], "status": null}));
    let stages = mirrored(vec![
        opens(0, "draw"),
        part(&json!({"index": 0, "title": "a", "data": "on"})),
        part(&json!({"index": 1, "title": "b", "url": "files/b"})),
        part(&json!({"index": 0, "data": "e"})),
        part(&json!({"index": "odd", "url": "files/c"})),
        closes(0, "completed"),
        say("x"),
    ])
    .await;
    assert_eq!(
        stages[0]["attachments"],
        json!([{"title": "a", "data": "one"}, {"title": "b", "url": "files/b"}, {"url": "files/c"}])
    );
}

#[tokio::test]
async fn a_name_that_grows_has_a_limit() {
    let long = "n".repeat(700);
    let piece = stage(&json!({"index": 0, "name": long, "status": null}));
    let pieces = vec![piece; 5];
    let stages = mirrored(pieces.into_iter().chain([say("x")]).collect()).await;
    let name = stages[0]["name"].as_str().expect("a name");
    assert!((1_000..=1_024).contains(&name.len()), "{}", name.len());
    assert!(name.ends_with("n…"));
}

/// 64 streams at once, each with 50 stages. Every second agent stops in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_streams_at_once_cross_no_stage_and_leave_none_open() -> Outcome {
    const STREAMS: usize = 64;
    const STAGES: u64 = 50;
    // Every stream begins when all are open and followed.
    let together = Arc::new(Barrier::new(2 * STREAMS));
    let followed = Arc::clone(&together);
    let server = FakeService::start(move |seen| {
        let said = seen.said();
        let (number, how) = said.split_once(' ').expect("a number");
        let mut steps = vec![BodyStep::Meet(Arc::clone(&together))];
        // Each agent counts its stages from a number of its own.
        let first: u64 = number.parse().expect("a number");
        for index in first..first + STAGES {
            steps.push(match index - first {
                0 => opens(index, &format!("{number}:0")),
                n => opens_below(index - 1, index, &format!("{number}:{n}")),
            });
            steps.push(writes(index, &format!("text of {number}")));
            if index % 3 == 0 {
                steps.push(closes(index, "completed"));
            }
        }
        steps.push(say(&format!("answer {number}")));
        match how {
            "stops" => unended(steps.into_iter().chain([BodyStep::Cut]).collect()),
            _ => answer(steps),
        }
    })
    .await;
    let mut gpa = dial("gpa", &server);
    gpa.timeout = PATIENCE;
    let rig = Arc::new(Rig::new(vec![full_router(), Arc::new(gpa)]).await);
    let runner = rig.limited(2 * STREAMS).await;
    let mut turns = tokio::task::JoinSet::new();
    for number in 0..STREAMS {
        let (rig, followed) = (Arc::clone(&rig), Arc::clone(&followed));
        turns.spawn(async move {
            let stops = number % 2 == 1;
            let how = if stops { "stops" } else { "ends" };
            let request = ask(&rig, "front", &format!("{number} {how}")).await;
            let mut draft = rig.engine.follow_draft(request);
            followed.wait().await;
            let (mut names, mut texts, mut ends) = (Vec::new(), Vec::<String>::new(), Vec::new());
            while let Some(change) = draft.next_change().await {
                match change {
                    DraftChange::Stage(StageChange::Opened { name, parent }) => {
                        names.push((name, parent));
                        texts.push(String::new());
                        ends.push(None);
                    }
                    DraftChange::Stage(StageChange::Named { stage, text }) => {
                        names[stage].0.push_str(&text);
                    }
                    DraftChange::Stage(StageChange::Wrote { stage, text }) => {
                        texts[stage].push_str(&text);
                    }
                    DraftChange::Stage(StageChange::Closed { stage, status }) => {
                        assert_eq!(ends[stage].replace(status), None, "it ends once");
                    }
                    DraftChange::Stage(_) | DraftChange::Text(_) => {}
                }
            }
            // Two of the coordinator come first.
            let own = &names[2..];
            assert_eq!(own.len(), 50, "{names:?}");
            for (n, (name, parent)) in own.iter().enumerate() {
                assert_eq!(
                    (name.as_str(), *parent),
                    (&*format!("{number}:{n}"), Some(n + 1))
                );
            }
            let own_text = format!("text of {number}");
            assert!(texts[2..].iter().all(|text| *text == own_text), "{texts:?}");
            assert!(ends.iter().all(Option::is_some), "{number}: {ends:?}");
            let failed = ends
                .iter()
                .filter(|end| **end == Some(StageStatus::Failed))
                .count();
            assert_eq!(failed > 0, stops, "{number}");
            if !stops {
                let stages = kept(&rig, request).await;
                assert_eq!(stages.len(), 52);
                assert!(stages.iter().all(|stage| stage["status"] == "completed"));
            }
        });
    }
    while let Some(turn) = turns.join_next().await {
        turn.expect("a turn");
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
