//! State in every scope for hosted agents: values in prompts, answers under keys, state tools, and the
//! hand-over of `temp:` values between the phases of a turn.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, StepKind};
use statehold_agents::spec::{AgentBook, AgentKind, AgentSpec, LlmSpec, StateAccess};
use statehold_core::ids::SessionId;
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_engine::api::state::StateQuery;
use statehold_engine::policy::Policies;
use statehold_engine::{PageLimit, Schema, StateKeyPattern, StateRule, api};
use statehold_fakes::chat::{ScriptedModel, calls, text};

use crate::crashes::lost_at;
use crate::llm::{completed, model_spec};
use crate::phases::{phase, pipeline};
use crate::rig::{Outcome, PATIENCE, Rig, agent, book, error, name};

fn key(text: &str) -> StateKey {
    text.parse().expect("a key")
}

/// A model with this prompt.
fn llm(text: &str, prompt: &str) -> AgentSpec {
    llm_with(text, prompt, StateAccess::default())
}

fn llm_with(text: &str, prompt: &str, state: StateAccess) -> AgentSpec {
    let spec = LlmSpec {
        model: name("main"),
        prompt: prompt.to_owned(),
        tool_servers: Vec::new(),
        steps_max: 16,
        tokens_max: None,
        prompt_echo_words: None,
        state,
    };
    let agent = agent(text, AgentKind::Llm(Arc::new(spec)));
    Arc::into_inner(agent).expect("nobody else has it")
}

fn book_of(model: &ScriptedModel, agents: Vec<AgentSpec>) -> AgentBook {
    AgentBook {
        models: [(name("main"), model_spec("main", &model.url()))].into(),
        ..book(agents.into_iter().map(Arc::new).collect())
    }
}

/// The system message of a call.
fn prompt(model: &ScriptedModel, call: usize) -> String {
    let message = model.messages(call)[0].clone();
    assert_eq!(message["role"], "system");
    message["content"].as_str().expect("text").to_owned()
}

async fn write(rig: &Rig, session: SessionId, set: Value) {
    let input = serde_json::from_value(json!({ "set": set })).expect("a patch");
    let written = api::state::patch(&rig.engine, &rig.call(), session, input).await;
    written.expect("it is written");
}

async fn value(rig: &Rig, session: SessionId, key: &str) -> Option<Value> {
    let page = (&StateQuery::default(), PageLimit::entries(100));
    let state = rig.engine.state(&rig.local, session, page).await;
    let values = state.expect("state").0.values;
    let value = values.get(key)?;
    Some(serde_json::from_slice(&value.value).expect("JSON"))
}

#[tokio::test]
async fn a_preference_of_the_user_and_a_flag_of_the_app_are_in_the_prompt_of_every_session()
-> Outcome {
    let model = ScriptedModel::start([text("Bonjour."), text("Salut.")]).await;
    let prompt_text = "Answer in {user:language}. Beta: {app:beta?}. Topic: {topic?}.";
    let rig = Rig::with(
        book_of(&model, vec![llm("assistant", prompt_text)]),
        Policies::default(),
    )
    .await;
    let runner = rig.runner().await;
    let first = rig.session("assistant").await;
    let request = rig.ask(first, "assistant", "Hello").await;
    let failed = error(&rig.ended(request).await);
    assert_eq!(failed["code"], "state_missing", "{failed}");
    let says = failed["message"].as_str().expect("text");
    assert!(says.contains("{user:language?}"), "{failed}");
    write(
        &rig,
        first,
        json!({"user:language": "French", "topic": "wine"}),
    )
    .await;
    let request = rig.ask(first, "assistant", "Hello").await;
    completed(&rig.ended(request).await);
    assert_eq!(prompt(&model, 0), "Answer in French. Beta: . Topic: wine.");
    // Another session of the user: the preference is there, the topic is not.
    let second = rig.session("assistant").await;
    let input = serde_json::from_value(json!({"set": {"app:beta": true}})).expect("a patch");
    let written = api::state::patch_app(&rig.engine, &rig.call(), "app", input).await;
    written.expect("it is written");
    let request = rig.ask(second, "assistant", "Hello").await;
    completed(&rig.ended(request).await);
    assert_eq!(prompt(&model, 1), "Answer in French. Beta: true. Topic: .");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_answer_is_written_under_the_output_key_with_the_answer() -> Outcome {
    for (output_key, lasts) in [
        ("last_result", true),
        ("user:last_agent", true),
        ("temp:x", false),
    ] {
        let model = ScriptedModel::start([text("42 rows")]).await;
        let mut spec = llm("assistant", "Count.");
        spec.output_key = Some(key(output_key));
        let rig = Rig::with(book_of(&model, vec![spec]), Policies::default()).await;
        let runner = rig.runner().await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "How many?").await;
        completed(&rig.ended(request).await);
        let found = value(&rig, session, output_key).await;
        assert_eq!(found, lasts.then(|| json!("42 rows")), "{output_key}");
        // Another session of the user knows only the user's values.
        let other = rig.session("assistant").await;
        let found = value(&rig, other, output_key).await;
        assert_eq!(
            found.is_some(),
            output_key.starts_with("user:"),
            "{output_key}"
        );
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

/// The streaming pattern: one agent parses, later ones of the same turn read its data.
fn parsed_and_told(between: bool) -> Vec<AgentSpec> {
    let mut data = llm("data", "Parse.");
    data.output_key = Some(key("temp:parsed"));
    let told = llm("told", "The data: {temp:parsed}");
    let mut phases = vec![phase("data")];
    if between {
        phases.push(phase("ask"));
    }
    phases.push(phase("told"));
    let spec = pipeline(phases);
    let line = agent("line", AgentKind::Pipeline(Arc::new(spec)));
    let mut agents = vec![data, told, Arc::into_inner(line).expect("new")];
    if between {
        let ask = agent("ask", AgentKind::Worker);
        agents.push(Arc::into_inner(ask).expect("new"));
    }
    agents
}

#[tokio::test]
async fn what_a_phase_writes_to_temp_later_phases_of_the_turn_read_and_the_next_turn_does_not()
-> Outcome {
    let model = ScriptedModel::start([
        text("rows=3"),
        text("Three."),
        text("rows=4"),
        text("Four."),
    ])
    .await;
    let mut agents = parsed_and_told(false);
    agents.push(llm("alone", "The data: {temp:parsed}"));
    let rig = Rig::with(book_of(&model, agents), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    for (call, rows, answer) in [(1, "rows=3", "Three."), (3, "rows=4", "Four.")] {
        let request = rig.ask(session, "line", "How many?").await;
        completed(&rig.ended(request).await);
        assert_eq!(prompt(&model, call), format!("The data: {rows}"));
        let said = rig.transcript(session).await;
        assert_eq!(said.last().map(String::as_str), Some(answer));
    }
    // The values went with the turn.
    let request = rig.ask(session, "alone", "How many?").await;
    let failed = error(&rig.ended(request).await);
    assert_eq!(failed["code"], "state_missing");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_pause_drops_temp_values_and_the_pipeline_writes_those_of_its_phases_again() -> Outcome {
    let model = ScriptedModel::start([text("rows=3"), text("Three.")]).await;
    let rig = Rig::with(book_of(&model, parsed_and_told(true)), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    let request = rig.ask(session, "line", "How many?").await;
    let claimed = rig.claim("ask").await;
    rig.leased(&claimed).open_hold(crate::question()).await?;
    let paused = rig
        .until(request, |detail| {
            let live = detail.request.live();
            live.is_some_and(|live| live.lease.is_none())
        })
        .await;
    crate::respond(&rig, paused.pending.holds[0].hold.id, "yes").await?;
    rig.answer(&claimed, "yes").await;
    completed(&rig.ended(request).await);
    assert_eq!(prompt(&model, 1), "The data: rows=3");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

fn access(read: &[Scope], write: &[Scope]) -> StateAccess {
    StateAccess {
        read: read.iter().copied().collect(),
        write: write.iter().copied().collect(),
    }
}

#[tokio::test]
async fn a_model_reads_writes_and_deletes_state_in_the_scopes_that_it_is_given() -> Outcome {
    use Scope::{App, Session, Temp, User};
    let model = ScriptedModel::start([
        calls(&[
            (
                "a",
                "put_state",
                json!({"key": "last_query", "value": {"rows": 3}}),
            ),
            (
                "b",
                "put_state",
                json!({"key": "user:agent_id", "value": "agt-7"}),
            ),
            (
                "c",
                "put_state",
                json!({"key": "temp:draft", "value": [1, 2]}),
            ),
            ("d", "put_state", json!({"key": "app:flag", "value": true})),
            ("e", "get_state", json!({"key": "app:flag"})),
            ("f", "delete_state", json!({"key": "old"})),
            ("g", "get_state", json!({"key": "none"})),
            ("h", "put_state", json!({"key": "Temp:x", "value": 1})),
        ]),
        calls(&[
            ("i", "get_state", json!({"key": "temp:draft"})),
            ("j", "get_state", json!({"key": "user:agent_id"})),
            ("k", "get_state", json!({"key": "last_query"})),
        ]),
        text("Done."),
    ])
    .await;
    let all = access(&[App, User, Session, Temp], &[User, Session, Temp]);
    let spec = llm_with("assistant", "Remember.", all);
    let rig = Rig::with(book_of(&model, vec![spec]), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    write(&rig, session, json!({"old": 1})).await;
    let input = serde_json::from_value(json!({"set": {"app:flag": "on"}})).expect("a patch");
    let written = api::state::patch_app(&rig.engine, &rig.call(), "app", input).await;
    written.expect("it is written");
    let request = rig.ask(session, "assistant", "Go").await;
    completed(&rig.ended(request).await);
    let results = |call: usize| -> Vec<Value> {
        let messages = model.messages(call);
        let told = messages.iter().filter(|message| message["role"] == "tool");
        let texts = told.map(|message| message["content"].as_str().expect("text").to_owned());
        texts
            .map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)))
            .collect()
    };
    let told = results(1);
    assert_eq!(told[0], json!({"written": "last_query"}));
    assert_eq!(told[1], json!({"written": "user:agent_id"}));
    assert_eq!(told[2], json!({"written": "temp:draft"}));
    assert!(told[3].to_string().contains("out of reach"), "{}", told[3]);
    assert_eq!(told[4]["value"], "on", "{}", told[4]);
    assert_eq!(told[5], json!({"deleted": "old"}));
    assert_eq!(told[6]["exists"], false);
    assert!(told[7].to_string().contains("not a scope"), "{}", told[7]);
    let told = &results(2)[8..];
    assert_eq!(told[0]["value"], json!([1, 2]));
    assert_eq!(told[1]["value"], "agt-7");
    assert_eq!(told[2]["value"], json!({"rows": 3}));
    assert_eq!(
        value(&rig, session, "last_query").await,
        Some(json!({"rows": 3}))
    );
    assert_eq!(
        value(&rig, session, "user:agent_id").await,
        Some(json!("agt-7"))
    );
    assert_eq!(value(&rig, session, "app:flag").await, Some(json!("on")));
    assert_eq!(value(&rig, session, "old").await, None);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn only_the_tools_of_given_scopes_are_offered() -> Outcome {
    use Scope::{Session, User};
    let offered = |call: Value| -> Vec<String> {
        let tools = call["tools"].as_array().cloned().unwrap_or_default();
        let names = tools.iter().map(|tool| tool["function"]["name"].clone());
        names
            .map(|name| name.as_str().expect("text").to_owned())
            .collect()
    };
    for (state, expected) in [
        (access(&[], &[]), Vec::new()),
        (access(&[User], &[]), vec!["get_state"]),
        (access(&[], &[Session]), vec!["put_state", "delete_state"]),
    ] {
        let model = ScriptedModel::start([text("Hi.")]).await;
        let spec = llm_with("assistant", "Be kind.", state);
        let rig = Rig::with(book_of(&model, vec![spec]), Policies::default()).await;
        let runner = rig.runner().await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "Go").await;
        completed(&rig.ended(request).await);
        assert_eq!(offered(model.asked()[0].clone()), expected);
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_state_tool_has_its_effect_with_its_result_wherever_the_turn_is_lost() -> Outcome {
    for moment in [CommitPhase::Before, CommitPhase::After] {
        for kind in [StepKind::ToolCall, StepKind::ToolResult] {
            let place = format!("{kind:?} {moment:?}");
            let put = calls(&[("a", "put_state", json!({"key": "n", "value": 1}))]);
            let mut says = vec![put.clone(), text("Done.")];
            if (kind, moment) == (StepKind::ToolCall, CommitPhase::Before) {
                says.insert(0, put);
            }
            let model = ScriptedModel::start(says).await;
            let spec = llm_with("assistant", "Count.", access(&[], &[Scope::Session]));
            let rig = Rig::with(book_of(&model, vec![spec]), Policies::default()).await;
            let (hook, reached) = lost_at(kind, moment, 1);
            let first = rig.watched(hook).await;
            let session = rig.session("assistant").await;
            let request = rig.ask(session, "assistant", "Go").await;
            let lost = tokio::time::timeout(PATIENCE, reached.notified()).await;
            lost.expect(&place);
            let is_done = (kind, moment) == (StepKind::ToolResult, CommitPhase::After);
            let found = value(&rig, session, "n").await;
            assert_eq!(found.is_some(), is_done, "{place}");
            first.stop().await;
            let second = rig.runner().await;
            let ended = rig.ended(request).await;
            completed(&ended);
            assert!(ended.holds.is_empty(), "{place}: nobody is asked");
            assert_eq!(value(&rig, session, "n").await, Some(json!(1)), "{place}");
            second.stop().await;
            rig.engine.shut_down().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn agents_write_by_the_rules_of_their_keys() -> Outcome {
    let schema = |text: &str| Some(Arc::new(Schema::new(text).expect("a schema")));
    let rules = [
        ("said", Some(MergePolicy::Append), None),
        ("count", None, schema(r#"{"type": "integer"}"#)),
    ];
    let rules = rules.map(|(keys, merge, schema)| {
        let keys: StateKeyPattern = keys.parse().expect("keys");
        (keys, StateRule { merge, schema })
    });
    let policies = Policies {
        state: rules.into_iter().collect(),
        ..Policies::default()
    };
    let put = |value: Value| {
        let args = json!({"key": "count", "value": value});
        calls(&[("a", "put_state", args)])
    };
    let model = ScriptedModel::start([put(json!("many")), put(json!(3)), text("Done.")]).await;
    let access = access(&[], &[Scope::Session]);
    let mut assistant = llm_with("assistant", "Count.", access);
    assistant.output_key = Some(key("count"));
    let rig = Rig::with(book_of(&model, vec![assistant]), policies).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Go").await;
    // The answer is no integer: it is told, and not written.
    let ended = rig.ended(request).await;
    completed(&ended);
    let told = model.messages(1);
    let told = told.last().expect("a message").to_string();
    assert!(told.contains("does not fit its schema"), "{told}");
    assert_eq!(value(&rig, session, "count").await, Some(json!(3)));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_answer_is_not_lost_with_a_value_that_its_rule_refuses() -> Outcome {
    let append = Some(MergePolicy::Append);
    let long = Schema::new(r#"{"maxItems": 1}"#).expect("a schema");
    let cases = [
        // A text cannot be appended to a list.
        (append, None, json!([1])),
        // The text fits; a merged list of two does not.
        (
            None,
            Some(Arc::new(
                Schema::new(r#"{"type": "array"}"#).expect("a schema"),
            )),
            json!([1]),
        ),
        (append, Some(Arc::new(long)), json!([1])),
    ];
    for (merge, schema, before) in cases {
        let keys: StateKeyPattern = "said".parse().expect("keys");
        let policies = Policies {
            state: [(keys, StateRule { merge, schema })].into_iter().collect(),
            ..Policies::default()
        };
        let model = ScriptedModel::start([text("one")]).await;
        let mut spec = llm("assistant", "Count.");
        spec.output_key = Some(key("said"));
        let rig = Rig::with(book_of(&model, vec![spec]), policies).await;
        let runner = rig.runner().await;
        let session = rig.session("assistant").await;
        write(&rig, session, json!({"said": before})).await;
        let request = rig.ask(session, "assistant", "Go").await;
        let ended = rig.ended(request).await;
        completed(&ended);
        assert_eq!(value(&rig, session, "said").await, Some(before));
        let page = (None, PageLimit::entries(100));
        let trace = api::session::trace(&rig.engine, &rig.local, session, page).await;
        let trace = trace.expect("a trace").0.messages;
        let is_note = |item: &api::item::ItemView| item.name.as_deref() == Some("state_left_out");
        assert!(trace.iter().any(is_note), "{trace:?}");
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_merges_by_the_rule_of_its_output_key() -> Outcome {
    let keys: StateKeyPattern = "user:said".parse().expect("keys");
    let merge = Some(MergePolicy::KeepFirst);
    let rule = StateRule {
        merge,
        schema: None,
    };
    let policies = Policies {
        state: [(keys, rule)].into_iter().collect(),
        ..Policies::default()
    };
    let model = ScriptedModel::start([text("one"), text("two")]).await;
    let mut spec = llm("assistant", "Count.");
    spec.output_key = Some(key("user:said"));
    let rig = Rig::with(book_of(&model, vec![spec]), policies).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    for _ in 0..2 {
        let request = rig.ask(session, "assistant", "Go").await;
        completed(&rig.ended(request).await);
        let said = value(&rig, session, "user:said").await;
        assert_eq!(said, Some(json!("one")));
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
