//! A server on a port of its own, and callers that talk to it.

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use statehold_core::name::Name;
use statehold_engine::policy::Policies;
use statehold_engine::{
    Caller, Clock, Engine, EngineOptions, HoldKeys, IssuedKey, MemoryHoldKeys, MemoryKeys, NewKey,
    OffsetClock, PayloadKeys, SystemClock,
};
use statehold_fakes::{SseEvent, SseParser};
use statehold_server::accept::{AcceptOptions, serve};
use statehold_server::seal::Sealer;
use statehold_server::{Metrics, ServerOptions};
use statehold_store::hold_keys::HoldKeyFile;
use statehold_store::key_ring::KeyRing;
use statehold_store::keys::KeyFile;
use statehold_store::memory::MemoryStore;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_store::{Store, StoreError};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::document::require_declared;

/// Nothing that a test asks for takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

static PANICS: AtomicUsize = AtomicUsize::new(0);
static HOOK: Once = Once::new();

/// How often the code under test has panicked in this process. Failing tests do not count.
pub(crate) fn panics() -> usize {
    PANICS.load(Ordering::SeqCst)
}

fn count_panics() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_test = info
                .location()
                .is_some_and(|place| place.file().contains("tests/it"));
            if !is_test {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

/// What our crates have logged in this process, at every level.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

static LINES: LazyLock<Lines> = LazyLock::new(|| {
    let lines = Lines::default();
    let writer = lines.clone();
    let ours = "off,statehold_core=trace,statehold_store=trace,statehold_engine=trace,\
                statehold_server=trace";
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(ours))
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    lines
});

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The log of every server of this process so far.
pub(crate) fn log() -> String {
    let lines = LINES.0.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&lines).into_owned()
}

/// A server that runs.
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) connections: Arc<AtomicUsize>,
    /// The same API without a socket.
    pub(crate) router: axum::Router,
    data: Option<TempDir>,
    /// The store, where it is on disk.
    pub(crate) store: Option<Arc<SqliteStore>>,
    policies: Arc<Policies>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

/// How a rig differs from the usual.
#[derive(Clone, Default)]
pub(crate) struct Setup {
    pub(crate) server: ServerOptions,
    pub(crate) accept: AcceptOptions,
    pub(crate) policies: Arc<Policies>,
    /// How many open holds one user may have, if fewer than usual.
    pub(crate) user_holds_max: Option<usize>,
}

impl Setup {
    /// A clock that can be moved, so many seconds ahead at first.
    pub(crate) fn with_clock(offset_seconds: i64) -> Self {
        Self {
            server: ServerOptions {
                clock: Some(Arc::new(OffsetClock::new(offset_seconds))),
                ..ServerOptions::default()
            },
            ..Self::default()
        }
    }
}

impl Rig {
    /// On SQLite in a directory of its own; every call needs a key.
    pub(crate) async fn on_disk() -> Self {
        let data = tempfile::tempdir().expect("a directory for the test");
        Self::start(Some(data), Setup::default()).await
    }

    /// In memory; every call needs a key.
    pub(crate) async fn in_memory() -> Self {
        Self::start(None, Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        Self::start(None, setup).await
    }

    pub(crate) async fn on_disk_with(setup: Setup) -> Self {
        let data = tempfile::tempdir().expect("a directory for the test");
        Self::start(Some(data), setup).await
    }

    /// On data that another server has left.
    pub(crate) async fn start(data: Option<TempDir>, setup: Setup) -> Self {
        count_panics();
        LazyLock::force(&LINES);
        let (store, keys, on_disk) = open(data.as_ref().map(TempDir::path));
        let sealer = Sealer::new(keys.ring());
        let options = EngineOptions {
            tick: Duration::from_millis(20),
            user_holds_max: setup
                .user_holds_max
                .unwrap_or(EngineOptions::default().user_holds_max),
            policies: Arc::clone(&setup.policies),
            hold_keys: hold_keys(data.as_ref().map(TempDir::path)),
            ..EngineOptions::default()
        };
        let clock = match &setup.server.clock {
            Some(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            None => Arc::new(SystemClock),
        };
        let engine = Engine::start(store, keys, clock, options)
            .await
            .expect("the engine starts");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a bound socket has a place");
        let connections = Arc::clone(&setup.accept.connections_open);
        let router = statehold_server::router(
            engine.clone(),
            sealer,
            setup.server,
            Metrics::new(Arc::clone(&connections)),
        );
        let stop = CancellationToken::new();
        let served = serve(listener, router.clone(), setup.accept, stop.clone());
        let serving = tokio::spawn(served);
        Self {
            address,
            engine,
            connections,
            router,
            data,
            store: on_disk,
            policies: setup.policies,
            stop,
            serving,
        }
    }

    /// On SQLite, with a clock that can be moved.
    pub(crate) async fn with_clock() -> Self {
        Self::on_disk_with(Setup::with_clock(0)).await
    }

    /// Stops the server cleanly and starts another on the same data.
    pub(crate) async fn restart(self) -> Self {
        let setup = Setup {
            policies: Arc::clone(&self.policies),
            ..Setup::default()
        };
        self.restart_with(setup).await
    }

    /// Stops the server cleanly and starts one that differs on the same data.
    pub(crate) async fn restart_with(self, setup: Setup) -> Self {
        let data = self.stop().await;
        Self::start(data, setup).await
    }

    /// A backup of the data, taken while the server runs, with the key file beside it.
    pub(crate) async fn backup(&self) -> TempDir {
        let to = tempfile::tempdir().expect("a directory for the backup");
        let store = self.store.as_ref().expect("it is on disk");
        let made = store.backup(to.path().join("backup")).await;
        made.expect("the backup is made");
        copy_keys(self.data(), to.path());
        to
    }

    /// Stops the server and starts one on what a backup had.
    pub(crate) async fn restore(self, backup: &TempDir, data: TempDir) -> Self {
        drop(self.stop().await);
        restore_into(backup, &data);
        Self::start(Some(data), Setup::default()).await
    }

    /// Stops the server cleanly and leaves its data.
    pub(crate) async fn stop(mut self) -> Option<TempDir> {
        self.engine.begin_stop();
        self.stop.cancel();
        (&mut self.serving).await.expect("the server stops");
        self.engine.shut_down().await;
        self.data.take()
    }

    /// The data directory.
    pub(crate) fn data(&self) -> &Path {
        self.data.as_ref().expect("the rig is on disk").path()
    }

    /// A key of the default tenant.
    pub(crate) async fn key(&self, roles: &[&str]) -> Who {
        self.key_for(roles, None, &[]).await
    }

    /// A client key of a user.
    pub(crate) async fn client(&self, user: &str) -> Who {
        self.key_for(&["client"], Some(user), &[]).await
    }

    /// A worker key of agents.
    pub(crate) async fn worker(&self, agents: &[&str]) -> Who {
        self.key_for(&["worker"], None, agents).await
    }

    pub(crate) async fn key_for(&self, roles: &[&str], user: Option<&str>, agents: &[&str]) -> Who {
        self.key_of("default", roles, user, agents).await
    }

    /// A key of any tenant.
    pub(crate) async fn key_of(
        &self,
        tenant: &str,
        roles: &[&str],
        user: Option<&str>,
        agents: &[&str],
    ) -> Who {
        let issued = self.issue(tenant, roles, user, agents).await;
        Who {
            address: self.address,
            key: Some(issued.secret),
            id: issued.key.id.to_string(),
        }
    }

    async fn issue(
        &self,
        tenant: &str,
        roles: &[&str],
        user: Option<&str>,
        agents: &[&str],
    ) -> IssuedKey {
        let name = |text: &&str| text.parse::<Name>().expect("a fixed name is a name");
        let tenant = name(&tenant);
        let user = match user {
            Some(user) => Some(self.engine.user_id(&tenant, user).await.expect("a user")),
            None => None,
        };
        let new = NewKey {
            roles: roles.iter().map(name).collect(),
            agents: agents.iter().map(name).collect(),
            user,
            ..NewKey::default()
        };
        let admin = Caller::local(tenant);
        let made = self.engine.create_key(&admin, new).await;
        made.expect("a key can be made")
    }

    /// Whoever comes without a key.
    pub(crate) fn nobody(&self) -> Who {
        Who {
            address: self.address,
            key: None,
            id: String::new(),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.begin_stop();
        self.stop.cancel();
        self.serving.abort();
    }
}

/// A store and its keys; and the store once more, if it is on disk.
type Opened = (
    Arc<dyn Store>,
    Arc<dyn PayloadKeys>,
    Option<Arc<SqliteStore>>,
);

fn open(data: Option<&Path>) -> Opened {
    match data {
        None => (
            Arc::new(MemoryStore::new()),
            Arc::new(MemoryKeys::default()),
            None,
        ),
        Some(data) => {
            let keys = Arc::new(KeyFile::open(data).expect("keys can be kept"));
            let store = open_store_with(data, Arc::clone(&keys));
            let store = Arc::new(store.expect("the store opens"));
            let on_disk = Arc::clone(&store);
            (store, keys, Some(on_disk))
        }
    }
}

/// The store of a data directory whose server has stopped, with its keys.
/// A data directory of what a backup has, with its keys.
pub(crate) fn restored(backup: &TempDir) -> TempDir {
    let data = tempfile::tempdir().expect("a directory");
    restore_into(backup, &data);
    data
}

fn restore_into(backup: &TempDir, data: &TempDir) {
    let from = backup.path().join("backup");
    let restored = SqliteStore::restore(&from, data.path(), &mut |_, _| {});
    restored.expect("the backup is restored");
    copy_keys(backup.path(), data.path());
}

pub(crate) fn open_store(data: &Path) -> Result<SqliteStore, StoreError> {
    open_store_with(data, Arc::new(KeyFile::open(data)?))
}

fn open_store_with(data: &Path, keys: Arc<KeyFile>) -> Result<SqliteStore, StoreError> {
    let options = SqliteOptions {
        keys,
        ..SqliteOptions::default()
    };
    SqliteStore::open(data, options)
}

/// Copies the keys of a data directory, without which nothing in it can be read.
fn copy_keys(from: &Path, to: &Path) {
    for name in [KeyRing::NAME, KeyFile::NAME] {
        std::fs::copy(from.join(name), to.join(name)).expect("keys can be copied");
    }
}

fn hold_keys(data: Option<&Path>) -> Arc<dyn HoldKeys> {
    match data {
        None => Arc::new(MemoryHoldKeys::default()),
        Some(data) => Arc::new(HoldKeyFile::open(data).expect("keys can be kept")),
    }
}

/// A caller with its key.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) address: SocketAddr,
    pub(crate) key: Option<String>,
    /// The id of the key.
    pub(crate) id: String,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as JSON, if the status is the expected one.
    #[track_caller]
    pub(crate) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        if self.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&self.body).expect("answers are JSON")
    }

    /// A refusal with this status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> Value {
        let problem = self.ok(status);
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        for field in ["type", "title", "detail"] {
            let text = problem[field].as_str();
            assert!(text.is_some_and(|text| !text.is_empty()), "{problem}");
        }
        problem
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The revision in the `ETag`.
    #[track_caller]
    pub(crate) fn revision(&self) -> u64 {
        let etag = self.header("etag").expect("the answer has an ETag");
        let digits = etag.strip_prefix('"').and_then(|e| e.strip_suffix('"'));
        digits.and_then(|d| d.parse().ok()).expect("a revision")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Who {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], body.to_string()).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.send("PATCH", path, &[], body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], "").await
    }

    /// Sends a call on a connection of its own and waits for the whole answer.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let answer = self.try_send(method, path, headers, body.into()).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Answer, String> {
        let exchange = async {
            let response = self.begin(method, path, headers, body).await?;
            let answer = collect(response).await?;
            // An error without a body comes before a call is read: the bytes were no call.
            if answer.status < 400 || !answer.body.is_empty() {
                require_declared(method, path, answer.status);
            }
            Ok(answer)
        };
        timeout(PATIENCE, exchange)
            .await
            .unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }

    pub(crate) async fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>, String> {
        let mut sender = open_connection(self.address).await?;
        let request = self.request(method, path, headers, body)?;
        sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())
    }

    /// A connection that is kept open.
    pub(crate) async fn connect(&self) -> Connection {
        let sender = open_connection(self.address).await;
        Connection {
            who: self.clone(),
            sender: sender.expect("a connection"),
        }
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, String> {
        let method = Method::from_bytes(method.as_bytes()).map_err(|e| e.to_string())?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string());
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let says_type = headers.iter().any(|(name, _)| *name == "content-type");
        if !body.is_empty() && !says_type {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body)).map_err(|e| e.to_string())
    }

    /// Asks for a feed, and reads nothing of it.
    pub(crate) async fn begin_feed(&self, path: &str) -> http::Response<Incoming> {
        let response = self.begin("GET", path, &[], Bytes::new()).await;
        response.expect("an answer")
    }

    /// Opens a feed.
    pub(crate) async fn follow(&self, path: &str, last_event_id: Option<&str>) -> Feed {
        let headers: Vec<(&str, &str)> = last_event_id
            .map(|id| ("last-event-id", id))
            .into_iter()
            .collect();
        self.follow_with(path, &headers).await
    }

    /// Opens a feed with these headers.
    pub(crate) async fn follow_with(&self, path: &str, headers: &[(&str, &str)]) -> Feed {
        let response = self.begin("GET", path, headers, Bytes::new()).await;
        let response = response.expect("the feed begins");
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(
            response.headers()["content-type"],
            "text/event-stream",
            "{path}"
        );
        let headers = response.headers().clone();
        Feed {
            headers,
            body: response.into_body(),
            parser: SseParser::default(),
            raw: Vec::new(),
            ready: VecDeque::new(),
        }
    }
}

async fn open_connection(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|e| e.to_string())?;
    let shaken = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|e| e.to_string())?;
    // An error of the connection also reaches whoever waits for an answer on it.
    tokio::spawn(async move { connection.await.unwrap_or_default() });
    Ok(sender)
}

async fn collect(response: http::Response<Incoming>) -> Result<Answer, String> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string())?;
    Ok(Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.to_bytes(),
    })
}

/// One connection of a caller.
pub(crate) struct Connection {
    who: Who,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Answer {
        let request = self.who.request(method, path, &[], body.into());
        let request = request.expect("a request");
        let exchange = async {
            self.sender.ready().await.map_err(|e| e.to_string())?;
            let response = self.sender.send_request(request).await;
            collect(response.map_err(|e| e.to_string())?).await
        };
        let answer = timeout(PATIENCE, exchange)
            .await
            .expect("an answer in time");
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }
}

/// An open feed.
pub(crate) struct Feed {
    pub(crate) headers: HeaderMap,
    body: Incoming,
    parser: SseParser,
    /// Everything that came, byte for byte.
    pub(crate) raw: Vec<u8>,
    ready: VecDeque<FeedEvent>,
}

/// One event.
#[derive(Debug, Clone)]
pub(crate) struct FeedEvent {
    /// Its own id, empty if it has none.
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) data: Value,
}

impl Feed {
    /// The next event; None if the server has ended the feed.
    pub(crate) async fn next(&mut self) -> Option<FeedEvent> {
        self.next_within(PATIENCE)
            .await
            .expect("an event comes in time")
    }

    /// The same with a limit: an error says that nothing came.
    pub(crate) async fn next_within(&mut self, limit: Duration) -> Result<Option<FeedEvent>, ()> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let frame = tokio::time::timeout_at(deadline, self.body.frame()).await;
            let Some(Ok(frame)) = frame.map_err(drop)? else {
                return Ok(None);
            };
            if let Some(bytes) = frame.data_ref() {
                self.raw.extend_from_slice(bytes);
                let events = self.parser.push(bytes);
                self.ready.extend(events.into_iter().map(FeedEvent::from));
            }
        }
    }

    /// The next `count` events.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<FeedEvent> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await.expect("the feed goes on"));
        }
        events
    }
}

impl From<SseEvent> for FeedEvent {
    fn from(event: SseEvent) -> Self {
        Self {
            id: if event.has_id {
                event.id
            } else {
                String::new()
            },
            event: event.event,
            data: match event.data.as_str() {
                // An event that only says where to go on.
                "" => Value::Null,
                data => serde_json::from_str(data).expect("the data of an event is JSON"),
            },
        }
    }
}

/// Asks again and again until something is so. There is no other sleep in these tests.
pub(crate) async fn until<T, F, Fut>(what: &str, mut ask: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "never came to be: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The text of a JSON field.
#[track_caller]
pub(crate) fn text(value: &Value, field: &str) -> String {
    let text = value[field].as_str();
    text.unwrap_or_else(|| panic!("`{field}` is text in {value}"))
        .to_owned()
}
