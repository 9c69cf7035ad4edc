//! The client against servers that play a script.

use std::net::SocketAddr;

use hyper::Method;
use statehold_fakes::SseEvent;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{HttpClient, RunFile, SseReader};

fn event(id: &str, data: &str) -> SseEvent {
    SseEvent {
        id: id.to_owned(),
        has_id: true,
        event: "message".to_owned(),
        data: data.to_owned(),
    }
}

/// Answers connections with one script each and gives back what each was asked.
async fn scripted(
    scripts: Vec<Vec<&'static str>>,
) -> (SocketAddr, tokio::task::JoinHandle<Vec<Vec<String>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let served = tokio::spawn(async move {
        let mut asked = Vec::new();
        for script in scripts {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut requests = Vec::new();
            for answer in script {
                let mut request = String::new();
                let mut buffer = [0; 4096];
                while !request.contains("\r\n\r\n") {
                    let count = stream.read(&mut buffer).await.expect("a request");
                    assert!(count > 0, "the client hung up");
                    request.push_str(&String::from_utf8_lossy(&buffer[..count]));
                }
                stream.write_all(answer.as_bytes()).await.expect("sent");
                requests.push(request);
            }
            asked.push(requests);
        }
        asked
    });
    (address, served)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

#[test]
fn calls_share_a_connection_and_a_cut_answer_is_an_error() {
    block_on(async {
        let (address, served) = scripted(vec![vec![
            "HTTP/1.1 201 Created\r\netag: \"7\"\r\ncontent-length: 8\r\n\r\n{\"id\":1}",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"cut\":",
        ]])
        .await;
        let mut client = HttpClient::connect(address).await.expect("connected");
        let first = client
            .call(Method::POST, "/v1/x", &[("idempotency-key", "k1")], "{}")
            .await
            .expect("answered");
        assert_eq!((first.status, first.revision()), (201, Some(7)));
        assert_eq!(first.json().expect("JSON")["id"], 1);
        let second = client.get("/v1/y").await.expect("answered");
        assert!(!second.is_success());
        client.get("/v1/z").await.expect_err("cut off");
        let asked = served.await.expect("served").remove(0);
        assert!(
            asked[0].starts_with("POST /v1/x HTTP/1.1\r\n"),
            "{}",
            asked[0]
        );
        assert!(asked[0].contains("idempotency-key: k1\r\n"), "{}", asked[0]);
        assert!(
            asked[0].contains("content-type: application/json\r\n"),
            "{}",
            asked[0]
        );
        assert!(asked[2].starts_with("GET /v1/z "), "{}", asked[2]);
    });
}

#[test]
fn a_feed_goes_on_after_the_last_event_that_was_seen() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    block_on(async {
        let one = Box::leak(format!("{HEAD}id: 4\ndata: a\n\nid: 5\ndata: half").into_boxed_str());
        let two = Box::leak(format!("{HEAD}id: 5\ndata: whole\n\n").into_boxed_str());
        let refused = "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone";
        let (address, served) = scripted(vec![vec![one], vec![two], vec![refused]]).await;
        let mut feed = SseReader::connect(address, "/events", &[], Some("3"))
            .await
            .expect("a feed");
        assert_eq!(feed.last_event_id(), Some("3"));
        let first = feed.next().await.expect("read");
        assert_eq!(first, Some(event("4", "a")));
        assert_eq!(feed.next().await.expect("read"), None);
        let last = feed.last_event_id().map(str::to_owned);
        let mut feed = SseReader::connect(address, "/events", &[], last.as_deref())
            .await
            .expect("a feed");
        let second = feed.next().await.expect("read");
        assert_eq!(second, Some(event("5", "whole")));
        let error = SseReader::connect(address, "/events", &[], None)
            .await
            .expect_err("not a feed");
        assert!(error.to_string().contains("404: gone"), "{error}");
        let asked = served.await.expect("served");
        assert!(
            asked[0][0].contains("last-event-id: 3\r\n"),
            "{}",
            asked[0][0]
        );
        assert!(
            asked[1][0].contains("last-event-id: 4\r\n"),
            "{}",
            asked[1][0]
        );
        assert!(!asked[2][0].contains("last-event-id"), "{}", asked[2][0]);
    });
}

#[test]
fn a_run_file_says_where_a_server_listens() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(RunFile::read(directory.path()).is_none());
    let file = directory.path().join(RunFile::NAME);
    let address = || RunFile::read(directory.path()).and_then(|run| run.address());
    for (text, expected) in [
        (
            "{\"pid\":7,\"url\":\"http://127.0.0.1:80\",\"started_at\":\"x\"}",
            Some("127.0.0.1:80"),
        ),
        (
            "{\"pid\":7,\"url\":\"http://localhost:8/\",\"started_at\":1}",
            Some("127.0.0.1:8"),
        ),
        ("{\"pid\":7,\"url\":\"http://127.0", None),
    ] {
        std::fs::write(&file, text).expect("written");
        assert_eq!(
            address().map(|found| found.to_string()).as_deref(),
            expected
        );
    }
}
