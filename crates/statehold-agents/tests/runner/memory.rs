//! The memory of a turn: everything that had ended when it started, and the same when it goes on after a
//! pause.

use std::sync::Arc;

use serde_json::json;
use statehold_core::hold::DecisionKind;
use statehold_core::request::{LiveStatus, RequestOutcome};
use statehold_engine::policy::Policies;
use statehold_fakes::chat::{ModelReply, ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolServer, tool};
use tokio::sync::Semaphore;

use crate::approvals::{decide, delete_user, paused, policies};
use crate::llm::{AtWork, Declared, completed, prompt_leads};
use crate::reload::cancel;
use crate::rig::{Outcome, PATIENCE};

/// The user messages of a call to the model.
fn users(model: &ScriptedModel, call: usize) -> Vec<String> {
    let messages = model.messages(call);
    let said = messages.iter().filter(|message| message["role"] == "user");
    said.map(|message| message["content"].as_str().expect("text").to_owned())
        .collect()
}

/// Everything that a call tells the model.
fn told(model: &ScriptedModel, call: usize) -> String {
    json!(model.messages(call)).to_string()
}

/// Waits until the model was asked so often.
async fn asked(model: &ScriptedModel, times: usize) {
    let wait = async {
        while model.asked().len() < times {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("the model is asked");
}

#[tokio::test]
async fn talking_on_while_approvals_are_open_keeps_one_memory() -> Outcome {
    let offered = vec![tool("fibonacci"), tool("list_users"), delete_user()];
    let tools = ToolServer::start(offered, |call| format!("{} done", call.tool)).await;
    let model = ScriptedModel::start([
        calls(&[("c1", "fibonacci", json!({"n": 10}))]),
        text("fibonacci(10) is 55."),
        calls(&[("c2", "list_users", json!({}))]),
        text("There are ann and bob."),
        calls(&[("c3", "delete_user", json!({"user_id": 1}))]),
        text("fibonacci(20) is 6765."),
        calls(&[("c4", "delete_user", json!({"user_id": 2}))]),
        text("ann is deleted."),
        text("fibonacci(30) is 832040."),
        text("bob is deleted."),
        text("You asked six times."),
    ])
    .await;
    let work = AtWork::start(&model, Declared::with_tools(&tools), policies()).await;
    let (ten, list) = ("Calculate fibonacci(10)", "List users");
    let (first, second) = ("Delete the first user", "Delete the second user");
    let (twenty, thirty) = ("Now calculate fibonacci(20)", "Now calculate fibonacci(30)");
    completed(&work.turn(ten).await);
    completed(&work.turn(list).await);
    let delete_first = work.ask(first).await;
    let first_hold = paused(&work.rig, delete_first, 1).await;
    completed(&work.turn(twenty).await);
    assert_eq!(
        users(&model, 5),
        [ten, list, twenty],
        "the open one is not finished"
    );
    let delete_second = work.ask(second).await;
    let second_hold = paused(&work.rig, delete_second, 1).await;
    assert_eq!(users(&model, 6), [ten, list, twenty, second]);
    assert!(told(&model, 6).contains("There are ann and bob."));
    assert!(
        told(&model, 6).contains("list_users done"),
        "tools are remembered"
    );

    // Two more turns have started since, and one has finished: the first deletion goes on as it was.
    decide(&work.rig, &first_hold[0], DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(delete_first).await);
    assert_eq!(users(&model, 7), [ten, list, first]);
    completed(&work.turn(thirty).await);
    assert_eq!(users(&model, 8), [ten, list, twenty, first, thirty]);
    assert!(told(&model, 8).contains("55") && told(&model, 8).contains("6765"));
    decide(&work.rig, &second_hold[0], DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(delete_second).await);
    assert_eq!(users(&model, 9), [ten, list, twenty, second]);
    let how_often = "How often did I ask?";
    completed(&work.turn(how_often).await);
    assert_eq!(
        users(&model, 10),
        [ten, list, twenty, first, thirty, second, how_often]
    );
    assert_eq!(tools.called().len(), 4, "each tool ran once");
    prompt_leads(&model);
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn six_turns_at_once_do_not_know_each_other_and_the_seventh_knows_all() -> Outcome {
    let gate = Arc::new(Semaphore::new(0));
    let late =
        |n: usize| ModelReply::Late(Box::new(text(&format!("answer {n}"))), Arc::clone(&gate));
    let model = ScriptedModel::start((1..=6).map(late)).await;
    let work = AtWork::start(&model, Declared::plain(), Policies::default()).await;
    let mut requests = Vec::new();
    for n in 1..=6 {
        requests.push(work.ask(&format!("question {n}")).await);
    }
    asked(&model, 6).await;
    for call in 0..6 {
        assert_eq!(users(&model, call).len(), 1);
    }
    gate.add_permits(6);
    for request in requests {
        completed(&work.rig.ended(request).await);
    }
    model.then([text("I know all six.")]);
    completed(&work.turn("question 7").await);
    let mut known = users(&model, 6);
    assert_eq!(known.pop().as_deref(), Some("question 7"));
    known.sort();
    let all: Vec<String> = (1..=6).map(|n| format!("question {n}")).collect();
    assert_eq!(known, all);
    for n in 1..=6 {
        assert!(told(&model, 6).contains(&format!("answer {n}")));
    }
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn a_stopped_turn_does_not_cut_off_what_was_said_before() -> Outcome {
    let gate = Arc::new(Semaphore::new(0));
    let never = ModelReply::Late(Box::new(text("too late")), Arc::clone(&gate));
    let model = ScriptedModel::start([text("one"), never, text("three")]).await;
    let work = AtWork::start(&model, Declared::plain(), Policies::default()).await;
    completed(&work.turn("first").await);
    let stopped = work.ask("second").await;
    asked(&model, 2).await;
    cancel(&work.rig, stopped).await;
    completed(&work.turn("third").await);
    assert_eq!(users(&model, 2), ["first", "third"]);
    assert!(told(&model, 2).contains("one"));
    gate.add_permits(1);
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn a_turn_that_ended_without_an_answer_after_a_tool_ran_is_known_as_such() -> Outcome {
    let tools = ToolServer::start(vec![tool("pay")], |call| format!("{} done", call.tool)).await;
    let gate = Arc::new(Semaphore::new(0));
    let never = ModelReply::Late(Box::new(text("too late")), Arc::clone(&gate));
    let model = ScriptedModel::start([
        calls(&[("c1", "pay", json!({"amount": 1}))]),
        ModelReply::Status(400),
        calls(&[("c2", "pay", json!({"amount": 2}))]),
        never,
        text("I have paid twice."),
    ])
    .await;
    let work = AtWork::start(&model, Declared::with_tools(&tools), Policies::default()).await;
    let failed = work.turn("Pay one").await;
    let outcome = failed.request.ended().map(|ended| ended.outcome);
    assert_eq!(outcome, Some(RequestOutcome::Failed));
    let stopped = work.ask("Pay two").await;
    asked(&model, 4).await;
    work.rig
        .until(stopped, |detail| {
            let live = detail.request.live();
            live.is_some_and(|live| live.status == LiveStatus::Running && live.ran)
        })
        .await;
    cancel(&work.rig, stopped).await;
    completed(&work.turn("What have you paid?").await);
    let users = users(&model, 4);
    assert_eq!(users, ["Pay one", "Pay two", "What have you paid?"]);
    let told = told(&model, 4);
    assert_eq!(told.matches("pay done").count(), 2);
    assert!(
        told.contains("[This turn failed before it was answered.]"),
        "{told}"
    );
    assert!(
        told.contains("[This turn was stopped before it was answered.]"),
        "{told}"
    );
    gate.add_permits(1);
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn a_long_answer_is_stored_once_and_known_whole() -> Outcome {
    let tools = ToolServer::start(vec![tool("look")], |_| "seen".to_owned()).await;
    let [first, second] = ["one word ", "two words "].map(|words| words.repeat(300));
    let call = ("c1".to_owned(), "look".to_owned(), "{}".to_owned());
    let look = ModelReply::Calls("Let me look.".to_owned(), vec![call]);
    let model = ScriptedModel::start([text(&first), look, text(&second), text("Bye.")]).await;
    let work = AtWork::start(&model, Declared::with_tools(&tools), Policies::default()).await;
    for said in ["First", "Second", "Third"] {
        completed(&work.turn(said).await);
    }
    let known = model.messages(3);
    let known = known.iter().filter(|said| said["role"] == "assistant");
    let known: Vec<&str> = known.filter_map(|said| said["content"].as_str()).collect();
    assert_eq!(known, [&*first, "Let me look.", &*second]);
    let everything = work.everything().await;
    for answer in [&first, &second] {
        assert_eq!(everything.matches(answer.trim_end()).count(), 1);
    }
    work.end().await;
    Ok(())
}
