//! What a turn costs, counted: instructions of the engine, pages read, bytes written. No times.
//!
//! One test in a process of its own, because pages are counted by what the process reads.

#![expect(
    clippy::cast_precision_loss,
    reason = "counts far below 2^52, printed and compared as ratios"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use statehold_model::fixtures;
use statehold_store::sqlite::{FILE_NAME, Meter, SqliteOptions, SqliteStore};
use statehold_testkit::workload::{Client, ClientKeys, session_id};

/// Turns per window: one waypoint falls into each.
const WINDOW: u64 = 64;

#[derive(Debug, Clone, Copy)]
struct Cost {
    steps: f64,
    wal_bytes: f64,
    pages_read: f64,
    pages_read_cold: f64,
}

#[test]
fn turn_ten_thousand_costs_what_turn_ten_costs() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, meter) = open(directory.path());
        let mut long = Client::new(session_id(1, 1), ClientKeys::default(), 1);
        begin(&store, &mut long).await;
        turns(&store, &mut long, 1_000).await;
        require_small_file(directory.path(), &store, &long).await;
        turns(&store, &mut long, 8_990).await;
        let mut short = Client::new(session_id(1, 2), ClientKeys::default(), 2);
        begin(&store, &mut short).await;
        turns(&store, &mut short, 9).await;
        let early = measure(directory.path(), store, &meter, &mut short).await;
        let (store, meter) = open(directory.path());
        let late = measure(directory.path(), store, &meter, &mut long).await;
        println!("turn 10:     {early:?}");
        println!("turn 10,000: {late:?}");
        assert!(long.state.requests_started > 10_000);
        for (what, early, late) in [
            ("instructions", early.steps, late.steps),
            ("bytes written", early.wal_bytes, late.wal_bytes),
            ("pages read", early.pages_read, late.pages_read),
            (
                "pages read with a cold cache",
                early.pages_read_cold,
                late.pages_read_cold,
            ),
        ] {
            // A fraction of a page is noise, not growth.
            let within = (late - early).abs() <= early * 0.1 || (late - early).abs() < 1.0;
            assert!(within, "{what}: {early} at turn 10, {late} at turn 10,000");
        }
    });
}

fn open(directory: &Path) -> (SqliteStore, Arc<Meter>) {
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        ..SqliteOptions::default()
    };
    (
        SqliteStore::open(directory, options).expect("the store opens"),
        meter,
    )
}

async fn begin(store: &SqliteStore, client: &mut Client) {
    let create = client.create();
    client
        .send(store, &create, fixtures::client())
        .await
        .expect("the session begins");
}

async fn turns(store: &SqliteStore, client: &mut Client, count: u64) {
    for _ in 0..count {
        let turn = client.turn();
        client
            .send(store, &turn, fixtures::worker(1))
            .await
            .expect("the turn is committed");
    }
}

/// Bytes on disk for 1,000 turns of text that does not compress.
async fn require_small_file(directory: &Path, store: &SqliteStore, client: &Client) {
    store.fold_log().await.expect("the log is folded");
    let file = directory.join(FILE_NAME);
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    let on_disk = size(&file) + size(&file.with_extension("db-wal"));
    let payload = client.payload_bytes as u64;
    println!(
        "1,000 turns: {on_disk} bytes on disk, {payload} bytes of payload, {:.2} times",
        on_disk as f64 / payload as f64
    );
    assert!(
        on_disk <= 2 * payload,
        "{on_disk} bytes on disk for {payload} bytes of payload"
    );
}

async fn measure(directory: &Path, store: SqliteStore, meter: &Meter, client: &mut Client) -> Cost {
    store.fold_log().await.expect("the log is folded");
    // The first write after emptying the log writes its header.
    turns(&store, client, 1).await;
    let wal = directory.join(FILE_NAME).with_extension("db-wal");
    let size = || std::fs::metadata(&wal).map_or(0, |found| found.len());
    let (steps, bytes, read) = (meter.steps.load(Ordering::Relaxed), size(), bytes_read());
    turns(&store, client, WINDOW).await;
    let per_turn = |before: u64, after: u64| (after - before) as f64 / WINDOW as f64;
    let steps = per_turn(steps, meter.steps.load(Ordering::Relaxed));
    let wal_bytes = per_turn(bytes, size());
    let pages_read = per_turn(read, bytes_read()) / 4096.0;
    drop(store);
    let mut cold = 0;
    for _ in 0..WINDOW {
        let (store, _) = open(directory);
        let turn = client.turn();
        let before = bytes_read();
        client
            .send(&store, &turn, fixtures::worker(1))
            .await
            .expect("the turn is committed");
        cold += bytes_read() - before;
    }
    let pages_read_cold = cold as f64 / 4096.0 / WINDOW as f64;
    Cost {
        steps,
        wal_bytes,
        pages_read,
        pages_read_cold,
    }
}

/// Bytes that this process has read from files so far, from the page cache or not.
fn bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("the kernel counts");
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("rchar: "))
        .expect("it has the line");
    line.parse().expect("it is a number")
}
