use std::sync::atomic::AtomicBool;

use axum::routing::{get, post};
use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;

/// Far longer than anything here takes, so that only a hang ends so.
const HANG: Duration = Duration::from_secs(30);
/// Short enough to wait for.
const SHORT: Duration = Duration::from_secs(1);

struct Server {
    address: SocketAddr,
    open: Arc<AtomicUsize>,
    stop: CancellationToken,
    served: JoinHandle<()>,
}

impl Server {
    async fn start(app: Router, options: AcceptOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stop = CancellationToken::new();
        let open = Arc::clone(&options.connections_open);
        let served = tokio::spawn(serve(listener, app, options, stop.clone()));
        Self {
            address,
            open,
            stop,
            served,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("listening")
    }

    async fn get(&self, path: &str) -> io::Result<String> {
        let mut client = TcpStream::connect(self.address).await?;
        client
            .write_all(request(path, "connection: close\r\n").as_bytes())
            .await?;
        read_all(&mut client).await
    }

    /// Waits until so many connections are open.
    async fn settle(&self, count: usize) {
        let settled = async {
            while self.open.load(Ordering::Relaxed) != count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(HANG, settled).await.expect("settles");
    }
}

fn app() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/peer",
            get(|ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() }),
        )
        .route("/echo", post(|body: String| async { body }))
}

fn request(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n")
}

async fn read_all(client: &mut TcpStream) -> io::Result<String> {
    let mut text = String::new();
    tokio::time::timeout(HANG, client.read_to_string(&mut text))
        .await
        .expect("the server closes")?;
    Ok(text)
}

/// Reads until the text has come, on a connection that stays open.
async fn read_until(client: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while !bytes.ends_with(end.as_bytes()) {
            assert_ne!(
                client.read_buf(&mut bytes).await.expect("open"),
                0,
                "closed early"
            );
        }
    };
    tokio::time::timeout(HANG, read).await.expect("an answer");
    String::from_utf8(bytes).expect("text")
}

/// Waits until the server has closed the connection, whether kindly or not.
async fn is_cut(client: &mut TcpStream) {
    let mut rest = Vec::new();
    drop(
        tokio::time::timeout(HANG, client.read_to_end(&mut rest))
            .await
            .expect("the server closes"),
    );
}

#[tokio::test]
async fn requests_are_answered_and_know_their_peer() {
    let server = Server::start(app(), AcceptOptions::default()).await;
    let text = server.get("/").await.expect("answered");
    assert!(
        text.starts_with("HTTP/1.1 200 OK") && text.ends_with("hello"),
        "{text}"
    );

    let mut client = server.connect().await;
    let own = client.local_addr().expect("connected").to_string();
    client
        .write_all(request("/peer", "").as_bytes())
        .await
        .expect("open");
    let text = read_until(&mut client, &own).await;
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
}

#[tokio::test]
async fn slow_headers_are_cut_however_they_trickle() {
    let options = AcceptOptions {
        head_read_timeout: SHORT,
        ..AcceptOptions::default()
    };
    let server = Server::start(app(), options).await;
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.write_all(b"GET / HTTP/1.1\r\nhost: ")
        .await
        .expect("open");
    let mut trickling = server.connect().await;
    let trickle = async {
        // A byte well within each timeout; the head as a whole never ends.
        while trickling.write_all(b"x").await.is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    let started = Instant::now();
    tokio::time::timeout(HANG, trickle).await.expect("is cut");
    is_cut(&mut silent).await;
    is_cut(&mut half).await;
    assert!(started.elapsed() < HANG / 2);
    server.settle(0).await;
}

#[tokio::test]
async fn a_second_head_has_as_little_time_as_the_first() {
    let options = AcceptOptions {
        head_read_timeout: SHORT,
        ..AcceptOptions::default()
    };
    let server = Server::start(app(), options).await;
    let mut client = server.connect().await;
    client
        .write_all(request("/", "").as_bytes())
        .await
        .expect("open");
    read_until(&mut client, "hello").await;
    client.write_all(b"GET / HTTP/1.1\r\n").await.expect("open");
    let started = Instant::now();
    is_cut(&mut client).await;
    assert!(started.elapsed() < HANG / 2);
}

#[tokio::test]
async fn a_connection_may_be_idle_for_longer_than_a_head_may_take() {
    let options = AcceptOptions {
        head_read_timeout: SHORT,
        idle_timeout: SHORT * 5,
        ..AcceptOptions::default()
    };
    let server = Server::start(app(), options).await;
    let mut client = server.connect().await;
    for _ in 0..2 {
        client
            .write_all(request("/", "").as_bytes())
            .await
            .expect("open");
        read_until(&mut client, "hello").await;
        tokio::time::sleep(SHORT * 2).await;
    }
    let started = Instant::now();
    is_cut(&mut client).await;
    assert!(started.elapsed() < HANG / 2);
}

#[tokio::test]
async fn a_slow_request_is_not_mistaken_for_a_slow_head() {
    let slow = || async {
        tokio::time::sleep(SHORT * 3).await;
        "done"
    };
    let options = AcceptOptions {
        head_read_timeout: SHORT,
        idle_timeout: SHORT,
        write_stall_timeout: SHORT,
        ..AcceptOptions::default()
    };
    let app = app().route("/slow", get(slow));
    let server = Server::start(app, options).await;
    assert!(
        server
            .get("/slow")
            .await
            .expect("answered")
            .ends_with("done")
    );

    let mut client = server.connect().await;
    let head = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("open");
    for byte in b"body" {
        tokio::time::sleep(SHORT).await;
        client.write_all(&[*byte]).await.expect("open");
    }
    read_until(&mut client, "body").await;
}

#[tokio::test]
async fn a_new_connection_takes_the_place_of_the_one_that_is_idle_for_longest() {
    let options = AcceptOptions {
        connections_max: 4,
        ..AcceptOptions::default()
    };
    let server = Server::start(app(), options).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(server.connect().await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.settle(4).await;
    // A burst of several times as many.
    for _ in 0..40 {
        idle.push(server.connect().await);
    }
    for n in 0..20 {
        let answer = server.get("/").await.expect("answered");
        assert!(answer.ends_with("hello"), "call {n}");
    }
    is_cut(&mut idle[0]).await;
}

#[tokio::test]
async fn connections_over_the_limit_are_told_and_others_come_in_once_there_is_room() {
    let options = AcceptOptions {
        connections_max: 4,
        ..AcceptOptions::default()
    };
    let server = Server::start(app(), options).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        // A request that does not end: its body never comes.
        let mut busy = server.connect().await;
        let head = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n";
        busy.write_all(head.as_bytes()).await.expect("open");
        idle.push(busy);
    }
    server.settle(4).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..10 {
        let mut client = server.connect().await;
        let text = read_all(&mut client).await.expect("told");
        assert!(
            text.starts_with("HTTP/1.1 503 ") && text.contains("retry-after"),
            "{text}"
        );
    }
    drop(idle);
    server.settle(0).await;
    assert!(server.get("/").await.expect("answered").ends_with("hello"));
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let options = AcceptOptions {
        head_bytes_max: 2048,
        headers_max: 10,
        ..AcceptOptions::default()
    };
    let server = Server::start(app(), options).await;
    for headers in [
        format!("x: {}\r\n", "y".repeat(4096)),
        "x: y\r\n".repeat(20),
        format!("x: {}\r\n", "y".repeat(1_000_000)),
    ] {
        let mut client = server.connect().await;
        drop(client.write_all(request("/", &headers).as_bytes()).await);
        let mut answer = [0; 12];
        drop(client.read_exact(&mut answer).await);
        // A client that is still sending may see a reset in place of the answer.
        let is_refused = answer == *b"HTTP/1.1 431" || answer == [0; 12];
        assert!(is_refused, "{}", String::from_utf8_lossy(&answer));
        is_cut(&mut client).await;
    }
    let url = format!("/{}", "y".repeat(4096));
    assert!(!server.get(&url).await.unwrap_or_default().contains(" 200 "));
    assert!(server.get("/").await.expect("answered").ends_with("hello"));
}

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An endless stream, and whether the server has let go of it.
fn endless(pause: Duration) -> (Router, Arc<AtomicBool>) {
    let is_dropped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_dropped);
    let feed = move || {
        let guard = Dropped(Arc::clone(&flag));
        let events = stream::unfold(guard, move |guard| async move {
            tokio::time::sleep(pause).await;
            let event = bytes::Bytes::from(vec![b'x'; 16 * 1024]);
            Some((Ok::<_, Infallible>(event), guard))
        });
        std::future::ready(Body::from_stream(events))
    };
    (app().route("/feed", get(feed)), is_dropped)
}

#[tokio::test]
async fn a_reader_that_never_reads_is_cut() {
    let (app, is_dropped) = endless(Duration::ZERO);
    let options = AcceptOptions {
        write_stall_timeout: SHORT,
        ..AcceptOptions::default()
    };
    let server = Server::start(app, options).await;
    let mut client = server.connect().await;
    client
        .write_all(request("/feed", "").as_bytes())
        .await
        .expect("open");
    server.settle(1).await;
    // The client keeps its side open and reads nothing.
    server.settle(0).await;
    assert!(is_dropped.load(Ordering::Relaxed));
    drop(client);
}

#[tokio::test]
async fn a_reader_that_reads_slowly_is_kept() {
    let (app, is_dropped) = endless(Duration::from_millis(1));
    let options = AcceptOptions {
        write_stall_timeout: SHORT,
        idle_timeout: SHORT,
        head_read_timeout: SHORT,
        ..AcceptOptions::default()
    };
    let server = Server::start(app, options).await;
    let mut client = server.connect().await;
    client
        .write_all(request("/feed", "").as_bytes())
        .await
        .expect("open");
    let mut buffer = vec![0; 1024 * 1024];
    let started = Instant::now();
    while started.elapsed() < SHORT * 5 {
        assert_ne!(client.read(&mut buffer).await.expect("open"), 0);
    }
    assert!(!is_dropped.load(Ordering::Relaxed));
    drop(client);
    server.settle(0).await;
    assert!(is_dropped.load(Ordering::Relaxed));
}

/// A route that says when it is running and waits until it may go on.
fn gated() -> (Router, Arc<Notify>, Arc<Notify>) {
    let (running, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (said, awaited) = (Arc::clone(&running), Arc::clone(&go_on));
    let gate = move || async move {
        said.notify_one();
        awaited.notified().await;
        "finished"
    };
    (app().route("/gate", get(gate)), running, go_on)
}

#[tokio::test]
async fn a_stop_lets_running_requests_finish_and_refuses_new_ones() {
    let (app, running, go_on) = gated();
    let server = Server::start(app, AcceptOptions::default()).await;
    let mut busy = server.connect().await;
    busy.write_all(request("/gate", "").as_bytes())
        .await
        .expect("open");
    running.notified().await;
    let mut fresh = server.connect().await;
    let mut idle = server.connect().await;
    idle.write_all(request("/", "").as_bytes())
        .await
        .expect("open");
    read_until(&mut idle, "hello").await;
    server.settle(3).await;

    server.stop.cancel();
    is_cut(&mut idle).await;
    is_cut(&mut fresh).await;
    server.settle(1).await;
    assert!(server.get("/").await.is_err(), "nobody listens");
    assert!(!server.served.is_finished());

    go_on.notify_one();
    let text = read_all(&mut busy).await.expect("answered");
    assert!(
        text.contains("connection: close") && text.ends_with("finished"),
        "{text}"
    );
    tokio::time::timeout(HANG, server.served)
        .await
        .expect("ends")
        .expect("no panic");
    assert_eq!(server.open.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_stop_cuts_requests_that_do_not_finish_in_time() {
    let (app, running, _go_on) = gated();
    let options = AcceptOptions {
        grace: SHORT,
        ..AcceptOptions::default()
    };
    let server = Server::start(app, options).await;
    let mut busy = server.connect().await;
    busy.write_all(request("/gate", "").as_bytes())
        .await
        .expect("open");
    running.notified().await;
    server.stop.cancel();
    tokio::time::timeout(HANG, server.served)
        .await
        .expect("ends")
        .expect("no panic");
    assert_eq!(server.open.load(Ordering::Relaxed), 0);
    is_cut(&mut busy).await;
}

#[tokio::test]
async fn a_panic_in_a_request_costs_one_connection() {
    async fn panics() -> &'static str {
        panic!("on purpose")
    }
    let options = AcceptOptions {
        connections_max: 1,
        ..AcceptOptions::default()
    };
    let server = Server::start(app().route("/panic", get(panics)), options).await;
    for _ in 0..3 {
        assert_eq!(server.get("/panic").await.unwrap_or_default(), "");
        server.settle(0).await;
    }
    assert!(server.get("/").await.expect("answered").ends_with("hello"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_idle_connections_do_not_keep_others_waiting() {
    let server = Server::start(app(), AcceptOptions::default()).await;
    let mut idle = Vec::new();
    for _ in 0..2000 {
        idle.push(server.connect().await);
    }
    server.settle(2000).await;
    let started = Instant::now();
    assert!(server.get("/").await.expect("answered").ends_with("hello"));
    assert!(started.elapsed() < Duration::from_secs(30));
    drop(idle);
    server.settle(0).await;
}

#[test]
fn errors_of_accept_pause_only_if_they_concern_the_server_and_are_told_once_a_second() {
    let mut trouble = AcceptTrouble::default();
    let now = Instant::now();
    let later = |ms| now + Duration::from_millis(ms);
    let aborted = io::ErrorKind::ConnectionAborted.into();
    assert_eq!(trouble.note(&aborted, now), None);
    assert!(trouble.is_log_due(now));

    let no_files = io::Error::from_raw_os_error(24);
    assert_eq!(trouble.note(&no_files, now), Some(ACCEPT_PAUSE));
    for ms in [0, 50, 999] {
        assert!(!trouble.is_log_due(later(ms)), "{ms}");
        assert_eq!(trouble.note(&no_files, later(ms)), Some(ACCEPT_PAUSE));
    }
    assert!(trouble.is_log_due(later(1000)));
}
