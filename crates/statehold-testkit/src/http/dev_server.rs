//! A development server for tests of the program: started as people start it, called without a key. Whatever
//! goes wrong is a panic.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{PlainClient, ServerProcess, signal};

/// A server of `statehold dev`. Dropping it kills it.
#[derive(Debug)]
pub struct DevServer {
    process: ServerProcess,
    /// Where it is.
    pub url: String,
    /// What it said until it was ready.
    pub said: String,
    /// With its log.
    _directory: TempDir,
}

impl DevServer {
    /// Starts `program` in memory, or on a data directory beside which its configuration may be, with these
    /// flags and with nothing but these variables, and waits until it says that it is ready.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn start(
        program: &Path,
        data: Option<&Path>,
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(program);
        command
            .args(["dev", "--port", "0", "--no-open"])
            .args(flags);
        command.env_clear().envs(variables.iter().copied());
        match data {
            Some(data) => command.arg("--data").arg(data),
            None => command.arg("--memory"),
        };
        let beside = data.and_then(Path::parent);
        command.current_dir(beside.unwrap_or(directory.path()));
        let url = |said: &str| {
            let mut words = said.split_whitespace();
            words.find_map(|word| word.strip_suffix("/v1").map(str::to_owned))
        };
        let process =
            ServerProcess::start_until(command, &directory.path().join("log"), |process| {
                let said = process.said();
                // The last line is whole.
                let is_said = said.contains("Ready in") && said.ends_with('\n');
                let url = url(&said).filter(|_| is_said);
                url?.strip_prefix("http://")?.parse().ok()
            });
        let process = process.unwrap_or_else(|error| panic!("{error:#}"));
        let said = process.said();
        Self {
            url: url(&said).expect("it says where the API is"),
            process,
            said,
            _directory: directory,
        }
    }

    /// Ends it with SIGKILL.
    ///
    /// # Panics
    ///
    /// If it had ended before.
    pub fn kill(self) {
        self.process.kill().expect("it runs");
    }

    /// Ends it as Ctrl-C does, and waits until it has.
    ///
    /// # Panics
    ///
    /// If that is no clean end.
    pub fn stop(self) {
        signal(self.process.pid(), "INT").expect("it runs");
        let ended = self.process.ended().expect("it ends");
        assert!(ended.success(), "{ended}");
    }

    /// Calls the API.
    ///
    /// # Panics
    ///
    /// If there is no answer.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> (u16, Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut client = PlainClient::new(self.process.address(), None);
        let answer = client.call(method, &format!("/v1{path}"), headers, &body);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        (answer.status, answer.json())
    }

    /// Calls it with a body.
    ///
    /// # Panics
    ///
    /// If that is refused.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call("POST", path, &[], body);
        assert!(status < 300, "POST {path} {body}: {status} {answer}");
        answer
    }

    /// Reads something.
    ///
    /// # Panics
    ///
    /// If that is refused.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call("GET", path, &[], &Value::Null);
        assert!(status < 300, "GET {path}: {status} {answer}");
        answer
    }
}
