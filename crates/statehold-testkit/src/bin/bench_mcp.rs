//! Reading and following a conversation over MCP, as a ratio to the native API in the same run:
//! `bench_mcp [--quick] [--json FILE] [--program STATEHOLD]`.
//!
//! A history of 1,000 turns is read whole: as one resource, and in the pages of the native API. A change is told to one
//! subscriber of each: the time runs from the start of the write.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use statehold_testkit::http::{HttpClient, ServerProcess, SseReader};

const VERSION: &str = "2026-07-28";
const TURNS: usize = 1_000;
const PAGE: usize = 200;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1).map(PathBuf::from)
    };
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let (rounds, reads, writes) = if is_quick { (1, 20, 50) } else { (5, 100, 200) };
    let beside = std::env::current_exe()?.with_file_name("statehold");
    let program = value("--program").unwrap_or(beside);
    ensure!(program.is_file(), "there is no {}", program.display());
    let directory = tempfile::tempdir()?;
    let data = directory.path().join("data");
    let mut command = Command::new(program);
    command.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
    command.arg(&data);
    let log = directory.path().join("log");
    let server = ServerProcess::start_command(command, &data, &log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let result = runtime.block_on(measure(server.address(), (rounds, reads, writes)))?;
    let ended = server.stop()?;
    ensure!(ended.success(), "{ended}");
    match value("--json") {
        Some(file) => std::fs::write(file, format!("{result:#}\n"))?,
        None => println!("{result}"),
    }
    Ok(())
}

async fn measure(
    address: SocketAddr,
    (rounds, reads, writes): (usize, usize, usize),
) -> Result<Value> {
    let mut client = HttpClient::connect(address).await?;
    let session = json!({"app": "bench", "user": "ann"});
    let session = client.post("/v1/sessions", &session).await?.json()?;
    let session = session["id"].as_str().context("a session")?.to_owned();
    println!("writing {TURNS} turns of 2 messages of 200 characters");
    for turn in 0..TURNS {
        for role in ["user", "assistant"] {
            append(&mut client, &session, role, turn).await?;
        }
    }
    println!("{rounds} interleaved rounds: {reads} reads and {writes} writes each, medians in µs");
    let mut rows: [Vec<Duration>; 5] = Default::default();
    for _ in 0..rounds {
        rows[0].push(median(read_natively(&mut client, &session, reads).await?)?);
        let live = format!("conversation://{session}/history");
        rows[1].push(median(read_resource(&mut client, &live, reads).await?)?);
        let pinned = format!("{live}?rev={}", 2 * TURNS);
        rows[2].push(median(read_resource(&mut client, &pinned, reads).await?)?);
        let (feed, told) = follow(&mut client, address, &session, writes).await?;
        rows[3].push(median(feed)?);
        rows[4].push(median(told)?);
    }
    let [native, newest, pinned, feed, told] = rows.map(|times| median(times).unwrap_or_default());
    let us = |time: Duration| (time.as_secs_f64() * 1e6).round();
    let ratio = |a: Duration, b: Duration| (a.as_secs_f64() / b.as_secs_f64() * 1e3).round() / 1e3;
    let row = |what: &str, ours: Duration, limit: Duration| {
        println!(
            "{what:>28}  {:>8.0}  {:>6.2}x",
            us(ours),
            ratio(ours, limit)
        );
    };
    row("native pages", native, native);
    row("resource, newest", newest, native);
    row("resource of a revision", pinned, native);
    row("native feed", feed, feed);
    row("resources/updated", told, feed);
    Ok(json!({
        "bench": "mcp", "rounds": rounds, "messages": 2 * TURNS,
        "native_read_us": us(native), "resource_read_us": us(newest), "pinned_read_us": us(pinned),
        "read_to_native": ratio(newest, native), "pinned_to_native": ratio(pinned, native),
        "feed_us": us(feed), "notification_us": us(told), "notification_to_feed": ratio(told, feed),
    }))
}

async fn append(client: &mut HttpClient, session: &str, role: &str, turn: usize) -> Result<()> {
    let content = format!("{turn:>5} {}", "word ".repeat(39));
    let path = format!("/v1/sessions/{session}/messages");
    let body = json!({"role": role, "content": content});
    let answer = client.post(&path, &body).await?;
    ensure!(answer.status == 201, "{:?}", answer.json());
    Ok(())
}

async fn read_natively(
    client: &mut HttpClient,
    session: &str,
    reads: usize,
) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(reads);
    for _ in 0..reads {
        let (began, mut cursor, mut count) = (Instant::now(), String::new(), 0);
        loop {
            let path = format!("/v1/sessions/{session}/messages?limit={PAGE}{cursor}");
            let page = client.get(&path).await?.json()?;
            count += page["messages"].as_array().map_or(0, Vec::len);
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        times.push(began.elapsed());
        ensure!(count >= 2 * TURNS, "{count} messages");
    }
    Ok(times)
}

/// Headers and body of a request of the newer era.
fn request(method: &str, params: &Value) -> (Vec<(&'static str, String)>, String) {
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut headers = vec![
        ("mcp-protocol-version", VERSION.to_owned()),
        ("mcp-method", method.to_owned()),
        ("accept", "application/json, text/event-stream".to_owned()),
    ];
    headers.extend(
        params["uri"]
            .as_str()
            .map(|uri| ("mcp-name", uri.to_owned())),
    );
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    (headers, body.to_string())
}

fn borrowed<'a>(headers: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    let headers = headers.iter();
    headers
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

async fn read_resource(client: &mut HttpClient, uri: &str, reads: usize) -> Result<Vec<Duration>> {
    let (headers, body) = request("resources/read", &json!({ "uri": uri }));
    let headers = borrowed(&headers);
    let mut times = Vec::with_capacity(reads);
    for _ in 0..reads {
        let began = Instant::now();
        let answer = client
            .call(Method::POST, "/mcp", &headers, body.clone())
            .await?;
        let answer = answer.json()?;
        let text = answer["result"]["contents"][0]["text"].as_str();
        let document: Value = serde_json::from_str(text.with_context(|| answer.to_string())?)?;
        let count = document["messages"].as_array().map_or(0, Vec::len);
        times.push(began.elapsed());
        // The first record is the session.
        ensure!(count + 1 >= 2 * TURNS, "{count} messages");
    }
    Ok(times)
}

/// How long after the start of a write its change is told: by the feed, and by a subscription.
async fn follow(
    client: &mut HttpClient,
    address: SocketAddr,
    session: &str,
    writes: usize,
) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let uri = format!("conversation://{session}/history");
    let listen = json!({"notifications": {"resourceSubscriptions": [uri]}});
    let (headers, body) = request("subscriptions/listen", &listen);
    let mut told = SseReader::post(address, "/mcp", &borrowed(&headers), body).await?;
    let known = told.next().await?.context("an acknowledgement")?;
    ensure!(known.data.contains("acknowledged"), "{}", known.data);
    let (mut by_feed, mut by_subscription) = (Vec::new(), Vec::new());
    let revision = client.get(&format!("/v1/sessions/{session}")).await?;
    let after = revision.revision().context("a revision")?.to_string();
    let path = format!("/v1/sessions/{session}/events");
    let mut feed = SseReader::connect(address, &path, &[], Some(&after)).await?;
    for write in 0..writes {
        let began = Instant::now();
        let heard = async {
            feed.next().await?.context("the feed ended")?;
            Ok::<_, anyhow::Error>(began.elapsed())
        };
        let noticed = async {
            let event = told.next().await?.context("the subscription ended")?;
            ensure!(event.data.contains("resources/updated"), "{}", event.data);
            Ok(began.elapsed())
        };
        let wrote = append(client, session, "user", write);
        let (heard, noticed, wrote) = tokio::join!(heard, noticed, wrote);
        wrote?;
        by_feed.push(heard?);
        by_subscription.push(noticed?);
    }
    Ok((by_feed, by_subscription))
}

fn median(mut times: Vec<Duration>) -> Result<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied().context("no figure")
}
