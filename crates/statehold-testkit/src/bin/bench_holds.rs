//! What a pause costs over HTTP, as a ratio to plain appends on the same server in the same run:
//! `bench_holds [--quick] [--json FILE] [--program STATEHOLD]`.
//!
//! A pause is two durable commits: a worker opens a hold and a person decides it, and the request runs
//! on under the same fence. It is compared with as many appends by the same workers to the same requests.

#![expect(
    clippy::cast_precision_loss,
    reason = "counts far below 2^52, printed as rates"
)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use statehold_testkit::http::{PlainClient, ServerProcess};

const CONNECTIONS: [usize; 3] = [1, 16, 64];
/// How many requests wait above the one that asks, plus one.
const DEPTHS: [usize; 2] = [1, 8];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1).map(PathBuf::from)
    };
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let (rounds, duration) = if is_quick {
        (1, Duration::from_secs(1))
    } else {
        (3, Duration::from_secs(3))
    };
    let beside = std::env::current_exe()?.with_file_name("statehold");
    let program = value("--program").unwrap_or(beside);
    ensure!(program.is_file(), "there is no {}", program.display());
    println!(
        "{rounds} interleaved rounds of {duration:?}; a pause is two commits, durable before each answer"
    );
    let mut lines = Vec::new();
    for depth in DEPTHS {
        for connections in CONNECTIONS {
            lines.push(compare(&program, depth, connections, rounds, duration)?);
        }
    }
    let result = json!({ "bench": "holds", "rounds": rounds, "pauses": lines });
    match value("--json") {
        Some(file) => std::fs::write(file, format!("{result:#}\n"))?,
        None => println!("{result}"),
    }
    Ok(())
}

/// One lane: a session with a chain of requests, and the connection of the worker at its end.
struct Lane {
    client: PlainClient,
    request: String,
    fence: u64,
}

impl Lane {
    fn open(address: SocketAddr, n: usize, depth: usize) -> Result<Self> {
        let mut lane = Self {
            client: PlainClient::new(address, None),
            request: String::new(),
            fence: 0,
        };
        let body = json!({ "app": "bench", "user": format!("user-{n}") });
        let session = lane.post("/v1/sessions", &body)?;
        let session = id_of(&session)?;
        for level in 0..depth {
            let mut body = json!({
                "agent": format!("agent-{level}"), "input": "go", "lease": { "ttl_seconds": 3600 },
            });
            if level > 0 {
                body["parent_request_id"] = json!(lane.request);
                body["parent_fence"] = json!(lane.fence);
            }
            let made = lane.post(&format!("/v1/sessions/{session}/requests"), &body)?;
            lane.request = id_of(&made)?;
            lane.fence = made["fence"].as_u64().context("no fence")?;
        }
        Ok(lane)
    }

    fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.client.call("POST", path, &[], &body.to_string())?;
        answer.done().with_context(|| path.to_owned())
    }

    fn append(&mut self) -> Result<()> {
        let path = format!("/v1/requests/{}/items", self.request);
        let note =
            json!({ "kind": "note", "content": "Delete user 7, who asked for it on Monday." });
        self.post(&path, &json!({ "fence": self.fence, "items": [note] }))?;
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        let path = format!("/v1/requests/{}/holds", self.request);
        let question = json!({
            "fence": self.fence, "kind": "question",
            "title": "Delete user 7, who asked for it on Monday?",
        });
        let hold = self.post(&path, &question)?;
        let hold = id_of(&hold)?;
        let answer = json!({ "decision": "respond", "content": "yes, on Friday" });
        let decided = self.post(&format!("/v1/holds/{hold}/decision"), &answer)?;
        ensure!(decided["request_status"] == "running", "{decided}");
        Ok(())
    }
}

/// How many times `work` was done in a second, by all lanes together.
fn rate(
    lanes: &mut [Lane],
    duration: Duration,
    work: impl Fn(&mut Lane) -> Result<()> + Sync,
) -> Result<f64> {
    let together = Barrier::new(lanes.len());
    let done = std::thread::scope(|scope| {
        let running: Vec<_> = lanes
            .iter_mut()
            .map(|lane| {
                let (together, work) = (&together, &work);
                scope.spawn(move || {
                    together.wait();
                    let (began, mut count) = (Instant::now(), 0_u64);
                    while began.elapsed() < duration {
                        work(lane)?;
                        count += 1;
                    }
                    Ok::<_, anyhow::Error>(count as f64 / began.elapsed().as_secs_f64())
                })
            })
            .collect();
        let mut all = 0.0;
        for one in running {
            all += one
                .join()
                .map_err(|_| anyhow::anyhow!("a lane panicked"))??;
        }
        Ok::<_, anyhow::Error>(all)
    })?;
    Ok(done)
}

fn compare(
    program: &std::path::Path,
    depth: usize,
    connections: usize,
    rounds: usize,
    duration: Duration,
) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let data = directory.path().join("data");
    let server = ServerProcess::start(program, &data, &directory.path().join("log"))?;
    let lanes = (0..connections).map(|n| Lane::open(server.address(), n, depth));
    let mut lanes = lanes.collect::<Result<Vec<_>>>()?;
    let (mut pauses, mut appends, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        appends.push(rate(&mut lanes, duration, Lane::append)?);
        let before = server.cpu()?;
        let pause = rate(&mut lanes, duration, Lane::pause)?;
        let used = server.cpu()?.saturating_sub(before).as_secs_f64();
        cpu.push(used * 1e6 / (pause * duration.as_secs_f64()).max(1.0));
        pauses.push(pause);
    }
    let (pauses, appends, cpu) = (median(&mut pauses), median(&mut appends), median(&mut cpu));
    let ratio = 2.0 * pauses / appends;
    println!(
        "depth {depth}, {connections:>2} connections: {pauses:>6.0} pauses/s ({cpu:>4.0} µs of processor \
         each), {appends:>6.0} appends/s: a commit of a pause runs at {ratio:.2} of an append"
    );
    let status = server.stop()?;
    ensure!(status.success(), "the server stopped with {status}");
    Ok(json!({
        "depth": depth, "connections": connections, "pauses_per_second": pauses,
        "appends_per_second": appends, "cpu_us_per_pause": cpu, "commit_ratio": ratio,
    }))
}

fn id_of(value: &Value) -> Result<String> {
    let id = value["id"].as_str().map(str::to_owned);
    id.with_context(|| format!("no id in {value}"))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
