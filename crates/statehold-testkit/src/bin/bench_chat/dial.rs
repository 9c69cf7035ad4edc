//! What a chunk of a streamed answer costs on its way through the server: an application of DIAL streams stages and
//! text, and the server mirrors them. A plain reverse proxy hands the same answers through in the same run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use statehold_testkit::http::ServerProcess;

use super::agent::{contains, serve_pieces};
use super::drive::median;
use super::rounded;

const STAGES: usize = 50;
/// Pieces of text in each stage.
const STAGE_PIECES: usize = 6;
/// Pieces of the answer.
const ANSWER_PIECES: usize = 100;
/// All chunks of an answer that say something: each stage opens and ends, too.
const CHUNKS: usize = STAGES * (STAGE_PIECES + 2) + ANSWER_PIECES;
const CONNECTIONS: usize = 4;
/// Answers before the clock runs.
const WARM_UP: u64 = 8;
/// The surface of DIAL, and that of chat completions for a build without it.
const PATHS: [&str; 2] = [
    "/openai/deployments/agent/chat/completions",
    "/v1/chat/completions",
];

/// Streams the same answer to every call, until it is killed.
pub(crate) fn run_agent(data: &Path) -> Result<()> {
    serve_pieces(data, pieces())
}

fn pieces() -> Vec<Bytes> {
    let chunk = |delta: Value, finish: Option<&str>| {
        let choice = json!({ "index": 0, "finish_reason": finish, "delta": delta });
        let body = json!({
            "choices": [choice], "usage": null, "id": "c1", "created": 1, "object": "chat.completion.chunk",
        });
        Bytes::from(format!("data: {body}\n\n"))
    };
    let stage = |update: Value| chunk(json!({ "custom_content": { "stages": [update] } }), None);
    let mut pieces = vec![chunk(json!({ "role": "assistant" }), None)];
    for index in 0..STAGES {
        pieces.push(stage(
            json!({ "index": index, "name": format!("tool {index}"), "status": null }),
        ));
        let text =
            json!({ "index": index, "content": "and so much of the result ", "status": null });
        pieces.extend((0..STAGE_PIECES).map(|_| stage(text.clone())));
        pieces.push(stage(json!({ "index": index, "status": "completed" })));
    }
    pieces.extend(
        (0..ANSWER_PIECES).map(|_| chunk(json!({ "content": "and there is more " }), None)),
    );
    pieces.push(chunk(
        json!({ "custom_content": { "state": { "calls": STAGES } } }),
        None,
    ));
    pieces.push(chunk(json!({}), Some("stop")));
    pieces.push(Bytes::from_static(b"data: [DONE]\n\n"));
    pieces
}

/// The observations of one server.
#[derive(Debug, Clone, Copy)]
struct ChunkCost {
    answers_per_second: f64,
    cpu_us: f64,
    bytes: f64,
}

pub(crate) fn run(program: &Path, rounds: usize, duration: Duration) -> Result<Value> {
    ensure!(program.is_file(), "there is no {}", program.display());
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let own = |command: &str, more: &[String]| {
        let mut process = Command::new(std::env::current_exe()?);
        process.arg(command).arg(path(command)).args(more);
        let log = path(&format!("{command}.log"));
        ServerProcess::start_command(process, &path(command), &log)
    };
    let agent = own("dial-agent", &[])?;
    let proxy = own("proxy", &[agent.address().to_string()])?;
    let configuration = format!(
        "[agents.agent]\nkind = \"dial\"\nbase_url = \"http://{}\"\ndeployment = \"agent\"\n\
         credential_env = \"BENCH_DIAL_KEY\"\nstages = \"full\"\n",
        agent.address()
    );
    std::fs::write(path("statehold.toml"), configuration)?;
    let mut process = Command::new(program);
    process.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
    process.arg(path("data"));
    process.env("STATEHOLD_CONFIG", path("statehold.toml"));
    process.env("BENCH_DIAL_KEY", "key-of-the-bench");
    let statehold = ServerProcess::start_command(process, &path("data"), &path("statehold.log"))?;
    let served = PATHS
        .into_iter()
        .find(|path| ask(statehold.address(), path).is_ok());
    let served = served.with_context(|| format!("no answer: {}", statehold.last_words()))?;
    println!(
        "{rounds} interleaved rounds of {duration:?}; {CHUNKS} chunks in each answer; {served}"
    );
    let mut seen: [Vec<ChunkCost>; 3] = Default::default();
    for _ in 0..rounds {
        let servers = [&agent, &proxy, &statehold];
        for (server, seen) in servers.into_iter().zip(&mut seen) {
            seen.push(measure(server, served, duration)?);
        }
    }
    let of = |seen: &[ChunkCost], figure: fn(&ChunkCost) -> f64| {
        median(&seen.iter().map(figure).collect::<Vec<_>>())
    };
    let [agent, proxy, ours] = seen.map(|seen| ChunkCost {
        answers_per_second: of(&seen, |cost| cost.answers_per_second),
        cpu_us: of(&seen, |cost| cost.cpu_us),
        bytes: of(&seen, |cost| cost.bytes),
    });
    println!(
        "\n{:>9}  {:>9}  {:>12}  {:>13}",
        "", "answers/s", "CPU µs/chunk", "bytes/chunk"
    );
    for (name, cost) in [("agent", agent), ("proxy", proxy), ("statehold", ours)] {
        let (rate, cpu, bytes) = (cost.answers_per_second, cost.cpu_us, cost.bytes);
        println!("{name:>9}  {rate:>9.0}  {cpu:>12.2}  {bytes:>13.1}");
    }
    println!(
        "  CPU of the process in between, for reading a chunk and sending it on; bytes as the client gets them, beside \
         {:.1} of the agent.\n  Statehold parses each chunk, redacts secrets, keeps the answer and mirrors the stages.",
        agent.bytes
    );
    let side = |cost: ChunkCost| {
        json!({ "answers_per_second": cost.answers_per_second.round(), "cpu_us_per_chunk": rounded(cost.cpu_us),
                "bytes_per_chunk": rounded(cost.bytes) })
    };
    Ok(json!({
        "path": served, "chunks": CHUNKS,
        "agent": side(agent), "proxy": side(proxy), "statehold": side(ours),
        "cpu_us_added_to_proxy": rounded(ours.cpu_us - proxy.cpu_us),
        "bytes_added_to_proxy": rounded(ours.bytes - proxy.bytes),
    }))
}

/// Asks over several connections at once for so long.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn measure(server: &ServerProcess, path: &'static str, duration: Duration) -> Result<ChunkCost> {
    let address = server.address();
    let (done, bytes, is_over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let lanes: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (done, bytes, is_over) = (done.clone(), bytes.clone(), is_over.clone());
            std::thread::spawn(move || -> Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    let read = ask(address, path)?;
                    bytes.fetch_add(read as u64, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    let failed = || lanes.iter().any(std::thread::JoinHandle::is_finished);
    while done.load(Ordering::Relaxed) < WARM_UP && !failed() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let count = || (done.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
    let (began, cpu, before) = (Instant::now(), server.cpu()?, count());
    while began.elapsed() < duration && !failed() {
        std::thread::park_timeout(duration.saturating_sub(began.elapsed()));
    }
    let (elapsed, cpu, after) = (began.elapsed(), server.cpu()?.saturating_sub(cpu), count());
    is_over.store(true, Ordering::Relaxed);
    for lane in lanes {
        lane.join()
            .map_err(|_| anyhow::anyhow!("a lane panicked"))??;
    }
    let answers = (after.0 - before.0).max(1) as f64;
    let chunks = answers * CHUNKS as f64;
    Ok(ChunkCost {
        answers_per_second: answers / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / chunks,
        bytes: (after.1 - before.1) as f64 / chunks,
    })
}

/// Makes one call and reads the whole answer. Returns its bytes.
fn ask(address: SocketAddr, path: &str) -> Result<usize> {
    let body = json!({
        "model": "agent", "stream": true, "messages": [{ "role": "user", "content": "go" }],
    })
    .to_string();
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {address}\r\napi-key: key-of-the-bench\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::with_capacity(256 * 1024);
    stream.read_to_end(&mut answer)?;
    let tail = answer.len().saturating_sub(64);
    let is_whole = answer.starts_with(b"HTTP/1.1 200") && contains(&answer[tail..], b"[DONE]");
    ensure!(
        is_whole,
        "no answer: {}",
        String::from_utf8_lossy(&answer[..answer.len().min(500)])
    );
    Ok(answer.len())
}
