//! A development server with its demo, and a client that talks to it.

use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehold_testkit::http::DevServer;

/// How long anything may take before it counts as never.
const NEVER: Duration = Duration::from_mins(1);

/// A server, and people who decide.
pub(crate) struct Server(DevServer);

impl Deref for Server {
    type Target = DevServer;

    fn deref(&self) -> &DevServer {
        &self.0
    }
}

impl Server {
    pub(crate) fn start_in_memory(flags: &[&str]) -> Self {
        Self(DevServer::start(program(), None, flags, &[]))
    }

    /// Starts one on a directory, which is also where its configuration may be.
    pub(crate) fn start_on(directory: &Path, flags: &[&str]) -> Self {
        let data = directory.join("data");
        Self(DevServer::start(program(), Some(&data), flags, &[]))
    }

    pub(crate) fn kill(self) {
        self.0.kill();
    }

    pub(crate) fn stop(self) {
        self.0.stop();
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
        let headers = [("idempotency-key", key)];
        self.call("POST", &format!("/holds/{id}/decision"), &headers, &body)
    }

    #[track_caller]
    pub(crate) fn decide(&self, hold: &Value, decision: &str, key: &str, rest: Value) {
        let (status, answer) = self.try_decide(hold, decision, key, rest);
        assert_eq!(status, 200, "{answer}");
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_statehold"))
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

    /// The state of the session.
    pub(crate) fn state(&self) -> Value {
        self.server
            .get(&format!("/sessions/{}/state", self.session))["state"]
            .clone()
    }
}
