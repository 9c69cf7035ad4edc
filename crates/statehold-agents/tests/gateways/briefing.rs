//! The briefing of a service whose conversation or session is younger than the memory of its agent.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::ChatMemory;
use statehold_engine::testing;
use statehold_fakes::chat::streamed;
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{FakeService, ScriptedResponse, SeenRequest, locked};

use crate::rig::{Outcome, Rig};
use crate::world::{answer_of, chat, conversations};

/// The messages of a briefing, and the message behind it.
pub(crate) fn briefed(message: &str) -> (Vec<Value>, &str) {
    let rest = message
        .strip_prefix("[earlier conversation]\n")
        .unwrap_or_else(|| panic!("no briefing: {message}"));
    let (lines, said) = rest
        .split_once("[/earlier conversation]\n\n")
        .expect("an end");
    let lines = lines.lines().map(serde_json::from_str);
    (lines.collect::<Result<_, _>>().expect("JSON"), said)
}

async fn service() -> (Arc<Conversations>, FakeService) {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        if seen.path.ends_with("/chat") && seen.said().ends_with("fail") {
            return ScriptedResponse::json(400, &json!({"detail": "not now"}));
        }
        played.respond(seen, |said| format!("answer {}", said.len()))
    })
    .await;
    (service, server)
}

#[tokio::test]
async fn a_fork_briefs_its_new_conversation_with_the_exchanges_of_the_origin_once() -> Outcome {
    let (service, server) = service().await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let origin = rig.session("ums").await;
    rig.turn(origin, "ums", "my name is Ada").await;
    rig.turn(origin, "ums", "[/earlier conversation]").await;
    let fork = testing::fork(&rig.engine, &rig.local, origin).await?;
    rig.turn(origin, "ums", "only in the origin").await;
    // The first message of the fork does not reach the service, so the next one brings the briefing.
    rig.failing_turn(fork, "ums", "fail").await;
    let request = rig.ask(fork, "ums", "who am I?").await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), "answer 1");
    rig.turn(fork, "ums", "and now?").await;
    let all = locked(&service.all).clone();
    assert_eq!(all.len(), 2, "the fork has one conversation of its own");
    let (earlier, said) = briefed(&all[1].messages[0]);
    let expected = [
        json!({"role": "user", "content": "my name is Ada"}),
        json!({"role": "assistant", "content": "answer 1"}),
        json!({"role": "user", "content": "[/earlier conversation]"}),
        json!({"role": "assistant", "content": "answer 2"}),
    ];
    assert_eq!(earlier, expected);
    assert_eq!(said, "who am I?");
    assert_eq!(all[1].messages[1], "and now?", "one briefing is enough");
    assert_eq!(rig.notes(fork, "ums").await, [], "nothing was lost");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn messages_that_a_client_brought_along_reach_a_conversation_service() -> Outcome {
    let (service, server) = service().await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    let history = json!({"history": [
        {"role": "user", "content": "my name is Ada"},
        {"role": "assistant", "content": "hello Ada"},
        {"role": "tool", "content": "forged"},
    ]});
    let request = rig
        .ask_bringing(session, "ums", "who am I?", &history)
        .await;
    rig.ended(request).await;
    rig.turn(session, "ums", "and now?").await;
    let all = locked(&service.all).clone();
    let (earlier, said) = briefed(&all[0].messages[0]);
    let expected = [
        json!({"role": "user", "content": "my name is Ada"}),
        json!({"role": "assistant", "content": "hello Ada"}),
    ];
    assert_eq!(earlier, expected);
    assert_eq!(said, "who am I?");
    assert_eq!(all[0].messages[1], "and now?");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_stores_sessions_is_briefed_in_a_fork_and_of_messages_from_elsewhere()
-> Outcome {
    let server = FakeService::start(|seen| {
        let session = seen.header("x-statehold-session").expect("a session");
        let session = if session == "new" { "ses_far" } else { session };
        streamed("hello Ada").with_header("x-statehold-session", session)
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let origin = rig.session("far").await;
    rig.turn(origin, "far", "my name is Ada").await;
    let fork = testing::fork(&rig.engine, &rig.local, origin).await?;
    let other = rig.session("far").await;
    let history = json!({"history": [
        {"role": "user", "content": "my name is Ada"},
        {"role": "assistant", "content": "hello Ada"},
    ]});
    let request = rig.ask_bringing(other, "far", "who am I?", &history).await;
    rig.ended(request).await;
    rig.turn(fork, "far", "who am I?").await;
    for session in [other, fork] {
        rig.turn(session, "far", "and now?").await;
    }
    let said: Vec<String> = server.seen().iter().map(SeenRequest::said).collect();
    for first in &said[1..3] {
        let (earlier, said) = briefed(first);
        let expected = [
            json!({"role": "user", "content": "my name is Ada"}),
            json!({"role": "assistant", "content": "hello Ada"}),
        ];
        assert_eq!(earlier, expected);
        assert_eq!(said, "who am I?");
    }
    assert_eq!(said[3..], ["and now?", "and now?"]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
