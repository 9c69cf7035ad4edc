//! Reloads while agents run: running turns finish under their old declarations, later ones use the new,
//! and none is lost or executed twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, Runner, RunnerOptions, StepHook, StepKind};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, FinalAnswer, RouterSpec, Routing, ToolServerSpec,
    ToolTransport,
};
use statehold_core::digest::Digest;
use statehold_core::hold::DecisionKind;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::item::ItemKind;
use statehold_core::record::CommandName;
use statehold_core::request::{LiveStatus, RequestOutcome};
use statehold_engine::bodies::{ItemBody, parse};
use statehold_engine::policy::Policies;
use statehold_engine::{api, testing};
use statehold_fakes::chat::{ModelReply, ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolBehaviour, ToolServer, tool};
use tokio::sync::Semaphore;

use crate::approvals::{decide, paused, policies, tools};
use crate::llm::{Declared, assistant_book, completed, model_spec};
use crate::rig::{Outcome, PATIENCE, Rig, agent, book, error, name, router};

/// Much shorter than a lease, so that a request claimed only after a lapsed lease fails the test.
const AT_ONCE: Duration = Duration::from_secs(25);

/// A book whose agents have another digest.
fn marked(mut book: AgentBook, mark: &str) -> AgentBook {
    for spec in book.agents.values_mut() {
        let spec: &mut AgentSpec = Arc::get_mut(spec).expect("nobody else has it");
        spec.digest = Digest::sha256(mark.as_bytes());
    }
    book
}

/// Tools that wait until they are released.
async fn slow_tools() -> (ToolServer, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let does: ToolBehaviour = Arc::new(move |call| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            gate.acquire().await.expect("it stays open").forget();
            json!(format!("{} done", call.tool))
        })
    });
    (ToolServer::with(vec![tool("slow")], does).await, go)
}

async fn until_called(tools: &ToolServer, times: usize) {
    let called = async {
        while tools.called().len() < times {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let called = tokio::time::timeout(PATIENCE, called).await;
    called.expect("it takes too long");
}

/// Digests of the declarations that an agent's turns started with, oldest task first.
async fn digests(rig: &Rig, session: SessionId, agent: &str) -> Vec<String> {
    let tasks = testing::tasks_of(&rig.engine, session, &name(agent)).await;
    let mut found = Vec::new();
    for task in tasks.expect("tasks") {
        let page = testing::task_items(&rig.engine, session, task, None, 500).await;
        for item in page.expect("items").items.iter().rev() {
            let body: ItemBody = parse(item.body.as_deref());
            let data = body
                .data
                .filter(|_| item.placed.item.kind == ItemKind::Step);
            let step: Value = data.map_or(Value::Null, |data| {
                serde_json::from_str(data.get()).expect("JSON")
            });
            found.extend(step["config"].as_str().map(str::to_owned));
        }
    }
    found
}

/// Number of claims in a session, including leases granted at the start.
async fn claims(rig: &Rig, session: SessionId) -> usize {
    let commands = rig.commands_after(session, 0).await;
    let claims = commands.iter();
    claims
        .filter(|command| **command == CommandName::ClaimRequest)
        .count()
}

pub(crate) async fn cancel(rig: &Rig, request: RequestId) {
    let done = api::request::cancel(&rig.engine, &rig.call(), request).await;
    done.expect("it is cancelled");
}

#[tokio::test]
async fn a_turn_under_way_ends_as_it_began_and_the_next_one_is_as_declared_now() -> Outcome {
    let (tools, go) = slow_tools().await;
    let call = |id: &str| calls(&[(id, "slow", json!({}))]);
    let old = ScriptedModel::start([call("c1"), text("Said by the old.")]).await;
    let new = ScriptedModel::start([call("c2"), text("Said by the new.")]).await;
    let declared = Declared::with_tools(&tools);
    let before = marked(assistant_book(&old, &declared), "before");
    let mut rig = Rig::with(before, Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    let first = rig.ask(session, "assistant", "One").await;
    until_called(&tools, 1).await;
    let after = marked(assistant_book(&new, &declared), "after");
    rig.reload(&runner, after).await;
    let second = rig.ask(session, "assistant", "Two").await;
    until_called(&tools, 2).await;
    go.add_permits(2);
    completed(&rig.ended(first).await);
    completed(&rig.ended(second).await);
    let mut said = rig.transcript(session).await;
    said.sort();
    assert_eq!(said, ["One", "Said by the new.", "Said by the old.", "Two"]);
    // No call was interrupted, and none executed twice.
    assert_eq!((old.asked().len(), new.asked().len()), (2, 2));
    assert_eq!(tools.called().len(), 2);
    assert_eq!(claims(&rig, session).await, 2);
    let digest = |mark: &str| Digest::sha256(mark.as_bytes()).to_string();
    let expected = [digest("before"), digest("after")];
    assert_eq!(digests(&rig, session, "assistant").await, expected);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn who_is_asked_after_a_reload_is_as_declared_now_and_one_who_is_gone_as_before() -> Outcome {
    for (is_gone, said) in [(false, "By the new."), (true, "By the old.")] {
        let go = Arc::new(Semaphore::new(0));
        let chosen = text(r#"{"agent_name":"assistant","additional_instructions":null}"#);
        let routing =
            ScriptedModel::start([ModelReply::Late(Box::new(chosen), Arc::clone(&go))]).await;
        let old = ScriptedModel::start([text("By the old.")]).await;
        let new = ScriptedModel::start([text("By the new.")]).await;
        let declared = |model: &ScriptedModel, has_assistant: bool| {
            let spec = RouterSpec {
                agents: vec![name("assistant")],
                routing: Routing::Model {
                    model: name("routing"),
                    prompt: None,
                },
                answer: FinalAnswer::Pass,
            };
            let boss = agent("boss", AgentKind::Router(Arc::new(spec)));
            let mut book = assistant_book(model, &Declared::plain());
            let url = model_spec("routing", &routing.url());
            book.models.insert(name("routing"), url);
            book.agents.insert(name("boss"), boss);
            book.agents
                .retain(|agent, _| has_assistant || agent.as_str() == "boss");
            book
        };
        let mut rig = Rig::with(declared(&old, true), Policies::default()).await;
        let runner = rig.runner().await;
        let session = rig.session("boss").await;
        let request = rig.ask(session, "boss", "Well?").await;
        while routing.asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The router has been called, and has not called an agent yet.
        rig.reload(&runner, declared(&new, !is_gone)).await;
        go.add_permits(1);
        completed(&rig.ended(request).await);
        assert_eq!(rig.transcript(session).await, ["Well?", said]);
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_paused_turn_goes_on_after_a_reload_as_after_a_restart() -> Outcome {
    for is_same in [true, false] {
        let tools = tools().await;
        let delete = calls(&[("c1", "delete_user", json!({"user_id": 7}))]);
        let model = ScriptedModel::start([delete, text("Deleted.")]).await;
        let declared = Declared::with_tools(&tools);
        let mut rig = Rig::with(assistant_book(&model, &declared), policies()).await;
        let runner = rig.runner().await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "Delete 7").await;
        let holds = paused(&rig, request, 1).await;
        let next = if is_same {
            assistant_book(&model, &declared)
        } else {
            book(vec![
                router("assistant", &[(".", "other")], &["other"]),
                agent("other", AgentKind::Worker),
            ])
        };
        rig.reload(&runner, next).await;
        decide(&rig, &holds[0], DecisionKind::Approve, json!({})).await;
        let ended = rig.ended(request).await;
        if is_same {
            completed(&ended);
            assert_eq!(tools.called().len(), 1);
        } else {
            assert_eq!(error(&ended)["code"], "step_mismatch");
            assert_eq!(tools.called(), []);
        }
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

/// Sends messages and reloads concurrently, at another moment each round. With few permits, most
/// requests are claimed from the queue; with many, they are claimed when they start.
async fn reloads_amid_turns(turns_max: usize) {
    const ROUNDS: usize = 25;
    const ASKED: usize = 8;
    let says = (0..ROUNDS * ASKED).map(|_| text("Yes."));
    let model = ScriptedModel::start(says).await;
    let declared = || Arc::new(assistant_book(&model, &Declared::plain()));
    let rig = Rig::with(AgentBook::default(), Policies::default()).await;
    let options = RunnerOptions {
        turns_max,
        ..RunnerOptions::default()
    };
    let engine = rig.engine.clone();
    let runner = Runner::start(engine, name("default"), declared(), options).await;
    let runner = runner.expect("the runner starts");
    let mut sessions = Vec::new();
    for _ in 0..ASKED {
        sessions.push(rig.session("assistant").await);
    }
    let rounds = async {
        for round in 0..ROUNDS {
            let asked = sessions.iter().map(|session| async {
                let request = rig.ask(*session, "assistant", "Here?").await;
                completed(&rig.ended(request).await);
            });
            let reload = async {
                for _ in 0..round * 3 {
                    tokio::task::yield_now().await;
                }
                let next = runner.prepare(declared()).await;
                runner.switch(next.expect("it can be worked by")).await;
            };
            let round = async { tokio::join!(futures_util::future::join_all(asked), reload) };
            let in_time = tokio::time::timeout(AT_ONCE, round).await;
            in_time.expect("nothing waits for a lease to lapse");
        }
    };
    rounds.await;
    assert_eq!(model.asked().len(), ROUNDS * ASKED);
    for session in sessions {
        assert_eq!(claims(&rig, session).await, ROUNDS);
    }
    runner.stop().await;
    rig.engine.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_started_in_the_moment_of_a_reload_is_taken_once_and_at_once() {
    reloads_amid_turns(1_024).await;
    reloads_amid_turns(1).await;
}

#[tokio::test]
async fn a_removed_agent_ends_what_it_began_and_goes_on_with_the_rest_when_it_is_back() -> Outcome {
    let (slow, go) = slow_tools().await;
    let tools = tools().await;
    let declared = Declared {
        tools: vec![("files", tools.url()), ("slow", slow.url())],
        ..Declared::plain()
    };
    let delete = || calls(&[("c1", "delete_user", json!({"user_id": 7}))]);
    let model = ScriptedModel::start([delete(), delete()]).await;
    let mut rig = Rig::with(assistant_book(&model, &declared), policies()).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    let waits = rig.ask(session, "assistant", "Delete 7").await;
    let waiting = paused(&rig, waits, 1).await;
    let given_up = rig.ask(session, "assistant", "Delete 7 too").await;
    paused(&rig, given_up, 1).await;
    model.then([calls(&[("c2", "slow", json!({}))])]);
    let under_way = rig.ask(session, "assistant", "Slowly").await;
    until_called(&slow, 1).await;

    rig.reload(&runner, AgentBook::default()).await;
    decide(&rig, &waiting[0], DecisionKind::Approve, json!({})).await;
    let late = rig.ask(session, "assistant", "Anybody?").await;
    cancel(&rig, given_up).await;
    let ended = rig.ended(given_up).await.request.ended().cloned();
    assert_eq!(
        ended.map(|ended| ended.outcome),
        Some(RequestOutcome::Cancelled)
    );

    // The agent is declared again while its old turn runs, and does not steal that turn's lease.
    model.then([text("Deleted, or here.")]);
    model.then([text("Deleted, or here.")]);
    let is_queued = |request: RequestId| {
        let rig = &rig;
        async move {
            let detail = rig.engine.request(&rig.local, request).await;
            let live = detail.expect("the request").request.live().cloned();
            live.is_some_and(|live| live.status == LiveStatus::Queued)
        }
    };
    assert!(is_queued(waits).await && is_queued(late).await);
    rig.reload(&runner, assistant_book(&model, &declared)).await;
    completed(&rig.ended(waits).await);
    completed(&rig.ended(late).await);
    model.then([text("Slow, but done.")]);
    go.add_permits(1);
    completed(&rig.ended(under_way).await);
    assert_eq!((slow.called().len(), tools.called().len()), (1, 1));
    // Three were claimed when they started; two waited until the agent was declared again.
    assert_eq!(claims(&rig, session).await, 5);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn policies_count_at_once_and_an_open_hold_stays_as_it_was_opened() -> Outcome {
    let tools = tools().await;
    let delete = |id: &str| calls(&[(id, "delete_user", json!({"user_id": 7}))]);
    let model = ScriptedModel::start([delete("c1"), delete("c2"), text("Done.")]).await;
    let declared = Declared::with_tools(&tools);
    let rig = Rig::with(assistant_book(&model, &declared), policies()).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    let asked = rig.ask(session, "assistant", "Delete 7").await;
    let before = paused(&rig, asked, 1).await;
    rig.engine.set_policies(Policies::default());
    let free = rig.ask(session, "assistant", "Delete 7 now").await;
    completed(&rig.ended(free).await);
    assert_eq!(tools.called().len(), 1, "nobody had to be asked");
    let after = rig.engine.hold(&rig.local, before[0].hold.id).await?;
    assert_eq!(after.hold, before[0].hold);
    assert_eq!(after.body, before[0].body);
    model.then([text("Done too.")]);
    decide(&rig, &after, DecisionKind::Approve, json!({})).await;
    completed(&rig.ended(asked).await);
    assert_eq!(tools.called().len(), 2);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_policy_that_becomes_stricter_while_a_call_is_recorded_is_kept_and_fails_no_turn()
-> Outcome {
    let tools = tools().await;
    let delete = calls(&[("c1", "delete_user", json!({"user_id": 7}))]);
    let model = ScriptedModel::start([delete, text("Deleted.")]).await;
    let declared = Declared::with_tools(&tools);
    let rig = Rig::with(assistant_book(&model, &declared), Policies::default()).await;
    let (engine, is_done) = (rig.engine.clone(), AtomicBool::new(false));
    let on_step: StepHook = Arc::new(move |kind, moment| {
        let is_there = (kind, moment) == (StepKind::ToolCall, CommitPhase::Before);
        if is_there && !is_done.swap(true, Ordering::SeqCst) {
            engine.set_policies(policies());
        }
    });
    let runner = rig.watched(on_step).await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Delete 7").await;
    let holds = paused(&rig, request, 1).await;
    assert_eq!(tools.called(), []);
    decide(&rig, &holds[0], DecisionKind::Approve, json!({})).await;
    completed(&rig.ended(request).await);
    assert_eq!(tools.called().len(), 1);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// A tool server that is a program: it writes its process id to a file, and one of its tools waits for
/// a file.
const PROGRAM: &str = r#"
    echo $$ >> "$1/pids"
    while IFS= read -r line; do
        id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
        case "$line" in
            *'"method":"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}';;
            *'"method":"tools/list"'*) result='{"tools":[{"name":"quick","inputSchema":{"type":"object"}},{"name":"slow","inputSchema":{"type":"object"}}]}';;
            *'"method":"tools/call"'*)
                case "$line" in *'"name":"slow"'*)
                    while [ ! -e "$1/go" ]; do sleep 0.02; done;;
                esac
                result='{"content":[{"type":"text","text":"done"}]}';;
            *) continue;;
        esac
        printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
    done
"#;

#[tokio::test]
async fn programs_of_tools_end_with_the_last_turn_that_may_use_them_and_not_before() -> Outcome {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("a plain path").to_owned();
    let call = |tool: &str| calls(&[("c", tool, json!({}))]);
    let model = ScriptedModel::start([call("slow")]).await;
    // Another timeout is another declaration.
    let declared = |timeout: Duration| {
        let plain = Declared {
            tools: vec![("program", String::new())],
            ..Declared::plain()
        };
        let mut book = assistant_book(&model, &plain);
        let program = ToolServerSpec {
            name: name("program"),
            trust_hints: false,
            transport: ToolTransport::Command {
                program: "sh".to_owned(),
                arguments: ["-c", PROGRAM, "sh", &place].map(str::to_owned).to_vec(),
                environment: Vec::new(),
                mark: None,
            },
            timeout,
        };
        book.tool_servers.insert(name("program"), Arc::new(program));
        book
    };
    let pids = || {
        let pids = std::fs::read_to_string(directory.path().join("pids"));
        let pids = pids.unwrap_or_default();
        pids.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let is_there = |pid: &str| std::path::Path::new("/proc").join(pid).exists();
    let mut rig = Rig::with(declared(PATIENCE), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    let slow = rig.ask(session, "assistant", "Slowly").await;
    let commands = async {
        loop {
            let commands = rig.commands_after(session, 0).await;
            // The model step and the call after it.
            let appended = commands
                .iter()
                .filter(|one| **one == CommandName::AppendItems);
            if appended.count() >= 2 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, commands)
        .await
        .expect("it takes too long");
    rig.reload(&runner, declared(PATIENCE * 2)).await;
    model.then([call("quick"), text("Quick.")]);
    let quick = rig.ask(session, "assistant", "Quickly").await;
    completed(&rig.ended(quick).await);
    let started = pids();
    assert_eq!(started.len(), 2, "one for each");
    assert!(is_there(&started[0]), "the old one still works");
    model.then([text("Slow.")]);
    std::fs::write(directory.path().join("go"), "").expect("a file");
    completed(&rig.ended(slow).await);
    let gone = async {
        while is_there(&started[0]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.expect("nobody needs the old one any more");
    assert!(is_there(&started[1]), "the new one is needed");
    // The same declaration keeps its program, also after the old declaration has ended.
    rig.reload(&runner, declared(PATIENCE * 2)).await;
    for _ in 0..2 {
        model.then([call("quick"), text("Quick.")]);
        let quick = rig.ask(session, "assistant", "Quickly").await;
        completed(&rig.ended(quick).await);
    }
    assert_eq!(pids(), started, "none was started");
    assert!(is_there(&started[1]), "the program goes on");
    runner.stop().await;
    assert!(!is_there(&started[1]));
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn declarations_that_make_no_sense_change_nothing() -> Outcome {
    let model = ScriptedModel::start([text("Yes.")]).await;
    let rig = Rig::with(
        assistant_book(&model, &Declared::plain()),
        Policies::default(),
    )
    .await;
    let runner = rig.runner().await;
    let mut wrong = assistant_book(&model, &Declared::plain());
    wrong.models.clear();
    assert!(runner.prepare(Arc::new(wrong)).await.is_err());
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Still here?").await;
    completed(&rig.ended(request).await);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
