use std::sync::Arc;
use std::time::Duration;

use statehold_core::command::Fenced;
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_store::memory::MemoryStore;

use super::super::{DeliveryLog, TurnInput, UserMessage, open_turn};
use super::*;
use crate::answer_memory::UnmeteredMemory;
use crate::api::session::{self, SessionInput};
use crate::caller::Caller;
use crate::claim::Claim;
use crate::commit::call::Call;
use crate::commit::write::SessionWrite;
use crate::engine::{Engine, EngineOptions};
use crate::open_hold::{HoldSpec, open_hold};
use crate::ports::{MemoryKeys, SystemClock};

async fn engine() -> Engine {
    let (store, keys) = (MemoryStore::new(), MemoryKeys::default());
    let clock = Arc::new(SystemClock);
    let options = EngineOptions::default();
    let engine = Engine::start(Arc::new(store), Arc::new(keys), clock, options).await;
    engine.expect("an engine in memory")
}

/// A turn that no worker has claimed yet.
async fn turn() -> TurnHandle {
    turn_about("hello").await
}

/// The same, about this message.
async fn turn_about(text: &str) -> TurnHandle {
    let engine = engine().await;
    let caller = Caller::local("default".parse().expect("a name"));
    let agent = "helper".parse().expect("a name");
    let new = SessionInput {
        app: "app".to_owned(),
        user: Some("bob".to_owned()),
        agent: Some("helper".to_owned()),
        ..SessionInput::default()
    };
    let created = session::create(&engine, &Call::by(caller.clone()), new).await;
    let session = created.expect("a session").view.id;
    let message = UserMessage {
        text: text.to_owned(),
        ..UserMessage::default()
    };
    let input = TurnInput {
        call: Call::by(caller),
        key: None,
        session,
        agent,
        task: None,
        message,
        credential: None,
        call_credential: None,
        config: None,
        decides_elsewhere: false,
        one_at_a_time: false,
        arrived: std::time::Instant::now(),
    };
    let log = Arc::new(DeliveryLog::new(engine.now()));
    let opened = open_turn(&engine, &log, input, Vec::new()).await;
    let opened = opened.expect("a turn");
    assert!(opened.is_new && !opened.is_replay);
    opened.handle
}

async fn claimed(turn: &TurnHandle) -> Fenced {
    let claim = Claim {
        agent: "helper".parse().expect("a name"),
        max: 1,
        wait: Duration::ZERO,
        lease_ms: 60_000,
        request: None,
    };
    let claimed = turn.engine.claim(&turn.caller, &claim).await;
    let mut claimed = claimed.expect("a claim");
    let live = claimed
        .pop()
        .expect("the turn")
        .detail
        .request
        .live()
        .cloned();
    Fenced {
        request: turn.request,
        fence: live.expect("it is live").fence,
    }
}

/// The worker asks a question, which pauses the turn.
async fn ask(turn: &TurnHandle, by: Fenced) {
    let spec = HoldSpec {
        kind: HoldKind::Question,
        title: "Which?".to_owned(),
        message: None,
        action: None,
        response_schema: None,
        url: None,
        reasons: None,
        group_id: None,
        allowed: [DecisionKind::Respond].into(),
        quorum: None,
        expires_in_seconds: None,
        on_expiry: None,
        decide_by: None,
    };
    let (engine, call) = (&turn.engine, Call::by(turn.caller.clone()));
    let owner = engine.owner(turn.session).await.expect("an owner");
    let write = SessionWrite::of_owner(engine, &call, turn.session, &owner).await;
    let asked = open_hold(write.expect("keys"), by, spec, Vec::new()).await;
    asked.expect("a question");
}

#[tokio::test]
async fn a_turn_is_read_when_it_is_paused_or_has_ended_and_not_while_it_runs() {
    let turn = turn().await;
    let (snapshot, queued) = turn.look(&UnmeteredMemory).await.expect("a look");
    assert!(snapshot.is_none());
    let by = claimed(&turn).await;
    let (snapshot, running) = turn.look(&UnmeteredMemory).await.expect("a look");
    assert!(snapshot.is_none() && running == queued + 1);
    ask(&turn, by).await;
    let (snapshot, asking) = turn.look(&UnmeteredMemory).await.expect("a look");
    assert!(snapshot.is_some_and(|snapshot| snapshot.is_paused()) && asking > running);
    turn.cancel().await.expect("it is cancelled");
    let (snapshot, _) = turn.look(&UnmeteredMemory).await.expect("a look");
    let snapshot = snapshot.expect("it has ended");
    assert!(snapshot.has_ended() && !snapshot.is_paused());
}

#[tokio::test]
async fn a_follower_reports_a_pause_once_and_the_end_last() {
    let turn = turn().await;
    let by = claimed(&turn).await;
    ask(&turn, by).await;
    let mut follower = turn.follow(Instant::now() + Duration::from_mins(1));
    let paused = follower.next(&UnmeteredMemory).await.expect("an event");
    assert!(matches!(paused, TurnEvent::Paused(snapshot) if snapshot.holds.len() == 1));
    let late = turn
        .outcome(Instant::now(), &UnmeteredMemory)
        .await
        .expect("an outcome");
    assert!(late.is_paused() && !late.has_ended());
    turn.cancel().await.expect("it is cancelled");
    let over = follower.next(&UnmeteredMemory).await.expect("an event");
    let TurnEvent::Over(snapshot) = over else {
        panic!("the turn was cancelled: {over:?}");
    };
    let failed = turn.failure(&snapshot).await.expect("no answer");
    assert_eq!(failed.outcome, RequestOutcome::Cancelled);
}

/// Memory for answers that a test grants, one read at a time.
struct GatedMemory {
    asked: crate::locks::Lock<Vec<u64>>,
    grants: tokio::sync::Semaphore,
}

impl GatedMemory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            asked: crate::locks::Lock::default(),
            grants: tokio::sync::Semaphore::new(0),
        })
    }

    fn asked(&self) -> Vec<u64> {
        self.asked.lock().clone()
    }
}

impl AnswerMemory for GatedMemory {
    fn take(&self, bytes: u64) -> futures_util::future::BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.asked.lock().push(bytes);
            let granted = self.grants.acquire().await;
            granted.expect("it stays open").forget();
            Ok(())
        })
    }
}

async fn complete(turn: &TurnHandle, by: Fenced, output: &str) {
    let input = serde_json::json!({"fence": by.fence, "output": output});
    let input = serde_json::from_value(input).expect("an input");
    let call = Call::by(turn.caller.clone());
    let done = crate::api::request::complete(&turn.engine, &call, by.request, input).await;
    done.expect("it completes");
}

#[tokio::test]
async fn calls_that_wait_for_the_memory_of_a_long_answer_have_nothing_of_it() {
    const CALLS: usize = 8;
    let turn = turn().await;
    let by = claimed(&turn).await;
    let memory = GatedMemory::new();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..CALLS {
        let (turn, memory) = (turn.clone(), Arc::clone(&memory));
        calls.spawn(async move { turn.outcome(Instant::now(), &*memory).await });
    }
    let answer = "x".repeat(300_000);
    complete(&turn, by, &answer).await;
    while memory.asked().len() < CALLS {
        tokio::task::yield_now().await;
    }
    // Each asks once, for the record with the answer, and waits.
    for bytes in memory.asked() {
        assert!((300_000..302_000).contains(&bytes), "{bytes}");
    }
    assert!(calls.try_join_next().is_none());
    for _ in 0..CALLS {
        memory.grants.add_permits(1);
        let snapshot = calls.join_next().await.expect("one of them");
        let snapshot = snapshot.expect("no panic").expect("an outcome");
        assert_eq!(snapshot.reply(ReplyParts::default()).text, answer);
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
        assert!(calls.try_join_next().is_none(), "one grant, one answer");
    }
    assert_eq!(memory.asked().len(), CALLS);
}

#[tokio::test]
async fn a_short_answer_to_a_long_message_takes_no_memory() {
    let turn = turn_about(&"x".repeat(300_000)).await;
    let by = claimed(&turn).await;
    complete(&turn, by, "short").await;
    let memory = GatedMemory::new();
    let snapshot = turn.outcome(Instant::now(), &*memory).await;
    assert_eq!(
        snapshot
            .expect("an outcome")
            .reply(ReplyParts::default())
            .text,
        "short"
    );
    assert!(memory.asked().is_empty());
}
