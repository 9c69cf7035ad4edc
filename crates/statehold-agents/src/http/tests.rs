//! Redaction, and construction of addresses.

use statehold_fakes::{FakeService, ScriptedResponse, send};

use super::*;
use crate::chat::{ChatClient, ChatEndpoint, ChatTarget, CompletionRequest};
use crate::spec::SecretHeader;

const SECRET: &str = "sk-very-secret-1234";
const OTHER: &str = "another-secret-5678";

fn credential(secret: &str) -> Option<Credential> {
    Credential::new(secret.to_owned())
}

fn endpoint(server: &FakeService) -> ChatEndpoint {
    ChatEndpoint {
        base_url: server.url("/v1"),
        target: ChatTarget::Model("m".to_owned()),
        credential: credential(SECRET),
        headers: Vec::new(),
        timeout: Duration::from_secs(30),
        retries: 0,
    }
}

fn call(headers: Vec<(HeaderName, HeaderValue)>) -> CompletionRequest {
    CompletionRequest {
        messages: Vec::new(),
        extra: serde_json::Map::new(),
        headers,
        stream: true,
    }
}

fn sensitive(text: &'static str) -> HeaderValue {
    let mut value = HeaderValue::from_static(text);
    value.set_sensitive(true);
    value
}

#[tokio::test]
async fn a_credential_is_sent_and_shown_to_nobody() {
    let repeated = format!("the key {SECRET} and {OTHER} are\nwrong");
    let plays = vec![
        ScriptedResponse::text(401, "text/plain", &repeated),
        ScriptedResponse::text(
            401,
            "application/json",
            &format!(r#"{{"error":{{"message":"{SECRET}"}}}}"#),
        ),
        ScriptedResponse::events(vec![send(&format!(
            "data: {{\"error\":{{\"message\":\"{SECRET} {OTHER}\",\"code\":400}}}}\n\n"
        ))]),
    ];
    let times = plays.len();
    let server = FakeService::play(plays).await;
    let client = ChatClient::new().expect("a client");
    let endpoint = endpoint(&server);
    let call = call(vec![(HeaderName::from_static("api-key"), sensitive(OTHER))]);
    for number in 0..times {
        let result = client.chat(&endpoint, &call, &mut |_| {}).await;
        let error = result.expect_err("it is refused");
        let seen = &server.seen()[number];
        assert_eq!(seen.headers["authorization"], format!("Bearer {SECRET}"));
        assert_eq!(seen.headers["api-key"], OTHER);
        let shown = format!("{error} {error:?} {endpoint:?} {call:?} {client:?}");
        assert!(shown.contains('…'), "{shown}");
        assert!(!shown.contains(SECRET) && !shown.contains(OTHER), "{shown}");
    }
}

#[tokio::test]
async fn headers_and_query_of_a_service_are_sent_and_the_values_shown_to_nobody() {
    let repeated = format!("the key {OTHER} is wrong");
    let server = FakeService::play(vec![ScriptedResponse::text(401, "text/plain", &repeated)]);
    let server = server.await;
    let name = HeaderName::from_static("api-key");
    let header = SecretHeader::new(name, credential(OTHER).expect("a text"));
    let endpoint = ChatEndpoint {
        base_url: server.url("/v1?api-version=2"),
        credential: None,
        headers: header.into_iter().collect(),
        ..endpoint(&server)
    };
    let client = ChatClient::new().expect("a client");
    let result = client.chat(&endpoint, &call(Vec::new()), &mut |_| {}).await;
    let error = result.expect_err("it is refused");
    let seen = &server.seen()[0];
    assert_eq!(seen.headers["api-key"], OTHER);
    assert!(!seen.headers.contains_key("authorization"));
    assert_eq!(seen.path, "/v1/chat/completions?api-version=2");
    let shown = format!("{error} {error:?} {endpoint:?}");
    assert!(!shown.contains(OTHER), "{shown}");
}

#[tokio::test]
async fn what_comes_with_a_call_replaces_what_is_configured() {
    let server = FakeService::play(vec![ScriptedResponse::json(200, r#"{"content":"x"}"#)]).await;
    let client = ChatClient::new().expect("a client");
    let brought = HeaderValue::from_static("Bearer another-secret-5678");
    let call = call(vec![(header::AUTHORIZATION, brought)]);
    let result = client.chat(&endpoint(&server), &call, &mut |_| {}).await;
    result.expect("an answer");
    let seen = &server.seen()[0];
    let sent: Vec<_> = seen.headers.get_all("authorization").iter().collect();
    assert_eq!(sent, ["Bearer another-secret-5678"]);
}

#[test]
fn a_credential_is_marked_also_if_the_caller_forgot() {
    let brought = HeaderValue::from_static("Bearer another-secret-5678");
    let request = ServiceRequest::new("http://host", &[], credential(SECRET).as_ref());
    let request = request.expect("an address");
    assert!(request.headers[header::AUTHORIZATION].is_sensitive());
    let request = request.with_headers(&[(header::AUTHORIZATION, brought)]);
    assert!(request.headers[header::AUTHORIZATION].is_sensitive());
    assert_eq!(request.secrets().collect::<Vec<_>>(), [OTHER]);
}

#[test]
fn a_credential_that_is_no_header_is_not_sent() {
    let request = ServiceRequest::new("http://host", &[], credential("a\r\nb: c").as_ref());
    let error = request.err().expect("it cannot be sent");
    assert_eq!(
        error,
        EndpointError::Unreachable(ConnectObstacle::Credential)
    );
    assert!(!error.to_string().contains("b: c"));
}

#[test]
fn parts_of_a_path_stay_parts() {
    let cases = [
        ("http://h/v1", "http://h/v1/a/b%2F..%2Fc%3Fd%25"),
        ("http://h/v1/", "http://h/v1/a/b%2F..%2Fc%3Fd%25"),
        ("http://h", "http://h/a/b%2F..%2Fc%3Fd%25"),
        ("http://h/x?y=1#z", "http://h/x/a/b%2F..%2Fc%3Fd%25?y=1"),
    ];
    for (base_url, expected) in cases {
        let request = ServiceRequest::new(base_url, &["a", "b/../c?d%"], None).expect("an address");
        assert_eq!(request.url.as_str(), expected);
    }
}

#[test]
fn a_time_that_no_clock_tells_is_still_a_time() {
    let deadline = CallDeadline::after(Duration::MAX).at_most(Duration::from_secs(1));
    assert_eq!(deadline.limit, Duration::from_secs(1));
    assert!(RetryBudget::new(Duration::MAX, 0).deadline().at > Instant::now());
}

#[test]
fn every_error_says_what_happened_in_a_sentence() {
    let all = [
        EndpointError::Timeout {
            limit: Duration::from_mins(1),
        },
        EndpointError::Unreachable(ConnectObstacle::Connection),
        EndpointError::Unreachable(ConnectObstacle::Slow),
        EndpointError::CutOff,
        EndpointError::NotFound,
    ];
    let said = all.map(|error| error.to_string()).join("\n");
    assert!(
        said.contains("within 60 s;") && said.contains("within 5 s;"),
        "{said}"
    );
}
