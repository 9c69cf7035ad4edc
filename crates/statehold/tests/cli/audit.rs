//! The audit of a real server: what it lists, what it proves, and what an export proves without it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use statehold_testkit::http::DevServer;

use super::live::text;
use super::remote::{Ended, run};

/// A development server, and who looks at its audit.
struct Server(DevServer);

impl Server {
    fn start(data: &Path) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_statehold"));
        Self(DevServer::start(program, Some(data), &["--no-demo"], &[]))
    }

    /// A session with one request; its id.
    fn session(&self) -> String {
        let made = self
            .0
            .post("/sessions", &json!({"app": "demo", "user": "bob"}));
        let id = text(&made, "id");
        self.request(&id);
        id
    }

    fn request(&self, session: &str) {
        let asked = json!({"agent": "helper", "input": "hello"});
        self.0
            .post(&format!("/sessions/{session}/requests"), &asked);
    }

    fn ask(&self, args: &[&str]) -> Ended {
        run(args, &[("STATEHOLD_URL", &self.0.url)])
    }
}

#[track_caller]
fn require(ended: Ended, code: i32, says: &[&str]) {
    assert_eq!(ended.code, code, "{ended:?}");
    let said = ended.out + &ended.err;
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
    let path = format!("/sessions/{second}");
    let (status, _) = server.0.call("DELETE", &path, &[], &Value::Null);
    assert!(status < 300, "{status}");
    server.0.stop();
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
    server.0.stop();

    let server = Server::start(&earlier);
    let tail = format!("missing_tail: record 3 of session {first}");
    require(server.ask(&["audit", "verify"]), 0, &["intact"]);
    require(server.ask(&against), 10, &[&tail]);
    server.0.stop();
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
    server.0.stop();
    let server = Server::start(&data);
    let export = server.ask(&["audit", "export"]);
    assert_eq!(export.code, 0, "{export:?}");
    let export = export.out;
    let lines: Vec<&str> = export.lines().collect();
    assert_eq!(lines.len(), 7, "{export}");
    let only = server.ask(&["audit", "export", "--session", &id]).out;
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
    check(
        &without(&lines, 1),
        10,
        &["line 6", "does not match the lines before it"],
    );
    check(&without(&lines, 2), 10, &["line 3", "breaks the chain"]);
    check(
        &without(&lines, 5),
        10,
        &["line 6", "does not match the lines before it"],
    );
    let other = lines[3].replace("start_request", "fail_request");
    let changed = export.replace(lines[3], &other);
    check(
        &changed,
        10,
        &["line 4", "whose hash does not match its content"],
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
