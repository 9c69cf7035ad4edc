//! Keys below every surface: the engine itself refuses a bound worker in sessions of others, and a key that
//! was revoked.

use std::collections::BTreeSet;

use statehold_core::command::Command;
use statehold_engine::api::caller::authenticate;
use statehold_engine::api::state::StateQuery;
use statehold_engine::{Call, Caller, EngineError, NewKey, PageLimit, Payloads, Roles, testing};

use crate::rig::Rig;

/// A worker whose key is bound to one agent.
fn worker_of(rig: &Rig, agent: &str) -> Caller {
    let worker = "worker".parse().expect("a role is a name");
    Caller {
        roles: Roles::from([worker].into_iter().collect::<BTreeSet<_>>()),
        agents: [agent.parse().expect("a name")].into(),
        ..Caller::worker_of_server(rig.caller.tenant.clone())
    }
}

#[tokio::test]
async fn a_bound_worker_starts_and_reads_nothing_in_sessions_of_other_agents() {
    let mut rig = Rig::new(None).await;
    let revision = rig.revision().await;
    rig.caller = worker_of(&rig, "stranger");
    let refused = rig.start_for("stranger", Some(60_000)).await;
    assert!(matches!(refused, Err(EngineError::NotFound)), "{refused:?}");
    let (caller, session) = (&rig.caller, rig.session);
    let read = rig
        .engine
        .transcript(caller, session, None, PageLimit::entries(10))
        .await;
    assert!(matches!(read, Err(EngineError::NotFound)), "{read:?}");
    let read = rig
        .engine
        .state(
            caller,
            session,
            (&StateQuery::default(), PageLimit::entries(10)),
        )
        .await;
    assert!(matches!(read, Err(EngineError::NotFound)), "{read:?}");

    // The same worker of the session's own agent.
    rig.caller = worker_of(&rig, "helper");
    assert_eq!(rig.revision().await, revision, "nothing was written");
    rig.start_for("helper", Some(60_000))
        .await
        .expect("its own");
    let read = rig
        .engine
        .transcript(&rig.caller, rig.session, None, PageLimit::entries(10));
    assert_eq!(read.await.expect("its own").items.len(), 1);
}

#[tokio::test]
async fn a_caller_whose_key_was_revoked_commits_nothing() {
    let rig = Rig::new(None).await;
    let new = NewKey {
        name: None,
        roles: rig.caller.roles.names().clone(),
        user: None,
        owner: None,
        agents: BTreeSet::new(),
        expires_in_ms: None,
    };
    let issued = rig.engine.create_key(&rig.caller, new).await;
    let issued = issued.expect("a key");
    let found = authenticate(&rig.engine, &issued.secret).await;
    let (holder, _) = found.expect("keys are read").expect("a caller");
    let revoked = rig.engine.revoke_key(&rig.caller, issued.key.id).await;
    revoked.expect("it is revoked");
    // The call was authenticated before, and has waited since.
    let (call, payloads) = (Call::by(holder), Payloads::none());
    let close = Command::CloseSession { cancel_live: true };
    let sent = testing::commit(&rig.engine, rig.session, &call, (&close, &payloads), None).await;
    assert!(matches!(sent, Err(EngineError::KeyEnded)), "{sent:?}");
    assert_eq!(rig.revision().await, 1);
}
