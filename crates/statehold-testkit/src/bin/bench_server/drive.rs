//! The load generator: keep-alive connections, each with one call under way, on one thread. It writes
//! prepared bytes and reads no more of an answer than its status and length.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use statehold_testkit::http::{HttpClient, ServerProcess};
use statehold_testkit::workload::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Different turns, together far more than a compressor remembers.
const TURNS: usize = 2_048;

/// What one run saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// Time of the server's process per turn.
    pub(crate) cpu_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Bodies of turns as the peers' benchmark has them: question 200 B, tool call 300 B, result 2 KB,
/// answer 400 B, three state keys; about 3.3 KB that do not compress.
pub(crate) fn turns() -> Arc<Vec<String>> {
    let mut random = Random::new(7);
    let turns = (0..TURNS).map(|n| {
        json!({
            "input": random.text(200),
            "lease": { "ttl_seconds": 30 },
            "items": [
                { "kind": "tool_call", "name": "search", "call_id": "c1", "idempotent": true,
                  "arguments": { "query": random.text(286) } },
                { "kind": "tool_result", "call_id": "c1", "result": random.text(2_048) },
            ],
            "state": { "set": { "step": n, "topic": random.text(24), "score": random.below(998) } },
            "output": random.text(400),
        })
        .to_string()
    });
    Arc::new(turns.collect())
}

/// One connection that sends prepared bytes.
struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(16_384),
        })
    }

    /// Sends a call and reads its answer. Returns the bytes of the body.
    async fn call(&mut self, request: &[u8]) -> Result<usize> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let head = loop {
            ensure!(
                self.stream.read_buf(&mut self.buffer).await? > 0,
                "the connection was closed"
            );
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = std::str::from_utf8(&self.buffer[..head])?;
        if !text.starts_with("HTTP/1.1 2") {
            let answer = String::from_utf8_lossy(&self.buffer);
            bail!("answered {answer}");
        }
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().ok())?
        });
        let length = length.with_context(|| format!("no length in {text}"))?;
        while self.buffer.len() < head + length {
            ensure!(
                self.stream.read_buf(&mut self.buffer).await? > 0,
                "the connection was closed"
            );
        }
        Ok(length)
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn post(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Makes a session and gives its id.
pub(crate) async fn create(client: &mut HttpClient, n: u64) -> Result<String> {
    let body = json!({ "app": "bench", "user": format!("user-{n}") });
    let answer = client.post("/v1/sessions", &body).await?;
    let body = answer.json()?;
    let id = body["id"].as_str();
    Ok(id
        .with_context(|| format!("a session was answered with {body}"))?
        .to_owned())
}

/// Makes `count` sessions over `connections` connections.
pub(crate) async fn create_many(
    address: SocketAddr,
    count: u64,
    connections: u64,
) -> Result<Vec<String>> {
    let tasks: Vec<_> = (0..connections)
        .map(|first| {
            tokio::spawn(async move {
                let mut client = HttpClient::connect(address).await?;
                let mut ids = Vec::new();
                for n in (first..count).step_by(usize::try_from(connections)?) {
                    ids.push(create(&mut client, n).await?);
                }
                Ok::<_, anyhow::Error>(ids)
            })
        })
        .collect();
    let mut ids = Vec::new();
    for task in tasks {
        ids.extend(task.await??);
    }
    Ok(ids)
}

/// Sends turns over `connections` connections, each on its own session, for `duration`.
pub(crate) fn measure(
    server: &ServerProcess,
    connections: u64,
    duration: Duration,
    turns: &Arc<Vec<String>>,
) -> Result<Rate> {
    let address = server.address();
    let turns = Arc::clone(turns);
    let done = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let (count, over) = (Arc::clone(&done), Arc::clone(&is_over));
    let generator = std::thread::spawn(move || {
        runtime()?.block_on(generate(address, connections, &turns, &count, &over))
    });
    // Sessions are made and caches filled before the clock starts.
    while done.load(Ordering::Relaxed) < connections * 8 && !generator.is_finished() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let (began, before, cpu) = (Instant::now(), done.load(Ordering::Relaxed), server.cpu()?);
    while began.elapsed() < duration && !generator.is_finished() {
        std::thread::park_timeout(duration.saturating_sub(began.elapsed()));
    }
    let finished = done.load(Ordering::Relaxed) - before;
    let (elapsed, cpu) = (began.elapsed(), server.cpu()?.saturating_sub(cpu));
    is_over.store(true, Ordering::Relaxed);
    let mut times = generator
        .join()
        .map_err(|_| anyhow::anyhow!("the load generator panicked"))??;
    times.sort_unstable();
    let finished = finished.max(1) as f64;
    Ok(Rate {
        per_second: finished / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / finished,
        p50_us: percentile(&times, 50),
        p99_us: percentile(&times, 99),
    })
}

/// Sends turns until it is over, and gives the time that each took in microseconds.
async fn generate(
    address: SocketAddr,
    connections: u64,
    turns: &Arc<Vec<String>>,
    done: &Arc<AtomicU64>,
    is_over: &Arc<AtomicBool>,
) -> Result<Vec<u32>> {
    let sessions = create_many(address, connections, connections.min(16)).await?;
    let tasks: Vec<_> = sessions
        .into_iter()
        .enumerate()
        .map(|(n, session)| {
            let (turns, done, is_over) = (turns.clone(), done.clone(), is_over.clone());
            tokio::spawn(async move {
                let path = format!("/v1/sessions/{session}/requests");
                let mut wire = Wire::connect(address).await?;
                let mut times = Vec::new();
                let mut at = n * 37;
                while !is_over.load(Ordering::Relaxed) {
                    let request = post(address, &path, &turns[at % turns.len()]);
                    at += 1;
                    let began = Instant::now();
                    wire.call(&request).await?;
                    times.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, anyhow::Error>(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    Ok(times)
}

/// Fills `sessions` sessions with `count` turns each, side by side, and gives the id of the first.
pub(crate) async fn fill(
    address: SocketAddr,
    sessions: u64,
    count: usize,
    turns: &Arc<Vec<String>>,
) -> Result<String> {
    let ids = create_many(address, sessions, 1).await?;
    let tasks: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(n, id)| {
            let (turns, path) = (turns.clone(), format!("/v1/sessions/{id}/requests"));
            tokio::spawn(async move {
                let mut wire = Wire::connect(address).await?;
                for at in 0..count {
                    let body = &turns[(n * 101 + at) % turns.len()];
                    wire.call(&post(address, &path, body)).await?;
                }
                Ok::<_, anyhow::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    ids.into_iter().next().context("no sessions")
}

/// How a worker of the agent reads the same items: the path of its task, and its key as a header.
pub(crate) async fn as_worker(address: SocketAddr, session: &str) -> Result<(String, String)> {
    let mut client = HttpClient::connect(address).await?;
    let key = client
        .post("/v1/keys", &serde_json::json!({ "roles": ["worker"] }))
        .await?
        .json()?;
    let key = key["key"].as_str().context("a key without its secret")?;
    let tree = format!("/v1/sessions/{session}/tree");
    let tree = client.get(&tree).await?.json()?;
    let task = tree["tasks"][0]["id"].as_str().context("no task")?;
    Ok((
        format!("/v1/tasks/{task}"),
        format!("authorization: Bearer {key}\r\n"),
    ))
}

/// Reads `path` again and again over one connection: the median time in microseconds, and the bytes.
pub(crate) async fn read(
    address: SocketAddr,
    path: &str,
    header: &str,
    duration: Duration,
) -> Result<(f64, usize)> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{header}\r\n");
    let request = request.into_bytes();
    let mut wire = Wire::connect(address).await?;
    let mut bytes = 0;
    for _ in 0..20 {
        bytes = wire.call(&request).await?;
    }
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < duration {
        let one = Instant::now();
        wire.call(&request).await?;
        times.push(u32::try_from(one.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    times.sort_unstable();
    Ok((percentile(&times, 50), bytes))
}

pub(crate) fn percentile(sorted: &[u32], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().map_or(0.0, f64::from)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
