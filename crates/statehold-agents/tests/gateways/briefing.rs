//! The briefing of a service whose conversation or session is younger than the memory of its agent.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::ChatMemory;
use statehold_core::ids::SessionId;
use statehold_engine::api::session::RewindInput;
use statehold_engine::{api, testing};
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

/// Takes a session back to a revision.
pub(crate) async fn rewind(rig: &Rig, session: SessionId, to: u64) {
    let (call, input) = (rig.call(), RewindInput { to });
    let rewound = api::session::rewind(&rig.engine, &call, session, &input).await;
    rewound.expect("it is rewound");
}

async fn revision(rig: &Rig, session: SessionId) -> u64 {
    let found = rig.engine.session(&rig.local, session).await;
    found.expect("a session").revision
}

/// Says alpha and beta, takes beta back, says gamma, takes everything back, and says delta.
pub(crate) async fn rewound_talk(rig: &Rig, session: SessionId, agent: &str) {
    rig.turn(session, agent, "alpha").await;
    let after_alpha = revision(rig, session).await;
    rig.turn(session, agent, "beta").await;
    rewind(rig, session, after_alpha).await;
    rig.turn(session, agent, "gamma").await;
    rig.turn(session, agent, "more").await;
    rewind(rig, session, 1).await;
    rig.turn(session, agent, "delta").await;
}

/// Requires that each conversation has what was kept, and nothing that was taken back.
#[track_caller]
pub(crate) fn require_kept_only(conversations: &[Vec<String>]) {
    let [first, second, third] = conversations else {
        panic!("three conversations, not {conversations:?}");
    };
    assert_eq!(first, &["alpha", "beta"]);
    let (earlier, said) = briefed(&second[0]);
    assert_eq!(
        (earlier.len(), &earlier[0]["content"]),
        (2, &json!("alpha"))
    );
    assert_eq!((said, second[1].as_str()), ("gamma", "more"));
    assert_eq!(third, &["delta"]);
}

#[tokio::test]
async fn a_conversation_service_does_not_know_what_a_rewind_took_back() -> Outcome {
    let (service, server) = service().await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    rewound_talk(&rig, session, "ums").await;
    let all = locked(&service.all).clone();
    let all: Vec<_> = all.into_iter().map(|one| one.messages).collect();
    require_kept_only(&all);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_stores_sessions_does_not_know_what_a_rewind_took_back() -> Outcome {
    let made = std::sync::atomic::AtomicU64::new(0);
    let server = FakeService::start(move |seen| {
        let session = seen.header("x-statehold-session").expect("a session");
        let session = match session {
            "new" => {
                let number = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                format!("ses_{number}")
            }
            known => known.to_owned(),
        };
        streamed("heard").with_header("x-statehold-session", &session)
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    rewound_talk(&rig, session, "far").await;
    let said = server.seen();
    let said = said.iter().map(|seen| {
        let session = seen.header("x-statehold-session").unwrap_or_default();
        (session.to_owned(), seen.said())
    });
    let mut all: Vec<Vec<String>> = Vec::new();
    for (session, said) in said {
        match all.last_mut() {
            Some(last) if session != "new" => last.push(said),
            _ => all.push(vec![said]),
        }
    }
    require_kept_only(&all);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
