//! The same with agents that this server works for, whose models are played here over HTTP.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use statehold_agents::runner::{Runner, RunnerOptions};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, CallerTrust, ChatMemory, ChatSessions, FinalAnswer, ModelSpec,
    OpenaiSpec, RouterSpec, Routing, StageDetail, StateFormat,
};
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_fakes::FakeService;
use statehold_fakes::chat::SpokenAnswer;
use statehold_server::ServerOptions;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Scene, delta, said, to_the_end};
use crate::rest::{claim, start};
use crate::rig::{Rig, Setup, text, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// The model of each call, and the answer that the test gives to it.
type Calls = mpsc::UnboundedReceiver<(String, SpokenAnswer)>;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn agent(text: &str, kind: AgentKind) -> (Name, Arc<AgentSpec>) {
    let spec = AgentSpec {
        name: name(text),
        description: None,
        kind,
        import: Vec::new(),
        export: Vec::new(),
        output_key: None,
        state_schema: None,
        keep_pairs: None,
        timeout: PATIENCE,
        retries: 0,
        sessions: ChatSessions::Auto,
        caller_history: CallerTrust::default(),
        references: false,
        stages: StageDetail::default(),
        state_format: StateFormat::default(),
        brief_on_loss: false,
        pauses: false,
        digest: Digest::sha256(text.as_bytes()),
    };
    (name(text), Arc::new(spec))
}

/// `expert` answers; `frank` passes on what it says, `careful` has a model say it in other words.
fn book(base_url: &str) -> Arc<AgentBook> {
    let expert = OpenaiSpec {
        base_url: base_url.to_owned(),
        model: "expert".to_owned(),
        credential: None,
        headers: Vec::new(),
        memory: ChatMemory::Restore,
    };
    let router = |answer: FinalAnswer| {
        AgentKind::Router(Arc::new(RouterSpec {
            agents: vec![name("expert")],
            routing: Routing::Rules {
                rules: Vec::new(),
                otherwise: Some(name("expert")),
            },
            answer,
        }))
    };
    let by_model = FinalAnswer::Model {
        model: name("main"),
        prompt: None,
    };
    let main = ModelSpec {
        name: name("main"),
        base_url: base_url.to_owned(),
        model: "finisher".to_owned(),
        credential: None,
        headers: Vec::new(),
        input: [].into(),
        timeout: PATIENCE,
        retries: 0,
    };
    let agents = [
        agent("expert", AgentKind::Openai(Arc::new(expert))),
        agent("frank", router(FinalAnswer::Pass)),
        agent("careful", router(by_model)),
    ];
    Arc::new(AgentBook {
        agents: agents.into(),
        models: [(name("main"), Arc::new(main))].into(),
        ..AgentBook::default()
    })
}

/// A scene whose agents are at work, and the calls they make.
struct Work {
    scene: Scene,
    runner: Runner,
    calls: Calls,
    /// Runs while it is kept.
    _service: FakeService,
}

impl Work {
    async fn start() -> Self {
        let (called, calls) = mpsc::unbounded_channel();
        let service = FakeService::start(move |seen| {
            assert_eq!(seen.path, "/v1/chat/completions");
            let model = text(&seen.json(), "model");
            let (answer, response) = SpokenAnswer::new();
            called.send((model, answer)).expect("the test waits");
            response
        })
        .await;
        let scene = Scene::on(Rig::on_disk().await).await;
        let engine = scene.rig.engine.clone();
        let book = book(&service.url("/v1"));
        let runner = Runner::start(engine, name("default"), book, RunnerOptions::default()).await;
        Self {
            scene,
            runner: runner.expect("agents work"),
            calls,
            _service: service,
        }
    }

    /// The next call, which is of this model.
    async fn call(&mut self, expected: &str) -> SpokenAnswer {
        let call = timeout(PATIENCE, self.calls.recv()).await;
        let (model, answer) = call.expect("a call in time").expect("a call");
        assert_eq!(model, expected);
        answer
    }
}

#[tokio::test]
async fn what_an_agent_says_is_heard_word_by_word_where_its_router_passes_it_on() {
    let mut work = Work::start().await;
    for agent in ["expert", "frank"] {
        let mut feed = work.scene.follow().await;
        let request = start(&work.scene.ann, &work.scene.session, agent, "2+2?").await;
        let expert = work.call("expert").await;
        let mut heard = String::new();
        for piece in ["2+2 ", "is ", "4."] {
            expert.say(piece);
            // Records of steps come in between.
            let event = loop {
                let event = feed.next().await.expect("a piece comes before the end");
                if event.event == "delta" {
                    break event;
                }
            };
            assert_eq!(event.data["request_id"], request["id"]);
            assert_eq!(event.data["agent"], agent);
            assert_eq!(event.data["offset"], heard.len());
            assert_eq!(event.data["text"], piece);
            heard.push_str(piece);
        }
        expert.end();
        let (whole, end) = to_the_end(&mut feed, &request, &heard).await;
        assert_eq!((&whole, said(&end)), (&heard, Some(heard.clone())));
    }
    work.runner.stop().await;
}

#[tokio::test]
async fn a_chat_that_is_left_before_its_first_word_leaves_no_draft() {
    let helper = AgentBook {
        agents: [agent("helper", AgentKind::Worker)].into(),
        ..AgentBook::default()
    };
    let setup = Setup {
        server: ServerOptions {
            agents: Arc::new(helper).into(),
            ..ServerOptions::default()
        },
        ..Setup::default()
    };
    let scene = Scene::on(Rig::with(setup).await).await;
    for left in ["before the head", "after the head"] {
        let body = json!({
            "model": "helper", "stream": true, "messages": [{"role": "user", "content": left}],
        });
        let path = "/openai/v1/chat/completions";
        let ann = scene.ann.clone();
        let call = async move {
            let begun = ann.begin("POST", path, &[], body.to_string().into()).await;
            drop(begun.expect("an answer begins"));
        };
        let call = tokio::spawn(call);
        if left == "before the head" {
            let request = claim(&scene.worker, "helper").await;
            call.abort();
            drop(call.await);
            nobody_follows(&scene, &request).await;
        } else {
            call.await.expect("it begins and is left");
            let request = claim(&scene.worker, "helper").await;
            nobody_follows(&scene, &request).await;
        }
    }
}

/// While the request goes on, nobody is there to hear of it.
async fn nobody_follows(scene: &Scene, request: &Value) {
    until("nobody follows", || async {
        // So that the server sees that the reader has gone.
        scene.write(request, "anybody there? ");
        (scene.rig.engine.drafts_kept() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_a_model_says_in_other_words_is_heard_in_no_other() {
    let mut work = Work::start().await;
    let mut feed = work.scene.follow().await;
    let request = start(&work.scene.ann, &work.scene.session, "careful", "2+2?").await;
    let expert = work.call("expert").await;
    for piece in ["SECRET ", "SECRET ", "4"] {
        expert.say(piece);
    }
    expert.end();
    let finisher = work.call("finisher").await;
    finisher.say("Four");
    loop {
        let event = feed.next().await.expect("the feed goes on");
        if event.event == "delta" {
            assert_eq!(event.data["request_id"], request["id"]);
            assert_eq!(
                (&event.data["offset"], &event.data["text"]),
                (&json!(0), &json!("Four"))
            );
            break;
        }
    }
    finisher.say(".");
    assert_eq!(delta(&mut feed).await, (4, ".".to_owned()));
    finisher.end();
    let (heard, end) = to_the_end(&mut feed, &request, "Four.").await;
    assert_eq!(heard, "Four.");
    assert_eq!(said(&end), Some(heard));
    let raw = String::from_utf8_lossy(&feed.raw).into_owned();
    assert!(!raw.contains("SECRET"), "{raw}");
    work.scene.drafts_are(0).await;
    work.runner.stop().await;
}
