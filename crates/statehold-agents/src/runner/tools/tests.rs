//! A decision that arrives between the last snapshot and the release of the lease.

use std::time::Duration;

use serde_json::json;
use statehold_core::digest::Digest;
use statehold_core::hold::DecisionKind;
use statehold_core::name::Name;
use statehold_core::request::{LiveStatus, RequestOutcome};
use statehold_engine::api::hold::{DecisionInput, decide_shown};
use statehold_engine::leased::ClaimedTurn;
use statehold_engine::{
    Call, Caller, Claim, ClaimedRequest, Engine, EngineOptions, MemoryKeys, Shares, SystemClock,
    api,
};
use statehold_store::memory::MemoryStore;

use super::super::RunnerOptions;
use super::super::generation::{Generation, RunnerShared, TurnPermit};
use super::*;
use crate::http::HttpPool;
use crate::message::AgentMessage;
use crate::spec::{
    AgentBook, AgentKind, AgentSpec, CallerTrust, ChatSessions, StageDetail, StateFormat,
};
use crate::turn::TurnAnswer;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn requested() -> RequestedCall {
    RequestedCall {
        id: "c1".to_owned(),
        name: "pay".to_owned(),
        arguments: r#"{"amount":5}"#.to_owned(),
        server: "files".to_owned(),
        original: "pay".to_owned(),
        tool: "pay".to_owned(),
        gated: true,
        idempotent: false,
        only_reads: false,
        hidden: false,
        error: None,
    }
}

/// An engine with one request, a runner generation and a person.
struct Scene {
    engine: Engine,
    person: Caller,
    server: Caller,
}

impl Scene {
    async fn new() -> Self {
        let engine = Engine::start(
            Arc::new(MemoryStore::new()),
            Arc::new(MemoryKeys::default()),
            Arc::new(SystemClock),
            EngineOptions::default(),
        );
        let engine = engine.await.expect("an engine in memory");
        let person = Caller::local(name("default"));
        let call = Call::by(person.clone());
        let session = json!({"app": "app", "user": "bob", "agent": "assistant"});
        let session = serde_json::from_value(session).expect("a session");
        let session = api::session::create(&engine, &call, session).await;
        let session = session.expect("a session").view.id;
        let asked = serde_json::from_str(r#"{"input": "Pay 5", "close_on": "never"}"#);
        let asked = asked.expect("a request");
        let started = api::request::start(&engine, &call, session, asked, None).await;
        started.expect("a request");
        Self {
            engine,
            person,
            server: Caller::worker_of_server(name("default")),
        }
    }

    /// The claimed request, or None if the engine opened a hold instead.
    async fn claim(&self) -> Option<ClaimedRequest> {
        let claim = Claim {
            agent: name("assistant"),
            max: 1,
            wait: Duration::ZERO,
            lease_ms: 60_000,
            request: None,
        };
        let claimed = self.engine.claim(&self.server, &claim).await;
        claimed.expect("a claim").pop()
    }

    async fn open(&self, claimed: ClaimedRequest) -> AgentRun {
        let http = HttpPool::new().expect("a client");
        let (engine, options) = (self.engine.clone(), RunnerOptions::default());
        let works = Arc::new(RunnerShared::new(engine, name("default"), http, options));
        let tools = Arc::new(ToolServers::new(&AgentBook::default(), None));
        let generation = Generation::new(&works, Arc::default(), BTreeMap::new(), tools);
        let spec = AgentSpec {
            name: name("assistant"),
            description: None,
            kind: AgentKind::Worker,
            import: Vec::new(),
            export: Vec::new(),
            output_key: None,
            state_schema: None,
            keep_pairs: None,
            timeout: Duration::from_secs(10),
            retries: 0,
            sessions: ChatSessions::None,
            caller_history: CallerTrust::default(),
            references: false,
            stages: StageDetail::default(),
            state_format: StateFormat::default(),
            brief_on_loss: false,
            digest: Digest::sha256(b"assistant"),
        };
        let permit = Shares::of_turns(1).take(&self.server, 1).expect("a seat");
        let seat = TurnPermit::new(permit);
        let claimed = ClaimedTurn::of(&self.engine, &self.server, claimed).expect("it is live");
        let run = AgentRun::open(Arc::new(generation), Arc::new(spec), claimed, seat, None).await;
        run.expect("a run")
    }

    async fn approve(&self, hold: &HoldDetail) {
        let hold = self.engine.hold(&self.person, hold.hold.id).await;
        let hold = hold.expect("the hold");
        let answer = DecisionInput {
            decision: DecisionKind::Approve,
            digest: hold.hold.digest.map(|digest| digest.to_string()),
            args: None,
            content: None,
            comment: None,
            reason: None,
        };
        let call = Call::by(self.person.clone());
        let decided = decide_shown(&self.engine, &call, None, &hold, answer);
        decided.await.expect("a decision");
    }
}

/// A run that has opened an approval and taken its last snapshot before it releases the lease.
async fn about_to_leave<'w>(
    run: &mut AgentRun,
    requested: &'w RequestedCall,
) -> (PendingCall<'w>, RequestSnapshot) {
    let mut open = run.open_calls(&[requested], None).await.expect("a call");
    let one = open.pop().expect("a call");
    let servers = Arc::new(ToolServers::new(&AgentBook::default(), None));
    let mut toolbox = Toolbox::new((servers, Vec::new()), StateAccess::default());
    let stuck = run.open_approvals(&[&one], &mut toolbox).await;
    assert!(stuck.expect("a hold").is_empty());
    let snapshot = run.load_snapshot().await.expect("a snapshot");
    let next = next_action(&one, Some(&snapshot)).expect("something to do");
    assert!(matches!(next, CallAction::Wait));
    (one, snapshot)
}

#[tokio::test]
async fn a_decision_between_look_and_leave_is_carried_out_by_the_same_run() {
    let (scene, requested) = (Scene::new().await, requested());
    let mut run = scene.open(scene.claim().await.expect("a request")).await;
    let (one, snapshot) = about_to_leave(&mut run, &requested).await;
    scene.approve(&snapshot.holds[0]).await;
    assert!(
        run.release_lease_at(snapshot.revision).await.is_none(),
        "it must stay"
    );

    let snapshot = run.load_snapshot().await.expect("it is still ours");
    let CallAction::Execute(released) =
        next_action(&one, Some(&snapshot)).expect("something to do")
    else {
        panic!("what was approved runs");
    };
    assert_eq!(released.arguments.get(), r#"{"amount":5}"#);
    assert_eq!(released.note, None);
    let result = raw(&json!("paid"));
    let recorded = run.record_result(&one, (CallOutcome::Ran, result), None, None);
    assert_eq!(recorded.await.expect("a result").text, "paid");
    let done = run
        .complete(&TurnAnswer::plain(AgentMessage::plain("Paid.")))
        .await;
    done.expect("an end");
    let ended = scene
        .engine
        .request(&scene.person, run.request.ids.request)
        .await;
    let ended = ended.expect("the request");
    let outcome = ended.request.ended().cloned().map(|ended| ended.outcome);
    assert_eq!(outcome, Some(RequestOutcome::Completed));
    assert_eq!(
        ended.holds.len(),
        1,
        "nobody is asked what a lost worker did"
    );
    scene.engine.shut_down().await;
}

#[tokio::test]
async fn a_decision_after_the_leave_is_carried_out_by_the_next_run() {
    let (scene, requested) = (Scene::new().await, requested());
    let mut run = scene.open(scene.claim().await.expect("a request")).await;
    let (_, snapshot) = about_to_leave(&mut run, &requested).await;
    let left = run.release_lease_at(snapshot.revision).await;
    assert!(matches!(left, Some(TurnError::Paused)), "{left:?}");
    assert!(scene.claim().await.is_none(), "it waits for a person");
    scene.approve(&snapshot.holds[0]).await;

    let claimed = scene.claim().await.expect("it goes on");
    let live = claimed.detail.request.live().expect("it lives").clone();
    assert_eq!(live.status, LiveStatus::Running);
    assert_eq!(claimed.detail.holds.len(), 1, "nobody is asked again");
    let mut run = scene.open(claimed).await;
    let mut open = run.open_calls(&[&requested], None).await.expect("the call");
    let one = open.pop().expect("the call");
    let snapshot = run.load_snapshot().await.expect("a snapshot");
    let next = next_action(&one, Some(&snapshot)).expect("something to do");
    assert!(matches!(next, CallAction::Execute(_)));
    scene.engine.shut_down().await;
}
