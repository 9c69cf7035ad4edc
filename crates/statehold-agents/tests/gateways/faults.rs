//! Faults of remote agents: each gives a clear error, stores nothing incomplete, and the next turn
//! works.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use statehold_agents::spec::{AgentSpec, ChatMemory};
use statehold_core::item::{ItemKind, Role};
use statehold_engine::testing;
use statehold_fakes::chat::{stop, streamed, word};
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, send};

use crate::rig::{Outcome, Rig, name};
use crate::world::{brief, chat, conversations};

/// A fault and its expected error code.
const FAULTS: [(&str, &str); 8] = [
    ("silence", "agent_timeout"),
    ("slow", "agent_timeout"),
    ("500", "agent_error"),
    ("cut", "agent_cut_off"),
    ("no end", "agent_cut_off"),
    ("malformed", "agent_malformed"),
    ("endless", "agent_too_large"),
    ("huge", "agent_too_large"),
];

fn fault(name: &str) -> ScriptedResponse {
    let mebibyte = Bytes::from(vec![b'x'; 1024 * 1024]);
    match name {
        "silence" => ScriptedResponse::silence(),
        "slow" => ScriptedResponse::events(vec![word("half an "), BodyStep::Hang]),
        "500" => ScriptedResponse::new(500, "text/plain", vec![send("it broke")]),
        "cut" => ScriptedResponse::events(vec![word("half an "), BodyStep::Cut]),
        "no end" => ScriptedResponse::events(vec![word("half an answer")]),
        "malformed" => {
            let half = send("data: {\"choices\": [{\"delta\": {\"cont\n\n");
            ScriptedResponse::events(vec![half, stop()])
        }
        "endless" => {
            let words = word(&"word ".repeat(10_000));
            ScriptedResponse::events(vec![words.times(usize::MAX)])
        }
        "huge" => {
            let begun = send("{\"choices\": [{\"message\": {\"content\": \"");
            let body = vec![begun, BodyStep::Repeat(mebibyte, 100)];
            ScriptedResponse::new(200, "application/json", body)
        }
        other => panic!("no fault is called {other}"),
    }
}

/// Plays the fault named in the message.
fn named_fault(said: &str) -> Option<ScriptedResponse> {
    FAULTS
        .iter()
        .any(|(name, _)| *name == said)
        .then(|| fault(said))
}

async fn everything_goes_wrong(spec: AgentSpec) -> Outcome {
    // A busy machine must not turn another fault into a timeout.
    let patient = AgentSpec {
        name: name("patient"),
        timeout: Duration::from_secs(20),
        ..clone(&spec)
    };
    let rig = Rig::new(vec![Arc::new(brief(spec)), Arc::new(patient)]).await;
    let runner = rig.runner().await;
    for (fault, code) in FAULTS {
        let is_timeout = code == "agent_timeout";
        let agent = if is_timeout { "agent" } else { "patient" };
        let session = rig.session(agent).await;
        let before = rig.turn(session, agent, "before").await;
        assert_eq!(before, "fine 1", "{fault}");
        let error = rig.failing_turn(session, agent, fault).await;
        assert_eq!(error["code"], code, "{fault}: {error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.len() > 20, "{message}");
        assert!(!message.contains("127.0.0.1"), "{message}");
        // The failed turn stored only its input.
        let items = rig.items(session, agent, ItemKind::Message).await;
        assert_eq!(items.len(), 3, "{fault}");
        // The session is usable: the same task continues.
        let tasks = testing::tasks_of(&rig.engine, session, &name(agent)).await?;
        assert_eq!(tasks.len(), 1);
        let after = rig.turn(session, agent, "after").await;
        assert!(after.starts_with("fine"), "{fault}: {after}");
        let still = testing::tasks_of(&rig.engine, session, &name(agent)).await?;
        assert_eq!(tasks, still, "{fault}");
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

fn clone(spec: &AgentSpec) -> AgentSpec {
    use statehold_agents::spec::AgentKind;
    let kind = match &spec.kind {
        AgentKind::Openai(openai) => AgentKind::Openai(Arc::clone(openai)),
        AgentKind::Conversations(service) => AgentKind::Conversations(Arc::clone(service)),
        _ => panic!("only agents in other processes are tested here"),
    };
    let spec = crate::rig::agent(spec.name.as_str(), kind);
    Arc::into_inner(spec).expect("nobody else has it")
}

#[tokio::test]
async fn an_agent_that_remembers_nothing_may_do_anything() -> Outcome {
    let server = FakeService::start(|seen| {
        let messages = seen.messages();
        let asked = messages.iter().filter(|(role, _)| role == "user").count();
        named_fault(&seen.said()).unwrap_or_else(|| streamed(&format!("fine {asked}")))
    })
    .await;
    everything_goes_wrong(chat("agent", &server, ChatMemory::Restore)).await?;
    // A failed request is not an exchange.
    let vain = |seen: &SeenRequest| {
        let messages = seen.messages();
        let is_fault = |text: &str| FAULTS.iter().any(|(name, _)| *name == text);
        messages
            .iter()
            .rev()
            .skip(1)
            .any(|(_, text)| is_fault(text))
    };
    assert!(!server.seen().iter().any(vain));
    Ok(())
}

#[tokio::test]
async fn an_agent_that_keeps_a_session_may_do_anything() -> Outcome {
    let server = FakeService::start(|seen| {
        let play = named_fault(&seen.said()).unwrap_or_else(|| streamed("fine 1"));
        play.with_header("x-statehold-session", "ses_theirs")
    })
    .await;
    everything_goes_wrong(chat("agent", &server, ChatMemory::Track)).await
}

#[tokio::test]
async fn a_service_that_keeps_conversations_may_do_anything() -> Outcome {
    let service = Arc::new(Conversations::default());
    let server = FakeService::start(move |seen| {
        let play = service.respond(seen, |said| format!("fine {}", said.len()));
        if !seen.path.ends_with("/chat") {
            return play;
        }
        let body = seen.json();
        let said = body["message"]["content"].as_str().expect("text");
        named_fault(said).unwrap_or(play)
    })
    .await;
    everything_goes_wrong(conversations("agent", &server)).await
}

#[tokio::test]
async fn a_call_that_fails_before_its_first_word_is_made_again_as_declared() -> Outcome {
    let server = FakeService::start(|_| ScriptedResponse::new(503, "text/plain", Vec::new())).await;
    let mut spec = chat("agent", &server, ChatMemory::Restore);
    spec.retries = 2;
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("agent").await;
    let error = rig.failing_turn(session, "agent", "hello").await;
    assert_eq!(error["code"], "agent_error");
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    let keys: Vec<_> = seen
        .iter()
        .map(|seen| seen.header("idempotency-key"))
        .collect();
    assert!(
        keys[0].is_some() && keys.iter().all(|key| *key == keys[0]),
        "{keys:?}"
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_an_agent_writes_is_seen_while_it_writes() -> Outcome {
    let server =
        FakeService::start(|_| ScriptedResponse::events(vec![word("Hel"), BodyStep::Hang])).await;
    let rig = Rig::new(vec![Arc::new(chat("agent", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("agent").await;
    let request = rig.ask(session, "agent", "hello").await;
    let mut draft = rig.engine.follow_draft(request);
    let first = tokio::time::timeout(crate::rig::PATIENCE, draft.next()).await;
    assert_eq!(first.expect("it takes too long").as_deref(), Some("Hel"));
    let role = Role::Assistant;
    let items = rig.items(session, "agent", ItemKind::Message).await;
    assert_eq!(items.len(), 1, "no message of {role:?} yet");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
