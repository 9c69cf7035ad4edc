//! Bytes on the socket that no well-behaved client sends.

use std::net::SocketAddr;
use std::time::Duration;

use statehold_server::ServerOptions;
use statehold_server::accept::AcceptOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Range;
use crate::rig::{Rig, Setup, panics};

/// Whoever waits longer than this waits for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends bytes, and reads until the server closes.
async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(bytes).await.expect("the server listens");
    read_to_end(&mut stream).await
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    // A reset after the answer is as good as an end.
    drop(read.expect("the server answers or closes in time"));
    String::from_utf8_lossy(&answer).into_owned()
}

/// The head of a call that goes on for ever.
fn head(key: &str, rest: &str) -> String {
    format!("POST /v1/sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{rest}")
}

fn impatient() -> Setup {
    Setup {
        server: ServerOptions {
            body_timeout: Duration::from_secs(1),
            ..ServerOptions::default()
        },
        accept: AcceptOptions {
            head_read_timeout: Duration::from_secs(2),
            ..AcceptOptions::default()
        },
        ..Setup::default()
    }
}

#[tokio::test]
async fn a_body_of_100_mb_is_refused_by_its_length_alone() {
    let range = Range::on(Rig::in_memory().await).await;
    let before = range.digest().await;
    let key = range.ann.key.clone().expect("a key");
    let head = head(
        &key,
        "content-length: 104857600\r\nconnection: close\r\n\r\n",
    );
    let answer = raw(range.rig.address, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("body_too_large"), "{answer}");
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn a_body_without_a_length_is_cut_at_the_limit() {
    let range = Range::on(Rig::in_memory().await).await;
    let key = range.ann.key.clone().expect("a key");
    let head = head(
        &key,
        "transfer-encoding: chunked\r\nconnection: close\r\n\r\n",
    );
    let stream = TcpStream::connect(range.rig.address)
        .await
        .expect("a connection");
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        writer.write_all(head.as_bytes()).await.expect("the head");
        let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
        let mut sent = 0_usize;
        while sent < 100 << 20 && writer.write_all(chunk.as_bytes()).await.is_ok() {
            sent += 0x10000;
        }
        sent
    });
    let mut answer = vec![0; 64];
    let read = timeout(PATIENCE, reader.read(&mut answer)).await;
    if let Ok(Ok(count)) = read {
        let start = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(
            start.is_empty() || start.starts_with("HTTP/1.1 413"),
            "{start}"
        );
    }
    drop(reader);
    let sent = timeout(PATIENCE, sending).await;
    let sent = sent.expect("the server stops reading").expect("no panic");
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    range.ann.get("/v1/sessions").await.ok(200);
}

#[tokio::test]
async fn bodies_that_break_off_or_crawl_change_nothing() {
    let range = Range::on(Rig::with(impatient()).await).await;
    let (before, panicked) = (range.digest().await, panics());
    let key = range.ann.key.clone().expect("a key");
    let body = r#"{"app":"demo"}"#;
    for sent in 0..body.len() {
        let head = head(&key, &format!("content-length: {}\r\n\r\n", body.len()));
        let mut stream = TcpStream::connect(range.rig.address)
            .await
            .expect("a connection");
        let bytes = format!("{head}{}", &body[..sent]);
        stream
            .write_all(bytes.as_bytes())
            .await
            .expect("the server listens");
        stream.shutdown().await.expect("we say no more");
        let answer = read_to_end(&mut stream).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
    // One that says nothing more, but does not go away either.
    let head = head(&key, "content-length: 14\r\n\r\n{");
    let mut stream = TcpStream::connect(range.rig.address)
        .await
        .expect("a connection");
    stream
        .write_all(head.as_bytes())
        .await
        .expect("the server listens");
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn heads_that_crawl_are_cut() {
    let rig = Rig::with(impatient()).await;
    let mut crawling = Vec::new();
    for _ in 0..50 {
        let address = rig.address;
        crawling.push(tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("a connection");
            let begun = tokio::time::Instant::now();
            // A byte at a time, as long as the server takes it.
            for byte in "GET / HTTP/1.1\r\nx: "
                .bytes()
                .chain(std::iter::repeat(b'a'))
            {
                if stream.write_all(&[byte]).await.is_err() {
                    break;
                }
                let mut answer = [0; 16];
                let wait = timeout(Duration::from_millis(20), stream.read(&mut answer)).await;
                if wait.is_ok() {
                    break;
                }
            }
            begun.elapsed()
        }));
    }
    for one in crawling {
        let lasted = one.await.expect("no panic");
        assert!(lasted < PATIENCE, "{lasted:?}");
    }
    rig.nobody().get("/healthz").await.ok(200);
}

#[tokio::test]
async fn bytes_that_are_not_http_are_refused() {
    let range = Range::on(Rig::with(impatient()).await).await;
    let (before, panicked) = (range.digest().await, panics());
    let key = range.ann.key.clone().expect("a key");
    let big_head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let many = "x: y\r\n".repeat(200);
    let smuggle = head(
        &key,
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/keys HTTP/1.1\r\n\r\n",
    );
    let cases: Vec<Vec<u8>> = vec![
        b"\0\0\0\0".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET /\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /\xff HTTP/1.1\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\nconnection: close\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nbad header: x\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nx: a\rb\r\nconnection: close\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nx: a\0b\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\n x: folded\r\n\r\n".to_vec(),
        big_head.into_bytes(),
        format!("GET / HTTP/1.1\r\n{many}\r\n").into_bytes(),
        head(&key, "content-length: -1\r\n\r\n").into_bytes(),
        head(&key, "content-length: 99999999999999999999\r\n\r\n").into_bytes(),
        head(&key, "content-length: 5\r\ncontent-length: 6\r\n\r\n{}").into_bytes(),
        head(&key, "transfer-encoding: chunked\r\n\r\nZZZ\r\n").into_bytes(),
        head(
            &key,
            "transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        )
        .into_bytes(),
        smuggle.into_bytes(),
    ];
    for bytes in cases {
        let answer = raw(range.rig.address, &bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        assert!(!answer.contains(" 200 "), "{shown:?}: {answer}");
        assert!(!answer.contains(" 201 "), "{shown:?}: {answer}");
        assert!(!answer.contains(" 500 "), "{shown:?}: {answer}");
    }
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn odd_headers_are_refused_and_never_panic() {
    let range = Range::on(Rig::in_memory().await).await;
    let (before, panicked) = (range.digest().await, panics());
    let key = range.ann.key.clone().expect("a key");
    let good = format!("authorization: Bearer {key}\r\n").into_bytes();
    let with = |line: &[u8]| [&good[..], line, b"\r\n"].concat();
    let cases: Vec<(Vec<u8>, u16)> = vec![
        (b"authorization: aaaaaa\xc3\xa9\r\n".to_vec(), 401),
        (
            b"authorization: \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\r\n".to_vec(),
            401,
        ),
        (b"authorization: Bearer\xc3\xa9\r\n".to_vec(), 401),
        (
            b"authorization: \xff\xff\xff\xff\xff\xff\xff\xff\r\n".to_vec(),
            400,
        ),
        (b"authorization: Bearer \r\n".to_vec(), 401),
        (b"authorization: Bearer shk_\r\n".to_vec(), 401),
        (b"authorization:\r\n".to_vec(), 401),
        (b"api-key: shk_x\r\n".to_vec(), 401),
        (with(b"api-key: shk_other"), 400),
        (with(b"authorization: Bearer shk_other"), 400),
        (with(b"x-statehold-user: \xff"), 400),
        (with(b"x-statehold-user: "), 403),
        (with(b"if-match: \xff"), 400),
        (with(b"if-match: \"99999999999999999999\""), 400),
        (with(b"idempotency-key: \xc3\xa9"), 400),
        (with(b"idempotency-key: a\r\nidempotency-key: b"), 400),
    ];
    for (lines, status) in cases {
        let mut bytes = b"GET /v1/sessions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".to_vec();
        bytes.extend_from_slice(&lines);
        bytes.extend_from_slice(b"\r\n");
        let answer = raw(range.rig.address, &bytes).await;
        let shown = String::from_utf8_lossy(&lines).into_owned();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown:?}: {answer}"
        );
    }
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn calls_in_one_packet_are_answered_in_order() {
    let rig = Rig::in_memory().await;
    let three = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n\
                 GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(rig.address, three.as_bytes()).await;
    let statuses: Vec<&str> = answer
        .match_indices("HTTP/1.1 ")
        .map(|(at, _)| &answer[at + 9..at + 12])
        .collect();
    assert_eq!(statuses, ["200", "404", "200"]);
}
