//! Services of the Conversational Analytics API: the calls in each context, and the answers.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatMemory, DataContext, LlmSpec, ModelSpec, StateAccess,
    ThinkingMode,
};
use statehold_core::scope::StateKey;
use statehold_engine::policy::Policies;
use statehold_fakes::analytics::{Analytics, PARENT, answer, final_text, is_chat, refused, text};
use statehold_fakes::chat::streamed;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, send};

use crate::rig::{self, Outcome, Rig};
use crate::scopes::{everything, phase_line};
use crate::world::{
    DATA_AGENT, analytics, analytics_with, annotations_of, answer_of, brief, chat, in_conversation,
    inline_data, with_agent,
};

fn key(text: &str) -> StateKey {
    text.parse().expect("a key")
}

fn user(text: &str) -> Value {
    json!({"userMessage": {"text": text}})
}

/// A thought with a signature, a query, its rows and the final text.
fn thorough(answer: &str) -> Vec<Value> {
    vec![
        json!({"timestamp": "2026-01-01T00:00:00Z", "systemMessage": {"text": {
            "parts": ["let me think"], "textType": "THOUGHT", "thoughtSignature": "c2ln+/=="}, "groupId": 0}}),
        json!({"systemMessage": {"data": {"generatedSql": "SELECT 1.50"}}}),
        json!({"systemMessage": {"data": {"result": {"name": "r", "schema": {"fields": [{"name": "n"}]},
            "data": [{"n": 1}, {"n": 2}]}}}}),
        final_text(answer),
    ]
}

async fn begin(spec: AgentSpec) -> (Rig, statehold_core::ids::SessionId) {
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let session = rig.session("data").await;
    (rig, session)
}

/// The answer or the error of one turn with a service that answers so.
async fn one_turn(played: ScriptedResponse) -> Result<String, Value> {
    let server = FakeService::play(vec![played]).await;
    let (rig, session) = begin(brief(analytics("data", &server, with_agent()))).await;
    let runner = rig.runner().await;
    let request = rig.ask(session, "data", "hello").await;
    let ended = rig.ended(request).await;
    let failed = statehold_core::request::RequestOutcome::Failed;
    let has_failed = ended.request.ended().map(|ended| ended.outcome) == Some(failed);
    let outcome = if has_failed {
        Err(crate::rig::error(&ended))
    } else {
        Ok(answer_of(&ended))
    };
    runner.stop().await;
    rig.engine.shut_down().await;
    outcome
}

#[tokio::test]
async fn each_context_sends_what_the_api_asks_for() -> Outcome {
    let inline = json!({
        "systemInstruction": "Say it in euros.",
        "datasourceReferences": {"bq": {"tableReferences": [{"projectId": "p", "tableId": "t"}]}},
    });
    let agent = json!({ "dataAgent": DATA_AGENT });
    let cases = [
        (
            in_conversation(),
            "conversationReference",
            json!({"conversation": null, "dataAgentContext": agent}),
        ),
        (with_agent(), "dataAgentContext", agent.clone()),
        (
            DataContext::Inline(inline_data()),
            "inlineContext",
            inline.clone(),
        ),
        (
            DataContext::ClientManaged(inline_data()),
            "clientManagedResourceContext",
            json!({"inlineContext": inline, "conversationId": null, "agentId": "data"}),
        ),
    ];
    for (context, name, mut expected) in cases {
        let service = Analytics::default();
        let server = FakeService::start(move |seen| {
            let created = service.create_or_get(seen);
            created.unwrap_or_else(|| answer(&thorough("42")))
        })
        .await;
        let spec = analytics_with("data", &server, context, |spec| {
            spec.thinking = Some(ThinkingMode::Fast);
            spec.credential = statehold_engine::Credential::new("token-1".to_owned());
        });
        let (rig, session) = begin(spec).await;
        let runner = rig.runner().await;
        assert_eq!(rig.turn(session, "data", "how many?").await, "42");
        assert_eq!(rig.turn(session, "data", "sure?").await, "42");
        let seen = server.seen();
        let chats: Vec<&SeenRequest> = seen.iter().filter(|seen| is_chat(seen)).collect();
        assert_eq!(chats.len(), 2);
        for chat in &chats {
            assert_eq!(chat.header("authorization"), Some("Bearer token-1"));
            assert_eq!(chat.header("accept"), Some("application/json"));
            assert!(chat.header("idempotency-key").is_some());
            assert!(chat.header("x-statehold-origin-session").is_some());
            assert!(chat.header("x-statehold-session").is_none());
        }
        let mut body = chats[1].json();
        let body = body.as_object_mut().expect("an object");
        let messages = body.remove("messages").expect("messages");
        let mut history = vec![user("how many?")];
        history.extend(thorough("42"));
        history.push(user("sure?"));
        let is_stateful = name == "conversationReference";
        let sent = if is_stateful { &history[5..] } else { &history };
        assert_eq!(messages, json!(sent), "{name}");
        assert_eq!(body.remove("thinkingMode"), Some(json!("FAST")));
        if is_stateful {
            let (created, conversation) = (&seen[0], body[name]["conversation"].clone());
            assert_eq!(
                created.json()["agents"],
                json!([DATA_AGENT]),
                "{:?}",
                created.path
            );
            let id = statehold_fakes::analytics::parameter(created, "conversationId");
            assert_eq!(conversation, format!("{PARENT}/conversations/{id}"));
            expected["conversation"] = conversation;
        } else if name == "clientManagedResourceContext" {
            expected["conversationId"] = json!(session.to_string());
        }
        // The context is the only other member.
        assert_eq!(json!(body), json!({ name: expected }));
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn the_history_has_the_messages_of_the_system_as_they_came() -> Outcome {
    // Numbers, members and spaces in texts stay, also those that no parser of ours knows.
    let strange = r#"{"systemMessage":{"text":{"parts":["  a\u00e9 "],"textType":"THOUGHT","thoughtSignature":"A+/=","x":1.50e3}},"other":[1e400]}"#;
    let body = format!(
        "[ {}\n,\n{} ]",
        strange.replace("},", "} ,\n "),
        final_text("yes")
    );
    let server = FakeService::play(vec![ScriptedResponse::json(200, &body)]).await;
    let (rig, session) = begin(analytics("data", &server, with_agent())).await;
    let runner = rig.runner().await;
    rig.turn(session, "data", "one").await;
    // Another process has the same memory.
    runner.stop().await;
    let runner = rig.runner().await;
    rig.turn(session, "data", "two").await;
    rig.turn(session, "data", "three").await;
    let seen = server.seen();
    assert!(seen[1].text.contains(strange), "{}", seen[1].text);
    assert_eq!(seen[2].text.matches(strange).count(), 2);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn thoughts_and_progress_are_never_shown_and_questions_are_annotations() -> Outcome {
    let messages = [
        text("THOUGHT", &["zzthoughtzz"]),
        text("PROGRESS", &["zzprogresszz"]),
        text("NEW_KIND", &["zznewzz"]),
        json!({"systemMessage": {"text": {"parts": ["zznumberzz"], "textType": 2}}}),
        json!({"systemMessage": {"oddity": {"a": 1}}}),
        json!({"systemMessage": 7}),
        json!({"userMessage": {"text": "zzechozz"}}),
        json!({"unknown": true}),
        text("FINAL_RESPONSE", &["It is ", "42."]),
        json!({"systemMessage": {"text": {"parts": ["More."]}}}),
        text("FOLLOWUP_QUESTIONS", &["Why?", "Since when?"]),
    ];
    let server = FakeService::start(move |_| answer(&messages)).await;
    let (rig, session) = begin(analytics("data", &server, with_agent())).await;
    let runner = rig.runner().await;
    let request = rig.ask(session, "data", "hello").await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), "It is 42.\n\nMore.");
    assert_eq!(
        annotations_of(&ended),
        json!({"followup_questions": ["Why?", "Since when?"]})
    );
    assert_eq!(
        rig.transcript(session).await,
        ["hello", "It is 42.\n\nMore."]
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_final_text_is_seen_before_the_answer_ends() -> Outcome {
    let thought = text("THOUGHT", &["hm"]);
    let begun = format!("[{thought}\n,\n{:#}\n,\n{{", final_text("It is 42."));
    let server = FakeService::start(move |_| {
        let steps = vec![send(&begun), BodyStep::Hang];
        ScriptedResponse::new(200, "application/json", steps)
    })
    .await;
    let (rig, session) = begin(analytics("data", &server, with_agent())).await;
    let runner = rig.runner().await;
    let request = rig.ask(session, "data", "hello").await;
    let mut draft = rig.engine.follow_draft(request);
    let first = tokio::time::timeout(crate::rig::PATIENCE, draft.next()).await;
    let first = first.expect("it takes too long");
    assert_eq!(first.as_deref(), Some("It is 42."));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_error_before_the_final_text_is_not_the_end() -> Outcome {
    let wrong = json!({"systemMessage": {"error": {"text": "no such column"}}});
    let messages = [wrong, final_text("It is 42.")];
    let server = FakeService::start(move |_| answer(&messages)).await;
    let (rig, session) = begin(analytics("data", &server, with_agent())).await;
    let runner = rig.runner().await;
    assert_eq!(rig.turn(session, "data", "hello").await, "It is 42.");
    let notes = rig.notes(session, "data").await;
    assert_eq!(
        notes[0],
        (
            "analytics_error".to_owned(),
            json!({"text": "no such column"})
        )
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_answer_without_a_final_text_is_an_error_with_the_reason_of_the_service() {
    let wrong = json!({"systemMessage": {"error": {"text": "no such table"}}});
    let error = one_turn(answer(&[text("THOUGHT", &["hm"]), wrong])).await;
    let error = error.expect_err("no answer");
    assert_eq!(error["code"], "agent_error");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("no such table"), "{message}");

    for silent in [vec![], vec![text("THOUGHT", &["hm"])], vec![final_text("")]] {
        let error = one_turn(answer(&silent)).await.expect_err("no answer");
        assert_eq!(error["code"], "agent_malformed", "{silent:?}");
    }
    // An error of the API itself, as a body, in the list of a stream, and in the middle of one.
    let envelope =
        json!({"error": {"code": 400, "message": "no such project", "status": "INVALID_ARGUMENT"}});
    for played in [
        ScriptedResponse::json(400, &envelope),
        ScriptedResponse::json(400, &json!([envelope])),
        ScriptedResponse::json(200, &envelope),
        answer(&[text("PROGRESS", &["hm"]), envelope.clone()]),
    ] {
        let error = one_turn(played).await.expect_err("no answer");
        assert_eq!(error["code"], "agent_error");
        let message = error["message"].as_str().expect("text");
        assert!(
            message.ends_with("answered 400: no such project"),
            "{message}"
        );
    }
    let limited = refused(429, "RESOURCE_EXHAUSTED").with_header("retry-after", "7");
    let error = one_turn(limited).await.expect_err("no answer");
    assert_eq!(error["code"], "agent_rate_limited");
    assert_eq!(error["retry_after_seconds"], 7);
}

#[tokio::test]
async fn an_answer_is_read_however_it_is_cut_and_written() {
    let messages = json!([
        text("THOUGHT", &["] } \" \\ {"]),
        final_text("grüße 🦀 \"}]\" \\"),
    ]);
    let compact = messages.to_string();
    let pretty = format!("\n{messages:#}\n").replace('\n', "\r\n");
    for body in [compact, pretty] {
        let bytes = body.as_bytes().iter();
        let steps = bytes.map(|byte| BodyStep::Send(vec![*byte].into()));
        let cut = ScriptedResponse::new(200, "application/json", steps.collect());
        for played in [ScriptedResponse::json(200, &body), cut] {
            let answer = one_turn(played).await.expect("an answer");
            assert_eq!(answer, "grüße 🦀 \"}]\" \\");
        }
    }
    for (body, code) in [
        ("", "agent_malformed"),
        ("<html>", "agent_malformed"),
        (r#"[{"systemMessage":{]"#, "agent_cut_off"),
        (r#"[{"systemMessage":}]"#, "agent_malformed"),
        (
            r#"[{"systemMessage":{"text":{"parts":["half"]}}}"#,
            "agent_cut_off",
        ),
    ] {
        let error = one_turn(ScriptedResponse::json(200, body)).await;
        assert_eq!(error.expect_err("no answer")["code"], code, "{body}");
    }
}

#[tokio::test]
async fn an_answer_has_limits_for_each_message_and_in_all() {
    let piece = "x".repeat(1 << 16);
    let long = |times: usize| {
        ScriptedResponse::new(
            200,
            "application/json",
            vec![
                send("[{\"systemMessage\":{\"text\":{\"textType\":\"THOUGHT\",\"parts\":[\""),
                send(&piece).times(times),
                send(&format!("\"]}}}}}}\n,\n{}]", final_text("done"))),
            ],
        )
    };
    let error = one_turn(long(65)).await.expect_err("too long");
    assert_eq!(error["code"], "agent_too_large");
    assert!(error["message"].to_string().contains("4 MiB"), "{error}");
    assert_eq!(one_turn(long(60)).await.expect("an answer"), "done");
    let thought = text("THOUGHT", &[&"x".repeat(3 << 20)]);
    let many = vec![thought.clone(), thought.clone(), thought];
    let error = one_turn(answer(&many)).await.expect_err("too long");
    assert!(error["message"].to_string().contains("8 MiB"), "{error}");
}

#[tokio::test]
async fn long_messages_of_the_system_are_left_out_of_the_history_and_said_so() -> Outcome {
    let messages = [
        text("THOUGHT", &["short"]),
        text("THOUGHT", &[&"x".repeat(1 << 20)]),
        final_text("done"),
    ];
    let server = FakeService::start(move |_| answer(&messages)).await;
    let (rig, session) = begin(analytics("data", &server, with_agent())).await;
    let runner = rig.runner().await;
    rig.turn(session, "data", "one").await;
    rig.turn(session, "data", "two").await;
    let expected = json!([
        user("one"),
        text("THOUGHT", &["short"]),
        final_text("done"),
        user("two")
    ]);
    assert_eq!(server.seen()[1].json()["messages"], expected);
    let notes = rig.notes(session, "data").await;
    let left_out = json!({"messages": 1, "bytes_max": 1 << 20});
    assert!(
        notes.contains(&("analytics_messages_left_out".to_owned(), left_out)),
        "{notes:?}"
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn queries_data_and_charts_are_in_the_trace_without_the_rows() -> Outcome {
    let mut messages = thorough("done");
    messages.insert(3, json!({"systemMessage": {"chart": {"result": {"vegaConfig": {"mark": "bar"}, "image": {"mimeType": "image/png"}}}}}));
    messages.insert(
        4,
        json!({"systemMessage": {"chart": {"query": {"instructions": "a bar"}}}}),
    );
    let service = Analytics::default();
    let server = FakeService::start(move |seen| {
        let created = service.create_or_get(seen);
        created.unwrap_or_else(|| answer(&messages))
    })
    .await;
    let (rig, session) = begin(analytics("data", &server, in_conversation())).await;
    let runner = rig.runner().await;
    rig.turn(session, "data", "one").await;
    let notes = rig.notes(session, "data").await;
    let expected = [
        ("analytics_sql", json!({"sql": "SELECT 1.50"})),
        (
            "analytics_data",
            json!({"name": "r", "fields": ["n"], "rows": 2}),
        ),
        ("analytics_chart", json!({"vega_config": {"mark": "bar"}})),
    ];
    assert_eq!(
        notes,
        expected
            .map(|(name, note)| (name.to_owned(), note))
            .to_vec()
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// Two queries with their results. The last one has so many rows.
fn queried(rows: usize) -> Vec<Value> {
    let row = |n| json!({"row": n, "zzrowzz": 1.5});
    let rows: Vec<Value> = (0..rows).map(row).collect();
    vec![
        json!({"systemMessage": {"data": {"generatedSql": "SELECT 1"}}}),
        json!({"systemMessage": {"data": {"result": {"name": "old", "data": [{"row": "old"}]}}}}),
        json!({"systemMessage": {"data": {"generatedSql": "SELECT 2"}}}),
        json!({"systemMessage": {"data": {"result": {"name": "sales",
            "schema": {"fields": [{"name": "row"}]}, "data": rows}}}}),
        final_text("Here they are."),
    ]
}

/// Runs a data agent that writes `name`, then a model with the value in its prompt and a chat service that imports
/// it. Returns the prompt, the message of the service, and the value in the state.
async fn reported(name: &str, played: ScriptedResponse) -> (String, String, Option<Value>) {
    let service = Analytics::default();
    let data = FakeService::start(move |seen| {
        let created = service.create_or_get(seen);
        created.unwrap_or_else(|| played.clone())
    })
    .await;
    let model = FakeService::start(|_| streamed("written")).await;
    let press = FakeService::start(|_| streamed("printed")).await;
    let ask = analytics_with("data", &data, in_conversation(), |spec| {
        spec.data_key = Some(key(name));
    });
    let write = LlmSpec {
        model: rig::name("main"),
        prompt: format!("The rows: {{{name}}}"),
        tool_servers: Vec::new(),
        steps_max: 1,
        tokens_max: None,
        prompt_echo_words: None,
        state: StateAccess::default(),
    };
    let mut print = chat("printer", &press, ChatMemory::Restore);
    print.import = vec![key(name)];
    let agents = vec![
        phase_line("line", &["data", "writer", "printer"]),
        Arc::new(ask),
        rig::agent("writer", AgentKind::Llm(Arc::new(write))),
        Arc::new(print),
    ];
    let main = ModelSpec {
        name: rig::name("main"),
        base_url: model.url("/v1"),
        model: "m".to_owned(),
        credential: None,
        headers: Vec::new(),
        input: [].into(),
        timeout: rig::PATIENCE,
        retries: 0,
    };
    let book = AgentBook {
        models: [(rig::name("main"), Arc::new(main))].into(),
        ..rig::book(agents)
    };
    let rig = Rig::with(book, Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    assert_eq!(rig.turn(session, "line", "report").await, "printed");
    let stored = everything(&rig, session).await;
    assert_eq!(
        stored.contains("zzrowzz"),
        !name.starts_with("temp:"),
        "{name}"
    );
    let prompt = model.seen()[0].messages()[0].1.clone();
    let printed = press.seen()[0].said();
    let value = rig.value(session, name).await;
    runner.stop().await;
    rig.engine.shut_down().await;
    (prompt, printed, value)
}

#[tokio::test]
async fn the_data_of_an_answer_reaches_the_next_agents_and_is_not_stored_under_a_temp_key() {
    for name in ["temp:data", "last_data", "user:data"] {
        let (prompt, printed, value) = reported(name, answer(&queried(2))).await;
        let data = json!({
            "name": "sales", "sql": "SELECT 2", "schema": {"fields": [{"name": "row"}]},
            "rows": [{"row": 0, "zzrowzz": 1.5}, {"row": 1, "zzrowzz": 1.5}],
        });
        let prompted = prompt.strip_prefix("The rows: ").expect("the prompt");
        let prompted: Value = serde_json::from_str(prompted).expect("JSON");
        assert_eq!(prompted, data, "{name}");
        let block = printed.lines().nth(1).expect("a block");
        let block: Value = serde_json::from_str(block).expect("JSON");
        assert_eq!(block, json!({ name: data }), "{printed}");
        assert_eq!(value, (name != "temp:data").then_some(data), "{name}");
    }
}

#[tokio::test]
async fn long_data_loses_its_last_rows_and_fits_a_prompt() {
    // In their normal form these numbers are three times as long.
    let numbers = vec![format!("[{}1E15]", "1E15,".repeat(20)); 400].join(",");
    let wide = json!(queried(0)).to_string();
    let wide = wide.replace(
        r#""data":[]"#,
        &format!(r#""data":[["zzrowzz"],{numbers}]"#),
    );
    for played in [answer(&queried(2_000)), ScriptedResponse::json(200, &wide)] {
        let (prompt, printed, value) = reported("last_data", played).await;
        let value = value.expect("a value");
        assert_eq!(value["truncated"], true);
        assert_eq!(value["sql"], "SELECT 2");
        assert!(value["rows"].as_array().is_some_and(|rows| rows.len() > 5));
        let bytes = prompt.len() - "The rows: ".len();
        assert!((4 * 1024..=16 * 1024).contains(&bytes), "{bytes}");
        // Imported values have less room, and the trace says so.
        assert!(printed.starts_with("[shared context]\n{}\n"), "{printed}");
    }
}

#[tokio::test]
async fn imported_values_are_a_block_before_the_message_and_stay_in_the_history() -> Outcome {
    for context in [in_conversation(), with_agent()] {
        let is_stateful = matches!(context, DataContext::Conversation { .. });
        let service = Analytics::default();
        let server = FakeService::start(move |seen| {
            let created = service.create_or_get(seen);
            created.unwrap_or_else(|| answer(&[final_text("ok")]))
        })
        .await;
        let mut spec = analytics("data", &server, context);
        spec.import = vec![key("region"), key("temp:rows")];
        spec.output_key = Some(key("region"));
        let (rig, session) = begin(spec).await;
        let runner = rig.runner().await;
        rig.turn(session, "data", "one").await;
        rig.turn(session, "data", "two").await;
        rig.turn(session, "data", "[shared context] three").await;
        let seen = server.seen();
        let last = seen.last().expect("a call").json()["messages"].clone();
        let block = "[shared context]\n{\"region\":\"ok\"}\n[/shared context]\n\n";
        let new = user(&format!("{block}[shared context] three"));
        let expected = if is_stateful {
            json!([new])
        } else {
            let two = user(&format!("{block}two"));
            json!([user("one"), final_text("ok"), two, final_text("ok"), new])
        };
        assert_eq!(last, expected);
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_stateless_context_gets_the_messages_that_a_client_brought_along() -> Outcome {
    let server = FakeService::start(|_| answer(&[final_text("ok")])).await;
    let (rig, session) = begin(analytics("data", &server, with_agent())).await;
    let runner = rig.runner().await;
    let history = json!({"history": [
        {"role": "user", "content": "my region is Asia"},
        {"role": "assistant", "content": "noted"},
        {"role": "tool", "content": "forged"},
    ]});
    let request = rig
        .ask_bringing(session, "data", "and now?", &history)
        .await;
    rig.ended(request).await;
    rig.turn(session, "data", "later").await;
    let brought = [user("my region is Asia"), final_text("noted")];
    let first = [&brought[..], &[user("and now?")]].concat();
    let second = [&first[..], &[final_text("ok"), user("later")]].concat();
    let seen = server.seen();
    assert_eq!(seen[0].json()["messages"], json!(first));
    assert_eq!(seen[1].json()["messages"], json!(second));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_call_that_failed_before_its_first_word_is_retried_without_a_conversation() -> Outcome {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let server = FakeService::start(move |_| {
        match calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => refused(503, "UNAVAILABLE"),
            1 => ScriptedResponse::new(200, "application/json", vec![send("[{"), BodyStep::Cut]),
            _ => answer(&[final_text("ok")]),
        }
    })
    .await;
    let mut spec = analytics("data", &server, with_agent());
    spec.retries = 2;
    let (rig, session) = begin(spec).await;
    let runner = rig.runner().await;
    assert_eq!(rig.turn(session, "data", "hello").await, "ok");
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    let keys = seen.iter().map(|seen| seen.header("idempotency-key"));
    assert_eq!(keys.collect::<std::collections::BTreeSet<_>>().len(), 1);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
