//! Stages under fire: many streams at once over HTTP, of agents that end, stop in the middle, or
//! ask a person.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::runner::RunnerOptions;
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatSessions, DialSpec, FinalAnswer, RouterSpec, Routing,
    StageDetail,
};
use statehold_core::name::Name;
use statehold_engine::Credential;
use statehold_fakes::dial::{answer, closes, opens, opens_below, say, state, unended, writes};
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest};
use statehold_server::ServerOptions;

use super::{Events, PATIENCE, said};
use crate::chat::agent;
use crate::chat::upstream::host_running;
use crate::rig::{Rig, Who, text};

const STREAMS: usize = 64;
const STAGES: usize = 50;
/// Each agent works on so many turns at once. Both coordinators call the same agent, so that has
/// fewer permits than it has calls.
const TURNS_MAX: usize = 12;
const PAUSE: &str = "Waits for a person";

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// How the agent of a stream works.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    Ends,
    Stops,
    Asks,
}

impl Manner {
    fn of(number: usize) -> Self {
        [Self::Ends, Self::Stops, Self::Asks][number % 3]
    }
}

/// Stages that lie one below the other, in the numbers of the agent. Some are left open.
fn stages(number: usize, range: std::ops::Range<usize>, first: u64) -> Vec<BodyStep> {
    let mut steps = Vec::new();
    for (index, n) in (first..).zip(range) {
        let name = format!("{number}:{n}");
        steps.push(match index - first {
            0 => opens(index, &name),
            _ => opens_below(index - 1, index, &name),
        });
        steps.push(writes(index, &format!("text of {number}")));
        if n % 3 == 0 {
            steps.push(closes(index, "completed"));
        }
    }
    steps
}

/// The agent of all streams. A message is the number of the stream, and what a person answered.
fn play(seen: &SeenRequest) -> ScriptedResponse {
    let said = seen.said();
    let (number, word) = said.split_once(' ').expect("a number and a word");
    let number: usize = number.parse().expect("a number");
    let all = stages(number, 0..STAGES, number as u64);
    let done = say(&format!("answer {number}"));
    match (Manner::of(number), word) {
        (Manner::Ends, _) => answer(all.into_iter().chain([done]).collect()),
        (Manner::Stops, _) => unended(all.into_iter().chain([BodyStep::Cut]).collect()),
        (Manner::Asks, "please") => {
            let asks = json!({"statehold": {"status": "paused", "holds": [
                {"id": "q", "kind": "question", "title": "Which?"}]}});
            let first = stages(number, 0..STAGES / 2, number as u64);
            answer(
                first
                    .into_iter()
                    .chain([state(&asks.to_string())])
                    .collect(),
            )
        }
        (Manner::Asks, _) => {
            let rest = stages(number, STAGES / 2..STAGES, 0);
            answer(rest.into_iter().chain([done]).collect())
        }
    }
}

fn book(service: &FakeService) -> AgentBook {
    let application = AgentKind::Dial(Arc::new(DialSpec {
        base_url: service.url(""),
        deployment: "app".to_owned(),
        credential: Credential::new("own-key".to_owned()),
        headers: Vec::new(),
    }));
    let desk = || {
        AgentKind::Router(Arc::new(RouterSpec {
            agents: vec![name("gpa")],
            routing: Routing::Rules {
                rules: Vec::new(),
                otherwise: Some(name("gpa")),
            },
            answer: FinalAnswer::Pass,
        }))
    };
    let agents = [("gpa", application), ("desk-0", desk()), ("desk-1", desk())];
    let agents = agents.map(|(name, kind)| {
        let (name, spec) = agent(name, kind, ChatSessions::Auto);
        let mut spec: AgentSpec = Arc::into_inner(spec).expect("one owner");
        (spec.stages, spec.timeout) = (StageDetail::Full, PATIENCE);
        (name, Arc::new(spec))
    });
    AgentBook {
        agents: agents.into(),
        ..AgentBook::default()
    }
}

/// A stage as a client puts it together.
#[derive(Debug, Default)]
struct SeenStage {
    name: String,
    content: String,
    parent: Option<usize>,
    status: Option<String>,
}

/// The stages of a stream, by their places on the wire.
#[derive(Default)]
struct SeenStages(Vec<SeenStage>);

impl SeenStages {
    /// Takes a chunk. Returns whether the turn begins to wait for a person.
    fn add(&mut self, chunk: &Value) -> bool {
        let updates = &chunk["choices"][0]["delta"]["custom_content"]["stages"];
        let mut waits = false;
        for update in updates.as_array().into_iter().flatten() {
            let index = update["index"].as_u64().expect("a place");
            let index = usize::try_from(index).expect("a place");
            assert!(index <= self.0.len(), "places count up: {update}");
            if index == self.0.len() {
                let parent = update["parent_stage_index"].as_u64();
                let parent = parent.map(|parent| usize::try_from(parent).expect("a place"));
                self.0.push(SeenStage {
                    parent,
                    ..SeenStage::default()
                });
                waits |= update["name"] == PAUSE;
            }
            let stage = &mut self.0[index];
            assert_eq!(
                stage.status, None,
                "a closed stage does not change: {update}"
            );
            stage
                .name
                .push_str(update["name"].as_str().unwrap_or_default());
            let content = update["content"].as_str();
            stage.content.push_str(content.unwrap_or_default());
            stage.status = update["status"].as_str().map(str::to_owned);
        }
        waits
    }

    /// Fails unless they are the stages of this stream, all closed and none of another one.
    #[track_caller]
    fn check(&self, number: usize) {
        let manner = Manner::of(number);
        let stages: Vec<(usize, &SeenStage)> = self.0.iter().enumerate().collect();
        assert!(
            stages.iter().all(|(_, stage)| stage.status.is_some()),
            "{number}: {stages:?}"
        );
        let is_failed = |stage: &SeenStage| stage.status.as_deref() == Some("failed");
        let any_failed = stages.iter().any(|(_, stage)| is_failed(stage));
        assert_eq!(any_failed, manner == Manner::Stops, "{number}: {stages:?}");
        let stages = stages.into_iter().filter(|(_, stage)| stage.name != PAUSE);
        let stages: Vec<_> = stages.collect();
        let (own, mirrored) = stages.split_at(2);
        let names = own.iter().map(|(_, stage)| stage.name.as_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["Coordination Request", "Call gpa Agent"]
        );
        // A client learns of a failed turn at once, and gets no more stages then.
        let is_whole = mirrored.len() == STAGES || manner == Manner::Stops;
        assert!(is_whole, "{number}: {stages:?}");
        for (n, (_, stage)) in mirrored.iter().enumerate() {
            assert_eq!(stage.name, format!("{number}:{n}"));
            let begins = n == 0 || manner == Manner::Asks && n == STAGES / 2;
            let above = if begins { own[1].0 } else { mirrored[n - 1].0 };
            assert_eq!(stage.parent, Some(above), "{number}: {stages:?}");
            let text = format!("text of {number}");
            let is_cut = manner == Manner::Stops && text.starts_with(&stage.content);
            assert!(is_cut || stage.content == text, "{number}: {stage:?}");
        }
    }
}

/// One stream to its end. A person answers if the agent asks.
async fn follow(who: Who, boss: Who, number: usize) {
    let path = format!("/openai/deployments/desk-{}/chat/completions", number % 2);
    let mut body = said(&format!("{number} please"));
    body["stream"] = true.into();
    let headers = [("x-statehold-wait", "60")];
    let body = body.to_string().into();
    let sent = who.begin("POST", &path, &headers, body).await;
    let mut events = Events::read(sent.expect("an answer begins"));
    let session = events.headers["x-statehold-session"].to_str();
    let session = session.expect("text").to_owned();
    let (mut stages, mut content) = (SeenStages::default(), String::new());
    while let Some(line) = events.line().await {
        if line == "[DONE]" {
            continue;
        }
        let chunk: Value = serde_json::from_str(&line).expect("JSON");
        let piece = chunk["choices"][0]["delta"]["content"].as_str();
        content.push_str(piece.unwrap_or_default());
        if stages.add(&chunk) {
            let holds = boss.get(&format!("/v1/holds?session_id={session}")).await;
            let hold = holds.ok(200)["holds"][0].clone();
            let path = format!("/v1/holds/{}/decision", text(&hold, "id"));
            let again = json!({"decision": "respond", "content": format!("{number} again")});
            boss.post(&path, &again).await.ok(200);
        }
    }
    stages.check(number);
    if Manner::of(number) != Manner::Stops {
        assert_eq!(content, format!("answer {number}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_streams_over_http_cross_no_stage_and_leave_none_open() {
    let service = FakeService::start(play).await;
    let options = RunnerOptions {
        turns_max: TURNS_MAX,
        ..RunnerOptions::default()
    };
    let running = host_running(book(&service), ServerOptions::default(), options);
    let (rig, runner): (Rig, _) = running.await;
    let boss = rig.key(&["approver"]).await;
    let mut streams = tokio::task::JoinSet::new();
    for number in 0..STREAMS {
        let who = rig.client(&format!("user-{number}")).await;
        streams.spawn(follow(who, boss.clone(), number));
    }
    while let Some(stream) = streams.join_next().await {
        stream.expect("a stream");
    }
    runner.stop().await;
    rig.engine.shut_down().await;
}
