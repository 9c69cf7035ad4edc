//! Following holds and trees.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::live::Live;

/// A command that runs until it has printed the expected lines.
struct Following {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Following {
    fn start(live: &Live, key: Option<&str>, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_statehold"));
        command
            .args(args)
            .env_clear()
            .env("STATEHOLD_URL", &live.url);
        if let Some(key) = key {
            command.env("STATEHOLD_TOKEN", key);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it speaks UTF-8");
        line
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn change(line: &str) -> (String, String, String) {
    let change: Value = serde_json::from_str(line).expect("JSON");
    let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let hold = &change["hold"];
    (of(&change["change"]), of(&hold["id"]), of(&hold["status"]))
}

#[test]
fn changes_are_lines_for_everybody_who_may_see_holds() {
    let live = Live::start();
    // One reads feeds; the other reads no sessions, and may have to ask.
    for key in [None, Some(live.key(&["approver"], Some("carol")))] {
        let first = live.story(if key.is_some() { "a" } else { "b" });
        let open = live.ask_to_delete(&first, "low");
        let args = ["approvals", "watch", "--jsonl", "--count", "4"];
        let mut following = Following::start(&live, key.as_deref(), &args);
        let expect = |following: &mut Following, word: &str, id: &str, status: &str| {
            let expected = (word.to_owned(), id.to_owned(), status.to_owned());
            assert_eq!(change(&following.line()), expected);
        };
        expect(&mut following, "opened", &open, "open");
        let second = live.story(if key.is_some() { "c" } else { "d" });
        let other = live.ask_to_delete(&second, "high");
        expect(&mut following, "opened", &other, "open");
        live.check(&["approvals", "approve", &open, "-y", "--no-wait"], 0, &[]);
        expect(&mut following, "decided", &open, "approved");
        live.check(&["approvals", "reject", &other, "--no-wait"], 0, &[]);
        expect(&mut following, "decided", &other, "rejected");
        assert_eq!(following.child.wait().expect("it ends").code(), Some(0));
    }
}

#[test]
fn lines_in_a_pipe_have_tabs() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    let ended = live.check(&["approvals", "watch", "--count", "1"], 0, &[]);
    let cells: Vec<&str> = ended.out.trim_end().split('\t').collect();
    assert_eq!(
        cells[1..7],
        [
            "opened",
            "R2.h1",
            "open",
            "-",
            "high",
            "delete_user(user_id=7, cascade=false)"
        ]
    );
    assert_eq!(cells[9..], [story.session.as_str(), hold.as_str()]);
}

#[test]
fn a_terminal_is_drawn_in_place_with_the_tree() {
    let live = Live::start();
    let story = live.story("a");
    live.ask_to_delete(&story, "high");
    live.ask_to_delete(&live.story("b"), "low");
    let args = ["approvals", "watch", "--count", "2"];
    let (code, screen) = live.run_on_terminal(&args, "", &[]);
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("T1 coordinator"), "{screen}");
    assert!(
        screen.contains("F\u{1b}[?7l"),
        "it goes back to where it began: {screen:?}"
    );
}

#[test]
fn a_tree_is_followed() {
    let live = Live::start();
    let story = live.story("a");
    let mut following = Following::start(&live, None, &["tasks", "tree", "T2", "--watch"]);
    assert!(following.line().starts_with("T2 ums-agent    running"));
    assert!(following.line().starts_with("└─ R2 invoke    running"));
    assert_eq!(following.line(), "\n");
    live.ask_to_delete(&story, "low");
    assert!(following.line().contains("waits for R2.h1"));
    assert!(following.line().contains("approval R2.h1 open"));
}

#[test]
fn a_key_shows_the_whole_hold_and_its_digest_and_then_asks_like_the_command() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    let watch = |answers: &[(&str, &str)]| {
        live.converse_on_terminal(&["approvals", "watch"], answers, &[], Some((80, 24)))
    };
    let back = "Enter goes back to the list. ";
    // Neither keys that were typed ahead nor Enter alone approve.
    for typed in ["\n", "y\n", "user 8\n"] {
        let answers = [
            ("q quit", "ay\nuser 7\n"),
            ("of R2.h1: ", typed),
            (back, "\n"),
            ("q quit", "q"),
        ];
        let (code, screen) = watch(&answers);
        assert_eq!(code, 0, "{screen}");
        assert!(screen.contains("nothing was decided"), "{screen}");
        assert_eq!(live.hold(&hold)["status"], "open", "{typed:?}: {screen}");
    }
    let answers = [
        ("q quit", "a"),
        ("of R2.h1: ", "user 7\n"),
        (back, "\n"),
        ("q quit", "q"),
    ];
    let (code, screen) = watch(&answers);
    assert_eq!(code, 0, "{screen}");
    let digest = live.hold(&hold)["action"]["digest"].clone();
    let digest = digest.as_str().expect("a digest");
    let (before, after) = screen.split_once("of R2.h1: ").expect("it asks");
    assert!(
        before.contains(digest) && before.contains("then it is rejected"),
        "{screen}"
    );
    assert!(after.contains("✓ approved R2.h1"), "{screen}");
    assert_eq!(live.hold(&hold)["status"], "approved");
}

#[test]
fn keys_choose_a_hold_and_reject_it_with_words_only() {
    let live = Live::start();
    let [first, second] = ["a", "b"].map(|name| live.ask_to_delete(&live.story(name), "high"));
    let args = ["approvals", "watch"];
    let why = "rejects nothing): ";
    let back = "Enter goes back to the list. ";
    let answers = [
        ("q quit", "s"),
        ("q quit", "r"),
        (why, "\n"),
        (back, "\n"),
        ("q quit", "r"),
        (why, "not now\n"),
        (back, "\n"),
        ("q quit", "\u{3}"),
    ];
    let (code, screen) = live.converse_on_terminal(&args, &answers, &[], Some((80, 24)));
    assert_eq!(code, 0, "{screen}");
    assert_eq!(live.hold(&first)["status"], "open", "{screen}");
    let rejected = live.hold(&second);
    assert_eq!(rejected["status"], "rejected", "{screen}");
    assert_eq!(rejected["decision"]["comment"], "not now");
}

#[test]
fn a_key_for_a_decision_that_is_not_offered_does_nothing() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "low");
    // Bob asked for it, so he may not decide.
    let bob = live.key(&["client", "approver"], Some("bob"));
    let variables = [("STATEHOLD_TOKEN", bob.as_str())];
    let answers = [("You cannot decide this", "aremi"), ("q quit", "q")];
    let args = ["approvals", "watch"];
    let (code, screen) = live.converse_on_terminal(&args, &answers, &variables, Some((80, 24)));
    assert_eq!(code, 0, "{screen}");
    assert!(!screen.contains("[y/N]"), "{screen}");
    assert_eq!(live.hold(&hold)["status"], "open");
}

#[test]
fn a_high_window_lists_more_holds_and_keeps_the_keys() {
    let live = Live::start();
    for name in 0..20 {
        live.ask_to_delete(&live.story(&format!("story {name}")), "low");
    }
    for (size, rows_min) in [((120, 40), 18), ((80, 24), 3)] {
        let answers = [("q quit", "q")];
        let (code, screen) =
            live.converse_on_terminal(&["approvals", "watch"], &answers, &[], Some(size));
        assert_eq!(code, 0, "{screen}");
        let first = screen.split("F\u{1b}[?7l").next().unwrap_or_default();
        let rows = first.matches("/R2.h1").count();
        assert!(rows >= rows_min, "{rows} rows: {first}");
        assert!(!first.contains("make the window higher"), "{first}");
        assert!(first.contains("risk: low"), "{first}");
    }
}

#[test]
fn the_end_of_the_terminal_ends_it() {
    let live = Live::start();
    live.ask_to_delete(&live.story("a"), "low");
    let (mut child, mut terminal) = live.spawn_on_terminal(&["approvals", "watch"], &[], None);
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("q quit") {
        let mut piece = [0; 4096];
        let count = terminal.read(&mut piece).expect("it draws");
        said.extend_from_slice(&piece[..count]);
    }
    drop(terminal);
    // A program that goes on is ended by the runner of the tests.
    child.wait().expect("it ends by itself");
}

#[test]
fn in_ci_there_are_no_keys() {
    let live = Live::start();
    let story = live.story("a");
    live.ask_to_delete(&story, "low");
    let args = ["approvals", "watch", "--count", "1"];
    let (code, screen) = live.run_on_terminal(&args, "a", &[("CI", "1")]);
    assert_eq!(code, 0, "{screen}");
    assert!(
        screen.contains("Ctrl-C ends") && !screen.contains("q quit"),
        "{screen}"
    );
}
