//! Broken connections and reconnecting.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::bench::{Bench, Served};
use super::*;

#[tokio::test]
async fn nothing_is_connected_to_before_it_is_used() {
    let served = Served::start(&Bench::default()).await;
    let address = served.stop().await;
    let gone = super::bench::at(address, None);
    let bench = Served::start(&Bench::default()).await;
    let servers = servers([("gone", gone), ("bench", bench.transport())]);

    assert!(servers.tools(&[name("bench")]).await.all().is_ok());
    let error = servers
        .tools(&[name("gone")])
        .await
        .all()
        .expect_err("an error");
    assert_eq!(error.code(), "tool_unreachable");
    assert!(!error.may_have_run());
}

#[tokio::test]
async fn a_server_that_was_started_again_is_used_again() {
    let bench = Bench::default();
    let served = Served::start(&bench).await;
    let servers = servers([("bench", served.transport())]);
    let echo = tool(&servers, "bench", "echo").await;

    // The server lost its sessions; the first call discovers it.
    let address = served.stop().await;
    let served = Served::start_at(address, &bench, true).await;
    let reply = call(&servers, &echo, json!({"text": "back"})).await;

    assert_eq!(text(&reply.expect("a reply")), "back");
    assert_eq!(bench.called.load(Ordering::Relaxed), 1);
    assert!(
        !servers
            .tools(&[name("bench")])
            .await
            .all()
            .expect("tools")
            .is_empty()
    );
    drop(served);
}

#[tokio::test]
async fn a_server_that_is_gone_is_found_once_it_is_back() {
    let bench = Bench::default();
    let served = Served::start(&bench).await;
    let servers = servers([("bench", served.transport())]);
    let echo = tool(&servers, "bench", "echo").await;

    let address = served.stop().await;
    let error = call(&servers, &echo, json!({"text": "?"})).await;
    let error = error.expect_err("an error");
    assert_eq!(error.code(), "tool_unreachable");
    assert!(!error.may_have_run());

    let _served = Served::start_at(address, &bench, true).await;
    let reply = call(&servers, &echo, json!({"text": "back"})).await;
    assert_eq!(text(&reply.expect("a reply")), "back");
}

#[tokio::test]
async fn a_call_that_was_lost_on_its_way_may_have_run() {
    let bench = Bench::default();
    let served = Served::start_plain(&bench).await;
    let servers = servers([("bench", served.transport())]);
    let never = tool(&servers, "bench", "never").await;

    let stop = async {
        until("the tool is called", || async {
            bench.called.load(Ordering::Relaxed) == 1
        })
        .await;
        served.stop().await
    };
    let (error, address) = tokio::join!(call(&servers, &never, nothing()), stop);

    let error = error.expect_err("an error");
    assert_eq!(error.code(), "tool_unreachable");
    assert!(error.may_have_run());
    assert_eq!(bench.called.load(Ordering::Relaxed), 1);

    let _served = Served::start_at(address, &bench, false).await;
    let echo = tool(&servers, "bench", "echo").await;
    let reply = call(&servers, &echo, json!({"text": "back"})).await;
    assert_eq!(text(&reply.expect("a reply")), "back");
}

#[tokio::test]
async fn a_server_without_the_handshake_is_asked_in_the_newer_way() {
    let bench = Bench::default();
    bench.is_newer.store(true, Ordering::Relaxed);
    let served = Served::start(&bench).await;
    let servers = servers([("bench", served.transport())]);
    let echo = tool(&servers, "bench", "echo").await;

    let reply = call(&servers, &echo, json!({"text": "hello"})).await;
    assert_eq!(text(&reply.expect("a reply")), "hello");

    bench.change(|tools| tools.retain(|tool| tool.name == "echo"));
    until("the change is heard of", || async {
        bench.say_that_tools_changed();
        tokio::time::sleep(Duration::from_millis(50)).await;
        servers
            .tools(&[name("bench")])
            .await
            .all()
            .expect("tools")
            .len()
            == 1
    })
    .await;
}

#[tokio::test]
async fn whoever_lost_a_connection_does_not_wait_for_the_next() {
    let bench = Bench::default();
    let served = Served::start_plain(&bench).await;
    let servers = servers([("bench", served.transport())]);
    let never = tool(&servers, "bench", "never").await;

    let lose = async {
        until("the tool is called", || async {
            bench.called.load(Ordering::Relaxed) == 1
        })
        .await;
        // Another task holds the lock while it connects, and never finishes.
        let next = servers.servers[&name("bench")].slot.lock().await;
        served.stop().await;
        next
    };
    let both = async { tokio::join!(call(&servers, &never, nothing()), lose) };
    let told = tokio::time::timeout(UNTIL_MAX, both).await;
    let (error, _next) = told.expect("it is told at once");

    let error = error.expect_err("an error");
    assert_eq!(error.code(), "tool_unreachable");
    assert!(error.may_have_run());
}
