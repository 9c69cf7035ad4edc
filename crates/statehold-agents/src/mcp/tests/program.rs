//! Servers that are programs. The program is this test binary: one of its tests is the server.

use std::path::PathBuf;

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
    let this = std::env::current_exe().expect("a path");
    let arguments = [
        "--ignored",
        "--exact",
        "--nocapture",
        "mcp::tests::program::the_program_itself",
    ];
    ToolTransport::Command {
        program: this.to_str().expect("a path in UTF-8").to_owned(),
        arguments: arguments.map(str::to_owned).to_vec(),
        environment: Vec::new(),
    }
}

async fn process(servers: &ToolServers) -> PathBuf {
    let pid = tool(servers, "program", "pid").await;
    let reply = call(servers, &pid, nothing()).await.expect("a reply");
    PathBuf::from("/proc").join(text(&reply))
}

async fn until_gone(process: &std::path::Path) {
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
    let of = |program: &str, arguments: &[&str]| ToolTransport::Command {
        program: program.to_owned(),
        arguments: arguments.iter().map(|&text| text.to_owned()).collect(),
        environment: Vec::new(),
    };
    let servers = servers([
        ("absent", of("/nonexistent/program", &[])),
        (
            "ends",
            of("sh", &["-c", "echo 'no module named x' >&2; exit 1"]),
        ),
    ]);

    for server in ["absent", "ends"] {
        let error = servers.tools(&[name(server)]).await.expect_err("an error");
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
    };
    let servers = servers([("asks", asks)]);
    servers
        .tools(&[name("asks")])
        .await
        .expect_err("it is no server");
    let told = std::fs::read_to_string(&note).expect("it was started");
    let has = |begin: &str| told.lines().any(|line| line.starts_with(begin));
    assert!(has("PATH="), "{told}");
    assert!(has("NOTES_TOKEN=notes-secret"), "{told}");
    // This test was started with some of these.
    assert!(
        std::env::var_os("CARGO_PKG_NAME").is_some() && !has("CARGO"),
        "{told}"
    );
}

#[tokio::test]
async fn a_program_that_does_not_answer_ends_with_all_that_it_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let note = folder.path().join("pid");
    let script = format!("sleep 1000 & echo $! >{}; wait", note.display());
    let stuck = ToolTransport::Command {
        program: "sh".to_owned(),
        arguments: vec!["-c".to_owned(), script],
        environment: Vec::new(),
    };
    let servers = servers_within(Duration::from_secs(1), [("stuck", stuck)]);

    let error = servers.tools(&[name("stuck")]).await.expect_err("an error");

    assert_eq!(error.code(), "tool_timeout");
    assert!(!error.may_have_run());
    let started = std::fs::read_to_string(&note).expect("it has started something");
    until_gone(&PathBuf::from("/proc").join(started.trim())).await;
}
