//! How often a turn waits for the disk and reads the store; and what was asked outside when a commit fails.
//! Each entry of `waits` is one wait, with the commands that became durable together.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use statehold_agents::runner::Runner;
use statehold_agents::spec::{
    AgentBook, AgentKind, ChatMemory, FinalAnswer, OpenaiSpec, RouterSpec, Routing,
};
use statehold_core::ids::SessionId;
use statehold_core::record::CommandName::{
    self, AppendItems, ClaimRequest, CompleteRequest, StartRequest,
};
use statehold_engine::api::turn::{self, DeliveryLog, TurnInput, UserMessage};
use statehold_engine::policy::Policies;
use statehold_engine::{Call, Engine, EngineError, UnmeteredMemory};
use statehold_fakes::FakeService;
use statehold_fakes::chat::{ScriptedModel, calls, says, text};
use statehold_fakes::tools::{ToolServer, tool};
use statehold_store::StoreError;

use crate::disk::Disk;
use crate::llm::{Declared, assistant_book, model_spec};
use crate::rig::{PATIENCE, Rig, agent, book, name, router};

/// The reads of timers, which look by the clock.
pub(crate) const OF_TIMERS: [&str; 6] = [
    "due",
    "due_in",
    "erase_some",
    "forget_answers",
    "heads_after",
    "sessions_ahead",
];

/// A session whose first turn is over, on a disk that the test writes to.
struct Scene {
    disk: Arc<Disk>,
    rig: Rig,
    runner: Runner,
    log: Arc<DeliveryLog>,
    session: SessionId,
    agent: &'static str,
}

impl Scene {
    async fn new(book: AgentBook, agent: &'static str) -> Self {
        let disk = Arc::new(Disk::default());
        let rig = Rig::over(Arc::clone(&disk) as _, book, Policies::default()).await;
        let runner = rig.runner().await;
        let log = Arc::new(DeliveryLog::new(rig.engine.now()));
        let session = rig.session(agent).await;
        let scene = Self {
            disk,
            rig,
            runner,
            log,
            session,
            agent,
        };
        scene.turn("first").await.expect("an answer");
        scene.disk.slow_down();
        scene
    }

    /// A chat turn as a surface takes it: the agent of the session, the turn, its answer, its account.
    fn turn(&self, text: &str) -> impl Future<Output = Result<String, EngineError>> + 'static {
        let (engine, log) = (self.rig.engine.clone(), Arc::clone(&self.log));
        let (call, session) = (self.rig.call(), self.session);
        let (agent, text) = (name(self.agent), text.to_owned());
        async move {
            let own = turn::named_session(&engine, &call.caller, session).await?;
            assert_eq!(own.agent, agent);
            said(&engine, &log, (call, session, agent.as_str()), text).await
        }
    }

    /// Runs a turn. Each wait lasts until nothing goes on without it; then all that is in line is written.
    async fn waits(&self, text: &str) -> (String, Vec<Vec<CommandName>>) {
        let turn = tokio::spawn(self.turn(text));
        let mut waits = Vec::new();
        let story = async {
            loop {
                let line = self.disk.line().await;
                if line.is_empty() && turn.is_finished() {
                    return;
                }
                if !line.is_empty() {
                    waits.push(line);
                    self.disk.write(None).await;
                }
            }
        };
        let story = tokio::time::timeout(PATIENCE, story);
        story.await.expect("it takes too long");
        let answer = turn.await.expect("no panic").expect("an answer");
        (answer, waits)
    }

    fn take_reads(&self) -> Vec<&'static str> {
        let mut reads = self.disk.take_reads();
        reads.retain(|read| !OF_TIMERS.contains(read));
        reads
    }

    async fn end(self) {
        self.runner.stop().await;
    }
}

async fn said(
    engine: &Engine,
    log: &Arc<DeliveryLog>,
    (call, session, agent): (Call, SessionId, &str),
    text: String,
) -> Result<String, EngineError> {
    let input = TurnInput {
        call,
        key: None,
        session,
        agent: name(agent),
        task: None,
        message: UserMessage {
            text,
            ..UserMessage::default()
        },
        credential: None,
        call_credential: None,
        config: None,
        decides_elsewhere: false,
        one_at_a_time: false,
        arrived: std::time::Instant::now(),
    };
    let opened = turn::open_turn(engine, log, input, Vec::new()).await?;
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    let snapshot = opened.handle.outcome(deadline, &UnmeteredMemory).await?;
    log.receipt(&opened.handle, false, &snapshot).confirm();
    let via = snapshot.account.via.join(",");
    Ok(format!(
        "{via}: {}",
        snapshot.reply(turn::ReplyParts::default()).text
    ))
}

async fn echo() -> FakeService {
    FakeService::start(|seen| says(seen, &format!("echo {}", seen.said()))).await
}

fn echo_agent(service: &FakeService) -> Arc<statehold_agents::spec::AgentSpec> {
    let spec = OpenaiSpec {
        base_url: service.url("/v1"),
        model: "echo".to_owned(),
        credential: None,
        headers: Vec::new(),
        memory: ChatMemory::Restore,
    };
    agent("echo", AgentKind::Openai(Arc::new(spec)))
}

fn rules_book(service: &FakeService) -> AgentBook {
    let coordinator = router("coordinator", &[(".", "echo")], &["echo"]);
    book(vec![coordinator, echo_agent(service)])
}

/// A model that chooses the agent of two turns.
async fn chooser() -> ScriptedModel {
    let route = json!({"agent_name": "echo"}).to_string();
    ScriptedModel::start([text(&route), text(&route)]).await
}

fn model_book(model: &ScriptedModel, service: &FakeService) -> AgentBook {
    let spec = RouterSpec {
        agents: vec![name("echo")],
        routing: Routing::Model {
            model: name("main"),
            prompt: None,
        },
        answer: FinalAnswer::Pass,
    };
    let coordinator = agent("coordinator", AgentKind::Router(Arc::new(spec)));
    AgentBook {
        models: [(name("main"), model_spec("main", &model.url()))].into(),
        ..book(vec![coordinator, echo_agent(service)])
    }
}

#[tokio::test]
async fn a_turn_routed_by_rules_waits_twice_and_reads_four_times() {
    let service = echo().await;
    let scene = Scene::new(rules_book(&service), "coordinator").await;
    let (answer, waits) = scene.waits("second").await;
    assert_eq!(answer, "echo: echo second");
    let reads = scene.take_reads();
    println!(
        "rules: {} waits {waits:?}, {} reads {reads:?}",
        waits.len(),
        reads.len()
    );
    let begin = vec![StartRequest, ClaimRequest, AppendItems, StartRequest];
    assert_eq!(waits, [begin, vec![CompleteRequest, CompleteRequest]]);
    assert_eq!(reads, ["session", "memory", "ended_request", "records"]);
    scene.end().await;
}

#[tokio::test]
async fn routers_below_routers_wait_no_more_often() {
    let service = echo().await;
    let top = router("top", &[(".", "coordinator")], &["coordinator"]);
    let mut book = rules_book(&service);
    book.agents.insert(name("top"), top);
    let scene = Scene::new(book, "top").await;
    let (answer, waits) = scene.waits("second").await;
    assert_eq!(answer, "coordinator,echo: echo second");
    assert_eq!(waits.len(), 2, "{waits:?}");
    assert_eq!(waits[1], [CompleteRequest; 3]);
    assert_eq!(scene.take_reads().len(), 4);
    scene.end().await;
}

#[tokio::test]
async fn a_model_that_routes_adds_one_wait() {
    let service = echo().await;
    let model = chooser().await;
    let scene = Scene::new(model_book(&model, &service), "coordinator").await;
    let (answer, waits) = scene.waits("second").await;
    assert_eq!(answer, "echo: echo second");
    let reads = scene.take_reads();
    println!(
        "model: {} waits {waits:?}, {} reads {reads:?}",
        waits.len(),
        reads.len()
    );
    assert_eq!(waits[0], [StartRequest, ClaimRequest]);
    assert_eq!(waits[1], [AppendItems, StartRequest]);
    assert_eq!(waits[2], [CompleteRequest; 2]);
    assert_eq!(waits.len(), 3);
    // The model reads the memory of the router.
    assert_eq!(reads.len(), 5, "{reads:?}");
    scene.end().await;
}

#[tokio::test]
async fn a_round_of_tools_waits_before_the_tools_and_before_the_model() {
    let replies = [
        text("Hello."),
        calls(&[("c1", "look", json!({}))]),
        text("Done."),
    ];
    let model = ScriptedModel::start(replies).await;
    let tools = ToolServer::start(vec![tool("look")], |_| "seen".to_owned()).await;
    let book = assistant_book(&model, &Declared::with_tools(&tools));
    let scene = Scene::new(book, "assistant").await;
    let (answer, waits) = scene.waits("Look").await;
    assert_eq!(answer, ": Done.");
    let reads = scene.take_reads();
    println!(
        "tools: {} waits {waits:?}, {} reads {reads:?}",
        waits.len(),
        reads.len()
    );
    let begin = vec![StartRequest, ClaimRequest];
    let (calls, result) = (vec![AppendItems; 2], vec![AppendItems]);
    assert_eq!(waits, [begin, calls, result, vec![CompleteRequest]]);
    assert_eq!(reads.len(), 4, "{reads:?}");
    scene.end().await;
}

/// A turn, until so many waits are before it.
async fn until_wait(scene: &Scene, writes: usize) {
    for _ in 0..writes {
        while scene.disk.line().await.is_empty() {}
        scene.disk.write(None).await;
    }
    while scene.disk.line().await.is_empty() {}
}

/// Writes everything that comes, until the turn is over.
async fn finish(
    scene: &Scene,
    turn: tokio::task::JoinHandle<Result<String, EngineError>>,
) -> String {
    let story = async {
        while !turn.is_finished() {
            scene.disk.line().await;
            scene.disk.write(None).await;
        }
    };
    tokio::time::timeout(PATIENCE, story)
        .await
        .expect("it takes too long");
    turn.await.expect("no panic").expect("an answer")
}

#[tokio::test]
async fn nothing_outside_is_asked_and_nobody_is_answered_before_the_disk_has_confirmed() {
    let service = echo().await;
    let scene = Scene::new(rules_book(&service), "coordinator").await;
    let turn = tokio::spawn(scene.turn("second"));
    until_wait(&scene, 0).await;
    assert_eq!(service.seen().len(), 1, "only the first turn has asked");
    scene.disk.write(None).await;
    while scene.disk.line().await.is_empty() {}
    assert_eq!(service.seen().len(), 2);
    assert!(!turn.is_finished(), "the answer is not durable");
    assert_eq!(finish(&scene, turn).await, "echo: echo second");
    scene.end().await;
}

/// Models and agents that begin a turn are asked when its lease is durable, like the agent of a router.
#[tokio::test]
async fn no_kind_of_agent_begins_outside_before_its_lease_is_durable() {
    let service = echo().await;
    let (chooser, model) = (chooser().await, ScriptedModel::start([]).await);
    model.then([text("Hello."), text("Hello.")]);
    let tools = ToolServer::start(vec![tool("look")], |_| "seen".to_owned()).await;
    let assistant = assistant_book(&model, &Declared::with_tools(&tools));
    let asked = || service.seen().len() + chooser.asked().len() + model.asked().len();
    for (book, agent) in [
        (rules_book(&service), "coordinator"),
        (rules_book(&service), "echo"),
        (model_book(&chooser, &service), "coordinator"),
        (assistant, "assistant"),
    ] {
        let scene = Scene::new(book, agent).await;
        let before = asked();
        let turn = tokio::spawn(scene.turn("second"));
        until_wait(&scene, 0).await;
        assert_eq!(asked(), before, "{agent}");
        finish(&scene, turn).await;
        assert!(asked() > before, "{agent}");
        scene.end().await;
    }
}

/// The error of a commit that builds on one that failed.
fn conflict(scene: &Scene) -> StoreError {
    StoreError::Conflict {
        session: scene.session,
        expected: 1,
        found: 2,
    }
}

#[tokio::test]
async fn a_turn_whose_commit_fails_is_made_again_and_its_agent_is_asked_once() {
    // The four commits of the first wait, and the two of the second.
    for (writes, place) in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)] {
        let service = echo().await;
        let scene = Scene::new(rules_book(&service), "coordinator").await;
        let turn = tokio::spawn(scene.turn("second"));
        until_wait(&scene, writes).await;
        scene.disk.write(Some((place, conflict(&scene)))).await;
        assert_eq!(service.seen().len(), 1 + writes, "{writes} {place}");
        let answer = finish(&scene, turn).await;
        assert_eq!(answer, "echo: echo second", "{writes} {place}");
        assert_eq!(service.seen().len(), 2, "{writes} {place}");
        let told = scene.rig.transcript(scene.session).await;
        assert_eq!(told, ["first", "echo first", "second", "echo second"]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_full_disk_in_the_middle_of_the_first_wait_asks_nothing_outside() {
    for place in [0, 2, 3] {
        let service = echo().await;
        let scene = Scene::new(rules_book(&service), "coordinator").await;
        let turn = tokio::spawn(scene.turn("second"));
        until_wait(&scene, 0).await;
        scene.disk.write(Some((place, StoreError::Full))).await;
        for _ in 0..3 {
            scene.disk.line().await;
            scene.disk.write(None).await;
        }
        if place == 0 {
            let refused = turn.await.expect("no panic");
            assert!(matches!(refused, Err(EngineError::Full)), "{refused:?}");
        } else if place == 2 {
            // The turn has its lease, and goes on when that has lapsed.
            assert!(!turn.is_finished());
            turn.abort();
        } else {
            // A start that certainly failed is made again behind its route.
            assert_eq!(finish(&scene, turn).await, "echo: echo second");
        }
        let asked = if place == 3 { 2 } else { 1 };
        assert_eq!(service.seen().len(), asked, "{place}");
        scene.end().await;
    }
}
