//! Talking to agents, and the tour.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::live::Live;

/// How long something that is waited for may take.
const NEVER: Duration = Duration::from_mins(1);

#[test]
fn one_message_is_answered_and_the_exit_code_says_how() {
    let live = Live::start_demo();
    let ended = live.check(&["chat", "-m", "What's 2+2"], 0, &[]);
    assert_eq!(ended.out, "2+2 is 4\n");
    let waits = ["chat", "--no-wait", "-m", "Delete user 7"];
    live.check(&waits, 8, &["Delete user 7", "statehold approvals approve"]);
    let nobody = ["--timeout", "2s", "chat", "nobody", "-m", "hi"];
    live.check(
        &nobody,
        7,
        &["nobody is not declared", "coordinator", "tasks tree"],
    );
}

#[test]
fn a_conversation_goes_on_in_its_session_and_programs_get_all_of_it() {
    let live = Live::start_demo();
    let first = live.run(&["--json", "chat", "-m", "Calculate fibonacci(10)"]);
    let report: Value = serde_json::from_str(&first.out).expect("JSON");
    assert_eq!(report["status"], "completed");
    assert_eq!(report["via"], serde_json::json!(["math-agent"]));
    let session = report["session"].as_str().expect("a session");
    let next = live.run(&["chat", "-s", session, "-m", "Now calculate fibonacci(20)"]);
    assert!(next.out.contains("6765"), "{next:?}");
    assert!(next.out.contains("55"), "it remembers: {next:?}");
}

#[test]
fn a_person_who_says_no_is_told_and_is_exit_code_9() {
    let live = Live::start_demo();
    let first = live.run(&["--json", "chat", "-m", "List users"]);
    let report: Value = serde_json::from_str(&first.out).expect("JSON");
    let session = report["session"].as_str().expect("a session");
    let mut chat = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(["chat", "-s", session, "-m", "Delete the first user"])
        .env_clear()
        .env("STATEHOLD_URL", &live.url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let hold = open_hold(&live, session);
    live.check(&["approvals", "reject", &hold, "--comment", "no"], 0, &[]);
    let status = chat.wait().expect("it ends");
    assert_eq!(status.code(), Some(9));
}

/// The hold that is open in a session, as soon as there is one.
fn open_hold(live: &Live, session: &str) -> String {
    let deadline = Instant::now() + NEVER;
    while Instant::now() < deadline {
        let listed = live.run(&["--json", "approvals", "list"]);
        let listed: Value = serde_json::from_str(&listed.out).expect("JSON");
        let holds = listed["holds"].as_array().expect("a list");
        let found = holds.iter().find(|hold| hold["session_id"] == session);
        if let Some(id) = found.and_then(|hold| hold["id"].as_str()) {
            return id.to_owned();
        }
    }
    panic!("nothing waits for a person");
}

#[test]
fn lines_of_a_pipe_are_a_conversation_and_a_plain_line_answers_the_question() {
    let live = Live::start_demo();
    let mut chat = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(["chat", "--user", "ann"])
        .env_clear()
        .env("STATEHOLD_URL", &live.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let lines = "What's the weather in Springfield?\nIllinois\nWhat's 2+2\n/session\n";
    let mut input = chat.stdin.take().expect("piped");
    input.write_all(lines.as_bytes()).expect("it reads");
    drop(input);
    let output = chat.wait_with_output().expect("it ends");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(err.contains("Which Springfield?"), "{err}");
    assert!(out.contains("2+2 is 4") && out.contains("ses_"), "{out}");
}

#[test]
fn a_typed_approval_is_none() {
    let live = Live::start_demo();
    let first = live.run(&["--json", "chat", "--no-wait", "-m", "Delete user 7"]);
    let report: Value = serde_json::from_str(&first.out).expect("JSON");
    assert_eq!(report["status"], "paused");
    let session = report["session"].as_str().expect("a session");
    for typed in ["approved", "yes", "approve"] {
        live.check(
            &["chat", "-s", session, "-m", typed],
            0,
            &["is not an approval"],
        );
    }
    let hold = open_hold(&live, session);
    live.check(&["approvals", "show", &hold], 0, &["open"]);
}

#[test]
fn a_person_at_a_terminal_sees_who_answered() {
    let live = Live::start_demo();
    let typed = "What's 2+2\n/tree\n/quit\n";
    let (code, screen) = live.run_on_terminal(&["chat"], typed, &[]);
    assert_eq!(code, 0, "{screen}");
    for words in ["as bob", "2+2 is 4", "via math-agent", "T2 math-agent"] {
        assert!(screen.contains(words), "{words:?} is missing: {screen}");
    }
}

#[test]
fn values_of_apps_and_sessions_are_read_and_written() {
    let live = Live::start();
    live.check(&["state", "get", "app:x"], 3, &["state list"]);
    live.check(&["state", "set", "app:x", "{\"a\":1}"], 0, &[]);
    let got = live.check(&["state", "get", "app:x"], 0, &[]);
    assert_eq!(got.out, "{\"a\":1}\n");
    live.check(
        &["state", "set", "user:y", "plain words", "--user", "ann"],
        0,
        &[],
    );
    live.check(
        &["state", "list", "--user", "ann"],
        0,
        &["user:y", "plain words"],
    );
    live.check(&["state", "get", "user:y"], 2, &["--user"]);
    live.check(&["state", "get", "z"], 2, &["--session"]);
    live.check(&["state", "delete", "app:x"], 0, &[]);
    live.check(&["state", "get", "app:x"], 3, &[]);
}

#[test]
fn every_claim_of_the_tour_holds_also_after_a_crash() {
    let tour = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(["demo", "--crash", "--fast"])
        .env_clear()
        .output()
        .expect("the program starts");
    let out = String::from_utf8_lossy(&tour.stdout);
    let err = String::from_utf8_lossy(&tour.stderr);
    assert_eq!(tour.status.code(), Some(0), "{out}\n{err}");
    assert!(out.contains("14 claims, all true"), "{out}");
}
