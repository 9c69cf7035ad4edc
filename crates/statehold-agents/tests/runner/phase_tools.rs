//! Phases of a pipeline that are tools: they pull the conversation with a token of their turn, and a turn that was
//! interrupted calls its tool again or asks about it.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, StepKind};
use statehold_agents::spec::{
    AgentBook, AgentKind, HistoryAccess, McpSpec, PipelineSpec, ToolServerSpec, ToolTransport,
};
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::request::RequestOutcome;
use statehold_engine::api::caller::{self, ReadToken};
use statehold_engine::api::conversation::{self, ConversationPlace};
use statehold_engine::policy::{AgentPolicy, Policies, ToolPolicy};
use statehold_engine::{Engine, EngineError, PageLimit, api};
use statehold_fakes::tools::{ToolCall, ToolServer};

use crate::approvals::decide;
use crate::crashes::lost_at;
use crate::phases::{phase, pipeline};
use crate::rig::{Outcome, PATIENCE, Rig, agent, book, error, name};

const PHASES: [&str; 3] = ["first", "second", "third"];

/// A tool that takes the message and the address of the conversation.
fn phase_tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object", "properties": {
        "input": {"type": "string"}, "conversation_history_uri": {"type": "string"}}}})
}

fn mcp(tool: &str, history: HistoryAccess) -> AgentKind {
    AgentKind::Mcp(Arc::new(McpSpec {
        tool_server: name("phases"),
        tool: tool.to_owned(),
        input_argument: "input".to_owned(),
        history_argument: "conversation_history_uri".to_owned(),
        history,
        arguments: serde_json::Map::new(),
    }))
}

/// The pipeline `line` over tools, with `history` for each.
fn book_of(server: &ToolServer, spec: PipelineSpec, history: HistoryAccess) -> AgentBook {
    let mut agents: Vec<_> = PHASES
        .iter()
        .map(|phase| agent(phase, mcp(phase, history)))
        .collect();
    agents.push(agent("line", AgentKind::Pipeline(Arc::new(spec))));
    let declared = ToolServerSpec {
        name: name("phases"),
        trust_hints: false,
        transport: ToolTransport::Http {
            url: server.url(),
            credential: None,
            headers: Vec::new(),
        },
        timeout: Duration::from_secs(20),
    };
    AgentBook {
        tool_servers: [(name("phases"), Arc::new(declared))].into(),
        ..book(agents)
    }
}

fn line() -> PipelineSpec {
    pipeline(PHASES.map(phase).into())
}

/// The messages that a phase read, as `role name: text`.
type Messages = Vec<String>;

/// Reads the address of a call with its token.
async fn read(engine: &Engine, call: &ToolCall, token: &Value) -> Result<Messages, EngineError> {
    let uri = call.args["conversation_history_uri"]
        .as_str()
        .expect("an address");
    read_address(engine, uri, token).await
}

async fn read_address(engine: &Engine, uri: &str, token: &Value) -> Result<Messages, EngineError> {
    let token: ReadToken = serde_json::from_str(token.as_str().expect("a token")).expect("JSON");
    let caller = caller::with_read_token(engine, &token).await?;
    let (caller, _) = caller.ok_or(EngineError::NotFound)?;
    let (address, query) = uri.split_once('?').expect("a query");
    let session = address
        .strip_prefix("conversation://")
        .and_then(|rest| rest.strip_suffix("/history"));
    let session: SessionId = session.expect("an address").parse().expect("an id");
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(known, value)| (known == name).then_some(value))
    };
    let revision = match value("rev") {
        Some(revision) => revision.parse().expect("a number"),
        None => api::session::revision(engine, &caller, session).await?,
    };
    let turn: Option<RequestId> = value("turn").map(|turn| turn.parse().expect("an id"));
    let place = ConversationPlace {
        revision,
        turn,
        before: None,
    };
    let limit = PageLimit {
        entries: 100,
        bytes: 1 << 20,
    };
    let page = conversation::messages(engine, &caller, session, place, limit).await?;
    let told = page.messages.iter().map(|message| {
        let role = serde_json::to_value(message.role).expect("JSON");
        let text: Value = serde_json::from_str(message.content.get()).expect("JSON");
        let name = message
            .name
            .as_ref()
            .map(|name| format!(" {name}"))
            .unwrap_or_default();
        format!(
            "{}{name}: {}",
            role.as_str().unwrap_or_default(),
            text.as_str().unwrap_or_default()
        )
    });
    Ok(told.collect())
}

/// The calls of the phases, each with the messages that it read.
type Readings = Arc<Mutex<Vec<(ToolCall, Messages)>>>;

/// A tool server whose tools read the conversation before they answer with their name and the number of their call.
async fn reading_server(engine: &Arc<OnceLock<Engine>>) -> (ToolServer, Readings) {
    let readings = Readings::default();
    let (seen, engine) = (Arc::clone(&readings), Arc::clone(engine));
    let behaviour = move |call: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
        let (seen, engine) = (Arc::clone(&seen), Arc::clone(&engine));
        Box::pin(async move {
            let token = call.meta["statehold/read_token"].clone();
            let engine = engine.get().expect("it was set");
            let messages = read(engine, &call, &token).await.expect("a conversation");
            let mut seen = seen.lock().expect("not poisoned");
            let calls = seen.iter().filter(|(known, _)| known.tool == call.tool);
            let answer = format!("{} {}", call.tool, calls.count() + 1);
            seen.push((call, messages));
            json!(answer)
        })
    };
    let tools = PHASES.map(phase_tool).into();
    (ToolServer::with(tools, Arc::new(behaviour)).await, readings)
}

async fn reading_rig(spec: PipelineSpec, history: HistoryAccess) -> (Rig, ToolServer, Readings) {
    let engine = Arc::new(OnceLock::new());
    let (server, readings) = reading_server(&engine).await;
    let rig = Rig::with(book_of(&server, spec, history), Policies::default()).await;
    assert!(engine.set(rig.engine.clone()).is_ok());
    (rig, server, readings)
}

fn taken(readings: &Readings) -> Vec<(ToolCall, Messages)> {
    std::mem::take(&mut *readings.lock().expect("not poisoned"))
}

#[tokio::test]
async fn a_phase_gets_the_address_of_its_turn_and_reads_the_answers_before_it() -> Outcome {
    let (rig, _server, readings) = reading_rig(line(), HistoryAccess::Pinned).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let before = rig.ask(session, "line", "Hello").await;
    rig.ended(before).await;
    taken(&readings);
    let request = rig.ask(session, "line", "Plan").await;
    let detail = rig.ended(request).await;
    assert_eq!(
        detail.request.ended().map(|ended| ended.outcome),
        Some(RequestOutcome::Completed)
    );
    let read_by = taken(&readings);
    let transcript = ["user: Hello", "assistant: third 1", "user: Plan"];
    let answers = ["assistant first: first 1", "assistant second: second 1"];
    for (at, (call, messages)) in read_by.iter().enumerate() {
        let expected: Vec<&str> = transcript.iter().chain(&answers[..at]).copied().collect();
        assert_eq!(*messages, expected, "{}", call.tool);
        let uri = call.args["conversation_history_uri"]
            .as_str()
            .expect("an address");
        assert!(uri.ends_with(&format!("&turn={request}")), "{uri}");
        assert_eq!(call.meta["statehold/mcp_url"], "http://127.0.0.1:7717/mcp");
        let input = call.args["input"].as_str().expect("a message");
        assert!(input.starts_with("Plan"), "{input}");
    }
    assert_eq!(read_by.len(), 3);
    // Users see the turn as ever, and nothing that is stored has a token.
    assert_eq!(
        rig.transcript(session).await,
        ["Hello", "third 1", "Plan", "third 1"]
    );
    let local = &rig.local;
    let trace = api::session::trace(&rig.engine, local, session, (None, PageLimit::entries(500)));
    let trace = serde_json::to_string(&trace.await?.0).expect("JSON");
    assert!(
        trace.contains("conversation_history_uri") && !trace.contains("ends_at"),
        "{trace}"
    );
    // The token has ended with its turn, before its time.
    let (call, _) = &read_by[2];
    let token = &call.meta["statehold/read_token"];
    assert!(read(&rig.engine, call, token).await.is_err());
    runner.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_revision_of_a_turn_has_the_same_messages_whenever_it_is_read() -> Outcome {
    let mut spec = line();
    spec.phases[2].loop_back = vec![statehold_agents::spec::LoopRule {
        pattern: regex::Regex::new("third 1").expect("a pattern"),
        to: name("first"),
    }];
    let engine = Arc::new(OnceLock::<Engine>::new());
    let readings = Readings::default();
    let (seen, known) = (Arc::clone(&readings), Arc::clone(&engine));
    let behaviour = move |call: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
        let (seen, known) = (Arc::clone(&seen), Arc::clone(&known));
        Box::pin(async move {
            let (engine, token) = (
                known.get().expect("it was set"),
                &call.meta["statehold/read_token"],
            );
            let messages = read(engine, &call, token).await.expect("a conversation");
            let earlier = seen.lock().expect("not poisoned").clone();
            for (before, then) in &earlier {
                let now = read(engine, before, token).await.expect("a conversation");
                assert_eq!(now, *then, "{}", before.args);
            }
            let calls = earlier.iter().filter(|(known, _)| known.tool == call.tool);
            let answer = format!("{} {}", call.tool, calls.count() + 1);
            seen.lock().expect("not poisoned").push((call, messages));
            json!(answer)
        })
    };
    let server = ToolServer::with(PHASES.map(phase_tool).into(), Arc::new(behaviour)).await;
    let rig = Rig::with(
        book_of(&server, spec, HistoryAccess::Pinned),
        Policies::default(),
    )
    .await;
    assert!(engine.set(rig.engine.clone()).is_ok());
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Plan").await;
    rig.ended(request).await;
    let read_by = taken(&readings);
    let last = &read_by.last().expect("six calls").1;
    // Of a phase that ran twice, both answers are there, in the order in which they were given.
    assert_eq!(
        *last,
        [
            "user: Plan",
            "assistant first: first 1",
            "assistant second: second 1",
            "assistant third: third 1",
            "assistant first: first 2",
            "assistant second: second 2",
        ]
    );
    assert_eq!(rig.transcript(session).await, ["Plan", "third 2"]);
    runner.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_token_reads_its_own_turn_and_no_other() -> Outcome {
    let engine = Arc::new(OnceLock::<Engine>::new());
    let calls = Arc::new(Mutex::new(Vec::<ToolCall>::new()));
    let (known, together) = (Arc::clone(&engine), Arc::new(tokio::sync::Barrier::new(2)));
    let seen = Arc::clone(&calls);
    let behaviour = move |call: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
        let (known, together, seen) =
            (Arc::clone(&known), Arc::clone(&together), Arc::clone(&seen));
        Box::pin(async move {
            seen.lock().expect("not poisoned").push(call.clone());
            // Both turns are at work when each tries the address of the other.
            together.wait().await;
            let all = seen.lock().expect("not poisoned").clone();
            let uri = &call.args["conversation_history_uri"];
            let other = all
                .iter()
                .rev()
                .find(|other| other.args["conversation_history_uri"] != *uri);
            let (engine, token) = (
                known.get().expect("it was set"),
                &call.meta["statehold/read_token"],
            );
            read(engine, &call, token).await.expect("its own turn");
            let foreign = read(engine, other.expect("the other turn"), token).await;
            let answer = if foreign.is_err() { "refused" } else { "read" };
            together.wait().await;
            json!(answer)
        })
    };
    let server = ToolServer::with(PHASES.map(phase_tool).into(), Arc::new(behaviour)).await;
    let spec = pipeline(vec![phase("first")]);
    let rig = Rig::with(
        book_of(&server, spec, HistoryAccess::Live),
        Policies::default(),
    )
    .await;
    assert!(engine.set(rig.engine.clone()).is_ok());
    let runner = rig.runner().await;
    let (one, two) = (rig.session("line").await, rig.session("line").await);
    // Two turns of one session, then one turn each of two sessions.
    for (first, second) in [(one, one), (one, two)] {
        calls.lock().expect("not poisoned").clear();
        let requests = [
            rig.ask(first, "line", "Plan").await,
            rig.ask(second, "line", "Plan").await,
        ];
        for request in requests {
            rig.ended(request).await;
        }
        assert_eq!(
            rig.transcript(second).await.last().map(String::as_str),
            Some("refused")
        );
    }
    // A token without a turn reads the transcript, and no turn.
    let call = calls.lock().expect("not poisoned")[0].clone();
    let text = call.meta["statehold/read_token"].as_str().expect("a token");
    let mut token: ReadToken = serde_json::from_str(text).expect("JSON");
    token.phase = None;
    let (session, token) = (
        token.session,
        json!(serde_json::to_string(&token).expect("JSON")),
    );
    assert!(read(&rig.engine, &call, &token).await.is_err());
    let plain = format!("conversation://{session}/history?rev=1");
    read_address(&rig.engine, &plain, &token).await?;
    runner.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_phase_of_an_inner_pipeline_reads_the_answers_of_the_outer_one() -> Outcome {
    let engine = Arc::new(OnceLock::new());
    let (server, readings) = reading_server(&engine).await;
    let outer = pipeline(vec![phase("first"), phase("inner")]);
    let mut declared = book_of(&server, outer, HistoryAccess::Pinned);
    let inner = pipeline(vec![phase("second"), phase("third")]);
    let inner = agent("inner", AgentKind::Pipeline(Arc::new(inner)));
    declared.agents.insert(name("inner"), inner);
    let rig = Rig::with(declared, Policies::default()).await;
    assert!(engine.set(rig.engine.clone()).is_ok());
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Plan").await;
    rig.ended(request).await;
    let (call, messages) = taken(&readings).pop().expect("three calls");
    assert_eq!(call.tool, "third");
    assert_eq!(
        messages,
        [
            "user: Plan",
            "assistant first: first 1",
            "assistant second: second 1"
        ]
    );
    runner.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_turn_that_goes_on_after_an_error_of_a_tool_calls_it_again() -> Outcome {
    let failures = Arc::new(std::sync::atomic::AtomicUsize::new(1));
    let left = Arc::clone(&failures);
    let behaviour = move |call: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
        let fails = call.tool == "second" && statehold_fakes::tools::take_one(&left);
        Box::pin(async move {
            if fails {
                json!({"isError": true, "content": [{"type": "text", "text": "the index is gone"}]})
            } else {
                json!(call.tool)
            }
        })
    };
    let server = ToolServer::with(PHASES.map(phase_tool).into(), Arc::new(behaviour)).await;
    let book = book_of(&server, line(), HistoryAccess::Pinned);
    let rig = Rig::with(book, Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Plan").await;
    let failed = rig.ended(request).await;
    let why = error(&failed);
    assert_eq!(why["code"], "agent_error");
    assert!(
        why["message"]
            .as_str()
            .expect("text")
            .contains("the index is gone"),
        "{why}"
    );
    let again = rig.go_on(&failed, "Plan").await;
    let ended = rig.ended(again).await;
    let outcome = ended.request.ended().map(|ended| ended.outcome);
    assert_eq!(outcome, Some(RequestOutcome::Completed));
    let called: Vec<String> = server.called().into_iter().map(|call| call.tool).collect();
    assert_eq!(called, ["first", "second", "second", "third"]);
    runner.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_pipeline_that_shows_its_phases_has_them_in_the_transcript_once() -> Outcome {
    for answer_from in [None, Some(name("first"))] {
        let spec = PipelineSpec {
            show_phases: true,
            answer_from: answer_from.clone(),
            ..line()
        };
        let (rig, _server, readings) = reading_rig(spec, HistoryAccess::Pinned).await;
        let runner = rig.runner().await;
        let session = rig.session("line").await;
        let request = rig.ask(session, "line", "Plan").await;
        rig.ended(request).await;
        let mut shown = vec!["Plan", "first 1", "second 1"];
        match &answer_from {
            None => shown.push("third 1"),
            Some(_) => shown.extend(["third 1", "first 1"]),
        }
        assert_eq!(rig.transcript(session).await, shown);
        let (_, messages) = taken(&readings).pop().expect("three calls");
        assert_eq!(
            messages,
            [
                "user: Plan",
                "assistant first: first 1",
                "assistant second: second 1"
            ]
        );
        runner.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn the_messages_come_with_the_call_if_they_are_inline() -> Outcome {
    let server = ToolServer::start(PHASES.map(phase_tool).into(), |call| call.tool.clone()).await;
    let rig = Rig::with(
        book_of(&server, line(), HistoryAccess::Inline),
        Policies::default(),
    )
    .await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Plan").await;
    rig.ended(request).await;
    let called = server.called();
    let history = &called[2].meta["statehold/conversation_history"];
    let messages = history["messages"].as_array().expect("messages");
    let names: Vec<_> = messages
        .iter()
        .map(|message| message["name"].as_str())
        .collect();
    assert_eq!(names, [None, Some("first"), Some("second")]);
    for call in &called {
        assert!(call.args.get("conversation_history_uri").is_none());
        assert!(call.meta.get("statehold/read_token").is_none());
    }
    // The messages are not recorded with the call.
    let trace = api::session::trace(
        &rig.engine,
        &rig.local,
        session,
        (None, PageLimit::entries(500)),
    );
    let trace = serde_json::to_string(&trace.await?.0).expect("JSON");
    assert!(!trace.contains("conversation_history"), "{trace}");
    runner.stop().await;
    Ok(())
}

/// The policies of tools that may be called again, or not.
fn policies(idempotent: bool) -> Policies {
    let tool = |_: &str| ToolPolicy {
        idempotent: Some(idempotent),
        ..ToolPolicy::default()
    };
    let agents = PHASES.map(|phase| {
        let tools = [(name(phase), tool(phase))].into();
        (
            name(phase),
            AgentPolicy {
                tools,
                ..AgentPolicy::default()
            },
        )
    });
    Policies {
        agents: agents.into(),
        ..Policies::default()
    }
}

#[tokio::test]
async fn a_turn_over_tools_goes_on_from_every_step() -> Outcome {
    let places = [
        (StepKind::Phase, 3),
        (StepKind::Child, 3),
        (StepKind::Prepare, 3),
        (StepKind::ToolCall, 3),
        (StepKind::ToolResult, 3),
        (StepKind::Answer, 3),
    ];
    for (kind, times) in places {
        for moment in [CommitPhase::Before, CommitPhase::After] {
            for nth in 1..=times {
                let place = format!("{kind:?} {moment:?} {nth}");
                let server =
                    ToolServer::start(PHASES.map(phase_tool).into(), |call| call.tool.clone());
                let server = server.await;
                let book = book_of(&server, line(), HistoryAccess::Pinned);
                let rig = Rig::with(book, policies(true)).await;
                let (hook, reached) = lost_at(kind, moment, nth);
                let first = rig.watched(hook).await;
                let session = rig.session("line").await;
                let request = rig.ask(session, "line", "Plan").await;
                tokio::time::timeout(PATIENCE, reached.notified())
                    .await
                    .expect(&place);
                first.stop().await;
                let second = rig.runner().await;
                let detail = rig.ended(request).await;
                let outcome = detail.request.ended().map(|ended| ended.outcome);
                assert_eq!(outcome, Some(RequestOutcome::Completed), "{place}");
                assert_eq!(rig.transcript(session).await, ["Plan", "third"], "{place}");
                // A call that is made again is the same call, at the same address.
                let mut known = std::collections::BTreeMap::new();
                for call in server.called() {
                    let was = known.insert(call.key.clone(), call.args.clone());
                    assert!(was.is_none_or(|was| was == call.args), "{place}");
                }
                assert_eq!(known.len(), 3, "{place}");
                second.stop().await;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_phase_that_may_have_run_is_asked_about() -> Outcome {
    let server = ToolServer::start(PHASES.map(phase_tool).into(), |call| call.tool.clone()).await;
    let book = book_of(&server, line(), HistoryAccess::Pinned);
    let rig = Rig::with(book, policies(false)).await;
    let (hook, reached) = lost_at(StepKind::ToolResult, CommitPhase::Before, 2);
    let first = rig.watched(hook).await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Plan").await;
    tokio::time::timeout(PATIENCE, reached.notified())
        .await
        .expect("the second call");
    first.stop().await;
    let second = rig.runner().await;
    let waiting = rig
        .until(request, |detail| !detail.pending.holds.is_empty())
        .await;
    let asked = waiting.pending.holds[0].hold.id;
    let hold = &rig.engine.hold(&rig.local, asked).await?;
    assert_eq!(hold.hold.kind, HoldKind::Reconcile);
    decide(
        &rig,
        hold,
        DecisionKind::Respond,
        json!({"content": {"outcome": "ran", "result": "told"}}),
    )
    .await;
    rig.ended(request).await;
    assert_eq!(rig.transcript(session).await, ["Plan", "third"]);
    assert_eq!(server.called().len(), 3);
    second.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_phase_whose_server_is_starting_is_asked_again() -> Outcome {
    for (retries, expected) in [(0, RequestOutcome::Failed), (2, RequestOutcome::Completed)] {
        let server = ToolServer::start(PHASES.map(phase_tool).into(), |call| call.tool.clone());
        let server = server.await;
        let mut declared = book_of(&server, line(), HistoryAccess::Pinned);
        for phase in PHASES {
            let kind = mcp(phase, HistoryAccess::Pinned);
            let spec = Arc::into_inner(agent(phase, kind)).expect("nobody else has it");
            let spec = Arc::new(statehold_agents::spec::AgentSpec { retries, ..spec });
            declared.agents.insert(name(phase), spec);
        }
        let rig = Rig::with(declared, Policies::default()).await;
        let runner = rig.runner().await;
        let session = rig.session("line").await;
        // Each attempt tries both ways to connect.
        server.refuse(2);
        let request = rig.ask(session, "line", "Plan").await;
        let ended = rig.ended(request).await;
        let outcome = ended.request.ended().map(|ended| ended.outcome);
        assert_eq!(outcome, Some(expected), "{retries} retries");
        runner.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_tool_fails_the_turn_with_its_words() -> Outcome {
    let server = ToolServer::start(vec![phase_tool("other")], |call| call.tool.clone()).await;
    let rig = Rig::with(
        book_of(&server, line(), HistoryAccess::None),
        Policies::default(),
    )
    .await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "Plan").await;
    let detail = rig.ended(request).await;
    let error = error(&detail);
    assert_eq!(error["code"], "tool_unknown");
    assert!(
        error["message"]
            .as_str()
            .expect("text")
            .contains("has no tool `first`"),
        "{error}"
    );
    runner.stop().await;
    Ok(())
}
