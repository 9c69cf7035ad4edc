//! The memory of agents behind chat completions: talking on while a turn is open, turns at once, and the
//! state of each.

use std::sync::Arc;

use serde_json::json;
use statehold_agents::spec::ChatMemory;
use statehold_core::hold::DecisionKind;
use statehold_fakes::chat::{streamed, streamed_with};
use statehold_fakes::{BodyStep, FakeService, SeenRequest};
use tokio::sync::{Barrier, Notify};

use crate::pause::{asked, decisions, paused};
use crate::rig::{Outcome, PATIENCE, Rig, error};
use crate::world::{answer_of, chat};

const TEN: &str = "Calculate fibonacci(10)";
const LIST: &str = "List users";
const FIRST: &str = "Delete the first user";
const TWENTY: &str = "Now calculate fibonacci(20)";
const SECOND: &str = "Delete the second user";
const THIRTY: &str = "Now calculate fibonacci(30)";

fn done(said: &str) -> String {
    format!("{said}: done")
}

/// The texts of a call, without roles.
fn texts(seen: &SeenRequest) -> Vec<String> {
    let messages = seen.messages().into_iter();
    messages.map(|(_, text)| text).collect()
}

/// The texts of a call that knows these turns, and says the last of them.
fn knowing(turns: &[&str]) -> Vec<String> {
    let (last, known) = turns.split_last().expect("a message");
    let mut texts: Vec<String> = Vec::new();
    for said in known {
        texts.extend([(*said).to_owned(), done(said)]);
    }
    texts.push((*last).to_owned());
    texts
}

/// The call that said this. Waits for it.
async fn call(server: &FakeService, said: &str) -> SeenRequest {
    let wait = async {
        loop {
            if let Some(seen) = server.seen().into_iter().find(|seen| seen.said() == said) {
                return seen;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("the service is called")
}

// An agent with `restore` cannot wait for a person. Its open turns are those that it still works on.
#[tokio::test]
async fn talking_on_while_turns_are_open_keeps_one_memory() -> Outcome {
    let gates = [FIRST, SECOND].map(|said| (said, Arc::new(Notify::new())));
    let waits = gates.clone();
    let server = FakeService::start(move |seen| {
        let said = seen.said();
        let answer = streamed(&done(&said));
        match waits.iter().find(|(slow, _)| *slow == said) {
            Some((_, gate)) => answer.after(BodyStep::Until(Arc::clone(gate))),
            None => answer,
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    for said in [TEN, LIST] {
        rig.turn(session, "gpa", said).await;
    }
    let first = rig.ask(session, "gpa", FIRST).await;
    assert_eq!(
        texts(&call(&server, FIRST).await),
        knowing(&[TEN, LIST, FIRST])
    );
    rig.turn(session, "gpa", TWENTY).await;
    let second = rig.ask(session, "gpa", SECOND).await;
    let told = call(&server, SECOND).await;
    assert_eq!(texts(&told), knowing(&[TEN, LIST, TWENTY, SECOND]));
    for (request, (said, gate)) in [second, first].into_iter().zip(gates.iter().rev()) {
        gate.notify_one();
        assert_eq!(answer_of(&rig.ended(request).await), done(said));
    }
    rig.turn(session, "gpa", THIRTY).await;
    let told = call(&server, THIRTY).await;
    let in_order = [TEN, LIST, TWENTY, SECOND, FIRST, THIRTY];
    assert_eq!(texts(&told), knowing(&in_order));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

// An agent with `track` waits for people in its one session, so a turn in between is refused until the
// decision; it neither reaches the agent nor changes what the waiting turn knows.
#[tokio::test]
async fn a_deletion_that_waits_at_the_agent_goes_on_in_its_session_after_other_turns() -> Outcome {
    let server = FakeService::start(move |seen| {
        let said = seen.said();
        if said.starts_with("Delete") && decisions(seen).is_none() {
            let id = if said == FIRST { "hld_1" } else { "hld_2" };
            let action = json!({"tool": "delete_user", "args": {"id": id}, "digest": "sha256:a"});
            return paused(
                &json!([{"id": id, "kind": "approval", "title": said, "action": action}]),
            );
        }
        streamed(&done(&said)).with_header("x-statehold-session", "ses_far")
    })
    .await;
    let other = FakeService::start(|seen| streamed(&done(&seen.said()))).await;
    let rig = Rig::new(vec![
        Arc::new(chat("far", &server, ChatMemory::Track)),
        Arc::new(chat("near", &other, ChatMemory::Restore)),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("far").await;
    for said in [TEN, LIST] {
        assert_eq!(rig.turn(session, "far", said).await, done(said));
    }
    for deletion in [FIRST, SECOND] {
        let request = rig.ask(session, "far", deletion).await;
        let holds = asked(&rig, request).await;
        let busy = rig.ask(session, "far", TWENTY).await;
        let busy = error(&rig.ended(busy).await);
        assert_eq!(busy["code"], "agent_busy");
        assert!(busy["message"].as_str().expect("text").contains(deletion));
        for said in [TWENTY, THIRTY] {
            rig.turn(session, "near", said).await;
        }
        rig.decide(&holds[0], DecisionKind::Approve, None).await;
        assert_eq!(answer_of(&rig.ended(request).await), done(deletion));
        assert_eq!(rig.turn(session, "far", TWENTY).await, done(TWENTY));
    }
    let seen = server.seen();
    let said: Vec<String> = seen.iter().map(SeenRequest::said).collect();
    let deleted = |said| [said, said, TWENTY];
    assert_eq!(
        said,
        [
            vec![TEN, LIST],
            deleted(FIRST).into(),
            deleted(SECOND).into()
        ]
        .concat()
    );
    let sessions = seen[1..]
        .iter()
        .map(|seen| seen.header("x-statehold-session"));
    assert!(
        sessions
            .into_iter()
            .all(|session| session == Some("ses_far"))
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn turns_at_once_do_not_know_each_other_and_the_next_gets_each_with_its_own_state() -> Outcome
{
    let all_six = Arc::new(Barrier::new(6));
    let server = FakeService::start(move |seen| {
        let said = seen.said();
        let answer = streamed_with(&done(&said), &json!({"state": {"of": said}}).to_string());
        if said == "7" {
            return answer;
        }
        answer.after(BodyStep::Meet(Arc::clone(&all_six)))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    let mut requests = Vec::new();
    for said in ["1", "2", "3", "4", "5", "6"] {
        requests.push(rig.ask(session, "gpa", said).await);
        assert_eq!(texts(&call(&server, said).await), [said]);
    }
    for request in requests {
        answer_of(&rig.ended(request).await);
    }
    rig.turn(session, "gpa", "7").await;
    let last = call(&server, "7").await.json();
    let messages = last["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 13);
    let mut known = Vec::new();
    for exchange in messages[..12].chunks(2) {
        let said = exchange[0]["content"].as_str().expect("text");
        let answer = json!({"role": "assistant", "content": done(said),
                            "custom_content": {"state": {"of": said}}});
        assert_eq!(exchange[1], answer, "its own state, with its own message");
        known.push(said);
    }
    known.sort_unstable();
    assert_eq!(known, ["1", "2", "3", "4", "5", "6"]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
