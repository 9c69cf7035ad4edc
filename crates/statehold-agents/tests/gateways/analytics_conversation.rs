//! Conversations of the Conversational Analytics API: one per session, in every failure case.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, StepKind};
use statehold_agents::spec::DataContext;
use statehold_core::item::ItemKind;
use statehold_engine::policy::Policies;
use statehold_engine::testing;
use statehold_fakes::analytics::{
    Analytics, answer, final_text, is_chat, is_creation, parameter, refused, text,
};
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, locked, send};

use crate::briefing::{briefed, require_kept_only, rewound_talk};
use crate::lost::{MOMENTS, calls, lost_at};
use crate::rig::{Outcome, Rig, book, router};
use crate::world::{LOST, analytics, annotations_of, answer_of, in_conversation, with_agent};

/// A service that answers with the number of messages in the conversation.
async fn counting() -> (Arc<Analytics>, FakeService) {
    let service = Arc::new(Analytics::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        // Long enough that turns would overlap without the lock.
        play.after(BodyStep::Wait(Duration::from_millis(20)))
    })
    .await;
    (service, server)
}

fn count(server: &FakeService, is_meant: impl Fn(&SeenRequest) -> bool) -> usize {
    server.seen().iter().filter(|seen| is_meant(seen)).count()
}

#[tokio::test]
async fn first_turns_at_once_create_one_conversation_per_path() -> Outcome {
    let (service, server) = counting().await;
    let agents = vec![
        Arc::new(analytics("data", &server, in_conversation())),
        router("front", &[(".", "data")], &["data"]),
    ];
    let rig = Rig::new(agents).await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let mut requests = Vec::new();
    for n in 0..16 {
        let agent = ["data", "front"][n % 2];
        requests.push(rig.ask(session, agent, &format!("{agent} {n}")).await);
    }
    let mut answers = Vec::new();
    for request in requests {
        answers.push(answer_of(&rig.ended(request).await));
    }
    answers.sort();
    let expected = (1..=8).flat_map(|n| [format!("answer {n}"), format!("answer {n}")]);
    assert_eq!(answers, expected.collect::<Vec<_>>());
    assert_eq!(count(&server, is_creation), 2);
    let all = locked(&service.all).clone();
    assert_eq!(
        all.len(),
        2,
        "one of the agent, one of the path below the router"
    );
    for one in &all {
        let agent = if one.messages[0].starts_with("data") {
            "data"
        } else {
            "front"
        };
        let is_own = |said: &String| said.starts_with(agent);
        assert!(one.messages.iter().all(is_own), "{:?}", one.messages);
    }
    // Another session has another conversation.
    let other = rig.session("data").await;
    assert_eq!(rig.turn(other, "data", "hello").await, "answer 1");
    assert_eq!(locked(&service.all).len(), 3);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn turns_in_one_conversation_do_not_overlap() -> Outcome {
    let (service, server) = counting().await;
    let rig = Rig::new(vec![Arc::new(analytics(
        "data",
        &server,
        in_conversation(),
    ))])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("data").await;
    let mut requests = Vec::new();
    for n in 0..8 {
        requests.push(rig.ask(session, "data", &format!("message {n}")).await);
    }
    for request in requests {
        answer_of(&rig.ended(request).await);
    }
    assert_eq!(locked(&service.all).len(), 1);
    assert_eq!(service.most_in_flight(), 1, "one at a time");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_turn_in_a_conversation_goes_on_after_a_crash_in_the_same_one() -> Outcome {
    for kind in [
        StepKind::Conversation,
        StepKind::AgentCall,
        StepKind::Answer,
    ] {
        for moment in MOMENTS {
            let (service, server) = counting().await;
            let spec = analytics("agent", &server, in_conversation());
            let rig = Rig::new(vec![Arc::new(spec)]).await;
            let session = rig.session("agent").await;
            let at = (kind, moment);
            let answer = lost_at(&rig, session, at).await;
            assert_eq!(answer, format!("answer {}", calls(at)), "{at:?}");
            assert_eq!(locked(&service.all).len(), 1, "{at:?}");
            assert_eq!(count(&server, is_chat), calls(at), "{at:?}");
            let is_unsure = at == (StepKind::Conversation, CommitPhase::Before);
            let seen = server.seen();
            let begun = seen.iter().filter(|seen| is_creation(seen));
            let ids: Vec<String> = begun.map(|seen| parameter(seen, "requestId")).collect();
            assert_eq!(ids.len(), 1 + usize::from(is_unsure), "{at:?}");
            let ids: BTreeSet<String> = ids.into_iter().collect();
            assert_eq!(ids.len(), 1, "{at:?}");
            rig.engine.shut_down().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_stateless_turn_goes_on_after_a_crash() -> Outcome {
    for kind in [StepKind::AgentCall, StepKind::Answer] {
        for moment in MOMENTS {
            let messages = [text("THOUGHT", &["hm"]), final_text(&"long ".repeat(400))];
            let server = FakeService::start(move |_| answer(&messages)).await;
            let rig = Rig::new(vec![Arc::new(analytics("agent", &server, with_agent()))]).await;
            let session = rig.session("agent").await;
            let at = (kind, moment);
            let answer = lost_at(&rig, session, at).await;
            assert_eq!(answer, "long ".repeat(400), "{at:?}");
            assert_eq!(server.seen().len(), calls(at), "{at:?}");
            let notes = rig.notes(session, "agent").await;
            assert_eq!(notes[0].0, "agent_state", "{at:?}");
            rig.engine.shut_down().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_conversation_whose_creation_had_no_answer_is_used_and_not_created_again() -> Outcome {
    // The answer is lost, and retried in the turn, or not.
    for retries in [0, 1] {
        let service = Arc::new(Analytics::default());
        let (played, is_lost) = (Arc::clone(&service), AtomicBool::new(false));
        let server = FakeService::start(move |seen| {
            let play = played.respond(seen, |said| format!("answer {}", said.len()));
            if is_creation(seen) && !is_lost.swap(true, Ordering::SeqCst) {
                return ScriptedResponse::cut();
            }
            play
        })
        .await;
        let mut spec = analytics("data", &server, in_conversation());
        spec.retries = retries;
        let rig = Rig::new(vec![Arc::new(spec)]).await;
        let runner = rig.runner().await;
        let session = rig.session("data").await;
        if retries == 0 {
            let error = rig.failing_turn(session, "data", "hello").await;
            assert_eq!(error["code"], "agent_cut_off");
        }
        assert_eq!(rig.turn(session, "data", "hello").await, "answer 1");
        assert_eq!(rig.turn(session, "data", "again").await, "answer 2");
        assert_eq!(locked(&service.all).len(), 1);
        assert_eq!(count(&server, is_creation), 2);
        let steps = rig.items(session, "data", ItemKind::Step).await;
        let step: Value =
            serde_json::from_str(steps[0].data.as_ref().expect("data").get()).expect("JSON");
        assert_eq!(step["result"]["found"], true, "{step}");
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn another_conflict_is_not_taken_for_an_existing_conversation() -> Outcome {
    let server = FakeService::start(|seen| {
        if is_creation(seen) {
            refused(409, "ABORTED")
        } else {
            refused(404, "NOT_FOUND")
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(analytics(
        "data",
        &server,
        in_conversation(),
    ))])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("data").await;
    let error = rig.failing_turn(session, "data", "hello").await;
    assert_eq!(error["code"], "agent_error");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("409: it is ABORTED"), "{message}");
    assert_eq!(count(&server, is_chat), 0);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_lost_conversation_is_created_again_once_and_said_so() -> Outcome {
    let (service, server) = counting().await;
    let rig = Rig::new(vec![Arc::new(analytics(
        "data",
        &server,
        in_conversation(),
    ))])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("data").await;
    assert_eq!(rig.turn(session, "data", "hello").await, "answer 1");
    locked(&service.all)[0].name = "moved".to_owned();
    let request = rig.ask(session, "data", "still there?").await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), format!("{LOST}answer 1"));
    assert_eq!(
        annotations_of(&ended),
        json!({"conversation_recreated": true})
    );
    let notes = rig.notes(session, "data").await;
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].0, "conversation_recreated");
    assert_eq!(rig.turn(session, "data", "and now?").await, "answer 2");
    assert_eq!(locked(&service.all).len(), 2);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_service_that_loses_every_analytics_conversation_is_a_clear_error() -> Outcome {
    let service = Analytics::default();
    let server = FakeService::start(move |seen| {
        let created = service.create_or_get(seen);
        created.unwrap_or_else(|| refused(404, "NOT_FOUND"))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(analytics(
        "data",
        &server,
        in_conversation(),
    ))])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("data").await;
    let error = rig.failing_turn(session, "data", "hello").await;
    assert_eq!(error["code"], "conversation_lost");
    assert_eq!(count(&server, is_creation), 2, "twice and no more");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_message_that_may_have_arrived_is_not_sent_again() -> Outcome {
    let service = Arc::new(Analytics::default());
    let calls = AtomicUsize::new(0);
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        match is_chat(seen).then(|| calls.fetch_add(1, Ordering::SeqCst)) {
            Some(0) => refused(503, "UNAVAILABLE"),
            Some(1) => {
                ScriptedResponse::new(200, "application/json", vec![send("[{"), BodyStep::Cut])
            }
            _ => play,
        }
    })
    .await;
    let mut spec = analytics("data", &server, in_conversation());
    spec.retries = 2;
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("data").await;
    let error = rig.failing_turn(session, "data", "one").await;
    assert_eq!(error["code"], "agent_error");
    let error = rig.failing_turn(session, "data", "two").await;
    assert_eq!(error["code"], "agent_cut_off");
    assert_eq!(rig.turn(session, "data", "three").await, "answer 3");
    assert_eq!(count(&server, is_chat), 3);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_fork_has_a_conversation_of_its_own_and_a_briefing() -> Outcome {
    let (service, server) = counting().await;
    let rig = Rig::new(vec![Arc::new(analytics(
        "data",
        &server,
        in_conversation(),
    ))])
    .await;
    let runner = rig.runner().await;
    let origin = rig.session("data").await;
    rig.turn(origin, "data", "my region is Asia").await;
    let fork = testing::fork(&rig.engine, &rig.local, origin).await?;
    rig.turn(origin, "data", "only in the origin").await;
    rig.turn(fork, "data", "where?").await;
    rig.turn(fork, "data", "and now?").await;
    let all = locked(&service.all).clone();
    assert_eq!(all.len(), 2);
    let (earlier, said) = briefed(&all[1].messages[0]);
    let expected = [
        json!({"role": "user", "content": "my region is Asia"}),
        json!({"role": "assistant", "content": "answer 1"}),
    ];
    assert_eq!((earlier.as_slice(), said), (&expected[..], "where?"));
    assert_eq!(all[1].messages[1], "and now?", "one briefing is enough");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn another_data_agent_gets_a_conversation_of_its_own_and_a_briefing() -> Outcome {
    let (service, server) = counting().await;
    let declared = |data_agent: &str| {
        let data_agent = format!("projects/p/locations/global/dataAgents/{data_agent}");
        let mut spec = analytics("data", &server, DataContext::Conversation { data_agent });
        spec.digest = statehold_core::digest::Digest::sha256(spec.name.as_str().as_bytes());
        book(vec![Arc::new(spec)])
    };
    let mut rig = Rig::with(declared("sales"), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("data").await;
    assert_eq!(rig.turn(session, "data", "one").await, "answer 1");
    rig.reload(&runner, declared("stock")).await;
    assert_eq!(rig.turn(session, "data", "two").await, "answer 1");
    assert_eq!(rig.turn(session, "data", "three").await, "answer 2");
    let all = locked(&service.all).clone();
    assert_eq!(all.len(), 2);
    assert!(all[1].agent.ends_with("/stock"));
    let (earlier, said) = briefed(&all[1].messages[0]);
    assert_eq!((earlier.len(), said), (2, "two"));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_conversation_does_not_know_what_a_rewind_took_back() -> Outcome {
    let (service, server) = counting().await;
    let data = analytics("data", &server, in_conversation());
    let rig = Rig::new(vec![Arc::new(data)]).await;
    let runner = rig.runner().await;
    let session = rig.session("data").await;
    rewound_talk(&rig, session, "data").await;
    let all = locked(&service.all).clone();
    let all: Vec<_> = all.into_iter().map(|one| one.messages).collect();
    require_kept_only(&all);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
