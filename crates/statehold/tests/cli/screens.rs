//! What people see: each list and each prompt on a terminal of 80 × 24 and of 120 × 40, with and without colour.
//!
//! `UPDATE=1` writes the screens that are expected. Ids, times and digests are masked.

use std::path::Path;

use serde_json::json;

use super::live::{Live, Story};

/// One screen: its name, the arguments, and what is typed after which prompt.
struct Screen {
    name: &'static str,
    args: Vec<String>,
    answers: Vec<(&'static str, &'static str)>,
}

const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];

/// A server with something in every list.
fn scene() -> (Live, Story, String) {
    let live = Live::start();
    let story = live.story("Weekly clean-up of users who left");
    let action = json!({
        "tool": "delete_user", "call_id": "c1", "risk": "high", "effect": "destructive",
        "args": { "user_id": 7, "cascade": false, "note": "left the company in March; the manager agreed to it in writing" },
        "args_schema": { "type": "object", "properties": {
            "user_id": { "type": "integer", "description": "the number of the user" }, "cascade": { "type": "boolean" } },
            "required": ["user_id"] },
    });
    let message = "Bob asked: \"Delete user 7\". This removes the account, its files and its calendar for good.";
    live.ask(
        &story,
        &json!({ "kind": "approval", "title": "Delete user 7", "message": message, "action": action,
            "expires_in_seconds": 5400, "on_expiry": "reject" }),
    );
    let question = live.ask(
        &story,
        &json!({ "kind": "question", "title": "Which Springfield?", "message": "There are several.",
            "response_schema": { "type": "string", "enum": ["Illinois", "Oregon"] } }),
    );
    let failing = live.story("Failing");
    live.post(
        &format!("/requests/{}/fail", failing.leaf),
        &json!({ "fence": failing.leaf_fence, "error": { "code": "upstream",
            "message": "The service for users answered 503 three times, and no retry is left." } }),
    );
    for (key, value) in [("plan", r#"{"step":3,"of":12}"#), ("user:language", "de")] {
        live.check(
            &["state", "set", key, value, "--session", &story.session],
            0,
            &[],
        );
    }
    live.key(&["treasurer", "approver"], Some("carol"));
    (live, story, question)
}

fn screens(story: &Story, question: &str) -> Vec<Screen> {
    let session = story.session.as_str();
    let hold = format!("{}/R2.h1", &session[session.len() - 6..]);
    let screen = |name, args: &[&str], answers: &[(&'static str, &'static str)]| Screen {
        name,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        answers: answers.to_vec(),
    };
    vec![
        screen("approvals list", &["approvals", "list"], &[]),
        screen(
            "approvals list decided",
            &["approvals", "list", "--status", "decided"],
            &[],
        ),
        screen("approvals show", &["approvals", "show", &hold], &[]),
        screen(
            "approvals approve",
            &["approvals", "approve", &hold],
            &[("of R2.h1: ", "\n")],
        ),
        screen(
            "approvals edit",
            &["approvals", "edit", &hold, "--set", "user_id=8"],
            &[("of R2.h1: ", "\n")],
        ),
        screen(
            "approvals reject",
            &["approvals", "reject", &hold],
            &[("[y/N] ", "\n")],
        ),
        screen(
            "approvals dismiss",
            &["approvals", "dismiss", &hold],
            &[("[y/N] ", "\n")],
        ),
        screen(
            "approvals respond",
            &["approvals", "respond", question],
            &[("decides nothing): ", "\u{4}")],
        ),
        screen("approvals watch", &["approvals", "watch"], &[("quit", "q")]),
        screen("sessions list", &["sessions", "list"], &[]),
        screen("sessions show", &["sessions", "show", session], &[]),
        screen(
            "sessions show failed",
            &["sessions", "show", "Failing", "--show-hidden"],
            &[],
        ),
        screen("sessions diff", &["sessions", "diff", session], &[]),
        screen(
            "sessions delete",
            &["sessions", "delete", session],
            &[("[y/N] ", "\n")],
        ),
        screen("tasks tree", &["tasks", "tree", session], &[]),
        screen(
            "tasks show",
            &["tasks", "show", &format!("{session}/T2")],
            &[],
        ),
        screen(
            "tasks cancel",
            &["tasks", "cancel", &format!("{session}/T2")],
            &[("[y/N] ", "\n")],
        ),
        screen("state list", &["state", "list", "--session", session], &[]),
        screen(
            "state history",
            &["state", "history", "plan", "--session", session],
            &[],
        ),
        screen("agents list", &["agents", "list"], &[]),
        screen("token list", &["token", "list"], &[]),
        screen("audit list", &["audit", "list"], &[]),
        screen(
            "audit list decisions",
            &["audit", "list", "--decisions"],
            &[],
        ),
        screen("audit verify", &["audit", "verify"], &[]),
        screen("keys list", &["keys", "list"], &[]),
        screen("status", &["status"], &[]),
        screen(
            "users erase",
            &["users", "erase", "carol"],
            &[("[y/N] ", "\n")],
        ),
        screen("an unknown hold", &["approvals", "show", "R77.h7"], &[]),
        screen(
            "an unknown session",
            &["sessions", "show", "nothing of this name"],
            &[],
        ),
    ]
}

#[test]
fn lists_and_prompts_fit_the_terminal_with_and_without_colour() {
    let (live, story, question) = scene();
    let mut shown = String::new();
    for size in SIZES {
        for Screen {
            name,
            args,
            answers,
        } in screens(&story, &question)
        {
            let see = |colour: &str| {
                let mut all = vec!["--color", colour];
                all.extend(args.iter().map(String::as_str));
                let (_, screen) = live.converse_on_terminal(&all, &answers, &[], Some(size));
                plain(&screen)
            };
            let (bare, coloured) = (see("never"), see("always"));
            let (columns, rows) = size;
            for line in bare.lines() {
                let width = unicode_width::UnicodeWidthStr::width(line);
                assert!(
                    width <= usize::from(columns),
                    "{name} at {columns}: {width} in {line:?}"
                );
            }
            let bare = masked(&bare, &live.url);
            assert_eq!(
                masked(&coloured, &live.url),
                bare,
                "colour changes the words of {name}"
            );
            let screen = format!("=== {name}, {columns} × {rows}\n{}\n\n", bare.trim_end());
            shown.push_str(&screen);
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/screens.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &shown).expect("it is written");
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    for (found, expected) in shown.split("=== ").zip(expected.split("=== ")) {
        assert_eq!(found, expected, "UPDATE=1 writes the screens anew");
    }
    assert_eq!(
        shown.len(),
        expected.len(),
        "UPDATE=1 writes the screens anew"
    );
}

/// The text of a screen, without colours and other escapes. What was drawn in place is there once, as it was first.
fn plain(screen: &str) -> String {
    let screen = screen.replace("\r\n", "\n");
    let first = screen.split("F\u{1b}[?7l").next().unwrap_or_default();
    let mut text = String::new();
    let mut rest = first.chars();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' {
            let _ = rest.by_ref().find(char::is_ascii_alphabetic);
        } else if c != '\u{7}' {
            text.push(c);
        }
    }
    let lines = text.lines().map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n")
}

/// Ids, digests and times differ from run to run. Numbers of different lengths make columns of different widths.
fn masked(screen: &str, url: &str) -> String {
    let mut text = screen.replace(url, "URL");
    for (pattern, mask) in [
        (
            r"\b(ses|tsk|req|hld|itm|usr|key|krs)_[0-9a-f]{32}\b",
            "${1}_ID",
        ),
        (
            r"\b(ses|tsk|req|hld|itm|usr|key|krs)_[0-9a-f]{4}…[0-9a-f]{6}\b",
            "${1}_ID",
        ),
        (
            r"\b(ses|tsk|req|hld|itm|usr|key|krs)_[0-9a-f]*\n\s*[0-9a-f]{4,}\b",
            "${1}_ID",
        ),
        (r"\b[0-9a-f]{6}/(R\d)", "ID/$1"),
        (r"\b[0-9a-f]{64}\b", "DIGEST"),
        (r"\b[0-9a-f]{8}…", "DIGEST…"),
        (r"\b[0-9a-f]{16,63}\b", "ID"),
        (r"(?m)^[0-9a-f]{8} ", "ID "),
        (r"\d\d:\d\d:\d\d UTC", "TIME"),
        (r"\b\d+ (s|ms|min)\b", "N $1"),
        (r"\bjust now\b", "N s ago"),
        (r"pid +\d+", "pid N"),
        (r" {3,}", "  "),
        (r"(?m)^ +", "  "),
    ] {
        let pattern = regex::Regex::new(pattern).expect("a pattern");
        text = pattern.replace_all(&text, mask).into_owned();
    }
    text
}
