//! Values of apps, users and sessions.

use serde_json::Value;

use super::live::Live;

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
fn the_past_of_a_session_is_read_compared_and_brought_back() {
    let live = Live::start();
    let story = live.story("past");
    let session = story.session.as_str();
    let state = |args: &[&str]| {
        let args: Vec<&str> = [&["state"], args, &["--session", session]].concat();
        live.check(&args, 0, &[]).out
    };
    let revision = || {
        let shown = live.check(&["sessions", "show", session, "--json"], 0, &[]);
        let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
        let session = shown.get("session").unwrap_or(&shown);
        session["revision"].as_u64().expect("a number")
    };
    state(&["set", "plan", "\"first\""]);
    let first = revision();
    state(&["set", "plan", "\"second\""]);
    state(&["set", "extra", "1"]);
    let first = first.to_string();
    assert_eq!(state(&["get", "plan"]), "\"second\"\n");
    assert_eq!(state(&["get", "plan", "--at", &first]), "\"first\"\n");
    let then = state(&["list", "--at", &first]);
    assert!(then.contains("plan") && !then.contains("extra"), "{then}");
    live.check(&["state", "get", "plan", "--at", "1"], 2, &["--session"]);
    live.check(
        &["state", "list", "--session", session, "--at", "999"],
        1,
        &["`at`"],
    );

    let changed = state(&["diff", "--from", &first]);
    assert!(changed.contains("first") && changed.contains("second"));
    assert!(changed.contains("extra") && changed.contains("local"));
    let one: Value = serde_json::from_str(&state(&["diff", "extra", "--json"])).expect("JSON");
    assert_eq!(one.as_array().map(Vec::len), Some(1));
    assert_eq!(one[0]["after"]["value"], 1);

    let writes = state(&["history", "plan"]);
    let lines: Vec<&str> = writes.lines().skip(1).collect();
    assert_eq!(lines.len(), 2, "{writes}");
    assert!(lines[0].starts_with(&first) && lines[0].ends_with("\"first\""));
    assert!(lines[1].contains("put_state") && lines[1].ends_with("\"second\""));

    let fork = live.check(&["sessions", "fork", session, "--at", &first], 0, &[]);
    let fork = fork.out.trim_end();
    let got = live.check(&["state", "get", "plan", "--session", fork], 0, &[]);
    assert_eq!(got.out, "\"first\"\n");
    live.check(&["sessions", "fork", session, "--at", "999"], 1, &["`at`"]);

    live.check(
        &["sessions", "rewind", session, "--to", &first],
        2,
        &["--yes"],
    );
    live.check(
        &["sessions", "rewind", session, "--to", &first, "-y"],
        0,
        &["rewound"],
    );
    assert_eq!(state(&["get", "plan"]), "\"first\"\n");
    let diff = live.check(&["sessions", "diff", session, "--json"], 0, &[]);
    let diff: Value = serde_json::from_str(&diff.out).expect("JSON");
    assert_eq!(diff["rewinds"][0]["to"].to_string(), first);
    live.check(&["sessions", "diff", session], 0, &["plan", "went back to"]);
}

#[test]
fn writes_are_followed_with_their_values() {
    let live = Live::start();
    let story = live.story("followed");
    let session = story.session.as_str();
    for args in [["set", "a", "1"], ["set", "b", "[2]"], ["set", "a", "3"]] {
        let args: Vec<&str> = [&["state"], &args[..], &["--session", session]].concat();
        live.check(&args, 0, &[]);
    }
    live.check(&["state", "delete", "a", "--session", session], 0, &[]);
    let watch = |args: &[&str]| {
        let all: Vec<&str> = [
            &[
                "state",
                "watch",
                "--session",
                session,
                "--after",
                "0",
                "--jsonl",
            ],
            args,
        ]
        .concat();
        let lines = live.check(&all, 0, &[]).out;
        let shown = |line: &str| {
            let write: Value = serde_json::from_str(line).expect("JSON");
            format!("{} {} {}", write["act"], write["key"], write["value"])
        };
        lines.lines().map(shown).collect::<Vec<_>>()
    };
    let all = [
        "\"state_put\" \"a\" 1",
        "\"state_put\" \"b\" [2]",
        "\"state_put\" \"a\" 3",
        "\"state_deleted\" \"a\" null",
    ];
    assert_eq!(watch(&["--count", "4"]), all);
    assert_eq!(watch(&["b", "--count", "1"]), all[1..2]);
}
