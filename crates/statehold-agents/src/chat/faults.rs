//! Faulty responses: the caller's error, the retries, and the number of bytes read.

use std::time::Instant;

use bytes::Bytes;
use http::StatusCode;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, send};
use tokio::net::TcpListener;

use super::tests::{call, endpoint};
use super::*;
use crate::http::ConnectObstacle;

const SHORT: Duration = Duration::from_secs(1);
const GOOD: &str = r#"{"choices":[{"message":{"content":"good"},"finish_reason":"stop"}]}"#;
const HELLO: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n";
const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

struct ChatOutcome {
    result: Result<ChatReply, EndpointError>,
    streamed: String,
    calls: usize,
    server: FakeService,
}

impl ChatOutcome {
    #[track_caller]
    fn error(&self) -> &EndpointError {
        self.result.as_ref().expect_err("no answer")
    }

    #[track_caller]
    fn content(&self) -> &str {
        &self.result.as_ref().expect("an answer").content
    }
}

async fn ask_within(plays: Vec<ScriptedResponse>, retries: u32, timeout: Duration) -> ChatOutcome {
    let server = FakeService::play(plays).await;
    let endpoint = ChatEndpoint {
        timeout,
        retries,
        ..endpoint(server.url("/v1"))
    };
    let client = ChatClient::new().expect("a client");
    let mut streamed = String::new();
    let result = client
        .chat(&endpoint, &call(true), &mut |text| streamed.push_str(text))
        .await;
    ChatOutcome {
        result,
        streamed,
        calls: server.seen().len(),
        server,
    }
}

/// With a long timeout, so that only the service decides the outcome.
async fn ask(plays: Vec<ScriptedResponse>, retries: u32) -> ChatOutcome {
    ask_within(plays, retries, Duration::from_mins(1)).await
}

fn good() -> ScriptedResponse {
    ScriptedResponse::json(200, GOOD)
}

fn failing(status: u16) -> ScriptedResponse {
    let body = r#"{"error":{"message":"out of order","type":"runtime_error","code":"x"}}"#;
    ScriptedResponse::text(status, "application/json", body)
}

#[tokio::test]
async fn silence_is_a_timeout_and_is_not_retried() {
    let outcome = ask_within(vec![ScriptedResponse::silence()], 3, SHORT).await;
    assert_eq!(outcome.error(), &EndpointError::Timeout { limit: SHORT });
    assert_eq!(outcome.error().code(), "agent_timeout");
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn silence_in_the_middle_is_a_timeout_too() {
    let plays = [
        ScriptedResponse::events(vec![send(HELLO), BodyStep::Hang]),
        ScriptedResponse::events(vec![send(ROLE), BodyStep::Hang]),
        ScriptedResponse::new(
            200,
            "application/json",
            vec![send(&GOOD[..20]), BodyStep::Hang],
        ),
    ];
    for play in plays {
        let outcome = ask_within(vec![play, good()], 3, SHORT).await;
        assert_eq!(outcome.error().code(), "agent_timeout");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn a_transient_failure_is_retried() {
    for status in [500, 502, 503, 429] {
        let outcome = ask(vec![failing(status), good()], 1).await;
        assert_eq!(outcome.content(), "good", "{status}");
        assert_eq!(outcome.streamed, "good");
        assert_eq!(outcome.calls, 2);
        let [first, second] = &outcome.server.seen()[..] else {
            panic!("two calls");
        };
        assert_eq!(first.text, second.text);
    }
}

#[tokio::test]
async fn a_lasting_failure_uses_up_all_retries() {
    for status in [500, 429] {
        let outcome = ask(vec![failing(status)], 2).await;
        let expected = EndpointError::Status {
            status: StatusCode::from_u16(status).expect("a status"),
            message: "out of order".to_owned(),
            retry_after_seconds: None,
            display_message: None,
        };
        assert_eq!(outcome.error(), &expected);
        let code = match status {
            429 => "agent_rate_limited",
            _ => "agent_error",
        };
        assert_eq!(outcome.error().code(), code);
        assert_eq!(outcome.calls, 3);
    }
}

#[tokio::test]
async fn calls_are_not_retried_after_their_timeout() {
    let outcome = ask_within(vec![failing(500)], u32::MAX, Duration::from_secs(3)).await;
    // The error is the failure itself, not the expired timeout.
    assert_eq!(outcome.error().code(), "agent_error");
    assert!((1..=6).contains(&outcome.calls), "{}", outcome.calls);
}

#[tokio::test]
async fn a_refusal_is_not_retried_and_gives_the_reason() {
    let cases = [
        (
            400,
            r#"{"error":{"message":"no such field"}}"#,
            "no such field",
        ),
        (401, r#"{"error":"who are you"}"#, "who are you"),
        (404, r#"{"detail":"Not Found"}"#, "Not Found"),
        (
            422,
            r#"{"detail":[{"loc":["body"]}]}"#,
            r#"[{"loc":["body"]}]"#,
        ),
        (403, r#"{"title":"Forbidden","status":403}"#, "Forbidden"),
        (400, "<h1>no\n\tway</h1>", "<h1>no way</h1>"),
        (418, "", "I'm a teapot"),
    ];
    for (status, body, message) in cases {
        let outcome = ask(
            vec![
                ScriptedResponse::text(status, "application/json", body),
                good(),
            ],
            3,
        )
        .await;
        let expected = EndpointError::Status {
            status: StatusCode::from_u16(status).expect("a status"),
            message: message.to_owned(),
            retry_after_seconds: None,
            display_message: None,
        };
        assert_eq!(outcome.error(), &expected);
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn a_refusal_that_never_ends_is_not_read_to_its_end() {
    let body = BodyStep::Repeat(Bytes::from_static(&[b'x'; 16 * 1024]), usize::MAX);
    let outcome = ask(
        vec![ScriptedResponse::new(400, "text/plain", vec![body])],
        0,
    )
    .await;
    let EndpointError::Status { message, .. } = outcome.error() else {
        panic!("{:?}", outcome.error());
    };
    assert_eq!(message.chars().count(), 301);
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let client = ChatClient::new().expect("a client");
    let cases = [
        (format!("http://{address}/v1"), ConnectObstacle::Connection),
        (
            "http://no-such-host.invalid/v1".to_owned(),
            ConnectObstacle::Name,
        ),
        ("ftp://127.0.0.1/v1".to_owned(), ConnectObstacle::Address),
        ("127.0.0.1:80".to_owned(), ConnectObstacle::Address),
        (String::new(), ConnectObstacle::Address),
    ];
    for (base_url, obstacle) in cases {
        let endpoint = ChatEndpoint {
            retries: 1,
            ..endpoint(base_url)
        };
        let error = client.chat(&endpoint, &call(true), &mut |_| {}).await;
        let error = error.expect_err("nobody is there");
        assert_eq!(error, EndpointError::Unreachable(obstacle));
        assert_eq!(error.code(), "agent_unreachable");
    }
}

#[tokio::test]
async fn a_connection_closed_early_is_retried() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    // The first connection closes before a response.
    let server = tokio::spawn(async move {
        drop(listener.accept().await.expect("a caller"));
        drop(listener);
    });
    let client = ChatClient::new().expect("a client");
    let endpoint = ChatEndpoint {
        retries: 1,
        ..endpoint(format!("http://{address}/v1"))
    };
    let error = client.chat(&endpoint, &call(true), &mut |_| {}).await;
    server.await.expect("it was asked");
    // The second attempt found no listener: both attempts were made.
    let expected = EndpointError::Unreachable(ConnectObstacle::Connection);
    assert_eq!(error.expect_err("nobody answers"), expected);
}

#[tokio::test]
async fn a_service_without_tls_is_not_retried() {
    let server = FakeService::play(vec![good()]).await;
    let client = ChatClient::new().expect("a client");
    let endpoint = endpoint(format!("https://{}/v1", server.address()));
    let error = client.chat(&endpoint, &call(true), &mut |_| {}).await;
    let expected = EndpointError::Unreachable(ConnectObstacle::Certificate);
    assert_eq!(error.expect_err("no TLS"), expected);
}

#[tokio::test]
async fn an_answer_cut_off_before_the_first_text_is_retried() {
    let cuts = [
        ScriptedResponse::events(vec![BodyStep::Cut]),
        ScriptedResponse::events(vec![send(ROLE), BodyStep::Cut]),
        // A stream without a finish reason is cut off, even if it closes cleanly.
        ScriptedResponse::events(vec![send(ROLE)]),
        ScriptedResponse::events(Vec::new()),
        ScriptedResponse::new(
            200,
            "application/json",
            vec![send(&GOOD[..20]), BodyStep::Cut],
        ),
    ];
    for cut in cuts {
        let outcome = ask(vec![cut.clone(), good()], 1).await;
        assert_eq!(outcome.content(), "good", "{cut:?}");
        assert_eq!(outcome.streamed, "good");
        let outcome = ask(vec![cut], 0).await;
        assert_eq!(outcome.error(), &EndpointError::CutOff);
        assert_eq!(outcome.error().code(), "agent_cut_off");
    }
}

#[tokio::test]
async fn an_answer_cut_off_after_the_first_text_is_not_retried() {
    // Some services send an empty finish reason with every chunk.
    let not_ended = HELLO.replace("}}]", "},\"finish_reason\":\"\"}]");
    for end in [
        vec![send(HELLO), BodyStep::Cut],
        vec![send(HELLO)],
        vec![send(&not_ended), BodyStep::Cut],
    ] {
        let outcome = ask(vec![ScriptedResponse::events(end), good()], 3).await;
        assert_eq!(outcome.error(), &EndpointError::CutOff);
        assert_eq!(outcome.streamed, "hello");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn errors_after_a_complete_answer_are_ignored() {
    let done = send("data: [DONE]\n\n");
    for end in [send(STOP), done] {
        let afterwards = [
            vec![],
            vec![BodyStep::Cut],
            vec![BodyStep::Repeat(
                Bytes::from(": awake\n\n".repeat(1000)),
                1000,
            )],
        ];
        for afterwards in afterwards {
            let mut body = vec![send(HELLO), end.clone()];
            body.extend(afterwards);
            let outcome = ask(vec![ScriptedResponse::events(body)], 0).await;
            assert_eq!(outcome.content(), "hello");
        }
    }
}

#[tokio::test]
async fn a_stream_left_open_after_the_end_is_closed_soon() {
    let body = vec![send(HELLO), send(STOP), BodyStep::Hang];
    let (began, most) = (Instant::now(), Duration::from_mins(5));
    let outcome = ask_within(vec![ScriptedResponse::events(body)], 0, most).await;
    assert_eq!(outcome.content(), "hello");
    assert!(began.elapsed() < most / 2, "it was waited for");
}

#[tokio::test]
async fn a_stream_is_read_for_a_while_after_its_last_text() {
    const LAST: &str = ": the turn is kept now\n\n";
    const DONE: &str = "data: [DONE]\n\n";
    let body = vec![send(HELLO), send(DONE), BodyStep::Wait(SHORT), send(LAST)];
    let outcome = ask(vec![ScriptedResponse::events(body)], 0).await;
    assert_eq!(outcome.content(), "hello");
    let written = HELLO.len() + DONE.len() + LAST.len();
    assert_eq!(outcome.server.written(), written);
}

#[tokio::test]
async fn malformed_answers_are_not_retried() {
    let plays = [
        ScriptedResponse::json(200, "{\"choices\":"),
        ScriptedResponse::json(200, "[]"),
        ScriptedResponse::json(200, "{}"),
        ScriptedResponse::json(200, r#"{"choices":[]}"#),
        ScriptedResponse::json(200, r#"{"choices":[{"message":{"content":7}}]}"#),
        ScriptedResponse::json(
            200,
            r#"{"choices":[{"message":{"tool_calls":[{"id":"a"}]}}]}"#,
        ),
        ScriptedResponse::json(200, ""),
        ScriptedResponse::new(
            200,
            "application/json",
            vec![BodyStep::Send(Bytes::from_static(b"{\"a\":\"\xff\"}"))],
        ),
        ScriptedResponse::text(200, "text/html", "<!doctype html><h1>Welcome</h1>"),
        ScriptedResponse::text(200, "text/plain", "data lost"),
        ScriptedResponse::events(vec![send("data: {\"choices\":\n\n"), send(STOP)]),
        ScriptedResponse::events(vec![send("data: hello\n\n"), send(STOP)]),
        ScriptedResponse::events(vec![BodyStep::Send(Bytes::from_static(b"data: \xff\n\n"))]),
    ];
    for play in plays {
        let outcome = ask(vec![play.clone(), good()], 3).await;
        assert_eq!(outcome.error().code(), "agent_malformed", "{play:?}");
        assert_eq!(outcome.streamed, "");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn a_damaged_chunk_after_the_first_word_is_malformed() {
    let body = vec![send(HELLO), send("data: {]\n\n"), send(STOP)];
    let outcome = ask(vec![ScriptedResponse::events(body)], 3).await;
    assert_eq!(outcome.error().code(), "agent_malformed");
    assert_eq!(outcome.streamed, "hello");
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_malformed() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.expect("a caller");
        stream.read_u8().await.expect("it asks");
        stream
            .write_all(b"220 mail.example\r\n\r\n")
            .await
            .expect("it listens");
        stream
    });
    let client = ChatClient::new().expect("a client");
    let endpoint = endpoint(format!("http://{address}/v1"));
    let error = client.chat(&endpoint, &call(true), &mut |_| {}).await;
    drop(server.await.expect("it was asked"));
    assert_eq!(error.expect_err("no HTTP").code(), "agent_malformed");
}

#[tokio::test]
async fn a_stream_of_nothing_but_comments_is_cut_by_its_size() {
    let comment = format!(": {}\n\n", "awake ".repeat(1000));
    let body = vec![BodyStep::Repeat(Bytes::from(comment), usize::MAX)];
    let outcome = ask(vec![ScriptedResponse::events(body), good()], 3).await;
    assert_eq!(outcome.error().code(), "agent_too_large");
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn a_stream_of_tiny_chunks_without_end_is_cut() {
    let chunk = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
    let body = vec![BodyStep::Repeat(chunk, usize::MAX)];
    let outcome = ask_within(
        vec![ScriptedResponse::events(body)],
        3,
        Duration::from_secs(2),
    )
    .await;
    let code = outcome.error().code();
    assert!(
        matches!(code, "agent_timeout" | "agent_too_large"),
        "{code}"
    );
    assert!(outcome.streamed.starts_with("xx"));
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn one_event_without_end_is_cut_early() {
    let piece = Bytes::from_static(&[b'x'; 16 * 1024]);
    let body = vec![send("data: "), BodyStep::Repeat(piece, usize::MAX)];
    let outcome = ask(vec![ScriptedResponse::events(body)], 3).await;
    let expected = EndpointError::TooLarge("at most 1 MiB for one event");
    assert_eq!(outcome.error(), &expected);
    assert_eq!(outcome.error().code(), "agent_too_large");
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn a_state_that_no_reader_of_json_takes_is_refused() {
    for (levels, is_refused) in [(50, false), (124, true), (100_000, true)] {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        let custom = format!(r#"{{"state":{{"words":"]]\"[","deep":{open}{close}}}}}"#);
        let message = format!(r#"{{"content":"good","custom_content":{custom}}}"#);
        let body = format!(r#"{{"choices":[{{"message":{message},"finish_reason":"stop"}}]}}"#);
        let outcome = ask(vec![ScriptedResponse::json(200, &body)], 3).await;
        if is_refused {
            let expected = EndpointError::TooLarge("at most 64 levels of JSON");
            assert_eq!(outcome.error(), &expected, "{levels}");
        } else {
            assert_eq!(outcome.result.as_ref().expect("a reply").content, "good");
        }
    }
}

#[tokio::test]
async fn tool_calls_without_end_are_cut_early() {
    // In one delta without indexes, and in a complete message.
    let calls: Vec<String> = (0..400_000).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
    let message = format!(r#"{{"tool_calls":[{}]}}"#, calls.join(","));
    for name in ["delta", "message"] {
        let body = format!(r#"{{"choices":[{{"{name}":{message},"finish_reason":"stop"}}]}}"#);
        let outcome = ask(vec![ScriptedResponse::json(200, &body), good()], 3).await;
        let expected = EndpointError::TooLarge("at most 1,024 tool calls");
        assert_eq!(outcome.error(), &expected, "{name}");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn an_answer_of_a_hundred_megabytes_is_not_read_to_its_end() {
    const PIECE: usize = 64 * 1024;
    const PIECES: usize = 100_000_000 / PIECE;
    let body = vec![
        send(r#"{"choices":[{"message":{"content":""#),
        BodyStep::Repeat(Bytes::from_static(&[b'x'; PIECE]), PIECES),
        send(r#""}}]}"#),
    ];
    let outcome = ask(
        vec![ScriptedResponse::new(200, "application/json", body), good()],
        3,
    )
    .await;
    assert_eq!(outcome.error(), &EndpointError::TooLarge("at most 8 MiB"));
    assert_eq!(outcome.calls, 1);
    // The client read 8 MiB; the rest is in socket buffers.
    let written = outcome.server.written();
    assert!(written < 40_000_000, "{written}");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = FakeService::play(vec![good()]).await;
    for status in [301, 302, 307, 308] {
        let there = elsewhere.url("/v1/chat/completions");
        let play = ScriptedResponse::text(status, "text/plain", "").with_header("location", &there);
        let outcome = ask(vec![play], 3).await;
        assert_eq!(outcome.error().code(), "agent_error");
        let said = outcome.error().to_string();
        assert!(
            said.contains("not followed") && !said.contains(&there),
            "{said}"
        );
        assert_eq!(outcome.calls, 1);
    }
    assert_eq!(elsewhere.seen().len(), 0);
}

#[tokio::test]
async fn an_error_inside_a_stream_is_what_the_service_says() {
    let error = |error: &str| send(&format!("data: {{\"error\":{error}}}\n\ndata: [DONE]\n\n"));
    let cases = [
        (r#"{"message":"no","code":"500"}"#, 500, "no"),
        (r#"{"message":"slow down","code":429}"#, 429, "slow down"),
        (
            r#"{"message":"too long","code":"context_length_exceeded","status":400}"#,
            400,
            "too long",
        ),
        (r#""plain""#, 500, r#""plain""#),
        (r#"{"other":1}"#, 500, r#"{"other":1}"#),
    ];
    for (body, status, message) in cases {
        let outcome = ask(
            vec![ScriptedResponse::events(vec![send(HELLO), error(body)])],
            3,
        )
        .await;
        let expected = EndpointError::Status {
            status: StatusCode::from_u16(status).expect("a status"),
            message: message.to_owned(),
            retry_after_seconds: None,
            display_message: None,
        };
        assert_eq!(outcome.error(), &expected);
        // No retry: the beginning of the answer was already streamed.
        assert_eq!(outcome.calls, 1);
    }
    let named = send("event: error\ndata: {\"message\":\"broken\"}\n\n");
    let outcome = ask(vec![ScriptedResponse::events(vec![named])], 0).await;
    assert!(outcome.error().to_string().ends_with("500: broken"));
    let whole = ScriptedResponse::json(200, r#"{"error":{"message":"no","code":"503"}}"#);
    let outcome = ask(vec![whole, good()], 1).await;
    assert_eq!(outcome.content(), "good");
}

#[tokio::test]
async fn a_transient_error_in_a_stream_before_the_first_text_is_retried() {
    let error = |code: u16| {
        let error = format!("data: {{\"error\":{{\"message\":\"no\",\"code\":{code}}}}}\n\n");
        ScriptedResponse::events(vec![send(ROLE), send(&error)])
    };
    let outcome = ask(vec![error(500), good()], 1).await;
    assert_eq!(outcome.content(), "good");
    let outcome = ask(vec![error(400), good()], 1).await;
    assert_eq!(outcome.error().code(), "agent_error");
}

#[tokio::test]
async fn connections_are_reused() {
    let server = FakeService::play(vec![good()]).await;
    let client = ChatClient::new().expect("a client");
    for _ in 0..3 {
        let endpoint = endpoint(server.url("/v1"));
        let reply = client.chat(&endpoint, &call(false), &mut |_| {}).await;
        reply.expect("an answer");
    }
    assert_eq!(server.connections(), 1);
}
