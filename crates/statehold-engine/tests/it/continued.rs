//! A turn that repeats a failed one goes on from it, at a cost that does not depend on the session.

use std::sync::Arc;

use statehold_core::command::{Command, StatePatch};
use statehold_core::digest::Digest;
use statehold_core::ids::RequestId;
use statehold_core::item::{ItemKind, NewCallMark, NewItem, Visibility};
use statehold_core::record::Event;
use statehold_core::request::Continuation;
use statehold_engine::Call;
use statehold_engine::api::turn::{DeliveryLog, TurnInput, UserMessage, open_turn};

use crate::rig::{Rig, fenced};

/// Says hello to the agent of the session.
async fn say_hello(rig: &Rig, log: &Arc<DeliveryLog>) -> RequestId {
    let input = TurnInput {
        call: Call::by(rig.caller.clone()),
        key: None,
        session: rig.session,
        agent: "helper".parse().expect("a name"),
        task: None,
        message: UserMessage {
            text: "hello".to_owned(),
            ..UserMessage::default()
        },
        credential: None,
        call_credential: None,
        config: Some(Digest::sha256(b"a declaration")),
        decides_elsewhere: false,
        one_at_a_time: false,
        arrived: std::time::Instant::now(),
    };
    let turn = open_turn(&rig.engine, log, input, Vec::new()).await;
    turn.expect("a turn").handle.request
}

/// Fails the turn for a reason that may be over soon, perhaps with a tool call that has no result.
async fn fail(rig: &Rig, request: RequestId, leaves_call: bool) {
    let ttl_ms = 60_000;
    let claimed = rig.send(&Command::ClaimRequest { request, ttl_ms }).await;
    claimed.expect("it is claimed");
    if leaves_call {
        let called = rig.submit(|payloads| Command::AppendItems {
            by: fenced(request, 1),
            items: vec![NewItem {
                kind: ItemKind::ToolCall,
                visibility: Visibility::Hidden,
                role: None,
                body: payloads.put(br#"{"tool":"pay","args":{}}"#.to_vec()),
                attachments: Vec::new(),
                call: Some(NewCallMark::Call {
                    gated: false,
                    idempotent: false,
                }),
            }],
            state: StatePatch::default(),
            task_state: None,
        });
        called.await.expect("it is recorded");
    }
    let failed = rig.submit(|payloads| Command::FailRequest {
        by: fenced(request, 1),
        error: payloads.put(br#"{"code":"agent_timeout","message":"too late"}"#.to_vec()),
        cancel_children: true,
    });
    failed.await.expect("it fails");
}

/// The facts that the newest request of the session took over.
async fn continuation(rig: &Rig) -> Option<Continuation> {
    let newest = rig.records_from(rig.revision().await).await;
    let mut events = newest[0].events.iter();
    events.find_map(|event| match event {
        Event::RequestStarted { continues, .. } => *continues,
        _ => None,
    })
}

#[tokio::test]
async fn a_failed_turn_is_continued_without_folding_the_log() {
    let rig = Rig::new(None).await;
    let log = Arc::new(DeliveryLog::new(rig.engine.now()));
    let first = say_hello(&rig, &log).await;
    fail(&rig, first, false).await;
    // Its client was told of the failure.
    log.forget(rig.session, first);
    rig.store.take_folds();
    let second = say_hello(&rig, &log).await;
    assert_eq!(rig.store.take_folds(), 0);
    assert_ne!(second, first);
    let taken_over = continuation(&rig).await.expect("it goes on");
    assert_eq!((taken_over.request, taken_over.ran), (first, false));
}

#[tokio::test]
async fn a_failed_turn_with_a_call_that_may_have_run_is_not_continued() {
    let rig = Rig::new(None).await;
    let log = Arc::new(DeliveryLog::new(rig.engine.now()));
    let first = say_hello(&rig, &log).await;
    fail(&rig, first, true).await;
    log.forget(rig.session, first);
    rig.store.take_folds();
    let told = say_hello(&rig, &log).await;
    assert_eq!(rig.store.take_folds(), 0);
    assert_eq!(told, first, "the client gets the same failure again");
}
