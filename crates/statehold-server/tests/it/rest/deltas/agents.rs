//! The same with agents that this server works for, whose models are played here over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use futures_util::stream;
use serde_json::{Value, json};
use statehold_agents::runner::Runner;
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatDefault, ChatMemory, FinalAnswer, ModelSpec, OpenaiSpec,
    RouterSpec, Routing,
};
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_server::ServerOptions;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Scene, delta, said, to_the_end};
use crate::rest::{claim, start};
use crate::rig::{Rig, Setup, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// A call that somebody got, who says word by word what is to be answered. Dropped, it has ended.
struct Asked {
    model: String,
    words: mpsc::UnboundedSender<Value>,
}

impl Asked {
    fn say(&self, piece: &str) {
        let delta = json!({"choices": [{"index": 0, "delta": {"content": piece}}]});
        self.words.send(delta).expect("somebody listens");
    }

    fn end(self) {
        let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        self.words.send(end).expect("somebody listens");
    }
}

async fn answer(
    State(asked): State<mpsc::UnboundedSender<Asked>>,
    Json(body): Json<Value>,
) -> Response {
    let (words, said) = mpsc::unbounded_channel::<Value>();
    let model = body["model"].as_str().unwrap_or_default().to_owned();
    asked.send(Asked { model, words }).expect("the test waits");
    let chunks = stream::unfold((said, false), |(mut said, is_over)| async move {
        let (chunk, is_over) = match said.recv().await {
            Some(chunk) => (format!("data: {chunk}\n\n"), false),
            None if !is_over => ("data: [DONE]\n\n".to_owned(), true),
            None => return None,
        };
        Some((Ok::<_, std::convert::Infallible>(chunk), (said, is_over)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let kind = "text/event-stream".parse().expect("a header");
    response.headers_mut().insert("content-type", kind);
    response
}

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
        state_schema: None,
        keep_pairs: None,
        timeout: PATIENCE,
        retries: 0,
        openai_default: ChatDefault::Stateful,
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
async fn at_work() -> (Scene, Runner, mpsc::UnboundedReceiver<Asked>) {
    let (tell, calls) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base_url = format!("http://{}/v1", listener.local_addr().expect("a place"));
    let service = axum::Router::new()
        .route("/v1/chat/completions", post(answer))
        .with_state(tell);
    tokio::spawn(async move { axum::serve(listener, service).await });
    let scene = Scene::on(Rig::on_disk().await).await;
    let engine = scene.rig.engine.clone();
    let runner = Runner::start(engine, name("default"), book(&base_url)).await;
    (scene, runner.expect("agents work"), calls)
}

async fn call(calls: &mut mpsc::UnboundedReceiver<Asked>, model: &str) -> Asked {
    let asked = timeout(PATIENCE, calls.recv()).await;
    let asked = asked.expect("a call in time").expect("a call");
    assert_eq!(asked.model, model);
    asked
}

#[tokio::test]
async fn what_an_agent_says_is_heard_word_by_word_where_its_router_passes_it_on() {
    let (scene, runner, mut calls) = at_work().await;
    for agent in ["expert", "frank"] {
        let mut feed = scene.follow().await;
        let request = start(&scene.ann, &scene.session, agent, "2+2?").await;
        let expert = call(&mut calls, "expert").await;
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
    runner.stop().await;
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
    let (scene, runner, mut calls) = at_work().await;
    let mut feed = scene.follow().await;
    let request = start(&scene.ann, &scene.session, "careful", "2+2?").await;
    let expert = call(&mut calls, "expert").await;
    for piece in ["SECRET ", "SECRET ", "4"] {
        expert.say(piece);
    }
    expert.end();
    let finisher = call(&mut calls, "finisher").await;
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
    scene.drafts_are(0).await;
    runner.stop().await;
}
