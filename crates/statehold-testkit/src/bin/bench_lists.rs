//! Pages of a list of 100,000 sessions, as a ratio to the raw limit of the engine measured in the same run:
//! `bench_lists [--quick] [--json FILE]`.
//!
//! The raw limit is a table with as many rows of the same columns and an index in the order of the list, read page
//! by page behind the last key.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rusqlite::Connection;
use statehold_model::fixtures;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_store::{SessionOrder, SessionPlace, SessionQuery, Store};
use statehold_testkit::workload::{Client, ClientKeys, session_id};

const PAGE: usize = 50;
/// How many sessions are created at the same time.
const CONCURRENCY: u64 = 256;

/// The time of a page at the start of a list, at its end, and of all pages together.
#[derive(Debug, Clone, Copy)]
struct PageTimes {
    first: Duration,
    last: Duration,
    all: Duration,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let (rounds, sessions) = if is_quick { (1, 10_000) } else { (5, 100_000) };
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    println!("creating {sessions} sessions");
    let store = Arc::new(SqliteStore::open(
        directory.path(),
        SqliteOptions::default(),
    )?);
    runtime.block_on(fill(&store, sessions))?;
    let raw = raw_table(&directory.path().join("raw.db"), sessions)?;
    println!("{rounds} interleaved rounds; pages of {PAGE} sessions, µs per page; all pages in ms");
    println!(
        "{:>10}  {:>8}  {:>8}  {:>8}  {:>10}",
        "order", "first", "last", "all", "ratio"
    );
    let mut lines = Vec::new();
    for (word, order) in [
        ("created_at", SessionOrder::Created),
        ("updated_at", SessionOrder::Updated),
    ] {
        let (mut ours, mut limits) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            limits.push(read_raw(&raw, sessions)?);
            ours.push(runtime.block_on(read_ours(&store, order, sessions))?);
        }
        let (ours, limit) = (median(ours), median(limits));
        let ratio = ours.all.as_secs_f64() / limit.all.as_secs_f64();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "{word:>10}  {:>8.0}  {:>8.0}  {:>8.0}  {ratio:>9.2}x",
            us(ours.first),
            us(ours.last),
            us(ours.all) / 1e3
        );
        lines.push(serde_json::json!({
            "order": word,
            "first_page_us": us(ours.first).round(),
            "last_page_us": us(ours.last).round(),
            "all_pages_ms": (us(ours.all) / 1e3).round(),
            "raw_first_page_us": us(limit.first).round(),
            "raw_all_pages_ms": (us(limit.all) / 1e3).round(),
            "time_of_all_pages_to_raw": (ratio * 1000.0).round() / 1000.0,
        }));
    }
    let json = serde_json::json!({
        "bench": "lists", "rounds": rounds, "sessions": sessions, "results": lines,
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

fn median(mut times: Vec<PageTimes>) -> PageTimes {
    times.sort_by_key(|times| times.all);
    times[times.len() / 2]
}

async fn fill(store: &Arc<SqliteStore>, sessions: u64) -> Result<()> {
    let tasks: Vec<_> = (0..CONCURRENCY)
        .map(|task| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                for n in (task..sessions).step_by(usize::try_from(CONCURRENCY)?) {
                    let mut client = Client::new(session_id(7, n), ClientKeys::default(), n);
                    let create = client.create();
                    client.send(&*store, &create, fixtures::client()).await?;
                }
                Ok::<(), anyhow::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn read_ours(
    store: &Arc<SqliteStore>,
    order: SessionOrder,
    sessions: u64,
) -> Result<PageTimes> {
    let owner = fixtures::owner();
    let (began, mut times, mut count) = (Instant::now(), Vec::new(), 0);
    let mut after: Option<SessionPlace> = None;
    loop {
        let start = Instant::now();
        let query = SessionQuery {
            tenant: owner.tenant.clone(),
            app: None,
            user: None,
            order,
            after,
            limit: PAGE,
        };
        let page = store.sessions(query).await?;
        times.push(start.elapsed());
        count += page.len() as u64;
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.list_place()),
            _ => break,
        }
    }
    anyhow::ensure!(count == sessions, "{count} of {sessions} sessions");
    page_times(&times, began.elapsed())
}

/// Medians of some pages at each end: a single page is noise.
fn page_times(times: &[Duration], all: Duration) -> Result<PageTimes> {
    let some = times.len().min(20);
    let middle = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        times.get(times.len() / 2).copied().context("no page")
    };
    Ok(PageTimes {
        first: middle(&times[..some])?,
        last: middle(&times[times.len() - some..])?,
        all,
    })
}

fn raw_table(path: &Path, rows: u64) -> Result<Connection> {
    let conn = Connection::open(path)?;
    conn.execute_batch(
        "PRAGMA cache_size = -65536;
         CREATE TABLE session(id INTEGER PRIMARY KEY, uuid BLOB, tenant TEXT, app TEXT, user BLOB, name TEXT,
                              labels TEXT, status INTEGER, revision INTEGER, created_at INTEGER, updated_at INTEGER);",
    )?;
    let insert = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                  INSERT INTO session SELECT i, randomblob(16), 'default', 'app', randomblob(16), NULL, NULL, 1, 1,
                                             i * 1000, i * 1000 FROM n";
    conn.execute(insert, [i64::try_from(rows)?])?;
    conn.execute_batch(
        "CREATE INDEX session_by_change ON session(tenant, updated_at DESC, id DESC);",
    )?;
    Ok(conn)
}

fn read_raw(conn: &Connection, rows: u64) -> Result<PageTimes> {
    let sql = "SELECT * FROM session WHERE tenant = 'default' AND (updated_at, id) < (?1, ?2)
               ORDER BY updated_at DESC, id DESC LIMIT ?3";
    let mut query = conn.prepare(sql)?;
    let (began, mut times, mut count) = (Instant::now(), Vec::new(), 0);
    let mut after = (i64::MAX, i64::MAX);
    loop {
        let start = Instant::now();
        let limit = i64::try_from(PAGE)?;
        let mut page = query.query((after.0, after.1, limit))?;
        let mut found = 0;
        while let Some(row) = page.next()? {
            let (_uuid, _user): (Vec<u8>, Vec<u8>) = (row.get(1)?, row.get(4)?);
            after = (row.get(10)?, row.get(0)?);
            found += 1;
        }
        times.push(start.elapsed());
        count += found;
        if found < PAGE as u64 {
            break;
        }
    }
    anyhow::ensure!(count == rows, "{count} of {rows} rows");
    page_times(&times, began.elapsed())
}
