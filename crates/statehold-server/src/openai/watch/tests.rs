use std::sync::Arc;
use std::time::Duration;

use statehold_core::command::{Command, Fenced, StartRequest, StatePatch};
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::{IdMint, SessionId, Shard};
use statehold_core::session::Owner;
use statehold_core::task::CloseOn;
use statehold_engine::{
    Call, Caller, Claim, Engine, EngineOptions, MemoryKeys, NewAsk, Reply, SystemClock,
};
use statehold_store::memory::MemoryStore;

use super::super::turn::{as_client, start_on};
use super::*;

async fn engine() -> Engine {
    let (store, keys) = (MemoryStore::new(), MemoryKeys::default());
    let clock = Arc::new(SystemClock);
    let options = EngineOptions::default();
    let engine = Engine::start(Arc::new(store), Arc::new(keys), clock, options).await;
    engine.expect("an engine in memory")
}

/// A turn that nobody works on yet.
async fn turn() -> Place {
    let engine = engine().await;
    let caller = Caller::local("default".parse().expect("a name"));
    let tenant = caller.tenant.clone();
    let user = engine.user_id(&tenant, "bob").await.expect("a user");
    let shard = Shard::of_owner("default", "app", "bob");
    let session = SessionId::from_uuid(IdMint::new(engine.now(), shard, 7).next_uuid());
    let keys = engine.payloads_for(&tenant, user).await;
    let mut payloads = keys.expect("keys");
    let owner = Owner {
        agent: "helper".parse().expect("a name"),
        app: "app".parse().expect("a name"),
        tenant,
        user,
    };
    let create = Command::CreateSession {
        owner,
        name: None,
        labels: None,
        state: StatePatch::default(),
        ttl: None,
    };
    let (call, reply): (_, Reply) = (Call::by(caller.clone()), Arc::new(|_| Vec::new()));
    let made = engine
        .submit(session, &call, &create, &payloads, &reply)
        .await;
    made.expect("a session");
    let start = Command::StartRequest(StartRequest {
        agent: "helper".parse().expect("a name"),
        task: None,
        parent: None,
        input: payloads.put(br#"{"content":"hello"}"#.to_vec()),
        attachments: Vec::new(),
        close_on: CloseOn::Never,
        lease_ttl_ms: None,
        items: Vec::new(),
        state: StatePatch::default(),
        output: None,
    });
    let started = start_on(&engine, session, &call, &start, &payloads, None, None).await;
    let (request, task, _) = started.expect("a turn");
    Place {
        engine,
        reader: as_client(&caller),
        caller,
        session,
        task,
        request,
        tells_own_holds: false,
    }
}

async fn claimed(place: &Place) -> Fenced {
    let claim = Claim {
        agent: "helper".parse().expect("a name"),
        max: 1,
        wait: Duration::ZERO,
        lease_ms: 60_000,
        request: None,
    };
    let claimed = place.engine.claim(&place.caller, &claim).await;
    let mut claimed = claimed.expect("a claim");
    let live = claimed
        .pop()
        .expect("the turn")
        .detail
        .request
        .live()
        .cloned();
    Fenced {
        request: place.request,
        fence: live.expect("it is live").fence,
    }
}

#[tokio::test]
async fn a_turn_is_looked_at_when_it_waits_or_has_ended_and_not_while_it_goes_on() {
    let place = turn().await;
    let (look, queued) = place.glance().await.expect("a glance");
    assert!(look.is_none());
    let by = claimed(&place).await;
    let (look, running) = place.glance().await.expect("a glance");
    assert!(look.is_none() && running == queued + 1);
    let ask = NewAsk {
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
    let (engine, call) = (&place.engine, Call::by(place.caller.clone()));
    let owner = engine.owner(place.session).await.expect("an owner");
    let keys = engine.payloads_for(&owner.tenant, owner.user).await;
    let payloads = keys.expect("keys");
    let with = (Vec::new(), payloads.clone());
    let asked = engine.open_hold(place.session, &call, by, ask, with).await;
    asked.expect("a question");
    let (look, asking) = place.glance().await.expect("a glance");
    assert!(look.is_some_and(|look| look.is_paused()) && asking > running);
    let cancel = Command::CancelRequest {
        request: place.request,
    };
    let reply: Reply = Arc::new(|_| Vec::new());
    let ended = engine
        .submit(place.session, &call, &cancel, &payloads, &reply)
        .await;
    ended.expect("it is cancelled");
    let (look, _) = place.glance().await.expect("a glance");
    let look = look.expect("it has ended");
    assert!(look.sign.ended.is_some() && !look.is_paused());
}
