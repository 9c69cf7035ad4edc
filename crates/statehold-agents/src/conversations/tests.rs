use std::time::Duration;

use statehold_engine::Credential;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, send};

use super::*;

fn client(server: &FakeService, retries: u32) -> ConversationsClient {
    let endpoint = ServiceEndpoint {
        base_url: server.url("/ums"),
        credential: Credential::new("sk-1".to_owned()),
        headers: vec![(
            HeaderName::from_static("traceparent"),
            HeaderValue::from_static("00-1-2-01"),
        )],
        timeout: Duration::from_secs(30),
        retries,
    };
    ConversationsClient::new(HttpPool::new().expect("a client"), endpoint)
}

fn key() -> HeaderPair {
    let name = HeaderName::from_static("idempotency-key");
    (name, HeaderValue::from_static("req-1"))
}

#[tokio::test]
async fn a_conversation_is_begun() {
    let play = ScriptedResponse::json(
        200,
        r#"{"id":"c/1","title":"t","messages":[],"created_at":"x"}"#,
    );
    let server = FakeService::play(vec![play]).await;
    let id = client(&server, 0).create("a \"title\"", &key()).await;
    assert_eq!(id.expect("a conversation"), "c/1");
    let seen = &server.seen()[0];
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("POST", "/ums/conversations")
    );
    assert_eq!(seen.text, r#"{"title":"a \"title\""}"#);
    assert_eq!(seen.headers["authorization"], "Bearer sk-1");
    assert_eq!(seen.headers["traceparent"], "00-1-2-01");
    assert_eq!(seen.headers["idempotency-key"], "req-1");
}

#[tokio::test]
async fn a_conversation_without_a_usable_id_is_none() {
    for body in [
        r#"{"title":"t"}"#,
        r#"{"id":""}"#,
        r#"{"id":".."}"#,
        r#"{"id":null}"#,
        r#"{"id":{"a":1}}"#,
        "[]",
        "",
    ] {
        let server = FakeService::play(vec![ScriptedResponse::json(200, body)]).await;
        let error = client(&server, 3)
            .create("t", &key())
            .await
            .expect_err("no id");
        assert_eq!(error.code(), "agent_malformed", "{body}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn the_newest_conversation_with_a_title_is_found() {
    let at = |id: &str, title: &str, times: &str| {
        format!(r#"{{"id":{id},"title":"{title}"{times},"message_count":2}}"#)
    };
    let cases = [
        // Without usable times, the order of the list decides.
        (
            vec![at("1", "other", ""), at("2", "t", ""), at("3", "t", "")],
            Some("2"),
        ),
        (
            vec![
                at(
                    "\"a\"",
                    "t",
                    r#","created_at":"2026-01-03","updated_at":"2026-01-04""#,
                ),
                at(
                    "\"b\"",
                    "t",
                    r#","created_at":"2026-01-01","updated_at":"2026-01-05""#,
                ),
                at(
                    "\"c\"",
                    "t",
                    r#","created_at":"2026-01-02","updated_at":"2026-01-05""#,
                ),
            ],
            Some("b"),
        ),
        (
            vec![
                at("1", "t", r#","updated_at":5"#),
                at("2", "t", r#","updated_at":9"#),
            ],
            Some("1"),
        ),
        (
            vec![at("1", "T", ""), r#"{"id":2,"title":null}"#.to_owned()],
            None,
        ),
        (vec![], None),
    ];
    for (list, expected) in cases {
        let body = format!("[{}]", list.join(","));
        let server = FakeService::play(vec![ScriptedResponse::json(200, &body)]).await;
        let found = client(&server, 0).find("t").await.expect("a list");
        let expected = expected.map_or(ConversationSearch::Missing, |id| {
            ConversationSearch::Found(id.to_owned())
        });
        assert_eq!(found, expected, "{body}");
        let seen = &server.seen()[0];
        assert_eq!(
            (seen.method.as_str(), seen.path.as_str()),
            ("GET", "/ums/conversations")
        );
    }
}

#[tokio::test]
async fn of_a_list_that_is_too_long_the_beginning_is_looked_through() {
    let other = format!(r#"{{"id":"x","title":"{}"}}"#, "é".repeat(512));
    let many = vec![other; 9 * 1024].join(",");
    let ours = r#"{"id":"c1","title":"t"}"#;
    for (list, expected) in [
        (
            format!("[{ours},{many}]"),
            ConversationSearch::Found("c1".to_owned()),
        ),
        (
            format!("[{many},{ours}]"),
            ConversationSearch::ListTruncated,
        ),
    ] {
        let server = FakeService::play(vec![ScriptedResponse::json(200, &list)]).await;
        let found = client(&server, 0).find("t").await.expect("a list");
        assert_eq!(found, expected);
    }
    let server = FakeService::play(vec![ScriptedResponse::json(
        200,
        &format!(r#"{{"all":[{many}]}}"#),
    )])
    .await;
    let error = client(&server, 0).find("t").await.expect_err("no list");
    assert_eq!(error.code(), "agent_malformed");
}

#[tokio::test]
async fn what_is_no_list_is_malformed() {
    for body in [r#"{"conversations":[]}"#, "[{]", "[1]"] {
        let server = FakeService::play(vec![ScriptedResponse::json(200, body)]).await;
        let error = client(&server, 0).find("t").await.expect_err("no list");
        assert_eq!(error.code(), "agent_malformed");
    }
}

#[tokio::test]
async fn a_message_is_answered_at_once_or_as_it_is_written() {
    let whole = ScriptedResponse::json(
        200,
        r#"{"content":"Hello","conversation_id":"c2","shared_context":{"city": "Bern"}}"#,
    );
    let stream = ScriptedResponse::new(
        200,
        "text/event-stream; charset=utf-8",
        vec![
            send("data: {\"conversation_id\":\"c2\"}\n\n"),
            send(
                "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"},\"index\":0,\"finish_reason\":null}]}\n\n",
            ),
            send(
                "data: {\"choices\":[{\"delta\":{\"content\":\"lo\",\"custom_content\":{\"shared_context\":{\"city\": \"Bern\"}}},\"index\":0}]}\n\n",
            ),
            send(
                "data: {\"choices\":[{\"delta\":{},\"index\":0,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
            ),
        ],
    );
    for (play, stream) in [(whole, false), (stream, true)] {
        let server = FakeService::play(vec![play]).await;
        let mut heard = String::new();
        let reply = client(&server, 0)
            .chat("c/1", ("hi \"you\"", None), (stream, &key()), &mut |text| {
                heard.push_str(text);
            })
            .await
            .expect("an answer");
        assert_eq!(reply.content, "Hello");
        assert_eq!(heard, "Hello");
        assert_eq!(reply.conversation_id.as_deref(), Some("c2"));
        let shared = reply.shared_context.expect("something shared");
        assert_eq!(shared.get(), r#"{"city": "Bern"}"#);
        let seen = &server.seen()[0];
        assert_eq!(seen.path, "/ums/conversations/c%2F1/chat");
        assert_eq!(
            seen.text,
            format!(r#"{{"message":{{"role":"user","content":"hi \"you\""}},"stream":{stream}}}"#)
        );
    }
}

#[tokio::test]
async fn an_answer_in_the_form_of_openai_is_read_and_the_conversation_stays() {
    let body = r#"{"choices":[{"message":{"role":"assistant","content":"Hello"}}]}"#;
    let server = FakeService::play(vec![ScriptedResponse::json(200, body)]).await;
    let reply = client(&server, 0)
        .chat("7", ("hi", None), (false, &key()), &mut |_| {})
        .await;
    let reply = reply.expect("an answer");
    assert_eq!(
        (reply.content.as_str(), reply.conversation_id.as_deref()),
        ("Hello", Some("7"))
    );
}

#[tokio::test]
async fn a_conversation_that_is_gone_is_said_to_be() {
    for status in [404, 410] {
        let gone = ScriptedResponse::text(
            status,
            "application/json",
            r#"{"detail":"Conversation not found"}"#,
        );
        let server = FakeService::play(vec![gone]).await;
        let client = client(&server, 3);
        let error = client
            .chat("c1", ("hi", None), (true, &key()), &mut |_| {})
            .await;
        let error = error.expect_err("it is gone");
        assert_eq!(error, EndpointError::NotFound);
        assert_eq!(error.code(), "conversation_lost");
        // A 404 outside of a conversation is an ordinary error.
        let error = client.create("t", &key()).await.expect_err("no such route");
        assert_eq!(error.code(), "agent_error");
        assert_eq!(server.seen().len(), 2);
    }
}

#[tokio::test]
async fn an_id_leads_nowhere_else() {
    let server = FakeService::play(vec![ScriptedResponse::json(200, r#"{"content":"x"}"#)]).await;
    for id in ["", ".", "..", &"x".repeat(513)] {
        let error = client(&server, 0)
            .chat(id, ("hi", None), (true, &key()), &mut |_| {})
            .await;
        assert_eq!(error.expect_err("no such id"), EndpointError::NotFound);
    }
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn what_may_have_arrived_is_not_said_again() {
    let good = ScriptedResponse::json(200, r#"{"id":"c1","content":"good"}"#);
    let heard = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    for (fault, code) in [
        (
            ScriptedResponse::text(503, "text/plain", "busy"),
            "agent_error",
        ),
        (
            ScriptedResponse::text(429, "text/plain", "busy"),
            "agent_rate_limited",
        ),
        (
            ScriptedResponse::events(vec![BodyStep::Cut]),
            "agent_cut_off",
        ),
        (
            ScriptedResponse::events(vec![send(heard), BodyStep::Cut]),
            "agent_cut_off",
        ),
    ] {
        let server = FakeService::play(vec![fault, good.clone()]).await;
        let client = client(&server, 2);
        let reply = client
            .chat("c1", ("hi", None), (true, &key()), &mut |_| {})
            .await;
        assert_eq!(reply.expect_err("a fault").code(), code);
        assert_eq!(server.seen().len(), 1);
        assert_eq!(server.seen()[0].headers["idempotency-key"], "req-1");
    }
    // Creating may be retried, because the retry searches for the conversation first.
    let failing = ScriptedResponse::text(503, "text/plain", "busy");
    let server = FakeService::play(vec![failing, good]).await;
    let begun = client(&server, 1).create("t", &key()).await;
    assert_eq!(begun.expect("an id"), "c1");
}
