//! The audit of a real server: what it lists, what it proves, and what an export proves without it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

/// A development server. Stopped when the test ends, however it ends.
struct Server {
    child: Child,
    url: String,
    /// Kept, so that the server can go on talking.
    _says: BufReader<ChildStderr>,
}

impl Server {
    fn start(data: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_statehold"))
            .args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"])
            .arg(data)
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut says = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut said = String::new();
        while !said.contains("Ready in") {
            let read = says.read_line(&mut said).expect("it speaks UTF-8");
            assert!(read > 0, "the server ended before it was ready: {said}");
        }
        let url = said
            .split_whitespace()
            .find_map(|word| word.strip_suffix("/v1"));
        Self {
            url: url.expect("it says where the API is").to_owned(),
            child,
            _says: says,
        }
    }

    /// A clean stop, after which everything is signed.
    fn stop(mut self) {
        let id = i32::try_from(self.child.id()).expect("a process id");
        let id = rustix::process::Pid::from_raw(id).expect("a process id");
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Value {
        let address = self.url.strip_prefix("http://").expect("plain HTTP");
        let mut stream = TcpStream::connect(address).expect("it listens");
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_default()
    }

    /// A session with one request; its id.
    fn session(&self) -> String {
        let made = self.call("POST", "/v1/sessions", r#"{"app":"demo","user":"bob"}"#);
        let id = made["id"].as_str().expect("an id").to_owned();
        self.request(&id);
        id
    }

    fn request(&self, session: &str) {
        let path = format!("/v1/sessions/{session}/requests");
        self.call("POST", &path, r#"{"agent":"helper","input":"hello"}"#);
    }

    fn ask(&self, args: &[&str]) -> (i32, String) {
        run(args, &[("STATEHOLD_URL", &self.url)])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to stop.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn run(args: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(args)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts");
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().expect("it ends by itself");
    (code, String::from_utf8(said).expect("it speaks UTF-8"))
}

#[track_caller]
fn require((found, said): (i32, String), code: i32, says: &[&str]) {
    assert_eq!(found, code, "{said}");
    for words in says {
        assert!(
            said.contains(words),
            "it does not say {words:?} but: {said}"
        );
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a new directory");
    for file in std::fs::read_dir(from).expect("a directory") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("it is copied");
    }
}

#[test]
fn an_export_proves_what_a_server_had() {
    let directory = tempfile::tempdir().expect("a directory");
    let [data, earlier, empty, file] =
        ["data", "earlier", "empty", "export.jsonl"].map(|name| directory.path().join(name));
    let server = Server::start(&data);
    let (first, second) = (server.session(), server.session());
    server.call("DELETE", &format!("/v1/sessions/{second}"), "");
    server.stop();
    copy(&data, &earlier);

    let server = Server::start(&data);
    let whole = "5 records in 2 sessions, 1 entries, 1 signed roots, chain intact, head ";
    require(server.ask(&["audit", "verify"]), 0, &["✓", whole]);
    let listed = ["1\t", "\tsystem\theads_signed\t2 sessions\t"];
    require(server.ask(&["audit", "list"]), 0, &listed);
    let listed = ["2\t", "\tlocal\tstart_request\treq_"];
    let list = ["audit", "list", "--session", &first];
    require(server.ask(&list), 0, &listed);
    server.request(&first);
    let path = file.to_str().expect("a plain path");
    let export = ["audit", "export", "-o", path];
    let said = "6 records of 2 sessions and 1 entries are in";
    require(server.ask(&export), 0, &[said]);
    require(server.ask(&export), 1, &["does not exist yet"]);
    let mode = std::fs::metadata(&file).expect("it is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);

    let offline = ["audit", "verify", "--file", path];
    require(
        run(&offline, &[]),
        0,
        &["6 records in 2 sessions", "intact"],
    );
    let against = ["audit", "verify", "--against", path];
    require(server.ask(&against), 0, &["intact"]);
    server.stop();

    let server = Server::start(&earlier);
    let tail = format!("missing_tail: record 3 of session {first}");
    require(server.ask(&["audit", "verify"]), 0, &["intact"]);
    require(server.ask(&against), 10, &[&tail]);
    server.stop();
    let server = Server::start(&empty);
    let sessions = [first, second].map(|session| format!("of session {session} is missing"));
    let gone = ["missing_session: record 3", &sessions[0], &sessions[1]];
    require(server.ask(&against), 10, &gone);
    let tail = "missing_tail: entry 1 of the audit stream";
    require(server.ask(&against), 10, &[tail]);
}

#[test]
fn a_cut_or_changed_export_is_refused_with_the_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    let server = Server::start(&data);
    server.session();
    let id = server.session();
    server.stop();
    let server = Server::start(&data);
    let (code, export) = server.ask(&["audit", "export"]);
    assert_eq!(code, 0, "{export}");
    let lines: Vec<&str> = export.lines().collect();
    assert_eq!(lines.len(), 7, "{export}");
    let only = server.ask(&["audit", "export", "--session", &id]).1;
    assert_eq!(only.lines().count(), 5, "{only}");

    let file = directory.path().join("export.jsonl");
    let path = file.to_str().expect("a plain path");
    let check = |text: &str, code: i32, says: &[&str]| {
        std::fs::write(&file, text).expect("it is written");
        require(run(&["audit", "verify", "--file", path], &[]), code, says);
        if code != 0 {
            let against = server.ask(&["audit", "verify", "--against", path]);
            require(against, 10, &["not a sound export"]);
        }
    };
    let without = |lines: &[&str], gone: usize| {
        let kept = lines.iter().enumerate().filter(|(at, _)| *at != gone);
        let kept: Vec<&str> = kept.map(|(_, line)| *line).collect();
        kept.join(
            "
",
        ) + "
"
    };
    check(&export, 0, &["4 records in 2 sessions", "1 signed roots"]);
    check(&only, 0, &["2 records in 1 sessions"]);
    check(&export[..export.len() - 9], 10, &["line 7", "cut off"]);
    check(&without(&lines, 6), 10, &["line 7", "cut off"]);
    check(&without(&lines, 0), 10, &["line 1"]);
    check(&without(&lines, 1), 10, &["line 6", "ends other lines"]);
    check(&without(&lines, 2), 10, &["line 3", "breaks the chain"]);
    check(&without(&lines, 5), 10, &["line 6", "ends other lines"]);
    let other = lines[3].replace("start_request", "fail_request");
    let changed = export.replace(lines[3], &other);
    check(
        &changed,
        10,
        &["line 4", "whose hash is not that of its content"],
    );
    let unsigned = export.replace("\"revision\":2", "\"revision\":1");
    check(&unsigned, 10, &["line 2", "hash"]);
    check("", 10, &["line 1"]);
    check("{}\n", 10, &["line 1"]);

    std::fs::write(&file, &export).expect("it is written");
    let key: Value = serde_json::from_str(lines[0]).expect("a first line");
    let key = key["export"]["public_key"].as_str().expect("a key");
    let trusted = ["audit", "verify", "--file", path, "--public-key"];
    require(run(&[&trusted[..], &[key]].concat(), &[]), 0, &["intact"]);
    let other = "ab".repeat(32);
    let refused = run(&[&trusted[..], &[other.as_str()]].concat(), &[]);
    require(refused, 10, &["line 1", "not the one you gave"]);
    let missing = run(&["audit", "verify", "--file", "no such file"], &[]);
    require(missing, 3, &["cannot be read", "audit export"]);
}
