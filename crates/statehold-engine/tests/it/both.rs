//! Two commands in one go: in line together, in order, with nothing between them.

use std::sync::Arc;

use statehold_core::command::{Command, Rejection, StartRequest as NewRequest, StatePatch};
use statehold_core::ids::RequestId;
use statehold_core::item::{ItemKind, NewItem, Visibility};
use statehold_core::record::CommandName::{self, AppendItems, StartRequest};
use statehold_core::record::Event;
use statehold_core::task::CloseOn;
use statehold_engine::testing::{RawView, commit_both};
use statehold_engine::{Call, EngineError};

use crate::order::settle;
use crate::rig::{Rig, fenced, request_of};

/// Writes a step for a request under a fence, and starts a request below it under another.
async fn step_and_start(
    rig: &Rig,
    request: RequestId,
    (fence, fence_below): (u64, u64),
) -> Result<RawView, EngineError> {
    let mut payloads = rig.payloads().await;
    let step = NewItem {
        kind: ItemKind::Step,
        visibility: Visibility::Hidden,
        role: None,
        body: payloads.put(br#"{"name":"route"}"#.to_vec()),
        attachments: Vec::new(),
        call: None,
    };
    let append = Command::AppendItems {
        by: fenced(request, fence),
        items: vec![step],
        state: StatePatch::default(),
        task_state: None,
    };
    let start = Command::StartRequest(NewRequest {
        chat: None,
        continues: None,
        agent: "below".parse().expect("a name"),
        task: None,
        parent: Some(fenced(request, fence_below)),
        input: payloads.put(br#"{"content":"hello"}"#.to_vec()),
        attachments: Vec::new(),
        close_on: CloseOn::Never,
        lease_ttl_ms: Some(30_000),
        items: Vec::new(),
        state: StatePatch::default(),
        output: None,
    });
    let call = Call::by(rig.caller.clone());
    let (first, second) = ((&append, &payloads), (&start, &payloads));
    commit_both(&rig.engine, rig.session, &call, first, second).await
}

/// A session with a request that is worked on, at revision 2.
async fn working() -> (Arc<Rig>, RequestId) {
    let rig = Arc::new(Rig::new(None).await);
    let started = rig.start(Some(30_000)).await.expect("it starts");
    rig.store.take_begun();
    (rig, request_of(&started))
}

/// What the records from revision 3 on came from.
async fn told(rig: &Rig) -> Vec<CommandName> {
    let records = rig.records_from(3).await;
    records.iter().map(|record| record.command).collect()
}

#[tokio::test]
async fn both_are_in_line_before_either_is_durable_and_the_answer_waits_for_both() {
    let (rig, request) = working().await;
    rig.store.set_open(false);
    let both = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move { step_and_start(&rig, request, (1, 1)).await }
    });
    settle().await;
    assert_eq!(rig.store.take_begun(), 2);
    assert!(!both.is_finished(), "nothing is durable yet");
    assert_eq!(rig.revision().await, 2);
    rig.store.set_open(true);
    let done = both.await.expect("no panic").expect("both are done");
    assert_eq!((done.revision, rig.revision().await), (4, 4));
    assert_eq!(told(&rig).await, [AppendItems, StartRequest]);
    let child = rig
        .engine
        .request(&rig.caller, done.request.expect("an id"));
    let child = child.await;
    assert!(child.expect("the request").request.live().is_some());
}

#[tokio::test]
async fn the_first_is_decided_first_also_where_the_session_has_to_be_read() {
    let (rig, request) = working().await;
    let mut rig = Arc::into_inner(rig).expect("nobody else has it");
    rig.restart().await;
    rig.store.take_begun();
    step_and_start(&rig, request, (1, 1)).await.expect("both");
    assert_eq!(told(&rig).await, [AppendItems, StartRequest]);
}

#[tokio::test]
async fn whoever_comes_meanwhile_comes_before_or_after_both() {
    let (rig, request) = working().await;
    rig.store.set_open(false);
    let mut waiting = Vec::new();
    for at in 0..9 {
        let rig = Arc::clone(&rig);
        waiting.push(tokio::spawn(async move {
            if at % 3 == 1 {
                step_and_start(&rig, request, (1, 1)).await.map(drop)
            } else {
                rig.start(None).await.map(drop)
            }
        }));
    }
    rig.store.set_open(true);
    for one in waiting {
        one.await.expect("no panic").expect("it is done");
    }
    let records = rig.records_from(3).await;
    assert_eq!(records.len(), 12);
    let steps = records
        .windows(2)
        .filter(|two| two[0].command == AppendItems);
    let mut below = 0;
    for two in steps {
        let is_below = |event: &Event| matches!(event, Event::RequestStarted { parent: Some(parent), .. } if *parent == request);
        below += usize::from(two[1].events.iter().any(is_below));
    }
    assert_eq!(below, 3, "{records:?}");
}

#[tokio::test]
async fn if_the_first_is_lost_so_is_the_second() {
    let (rig, request) = working().await;
    rig.store.fail_next();
    let lost = step_and_start(&rig, request, (1, 1)).await;
    assert!(matches!(lost, Err(EngineError::Full)), "{lost:?}");
    assert_eq!(rig.store.take_begun(), 2);
    assert_eq!(rig.revision().await, 2);
    step_and_start(&rig, request, (1, 1)).await.expect("both");
    assert_eq!(told(&rig).await, [AppendItems, StartRequest]);
}

#[tokio::test]
async fn if_only_the_second_is_lost_it_is_decided_again() {
    let (rig, request) = working().await;
    rig.store.fail_at(2);
    let done = step_and_start(&rig, request, (1, 1)).await.expect("both");
    assert_eq!((rig.store.take_begun(), done.revision), (3, 4));
    assert_eq!(told(&rig).await, [AppendItems, StartRequest]);
}

#[tokio::test]
async fn if_the_first_is_refused_nothing_is_in_line_and_if_the_second_is_the_first_stays() {
    let (rig, request) = working().await;
    for (fences, in_line) in [((7, 1), 0), ((1, 7), 1)] {
        let refused = step_and_start(&rig, request, fences).await;
        let why = Rejection::StaleFence {
            shown: 7,
            current: 1,
        };
        assert!(
            matches!(&refused, Err(EngineError::Rejected(refused)) if *refused == why),
            "{refused:?}"
        );
        assert_eq!(rig.store.take_begun(), in_line);
    }
    assert_eq!(told(&rig).await, [AppendItems]);
}

#[tokio::test]
async fn if_the_caller_goes_away_both_are_done_all_the_same() {
    let (rig, request) = working().await;
    rig.store.set_open(false);
    let gone = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move { step_and_start(&rig, request, (1, 1)).await }
    });
    settle().await;
    gone.abort();
    rig.store.set_open(true);
    let next = rig.start(None).await.expect("the session goes on");
    assert_eq!(next.revision, 5);
    assert_eq!(told(&rig).await, [AppendItems, StartRequest, StartRequest]);
}
