//! The memory of a turn: everything that had ended when it started, and the same when it goes on after a
//! pause.

use std::sync::Arc;

use serde_json::json;
use statehold_agents::spec::{
    AgentBook, AgentKind, ChatMemory, FinalAnswer, OpenaiSpec, RouterSpec, Routing,
};
use statehold_core::hold::DecisionKind;
use statehold_core::ids::RequestId;
use statehold_core::request::{LiveStatus, RequestOutcome};
use statehold_engine::policy::Policies;
use statehold_fakes::FakeService;
use statehold_fakes::chat::{ModelReply, ScriptedModel, calls, streamed, text};
use statehold_fakes::tools::{ToolServer, tool};
use tokio::sync::Semaphore;

use crate::approvals::{decide, delete_user, paused, policies};
use crate::llm::{AtWork, Declared, assistant_book, completed, model_spec, prompt_leads};
use crate::reload::cancel;
use crate::rig::{Outcome, PATIENCE, Rig, agent, error, name};
use crate::routed::to;

const TEN: &str = "Calculate fibonacci(10)";
const LIST: &str = "List users";
const FIRST: &str = "Delete the first user";
const TWENTY: &str = "Now calculate fibonacci(20)";
const SECOND: &str = "Delete the second user";
const THIRTY: &str = "Now calculate fibonacci(30)";

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
    completed(&work.turn(TEN).await);
    completed(&work.turn(LIST).await);
    let delete_first = work.ask(FIRST).await;
    let first_hold = paused(&work.rig, delete_first, 1).await;
    completed(&work.turn(TWENTY).await);
    assert_eq!(
        users(&model, 5),
        [TEN, LIST, TWENTY],
        "the open one is not finished"
    );
    let delete_second = work.ask(SECOND).await;
    let second_hold = paused(&work.rig, delete_second, 1).await;
    assert_eq!(users(&model, 6), [TEN, LIST, TWENTY, SECOND]);
    assert!(told(&model, 6).contains("There are ann and bob."));
    assert!(
        told(&model, 6).contains("list_users done"),
        "tools are remembered"
    );

    // Two more turns have started since, and one has finished: the first deletion goes on as it was.
    decide(&work.rig, &first_hold[0], DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(delete_first).await);
    assert_eq!(users(&model, 7), [TEN, LIST, FIRST]);
    completed(&work.turn(THIRTY).await);
    assert_eq!(users(&model, 8), [TEN, LIST, TWENTY, FIRST, THIRTY]);
    assert!(told(&model, 8).contains("55") && told(&model, 8).contains("6765"));
    decide(&work.rig, &second_hold[0], DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(delete_second).await);
    assert_eq!(users(&model, 9), [TEN, LIST, TWENTY, SECOND]);
    let how_often = "How often did I ask?";
    completed(&work.turn(how_often).await);
    assert_eq!(
        users(&model, 10),
        [TEN, LIST, TWENTY, FIRST, THIRTY, SECOND, how_often]
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

/// A router whose model chooses between the assistant, which has tools, and a chat service without memory.
fn routed_book(
    chooser: &ScriptedModel,
    (model, tools): (&ScriptedModel, &ToolServer),
    math: &FakeService,
) -> AgentBook {
    let router = RouterSpec {
        agents: vec![name("assistant"), name("math")],
        routing: Routing::Model {
            model: name("chooser"),
            prompt: None,
        },
        answer: FinalAnswer::Pass,
    };
    let math = OpenaiSpec {
        base_url: math.url("/v1"),
        model: "math".to_owned(),
        credential: None,
        headers: Vec::new(),
        memory: ChatMemory::Restore,
    };
    let mut book = assistant_book(model, &Declared::with_tools(tools));
    for spec in [
        agent("coordinator", AgentKind::Router(Arc::new(router))),
        agent("math", AgentKind::Openai(Arc::new(math))),
    ] {
        book.agents.insert(spec.name.clone(), spec);
    }
    let chooser = model_spec("chooser", &chooser.url());
    book.models.insert(name("chooser"), chooser);
    book
}

/// A chat service that says which number it was asked for, and nothing of its own.
async fn calculator() -> FakeService {
    FakeService::start(|seen| {
        let said = seen.said();
        let number = said.split(['(', ')']).nth(1).expect("a number");
        streamed(&format!("{number} done"))
    })
    .await
}

/// The request that a router waits for.
async fn below(rig: &Rig, request: RequestId) -> RequestId {
    let waits = rig.until(request, |detail| {
        let live = detail.request.live();
        live.is_some_and(|live| !live.children.is_empty())
    });
    let waits = waits.await;
    let live = waits.request.live().expect("it waits");
    *live.children.first().expect("a child")
}

#[tokio::test]
async fn talking_on_over_a_hold_below_a_model_chosen_router_keeps_one_memory() -> Outcome {
    let tools = ToolServer::start(vec![tool("list_users"), delete_user()], |call| {
        format!("{} done", call.tool)
    })
    .await;
    let to_math = || to("math", None);
    let to_assistant = || to("assistant", None);
    let chooser = ScriptedModel::start([
        to_math(),
        to_assistant(),
        to_assistant(),
        to_math(),
        to_assistant(),
        to_math(),
        to_assistant(),
    ])
    .await;
    let model = ScriptedModel::start([
        calls(&[("c1", "list_users", json!({}))]),
        text("There are ann and bob."),
        calls(&[("c2", "delete_user", json!({"user_id": 1}))]),
        calls(&[("c3", "delete_user", json!({"user_id": 2}))]),
        text("bob is deleted."),
        text("ann is deleted."),
        text("I have deleted both."),
    ])
    .await;
    let math = calculator().await;
    let rig = Rig::with(routed_book(&chooser, (&model, &tools), &math), policies()).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let ask = |said: &'static str| rig.ask(session, "coordinator", said);
    let turn = async |said: &'static str| completed(&rig.ended(ask(said).await).await);
    turn(TEN).await;
    turn(LIST).await;
    let delete_first = ask(FIRST).await;
    let first_hold = paused(&rig, below(&rig, delete_first).await, 1).await;
    turn(TWENTY).await;
    assert_eq!(users(&chooser, 3), [TEN, LIST, TWENTY], "one is open");
    let delete_second = ask(SECOND).await;
    let second_hold = paused(&rig, below(&rig, delete_second).await, 1).await;
    assert_eq!(users(&chooser, 4), [TEN, LIST, TWENTY, SECOND]);
    assert_eq!(users(&model, 3), [LIST, SECOND]);
    assert!(told(&model, 3).contains("There are ann and bob."));
    decide(&rig, &second_hold[0], DecisionKind::Approve, json!({})).await;
    completed(&rig.ended(delete_second).await);

    // Two more turns have finished since: the first deletion goes on as it was, router and agent.
    decide(&rig, &first_hold[0], DecisionKind::Approve, json!({})).await;
    completed(&rig.ended(delete_first).await);
    assert_eq!(users(&model, 5), [LIST, FIRST]);
    turn(THIRTY).await;
    let in_order = [TEN, LIST, TWENTY, SECOND, FIRST, THIRTY];
    assert_eq!(users(&chooser, 5), in_order);
    let to_router = told(&chooser, 5);
    assert!(to_router.contains("ann is deleted.") && to_router.contains("20 done"));
    let seen = math.seen();
    let restored = seen.last().expect("a call").messages();
    let restored: Vec<&str> = restored.iter().map(|(_, said)| said.as_str()).collect();
    assert_eq!(restored, [TEN, "10 done", TWENTY, "20 done", THIRTY]);
    turn("Whom did you delete?").await;
    assert_eq!(
        users(&model, 6),
        [LIST, SECOND, FIRST, "Whom did you delete?"]
    );
    assert_eq!(chooser.asked().len(), 7, "no route is chosen twice");
    assert_eq!(tools.called().len(), 3, "each tool ran once");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn six_turns_at_once_below_a_model_chosen_router_and_the_seventh_knows_all() -> Outcome {
    let tools = ToolServer::start(vec![tool("look")], |_| "seen".to_owned()).await;
    let gate = Arc::new(Semaphore::new(0));
    let late = |_| ModelReply::Late(Box::new(to("math", None)), Arc::clone(&gate));
    let chooser = ScriptedModel::start((1..=6).map(late)).await;
    let model = ScriptedModel::start([]).await;
    let math = calculator().await;
    let book = routed_book(&chooser, (&model, &tools), &math);
    let rig = Rig::with(book, Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let question = |n: usize| format!("fibonacci({n})");
    let mut requests = Vec::new();
    for n in 1..=6 {
        requests.push(rig.ask(session, "coordinator", &question(n)).await);
    }
    asked(&chooser, 6).await;
    for call in 0..6 {
        assert_eq!(users(&chooser, call).len(), 1);
    }
    gate.add_permits(6);
    for request in requests {
        completed(&rig.ended(request).await);
    }
    chooser.then([to("math", None)]);
    let seventh = rig.ask(session, "coordinator", &question(7)).await;
    completed(&rig.ended(seventh).await);
    let mut known = users(&chooser, 6);
    assert_eq!(known.pop(), Some(question(7)));
    known.sort();
    let all: Vec<String> = (1..=6).map(question).collect();
    assert_eq!(known, all);
    let seen = math.seen();
    for n in 1..=6 {
        let alone = seen.iter().find(|seen| seen.said() == question(n));
        let alone = alone.expect("a call").messages();
        assert_eq!(
            alone,
            [("user".to_owned(), question(n))],
            "they know nothing"
        );
        let answer = format!("{n} done");
        assert!(told(&chooser, 6).contains(&answer));
        let last = seen.last().expect("a call").messages();
        assert!(last.contains(&("assistant".to_owned(), answer)));
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_router_knows_a_turn_that_failed_after_a_tool_ran_below_it() -> Outcome {
    let tools = ToolServer::start(vec![tool("pay")], |call| format!("{} done", call.tool)).await;
    let routes = (0..4).map(|_| to("assistant", None));
    let chooser = ScriptedModel::start(routes).await;
    let model = ScriptedModel::start([
        ModelReply::Status(400),
        calls(&[("c1", "pay", json!({"amount": 1}))]),
        ModelReply::Status(400),
        text("I have paid once."),
    ])
    .await;
    let math = calculator().await;
    let book = routed_book(&chooser, (&model, &tools), &math);
    let rig = Rig::with(book, Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    for said in ["Pay nothing", "Pay one"] {
        let failed = rig.ask(session, "coordinator", said).await;
        assert_eq!(error(&rig.ended(failed).await)["code"], "agent_error");
    }
    let last = "What have you paid?";
    let request = rig.ask(session, "coordinator", last).await;
    completed(&rig.ended(request).await);
    assert_eq!(
        users(&chooser, 2),
        ["Pay one", last],
        "no tool ran in the first"
    );
    let failed = "[This turn failed before it was answered.]";
    assert!(told(&chooser, 2).contains(failed));
    assert_eq!(users(&model, 3), ["Pay one", last]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
