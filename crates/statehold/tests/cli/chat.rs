//! Talking to agents.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehold_testkit::http::signal;

use super::live::{Live, text};
use super::remote::Ended;
use super::scripted;

/// How long something that is waited for may take.
const NEVER: Duration = Duration::from_mins(1);

#[test]
fn one_message_is_answered_and_the_exit_code_says_how() {
    let live = Live::start_demo();
    let ended = live.check(&["chat", "-m", "What's 2+2"], 0, &[]);
    assert_eq!(ended.out, "2+2 is 4\n");
    let waits = ["chat", "--no-wait", "-m", "Delete user 7"];
    live.check(&waits, 8, &["Delete user 7", "statehold approvals approve"]);
    let nobody = ["--timeout", "10s", "chat", "nobody", "-m", "hi"];
    live.check(
        &nobody,
        7,
        &["nobody is not declared", "coordinator", "tasks tree"],
    );
}

#[test]
fn a_turn_that_no_worker_claims_says_so_and_keeps_to_its_timeout() {
    let live = Live::start_demo();
    let says = "no worker has claimed the request to nobody yet";
    let alone = ["--timeout", "6s", "chat", "nobody", "-m", "hi"];
    live.check(&alone, 7, &[says, "tasks tree"]);
    // The same for each line of a conversation, which goes on.
    let args = ["--timeout", "6s", "chat", "nobody"];
    let Ended { code, out, err } = run_with_input(&args, &live, "hi\n/session\n");
    assert_eq!(code, 7, "{out}{err}");
    assert!(err.contains(says) && out.contains("ses_"), "{out}{err}");
    // An agent that answers in time is not mistaken for one.
    let ended = live.check(&["chat", "-m", "What's 2+2"], 0, &[]);
    assert!(!ended.err.contains("no worker"), "{}", ended.err);
}

#[test]
fn a_command_in_a_chat_can_be_pasted_and_only_people_who_may_decide_get_one() {
    let live = Live::start_demo();
    let waits = ["chat", "--no-wait", "-m", "Delete user 7"];
    let told = live.check(&waits, 8, &[]).out;
    let pasted = told.split("Decide with: ").nth(1).expect("a command");
    let pasted = pasted.lines().next().expect("a line");
    let pasted = pasted.strip_prefix("statehold ").expect("the program");
    let (words, confirm) = pasted.split_once(" --confirm \"").expect("high risk");
    let (confirm, server) = confirm.split_once('"').expect("a quoted text");
    let mut args: Vec<&str> = words.split(' ').collect();
    args.extend(["--confirm", confirm, "--no-wait"]);
    args.extend(server.split_whitespace());
    assert!(args.contains(&"--url"), "{told}");
    live.check(&args, 0, &["✓ approved"]);
    let ann = live.key(&["client"], Some("ann"));
    let waits = ["chat", "--no-wait", "-m", "Delete user 5"];
    let told = live.run_with(&ann, &waits);
    assert!(
        told.out.contains("Another person has to decide"),
        "{told:?}"
    );
    assert!(!told.out.contains("statehold approvals"), "{told:?}");
    // The same for a chat that waits.
    let mut chat = command(&["chat", "-m", "Delete user 6"], &live);
    let mut chat = chat
        .env("STATEHOLD_TOKEN", &ann)
        .spawn()
        .expect("it starts");
    let mut err = BufReader::new(chat.stderr.take().expect("piped"));
    let mut told = String::new();
    while !told.contains("must decide") {
        assert_ne!(err.read_line(&mut told).expect("it reads"), 0, "{told}");
    }
    assert!(!told.contains("statehold approvals"), "{told}");
    chat.kill().expect("it runs");
    chat.wait().expect("it ends");
}

#[test]
fn a_question_stays_open_while_its_user_talks_about_something_else() {
    let live = Live::start_demo();
    let lines = "What's the weather in Springfield?\nWhat's 2+2\nthe second\n";
    let Ended { code, out, err } = run_with_input(&["chat", "--user", "ann"], &live, lines);
    assert_eq!(code, 0, "{out}{err}");
    let reminder = "still waits for an answer: Which Springfield?";
    assert!(out.contains(reminder) && out.contains("2+2 is 4"), "{out}");
    assert!(out.contains("Springfield, MA: Rain, 63"), "{out}");
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
    let args = ["chat", "-s", session, "-m", "Delete the first user"];
    let chat = command(&args, &live).spawn().expect("it starts");
    let hold = open_hold(&live, session);
    live.check(&["approvals", "reject", &hold, "--comment", "no"], 0, &[]);
    let output = chat.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(9));
    let told = "A person refused: user 1 was not deleted: no";
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains(told), "{out}");
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
    let lines = "What's the weather in Springfield?\nIllinois\nWhat's 2+2\n/session\n";
    let Ended { code, out, err } = run_with_input(&["chat", "--user", "ann"], &live, lines);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains("Which Springfield?"), "{err}");
    assert!(out.contains("Springfield, IL: Sunny, 75"), "{out}");
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
fn what_agents_do_is_shown_to_whoever_asks_for_it() {
    let live = Live::start_demo();
    let shown = ["chat", "--show-hidden", "-m", "List users"];
    let shown = live.check(&shown, 0, &["12 users:", "list_users({})"]);
    assert!(shown.out.contains("┆ hidden  tool_result"), "{}", shown.out);
    let plain = live.check(&["chat", "-m", "List users"], 0, &["12 users:"]);
    assert!(!plain.out.contains("list_users({})"), "{}", plain.out);
    let lines = "List users\n/hidden\n/session\n/new\n/session\n/nonsense\n";
    let ended = run_with_input(&["chat"], &live, lines);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains("list_users({})"), "{ended:?}");
    let sessions = ended.out.lines().filter(|line| line.starts_with("ses_"));
    let sessions: Vec<&str> = sessions.collect();
    assert!(matches!(sessions[..], [first, second] if first != second));
    assert!(ended.err.contains("unknown command /nonsense"), "{ended:?}");
}

#[test]
fn an_agent_that_fails_is_exit_code_1_and_the_reason() {
    let dead =
        "{ kind = \"openai\", base_url = \"http://127.0.0.1:1/v1\", model = \"x\", retries = 0 }";
    let live = Live::start_with(&[("STATEHOLD__AGENTS__DEAD", dead)]);
    let says = ["cannot be reached", "send the message again"];
    live.check(&["chat", "dead", "-m", "hi"], 1, &says);
}

/// An agent that says one word, and the rest when it is let.
struct Slow {
    live: Live,
    go_on: mpsc::Sender<()>,
}

impl Slow {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (go_on, is_let) = mpsc::channel();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the server calls");
            scripted::read(&stream);
            let piece = |text: &str, end: &str| {
                let choice = json!({"index": 0, "delta": {"content": text}});
                format!("data: {}\n\n{end}", json!({"choices": [choice]}))
            };
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            let first = head.to_owned() + &piece("One", "");
            stream.write_all(first.as_bytes()).expect("it reads");
            is_let.recv().expect("the test goes on");
            let stop = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
            let last = piece(" by one.", &format!("data: {stop}\n\ndata: [DONE]\n\n"));
            stream.write_all(last.as_bytes()).expect("it reads");
            // Read the request before closing the connection.
            drop(stream.read_to_end(&mut Vec::new()));
        });
        let declared = format!(
            "{{ kind = \"openai\", base_url = \"http://127.0.0.1:{port}/v1\", model = \"x\" }}"
        );
        let live = Live::start_with(&[("STATEHOLD__AGENTS__SLOW", &declared)]);
        Self { live, go_on }
    }

    /// Says something to it, and waits for its first word.
    fn ask(&self, args: &[&str], line: &str) -> (Child, ChildStdin, ChildStdout) {
        let mut chat = command(args, &self.live).spawn().expect("it starts");
        let mut input = chat.stdin.take().expect("piped");
        input.write_all(line.as_bytes()).expect("it reads");
        let mut out = chat.stdout.take().expect("piped");
        let mut first = [0; 3];
        out.read_exact(&mut first).expect("a word before the end");
        assert_eq!(&first, b"One");
        (chat, input, out)
    }
}

fn rest(mut out: impl Read) -> String {
    let mut text = String::new();
    out.read_to_string(&mut text).expect("UTF-8");
    text
}

#[test]
fn words_are_printed_while_they_come() {
    let slow = Slow::start();
    let (mut chat, _, out) = slow.ask(&["chat", "slow", "-m", "hi"], "");
    slow.go_on.send(()).expect("it waits");
    assert_eq!(rest(out), " by one.\n");
    assert_eq!(chat.wait().expect("it ends").code(), Some(0));
}

#[test]
fn somebody_who_stops_waiting_does_not_stop_the_turn() {
    let slow = Slow::start();
    let (mut chat, input, _out) = slow.ask(&["chat", "slow"], "hi\n");
    signal(chat.id(), "INT").expect("it runs");
    let mut errors = BufReader::new(chat.stderr.take().expect("piped")).lines();
    let told = errors.find(|line| {
        let line = line.as_ref().expect("UTF-8");
        line.contains("stopped waiting; the turn continues")
    });
    assert!(told.is_some(), "it says so");
    drop(input);
    assert_eq!(chat.wait().expect("it ends").code(), Some(130));
    slow.go_on.send(()).expect("it waits");
    let sessions = slow.live.get("/sessions")["sessions"].clone();
    let path = format!("/sessions/{}/messages", text(&sessions[0], "id"));
    let deadline = Instant::now() + NEVER;
    while Instant::now() < deadline {
        if slow.live.get(&path)["messages"][1]["content"] == "One by one." {
            return;
        }
    }
    panic!("the turn did not go on");
}

/// The program, with everything piped.
fn command(args: &[&str], live: &Live) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_statehold"));
    command
        .args(args)
        .env_clear()
        .env("STATEHOLD_URL", &live.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program with these lines on its standard input.
fn run_with_input(args: &[&str], live: &Live, lines: &str) -> Ended {
    let mut chat = command(args, live).spawn().expect("the program starts");
    let mut input = chat.stdin.take().expect("piped");
    input.write_all(lines.as_bytes()).expect("it reads");
    drop(input);
    let output = chat.wait_with_output().expect("it ends");
    Ended {
        code: output.status.code().expect("it ends by itself"),
        out: rest(&output.stdout[..]),
        err: rest(&output.stderr[..]),
    }
}
