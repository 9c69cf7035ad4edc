//! Valid answers in every form that services send.

use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, event};

use super::*;

pub(super) fn endpoint(base_url: String) -> ChatEndpoint {
    ChatEndpoint {
        base_url,
        target: ChatTarget::Model("general-purpose-agent".to_owned()),
        credential: None,
        headers: Vec::new(),
        timeout: Duration::from_secs(30),
        retries: 0,
    }
}

pub(super) fn call(stream: bool) -> CompletionRequest {
    let message = r#"{"role":"user","content":"hello"}"#.to_owned();
    CompletionRequest {
        messages: vec![RawValue::from_string(message).expect("it is JSON")],
        extra: Map::new(),
        headers: Vec::new(),
        stream,
    }
}

/// Sends one request. The streamed chunks must add up to the content, in every form.
async fn ask(play: ScriptedResponse, stream: bool) -> ChatReply {
    let server = FakeService::play(vec![play]).await;
    let client = ChatClient::new().expect("a client");
    let mut heard = String::new();
    let reply = client
        .chat(&endpoint(server.url("/v1")), &call(stream), &mut |text| {
            assert!(!text.is_empty());
            heard.push_str(text);
        })
        .await
        .expect("an answer");
    assert_eq!(reply.content, heard);
    assert_eq!(server.seen().len(), 1);
    reply
}

fn events(chunks: &[&str]) -> ScriptedResponse {
    let chunks = chunks.iter().map(event);
    ScriptedResponse::new(200, "text/event-stream; charset=utf-8", chunks.collect())
}

fn delta(delta: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"finish_reason":null,"delta":{delta}}}],"usage":null}}"#)
}

const END: &str = r#"{"choices":[{"index":0,"finish_reason":"stop","delta":{}}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"more":1}}"#;

fn raw(value: Option<&RawValue>) -> Option<&str> {
    value.map(RawValue::get)
}

#[tokio::test]
async fn a_stream_is_put_together() {
    let state = r#"{"is_gpa": true,  "n":1.0e0, "text":"\u00fc", "tool_calls":[{"index":0}]}"#;
    let reply = ask(
        events(&[
            &delta(r#"{"role":"assistant","content":null}"#),
            &delta(r#"{"custom_content":{"stages":[{"index":0,"name":"x","status":null}]}}"#),
            &delta(r#"{"content":"Grü"}"#),
            &delta(r#"{"content":""}"#),
            &delta(r#"{"custom_content":{"state":{"old":1}}}"#),
            &delta(r#"{"content":"ße","unknown":[1]}"#),
            &delta(r#"{"custom_content":{"attachments":[{"index":0,"title": "r"}]}}"#),
            &delta(r#"{"custom_content":{"attachments":[{"index":1,"title":"s"}]}}"#),
            &delta(&format!(r#"{{"custom_content":{{"state":{state}}}}}"#)),
            &delta(r#"{"custom_content":{"state":null,"shared_context":{"city": "Bern"}}}"#),
            r#"{"choices":[{"index":1,"delta":{"content":"another answer"}}]}"#,
            END,
            "[DONE]",
            "this is not read",
        ])
        .with_header("x-statehold-session", "ses_1"),
        true,
    )
    .await;
    assert_eq!(reply.content, "Grüße");
    assert_eq!(raw(reply.state.as_deref()), Some(state));
    assert_eq!(
        raw(reply.shared_context.as_deref()),
        Some(r#"{"city": "Bern"}"#)
    );
    let attachments: Vec<_> = reply.attachments.iter().map(|one| one.get()).collect();
    assert_eq!(
        attachments,
        [r#"{"index":0,"title": "r"}"#, r#"{"index":1,"title":"s"}"#]
    );
    assert_eq!(reply.finish_reason.as_deref(), Some("stop"));
    let usage = r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#;
    assert_eq!(reply.usage, serde_json::from_str(usage).ok());
    assert_eq!(reply.headers["x-statehold-session"], "ses_1");
    assert!(reply.tool_calls.is_empty() && reply.statehold.is_none() && reply.refusal.is_none());
}

#[tokio::test]
async fn a_whole_completion_is_read_also_if_a_stream_was_wanted() {
    let state = r#"{"gpa_messages":{"tool_call_history":[ ]},"big":12345678901234567890123}"#;
    let body = format!(
        "\n {{\"choices\":[{{\"index\":0,\"finish_reason\":\"stop\",\"message\":{{\"role\":\"assistant\",\
         \"custom_content\":{{\"attachments\":[{{\"url\":\"a\"}}],\"state\":{state}}},\"content\":\"Hello\",\
         \"refusal\":null,\"tool_calls\":null}}}}],\"usage\":{{\"total_tokens\":\"many\"}},\"object\":\"x\"}}"
    );
    for stream in [true, false] {
        // The content type may be wrong.
        for content_type in ["application/json", "text/plain", "text/event-stream"] {
            let reply = ask(ScriptedResponse::text(200, content_type, &body), stream).await;
            assert_eq!(reply.content, "Hello");
            assert_eq!(raw(reply.state.as_deref()), Some(state));
            assert_eq!(reply.attachments.len(), 1);
            assert_eq!(reply.usage, None);
        }
    }
}

#[tokio::test]
async fn a_stream_is_read_also_if_none_was_wanted_or_it_is_called_something_else() {
    let stream = format!("data: {}\n\ndata: {END}\n\n", delta(r#"{"content":"Hi"}"#));
    for content_type in ["text/event-stream", "text/plain", "application/json"] {
        let reply = ask(ScriptedResponse::text(200, content_type, &stream), false).await;
        assert_eq!(reply.content, "Hi");
    }
}

#[tokio::test]
async fn a_stream_may_come_in_any_pieces() {
    let stream = format!(
        "\u{feff}: awake\r\n\r\ndata: {}\r\n\r\ndata: {END}\r\n\r\ndata: [DONE]\r\n\r\n",
        delta(r#"{"content":"Grüße 🦀"}"#)
    );
    for size in [1, 2, 3, 7, 1000] {
        let pieces = stream.as_bytes().chunks(size);
        let pieces = pieces.map(|piece| BodyStep::Send(bytes::Bytes::copy_from_slice(piece)));
        let reply = ask(ScriptedResponse::events(pieces.collect()), true).await;
        assert_eq!(reply.content, "Grüße 🦀");
    }
}

#[tokio::test]
async fn content_in_parts_is_joined() {
    let parts = r#"[{"type":"text","text":"one "},{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"two"},{"type":"refusal","refusal":"not three"}]"#;
    let body = format!(r#"{{"choices":[{{"message":{{"content":{parts}}}}}]}}"#);
    let reply = ask(ScriptedResponse::json(200, &body), false).await;
    assert_eq!(reply.content, "one two");
    assert_eq!(reply.refusal.as_deref(), Some("not three"));
    assert_eq!(reply.finish_reason, None);
    let chunk = delta(&format!(r#"{{"content":{parts}}}"#));
    let reply = ask(events(&[&chunk, END]), true).await;
    assert_eq!(reply.content, "one two");
}

fn wish(id: &str, name: &str, arguments: &str) -> RawToolCall {
    RawToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    }
}

#[tokio::test]
async fn tool_calls_are_put_together_by_their_index() {
    let tools = |calls: &str| delta(&format!(r#"{{"content":null,"tool_calls":[{calls}]}}"#));
    let reply = ask(
        events(&[
            &tools(r#"{"index":1,"id":"b","type":"function","function":{"name":"write","arguments":""}}"#),
            &tools(r#"{"index":0,"function":{"name":"read","arguments":"{\"pa"}}"#),
            &tools(r#"{"index":1,"id":"b","function":{"name":"write","arguments":"{}"}},{"index":0,"function":{"arguments":"th\":\"ü\"}"}}"#),
            r#"{"choices":[{"index":0,"finish_reason":"tool_calls","delta":{}}]}"#,
            "[DONE]",
        ]),
        true,
    )
    .await;
    assert_eq!(
        reply.tool_calls,
        [
            wish("call_0", "read", r#"{"path":"ü"}"#),
            wish("b", "write", "{}")
        ]
    );
    assert_eq!(reply.content, "");
    assert_eq!(reply.finish_reason.as_deref(), Some("tool_calls"));
}

#[tokio::test]
async fn tool_calls_under_one_index_are_told_apart_once_they_are_whole() {
    let tools = |calls: &str| delta(&format!(r#"{{"tool_calls":[{calls}]}}"#));
    let pieces = [
        // A service that gives every call index 0, and splits the second call.
        tools(r#"{"index":0,"id":"a","function":{"name":"read","arguments":"{\"path\":\"x\"}"}}"#),
        tools(r#"{"index":0,"id":"b","function":{"name":"write","arguments":"{\"n\""}}"#),
        tools(r#"{"index":0,"function":{"arguments":":1}"}}"#),
        tools(r#"{"index":0,"id":"e","function":{"name":"now","arguments":""}}"#),
        tools(r#"{"index":0,"id":"f","function":{"name":"read","arguments":"{}"}}"#),
        // A service that invents an id for every chunk.
        tools(r#"{"index":20,"id":"c","function":{"name":"list","arguments":"{\"of\":"}}"#),
        tools(r#"{"index":20,"id":"d","function":{"name":"list","arguments":"2}"}}"#),
        tools(r#"{"index":20,"id":"g","function":{"name":"list","arguments":""}}"#),
        tools(r#"{"index":20,"id":"h","function":{"arguments":""}}"#),
        // A service that repeats one id.
        tools(r#"{"index":30,"id":"a","function":{"name":"read","arguments":"{}"}}"#),
    ];
    let mut pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    pieces.push(END);

    let reply = ask(events(&pieces), true).await;

    assert_eq!(
        reply.tool_calls,
        [
            wish("a", "read", r#"{"path":"x"}"#),
            wish("b", "write", r#"{"n":1}"#),
            wish("e", "now", ""),
            wish("f", "read", "{}"),
            wish("c", "list", r#"{"of":2}"#),
            wish("a", "read", "{}"),
        ]
    );
}

#[tokio::test]
async fn an_empty_reason_is_no_end() {
    let piece = |text: &str, reason: &str| {
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":"{reason}"}}]}}"#
        )
    };
    let (one, two) = (piece("Good ", ""), piece("day", "stop"));

    let reply = ask(events(&[&one, &two]), true).await;

    assert_eq!(reply.finish_reason.as_deref(), Some("stop"));
}

#[tokio::test]
async fn tool_calls_without_an_index_are_told_apart_by_their_ids() {
    let tools = |calls: &str| delta(&format!(r#"{{"tool_calls":[{calls}]}}"#));
    let reply = ask(
        events(&[
            &tools(r#"{"id":"a","function":{"name":"read","arguments":"{"}}"#),
            &tools(r#"{"function":{"arguments":"}"}}"#),
            &tools(r#"{"id":"b","function":{"name":"write","arguments":"[]"}}"#),
            END,
        ]),
        true,
    )
    .await;
    assert_eq!(
        reply.tool_calls,
        [wish("a", "read", "{}"), wish("b", "write", "[]")]
    );
}

#[tokio::test]
async fn tool_calls_of_a_whole_completion_are_in_order_and_have_ids() {
    let body = r#"{"choices":[{"message":{"content":null,"tool_calls":[
        {"function":{"name":"read","arguments":"{}"}},
        {"id":"x","index":0,"function":{"name":"write","arguments":{"a": 1}}},
        {"id":"","function":{"name":"stop"}}]},"finish_reason":"tool_calls"}]}"#;
    let reply = ask(ScriptedResponse::json(200, body), false).await;
    assert_eq!(
        reply.tool_calls,
        [
            wish("call_0", "read", "{}"),
            wish("x", "write", r#"{"a": 1}"#),
            wish("call_2", "stop", "")
        ]
    );
}

#[tokio::test]
async fn a_pause_of_another_statehold_is_seen_wherever_it_stands() {
    let pause = r#"{"status":"paused", "holds":[]}"#;
    let whole =
        format!(r#"{{"choices":[{{"message":{{"content":"wait"}}}}],"statehold":{pause}}}"#);
    let reply = ask(ScriptedResponse::json(200, &whole), false).await;
    assert_eq!(raw(reply.statehold.as_deref()), Some(pause));
    let inside = delta(&format!(r#"{{"content":"wait","statehold":{pause}}}"#));
    let reply = ask(events(&[&inside, END]), true).await;
    assert_eq!(raw(reply.statehold.as_deref()), Some(pause));
}

#[tokio::test]
async fn the_short_form_of_services_with_conversations_is_an_answer_too() {
    let reply = ask(
        ScriptedResponse::json(200, r#"{"content":"Hi","conversation_id":"c1"}"#),
        false,
    )
    .await;
    assert_eq!(reply.content, "Hi");
}

#[tokio::test]
async fn a_call_can_be_made_by_any_task() {
    let server = FakeService::play(vec![ScriptedResponse::json(200, r#"{"content":"x"}"#)]).await;
    let endpoint = endpoint(server.url("/v1"));
    let client = ChatClient::new().expect("a client");
    let task = tokio::spawn(async move {
        let mut heard = 0;
        let reply = client
            .chat(&endpoint, &call(true), &mut |_| heard += 1)
            .await;
        reply.map(|reply| (reply.content, heard))
    });
    let answered = task.await.expect("it does not panic").expect("an answer");
    assert_eq!(answered, ("x".to_owned(), 1));
}

#[tokio::test]
async fn what_is_sent_is_what_was_given() {
    let server = FakeService::play(vec![ScriptedResponse::json(200, r#"{"content":""}"#)]).await;
    let message =
        r#"{"role":"assistant" ,"custom_content":{"state":{"n":1.50,"b":2,"a":"\u00fc"}}}"#;
    let tools = serde_json::json!([{"type": "function"}]);
    let call = CompletionRequest {
        messages: vec![RawValue::from_string(message.to_owned()).expect("it is JSON")],
        extra: Map::from_iter([
            ("tools".to_owned(), tools),
            ("stream".to_owned(), Value::Bool(false)),
        ]),
        headers: vec![(
            HeaderName::from_static("x-conversation-id"),
            HeaderValue::from_static("ses_1"),
        )],
        stream: true,
    };
    let client = ChatClient::new().expect("a client");
    let endpoint = endpoint(server.url("/openai/v1/?api-version=1"));
    let reply = client.chat(&endpoint, &call, &mut |_| {}).await;
    reply.expect("an answer");
    let seen = &server.seen()[0];
    assert_eq!(seen.method, http::Method::POST);
    assert_eq!(seen.path, "/openai/v1/chat/completions?api-version=1");
    assert_eq!(seen.headers["x-conversation-id"], "ses_1");
    assert_eq!(seen.headers["content-type"], "application/json");
    assert_eq!(
        seen.headers["accept"],
        "text/event-stream, application/json"
    );
    assert!(!seen.headers.contains_key("authorization"));
    assert_eq!(
        seen.text,
        format!(
            r#"{{"model":"general-purpose-agent","messages":[{message}],"stream":true,"stream_options":{{"include_usage":true}},"tools":[{{"type":"function"}}]}}"#
        )
    );
}
