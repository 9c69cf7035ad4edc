use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;
use serde_json::Value;
use statehold_core::digest::Digest;
use statehold_engine::{Engine, EngineOptions, MemoryKeys, PayloadKeys as _, SystemClock};
use statehold_store::memory::MemoryStore;
use tokio::sync::mpsc;

use super::*;
use crate::http::call::ServerOptions;
use crate::http::metrics::Metrics;
use crate::http::seal::Sealer;

const KIB: usize = 1024;

/// A server whose keys may have 1 MiB of bodies each.
async fn app() -> App {
    let (store, keys) = (MemoryStore::new(), MemoryKeys::default());
    let clock = Arc::new(SystemClock);
    let options = EngineOptions::default();
    let sealer = Sealer::new(keys.ring());
    let engine = Engine::start(Arc::new(store), Arc::new(keys), clock, options).await;
    let engine = engine.expect("an engine in memory");
    let options = ServerOptions {
        request_bytes_max: 4 * KIB * KIB,
        ..ServerOptions::default()
    };
    App::new(engine, sealer, options, Metrics::new(Arc::default()))
}

fn owner(app: &App, key: &str) -> BodyOwner {
    let tenant = "default".parse().expect("a name");
    let (local, api_key) = statehold_engine::api::caller::local(&app.engine, &tenant);
    let caller = Caller {
        key: Some(Digest::sha256(key.as_bytes())),
        ..local
    };
    BodyOwner {
        caller,
        api_key,
        slot: CallSlot::default(),
    }
}

/// A body that a client sends piece by piece, and how many pieces were asked for.
struct SentBody {
    pieces: mpsc::UnboundedSender<usize>,
    asked: Arc<AtomicUsize>,
}

impl SentBody {
    /// A body of `length` bytes, or of unknown length.
    fn new(length: Option<usize>) -> (Self, Body) {
        let (pieces, rest) = mpsc::unbounded_channel();
        let asked = Arc::new(AtomicUsize::new(0));
        let sent = Self {
            pieces,
            asked: Arc::clone(&asked),
        };
        let data = stream::unfold((rest, asked), |(mut rest, asked)| async move {
            asked.fetch_add(1, Ordering::Relaxed);
            let length: usize = rest.recv().await?;
            let piece = Ok::<_, std::io::Error>(Bytes::from(vec![b' '; length]));
            Some((piece, (rest, asked)))
        });
        let body = Body::from_stream(data);
        let body = match length {
            Some(length) => Body::new(WithLength { body, length }),
            None => body,
        };
        (sent, body)
    }

    fn send(&self, bytes: usize) {
        self.pieces.send(bytes).expect("it is read");
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// A body whose head tells its length.
struct WithLength {
    body: Body,
    length: usize,
}

impl hyper::body::Body for WithLength {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.length as u64)
    }
}

/// A call whose body is being read.
struct Reading {
    sent: SentBody,
    slot: CallSlot,
    read: tokio::task::JoinHandle<Result<Bytes, Problem>>,
}

fn begin(app: &App, key: &str, length: Option<usize>) -> Reading {
    let (sent, body) = SentBody::new(length);
    let (app, owner) = (app.clone(), owner(app, key));
    let slot = owner.slot.clone();
    let read = tokio::spawn(async move { owner.read(&app, body).await });
    Reading { sent, slot, read }
}

/// Lets every task go as far as it gets without time.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn half_sent_bodies_take_the_share_of_their_key_and_no_more() {
    let app = app().await;
    let begun = Instant::now();
    // Each counts 512 KiB of the 1 MiB of its key.
    let mine: Vec<_> = (0..6)
        .map(|_| begin(&app, "eve", Some(256 * KIB)))
        .collect();
    let asked = || -> Vec<usize> { mine.iter().map(|one| one.sent.asked()).collect() };
    settle().await;
    for one in &mine[..2] {
        one.sent.send(200 * KIB);
    }
    settle().await;
    assert_eq!(asked(), [2, 2, 0, 0, 0, 0], "the others are not read");

    // A small body, and a body of another key.
    let small = begin(&app, "eve", Some(64 * KIB));
    let other = begin(&app, "ann", Some(256 * KIB));
    small.sent.send(64 * KIB);
    other.sent.send(256 * KIB);
    drop((small.sent.pieces, other.sent.pieces));
    let read = |one: Result<Result<Bytes, Problem>, _>| one.expect("no panic").map(|b| b.len());
    assert_eq!(read(small.read.await).ok(), Some(64 * KIB));
    assert_eq!(read(other.read.await).ok(), Some(256 * KIB));

    // The memory of a body stays taken until its call has an answer.
    let mut mine = mine.into_iter();
    let first = mine.next().expect("the first");
    first.sent.send(56 * KIB);
    drop(first.sent.pieces);
    assert_eq!(read(first.read.await).ok(), Some(256 * KIB));
    settle().await;
    let second = mine.next().expect("the second");
    let third = mine.next().expect("the third");
    assert_eq!(third.sent.asked(), 0);
    first.slot.finish_answer(10);
    settle().await;
    assert_eq!(third.sent.asked(), 1);

    // While others wait, a client that sends nothing is refused.
    let refused = second.read.await.expect("no panic").expect_err("late");
    assert_eq!(refused.code, "body_timeout");
    assert!(begun.elapsed() < BODY_WAIT_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_too_long_for_the_memory_of_its_body_is_told_what_to_do() {
    let app = app().await;
    let first = begin(&app, "eve", Some(512 * KIB));
    first.sent.send(512 * KIB);
    drop(first.sent.pieces);
    first.read.await.expect("no panic").expect("a body");
    let second = begin(&app, "eve", Some(512 * KIB));
    let refused = second.read.await.expect("no panic").expect_err("too many");
    assert_eq!((refused.code, second.sent.asked()), ("too_many", 0));
    assert!(refused.detail.contains("of this key"), "{}", refused.detail);
    first.slot.release_body();
    let third = begin(&app, "eve", Some(512 * KIB));
    third.sent.send(512 * KIB);
    drop(third.sent.pieces);
    third.read.await.expect("no panic").expect("a body");
}

#[tokio::test(start_paused = true)]
async fn a_body_without_a_length_counts_from_64_kib_on_and_gives_back_the_rest() {
    let app = app().await;
    let first = begin(&app, "eve", None);
    let second = begin(&app, "eve", None);
    for one in [&first, &second] {
        one.sent.send(64 * KIB);
    }
    settle().await;
    assert_eq!((first.sent.asked(), second.sent.asked()), (2, 2));
    assert!(!first.slot.has_body() && !second.slot.has_body());
    for one in [&first, &second] {
        one.sent.send(KIB);
    }
    settle().await;
    assert_eq!(
        (first.slot.has_body(), second.slot.has_body()),
        (true, false),
        "it may become as long as any, which is all of the share"
    );
    drop(first.sent.pieces);
    let read = first.read.await.expect("no panic").expect("a body");
    assert_eq!(read.len(), 65 * KIB);
    settle().await;
    assert!(!second.slot.has_body(), "all of the share is not there yet");
    first.slot.release_body();
    settle().await;
    assert!(second.slot.has_body());
}

#[tokio::test]
async fn nothing_of_a_body_is_read_without_an_authenticated_caller() {
    let app = app().await;
    let (sent, body) = SentBody::new(Some(10));
    let request = Request::new(body);
    let read = Payload::<Value>::from_request(request, &app).await;
    let refused = read.err().expect("nobody owns it");
    assert_eq!((refused.code, sent.asked()), ("unauthenticated", 0));
}

/// A JSON list of so many numbers in an object.
fn list_of(values: usize) -> Bytes {
    format!(r#"{{"list":[{}0]}}"#, "0,".repeat(values - 3)).into()
}

async fn parse(app: &App, key: &str, body: Bytes) -> (CallSlot, Result<Value, Problem>) {
    let owner = owner(app, key);
    let parsed = owner.parse(app, body, JsonLimits::default()).await;
    (owner.slot, parsed)
}

#[tokio::test(start_paused = true)]
async fn the_values_of_a_body_take_memory_of_their_key_until_they_are_gone() {
    let app = app().await;
    // 256 bytes for each value, and a key may have 1 MiB of them: 4,096 values.
    let (first, parsed) = parse(&app, "eve", list_of(4_000)).await;
    parsed.expect("an object");
    let (_, refused) = parse(&app, "eve", list_of(1_000)).await;
    let refused = refused.expect_err("the share of the key is taken");
    assert_eq!(refused.code, "too_many");
    let (_, other) = parse(&app, "ann", list_of(4_000)).await;
    other.expect("another key has a share of its own");
    let (_, text) = parse(
        &app,
        "eve",
        format!(r#"{{"text":"{}"}}"#, "0,".repeat(4_000)).into(),
    )
    .await;
    text.expect("one text takes nothing");
    let (_, small) = parse(&app, "eve", list_of(SMALL_BODY_VALUES)).await;
    small.expect("a few values take nothing");

    first.finish_answer(10);
    let (second, parsed) = parse(&app, "eve", list_of(4_000)).await;
    parsed.expect("the first call has its answer");
    second.release_body();
    let (_third, parsed) = parse(&app, "eve", list_of(4_000)).await;
    parsed.expect("the second body is gone");
}

#[tokio::test]
async fn values_over_the_limit_are_refused_before_anything_is_parsed() {
    let app = app().await;
    let owner = owner(&app, "eve");
    let limits = JsonLimits {
        values_max: 10,
        ..JsonLimits::default()
    };
    let body = list_of(11);
    let parsed = owner.parse::<Unparsed>(&app, body, limits).await;
    let refused = parsed.err().expect("a value too many");
    assert_eq!((refused.code, refused.status), ("too_many_values", 413));
    assert_eq!(refused.more.get("max"), Some(&Value::from(10)));
}

/// Fails the test if it is parsed.
struct Unparsed;

impl<'de> serde::Deserialize<'de> for Unparsed {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("the body was parsed")
    }
}

/// The thread that parsed it.
struct Parser(std::thread::ThreadId);

impl<'de> serde::Deserialize<'de> for Parser {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(from)?;
        Ok(Self(std::thread::current().id()))
    }
}

#[tokio::test]
async fn a_long_body_is_parsed_beside_the_threads_that_serve_calls() {
    let app = app().await;
    let owner = owner(&app, "eve");
    for (bytes, is_apart) in [(SMALL_BODY_BYTES, false), (SMALL_BODY_BYTES + 1, true)] {
        let filled = bytes - r#"{"a":""}"#.len();
        let body = Bytes::from(format!(r#"{{"a":"{}"}}"#, "x".repeat(filled)));
        assert_eq!(body.len(), bytes);
        let parsed = owner.parse(&app, body, JsonLimits::default()).await;
        let Parser(thread) = parsed.expect("an object");
        assert_eq!(thread != std::thread::current().id(), is_apart, "{bytes}");
    }
}

#[tokio::test]
async fn a_body_without_a_single_byte_counts_as_an_empty_object() {
    #[derive(Debug, serde::Deserialize)]
    struct Nothing {}
    let app = app().await;
    let owner = owner(&app, "eve");
    for (body, is_read) in [("", true), ("{}", true), (" ", false), ("null", false)] {
        let parsed = owner.parse::<Nothing>(&app, body.into(), JsonLimits::default());
        assert_eq!(parsed.await.is_ok(), is_read, "{body:?}");
    }
}
