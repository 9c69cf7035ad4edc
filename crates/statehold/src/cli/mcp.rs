//! `statehold mcp`: an MCP server on standard input and output, for programs that start their servers themselves. It
//! passes every message on to the server at `--url`, in either era of the protocol.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use http::Method;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::answers::text;
use super::globals::GlobalArgs;
use super::output::CliOutput;
use super::{block_on, resolve};
use crate::client::Client;
use crate::exit::{Exit, Failure};

/// The longest message, in bytes: a little more than the server takes.
const MESSAGE_BYTES_MAX: u64 = 16 << 20;
/// Messages that wait for standard output.
const WAITING_MAX: usize = 64;
/// How long the token of one session lasts.
const TOKEN_SECONDS: u64 = 24 * 60 * 60;
/// The pause before the stream of a session is opened again.
const STREAM_PAUSE: Duration = Duration::from_secs(1);

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const VERSION_META: &str = "io.modelcontextprotocol/protocolVersion";

#[derive(Debug, Args)]
pub(super) struct McpArgs {
    /// Serve this session alone, to be read and not written: `conversation://current-history` is its history.
    #[arg(long)]
    session: Option<String>,
}

impl McpArgs {
    pub(super) fn run(&self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(async {
            let client = match &self.session {
                Some(typed) => of_one_session(&client, typed).await?,
                None => client,
            };
            Bridge::new(client).run().await
        })??;
        Ok(Exit::Done)
    }
}

/// The client with a token that reads one session.
async fn of_one_session(client: &Client, typed: &str) -> Result<Client, Failure> {
    let session = resolve::session(client, typed).await?;
    let path = format!("/v1/sessions/{session}/tokens");
    let body = json!({"ttl_seconds": TOKEN_SECONDS});
    let made = client.call(Method::POST, &path, Some(&body)).await?;
    client.with_token(text(&made.body, "token"))
}

/// Passes messages on between standard input and output and a server.
struct Bridge {
    client: Client,
    /// The headers of a session of the older era, once it has begun.
    session: Arc<Mutex<HeaderMap>>,
    /// Requests in progress, by their id. One that is dropped is cancelled.
    running: HashMap<String, AbortOnDropHandle<()>>,
    stream: Option<AbortOnDropHandle<()>>,
    out: mpsc::Sender<String>,
    written: AbortOnDropHandle<()>,
}

impl Bridge {
    fn new(client: Client) -> Self {
        let (out, mut messages) = mpsc::channel::<String>(WAITING_MAX);
        let write = async move {
            let mut stdout = tokio::io::stdout();
            while let Some(message) = messages.recv().await {
                let line = format!("{}\n", message.trim_end());
                if stdout.write_all(line.as_bytes()).await.is_err() || stdout.flush().await.is_err()
                {
                    return;
                }
            }
        };
        Self {
            client,
            session: Arc::default(),
            running: HashMap::new(),
            stream: None,
            out,
            written: AbortOnDropHandle::new(tokio::spawn(write)),
        }
    }

    /// Reads messages until there are no more.
    async fn run(mut self) -> anyhow::Result<()> {
        let mut input = BufReader::new(tokio::io::stdin());
        loop {
            let mut line = Vec::new();
            let mut limited = (&mut input).take(MESSAGE_BYTES_MAX);
            let read = limited.read_until(b'\n', &mut line).await;
            if read.context("standard input cannot be read")? == 0 {
                break;
            }
            let line = String::from_utf8_lossy(&line);
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match serde_json::from_str(line) {
                Ok(message) => self.take(message, line.to_owned()).await,
                Err(error) => {
                    let refused = failed(&Value::Null, -32700, &error.to_string());
                    self.say(refused).await;
                }
            }
        }
        // What was asked before the end is answered.
        for (_, running) in self.running.drain() {
            drop(running.await);
        }
        let Self {
            out,
            written,
            stream,
            ..
        } = self;
        drop((out, stream));
        drop(written.await);
        Ok(())
    }

    async fn say(&self, message: Value) {
        drop(self.out.send(message.to_string()).await);
    }

    async fn take(&mut self, message: Value, line: String) {
        self.running.retain(|_, running| !running.is_finished());
        let method = message["method"].as_str().unwrap_or_default();
        let version = message
            .pointer("/params/_meta")
            .and_then(|meta| meta[VERSION_META].as_str());
        let mut headers = match version {
            Some(version) => modern_headers(&message, method, version),
            None => self
                .session
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        };
        let is_session = headers.contains_key(SESSION);
        if method == "notifications/cancelled" && !is_session {
            // Without a session, a request ends with its call.
            self.running
                .remove(&message["params"]["requestId"].to_string());
            return;
        }
        if method == "initialize" {
            headers.clear();
            let begun = Exchange::new(self, headers, message["id"].clone());
            begun.run(line, true).await;
            return;
        }
        if method == "notifications/initialized" {
            self.follow(headers.clone());
        }
        let id = message["id"].clone();
        let exchange = Exchange::new(self, headers, id.clone());
        let running = AbortOnDropHandle::new(tokio::spawn(exchange.run(line, false)));
        if id.is_null() || method.is_empty() {
            // Notifications and answers keep their order.
            drop(running.await);
        } else {
            self.running.insert(id.to_string(), running);
        }
    }

    /// Passes on what the server says by itself in a session, also after a restart.
    fn follow(&mut self, headers: HeaderMap) {
        let (client, out) = (self.client.clone(), self.out.clone());
        let follow = async move {
            loop {
                if let Ok(mut answer) = client.mcp(headers.clone(), None).await {
                    while let Some(message) = answer.next().await {
                        if out.send(message).await.is_err() {
                            return;
                        }
                    }
                }
                tokio::time::sleep(STREAM_PAUSE).await;
            }
        };
        self.stream = Some(AbortOnDropHandle::new(tokio::spawn(follow)));
    }
}

/// One message and its answers.
struct Exchange {
    client: Client,
    session: Arc<Mutex<HeaderMap>>,
    out: mpsc::Sender<String>,
    headers: HeaderMap,
    id: Value,
}

impl Exchange {
    fn new(bridge: &Bridge, headers: HeaderMap, id: Value) -> Self {
        Self {
            client: bridge.client.clone(),
            session: Arc::clone(&bridge.session),
            out: bridge.out.clone(),
            headers,
            id,
        }
    }

    async fn run(self, line: String, begins_session: bool) {
        let mut answer = match self.client.mcp(self.headers.clone(), Some(line)).await {
            Ok(answer) => answer,
            Err(failure) if self.id.is_null() => return drop(failure),
            Err(failure) => {
                let refused = failed(&self.id, -32603, &failure.to_string());
                return drop(self.out.send(refused.to_string()).await);
            }
        };
        let session = answer.headers.get(SESSION).cloned();
        while let Some(message) = answer.next().await {
            if begins_session {
                self.note_session(session.as_ref(), &message);
            }
            if self.out.send(message).await.is_err() {
                return;
            }
        }
    }

    /// Keeps the session that an answer to `initialize` begins, and its version.
    fn note_session(&self, session: Option<&HeaderValue>, message: &str) {
        let answer: Value = serde_json::from_str(message).unwrap_or_default();
        let version = answer
            .pointer("/result/protocolVersion")
            .and_then(Value::as_str);
        let version = version.and_then(|version| HeaderValue::from_str(version).ok());
        let mut headers = HeaderMap::new();
        for (name, value) in [(SESSION, session.cloned()), (VERSION, version)] {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = headers;
    }
}

/// The headers that repeat what a message of the newer era says.
fn modern_headers(message: &Value, method: &str, version: &str) -> HeaderMap {
    let params = &message["params"];
    let name = match method {
        "resources/read" => params["uri"].as_str(),
        "tools/call" | "prompts/get" => params["name"].as_str(),
        _ => None,
    };
    let mut headers = HeaderMap::new();
    for (header, value) in [
        (VERSION, Some(version)),
        (METHOD, Some(method)),
        (NAME, name),
    ] {
        let value = value.and_then(|value| HeaderValue::try_from(plain(value)).ok());
        if let Some(value) = value {
            headers.insert(header, value);
        }
    }
    headers
}

/// A value as a header may have it.
fn plain(value: &str) -> String {
    if value
        .bytes()
        .all(|byte| byte.is_ascii_graphic() || byte == b' ')
    {
        return value.to_owned();
    }
    let encoded = data_encoding::BASE64.encode(value.as_bytes());
    format!("=?base64?{encoded}?=")
}

fn failed(id: &Value, code: i64, why: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": why}})
}
