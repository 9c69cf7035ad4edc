//! The bytes that a chat client sends with each turn, as a ratio of two ways to keep the state of a tool-using agent:
//! `bench_wire [--quick] [--json FILE] [--program STATEHOLD]`.
//!
//! The agent's state grows by a tool call with a result of 2 KB per turn. A client that carries it sends all states with each
//! message. A client of this server sends its messages with a sealed reference in each answer, or the new message
//! alone and the session in a header. The agent gets the same messages in all three.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use statehold_fakes::FakeService;
use statehold_fakes::chat::streamed_with;
use statehold_testkit::http::{HttpClient, ServerProcess};

const TURNS: usize = 20;
const RESULT_BYTES: usize = 2_048;
const CHAT: &str = "/openai/v1/chat/completions";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1).map(PathBuf::from)
    };
    let beside = std::env::current_exe()?.with_file_name("statehold");
    let program = value("--program").unwrap_or(beside);
    ensure!(program.is_file(), "there is no {}", program.display());
    let runtime = tokio::runtime::Runtime::new()?;
    let agent = runtime.block_on(FakeService::start(|seen| {
        let turn = seen.messages().len() / 2 + 1;
        streamed_with(&answer(turn), &json!({ "state": state(turn) }).to_string())
    }));
    let directory = tempfile::tempdir()?;
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let configuration = directory.path().join("statehold.toml");
    std::fs::write(
        &configuration,
        format!(
            "[agents.gpa]\nkind = \"openai\"\nbase_url = \"{}\"\nmodel = \"gpa\"\nsessions = \"auto\"\n",
            agent.url("/v1")
        ),
    )?;
    let mut command = Command::new(program);
    command.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
    command.arg(&data).env("STATEHOLD_CONFIG", &configuration);
    let server = ServerProcess::start_command(command, &data, &log)?;
    let result = runtime.block_on(measure(server.address()))?;
    let ended = server.stop()?;
    ensure!(ended.success(), "{ended}");
    match value("--json") {
        Some(file) => std::fs::write(file, format!("{result:#}\n"))?,
        None => println!("{result}"),
    }
    Ok(())
}

fn question(turn: usize) -> String {
    format!("Extract file {turn:02}, and say what is in it.")
}

fn answer(turn: usize) -> String {
    format!("File {turn:02} has one page.")
}

/// The state of one turn, as the agent of the first seed writes it.
fn state(turn: usize) -> Value {
    let id = format!("call_{turn}");
    let arguments = format!(r#"{{"file": "report-{turn}.txt"}}"#);
    let function = json!({"name": "file_extraction", "arguments": arguments});
    json!({"tool_call_history": [
        {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]},
        {"role": "tool", "content": "x".repeat(RESULT_BYTES), "tool_call_id": id, "name": "file_extraction"},
    ]})
}

fn said(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn body(messages: &[Value]) -> String {
    json!({"model": "gpa", "messages": messages}).to_string()
}

async fn measure(address: SocketAddr) -> Result<Value> {
    let mut client = HttpClient::connect(address).await?;
    let (mut plain, mut referring) = (Vec::new(), Vec::new());
    let mut session = "new".to_owned();
    let mut rows = Vec::new();
    println!(
        "{:>4}  {:>11}  {:>11}  {:>11}  {:>16}",
        "turn", "plain state", "references", "header only", "references/plain"
    );
    for turn in 1..=TURNS {
        let asked = said("user", &question(turn));
        plain.push(asked.clone());
        referring.push(asked.clone());
        let with_reference = body(&referring);
        let headers = [("x-statehold-reference", "1")];
        let answered = chat(&mut client, &headers, &with_reference).await?;
        let message = &answered["choices"][0]["message"];
        ensure!(message["content"] == answer(turn), "{answered}");
        let mut kept = said("assistant", &answer(turn));
        kept["custom_content"] = json!({"state": message["custom_content"]["state"]});
        referring.push(kept);
        let alone = body(&[asked]);
        let headers = [("x-statehold-session", session.as_str())];
        let answered = chat(&mut client, &headers, &alone).await?;
        let named = answered["statehold"]["session"].as_str();
        named.context("a session")?.clone_into(&mut session);
        let bytes = [body(&plain).len(), with_reference.len(), alone.len()];
        let mut carried = said("assistant", &answer(turn));
        carried["custom_content"] = json!({ "state": state(turn) });
        plain.push(carried);
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = bytes[1] as f64 / bytes[0] as f64;
        if [1, 5, 10, TURNS].contains(&turn) {
            let [plain, references, header] = bytes;
            println!("{turn:>4}  {plain:>11}  {references:>11}  {header:>11}  {ratio:>16.3}");
        }
        rows.push(json!({
            "turn": turn, "plain_bytes": bytes[0], "reference_bytes": bytes[1], "header_bytes": bytes[2],
            "references_to_plain": (ratio * 1e3).round() / 1e3,
        }));
    }
    Ok(json!({"bench": "wire", "result_bytes": RESULT_BYTES, "turns": rows}))
}

async fn chat(client: &mut HttpClient, headers: &[(&str, &str)], body: &str) -> Result<Value> {
    let answer = client
        .call(Method::POST, CHAT, headers, body.to_owned())
        .await?;
    let value = answer.json()?;
    ensure!(answer.status == 200, "{value}");
    Ok(value)
}
