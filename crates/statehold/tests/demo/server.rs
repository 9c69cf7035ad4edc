//! A development server with its demo, and somebody who talks to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take before it counts as never.
const NEVER: Duration = Duration::from_mins(1);

/// A server. Stopped when the test ends, however it ends.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    /// What it said when it started.
    pub(crate) said: String,
    /// Kept, so that the server can go on talking.
    _says: BufReader<ChildStderr>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to stop.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    pub(crate) fn start_in_memory(flags: &[&str]) -> Self {
        let mut command = command();
        command.arg("--memory").args(flags);
        Self::start(command)
    }

    /// Starts one on a directory, which is also where its configuration may be.
    pub(crate) fn start_on(directory: &Path, flags: &[&str]) -> Self {
        let mut command = command();
        command.arg("--data").arg(directory.join("data"));
        command.args(flags).current_dir(directory);
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let mut says = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut said = String::new();
        while !said.contains("Ready in") {
            let read = says.read_line(&mut said).expect("it speaks UTF-8");
            assert!(read > 0, "the server ended before it was ready: {said}");
        }
        let url = said
            .split_whitespace()
            .find_map(|word| word.strip_suffix("/v1"))
            .expect("it says where the API is");
        Self {
            url: url.to_owned(),
            child,
            said,
            _says: says,
        }
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Ends it as Ctrl-C does, and waits until it has.
    pub(crate) fn stop(&mut self) {
        let pid = i32::try_from(self.child.id()).expect("a process");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }

    /// Calls the API as whoever has no key.
    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> (u16, Value) {
        let host = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).expect("the server answers");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let key = key.map_or_else(String::new, |key| format!("idempotency-key: {key}\r\n"));
        let length = body.len();
        let head = format!(
            "{method} /v1{path} HTTP/1.1\r\nhost: {host}\r\n{key}connection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream
            .write_all((head + &body).as_bytes())
            .expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head[9..12].parse().expect("a status");
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call("POST", path, None, body);
        assert!(status < 300, "POST {path} {body}: {status} {answer}");
        answer
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call("GET", path, None, &Value::Null);
        assert!(status < 300, "GET {path}: {status} {answer}");
        answer
    }

    /// Looks again and again until it is so.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < NEVER, "{what} never came");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// The answer to a request, when it has ended.
    #[track_caller]
    pub(crate) fn answer(&self, request: &str) -> String {
        let path = format!("/requests/{request}?wait=60");
        let ended = self.get(&path);
        assert_eq!(ended["status"], "completed", "{ended}");
        ended["output"].as_str().expect("a text").to_owned()
    }

    /// The hold that a request waits for, as soon as there is one that is open.
    #[track_caller]
    pub(crate) fn open_hold(&self, request: &str) -> Value {
        let path = format!("/requests/{request}");
        let open = || {
            let read = self.get(&path);
            let holds = read["holds"].as_array().cloned().unwrap_or_default();
            let mut open = holds.into_iter().filter(|hold| hold["status"] == "open");
            open.next().filter(|_| read["status"] == "held")
        };
        self.wait_for("an open hold", |_| open().is_some());
        open().expect("it is open")
    }

    /// Decides a hold under a key.
    pub(crate) fn try_decide(
        &self,
        hold: &Value,
        decision: &str,
        key: &str,
        rest: Value,
    ) -> (u16, Value) {
        let mut body = rest;
        body["decision"] = decision.into();
        if hold["kind"] == "approval" && decision != "reject" {
            body["digest"] = hold["action"]["digest"].clone();
        }
        let id = hold["id"].as_str().expect("an id");
        self.call("POST", &format!("/holds/{id}/decision"), Some(key), &body)
    }

    #[track_caller]
    pub(crate) fn decide(&self, hold: &Value, decision: &str, key: &str, rest: Value) {
        let (status, answer) = self.try_decide(hold, decision, key, rest);
        assert_eq!(status, 200, "{answer}");
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_statehold"));
    command
        .args(["dev", "--port", "0", "--no-open"])
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// A conversation with the agents themselves.
pub(crate) struct Chat<'s> {
    server: &'s Server,
    pub(crate) session: String,
}

impl<'s> Chat<'s> {
    pub(crate) fn begin(server: &'s Server, user: &str) -> Self {
        let session = server.post("/sessions", &json!({ "app": "test", "user": user }));
        Self::of(server, session["id"].as_str().expect("an id"))
    }

    /// One that was begun before.
    pub(crate) fn of(server: &'s Server, session: &str) -> Self {
        Self {
            server,
            session: session.to_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn start(&self, agent: &str, text: &str) -> String {
        let path = format!("/sessions/{}/requests", self.session);
        let ask = json!({ "agent": agent, "input": text });
        let started = self.server.post(&path, &ask);
        started["id"].as_str().expect("an id").to_owned()
    }

    /// Says something and waits for the answer.
    #[track_caller]
    pub(crate) fn say(&self, agent: &str, text: &str) -> String {
        self.server.answer(&self.start(agent, text))
    }

    /// Says something that a person is asked about: the request, and the hold.
    #[track_caller]
    pub(crate) fn ask(&self, agent: &str, text: &str) -> (String, Value) {
        let request = self.start(agent, text);
        let hold = self.server.open_hold(&request);
        (request, hold)
    }

    /// What the session knows.
    pub(crate) fn state(&self) -> Value {
        self.server
            .get(&format!("/sessions/{}/state", self.session))["state"]
            .clone()
    }
}
