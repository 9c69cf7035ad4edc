//! Answers that are not: what a caller is told, what is asked again, and how much is read.

use std::time::Instant;

use bytes::Bytes;
use http::StatusCode;
use tokio::net::TcpListener;

use super::tests::{call, endpoint};
use super::*;
use crate::fault_server::{FaultServer, Play, Step, text};
use crate::http::Obstacle;

const SHORT: Duration = Duration::from_secs(1);
const GOOD: &str = r#"{"choices":[{"message":{"content":"good"},"finish_reason":"stop"}]}"#;
const HELLO: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n";
const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

struct Outcome {
    result: Result<ChatReply, CallError>,
    heard: String,
    calls: usize,
    server: FaultServer,
}

impl Outcome {
    #[track_caller]
    fn error(&self) -> &CallError {
        self.result.as_ref().expect_err("no answer")
    }

    #[track_caller]
    fn content(&self) -> &str {
        &self.result.as_ref().expect("an answer").content
    }
}

async fn ask_within(plays: Vec<Play>, retries: u32, timeout: Duration) -> Outcome {
    let server = FaultServer::start(plays).await;
    let endpoint = ChatEndpoint {
        timeout,
        retries,
        ..endpoint(server.url("/v1"))
    };
    let client = ChatClient::new().expect("a client");
    let mut heard = String::new();
    let result = client
        .chat(&endpoint, &call(true), &mut |text| heard.push_str(text))
        .await;
    Outcome {
        result,
        heard,
        calls: server.seen().len(),
        server,
    }
}

/// With so much time that only the service decides what happens.
async fn ask(plays: Vec<Play>, retries: u32) -> Outcome {
    ask_within(plays, retries, Duration::from_mins(1)).await
}

fn good() -> Play {
    Play::json(GOOD)
}

fn failing(status: u16) -> Play {
    let body = r#"{"error":{"message":"out of order","type":"runtime_error","code":"x"}}"#;
    Play::text(status, "application/json", body)
}

#[tokio::test]
async fn silence_is_a_timeout_and_is_not_asked_again() {
    let outcome = ask_within(vec![Play::silence()], 3, SHORT).await;
    assert_eq!(outcome.error(), &CallError::Timeout { limit: SHORT });
    assert_eq!(outcome.error().code(), "agent_timeout");
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn silence_in_the_middle_is_a_timeout_too() {
    let plays = [
        Play::events(vec![text(HELLO), Step::Hang]),
        Play::events(vec![text(ROLE), Step::Hang]),
        Play::new(200, "application/json", vec![text(&GOOD[..20]), Step::Hang]),
    ];
    for play in plays {
        let outcome = ask_within(vec![play, good()], 3, SHORT).await;
        assert_eq!(outcome.error().code(), "agent_timeout");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn a_failure_that_passes_is_asked_again() {
    for status in [500, 502, 503, 429] {
        let outcome = ask(vec![failing(status), good()], 1).await;
        assert_eq!(outcome.content(), "good", "{status}");
        assert_eq!(outcome.heard, "good");
        assert_eq!(outcome.calls, 2);
        let [first, second] = &outcome.server.seen()[..] else {
            panic!("two calls");
        };
        assert_eq!(first.body, second.body);
    }
}

#[tokio::test]
async fn a_failure_that_stays_is_asked_as_often_as_was_said() {
    for status in [500, 429] {
        let outcome = ask(vec![failing(status)], 2).await;
        let expected = CallError::Status {
            status: StatusCode::from_u16(status).expect("a status"),
            message: "out of order".to_owned(),
        };
        assert_eq!(outcome.error(), &expected);
        assert_eq!(outcome.error().code(), "agent_error");
        assert_eq!(outcome.calls, 3);
    }
}

#[tokio::test]
async fn calls_are_not_made_again_after_their_time() {
    let outcome = ask_within(vec![failing(500)], u32::MAX, Duration::from_secs(3)).await;
    // It says what went wrong, not only that time is up.
    assert_eq!(outcome.error().code(), "agent_error");
    assert!((1..=6).contains(&outcome.calls), "{}", outcome.calls);
}

#[tokio::test]
async fn a_refusal_is_not_asked_again_and_says_why() {
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
            vec![Play::text(status, "application/json", body), good()],
            3,
        )
        .await;
        let expected = CallError::Status {
            status: StatusCode::from_u16(status).expect("a status"),
            message: message.to_owned(),
        };
        assert_eq!(outcome.error(), &expected);
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn a_refusal_that_never_ends_is_not_read_to_its_end() {
    let body = Step::Repeat(Bytes::from_static(&[b'x'; 16 * 1024]), usize::MAX);
    let outcome = ask(vec![Play::new(400, "text/plain", vec![body])], 0).await;
    let CallError::Status { message, .. } = outcome.error() else {
        panic!("{:?}", outcome.error());
    };
    assert_eq!(message.chars().count(), 301);
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let client = ChatClient::new().expect("a client");
    let cases = [
        (format!("http://{address}/v1"), Obstacle::Connection),
        ("http://no-such-host.invalid/v1".to_owned(), Obstacle::Name),
        ("ftp://127.0.0.1/v1".to_owned(), Obstacle::Address),
        ("127.0.0.1:80".to_owned(), Obstacle::Address),
        (String::new(), Obstacle::Address),
    ];
    for (base_url, obstacle) in cases {
        let endpoint = ChatEndpoint {
            retries: 1,
            ..endpoint(base_url)
        };
        let error = client.chat(&endpoint, &call(true), &mut |_| {}).await;
        let error = error.expect_err("nobody is there");
        assert_eq!(error, CallError::Unreachable(obstacle));
        assert_eq!(error.code(), "agent_unreachable");
    }
}

#[tokio::test]
async fn who_comes_late_is_still_asked() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    // The first connection ends before anything was answered.
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
    // The second time nobody was there: both were tried.
    let expected = CallError::Unreachable(Obstacle::Connection);
    assert_eq!(error.expect_err("nobody answers"), expected);
}

#[tokio::test]
async fn who_does_not_speak_tls_is_not_asked_again() {
    let server = FaultServer::start(vec![good()]).await;
    let client = ChatClient::new().expect("a client");
    let endpoint = endpoint(format!("https://{}/v1", server.address()));
    let error = client.chat(&endpoint, &call(true), &mut |_| {}).await;
    let expected = CallError::Unreachable(Obstacle::Certificate);
    assert_eq!(error.expect_err("no TLS"), expected);
}

#[tokio::test]
async fn what_is_cut_before_the_first_word_is_asked_again() {
    let cuts = [
        Play::events(vec![Step::Cut]),
        Play::events(vec![text(ROLE), Step::Cut]),
        // An end without a reason is a cut too, however orderly.
        Play::events(vec![text(ROLE)]),
        Play::events(Vec::new()),
        Play::new(200, "application/json", vec![text(&GOOD[..20]), Step::Cut]),
    ];
    for cut in cuts {
        let outcome = ask(vec![cut.clone(), good()], 1).await;
        assert_eq!(outcome.content(), "good", "{cut:?}");
        assert_eq!(outcome.heard, "good");
        let outcome = ask(vec![cut], 0).await;
        assert_eq!(outcome.error(), &CallError::CutOff);
        assert_eq!(outcome.error().code(), "agent_cut_off");
    }
}

#[tokio::test]
async fn what_is_cut_after_the_first_word_is_not_asked_again() {
    // An empty reason comes with every piece of some services.
    let not_ended = HELLO.replace("}}]", "},\"finish_reason\":\"\"}]");
    for end in [
        vec![text(HELLO), Step::Cut],
        vec![text(HELLO)],
        vec![text(&not_ended), Step::Cut],
    ] {
        let outcome = ask(vec![Play::events(end), good()], 3).await;
        assert_eq!(outcome.error(), &CallError::CutOff);
        assert_eq!(outcome.heard, "hello");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn what_goes_wrong_after_the_end_does_not_matter() {
    let done = text("data: [DONE]\n\n");
    for end in [text(STOP), done] {
        let afterwards = [
            vec![],
            vec![Step::Cut],
            vec![Step::Repeat(Bytes::from(": awake\n\n".repeat(1000)), 1000)],
        ];
        for afterwards in afterwards {
            let mut body = vec![text(HELLO), end.clone()];
            body.extend(afterwards);
            let outcome = ask(vec![Play::events(body)], 0).await;
            assert_eq!(outcome.content(), "hello");
        }
    }
}

#[tokio::test]
async fn who_does_not_hang_up_after_the_end_is_not_waited_for() {
    let body = vec![text(HELLO), text(STOP), Step::Hang];
    let (began, most) = (Instant::now(), Duration::from_mins(5));
    let outcome = ask_within(vec![Play::events(body)], 0, most).await;
    assert_eq!(outcome.content(), "hello");
    assert!(began.elapsed() < most / 2, "it was waited for");
}

#[tokio::test]
async fn a_service_that_works_after_its_last_word_is_heard_out() {
    const LAST: &str = ": the turn is kept now\n\n";
    const DONE: &str = "data: [DONE]\n\n";
    let body = vec![text(HELLO), text(DONE), Step::Wait(SHORT), text(LAST)];
    let outcome = ask(vec![Play::events(body)], 0).await;
    assert_eq!(outcome.content(), "hello");
    let written = HELLO.len() + DONE.len() + LAST.len();
    assert_eq!(outcome.server.written(), written);
}

#[tokio::test]
async fn what_cannot_be_understood_is_not_asked_again() {
    let plays = [
        Play::json("{\"choices\":"),
        Play::json("[]"),
        Play::json("{}"),
        Play::json(r#"{"choices":[]}"#),
        Play::json(r#"{"choices":[{"message":{"content":7}}]}"#),
        Play::json(r#"{"choices":[{"message":{"tool_calls":[{"id":"a"}]}}]}"#),
        Play::json(""),
        Play::new(
            200,
            "application/json",
            vec![Step::Text(Bytes::from_static(b"{\"a\":\"\xff\"}"))],
        ),
        Play::text(200, "text/html", "<!doctype html><h1>Welcome</h1>"),
        Play::text(200, "text/plain", "data lost"),
        Play::events(vec![text("data: {\"choices\":\n\n"), text(STOP)]),
        Play::events(vec![text("data: hello\n\n"), text(STOP)]),
        Play::events(vec![Step::Text(Bytes::from_static(b"data: \xff\n\n"))]),
    ];
    for play in plays {
        let outcome = ask(vec![play.clone(), good()], 3).await;
        assert_eq!(outcome.error().code(), "agent_malformed", "{play:?}");
        assert_eq!(outcome.heard, "");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn a_damaged_chunk_after_the_first_word_is_malformed() {
    let body = vec![text(HELLO), text("data: {]\n\n"), text(STOP)];
    let outcome = ask(vec![Play::events(body)], 3).await;
    assert_eq!(outcome.error().code(), "agent_malformed");
    assert_eq!(outcome.heard, "hello");
}

#[tokio::test]
async fn what_is_not_http_is_malformed() {
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
    let body = vec![Step::Repeat(Bytes::from(comment), usize::MAX)];
    let outcome = ask(vec![Play::events(body), good()], 3).await;
    assert_eq!(outcome.error().code(), "agent_too_large");
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn a_stream_of_tiny_chunks_without_end_is_cut() {
    let chunk = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
    let body = vec![Step::Repeat(chunk, usize::MAX)];
    let outcome = ask_within(vec![Play::events(body)], 3, Duration::from_secs(2)).await;
    let code = outcome.error().code();
    assert!(
        matches!(code, "agent_timeout" | "agent_too_large"),
        "{code}"
    );
    assert!(outcome.heard.starts_with("xx"));
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn one_event_without_end_is_cut_early() {
    let piece = Bytes::from_static(&[b'x'; 16 * 1024]);
    let body = vec![text("data: "), Step::Repeat(piece, usize::MAX)];
    let outcome = ask(vec![Play::events(body)], 3).await;
    let expected = CallError::TooLarge("at most 1 MiB for one event");
    assert_eq!(outcome.error(), &expected);
    assert_eq!(outcome.error().code(), "agent_too_large");
    assert_eq!(outcome.calls, 1);
}

#[tokio::test]
async fn tool_calls_without_end_are_cut_early() {
    // In one piece, where the index is left out, and in an answer that is whole.
    let calls: Vec<String> = (0..400_000).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
    let message = format!(r#"{{"tool_calls":[{}]}}"#, calls.join(","));
    for name in ["delta", "message"] {
        let body = format!(r#"{{"choices":[{{"{name}":{message},"finish_reason":"stop"}}]}}"#);
        let outcome = ask(vec![Play::json(&body), good()], 3).await;
        let expected = CallError::TooLarge("at most 1,024 tool calls");
        assert_eq!(outcome.error(), &expected, "{name}");
        assert_eq!(outcome.calls, 1);
    }
}

#[tokio::test]
async fn an_answer_of_a_hundred_megabytes_is_not_read_to_its_end() {
    const PIECE: usize = 64 * 1024;
    const PIECES: usize = 100_000_000 / PIECE;
    let body = vec![
        text(r#"{"choices":[{"message":{"content":""#),
        Step::Repeat(Bytes::from_static(&[b'x'; PIECE]), PIECES),
        text(r#""}}]}"#),
    ];
    let outcome = ask(vec![Play::new(200, "application/json", body), good()], 3).await;
    assert_eq!(outcome.error(), &CallError::TooLarge("at most 8 MiB"));
    assert_eq!(outcome.calls, 1);
    // Eight of them were read; the rest is what systems keep for connections.
    let written = outcome.server.written();
    assert!(written < 40_000_000, "{written}");
}

#[tokio::test]
async fn what_leads_elsewhere_is_not_followed() {
    let elsewhere = FaultServer::start(vec![good()]).await;
    for status in [301, 302, 307, 308] {
        let there = elsewhere.url("/v1/chat/completions");
        let play = Play::text(status, "text/plain", "").with_header("location", &there);
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
    let error = |error: &str| text(&format!("data: {{\"error\":{error}}}\n\ndata: [DONE]\n\n"));
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
        let outcome = ask(vec![Play::events(vec![text(HELLO), error(body)])], 3).await;
        let expected = CallError::Status {
            status: StatusCode::from_u16(status).expect("a status"),
            message: message.to_owned(),
        };
        assert_eq!(outcome.error(), &expected);
        // Somebody has heard the beginning.
        assert_eq!(outcome.calls, 1);
    }
    let named = text("event: error\ndata: {\"message\":\"broken\"}\n\n");
    let outcome = ask(vec![Play::events(vec![named])], 0).await;
    assert!(outcome.error().to_string().ends_with("500: broken"));
    let whole = Play::json(r#"{"error":{"message":"no","code":"503"}}"#);
    let outcome = ask(vec![whole, good()], 1).await;
    assert_eq!(outcome.content(), "good");
}

#[tokio::test]
async fn an_error_in_a_stream_before_the_first_word_is_asked_again_if_it_may_pass() {
    let error = |code: u16| {
        let error = format!("data: {{\"error\":{{\"message\":\"no\",\"code\":{code}}}}}\n\n");
        Play::events(vec![text(ROLE), text(&error)])
    };
    let outcome = ask(vec![error(500), good()], 1).await;
    assert_eq!(outcome.content(), "good");
    let outcome = ask(vec![error(400), good()], 1).await;
    assert_eq!(outcome.error().code(), "agent_error");
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = FaultServer::start(vec![good()]).await;
    let client = ChatClient::new().expect("a client");
    for _ in 0..3 {
        let endpoint = endpoint(server.url("/v1"));
        let reply = client.chat(&endpoint, &call(false), &mut |_| {}).await;
        reply.expect("an answer");
    }
    assert_eq!(server.connections(), 1);
}
