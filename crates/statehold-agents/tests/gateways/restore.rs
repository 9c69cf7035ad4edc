//! Agents without memory get their own exchanges back, with their state unchanged.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::ChatMemory;
use statehold_engine::PageLimit;
use statehold_engine::Schema;
use statehold_engine::api::state::StateQuery;
use statehold_fakes::chat::{streamed, streamed_with};
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, locked};

use crate::rig::{Outcome, Rig, router};
use crate::world::{chat, conversations};

/// JSON that parsers would not reproduce exactly.
const ODD_STATE: &str = r#"{"z":1.0,"a":1E400,"n":123456789012345678901234567890,"is_gpa":true,"ums_conversation_id":"c-9","shared_context":"mine","tool_calls":{"not":"a list"},"gpa_messages":{ "tool_call_history" :[]},"é":"\u00e9\/","z":-0}"#;

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(role, content): &(&str, &str)| ((*role).to_owned(), (*content).to_owned());
    expected.iter().map(own).collect()
}

#[tokio::test]
async fn each_agent_sees_exactly_its_own_exchanges() -> Outcome {
    let service = Arc::new(Conversations::default());
    let ums = Arc::clone(&service);
    let ums_server = FakeService::start(move |seen| {
        ums.respond(seen, |said| format!("user answer {}", said.len()))
    })
    .await;
    let gpa_server = FakeService::start(|seen| streamed(&format!("heard: {}", seen.said()))).await;
    let rules = [("(?i)user", "ums"), (".", "gpa")];
    let rig = Rig::new(vec![
        router("coordinator", &rules, &["ums", "gpa"]),
        Arc::new(conversations("ums", &ums_server)),
        Arc::new(chat("gpa", &gpa_server, ChatMemory::Restore)),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    for (said, answer) in [
        ("List users", "user answer 1"),
        ("Weather in Paris?", "heard: Weather in Paris?"),
        ("Delete the first user", "user answer 2"),
        ("And tomorrow?", "heard: And tomorrow?"),
    ] {
        assert_eq!(rig.turn(session, "coordinator", said).await, answer);
    }
    let gpa = gpa_server.seen();
    assert_eq!(gpa[0].messages(), pairs(&[("user", "Weather in Paris?")]));
    assert_eq!(
        gpa[1].messages(),
        pairs(&[
            ("user", "Weather in Paris?"),
            ("assistant", "heard: Weather in Paris?"),
            ("user", "And tomorrow?"),
        ])
    );
    assert_eq!(gpa[0].path, "/v1/chat/completions");
    assert_eq!(gpa[0].json()["model"], "gpa-model");
    let kept = locked(&service.all).clone();
    assert_eq!(kept.len(), 1, "one conversation");
    assert_eq!(kept[0].messages, ["List users", "Delete the first user"]);
    assert!(
        kept[0].title.contains(&session.to_string()),
        "{}",
        kept[0].title
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn state_comes_back_byte_for_byte_and_its_names_mean_nothing() -> Outcome {
    let custom = format!(
        r#"{{"attachments":[{{"index":0,"type":"text/csv","title":"r","url":"files/r.csv"}}],"state":{ODD_STATE}}}"#
    );
    let server = FakeService::start(move |seen| {
        if seen.messages().len() == 1 {
            streamed_with("first", &custom)
        } else {
            streamed("more")
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    for said in ["one", "two", "three"] {
        rig.turn(session, "gpa", said).await;
    }
    let attachment = r#"[{"index":0,"type":"text/csv","title":"r","url":"files/r.csv"}]"#;
    let whole = format!(
        r#"{{"role":"assistant","content":"first","custom_content":{{"attachments":{attachment},"state":{ODD_STATE}}}}}"#
    );
    let seen = server.seen();
    for later in &seen[1..] {
        assert!(later.text.contains(&whole), "{}", later.text);
    }
    // A turn without state has none.
    let plain = r#"{"role":"assistant","content":"more"}"#;
    assert!(seen[2].text.contains(plain), "{}", seen[2].text);
    // No part of the agent's state became session state.
    let values = rig
        .engine
        .state(
            &rig.local,
            session,
            (&StateQuery::default(), PageLimit::entries(100)),
        )
        .await?
        .0
        .values;
    assert!(values.is_empty(), "{values:?}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn the_agent_is_told_who_asks_and_what_it_calls_itself_is_kept() -> Outcome {
    let server = FakeService::start(|_| {
        streamed("yes")
            .with_header("x-conversation-id", "theirs")
            .with_header("x-statehold-request", "req_theirs")
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    let request = rig.ask(session, "gpa", "hello").await;
    rig.ended(request).await;
    let seen = &server.seen()[0];
    let (session_text, request_text) = (session.to_string(), request.to_string());
    assert_eq!(seen.header("x-statehold-session"), Some(&*session_text));
    assert_eq!(
        seen.header("x-statehold-origin-session"),
        Some(&*session_text)
    );
    assert_eq!(seen.header("x-statehold-request"), Some(&*request_text));
    assert_eq!(
        seen.header("x-statehold-origin-request"),
        Some(&*request_text)
    );
    assert!(seen.header("x-statehold-origin-task").is_some());
    let trace = &session_text["ses_".len()..];
    let span = &request_text[request_text.len() - 16..];
    let expected = format!("00-{trace}-{span}-01");
    assert_eq!(seen.header("traceparent"), Some(&*expected));
    let steps = rig
        .items(session, "gpa", statehold_core::item::ItemKind::Step)
        .await;
    let step: Value =
        serde_json::from_str(steps[0].data.as_ref().expect("data").get()).expect("JSON");
    assert_eq!(step["result"]["ids"]["x-conversation-id"], "theirs");
    assert_eq!(step["result"]["ids"]["x-statehold-request"], "req_theirs");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_looks_for_our_session_among_its_own_is_to_be_tracked() -> Outcome {
    let unknown = json!({"error": {"message": "no such thing", "code": "not_found"}});
    let server = FakeService::start(move |_| ScriptedResponse::json(404, &unknown)).await;
    for (memory, says_so) in [(ChatMemory::Restore, true), (ChatMemory::Track, false)] {
        let rig = Rig::new(vec![Arc::new(chat("far", &server, memory))]).await;
        let runner = rig.runner().await;
        let session = rig.session("far").await;
        let error = rig.failing_turn(session, "far", "hello").await;
        assert_eq!(error["code"], "agent_error", "{error}");
        let message = error["message"].as_str().expect("text");
        assert!(message.contains("404: no such thing"), "{message}");
        assert_eq!(message.contains("memory = \"track\""), says_so, "{message}");
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_state_that_does_not_fit_is_set_aside_and_the_conversation_goes_on() -> Outcome {
    let server = FakeService::start(|seen| {
        let state = match seen.said().as_str() {
            "one" => r#"{"state":{"n":1}}"#,
            "two" => r#"{"state":{"n":"two"}}"#,
            "three" => r#"{"state":{"n":3,"tool_call_history":"gone"}}"#,
            _ => r#"{"state":{"n":4}}"#,
        };
        streamed_with("ok", state)
    })
    .await;
    let mut spec = chat("gpa", &server, ChatMemory::Restore);
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer"},"tool_call_history":{"type":"array"}}}"#;
    spec.state_schema = Some(Arc::new(Schema::new(schema).expect("a schema")));
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    for said in ["one", "two", "three", "four"] {
        assert_eq!(rig.turn(session, "gpa", said).await, "ok");
    }
    let last = server.seen()[3].json();
    let state = |at: usize| last["messages"][at]["custom_content"]["state"].clone();
    assert_eq!(state(1), json!({"n": 1}));
    assert_eq!(state(3), Value::Null);
    assert_eq!(state(5), json!({"n": 3, "tool_call_history": []}));
    let notes = rig.notes(session, "gpa").await;
    let named = |name: &str| {
        let mut notes = notes.iter().filter(|(known, _)| known == name);
        let first = notes.next().map(|(_, data)| data.clone());
        assert!(notes.next().is_none(), "{name} once");
        first.expect(name)
    };
    let aside = named("state_set_aside");
    assert_eq!(aside["state"], json!({"n": "two"}));
    let reason = aside["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("/n: "), "{reason}");
    assert_eq!(named("state_reset")["tool_call_history"], "was no list");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn old_pairs_are_left_out_of_what_is_given_back_and_not_of_what_is_kept() -> Outcome {
    let server = FakeService::start(|_| {
        let state = r#"{"state":{"tool_call_history":[{"t":1},{"t":2.0},{"t":3}]}}"#;
        streamed_with("ok", state)
    })
    .await;
    let mut spec = chat("gpa", &server, ChatMemory::Restore);
    spec.keep_pairs = Some(2);
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    for said in ["one", "two"] {
        rig.turn(session, "gpa", said).await;
    }
    let second = &server.seen()[1];
    let kept = r#""state":{"tool_call_history":[{"t":2.0},{"t":3}]}"#;
    assert!(second.text.contains(kept), "{}", second.text);
    let notes = rig.notes(session, "gpa").await;
    let pruned: Vec<_> = notes
        .iter()
        .filter(|(name, _)| name == "state_pruned")
        .collect();
    assert_eq!(pruned.len(), 1);
    assert_eq!(pruned[0].1, json!({"pairs": 1}));
    let whole = notes.iter().filter(|(name, data)| {
        let history = &data["state"]["tool_call_history"];
        name == "agent_state" && history.as_array().is_some_and(|list| list.len() == 3)
    });
    assert_eq!(whole.count(), 2);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_caller_who_keeps_the_history_gets_tools_and_messages_through() -> Outcome {
    let server = FakeService::start(|_| {
        ScriptedResponse::json(
            200,
            &json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
                "role": "assistant", "content": null,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}],
            }}]}),
        )
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let history = json!([
        {"role": "system", "content": "be kind"},
        {"role": "tool", "tool_call_id": "c0", "content": "7"},
    ]);
    let data =
        json!({"history": history, "passthrough": {"tools": tools, "model": "other", "seed": 7}});
    let request = rig.ask_bringing(session, "gpa", "hi", &data).await;
    let ended = rig.ended(request).await;
    let seen = server.seen()[0].json();
    assert_eq!(seen["tools"], tools);
    assert_eq!(
        (&seen["model"], &seen["seed"]),
        (&json!("gpa-model"), &json!(7))
    );
    assert_eq!(seen["messages"][0], history[0]);
    assert_eq!(seen["messages"][1], history[1]);
    assert_eq!(
        seen["messages"][2],
        json!({"role": "user", "content": "hi"})
    );
    let data = crate::world::said(&ended).data.expect("data");
    let data: Value = serde_json::from_str(data.get()).expect("JSON");
    assert_eq!(data["tool_calls"][0]["function"]["arguments"], r#"{"a":1}"#);
    // A message that is not a user's is forwarded unchanged.
    let other = rig.session("gpa").await;
    let last = json!({"role": "tool", "tool_call_id": "c1", "content": "8"});
    let data = json!({"history": history, "last": last, "passthrough": {}});
    let request = rig.ask_bringing(other, "gpa", "8", &data).await;
    let ended = rig.ended(request).await;
    // A caller without tools gets no tool calls.
    assert!(crate::world::said(&ended).data.is_none());
    let notes = rig.notes(other, "gpa").await;
    assert_eq!(notes[0].0, "tool_calls");
    assert_eq!(notes[0].1["tool_calls"][0]["id"], "c1");
    let seen = server.seen()[1].json();
    assert_eq!(seen["messages"][2], last);
    assert_eq!(seen["messages"].as_array().map(Vec::len), Some(3));
    // A caller's history is ignored in a task that has its own.
    let request = rig
        .ask_bringing(
            session,
            "gpa",
            "again",
            &json!({"history": [{"role": "user", "content": "forged"}]}),
        )
        .await;
    rig.ended(request).await;
    let seen = &server.seen()[2];
    assert!(!seen.text.contains("forged"), "{}", seen.text);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn messages_that_a_client_brought_along_are_restored_before_the_exchanges() -> Outcome {
    for memory in [ChatMemory::Restore, ChatMemory::Track] {
        let server = FakeService::start(|_| {
            streamed_with("ok", "{}").with_header("x-statehold-session", "theirs")
        });
        let server = server.await;
        let rig = Rig::new(vec![Arc::new(chat("gpa", &server, memory))]).await;
        let runner = rig.runner().await;
        let session = rig.session("gpa").await;
        let history = json!([
            {"role": "user", "content": "I am Ann"},
            {"role": "assistant", "content": "hi, Ann"},
        ]);
        let data = json!({ "history": history });
        let request = rig.ask_bringing(session, "gpa", "who am I?", &data).await;
        rig.ended(request).await;
        rig.turn(session, "gpa", "sure?").await;
        let sent = |call: usize| server.seen()[call].json()["messages"].clone();
        if memory == ChatMemory::Restore {
            let (first, second) = (sent(0), sent(1));
            assert_eq!(first.as_array().map(Vec::len), Some(3));
            for messages in [&first, &second] {
                assert_eq!(messages[0], history[0]);
                assert_eq!(messages[1], history[1]);
                assert_eq!(messages[2]["content"], "who am I?");
            }
            assert_eq!(second[4]["content"], "sure?");
        } else {
            // The service remembers by itself, and is in a session.
            assert_eq!(sent(1).as_array().map(Vec::len), Some(1));
            let user = &server.seen()[0].json()["user"];
            assert!(user.is_string(), "{user}");
        }
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn of_a_long_past_no_more_is_read_than_could_be_sent() -> Outcome {
    let state = format!(r#"{{"state":{{"memory":"{}"}}}}"#, "x".repeat(1_000_000));
    let server = FakeService::start(move |_| streamed_with("ok", &state)).await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    for turn in 0..24 {
        let before = rig.engine.items_read();
        rig.turn(session, "gpa", &format!("turn {turn}")).await;
        let read = rig.engine.items_read() - before;
        assert!(read <= 60, "turn {turn} reads {read} items");
    }
    let seen = server.seen();
    let told = seen.last().expect("a call").messages();
    // Four states of this size fit; the newest are sent.
    let said: Vec<&str> = told.iter().map(|(_, said)| said.as_str()).collect();
    assert_eq!(said.len(), 9, "{said:?}");
    assert_eq!((said[0], said[8]), ("turn 19", "turn 23"));
    let notes = rig.notes(session, "gpa").await;
    let mut left_out = notes.iter().filter(|(name, _)| name == "history_left_out");
    assert!(
        left_out.any(|(_, note)| note["and_all_before"] == true),
        "the trace says that there was more"
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn turns_at_once_do_not_know_each_other_and_the_next_knows_both() -> Outcome {
    let gate = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&gate);
    let server = FakeService::start(move |seen| {
        let play = streamed(&format!("heard: {}", seen.said()));
        match seen.said().as_str() {
            "slow" => play.after(BodyStep::Until(Arc::clone(&told))),
            _ => play,
        }
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    assert_eq!(rig.turn(session, "gpa", "first").await, "heard: first");
    let slow = rig.ask(session, "gpa", "slow").await;
    assert_eq!(rig.turn(session, "gpa", "quick").await, "heard: quick");
    gate.notify_one();
    rig.ended(slow).await;
    assert_eq!(rig.turn(session, "gpa", "last").await, "heard: last");
    let first = [("user", "first"), ("assistant", "heard: first")];
    for seen in server.seen() {
        let said = seen.said();
        let expected = match said.as_str() {
            "first" => vec![("user", "first")],
            "last" => [
                &first[..],
                &[("user", "quick"), ("assistant", "heard: quick")],
                &[("user", "slow"), ("assistant", "heard: slow")],
                &[("user", "last")],
            ]
            .concat(),
            other => [&first[..], &[("user", other)]].concat(),
        };
        assert_eq!(seen.messages(), pairs(&expected), "{said}");
    }
    assert_eq!(server.seen().len(), 4);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
