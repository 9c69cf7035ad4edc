//! A worker bound to agents, below every surface: the engine itself refuses it in sessions of others.

use statehold_engine::{Caller, EngineError, Roles};

use crate::rig::Rig;

/// A worker whose key is bound to one agent.
fn worker_of(rig: &Rig, agent: &str) -> Caller {
    let worker = "worker".parse().expect("a role is a name");
    Caller {
        roles: Roles::from(
            [worker]
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>(),
        ),
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
    let read = rig.engine.transcript(caller, session, None, 10).await;
    assert!(matches!(read, Err(EngineError::NotFound)), "{read:?}");
    let read = rig.engine.state(caller, session).await;
    assert!(matches!(read, Err(EngineError::NotFound)), "{read:?}");

    // The same worker of the session's own agent.
    rig.caller = worker_of(&rig, "helper");
    assert_eq!(rig.revision().await, revision, "nothing was written");
    rig.start_for("helper", Some(60_000))
        .await
        .expect("its own");
    let read = rig.engine.transcript(&rig.caller, rig.session, None, 10);
    assert_eq!(read.await.expect("its own").items.len(), 1);
}
