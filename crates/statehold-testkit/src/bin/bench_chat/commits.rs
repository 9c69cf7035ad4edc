//! What durable commits cost by themselves on this disk: one thread with group commit, WAL,
//! `synchronous = FULL`, a row of a step's size appended and a small one updated. No decisions, no
//! hashes, no projections, no HTTP.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::Connection;
use statehold_testkit::workload::Random;
use tokio::sync::oneshot;

use super::drive::{micros, percentile};

/// About what one step of a turn writes.
const STEP_BYTES: usize = 1_000;
const GROUP_MAX: usize = 512;

type Job = (i64, Vec<u8>, oneshot::Sender<()>);

/// How long one of `writers` writers waits for a commit, as the median in microseconds.
pub(crate) fn measure(writers: u64, duration: Duration) -> Result<f64> {
    let directory = tempfile::tempdir()?;
    let conn = Connection::open(directory.path().join("raw.db"))?;
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;
         CREATE TABLE log(id INTEGER PRIMARY KEY, body BLOB NOT NULL);
         CREATE TABLE session(id INTEGER PRIMARY KEY, last INTEGER NOT NULL);",
    )?;
    let (jobs, queue): (SyncSender<Job>, Receiver<Job>) = sync_channel(1_024);
    let writer = std::thread::spawn(move || write(&conn, &queue));
    let mut times = super::drive::runtime()?.block_on(wait_for_many(writers, duration, jobs))?;
    writer
        .join()
        .map_err(|_| anyhow::anyhow!("the raw writer panicked"))??;
    times.sort_unstable();
    Ok(percentile(&times, 50))
}

async fn wait_for_many(
    writers: u64,
    duration: Duration,
    jobs: SyncSender<Job>,
) -> Result<Vec<u32>> {
    let began = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|n| {
            let jobs = jobs.clone();
            tokio::spawn(async move {
                let (mut random, mut times) = (Random::new(n), Vec::new());
                let session = i64::try_from(n)?;
                while began.elapsed() < duration {
                    let body = random.text(STEP_BYTES).into_bytes();
                    let (done, answer) = oneshot::channel();
                    let one = Instant::now();
                    if jobs.send((session, body, done)).is_err() || answer.await.is_err() {
                        break;
                    }
                    times.push(micros(one));
                }
                Ok::<_, anyhow::Error>(times)
            })
        })
        .collect();
    drop(jobs);
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    Ok(times)
}

fn write(conn: &Connection, queue: &Receiver<Job>) -> Result<()> {
    let mut append = conn.prepare("INSERT INTO log(body) VALUES(?1)")?;
    let mut head = conn.prepare("INSERT OR REPLACE INTO session VALUES(?1, ?2)")?;
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        while group.len() < GROUP_MAX {
            match queue.try_recv() {
                Ok(job) => group.push(job),
                Err(_) => break,
            }
        }
        conn.execute_batch("BEGIN IMMEDIATE")?;
        for (session, body, _) in &group {
            append.execute([body])?;
            head.execute((session, conn.last_insert_rowid()))?;
        }
        conn.execute_batch("COMMIT")?;
        for (_, _, done) in group {
            // A task that was told to stop does not wait for its answer.
            done.send(()).unwrap_or_default();
        }
    }
    Ok(())
}
