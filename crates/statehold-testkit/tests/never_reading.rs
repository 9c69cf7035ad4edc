//! Clients that ask for long answers and never read them, against the real server: its memory stays bounded, and
//! a client that reads gets everything.
//!
//! The counts of the whole attack: `STATEHOLD_READERS=1000 STATEHOLD_INPUTS=64`.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use statehold_testkit::http::{HttpClient, ServerProcess, built_program};

/// What the server may ever have in use.
const MEMORY_MAX: u64 = 300 << 20;
/// Almost the longest body that there may be.
const INPUT_BYTES: usize = 8_000_000;
const KEYS: usize = 16;

fn told(variable: &str, otherwise: usize) -> usize {
    let told = std::env::var(variable).ok();
    told.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn start(data: &Path) -> Result<ServerProcess> {
    let program = built_program(Path::new(env!("CARGO_BIN_EXE_tool_worker")));
    let mut command = Command::new(program);
    command.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
    command.arg(data);
    // So that the readers are stopped neither by their number nor by the share of their keys.
    command.env("STATEHOLD__SERVER__CONNECTIONS_MAX", "8192");
    ServerProcess::start_command(command, data, &data.with_extension("log"))
}

async fn done(client: &mut HttpClient, method: Method, path: &str, body: Value) -> Result<Value> {
    let answer = client.call(method, path, &[], body.to_string()).await?;
    ensure!(answer.is_success(), "{path}: {:?}", answer.json());
    answer.json()
}

/// A session with long inputs and values, and keys of its clients.
async fn prepare(server: &ServerProcess, inputs: usize) -> Result<(String, Vec<String>)> {
    let mut client = HttpClient::connect(server.address()).await?;
    let body = json!({"app": "chat", "user": "ann"});
    let session = done(&mut client, Method::POST, "/v1/sessions", body).await?;
    let session = session["id"].as_str().context("an id")?.to_owned();
    let long = "never read ".repeat(INPUT_BYTES / 11);
    for number in 0..inputs {
        let body = json!({"agent": "worker", "input": long});
        let path = format!("/v1/sessions/{session}/requests");
        done(&mut client, Method::POST, &path, body).await?;
        if number % 4 == 0 {
            let body = json!({"set": {format!("long{number}"): long}});
            let path = format!("/v1/sessions/{session}/state");
            done(&mut client, Method::PATCH, &path, body).await?;
        }
    }
    let mut keys = Vec::new();
    for _ in 0..=KEYS {
        let key = done(
            &mut client,
            Method::POST,
            "/v1/keys",
            json!({"roles": ["client"]}),
        )
        .await?;
        keys.push(key["key"].as_str().context("a key")?.to_owned());
    }
    Ok((session, keys))
}

/// Asks, and never reads.
fn ask(address: SocketAddr, path: &str, key: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    Ok(stream)
}

/// Everything that a client reads of a list, page by page.
async fn read_all(client: &mut HttpClient, key: &str, path: &str) -> Result<(Vec<Value>, usize)> {
    let bearer = format!("Bearer {key}");
    let (mut pages, mut bytes, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let path = format!("{path}&cursor={cursor}");
        let path = path.strip_suffix("&cursor=").unwrap_or(&path);
        let answer = client
            .call(Method::GET, path, &[("authorization", &bearer)], "")
            .await?;
        ensure!(answer.is_success(), "{path}: {:?}", answer.json());
        bytes += answer.body.len();
        let page = answer.json()?;
        let next = page["next_cursor"].as_str().map(str::to_owned);
        pages.push(page);
        match next {
            Some(next) => cursor = next,
            None => return Ok((pages, bytes)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_take_a_bounded_part_of_the_memory() -> Result<()> {
    let (readers, inputs) = (told("STATEHOLD_READERS", 32), told("STATEHOLD_INPUTS", 6));
    let directory = tempfile::tempdir()?;
    let data = directory.path().join("data");
    let server = start(&data)?;
    let (session, keys) = prepare(&server, inputs).await?;
    // Writing takes memory too, which is not what is counted here.
    server.stop()?;
    let server = start(&data)?;
    let (own, keys) = keys.split_first().context("keys")?;

    let paths = [
        format!("/v1/sessions/{session}/events?after=0"),
        format!("/v1/sessions/{session}/messages?limit=200"),
        format!("/v1/sessions/{session}/events?after=1"),
        format!("/v1/sessions/{session}/state"),
    ];
    let asked = (0..readers).map(|number| {
        let (path, key) = (&paths[number % paths.len()], &keys[number % keys.len()]);
        ask(server.address(), path, key)
    });
    let never_read = asked.collect::<Result<Vec<_>>>()?;

    let mut client = HttpClient::connect(server.address()).await?;
    let messages = format!("/v1/sessions/{session}/messages?limit=200");
    let (messages, bytes) = read_all(&mut client, own, &messages).await?;
    let state = format!("/v1/sessions/{session}/state?limit=200");
    let (state, _) = read_all(&mut client, own, &state).await?;
    let most = server.resident_bytes_most()?;
    println!(
        "{readers} readers over {inputs} inputs: at most {} MiB",
        most >> 20
    );
    assert!(most <= MEMORY_MAX, "{} MiB", most >> 20);

    assert!(bytes > inputs * (INPUT_BYTES - 100), "whole messages");
    assert_eq!(messages.len(), inputs, "a long message has its own page");
    let found = messages
        .iter()
        .filter_map(|page| page["messages"].as_array());
    let found: usize = found.map(Vec::len).sum();
    assert_eq!(found, inputs, "every message, once");
    let found = state.iter().filter_map(|page| page["state"].as_object());
    let found: usize = found.map(serde_json::Map::len).sum();
    assert_eq!(found, inputs.div_ceil(4), "every value, once");
    drop(never_read);
    Ok(())
}
