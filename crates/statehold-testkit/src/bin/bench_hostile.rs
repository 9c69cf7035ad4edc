//! What hostile clients cost good ones: `bench_hostile [--quick] [--json FILE] [--program STATEHOLD]`.
//!
//! Eight good clients run ordinary turns on a server with 4 GB of address space, in windows with two hostile
//! clients and without them, in turn. The figure is the median of the ratios of their 99th percentiles.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use statehold_testkit::hostile::{
    GOOD, GoodClient, HOSTILE, HostileClients, HostileQuota, limited, make_key,
};
use statehold_testkit::http::ServerProcess;

const WINDOWS: usize = 5;
/// What the figure may be.
const RATIO_MAX: f64 = 5.0;
/// How long hostile clients are at work before a window begins, and good ones rest after it.
const PAUSE: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1).map(PathBuf::from)
    };
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let window = Duration::from_secs(if is_quick { 2 } else { 10 });
    let beside = std::env::current_exe()?.with_file_name("statehold");
    let program = value("--program").unwrap_or(beside);
    ensure!(program.is_file(), "there is no {}", program.display());
    let directory = tempfile::tempdir()?;
    let data = directory.path().join("data");
    std::fs::create_dir_all(&data)?;
    let mut command = Command::new(program);
    command.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
    command.arg(&data);
    let log = directory.path().join("log");
    let server = ServerProcess::start_command(limited(&command), &data, &log)?;
    let address = server.address();
    let keys = |count: usize, name: &str| {
        let keys = (0..count).map(|n| make_key(address, &format!("{name}-{n}")));
        keys.collect::<Result<Vec<String>>>()
    };
    let (hostile, good) = (keys(HOSTILE, "eve")?, keys(GOOD, "ann")?);
    println!(
        "{WINDOWS} interleaved windows of {window:?}: {GOOD} good clients, with {HOSTILE} hostile ones and without"
    );
    let mut ratios = Vec::new();
    let mut lines = Vec::new();
    for number in 1..=WINDOWS {
        let alone = p99(&server, &good, window)?;
        let clients = HostileClients::start(address, &hostile, HostileQuota::ENDLESS);
        std::thread::park_timeout(PAUSE);
        let beside = p99(&server, &good, window)?;
        drop(clients);
        std::thread::park_timeout(PAUSE);
        let ratio = beside.as_secs_f64() / alone.as_secs_f64();
        println!(
            "window {number}: p99 {alone:.1?} alone, {beside:.1?} beside hostile clients: {ratio:.2}x"
        );
        ratios.push(ratio);
        lines.push(
            json!({"alone_ms": alone.as_secs_f64() * 1e3, "beside_ms": beside.as_secs_f64() * 1e3}),
        );
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[WINDOWS / 2];
    println!("good clients' p99 is {median:.2}x beside hostile clients (at most {RATIO_MAX}x)");
    let ended = server.stop()?;
    ensure!(ended.success(), "{ended}");
    let result = json!({ "bench": "hostile", "p99_ratio": median, "windows": lines });
    match value("--json") {
        Some(file) => std::fs::write(file, format!("{result:#}\n"))?,
        None => println!("{result}"),
    }
    ensure!(median <= RATIO_MAX, "{median:.2}x");
    Ok(())
}

/// The 99th percentile of the calls of good clients in a window. Sessions are new, so that every window is alike.
fn p99(server: &ServerProcess, keys: &[String], window: Duration) -> Result<Duration> {
    let address = server.address();
    let runs = std::thread::scope(|scope| {
        let running: Vec<_> = keys
            .iter()
            .map(|key| {
                scope.spawn(move || -> Result<Vec<Duration>> {
                    let mut client = GoodClient::start(address, key)?;
                    let end = Instant::now() + window;
                    while Instant::now() < end {
                        client.turn()?;
                    }
                    Ok(client.latencies)
                })
            })
            .collect();
        let ended = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.collect::<Vec<_>>()
    });
    let mut latencies = Vec::new();
    for run in runs {
        latencies.extend(run.ok().context("a good client panicked")??);
    }
    latencies.sort_unstable();
    let at = latencies.len() * 99 / 100;
    latencies.get(at).copied().context("no call was answered")
}
