//! Hostile clients and good ones on one server. A hostile client makes huge unions, asks for feeds and pages and
//! never reads them, holds idle connections, lists its sessions in many loops, and makes sessions that live for a
//! second. A good client runs
//! ordinary turns, one after the other, and counts what becomes of them.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::http::{PlainAnswer, PlainClient};

/// How many hostile clients there are.
pub const HOSTILE: usize = 2;
/// How many good clients there are.
pub const GOOD: usize = 8;
/// The address space of the server, in KiB.
const ADDRESS_SPACE_KIB: u64 = 4 << 20;
/// The elements of one union, the most that there may be.
const UNION_ELEMENTS: usize = 100_000;
/// The length of the inputs that are never read.
const INPUT_BYTES: usize = 4_000_000;
const INPUTS: usize = 3;
/// The connections that one hostile client holds: without a call, and with one that it does not read.
const IDLE_CONNECTIONS: usize = 600;
const UNREAD_CALLS: usize = 24;
/// How many turns a session of a good client has: as many as one page of messages shows.
const TURNS_MAX: usize = 50;
/// How often a good client tries a call whose connection was cut.
const TRIES_MAX: usize = 20;
/// The sessions that a lister lists, the labels of each, and the bytes of one.
const LISTED_SESSIONS: usize = 100;
const LABELS: usize = 40;
const LABEL_BYTES: usize = 200;
/// How many loops of one client list them.
const LISTERS: usize = 32;
const PAUSE: Duration = Duration::from_millis(20);
/// Numbers the calls of good clients, for their idempotency keys.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Lets a command run with 4 GB of address space.
pub fn limited(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    let script = format!("ulimit -v {ADDRESS_SPACE_KIB} && exec \"$0\" \"$@\"");
    limited.arg("-c").arg(script);
    limited.arg(command.get_program()).args(command.get_args());
    limited
}

/// Makes a key, as the local developer.
///
/// # Errors
///
/// If the server refuses it.
pub fn make_key(address: SocketAddr, user: &str) -> Result<String> {
    let body = json!({"roles": ["client", "worker"], "user": user});
    let mut local = PlainClient::new(address, None);
    let made = local.call("POST", "/v1/keys", &[], &body.to_string())?;
    let made = made.done()?;
    Ok(made["key"].as_str().context("a key")?.to_owned())
}

/// How much each hostile client does.
#[derive(Debug, Clone, Copy)]
pub struct HostileQuota {
    /// Unions that it makes.
    pub unions: usize,
    /// Sessions that it makes, which live for a second.
    pub sessions: usize,
    /// Calls that it makes and does not read.
    pub unread: usize,
    /// Connections that it opens without a call.
    pub idle: usize,
    /// Pages of sessions that it lists.
    pub lists: usize,
}

impl HostileQuota {
    /// As much as it can.
    pub const ENDLESS: Self = Self {
        unions: usize::MAX,
        sessions: usize::MAX,
        unread: usize::MAX,
        idle: usize::MAX,
        lists: usize::MAX,
    };
}

/// What hostile clients have done together.
#[derive(Debug, Default)]
pub struct HostileCounts {
    /// Unions that were answered.
    pub unions: AtomicUsize,
    /// Sessions that live for a second.
    pub sessions: AtomicUsize,
    /// Calls that are not read.
    pub unread: AtomicUsize,
    /// Connections without a call.
    pub idle: AtomicUsize,
    /// Pages of sessions that were listed.
    pub lists: AtomicUsize,
}

impl HostileCounts {
    /// Whether so many clients have done all of their quota.
    pub fn is_done(&self, quota: &HostileQuota, clients: usize) -> bool {
        let is_done = |count: &AtomicUsize, quota: usize| {
            count.load(Ordering::SeqCst) >= clients.saturating_mul(quota)
        };
        is_done(&self.unions, quota.unions)
            && is_done(&self.sessions, quota.sessions)
            && is_done(&self.unread, quota.unread)
            && is_done(&self.idle, quota.idle)
            && is_done(&self.lists, quota.lists)
    }
}

/// Hostile clients at work. They stop when this is dropped, and keep their connections until then.
#[derive(Debug)]
pub struct HostileClients {
    is_over: Arc<AtomicBool>,
    counts: Arc<HostileCounts>,
    threads: Vec<JoinHandle<()>>,
}

impl HostileClients {
    /// Starts a client for each key.
    pub fn start(address: SocketAddr, keys: &[String], quota: HostileQuota) -> Self {
        let (is_over, counts) = (
            Arc::<AtomicBool>::default(),
            Arc::<HostileCounts>::default(),
        );
        let mut threads = Vec::new();
        for key in keys {
            for attack in [
                unions,
                brief_sessions,
                unread_calls,
                idle_connections,
                lists,
            ] {
                let client = HostileClient {
                    address,
                    key: key.clone(),
                    quota,
                    is_over: Arc::clone(&is_over),
                    counts: Arc::clone(&counts),
                };
                threads.push(std::thread::spawn(move || attack(&client)));
            }
        }
        Self {
            is_over,
            counts,
            threads,
        }
    }

    /// What they have done so far.
    pub fn counts(&self) -> &HostileCounts {
        &self.counts
    }
}

impl Drop for HostileClients {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // Its panic was reported when it happened.
            drop(thread.join());
        }
    }
}

struct HostileClient {
    address: SocketAddr,
    key: String,
    quota: HostileQuota,
    is_over: Arc<AtomicBool>,
    counts: Arc<HostileCounts>,
}

impl HostileClient {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn connection(&self) -> PlainClient {
        PlainClient::new(self.address, Some(&self.key))
    }

    /// A session of its own, as soon as the server makes one.
    fn own_session(&self) -> Option<String> {
        let mut connection = self.connection();
        let mut session = None;
        while session.is_none() && self.goes_on() {
            session = make_session(&mut connection, &json!({"app": "hostile"}));
        }
        session
    }

    /// Waits for the end.
    fn rest(&self) {
        while self.goes_on() {
            std::thread::park_timeout(PAUSE);
        }
    }
}

/// A call of which nothing is expected.
fn try_call(
    connection: &mut PlainClient,
    method: &str,
    path: &str,
    body: &Value,
) -> Option<PlainAnswer> {
    let answer = connection.call(method, path, &[], &body.to_string()).ok();
    if answer.is_none() {
        std::thread::park_timeout(PAUSE);
    }
    answer
}

fn make_session(connection: &mut PlainClient, body: &Value) -> Option<String> {
    let made = try_call(connection, "POST", "/v1/sessions", body)?;
    Some(made.json()["id"].as_str()?.to_owned())
}

fn unions(client: &HostileClient) {
    let Some(session) = client.own_session() else {
        return;
    };
    let path = format!("/v1/sessions/{session}/state");
    let list: Vec<usize> = (0..UNION_ELEMENTS).collect();
    let mut connection = client.connection();
    let mut made = 0;
    while made < client.quota.unions && client.goes_on() {
        let key = ["list", "user:list"][made % 2];
        let body = json!({"set": {key: list}, "merge": {key: "union"}});
        if try_call(&mut connection, "PATCH", &path, &body).is_some() {
            client.counts.unions.fetch_add(1, Ordering::SeqCst);
            made += 1;
        }
    }
}

fn brief_sessions(client: &HostileClient) {
    let body = json!({"app": "hostile", "ttl_seconds": 1});
    let mut connection = client.connection();
    let mut made = 0;
    while made < client.quota.sessions && client.goes_on() {
        if make_session(&mut connection, &body).is_some() {
            client.counts.sessions.fetch_add(1, Ordering::SeqCst);
            made += 1;
        }
    }
}

fn unread_calls(client: &HostileClient) {
    let Some(session) = client.own_session() else {
        return;
    };
    let long = "never read ".repeat(INPUT_BYTES / 11);
    let mut connection = client.connection();
    let body = json!({"agent": "helper", "input": long});
    for _ in 0..INPUTS {
        let path = format!("/v1/sessions/{session}/requests");
        try_call(&mut connection, "POST", &path, &body);
    }
    let paths = [
        format!("/v1/sessions/{session}/events?after=0"),
        format!("/v1/sessions/{session}/messages?limit=200"),
    ];
    let (address, key) = (client.address, &client.key);
    let mut open = Vec::new();
    let mut made = 0;
    while made < client.quota.unread && client.goes_on() {
        let path = &paths[made % paths.len()];
        if open.len() >= UNREAD_CALLS {
            // Those that the server cut are asked again.
            open.remove(0);
            std::thread::park_timeout(PAUSE * 5);
        }
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\r\n"
        );
        if let Ok(mut stream) = TcpStream::connect(address)
            && stream.write_all(head.as_bytes()).is_ok()
        {
            open.push(stream);
            client.counts.unread.fetch_add(1, Ordering::SeqCst);
            made += 1;
        }
    }
    client.rest();
}

fn idle_connections(client: &HostileClient) {
    let mut open = Vec::new();
    let mut made = 0;
    while made < client.quota.idle && client.goes_on() {
        if open.len() >= IDLE_CONNECTIONS {
            open.remove(0);
            std::thread::park_timeout(PAUSE);
        }
        if let Ok(stream) = TcpStream::connect(client.address) {
            open.push(stream);
            client.counts.idle.fetch_add(1, Ordering::SeqCst);
            made += 1;
        }
    }
    client.rest();
}

fn lists(client: &HostileClient) {
    let labels: Map<String, Value> = (0..LABELS)
        .map(|n| (format!("label-{n}"), Value::from("x".repeat(LABEL_BYTES))))
        .collect();
    let body = json!({"app": "hostile", "labels": labels});
    let mut connection = client.connection();
    let mut made = 0;
    while made < LISTED_SESSIONS && client.goes_on() {
        made += usize::from(make_session(&mut connection, &body).is_some());
    }
    let listed = AtomicUsize::new(0);
    let list = |order: &str| {
        let mut connection = client.connection();
        let path = format!("/v1/sessions?limit=200&order={order}");
        while client.goes_on() && listed.fetch_add(1, Ordering::SeqCst) < client.quota.lists {
            if try_call(&mut connection, "GET", &path, &Value::Null).is_some() {
                client.counts.lists.fetch_add(1, Ordering::SeqCst);
            } else {
                listed.fetch_sub(1, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        for n in 0..LISTERS {
            let order = ["created_at", "updated_at"][n % 2];
            scope.spawn(move || list(order));
        }
    });
}

/// A good client: its own session, and a connection that it opens again if it is cut.
#[derive(Debug)]
pub struct GoodClient {
    client: PlainClient,
    session: String,
    turns: usize,
    /// Answers that tell to try again: 429 and 503.
    pub delayed: usize,
    /// Connections that were cut between calls.
    pub cut: usize,
    /// How long each call took, from its first try.
    pub latencies: Vec<Duration>,
}

impl GoodClient {
    /// Begins a session.
    ///
    /// # Errors
    ///
    /// If the server refuses it.
    pub fn start(address: SocketAddr, key: &str) -> Result<Self> {
        let mut client = Self {
            client: PlainClient::new(address, Some(key)),
            session: String::new(),
            turns: 0,
            delayed: 0,
            cut: 0,
            latencies: Vec::new(),
        };
        client.restart()?;
        Ok(client)
    }

    /// Begins another session.
    fn restart(&mut self) -> Result<()> {
        let made = self.call("POST", "/v1/sessions", &json!({"app": "good"}))?;
        made["id"]
            .as_str()
            .context("an id")?
            .clone_into(&mut self.session);
        self.turns = 0;
        Ok(())
    }

    /// Runs one turn: a request is started under a lease, notes a step and is answered; then the answer is read.
    ///
    /// # Errors
    ///
    /// If a call fails, or the answer is not the one that was given.
    pub fn turn(&mut self) -> Result<()> {
        if self.turns == TURNS_MAX {
            self.restart()?;
        }
        self.turns += 1;
        let session = self.session.clone();
        let body = json!({
            "agent": "helper", "input": format!("question {}", self.turns),
            "lease": {"ttl_seconds": 600},
        });
        let path = format!("/v1/sessions/{session}/requests");
        let request = self.call("POST", &path, &body)?;
        let (id, fence) = (request["id"].as_str().context("an id")?, &request["fence"]);
        let note = json!({"kind": "note", "content": "thinking"});
        let body = json!({"fence": fence, "items": [note]});
        self.call("POST", &format!("/v1/requests/{id}/items"), &body)?;
        let answer = format!("answer {}", self.turns);
        let body = json!({"fence": fence, "output": {"content": answer}});
        self.call("POST", &format!("/v1/requests/{id}/complete"), &body)?;
        let path = format!("/v1/sessions/{session}/messages?limit=200");
        let read = self.call("GET", &path, &Value::Null)?;
        let messages = read["messages"].as_array().context("messages")?;
        ensure!(
            messages.len() == 2 * self.turns,
            "{} messages",
            messages.len()
        );
        ensure!(
            read.to_string().contains(&answer),
            "{answer} is not in {read}"
        );
        Ok(())
    }

    fn call(&mut self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let key = format!("call-{}", CALLS.fetch_add(1, Ordering::SeqCst));
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let began = Instant::now();
        for _ in 0..TRIES_MAX {
            let headers = [("idempotency-key", key.as_str())];
            let headers = if body.is_empty() { &[] } else { &headers[..] };
            match self.client.call(method, path, headers, &body) {
                Ok(answer) if matches!(answer.status, 429 | 503) => {
                    self.delayed += 1;
                    std::thread::park_timeout(PAUSE);
                }
                Ok(answer) => {
                    self.latencies.push(began.elapsed());
                    return answer.done().with_context(|| format!("{method} {path}"));
                }
                Err(_) => self.cut += 1,
            }
        }
        anyhow::bail!("{method} {path} was tried {TRIES_MAX} times")
    }
}
