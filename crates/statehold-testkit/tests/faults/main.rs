//! The real server with damaged rows, with keys that have expired, and with clients that do everything wrong:
//! everybody else goes on.

mod damage;
mod hostile;
mod keys;

use std::path::{Path, PathBuf};

use serde_json::Value;
use statehold_testkit::http::{PlainAnswer, PlainClient, ServerProcess, built_program};

fn statehold() -> PathBuf {
    built_program(Path::new(env!("CARGO_BIN_EXE_tool_worker")))
}

#[track_caller]
fn text(value: &Value, field: &str) -> String {
    let text = value[field].as_str();
    text.unwrap_or_else(|| panic!("`{field}` is text in {value}"))
        .to_owned()
}

/// A data directory, and the server on it.
struct World {
    directory: tempfile::TempDir,
    server: Option<ServerProcess>,
}

impl World {
    /// A server with a clock that can be moved.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(directory.path().join("data")).expect("a directory");
        let mut world = Self {
            directory,
            server: None,
        };
        world.start(0);
        world
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn start(&mut self, offset_seconds: i64) {
        let (program, data, log) = (statehold(), self.data(), self.log());
        let server = ServerProcess::start_with_clock(&program, &data, &log, offset_seconds);
        self.server = Some(server.expect("it starts"));
    }

    fn stop(&mut self) {
        let server = self.server.take().expect("it runs");
        server.stop().expect("it ends");
    }

    fn kill(&mut self) {
        let server = self.server.take().expect("it runs");
        server.kill().expect("it ran");
    }

    fn server(&self) -> &ServerProcess {
        self.server.as_ref().expect("it runs")
    }

    fn call(&self, key: Option<&str>, method: &str, path: &str, body: &Value) -> PlainAnswer {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut client = PlainClient::new(self.server().address(), key);
        let answer = client.call(method, path, &[], &body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let answer = self.call(None, "GET", path, &Value::Null);
        answer
            .done()
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.call(None, "POST", path, body);
        answer
            .done()
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}
