//! The load generator: keep-alive connections, each with one chat call under way, on one thread. It
//! writes prepared bytes and looks at no more of an answer than it must to know that it is whole.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use statehold_testkit::http::{HttpClient, ServerProcess};
use statehold_testkit::workload::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::agent::{FIRST_WORD, contains};

/// How many bytes are asked.
pub(crate) const ASKED_BYTES: usize = 200;
/// How many turns a session has before the next is taken: the agent gets its exchanges back with each
/// call, so that longer sessions would measure the length of sessions.
pub(crate) const SESSION_TURNS: u64 = 10;
/// How many calls each connection makes before the clock starts.
const WARM_UP: u64 = 4;
/// Named to those who know no sessions, so that they get as many bytes.
const NO_SESSION: &str = "ses_00000000000000000000000000";

/// In which form an answer is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Streamed,
}

impl Form {
    pub(crate) const ALL: [Self; 2] = [Self::Whole, Self::Streamed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Streamed => "streamed",
        }
    }
}

/// What one run saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// Time of the server's process per turn.
    pub(crate) cpu_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// When half of the answers had begun.
    pub(crate) first_word_us: f64,
}

/// Sessions that nobody has spoken in.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    ids: Mutex<Vec<String>>,
    /// How many had to be made while the clock was running.
    pub(crate) made_late: AtomicU64,
}

impl Pool {
    fn take(&self) -> Option<String> {
        self.ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }

    /// Makes sessions until there are `count`.
    pub(crate) async fn fill(&self, address: SocketAddr, count: usize) -> Result<()> {
        let have = self
            .ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        let tasks: Vec<_> = (0..16)
            .map(|lane| {
                tokio::spawn(async move {
                    let mut client = HttpClient::connect(address).await?;
                    let mut ids = Vec::new();
                    for n in (have + lane..count).step_by(16) {
                        ids.push(create(&mut client, n).await?);
                    }
                    Ok::<_, anyhow::Error>(ids)
                })
            })
            .collect();
        for task in tasks {
            let made = task.await??;
            self.ids
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(made);
        }
        Ok(())
    }
}

/// Makes a session and gives its id.
pub(crate) async fn create(client: &mut HttpClient, n: usize) -> Result<String> {
    let body = json!({ "app": "bench", "user": format!("user-{}", n % 100) });
    let body = client.post("/v1/sessions", &body).await?.json()?;
    let id = body["id"].as_str().map(str::to_owned);
    id.with_context(|| format!("a session was answered with {body}"))
}

/// One connection that sends prepared bytes.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// When the first word of an answer was there, and when all of it was, since the call was sent.
pub(crate) struct Heard {
    pub(crate) first_word: u32,
    pub(crate) all: u32,
}

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(16_384),
        })
    }

    /// Sends a call and reads its answer.
    pub(crate) async fn call(&mut self, request: &[u8], form: Form) -> Result<Heard> {
        let began = Instant::now();
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let mut first_word = None;
        let mut head = None;
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await?;
            ensure!(read > 0, "the connection was closed");
            if head.is_none() {
                head = self.head()?;
            }
            let Some((start, length)) = head else {
                continue;
            };
            if first_word.is_none() && contains(&self.buffer[start..], FIRST_WORD.as_bytes()) {
                first_word = Some(micros(began));
            }
            let body = &self.buffer[start..];
            let is_whole = match length {
                Some(length) => body.len() >= length,
                None => body.ends_with(b"\r\n0\r\n\r\n"),
            };
            if is_whole {
                break;
            }
        }
        let all = micros(began);
        let text = || String::from_utf8_lossy(&self.buffer).into_owned();
        let first_word = first_word.with_context(|| format!("this is no answer: {}", text()))?;
        // Events of a stream end with a blank line, and the last says so.
        let tail = self.buffer.len().saturating_sub(64);
        let is_done = contains(&self.buffer[tail..], b"[DONE]");
        ensure!(is_done == (form == Form::Streamed), "cut off: {}", text());
        Ok(Heard { first_word, all })
    }

    /// The session of the last answer.
    pub(crate) fn session(&self) -> Result<String> {
        let name = b"x-statehold-session: ";
        let mut lines = self.buffer.split(|byte| *byte == b'\n');
        let line = lines.find_map(|line| line.strip_prefix(name));
        let line = line.context("an answer without a session")?;
        Ok(String::from_utf8_lossy(line).trim().to_owned())
    }

    /// Where the body begins and how long it is, once the head is there. Without a length it comes in
    /// chunks.
    fn head(&self) -> Result<Option<(usize, Option<usize>)>> {
        let end = self
            .buffer
            .windows(4)
            .position(|window| window == b"\r\n\r\n");
        let Some(end) = end else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&self.buffer[..end])?;
        if !text.starts_with("HTTP/1.1 200") {
            bail!("answered {}", String::from_utf8_lossy(&self.buffer));
        }
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().ok())?
        });
        Ok(Some((end + 4, length)))
    }
}

/// The bytes of a call.
fn call_bytes(address: SocketAddr, session: &str, asked: &str, form: Form) -> Vec<u8> {
    let body = json!({
        "model": "coordinator", "stream": form == Form::Streamed,
        "messages": [{ "role": "user", "content": asked }],
    })
    .to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         x-statehold-session: {session}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Who is called, and how.
#[derive(Clone)]
pub(crate) struct Lanes {
    pub(crate) address: SocketAddr,
    /// Where sessions come from, if there are any.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) connections: u64,
    pub(crate) form: Form,
}

/// Makes chat calls over all connections for `duration`.
pub(crate) fn measure(server: &ServerProcess, lanes: &Lanes, duration: Duration) -> Result<Rate> {
    let done = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let (count, over) = (Arc::clone(&done), Arc::clone(&is_over));
    let (lanes, connections) = (lanes.clone(), lanes.connections);
    let generator =
        std::thread::spawn(move || runtime()?.block_on(generate(&lanes, &count, &over)));
    while done.load(Ordering::Relaxed) < connections * WARM_UP && !generator.is_finished() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let (began, before, cpu) = (Instant::now(), done.load(Ordering::Relaxed), server.cpu()?);
    while began.elapsed() < duration && !generator.is_finished() {
        std::thread::park_timeout(duration.saturating_sub(began.elapsed()));
    }
    let finished = done.load(Ordering::Relaxed) - before;
    let (elapsed, cpu) = (began.elapsed(), server.cpu()?.saturating_sub(cpu));
    is_over.store(true, Ordering::Relaxed);
    let (mut times, mut first_words) = generator
        .join()
        .map_err(|_| anyhow::anyhow!("the load generator panicked"))??;
    times.sort_unstable();
    first_words.sort_unstable();
    let finished = finished.max(1) as f64;
    Ok(Rate {
        per_second: finished / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / finished,
        p50_us: percentile(&times, 50),
        p99_us: percentile(&times, 99),
        first_word_us: percentile(&first_words, 50),
    })
}

/// Makes calls until it is over, and gives the times that each took in microseconds.
async fn generate(
    lanes: &Lanes,
    done: &Arc<AtomicU64>,
    is_over: &Arc<AtomicBool>,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let tasks: Vec<_> = (0..lanes.connections)
        .map(|n| {
            let (lanes, done, is_over) = (lanes.clone(), done.clone(), is_over.clone());
            tokio::spawn(async move {
                let mut wire = Wire::connect(lanes.address).await?;
                // The same seed in every run: everybody is asked the same.
                let mut random = Random::new(n);
                let (mut times, mut first_words) = (Vec::new(), Vec::new());
                let mut session = NO_SESSION.to_owned();
                let mut turns = 0;
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(pool) = lanes.pool.as_ref().filter(|_| turns % SESSION_TURNS == 0) {
                        session = if let Some(session) = pool.take() {
                            session
                        } else {
                            pool.made_late.fetch_add(1, Ordering::Relaxed);
                            create(&mut HttpClient::connect(lanes.address).await?, 0).await?
                        };
                    }
                    turns += 1;
                    let asked = random.text(ASKED_BYTES);
                    let call = call_bytes(lanes.address, &session, &asked, lanes.form);
                    let heard = wire.call(&call, lanes.form).await?;
                    times.push(heard.all);
                    first_words.push(heard.first_word);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, anyhow::Error>((times, first_words))
            })
        })
        .collect();
    let (mut times, mut first_words) = (Vec::new(), Vec::new());
    for task in tasks {
        let (all, first) = task.await??;
        times.extend(all);
        first_words.extend(first);
    }
    Ok((times, first_words))
}

/// What a turn writes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Written {
    /// How many records it is.
    pub(crate) records: f64,
    /// How often it waits for the disk: records that are in line together wait once.
    pub(crate) commits: f64,
}

/// What one turn of a session writes: its records say so.
pub(crate) async fn written_per_turn(address: SocketAddr) -> Result<Written> {
    let mut client = HttpClient::connect(address).await?;
    let session = create(&mut client, 0).await?;
    let path = format!("/v1/sessions/{session}");
    let revision = client.get(&path).await?.revision();
    let first = revision.context("a session without a revision")?;
    let mut wire = Wire::connect(address).await?;
    let mut random = Random::new(1);
    for _ in 0..SESSION_TURNS {
        let asked = random.text(ASKED_BYTES);
        let call = call_bytes(address, &session, &asked, Form::Whole);
        wire.call(&call, Form::Whole).await?;
    }
    let path = format!("{path}/records?after={first}&limit=500");
    let read = client.get(&path).await?.json()?;
    let records = read["records"].as_array().context("no records")?;
    let commands = records.iter().map(|record| record["command"].as_str());
    let commands: Vec<&str> = commands.map(Option::unwrap_or_default).collect();
    // A claim right behind its start, the route behind the claim, a request behind the route that leads to
    // it, and the end of the turn behind the end of its agent.
    let together = commands.windows(2).filter(|two| {
        let pairs = [
            ["start_request", "claim_request"],
            ["claim_request", "append_items"],
            ["append_items", "start_request"],
            ["complete_request", "complete_request"],
        ];
        pairs.iter().any(|pair| pair == two)
    });
    let (records, together) = (commands.len() as f64, together.count() as f64);
    Ok(Written {
        records: records / SESSION_TURNS as f64,
        commits: (records - together) / SESSION_TURNS as f64,
    })
}

pub(crate) fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
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
