//! Committed turns per second through the embedded store, as a ratio to the raw limit of the engine
//! measured in the same run: `bench_store [--quick] [--json FILE]`.
//!
//! The raw limit is the least a durable turn can cost on this engine: one thread with group commit,
//! WAL, `synchronous = FULL`, one row of the turn's bytes appended to a table and one small row per
//! session updated. No decisions, no hashes, no projections.
//!
//! The store is measured as servers open it, with everything encrypted, and without encryption. A last line compares
//! sealing and opening of 20 KB with writing and reading them as plain JSON, which is what a client does that carries
//! its state itself.

#![expect(
    clippy::cast_precision_loss,
    reason = "counts far below 2^52, printed as rates"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::Connection;
use statehold_core::time::Timestamp;
use statehold_model::fixtures;
use statehold_store::keys::{KeyFile, KeyOwner, PayloadKeys, UserKey};
use statehold_store::seal::{self, SealKey, SealKeyId, SealKeys};
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_testkit::workload::{Client, ClientKeys, Random, session_id};
use tokio::sync::oneshot;

const CONCURRENCY: [u64; 3] = [1, 64, 256];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let (rounds, seconds) = if is_quick { (1, 1) } else { (3, 4) };
    let duration = Duration::from_secs(seconds);
    println!(
        "{rounds} interleaved rounds of {seconds} s; turns of 3 KB, durable before the answer"
    );
    println!(
        "{:>8}  {:>12}  {:>12}  {:>6}  {:>14}  {:>12}  {:>16}",
        "sessions", "raw/s", "statehold/s", "ratio", "CPU µs/turn", "unsealed/s", "sealed/unsealed"
    );
    let mut lines = Vec::new();
    for sessions in CONCURRENCY {
        let mut raw = Vec::new();
        let (mut ours, mut unsealed) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            raw.push(measure(sessions, duration, run_raw)?);
            ours.push(measure(sessions, duration, run_sealed)?);
            unsealed.push(measure(sessions, duration, run_unsealed)?);
        }
        let (raw, ours, unsealed) = (median(raw), median(ours), median(unsealed));
        let ratio = ours.per_second / raw.per_second;
        let sealed_ratio = ours.per_second / unsealed.per_second;
        println!(
            "{sessions:>8}  {:>12.0}  {:>12.0}  {ratio:>6.2}  {:>14.0}  {:>12.0}  {sealed_ratio:>16.2}",
            raw.per_second, ours.per_second, ours.cpu_us, unsealed.per_second
        );
        lines.push(serde_json::json!({
            "sessions": sessions,
            "raw_turns_per_second": raw.per_second.round(),
            "turns_per_second": ours.per_second.round(),
            "ratio": (ratio * 1000.0).round() / 1000.0,
            "cpu_us_per_turn": ours.cpu_us.round(),
            "raw_cpu_us_per_turn": raw.cpu_us.round(),
            "unsealed_turns_per_second": unsealed.per_second.round(),
            "sealed_to_unsealed": (sealed_ratio * 1000.0).round() / 1000.0,
            "unsealed_cpu_us_per_turn": unsealed.cpu_us.round(),
        }));
    }
    let (sealing_us, plain_us) = seal_and_open();
    println!(
        "20 KB sealed and opened: {sealing_us:.1} µs; written and read as JSON: {plain_us:.1} µs"
    );
    let sealing = serde_json::json!({ "seal_and_open_us": sealing_us, "json_us": plain_us });
    let json = serde_json::json!({
        "bench": "store", "rounds": rounds, "results": lines, "sealing_20_kb": sealing
    });
    if let Some(at) = args.iter().position(|arg| arg == "--json")
        && let Some(file) = args.get(at + 1)
    {
        std::fs::write(file, format!("{json:#}\n"))?;
    } else {
        println!("{json}");
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    per_second: f64,
    cpu_us: f64,
}

fn median(mut rates: Vec<Rate>) -> Rate {
    rates.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    rates[rates.len() / 2]
}

type Run = fn(&Path, u64, &Arc<Progress>) -> Result<()>;

/// How far a run is, and whether it should go on.
#[derive(Debug, Default)]
struct Progress {
    turns: AtomicU64,
    is_over: AtomicBool,
}

fn measure(sessions: u64, duration: Duration, run: Run) -> Result<Rate> {
    let directory = tempfile::tempdir()?;
    let progress = Arc::new(Progress::default());
    let path = directory.path().to_owned();
    let watched = Arc::clone(&progress);
    let runner = std::thread::spawn(move || run(&path, sessions, &watched));
    // Sessions are created and caches filled before the clock starts.
    while progress.turns.load(Ordering::Relaxed) < sessions * 4 && !runner.is_finished() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let (began, turns, cpu) = (
        Instant::now(),
        progress.turns.load(Ordering::Relaxed),
        cpu_seconds(),
    );
    std::thread::park_timeout(duration);
    while began.elapsed() < duration {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let done = (progress.turns.load(Ordering::Relaxed) - turns) as f64;
    let (elapsed, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    progress.is_over.store(true, Ordering::Relaxed);
    runner
        .join()
        .map_err(|_| anyhow::anyhow!("a run panicked"))??;
    Ok(Rate {
        per_second: done / elapsed,
        cpu_us: cpu * 1e6 / done.max(1.0),
    })
}

/// User and system time of this process, from the kernel.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|text| text.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?)
}

fn run_sealed(directory: &Path, sessions: u64, progress: &Arc<Progress>) -> Result<()> {
    let file = KeyFile::open(directory)?;
    let (owner, keys) = (fixtures::owner(), ClientKeys::default());
    let since = Timestamp::from_micros(0);
    file.keep(&KeyOwner::User(owner.user), &UserKey::of(keys.user, since))?;
    file.keep(
        &KeyOwner::Tenant(owner.tenant),
        &UserKey::of(keys.tenant, since),
    )?;
    let options = SqliteOptions {
        keys: Arc::new(file),
        ..SqliteOptions::default()
    };
    run_ours(directory, options, sessions, progress)
}

fn run_unsealed(directory: &Path, sessions: u64, progress: &Arc<Progress>) -> Result<()> {
    run_ours(directory, SqliteOptions::default(), sessions, progress)
}

/// Microseconds for sealing and opening 20 KB of JSON, and for writing and reading them as JSON: medians.
fn seal_and_open() -> (f64, f64) {
    let mut random = Random::new(1);
    let calls = (0..20)
        .map(|n| serde_json::json!({"role": "tool", "id": n, "content": random.text(1_000)}));
    let value = serde_json::Value::Array(calls.collect());
    let bytes = value.to_string().into_bytes();
    let one = OneKey(Arc::new(SealKey::of(&ClientKeys::default().user)));
    let median_us = |work: &mut dyn FnMut()| {
        let mut took: Vec<f64> = (0..2_000)
            .map(|_| {
                let began = Instant::now();
                work();
                began.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        took.sort_by(f64::total_cmp);
        took[took.len() / 2]
    };
    let sealing = median_us(&mut || {
        let sealed = one.0.seal(b"0", &bytes);
        let opened = seal::open(&one, b"0", &sealed).expect("it is what was sealed");
        std::hint::black_box(opened);
    });
    let plain = median_us(&mut || {
        let text = serde_json::to_string(&value).expect("JSON is written");
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON is read");
        std::hint::black_box(read);
    });
    (sealing, plain)
}

/// The only key there is.
struct OneKey(Arc<SealKey>);

impl SealKeys for OneKey {
    fn seal_key(&self, _id: SealKeyId) -> Option<Arc<SealKey>> {
        Some(Arc::clone(&self.0))
    }

    fn key_of(&self, _owner: &KeyOwner) -> Option<Arc<SealKey>> {
        Some(Arc::clone(&self.0))
    }

    fn seals(&self) -> bool {
        true
    }
}

fn run_ours(
    directory: &Path,
    options: SqliteOptions,
    sessions: u64,
    progress: &Arc<Progress>,
) -> Result<()> {
    let store = Arc::new(SqliteStore::open(directory, options)?);
    let runtime = runtime()?;
    let tasks: Vec<_> = (0..sessions)
        .map(|n| {
            let (store, progress) = (Arc::clone(&store), Arc::clone(progress));
            runtime.spawn(async move {
                let mut client = Client::new(session_id(7, n), ClientKeys::default(), n);
                let create = client.create();
                client.send(&*store, &create, fixtures::client()).await?;
                while !progress.is_over.load(Ordering::Relaxed) {
                    let turn = client.turn();
                    client.send(&*store, &turn, fixtures::worker(1)).await?;
                    progress.turns.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), anyhow::Error>(())
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task)??;
    }
    Ok(())
}

type RawJob = (u64, Vec<u8>, oneshot::Sender<()>);

fn run_raw(directory: &Path, sessions: u64, progress: &Arc<Progress>) -> Result<()> {
    let conn = Connection::open(directory.join("raw.db"))?;
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;
         CREATE TABLE log(id INTEGER PRIMARY KEY, prev INTEGER NOT NULL, body BLOB NOT NULL);
         CREATE TABLE session(id INTEGER PRIMARY KEY, last INTEGER NOT NULL, state BLOB NOT NULL);",
    )?;
    let (jobs, queue): (SyncSender<RawJob>, Receiver<RawJob>) = sync_channel(1024);
    let writer = std::thread::spawn(move || write_raw(&conn, &queue));
    let runtime = runtime()?;
    let tasks: Vec<_> = (0..sessions)
        .map(|n| {
            let (jobs, progress) = (jobs.clone(), Arc::clone(progress));
            runtime.spawn(async move {
                let mut random = Random::new(n);
                while !progress.is_over.load(Ordering::Relaxed) {
                    let turn = random.text(2_974).into_bytes();
                    let (done, answer) = oneshot::channel();
                    if jobs.send((n, turn, done)).is_err() || answer.await.is_err() {
                        break;
                    }
                    progress.turns.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task)?;
    }
    drop(jobs);
    writer
        .join()
        .map_err(|_| anyhow::anyhow!("the raw writer panicked"))?
}

fn write_raw(conn: &Connection, queue: &Receiver<RawJob>) -> Result<()> {
    let mut last: std::collections::HashMap<u64, i64> = std::collections::HashMap::new();
    let mut append = conn.prepare("INSERT INTO log(prev, body) VALUES(?1, ?2)")?;
    let mut head = conn.prepare("INSERT OR REPLACE INTO session VALUES(?1, ?2, ?3)")?;
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        while group.len() < 512 {
            match queue.try_recv() {
                Ok(job) => group.push(job),
                Err(_) => break,
            }
        }
        conn.execute_batch("BEGIN IMMEDIATE")?;
        for (session, turn, _) in &group {
            let prev = last.get(session).copied().unwrap_or(0);
            append.execute((prev, turn))?;
            let row = conn.last_insert_rowid();
            last.insert(*session, row);
            head.execute((i64::try_from(*session)?, row, &turn[..64]))?;
        }
        conn.execute_batch("COMMIT")?;
        for (_, _, done) in group {
            // A task that was told to stop does not wait for its answer.
            done.send(()).unwrap_or_default();
        }
    }
    Ok(())
}
