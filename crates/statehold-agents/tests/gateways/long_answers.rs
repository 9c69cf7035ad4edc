//! The memory that the answers of a user's turns take while they are written.

use std::sync::Arc;

use statehold_agents::spec::ChatMemory;
use statehold_core::ids::RequestId;
use statehold_engine::TurnMemories;
use statehold_fakes::FakeService;
use statehold_fakes::chat::SpokenAnswer;
use tokio::sync::mpsc;

use crate::rig::{Rig, error};
use crate::world::{answer_of, chat};

const KIB: usize = 1024;

/// A service whose answers the test speaks.
async fn spoken() -> (FakeService, mpsc::UnboundedReceiver<SpokenAnswer>) {
    let (speak, answers) = mpsc::unbounded_channel();
    let server = FakeService::start(move |_| {
        let (answer, response) = SpokenAnswer::new();
        speak.send(answer).expect("the test listens");
        response
    });
    (server.await, answers)
}

/// Reads the draft of an answer until it has a word.
async fn until_written(rig: &Rig, request: RequestId, word: &str) {
    let mut draft = rig.engine.follow_draft(request);
    while let Some(piece) = draft.next().await {
        if piece.contains(word) {
            return;
        }
    }
    panic!("the answer ended without {word:?}");
}

#[tokio::test]
async fn a_turn_over_the_share_of_its_user_fails_and_can_go_on_and_other_users_do_not_notice() {
    let (server, mut answers) = spoken().await;
    let agents = vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))];
    // A user may have 512 KiB, and each byte counts twice.
    let rig = Rig::with_turn_memory(agents, TurnMemories::new(2_048 * KIB)).await;
    let runner = rig.runner().await;
    let long = "x".repeat(200 * KIB);
    let (mine, also_mine) = (rig.session("gpa").await, rig.session("gpa").await);

    let first = rig.ask(mine, "gpa", "one").await;
    let first_answer = answers.recv().await.expect("a call");
    first_answer.say(&long);
    first_answer.say("written");
    until_written(&rig, first, "written").await;

    let second = rig.ask(also_mine, "gpa", "two").await;
    let second_answer = answers.recv().await.expect("a call");
    second_answer.say(&long);
    let failed = rig.ended(second).await;
    assert_eq!(error(&failed)["code"], "answer_memory_full");

    let foreign = rig.session_of("eve", "gpa").await;
    let other = rig.ask(foreign, "gpa", "three").await;
    let other_answer = answers.recv().await.expect("a call");
    other_answer.say(&long);
    other_answer.end();
    assert_eq!(answer_of(&rig.ended(other).await), long);

    first_answer.end();
    assert_eq!(answer_of(&rig.ended(first).await), format!("{long}written"));
    let again = rig.go_on(&failed, "two").await;
    let again_answer = answers.recv().await.expect("a call");
    again_answer.say(&long);
    again_answer.end();
    assert_eq!(answer_of(&rig.ended(again).await), long);
    runner.stop().await;
}
