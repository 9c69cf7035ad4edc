//! Tool servers that run as programs. The program is this test binary: one of its tests is the server.
//! A script stands in where a server must misbehave.

use std::path::{Path, PathBuf};

use rmcp::ServiceExt;
use serde_json::json;
use statehold_engine::Credential;

use super::bench::Bench;
use super::*;

#[tokio::test]
#[ignore = "it is the program that the other tests start"]
async fn the_program_itself() {
    let service = Bench::default()
        .serve((tokio::io::stdin(), tokio::io::stdout()))
        .await
        .expect("a client");
    drop(service.waiting().await);
}

fn program() -> ToolTransport {
    program_after("")
}

/// The program, wrapped in a script that acts first.
fn program_after(script: &str) -> ToolTransport {
    let this = std::env::current_exe().expect("a path");
    let script = format!(r#"{script} exec "$@""#);
    let arguments = [
        "-c",
        &script,
        "sh",
        this.to_str().expect("a path in UTF-8"),
        "--ignored",
        "--exact",
        "--nocapture",
        "mcp::tests::program::the_program_itself",
    ];
    command("sh", &arguments)
}

fn command(program: &str, arguments: &[&str]) -> ToolTransport {
    ToolTransport::Command {
        program: program.to_owned(),
        arguments: arguments.iter().map(|&text| text.to_owned()).collect(),
        environment: Vec::new(),
        mark: None,
    }
}

/// A server with one tool, and its behaviour after the list request.
fn script(after_list: &str) -> ToolTransport {
    const SERVER: &str = r#"
        answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
        while read -r line; do
            id=${line#*'"id":'}
            id=${id%%[,\}]*}
            case $line in
            *'"initialize"'*)
                answer '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
            *'"tools/list"'*)
                answer '{"tools":[{"name":"work","inputSchema":{"type":"object"}}]}'
                AFTER ;;
            *'"tools/call"'*)
                answer '{"content":[{"type":"text","text":"done"}]}' ;;
            esac
        done"#;
    command("sh", &["-c", &SERVER.replace("AFTER", after_list)])
}

#[tokio::test]
async fn tools_of_a_program_that_run_only_as_tasks_are_not_offered() {
    let tools = r#"
        while read -r line; do
            id=${line#*'"id":'}
            id=${id%%[,\}]*}
            case $line in
            *'"initialize"'*)
                printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}\n' "$id" ;;
            *'"tools/list"'*)
                printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"slow","execution":{"taskSupport":"required"},"inputSchema":{"type":"object"}},{"name":"either","execution":{"taskSupport":"optional"},"inputSchema":{"type":"object"}}]}}\n' "$id" ;;
            esac
        done"#;
    let servers = servers([("tasks", command("sh", &["-c", tools]))]);
    let offered = servers.tools(&[name("tasks")]).await;
    let offered = offered.all().expect("tools");
    let names: Vec<&str> = offered.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["either"]);
}

/// Starts a process beside the program and writes its process id to a file.
fn helper(note: &Path) -> String {
    format!(
        "sleep 1000 >/dev/null 2>&1 & echo $! >{0}.new; mv {0}.new {0};",
        note.display()
    )
}

fn noted(note: &Path) -> PathBuf {
    let pid = std::fs::read_to_string(note).expect("a note");
    PathBuf::from("/proc").join(pid.trim())
}

async fn process(servers: &ToolServers) -> PathBuf {
    let pid = tool(servers, "program", "pid").await;
    let reply = call(servers, &pid, nothing()).await.expect("a reply");
    PathBuf::from("/proc").join(text(&reply))
}

async fn until_gone(process: &Path) {
    until("the program has ended", || async { !process.exists() }).await;
}

#[tokio::test]
async fn a_program_is_a_server_and_ends_with_the_connection() {
    let servers = servers([("program", program())]);
    let echo = tool(&servers, "program", "echo").await;
    let reply = call(&servers, &echo, json!({"text": "hello"})).await;
    assert_eq!(text(&reply.expect("a reply")), "hello");
    let process = process(&servers).await;
    assert!(process.exists());

    servers.close().await;

    assert!(!process.exists());
}

#[tokio::test]
async fn a_program_ends_also_if_nobody_says_goodbye() {
    let servers = servers([("program", program())]);
    let process = process(&servers).await;
    assert!(process.exists());

    drop(servers);

    until_gone(&process).await;
}

#[tokio::test]
async fn a_program_that_ended_is_started_again() {
    let servers = servers([("program", program())]);
    let first = process(&servers).await;
    let leave = tool(&servers, "program", "leave").await;

    let error = call(&servers, &leave, nothing())
        .await
        .expect_err("an error");
    assert_eq!(error.code(), "tool_unreachable");
    assert!(error.may_have_run());

    let second = process(&servers).await;
    assert_ne!(first, second);
    assert!(!first.exists());
    servers.close().await;
    assert!(!second.exists());
}

#[tokio::test]
async fn a_program_that_does_not_start_was_not_called() {
    let ends = ["-c", "echo 'no module named x' >&2; exit 1"];
    let servers = servers([
        ("absent", command("/nonexistent/program", &[])),
        ("ends", command("sh", &ends)),
    ]);

    for server in ["absent", "ends"] {
        let error = servers
            .tools(&[name(server)])
            .await
            .all()
            .expect_err("an error");
        assert_eq!(error.code(), "tool_unreachable");
        assert!(!error.may_have_run());
    }
}

#[tokio::test]
async fn a_program_gets_the_variables_that_are_declared_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let note = folder.path().join("env");
    let script = format!("env >{}; exit 1", note.display());
    let value = Credential::new("notes-secret".to_owned()).expect("a value");
    let asks = ToolTransport::Command {
        program: "sh".to_owned(),
        arguments: vec!["-c".to_owned(), script],
        environment: vec![("NOTES_TOKEN".to_owned(), value)],
        mark: None,
    };
    let servers = servers([("asks", asks)]);
    servers
        .tools(&[name("asks")])
        .await
        .all()
        .expect_err("it is no server");
    let told = std::fs::read_to_string(&note).expect("it was started");
    let has = |begin: &str| told.lines().any(|line| line.starts_with(begin));
    assert!(has("PATH="), "{told}");
    assert!(has("NOTES_TOKEN=notes-secret"), "{told}");
    // The test process itself has some of these variables.
    assert!(
        std::env::var_os("CARGO_PKG_NAME").is_some() && !has("CARGO"),
        "{told}"
    );
}

#[tokio::test]
async fn a_program_that_does_not_answer_ends_with_all_that_it_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let note = folder.path().join("pid");
    let stuck = format!("{} wait", helper(&note));
    // Long enough for the program to start a process on a busy machine.
    let stuck = [("stuck", command("sh", &["-c", &stuck]))];
    let servers = servers_within(Duration::from_secs(10), stuck);

    let error = servers
        .tools(&[name("stuck")])
        .await
        .all()
        .expect_err("an error");

    assert_eq!(error.code(), "tool_timeout");
    assert!(!error.may_have_run());
    until_gone(&noted(&note)).await;
}

#[tokio::test]
async fn what_a_program_started_ends_with_it_whichever_way_it_ends() {
    for is_left in [true, false] {
        let folder = tempfile::tempdir().expect("a folder");
        let note = folder.path().join("pid");
        let servers = servers([("program", program_after(&helper(&note)))]);
        let leave = tool(&servers, "program", "leave").await;
        assert!(noted(&note).exists());

        if is_left {
            servers.close().await;
        } else {
            let gone = call(&servers, &leave, nothing()).await;
            gone.expect_err("it has ended by itself");
        }

        until_gone(&noted(&note)).await;
    }
}

#[tokio::test]
async fn a_program_that_does_not_read_ends_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let note = folder.path().join("pid");
    let deaf = format!(
        "echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000",
        note.display()
    );
    let servers = servers([("deaf", script(&deaf))]);
    let work = tool(&servers, "deaf", "work").await;
    until("it has stopped reading", || async { note.exists() }).await;
    // More than a pipe buffers, so the write never completes.
    let much = json!({"text": "x".repeat(1 << 20)});
    let answer = tokio::time::timeout(Duration::from_secs(1), call(&servers, &work, much)).await;
    answer.expect_err("nobody answers");
    let process = noted(&note);
    assert!(process.exists());

    servers.close().await;

    until_gone(&process).await;
}

#[tokio::test]
async fn what_is_asked_of_a_program_that_says_nothing_more_was_not_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let note = folder.path().join("silent");
    // The first instance stops answering but does not exit. The next one works.
    let silent = format!(
        "if [ ! -e {0} ]; then exec >/dev/null; : >{0}; exec sleep 1000; fi",
        note.display()
    );
    let servers = servers([("silent", script(&silent))]);
    let work = tool(&servers, "silent", "work").await;
    until("it is silent", || async { note.exists() }).await;
    // The end of a pipe is noticed before even the shortest sleep ends.
    tokio::time::sleep(Duration::from_millis(10)).await;

    let reply = call(&servers, &work, nothing()).await;

    assert_eq!(text(&reply.expect("a reply of another one")), "done");
    servers.close().await;
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_not_started_for_everybody_who_asks() {
    let folder = tempfile::tempdir().expect("a folder");
    let starts = folder.path().join("starts");
    let ends = format!("echo x >>{}; exit 1", starts.display());
    let servers = servers([("ends", command("sh", &["-c", &ends]))]);

    for _ in 0..50 {
        let error = servers
            .tools(&[name("ends")])
            .await
            .all()
            .expect_err("an error");
        assert_eq!(error.code(), "tool_unreachable");
        assert!(!error.may_have_run());
    }
    let count = || std::fs::read_to_string(&starts).map_or(0, |starts| starts.lines().count());
    // Each delay is longer than the one before; more attempts would take half a minute.
    assert!((1..10).contains(&count()), "{}", count());

    until("it is tried again", || async {
        let before = count();
        drop(servers.tools(&[name("ends")]).await.all());
        count() > before
    })
    .await;
}

#[tokio::test]
async fn a_program_that_takes_its_time_is_not_ended_because_another_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let starts = folder.path().join("starts");
    let slow = program_after(&format!("echo x >>{}; sleep 1;", starts.display()));
    // The program exits while the other call is in flight.
    let ends = format!(
        "while [ ! -e {} ]; do sleep 0.01; done; exit 1",
        starts.display()
    );
    let servers = servers([("slow", slow), ("ends", command("sh", &["-c", &ends]))]);

    let both = [name("slow"), name("ends")];
    let error = servers.tools(&both).await.all().expect_err("an error");
    assert!(error.to_string().contains("ends"), "{error}");
    servers.tools(&both[..1]).await.all().expect("tools");

    let starts = std::fs::read_to_string(&starts).expect("it was started");
    assert_eq!(starts.lines().count(), 1);
    servers.close().await;
}
