//! Tool calls and their failures.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use statehold_engine::Credential;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::bench::{Bench, STEP, Served, TOGETHER, at};
use super::*;
use crate::mcp::reply::REPLY_BYTES_MAX;
use crate::spec::SecretHeader;

#[tokio::test]
async fn a_tool_is_called_by_its_name_with_its_arguments() {
    let served = Served::start(&Bench::default()).await;
    let servers = servers([("bench", served.transport())]);
    let echo = tool(&servers, "bench", "echo").await;
    assert_eq!(echo.input_schema["title"], "echo");

    let reply = call(&servers, &echo, json!({"text": "hello"})).await;

    let expected = ToolReply {
        content: Value::from("hello"),
        is_error: false,
    };
    assert_eq!(reply, Ok(expected));
    servers.close().await;
}

#[tokio::test]
async fn a_tool_is_told_whose_call_it_is() {
    let served = Served::start(&Bench::default()).await;
    let servers = servers([("bench", served.transport())]);
    let meta = tool(&servers, "bench", "meta").await;

    let reply = call(&servers, &meta, nothing()).await.expect("a reply");

    let told: Value = serde_json::from_str(text(&reply)).expect("JSON");
    assert_eq!(told["statehold/execution_key"], "key_1");
    assert_eq!(told["statehold/session"], "ses_1");
    assert_eq!(told["statehold/task"], "tsk_1");
    assert_eq!(told["statehold/request"], "req_1");
    assert!(
        told["traceparent"]
            .as_str()
            .is_some_and(|id| id.starts_with("00-0af7"))
    );
}

#[tokio::test]
async fn calls_are_under_way_at_the_same_time() {
    for has_sessions in [true, false] {
        let bench = Bench::default();
        let address = "127.0.0.1:0".parse().expect("an address");
        let served = Served::start_at(address, &bench, has_sessions).await;
        let servers = servers([("bench", served.transport())]);
        let together = tool(&servers, "bench", "together").await;

        // No call is answered before all have arrived.
        let calls = (0..TOGETHER).map(|_| call(&servers, &together, nothing()));
        for reply in join_all(calls).await {
            assert_eq!(text(&reply.expect("a reply")), "met");
        }
    }
}

#[tokio::test]
async fn what_a_tool_says_is_a_reply_also_if_it_went_wrong() {
    let served = Served::start(&Bench::default()).await;
    let servers = servers([("bench", served.transport())]);
    let wrong = tool(&servers, "bench", "wrong").await;

    let reply = call(&servers, &wrong, nothing()).await.expect("a reply");

    assert!(reply.is_error);
    assert_eq!(reply.for_model(), "no such file");
}

#[tokio::test]
async fn an_error_in_place_of_an_answer_is_told_with_its_words() {
    let served = Served::start(&Bench::default()).await;
    let servers = servers([("bench", served.transport())]);
    let broken = tool(&servers, "bench", "broken").await;

    let error = call(&servers, &broken, nothing())
        .await
        .expect_err("an error");

    assert_eq!(error.code(), "tool_refused");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(error.may_have_run());
}

#[tokio::test]
async fn structured_content_and_other_parts_are_kept() {
    let served = Served::start(&Bench::default()).await;
    let servers = servers([("bench", served.transport())]);
    let structured = tool(&servers, "bench", "structured").await;
    let picture = tool(&servers, "bench", "picture").await;

    let structured = call(&servers, &structured, nothing())
        .await
        .expect("a reply");
    let picture = call(&servers, &picture, nothing()).await.expect("a reply");

    let expected = json!({"text": "{\"sum\":3}", "structured": {"sum": 3}});
    assert_eq!(structured.content, expected);
    assert_eq!(structured.for_model(), "{\"sum\":3}");
    assert_eq!(picture.content["text"], "a dot\nas asked");
    assert_eq!(picture.content["parts"][0]["mimeType"], "image/png");
    // No model gets base64 as text.
    let told = picture.for_model();
    assert!(
        told.contains("image/png, about 3 bytes") && !told.contains("AAAA"),
        "{told}"
    );
}

#[tokio::test]
async fn a_large_result_is_cut_and_says_so() {
    let served = Served::start(&Bench::default()).await;
    let servers = servers([("bench", served.transport())]);
    let large = tool(&servers, "bench", "large").await;

    let reply = call(&servers, &large, json!({"bytes": 3 << 20})).await;

    let reply = reply.expect("a reply");
    assert!(reply.content.to_string().len() <= REPLY_BYTES_MAX);
    let kept = text(&reply);
    assert!(kept.len() > REPLY_BYTES_MAX - 1024, "{}", kept.len());
    assert!(kept.ends_with("of 3145728 bytes; a result may have 1 MiB]"));
}

#[tokio::test]
async fn a_result_that_is_too_large_to_be_read_does_not_hold_up_anybody() {
    let bench = Bench::default();
    for served in [
        Served::start(&bench).await,
        Served::start_plain(&bench).await,
    ] {
        let servers = servers([("bench", served.transport())]);
        let large = tool(&servers, "bench", "large").await;
        let echo = tool(&servers, "bench", "echo").await;

        let error = call(&servers, &large, json!({"bytes": 17 << 20})).await;
        let reply = call(&servers, &echo, json!({"text": "still there"})).await;

        let error = error.expect_err("an error");
        assert_eq!(error.code(), "tool_too_large");
        assert!(error.may_have_run());
        assert_eq!(text(&reply.expect("a reply")), "still there");
    }
}

#[tokio::test]
async fn a_tool_that_never_answers_is_left_and_told() {
    let bench = Bench::default();
    let served = Served::start(&bench).await;
    let servers = servers_within(Duration::from_secs(1), [("bench", served.transport())]);
    let never = tool(&servers, "bench", "never").await;
    let echo = tool(&servers, "bench", "echo").await;

    let error = call(&servers, &never, nothing())
        .await
        .expect_err("an error");
    let reply = call(&servers, &echo, json!({"text": "still there"})).await;

    assert_eq!(error.code(), "tool_timeout");
    assert!(error.may_have_run());
    assert_eq!(text(&reply.expect("a reply")), "still there");
    until("the tool is told", || async {
        bench.cancelled.load(Ordering::Relaxed) == 1
    })
    .await;
}

#[tokio::test]
async fn a_tool_that_reports_progress_is_not_cut_off_while_it_does() {
    let bench = Bench::default();
    let served = Served::start(&bench).await;
    // The call takes three times as long as its timeout.
    let servers = servers_within(STEP * 2, [("bench", served.transport())]);
    let echo = tool(&servers, "bench", "echo").await;

    let reply = call(&servers, &echo, json!({"steps": 6})).await;

    assert_eq!(text(&reply.expect("a reply")), "at last");
}

#[tokio::test]
async fn a_tool_server_gets_the_headers_of_its_declaration() {
    let served = Served::start(&Bench::default()).await;
    let ToolTransport::Http { url, .. } = served.transport() else {
        panic!("it is served over HTTP");
    };
    let key = Credential::new("Key one-two-three".to_owned()).expect("a text");
    let header = SecretHeader::new(http::header::AUTHORIZATION, key).expect("it fits");
    let transport = ToolTransport::Http {
        url,
        credential: None,
        headers: vec![header],
    };
    let servers = servers([("bench", transport)]);
    let meta = tool(&servers, "bench", "who").await;

    let reply = call(&servers, &meta, nothing()).await.expect("a reply");

    // The tool repeats it, and the value stays here.
    assert!(!text(&reply).contains("one-two-three") && text(&reply) != "nobody");
}

#[tokio::test]
async fn a_server_that_is_gone_leaves_the_tools_of_the_others() {
    let gone = Served::start(&Bench::default()).await.stop().await;
    let served = Served::start(&Bench::default()).await;
    let servers = servers([("gone", at(gone, None)), ("bench", served.transport())]);

    let listed = servers.tools(&[name("gone"), name("bench")]).await;

    assert_eq!(listed.tools.len(), 12);
    let missing: Vec<_> = listed.missing.iter().collect();
    assert!(matches!(&missing[..], [(name, error)]
        if name.as_str() == "gone" && error.code() == "tool_unreachable"));
}

#[tokio::test]
async fn whoever_stops_waiting_says_so() {
    let bench = Bench::default();
    let served = Served::start(&bench).await;
    let servers = servers([("bench", served.transport())]);
    let never = tool(&servers, "bench", "never").await;

    tokio::select! {
        reply = call(&servers, &never, nothing()) => panic!("{reply:?}"),
        () = until("the tool is called", || async { bench.called.load(Ordering::Relaxed) == 1 }) => {}
    }

    until("the tool is told", || async {
        bench.cancelled.load(Ordering::Relaxed) == 1
    })
    .await;
}

#[tokio::test]
async fn a_server_that_never_answers_was_not_called_and_is_not_held_on_to() {
    // No response, or an incomplete one.
    for begins in [
        "",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (came, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (coming, leaving) = (came.clone(), left.clone());
        let silent = tokio::spawn(async move {
            let mut kept = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                coming.fetch_add(1, Ordering::Relaxed);
                let leaving = leaving.clone();
                kept.spawn(async move {
                    stream
                        .write_all(begins.as_bytes())
                        .await
                        .expect("it is read");
                    while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
                    leaving.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let servers = servers_within(Duration::from_secs(1), [("silent", at(address, None))]);

        let error = servers
            .tools(&[name("silent")])
            .await
            .all()
            .expect_err("an error");

        assert_eq!(error.code(), "tool_timeout");
        assert!(!error.may_have_run());
        until("nobody waits for it any more", || async {
            let came = came.load(Ordering::Relaxed);
            came > 0 && came == left.load(Ordering::Relaxed)
        })
        .await;
        silent.abort();
    }
}

#[tokio::test]
async fn a_server_that_is_not_declared_is_named() {
    let servers = servers([]);
    let error = servers
        .tools(&[name("ghost")])
        .await
        .all()
        .expect_err("an error");
    assert_eq!(error.code(), "tool_refused");
    assert!(error.to_string().contains("ghost"), "{error}");
    assert!(!error.may_have_run());
}

#[tokio::test]
async fn a_credential_is_shown_and_a_refusal_told() {
    let bench = Bench::default();
    *bench.credential.lock().expect("no test has failed") = Some("letmein-now".to_owned());
    let served = Served::start(&bench).await;
    let servers = servers([
        ("known", served.transport_as("letmein-now")),
        ("stranger", served.transport()),
    ]);

    let who = tool(&servers, "known", "who").await;
    let reply = call(&servers, &who, nothing()).await.expect("a reply");
    // A tool may repeat the credential, and its result goes to models and into the history.
    assert_eq!(text(&reply), "Bearer …");

    let error = servers
        .tools(&[name("stranger")])
        .await
        .all()
        .expect_err("an error");
    assert_eq!(error.code(), "tool_refused");
    assert!(error.to_string().contains("401"), "{error}");
    assert!(!error.may_have_run());

    // Error texts of the server go to models and into the history, so the credential is redacted.
    let broken = tool(&servers, "known", "broken").await;
    let error = call(&servers, &broken, nothing())
        .await
        .expect_err("an error");
    let words = error.to_string();
    assert!(words.ends_with("full for Bearer …"), "{words}");
    let called = bench.called.load(Ordering::Relaxed);

    // After the credential was revoked, the error says that the tool did not run.
    *bench.credential.lock().expect("no test has failed") = Some("changed".to_owned());
    let error = call(&servers, &who, nothing()).await.expect_err("an error");
    assert_eq!(error.code(), "tool_refused");
    assert!(!error.may_have_run());
    assert_eq!(bench.called.load(Ordering::Relaxed), called);
}
