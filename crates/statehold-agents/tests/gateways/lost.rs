//! The process crashes before and after each step: the turn resumes, and a call with a recorded result
//! is not repeated.

use std::sync::Arc;
use std::sync::Mutex;

use http::Method;
use serde_json::json;
use statehold_agents::runner::{CommitPhase, SimulatedCrash, StepKind};
use statehold_agents::spec::{AgentSpec, ChatMemory};
use statehold_core::ids::{RequestId, SessionId};
use statehold_fakes::chat::{streamed, streamed_with};
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{FakeService, ScriptedResponse, SeenRequest, locked};

use crate::briefing::briefed;
use crate::rig::{Outcome, PATIENCE, Rig};
use crate::world::{LOST, LOST_AND_BRIEFED, answer_of, chat, conversations};

/// Sends a message, crashes the process at a step, starts another, and returns the answer.
pub(crate) async fn lost_at(rig: &Rig, session: SessionId, at: (StepKind, CommitPhase)) -> String {
    let reached = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&reached);
    let first = rig
        .watched(Arc::new(move |kind, moment| {
            if (kind, moment) == at {
                told.notify_one();
                std::panic::resume_unwind(Box::new(SimulatedCrash));
            }
        }))
        .await;
    let request = rig.ask(session, "agent", "hello").await;
    let story = async {
        reached.notified().await;
        first.stop().await;
        let second = rig.runner().await;
        let ended = rig.ended(request).await;
        second.stop().await;
        ended
    };
    let ended = tokio::time::timeout(PATIENCE, story).await;
    answer_of(&ended.expect("it takes too long"))
}

fn count(server: &FakeService, is_meant: impl Fn(&SeenRequest) -> bool) -> usize {
    server.seen().iter().filter(|seen| is_meant(seen)).count()
}

async fn rig(spec: AgentSpec) -> (Rig, SessionId) {
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let session = rig.session("agent").await;
    (rig, session)
}

/// A call without a recorded result is repeated; a recorded one is not. The last call is recorded
/// together with the answer.
pub(crate) fn calls((kind, moment): (StepKind, CommitPhase)) -> usize {
    let is_last = matches!(kind, StepKind::AgentCall | StepKind::Answer);
    1 + usize::from(is_last && moment == CommitPhase::Before)
}

pub(crate) const MOMENTS: [CommitPhase; 2] = [CommitPhase::Before, CommitPhase::After];

#[tokio::test]
async fn a_turn_of_an_agent_that_remembers_nothing_goes_on() -> Outcome {
    for kind in [StepKind::AgentCall, StepKind::Answer] {
        for moment in MOMENTS {
            let server =
                FakeService::start(|_| streamed_with("hello to you", r#"{"state":{"n":1.0}}"#))
                    .await;
            let (rig, session) = rig(chat("agent", &server, ChatMemory::Restore)).await;
            let at = (kind, moment);
            assert_eq!(lost_at(&rig, session, at).await, "hello to you", "{at:?}");
            assert_eq!(server.seen().len(), calls(at), "{at:?}");
            let notes = rig.notes(session, "agent").await;
            assert_eq!(
                notes,
                [("agent_state".to_owned(), json!({"state": {"n": 1.0}}))]
            );
            rig.engine.shut_down().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_turn_of_a_service_that_keeps_conversations_goes_on_in_the_same_one() -> Outcome {
    for kind in [
        StepKind::Conversation,
        StepKind::AgentCall,
        StepKind::Answer,
    ] {
        for moment in MOMENTS {
            let service = Arc::new(Conversations::default());
            let played = Arc::clone(&service);
            let server =
                FakeService::start(move |seen| played.respond(seen, |_| "hello to you".to_owned()))
                    .await;
            let (rig, session) = rig(conversations("agent", &server)).await;
            let at = (kind, moment);
            assert_eq!(lost_at(&rig, session, at).await, "hello to you", "{at:?}");
            // A conversation that was created but not recorded is found.
            assert_eq!(locked(&service.all).len(), 1, "{at:?}");
            let chats = count(&server, |seen| seen.path.ends_with("/chat"));
            assert_eq!(chats, calls(at), "{at:?}");
            let seen = server.seen();
            let said = seen.iter().filter(|seen| seen.path.ends_with("/chat"));
            let keys: std::collections::BTreeSet<_> =
                said.map(|seen| seen.header("idempotency-key")).collect();
            assert!(keys.len() == 1 && !keys.contains(&None), "{keys:?}");
            let looks = count(&server, |seen| seen.method == Method::GET);
            let is_unsure = at == (StepKind::Conversation, CommitPhase::Before);
            assert_eq!(looks, usize::from(is_unsure), "{at:?}");
            rig.engine.shut_down().await;
        }
    }
    Ok(())
}

/// Loses the conversation of a session and crashes at a step of the next turn.
async fn lost_conversation_at(at: (StepKind, CommitPhase), brief_on_loss: bool) {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server =
        FakeService::start(move |seen| played.respond(seen, |said| said.len().to_string())).await;
    let spec = AgentSpec {
        brief_on_loss,
        ..conversations("agent", &server)
    };
    let (rig, session) = rig(spec).await;
    let before = rig.runner().await;
    assert_eq!(rig.turn(session, "agent", "before").await, "1");
    before.stop().await;
    "gone".clone_into(&mut locked(&service.all)[0].id);
    let answer = lost_at(&rig, session, at).await;
    let told = if brief_on_loss {
        LOST_AND_BRIEFED
    } else {
        LOST
    };
    let number = answer.strip_prefix(told);
    assert_eq!(number, Some(&*calls(at).to_string()), "{at:?}: {answer}");
    let all = locked(&service.all).clone();
    assert_eq!(all.len(), 2, "{at:?}");
    for message in &all[1].messages {
        let said = if brief_on_loss {
            let (earlier, said) = briefed(message);
            assert_eq!(earlier.len(), 2, "{at:?}: {message}");
            said
        } else {
            message
        };
        assert_eq!(said, "hello", "{at:?}");
    }
    let notes = rig.notes(session, "agent").await;
    assert_eq!(notes.len(), 1, "{at:?}: {notes:?}");
    // The next turn goes on there, and tells nothing more.
    let after = rig.runner().await;
    let next = (calls(at) + 1).to_string();
    assert_eq!(rig.turn(session, "agent", "after").await, next, "{at:?}");
    after.stop().await;
    rig.engine.shut_down().await;
}

#[tokio::test]
async fn a_conversation_that_is_begun_anew_is_begun_anew_once() {
    for kind in [
        StepKind::Conversation,
        StepKind::AgentCall,
        StepKind::Answer,
    ] {
        for moment in MOMENTS {
            for brief_on_loss in [false, true] {
                lost_conversation_at((kind, moment), brief_on_loss).await;
            }
        }
    }
}

/// Pauses for a person the first time, then answers with the decision.
fn asking(decided: &Mutex<Vec<String>>, seen: &SeenRequest) -> ScriptedResponse {
    let body = seen.json();
    let decisions = body["statehold"]["decisions"].as_array();
    let play = match decisions {
        None => {
            let holds = json!([{"id": "hld_1", "kind": "question", "title": "Which one?"}]);
            let said = json!({
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "It waits."}}],
                "statehold": {"status": "paused", "session": "ses_far", "holds": holds},
            });
            ScriptedResponse::json(200, &said)
        }
        Some(decisions) => {
            let decision = &decisions[0];
            let key = decision["key"].as_str().expect("a key").to_owned();
            let mut decided = locked(decided);
            if !decided.contains(&key) {
                decided.push(key);
            }
            let content = decision["content"].as_str().expect("an answer");
            streamed(&format!("You chose {content}"))
        }
    };
    play.with_header("x-statehold-session", "ses_far")
}

/// Decides every hold when it is opened.
async fn person(rig: &Rig, request: RequestId) {
    let asked = rig
        .until(request, |detail| {
            let live = detail.request.live();
            detail.request.ended().is_some() || live.is_some_and(|live| !live.holds.is_empty())
        })
        .await;
    for hold in asked.holds.iter().filter(|hold| hold.closed.is_none()) {
        let hold = rig.engine.hold(&rig.local, hold.hold.id).await;
        let hold = hold.expect("the hold");
        rig.decide(
            &hold,
            statehold_core::hold::DecisionKind::Respond,
            Some("two"),
        )
        .await;
    }
}

#[tokio::test]
async fn people_are_asked_once_and_what_they_say_is_told_once() -> Outcome {
    // The first call, the hold, the call that delivers the decision, and the end.
    let steps = [
        (StepKind::AgentCall, 1),
        (StepKind::Hold, 1),
        (StepKind::AgentCall, 2),
        (StepKind::Answer, 1),
    ];
    for (kind, nth) in steps {
        for moment in MOMENTS {
            let decided = Arc::new(Mutex::default());
            let keys = Arc::clone(&decided);
            let server = FakeService::start(move |seen| asking(&keys, seen)).await;
            let (rig, session) = rig(chat("agent", &server, ChatMemory::Track)).await;
            let (reached, seen) = (Arc::new(tokio::sync::Notify::new()), Mutex::new(0));
            let told = Arc::clone(&reached);
            let first = rig
                .watched(Arc::new(move |at, when| {
                    if (at, when) != (kind, moment) {
                        return;
                    }
                    let mut seen = locked(&seen);
                    *seen += 1;
                    if *seen == nth {
                        drop(seen);
                        told.notify_one();
                        std::panic::resume_unwind(Box::new(SimulatedCrash));
                    }
                }))
                .await;
            let request = rig.ask(session, "agent", "choose").await;
            let story = async {
                reached.notified().await;
                first.stop().await;
                let second = rig.runner().await;
                let ended = rig.ended(request).await;
                second.stop().await;
                ended
            };
            let both = async { tokio::join!(story, person(&rig, request)) };
            let both = tokio::time::timeout(PATIENCE, Box::pin(both)).await;
            let (ended, ()) = both.expect("it takes too long");
            let at = (kind, nth, moment);
            assert_eq!(answer_of(&ended), "You chose two", "{at:?}");
            assert_eq!(ended.holds.len(), 1, "{at:?}");
            assert_eq!(locked(&decided).len(), 1, "one key: {at:?}");
            assert_eq!(server.seen().len(), 1 + calls((kind, moment)), "{at:?}");
            rig.engine.shut_down().await;
        }
    }
    Ok(())
}
