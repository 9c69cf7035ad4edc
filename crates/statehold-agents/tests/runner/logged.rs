//! The debug log: what turns exchange with models, agents and tools.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use statehold_agents::runner::{Runner, RunnerOptions};
use statehold_agents::spec::{AgentBook, AgentKind, ChatMemory, OpenaiSpec};
use statehold_core::request::RequestOutcome;
use statehold_engine::Credential;
use statehold_engine::debug_log::{
    DebugExchange, DebugLog, DebugLogLimits, DebugLogReader, DebugPeer, ReadEntry,
};
use statehold_engine::policy::Policies;
use statehold_fakes::chat::{ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolServer, tool};
use statehold_fakes::{FakeService, ScriptedResponse};

use statehold_store::keys::KeyFile;

use crate::llm::{Declared, PROMPT, assistant_book, completed, model_spec};
use crate::rig::{Rig, agent, book, name};

const SECRET: &str = "sk-very-secret-4711";

/// A runner that logs into a directory.
async fn logging(rig: &Rig, directory: &Path) -> (Runner, Arc<DebugLog>) {
    let keys = Arc::new(KeyFile::open(directory).expect("keys"));
    let limits = DebugLogLimits {
        bytes_max: 64 << 20,
        age_max: Duration::from_hours(1),
    };
    let log = Arc::new(DebugLog::open(directory, keys, limits).expect("a log"));
    let options = RunnerOptions {
        debug_log: Some(Arc::clone(&log)),
        ..RunnerOptions::default()
    };
    let (engine, book) = (rig.engine.clone(), Arc::clone(&rig.book));
    let runner = Runner::start(engine, name("default"), book, options).await;
    (runner.expect("the runner starts"), log)
}

/// Ends a runner and its log, and reads what is there.
async fn end(
    rig: Rig,
    (runner, log): (Runner, Arc<DebugLog>),
    directory: &Path,
) -> Vec<DebugExchange> {
    runner.stop().await;
    rig.engine.shut_down().await;
    drop((runner, rig));
    assert_eq!(log.dropped(), 0);
    let log = Arc::into_inner(log).expect("nobody else logs");
    drop(log);
    let mut reader = DebugLogReader::open(directory).expect("a reader");
    let mut found = Vec::new();
    while let ReadEntry::Entry(entry) = reader.read_next().expect("reads") {
        found.push(entry.exchange);
    }
    found
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn what_a_turn_exchanges_is_in_the_debug_log_without_its_credentials() {
    let directory = tempfile::tempdir().expect("a directory");
    let tools = ToolServer::start(vec![tool("read")], |_| {
        format!("the file, and {SECRET}, and shk_abcdefgh12345678")
    })
    .await;
    let model = ScriptedModel::start([
        calls(&[("c", "read", json!({"path": "a.txt"}))]),
        text("The answer."),
    ])
    .await;
    let mut book = assistant_book(&model, &Declared::with_tools(&tools));
    let spec = Arc::into_inner(model_spec(
        "main",
        &format!("{}?key=query-secret", model.url()),
    ));
    let mut spec = spec.expect("nobody else has it");
    spec.credential = Credential::new(SECRET.to_owned());
    book.models.insert(name("main"), Arc::new(spec));
    let rig = Rig::with(book, Policies::default()).await;
    let logging = logging(&rig, directory.path()).await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "What is in a.txt?").await;
    completed(&rig.ended(request).await);
    let found = end(rig, logging, directory.path()).await;

    let peers: Vec<DebugPeer> = found.iter().map(|exchange| exchange.with).collect();
    assert_eq!(peers, [DebugPeer::Model, DebugPeer::Tool, DebugPeer::Model]);
    for exchange in &found {
        assert_eq!((exchange.session, exchange.request), (session, request));
        assert_eq!(exchange.agent, name("assistant"));
        assert_eq!(exchange.error, None);
    }
    let asked = model.asked();
    assert_eq!(json_of(&found[0].sent.text), asked[0]);
    assert!(
        found[0].sent.text.contains(PROMPT),
        "the prompt is stored nowhere else"
    );
    assert!(
        found[0].target.starts_with("POST 127.0.0.1:")
            && found[0].target.ends_with("/chat/completions")
    );
    assert_eq!(found[0].status, Some(200));
    assert!(
        found[0].received.text.contains("a.txt"),
        "{}",
        found[0].received.text
    );
    assert_eq!(found[1].target, "files read");
    assert_eq!(json_of(&found[1].sent.text), json!({"path": "a.txt"}));
    assert!(found[1].received.text.contains("the file, and"));
    assert_eq!(json_of(&found[2].sent.text), {
        let mut asked = asked[1].to_string();
        asked = asked
            .replace(SECRET, "…")
            .replace("shk_abcdefgh12345678", "shk_…");
        json_of(&asked)
    });
    assert!(!found[2].received.text.is_empty());
    let all = format!("{found:?}");
    for secret in ["query-secret", "shk_abcdefgh12345678"] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
    // A credential is replaced in the exchanges that were made with it.
    for exchange in found
        .iter()
        .filter(|exchange| exchange.with == DebugPeer::Model)
    {
        assert!(!format!("{exchange:?}").contains(SECRET));
    }
}

#[tokio::test]
async fn exchanges_that_fail_or_are_not_answered_are_in_the_debug_log_with_their_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let refusal = json!({"error": {"message": format!("no {SECRET} here")}}).to_string();
    let service = FakeService::play(vec![ScriptedResponse::text(
        500,
        "application/json",
        &refusal,
    )])
    .await;
    let spec = |url: String| {
        AgentKind::Openai(Arc::new(OpenaiSpec {
            base_url: url,
            model: "theirs".to_owned(),
            credential: Credential::new(SECRET.to_owned()),
            headers: Vec::new(),
            memory: ChatMemory::Restore,
        }))
    };
    let agents = vec![
        agent("service", spec(service.url("/v1"))),
        agent("nowhere", spec("http://127.0.0.1:1/v1".to_owned())),
    ];
    let rig = Rig::with(AgentBook { ..book(agents) }, Policies::default()).await;
    let logging = logging(&rig, directory.path()).await;
    for agent in ["service", "nowhere"] {
        let session = rig.session(agent).await;
        let request = rig.ask(session, agent, "hello").await;
        let ended = rig.ended(request).await;
        let outcome = ended.request.ended().map(|ended| ended.outcome);
        assert_eq!(outcome, Some(RequestOutcome::Failed));
    }
    let found = end(rig, logging, directory.path()).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        (found[0].with, found[0].status),
        (DebugPeer::Agent, Some(500))
    );
    assert_eq!(
        json_of(&found[0].received.text),
        json!({"error": {"message": "no … here"}})
    );
    assert_eq!(
        (found[1].status, found[1].received.text.as_str()),
        (None, "")
    );
    let why = found[1].error.as_deref().expect("a reason");
    assert!(why.contains("cannot be reached"), "{why}");
    assert!(found[1].sent.text.contains("hello"));
}
