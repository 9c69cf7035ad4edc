//! The debug log of a real server, and the command that reads it.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehold_testkit::http::DevServer;

use super::remote::{Ended, run};
use super::scripted::{Scripted, cut, json as answer};

const SECRET: &str = "sk-very-secret-4711";

/// A server on a directory of its own, with an agent behind a service that is played.
fn start(directory: &Path, service: &Scripted) -> DevServer {
    let config = format!(
        "[debug_log]\nenabled = true\n\n[agents.oracle]\nkind = \"openai\"\nbase_url = \"{}/v1\"\nmodel = \"m\"\n\
         sessions = \"auto\"\ncredential_env = \"ORACLE_TOKEN\"\n",
        service.url
    );
    std::fs::write(directory.join("statehold.toml"), config).expect("a configuration");
    let program = Path::new(env!("CARGO_BIN_EXE_statehold"));
    let variables = [("ORACLE_TOKEN", SECRET)];
    DevServer::start(
        program,
        Some(&directory.join("data")),
        &["--no-demo"],
        &variables,
    )
}

fn show(directory: &Path, more: &[&str]) -> Ended {
    let data = directory.join("data");
    let data = data.to_str().expect("a plain path");
    let ended = run(
        &[&["debug-log", "show", "--data", data], more].concat(),
        &[],
    );
    assert_eq!(ended.code, 0, "{ended:?}");
    ended
}

/// Says something to the agent, and returns the session.
fn chat(server: &DevServer, words: &str) -> String {
    let context = json!({"conversation": {"app": "demo", "user": "ann", "agent": "oracle"}});
    let said = server.post("/chat", &json!({"message": words, "context": context}));
    said["session_id"].as_str().expect("a session").to_owned()
}

/// Asks until the log has so many entries: they reach the files a moment after the answer.
fn entries(directory: &Path, count: usize) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let shown = show(directory, &["--json"]);
        let entries: Vec<Value> = shown
            .out
            .lines()
            .map(|line| serde_json::from_str(line).expect("a document per line"))
            .collect();
        if entries.len() >= count {
            return entries;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{shown:?}");
        std::thread::yield_now();
    }
}

fn completion(content: &str) -> String {
    json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}]})
        .to_string()
}

#[test]
fn the_owner_of_the_files_reads_what_was_exchanged_while_the_server_runs_and_after_it_was_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let hostile = completion("Three days.\u{1b}[2J\u{202e}");
    let service = Scripted::start(vec![
        answer(200, &hostile),
        answer(200, &completion("Four days.")),
        cut(),
    ]);
    let server = start(directory.path(), &service);
    assert!(server.said.contains("debug-log show"), "{}", server.said);
    let first = chat(&server, "canary-question one");
    let second = chat(&server, "canary-question two");
    let found = entries(directory.path(), 2);
    assert_eq!(found[0]["exchange"]["session"], first.as_str());
    let sent = found[0]["exchange"]["sent"]["text"]
        .as_str()
        .expect("a text");
    assert_eq!(sent, service.calls()[0].body);
    assert!(service.calls()[0].headers.contains(SECRET), "it was sent");
    server.kill();

    assert_eq!(entries(directory.path(), 2), found);
    let shown = show(directory.path(), &[]);
    for words in [
        "oracle → agent",
        "POST 127.0.0.1:",
        "  200  ",
        "canary-question one",
        "\\u001b[2J\\u{202e}",
        "Four days.",
    ] {
        assert!(shown.out.contains(words), "{words} in {}", shown.out);
    }
    assert!(!shown.out.contains(SECRET) && !shown.out.contains('\u{202e}'));
    let one = show(
        directory.path(),
        &["--session", &second[second.len() - 6..]],
    );
    assert!(
        one.out.contains("question two") && !one.out.contains("question one"),
        "{}",
        one.out
    );
    assert_eq!(show(directory.path(), &["--session", "ses_ffff"]).out, "");

    // Nothing of it is on the disk as it is, nor in a backup.
    let data = directory.path().join("data");
    let backup = directory.path().join("backup");
    let paths = [
        data.to_str().expect("plain"),
        backup.to_str().expect("plain"),
    ];
    let made = run(&["backup", "--data", paths[0], paths[1]], &[]);
    assert_eq!(made.code, 0, "{made:?}");
    let logs = std::fs::read_dir(&data)
        .expect("the data")
        .map(|entry| entry.expect("an entry").path());
    let logs: Vec<_> = logs
        .filter(|path| path.to_string_lossy().contains("debug-log."))
        .collect();
    assert_eq!(logs.len(), 1);
    let sealed = std::fs::read(&logs[0]).expect("a file");
    for words in ["canary", "days", "oracle", SECRET] {
        assert!(!contains(&sealed, words.as_bytes()), "{words}");
    }
    let copied = std::fs::read(&backup).expect("a file");
    assert!(!contains(&copied, &sealed[28..60]));
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|at| at == part)
}

#[test]
fn a_directory_without_a_debug_log_says_how_to_get_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let shown = show(directory.path(), &[]);
    assert!(shown.err.contains("debug_log.enabled"), "{shown:?}");
    assert_eq!(
        std::fs::read_dir(&data).expect("a directory").count(),
        0,
        "it makes no file"
    );
    let nowhere = run(&["debug-log", "show", "--data", "no such place"], &[]);
    assert_eq!(nowhere.code, 1, "{nowhere:?}");
}

#[test]
fn reset_removes_the_debug_log_and_the_address_of_a_console_that_is_off_is_not_printed() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let old = data.join("debug-log.00000001");
    std::fs::write(&old, "old").expect("a file");
    let program = Path::new(env!("CARGO_BIN_EXE_statehold"));
    let off = [("STATEHOLD__CONSOLE__ENABLED", "false")];
    let server = DevServer::start(program, Some(&data), &["--no-demo", "--reset"], &off);
    assert!(!old.exists());
    assert!(!server.said.contains("onsole"), "{}", server.said);
}
