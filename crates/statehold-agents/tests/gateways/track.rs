//! Chat services that store a session, as another Statehold does.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use statehold_agents::spec::ChatMemory;
use statehold_fakes::chat::streamed;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, locked};

use crate::briefing::briefed;
use crate::rig::{Outcome, Rig, router};
use crate::world::{LOST, LOST_AND_BRIEFED, answer_of, chat, said};

/// The sessions of a service, each with its messages.
type Sessions = Arc<Mutex<Vec<(String, Vec<String>)>>>;

fn play(sessions: &Sessions, seen: &SeenRequest) -> ScriptedResponse {
    let mut sessions = locked(sessions);
    let asked = seen.header("x-statehold-session").expect("a session");
    if asked == "new" {
        let id = format!("ses_{}", sessions.len() + 1);
        sessions.push((id, Vec::new()));
    }
    let last = sessions.last().map(|(id, _)| id.clone());
    let id = if asked == "new" {
        last.expect("it is there")
    } else {
        asked.to_owned()
    };
    let Some((_, said)) = sessions.iter_mut().find(|(known, _)| *known == id) else {
        return ScriptedResponse::json(404, &json!({"error": {"message": "no such session"}}));
    };
    said.push(seen.said());
    streamed(&format!("answer {}", said.len())).with_header("x-statehold-session", &id)
}

#[tokio::test]
async fn a_session_that_only_the_body_names_is_used_too() -> Outcome {
    let server = FakeService::start(|_| {
        ScriptedResponse::json(
            200,
            &json!({
                "choices": [{"message": {"role": "assistant", "content": "yes"}}],
                "statehold": {"status": "completed", "session": "ses_7"},
            }),
        )
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    for said in ["one", "two"] {
        assert_eq!(rig.turn(session, "far", said).await, "yes");
    }
    let seen = server.seen();
    let told: Vec<_> = seen
        .iter()
        .map(|seen| seen.header("x-statehold-session"))
        .collect();
    assert_eq!(told, [Some("new"), Some("ses_7")]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn the_session_that_the_agent_named_is_used_and_only_new_messages_are_sent() -> Outcome {
    let sessions = Sessions::default();
    let played = Arc::clone(&sessions);
    let server = FakeService::start(move |seen| {
        play(&played, seen).after(BodyStep::Wait(Duration::from_millis(20)))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    // These turns are in separate tasks, and race.
    let (first, second) = (
        rig.ask(session, "far", "one").await,
        rig.ask(session, "far", "two").await,
    );
    for request in [first, second] {
        let ended = rig.ended(request).await;
        answer_of(&ended);
    }
    assert_eq!(rig.turn(session, "far", "three").await, "answer 3");
    assert_eq!(locked(&sessions).len(), 1);
    let seen = server.seen();
    let told: Vec<_> = seen
        .iter()
        .map(|seen| seen.header("x-statehold-session"))
        .collect();
    assert_eq!(told, [Some("new"), Some("ses_1"), Some("ses_1")]);
    let last = seen.last().expect("a call");
    assert_eq!(last.messages(), [("user".to_owned(), "three".to_owned())]);
    let ours = session.to_string();
    assert_eq!(last.header("x-statehold-origin-session"), Some(&*ours));
    assert_eq!(last.header("x-statehold-task"), None);
    // The agent gets the same pseudonym each time, and no name.
    let users: Vec<_> = seen
        .iter()
        .map(|seen| seen.json()["user"].clone())
        .collect();
    let user = users[0].as_str().expect("a user");
    assert!(user.starts_with("usr_"), "{user}");
    assert!(users.iter().all(|one| one == user), "{users:?}");
    assert_eq!(seen[0].header("x-statehold-user"), Some(user));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn first_turns_at_once_make_one_session_per_path() -> Outcome {
    let sessions = Sessions::default();
    let played = Arc::clone(&sessions);
    let server = FakeService::start(move |seen| {
        play(&played, seen).after(BodyStep::Wait(Duration::from_millis(20)))
    })
    .await;
    let rig = Rig::new(vec![
        Arc::new(chat("far", &server, ChatMemory::Track)),
        router("front", &[(".", "far")], &["far"]),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let mut requests = Vec::new();
    for n in 0..16 {
        let agent = ["far", "front"][n % 2];
        requests.push(rig.ask(session, agent, &format!("{agent} {n}")).await);
    }
    for request in requests {
        answer_of(&rig.ended(request).await);
    }
    for agent in ["far", "front"] {
        assert_eq!(rig.turn(session, agent, agent).await, "answer 9");
    }
    let sessions = locked(&sessions).clone();
    assert_eq!(sessions.len(), 2);
    for (_, said) in sessions {
        let agent = said.last().expect("a message");
        let is_own = |one: &String| one.starts_with(agent.as_str());
        assert!(said.iter().all(is_own), "{said:?}");
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_session_that_the_agent_lost_is_made_anew_once() -> Outcome {
    let sessions = Sessions::default();
    let played = Arc::clone(&sessions);
    let server = FakeService::start(move |seen| play(&played, seen)).await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    assert_eq!(rig.turn(session, "far", "one").await, "answer 1");
    locked(&sessions)[0].0 = "gone".to_owned();
    let request = rig.ask(session, "far", "two").await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), format!("{LOST}answer 1"));
    let annotations = said(&ended).annotations.expect("annotations");
    assert_eq!(annotations.get(), r#"{"conversation_recreated":true}"#);
    let notes = rig.notes(session, "far").await;
    assert_eq!(notes[0].0, "conversation_recreated");
    assert_eq!(rig.turn(session, "far", "three").await, "answer 2");
    assert_eq!(locked(&sessions).len(), 2);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_lost_its_session_is_told_the_earlier_exchanges_on_request() -> Outcome {
    let sessions = Sessions::default();
    let played = Arc::clone(&sessions);
    let server = FakeService::start(move |seen| play(&played, seen)).await;
    let mut spec = chat("far", &server, ChatMemory::Track);
    spec.brief_on_loss = true;
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    assert_eq!(rig.turn(session, "far", "one").await, "answer 1");
    locked(&sessions)[0].0 = "gone".to_owned();
    let answer = rig.turn(session, "far", "two").await;
    assert_eq!(answer, format!("{LOST_AND_BRIEFED}answer 1"));
    let said = locked(&sessions)[1].1.clone();
    let (earlier, said) = briefed(&said[0]);
    let expected = [
        json!({"role": "user", "content": "one"}),
        json!({"role": "assistant", "content": "answer 1"}),
    ];
    assert_eq!((earlier.as_slice(), said), (&expected[..], "two"));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_key_that_may_not_speak_for_users_makes_the_session_all_the_same() -> Outcome {
    let sessions = Sessions::default();
    let played = Arc::clone(&sessions);
    let server = FakeService::start(move |seen| match seen.header("x-statehold-user") {
        Some(_) => ScriptedResponse::json(403, &json!({"error": {"message": "not this user"}})),
        None => play(&played, seen),
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    assert_eq!(rig.turn(session, "far", "one").await, "answer 1");
    assert_eq!(rig.turn(session, "far", "two").await, "answer 2");
    assert_eq!(server.seen().len(), 3);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_names_no_session_cannot_be_tracked() -> Outcome {
    let server = FakeService::start(|_| streamed("hm")).await;
    let rig = Rig::new(vec![Arc::new(chat("far", &server, ChatMemory::Track))]).await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    let error = rig.failing_turn(session, "far", "one").await;
    assert_eq!(error["code"], "agent_names_no_session");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
