//! The real server on a directory of its own, and somebody who chats with it.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use statehold_fakes::SseParser;
use statehold_testkit::http::{HttpClient, ServerProcess, built_program};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// How long anything may take before it counts as never.
pub(crate) const NEVER: Duration = Duration::from_mins(15);

const DONE: &str = "[DONE]";

/// The program, built once for all tests here.
pub(crate) fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built_program(Path::new(env!("CARGO_BIN_EXE_http_client"))))
}

/// A directory with a configuration, and the server of it while it runs.
pub(crate) struct Stage {
    directory: TempDir,
    server: Option<ServerProcess>,
}

impl Stage {
    /// Starts a server that is configured so, and dies where it is told to.
    pub(crate) async fn start(config: &str, dies_at: Option<&str>) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::create_dir(directory.path().join("data"))?;
        std::fs::write(directory.path().join("statehold.toml"), config)?;
        let mut stage = Self {
            directory,
            server: None,
        };
        stage.start_again(dies_at).await?;
        Ok(stage)
    }

    /// Writes another configuration, for a server that reads it again.
    pub(crate) fn configure(&self, config: &str) -> Result<()> {
        let file = self.directory.path().join("statehold.toml");
        Ok(std::fs::write(file, config)?)
    }

    pub(crate) async fn start_again(&mut self, dies_at: Option<&str>) -> Result<()> {
        let directory = self.directory.path().to_owned();
        let mut command = Command::new(program());
        let data = self.data();
        command.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
        command.arg(&data).current_dir(&directory);
        match dies_at {
            Some(place) => command.env("STATEHOLD_DIE_AT", place),
            None => command.env_remove("STATEHOLD_DIE_AT"),
        };
        // What is free goes back to the system at once, so that memory in use is memory that is needed.
        command.env("MIMALLOC_PURGE_DELAY", "0");
        let log = directory.join("server.log");
        let started = move || ServerProcess::start_command(command, &data, &log);
        self.server = Some(tokio::task::spawn_blocking(started).await??);
        Ok(())
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn server(&self) -> &ServerProcess {
        self.server.as_ref().expect("it runs")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server().address()
    }

    /// Waits until it was killed, by itself.
    pub(crate) async fn has_died(&mut self) -> Result<()> {
        let server = self.server.take().context("it runs")?;
        let status = tokio::task::spawn_blocking(move || server.ended()).await??;
        ensure!(
            status.signal() == Some(9),
            "it ended otherwise than by SIGKILL: {status}"
        );
        Ok(())
    }

    /// Kills the server, and has everything that it left checked.
    pub(crate) async fn end(mut self) -> Result<()> {
        let server = self.server.take().context("it runs")?;
        let data = self.data();
        tokio::task::spawn_blocking(move || {
            server.kill()?;
            let mut check = Command::new(program());
            let checked = check.args(["check", "--data"]).arg(data).output()?;
            let said = String::from_utf8_lossy(&checked.stdout).into_owned();
            ensure!(checked.status.success(), "not clean: {said}");
            Ok(())
        })
        .await?
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let mut client = HttpClient::connect(self.address()).await?;
        let answer = client.get(path).await?;
        ensure!(answer.is_success(), "{path} answered {}", answer.status);
        answer.json()
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: &Value) -> Result<Value> {
        let mut client = HttpClient::connect(self.address()).await?;
        let headers = [("idempotency-key", key)];
        let answer = client
            .call(Method::POST, path, &headers, body.to_string())
            .await?;
        let told = answer.json()?;
        ensure!(answer.is_success(), "{path} answered {told}");
        Ok(told)
    }

    /// A new session.
    pub(crate) async fn session(&self) -> Result<String> {
        let body = json!({"app": "played", "user": "ann"});
        let made = self.post("/v1/sessions", "session", &body).await?;
        Ok(made["id"].as_str().context("an id")?.to_owned())
    }

    /// What was said in a session: role and text.
    pub(crate) async fn transcript(&self, session: &str) -> Result<Vec<(String, String)>> {
        let path = format!("/v1/sessions/{session}/messages");
        let read = self.get(&path).await?;
        let messages = read["messages"].as_array().context("messages")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let said = messages.iter();
        Ok(said
            .map(|message| (text(&message["role"]), text(&message["content"])))
            .collect())
    }

    /// Everything in a session.
    pub(crate) async fn trace(&self, session: &str) -> Result<Vec<Value>> {
        let path = format!("/v1/sessions/{session}/messages?view=trace&limit=200");
        let trace = self.get(&path).await?;
        let items = trace["messages"].as_array().context("messages")?;
        Ok(items.clone())
    }

    /// The requests of a session as the tree has them, and all tasks.
    pub(crate) async fn tree(&self, session: &str) -> Result<Tree> {
        let tree = self.get(&format!("/v1/sessions/{session}/tree")).await?;
        let mut all = Tree::default();
        all.take(&tree["tasks"]);
        Ok(all)
    }
}

/// What is in the tree of a session.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Agent and status.
    pub(crate) tasks: Vec<(String, String)>,
    /// Agent, status and id, each before those that it began.
    pub(crate) requests: Vec<(String, String, String)>,
}

impl Tree {
    fn take(&mut self, tasks: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for task in tasks.as_array().into_iter().flatten() {
            let agent = text(&task["agent"]);
            self.tasks.push((agent.clone(), text(&task["status"])));
            for request in task["requests"].as_array().into_iter().flatten() {
                let (status, id) = (text(&request["status"]), text(&request["id"]));
                self.requests.push((agent.clone(), status, id));
                self.take(&request["tasks"]);
            }
        }
    }
}

/// One chat call.
#[derive(Debug, Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) agent: &'a str,
    pub(crate) session: &'a str,
    pub(crate) text: &'a str,
    pub(crate) stream: bool,
    pub(crate) key: Option<&'a str>,
}

/// What came back.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// The code of an error.
    pub(crate) code: Option<String>,
    /// What our server says about the turn.
    pub(crate) turn: Value,
    /// Whether a stream ended as it should.
    pub(crate) is_done: bool,
}

impl Told {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.turn["status"] == "paused"
    }
}

impl Ask<'_> {
    /// Makes the call. If the connection is lost before the end, that is an error.
    pub(crate) async fn send(&self, to: SocketAddr) -> Result<Told> {
        let told = self.send_until(to, usize::MAX).await?;
        let is_whole = !self.stream || told.is_done || told.code.is_some();
        ensure!(is_whole, "the stream broke off: {told:?}");
        Ok(told)
    }

    /// The same, hanging up when so many bytes of text have come.
    pub(crate) async fn send_until(&self, to: SocketAddr, bytes_max: usize) -> Result<Told> {
        let exchange = self.exchange(to, bytes_max);
        let told = tokio::time::timeout(NEVER, exchange).await;
        told.with_context(|| format!("no answer to {self:?}"))?
    }

    async fn exchange(&self, to: SocketAddr, bytes_max: usize) -> Result<Told> {
        let stream = TcpStream::connect(to).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move { connection.await.unwrap_or_default() });
        let told = async {
            let response = sender.send_request(self.request(to)?).await?;
            let (head, mut body) = response.into_parts();
            let mut told = Told {
                status: head.status.as_u16(),
                headers: head.headers,
                ..Told::default()
            };
            let kind = told.header("content-type").unwrap_or_default();
            if !kind.starts_with("text/event-stream") {
                let body = body.collect().await?.to_bytes();
                told.take(&serde_json::from_slice(&body)?, "message");
                return Ok(told);
            }
            let mut parser = SseParser::default();
            while let Some(frame) = body.frame().await {
                let frame = frame?;
                for event in frame
                    .data_ref()
                    .map(|data| parser.push(data))
                    .unwrap_or_default()
                {
                    if event.data == DONE {
                        told.is_done = true;
                    } else {
                        told.take(&serde_json::from_str(&event.data)?, "delta");
                    }
                }
                if told.text.len() >= bytes_max {
                    return Ok(told);
                }
            }
            Ok(told)
        };
        let told = told.await;
        driver.abort();
        told
    }

    fn request(&self, to: SocketAddr) -> Result<Request<Full<Bytes>>> {
        let message = json!({"role": "user", "content": self.text});
        let body = json!({"model": self.agent, "stream": self.stream, "messages": [message]});
        let mut request = Request::post("/openai/v1/chat/completions")
            .header("host", to.to_string())
            .header("content-type", "application/json");
        // Nothing is said about it where nothing is to be kept.
        if !self.session.is_empty() {
            request = request.header("x-statehold-session", self.session);
        }
        if let Some(key) = self.key {
            request = request.header("idempotency-key", key);
        }
        Ok(request.body(Full::new(body.to_string().into()))?)
    }
}

impl Told {
    /// Takes an answer, or a piece of one.
    fn take(&mut self, part: &Value, member: &str) {
        if let Some(text) = part["choices"][0][member]["content"].as_str() {
            self.text.push_str(text);
        }
        if let Some(code) = part["error"]["code"].as_str() {
            self.code = Some(code.to_owned());
        }
        if part["statehold"].is_object() {
            self.turn = part["statehold"].clone();
        }
    }
}

/// Asks until there is an answer.
pub(crate) async fn until<T, W>(what: &str, mut ask: impl FnMut() -> W) -> Result<T>
where
    W: Future<Output = Result<Option<T>>>,
{
    let asked = async {
        loop {
            if let Some(found) = ask().await? {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(NEVER, asked).await {
        Ok(found) => found,
        Err(_) => bail!("never came to be: {what}"),
    }
}
