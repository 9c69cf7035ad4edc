//! Number of commits per turn of an agent in another process: each commit waits for the disk.

use std::sync::Arc;

use serde_json::json;
use statehold_agents::spec::ChatMemory;
use statehold_core::item::ItemKind;
use statehold_core::limits::{COMMAND_KEYS_MAX, SESSION_KEYS_MAX};
use statehold_core::record::CommandName::{
    AppendItems, ClaimRequest, CompleteRequest, FailRequest, StartRequest,
};
use statehold_engine::api;
use statehold_fakes::FakeService;
use statehold_fakes::chat::{streamed, streamed_with};
use statehold_fakes::conversations::Conversations;

use crate::rig::{Outcome, Rig, router};
use crate::world::{chat, conversations};

#[tokio::test]
async fn a_turn_through_a_router_is_six_commits() -> Outcome {
    let server = FakeService::start(|_| streamed("hello to you")).await;
    let rig = Rig::new(vec![
        router("coordinator", &[(".", "agent")], &["agent"]),
        Arc::new(chat("agent", &server, ChatMemory::Restore)),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let mut revision = 1;
    for _ in 0..3 {
        let said = rig.turn(session, "coordinator", "hello").await;
        assert_eq!(said, "hello to you");
        let commands = rig.commands_after(session, revision).await;
        let right = [
            StartRequest,
            ClaimRequest,
            // The route, together with the child request and its lease.
            AppendItems,
            StartRequest,
            // The agent's reply with the end of its request, and the end of the turn.
            CompleteRequest,
            CompleteRequest,
        ];
        assert_eq!(commands, right);
        revision += 6;
    }
    let steps = rig.items(session, "agent", ItemKind::Step).await;
    assert_eq!(steps.len(), 3);
    let routes = rig.items(session, "coordinator", ItemKind::Step).await;
    assert_eq!(routes.len(), 3);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_is_said_in_a_conversation_is_committed_with_the_end() -> Outcome {
    let service = Arc::new(Conversations::default());
    let server =
        FakeService::start(move |seen| service.respond(seen, |said| said.join(", "))).await;
    let rig = Rig::new(vec![Arc::new(conversations("agent", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("agent").await;
    rig.turn(session, "agent", "one").await;
    // The intent to create a conversation and its creation are separate commits.
    let first = rig.commands_after(session, 1).await;
    let right = [
        StartRequest,
        ClaimRequest,
        AppendItems,
        AppendItems,
        CompleteRequest,
    ];
    assert_eq!(first, right);
    rig.turn(session, "agent", "two").await;
    let second = rig.commands_after(session, 1 + 5).await;
    assert_eq!(second, [StartRequest, ClaimRequest, CompleteRequest]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// Fills a session with the maximum number of keys.
async fn fill(rig: &Rig, session: statehold_core::ids::SessionId) {
    let keys: Vec<String> = (0..SESSION_KEYS_MAX).map(|n| format!("key-{n}")).collect();
    for some in keys.chunks(COMMAND_KEYS_MAX) {
        let set: serde_json::Map<_, _> = some.iter().map(|key| (key.clone(), json!(1))).collect();
        let input = serde_json::from_str(&json!({ "set": set }).to_string());
        let input = input.expect("a patch");
        let done = api::state::patch(&rig.engine, &rig.call(), session, input).await;
        done.expect("there is room");
    }
}

#[tokio::test]
async fn what_an_agent_said_is_in_the_trace_also_if_its_answer_is_refused() -> Outcome {
    let told = r#"{"state":{"shared_context":{"place":"Rome"}}}"#;
    let server = FakeService::start(move |_| streamed_with("hello to you", told)).await;
    let mut spec = chat("agent", &server, ChatMemory::Restore);
    spec.export = vec!["place".parse().expect("a key")];
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("agent").await;
    fill(&rig, session).await;
    let before = rig.engine.session(&rig.local, session).await?.revision;
    let failed = rig.failing_turn(session, "agent", "hello").await;
    assert_eq!(failed["code"], "limit_reached", "{failed}");
    let commands = rig.commands_after(session, before).await;
    let right = [StartRequest, ClaimRequest, AppendItems, FailRequest];
    assert_eq!(commands, right);
    let steps = rig.items(session, "agent", ItemKind::Step).await;
    assert_eq!(steps.len(), 1);
    assert_eq!(server.seen().len(), 1, "it is asked once");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
