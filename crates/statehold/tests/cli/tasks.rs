//! `statehold tasks`, against the real server.

use serde_json::{Value, json};

use super::live::Live;

#[test]
fn a_tree_shows_the_pause_on_everything_above_it() {
    let live = Live::start();
    let story = live.story("a");
    live.check(&["tasks", "tree", "a"], 0, &["└─ R2 invoke    running"]);
    live.ask_to_delete(&story, "high");
    let ended = live.check(&["tasks", "tree", "T1"], 0, &[]);
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(
        lines[0].starts_with("T1 coordinator        paused since 2"),
        "{lines:?}"
    );
    assert!(lines[0].ends_with("waits for R2.h1"), "{lines:?}");
    assert_eq!(lines[1], "└─ R1 chat            waiting");
    assert!(
        lines[2].starts_with("   └─ T2 ums-agent    paused since"),
        "{lines:?}"
    );
    assert!(
        lines[3].starts_with("      └─ R2 invoke    held"),
        "{lines:?}"
    );
    let action = "delete_user(user_id=7, cascade=false)   approval R2.h1 open, expires 2";
    assert!(lines[3].contains(action), "{lines:?}");
    let (_, screen) = live.run_on_terminal(&["tasks", "tree", "T1"], "", &[]);
    let (_, since) = screen.split_once("paused ").expect("it says since when");
    let since = since.trim_start_matches(|c: char| c.is_ascii_digit());
    assert!(since.starts_with(" s"), "{screen}");
    let tree = live.check(&["tasks", "tree", &story.session, "--json"], 0, &[]);
    let tree: Value = serde_json::from_str(&tree.out).expect("one document");
    assert_eq!(tree["session_id"], story.session.as_str());
    let below = live.check(&["tasks", "tree", "T2"], 0, &[]);
    assert!(below.out.starts_with("T2 ums-agent"), "{}", below.out);
    assert_eq!(below.out.lines().count(), 2);
}

#[test]
fn a_task_is_shown_in_the_view_that_the_caller_has() {
    let live = Live::start();
    let story = live.story("a");
    live.ask_to_delete(&story, "high");
    let shown = live.check(
        &["tasks", "show", "T1"],
        0,
        &["agent\tcoordinator", "waits for\tR2.h1"],
    );
    assert!(
        shown.out.contains("\tuser\tDelete user 7\n"),
        "{}",
        shown.out
    );
    let hidden = live.check(&["tasks", "show", "T2", "--show-hidden"], 0, &[]);
    assert!(
        hidden.out.contains("\thidden\ttool_call\tdelete_user("),
        "{}",
        hidden.out
    );
    let bob = live.key(&["client"], Some("bob"));
    let ended = live.run_with(&bob, &["tasks", "show", "T2", "--show-hidden"]);
    assert_eq!(ended.code, 4, "{ended:?}");
    let ended = live.run_with(&bob, &["tasks", "show", "T2"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(!ended.out.contains("tool_call"), "{}", ended.out);
    let shown = live.check(&["tasks", "show", "T1", "--json"], 0, &[]);
    let shown: Value = serde_json::from_str(&shown.out).expect("one document");
    assert_eq!(shown["alias"], "T1");
}

#[test]
fn a_long_history_is_shown_page_by_page_within_80_columns() {
    let live = Live::start();
    let story = live.story("a");
    let long = "word ".repeat(60);
    let items: Vec<Value> = (0..7)
        .map(|index| json!({ "kind": "note", "data": format!("note-{index} {long}") }))
        .collect();
    let body = json!({ "fence": story.leaf_fence, "items": items });
    live.post(&format!("/requests/{}/items", story.leaf), &body);
    let shown = |page: &str| {
        let args = [
            "sessions",
            "show",
            &story.session,
            "--show-hidden",
            "--limit",
            "3",
            "--page",
            page,
        ];
        let ended = live.check(&args, 0, &[]);
        let lines = ended
            .out
            .lines()
            .filter(|line| line.starts_with("message\t"));
        let notes = lines.map(|line| {
            line.split("note-")
                .nth(1)
                .map_or(9, |rest| rest[..1].parse::<u32>().expect("a number"))
        });
        let notes: Vec<u32> = notes.collect();
        (notes, ended.err.contains("--page"))
    };
    assert_eq!(shown("1"), (vec![4, 5, 6], true));
    assert_eq!(shown("2"), (vec![1, 2, 3], true));
    // Two inputs come before the notes.
    assert_eq!(shown("3"), (vec![9, 9, 0], false));
    assert_eq!(shown("4"), (vec![], false));

    let args = ["sessions", "show", &story.session, "--show-hidden"];
    let (code, screen) = live.run_on_terminal(&args, "", &[("NO_COLOR", "1")]);
    assert_eq!(code, 0);
    assert!(screen.contains("┆ hidden  T2 ums-agent (note)"), "{screen}");
    let (_, messages) = screen.split_once("Delete user 7").expect("the question");
    for line in messages.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line:?}");
    }
}

#[test]
fn waiting_ends_with_what_became_of_it() {
    let live = Live::start();
    let story = live.story("a");
    live.check(
        &["tasks", "wait", "R2", "--timeout", "300ms"],
        7,
        &["it is running"],
    );
    live.check(
        &["tasks", "wait", "T2", "--timeout", "1s", "--no-human"],
        7,
        &[],
    );
    let hold = live.ask_to_delete(&story, "low");
    for name in ["R2", "T2", "R1", "T1"] {
        let says = ["waits for a person: R2.h1", "statehold approvals show"];
        live.check(&["tasks", "wait", name, "--no-human"], 8, &says);
    }
    let ended = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| live.run(&["tasks", "wait", "R2", "--timeout", "60s"]));
        live.check(&["approvals", "approve", &hold, "-y", "--no-wait"], 0, &[]);
        live.finish(&story);
        waiting.join().expect("it ends")
    });
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (0, "R2 completed\n"),
        "{ended:?}"
    );
    let done = live.check(&["tasks", "wait", "R2", "--json"], 0, &[]);
    let done: Value = serde_json::from_str(&done.out).expect("one document");
    assert_eq!(done["status"], "completed");
    live.check(
        &["tasks", "wait", "T2"],
        0,
        &["its last request was completed"],
    );
}

#[test]
fn waiting_for_what_failed_or_was_refused_says_so() {
    let live = Live::start();
    let failed = live.story("failed");
    let body = json!({ "fence": failed.leaf_fence, "error": { "message": "no" } });
    live.post(&format!("/requests/{}/fail", failed.leaf), &body);
    live.check(&["tasks", "wait", "failed/R2"], 1, &["R2 failed"]);
    let refused = live.story("refused");
    let hold = live.ask_to_delete(&refused, "low");
    live.check(&["approvals", "reject", &hold, "--no-wait"], 0, &[]);
    let items =
        json!([{ "kind": "tool_result", "call_id": "c1", "result": "no", "outcome": "refused" }]);
    let body = json!({ "fence": refused.leaf_fence, "output": "It was refused.", "items": items });
    live.post(&format!("/requests/{}/complete", refused.leaf), &body);
    live.check(
        &["tasks", "wait", "refused/R2"],
        9,
        &["R2 completed, after R2.h1 was rejected"],
    );
    let dismissed = live.story("dismissed");
    let hold = live.ask_to_delete(&dismissed, "low");
    live.check(&["approvals", "dismiss", &hold, "-y", "--no-wait"], 0, &[]);
    live.check(&["tasks", "wait", "dismissed/R2"], 9, &["R2 cancelled"]);
}

#[test]
fn cancelling_asks_first() {
    let live = Live::start();
    let story = live.story("a");
    live.check(&["tasks", "cancel", "R2"], 2, &["--yes"]);
    let (code, screen) = live.run_on_terminal(&["tasks", "cancel", "R2"], "\n", &[]);
    assert_eq!(code, 9, "{screen}");
    assert!(screen.contains("nothing was cancelled"), "{screen}");
    let (code, screen) = live.run_on_terminal(&["tasks", "cancel", "R2"], "y\n", &[]);
    assert_eq!(code, 0, "{screen}");
    assert_eq!(
        live.get(&format!("/requests/{}", story.leaf))["status"],
        "cancelled"
    );
    live.check(&["tasks", "cancel", "R2", "-y"], 5, &["error:"]);
    live.check(
        &["tasks", "cancel", "T1", "-y"],
        0,
        &["✓ cancelled T1 (tsk_"],
    );
    assert_eq!(
        live.get(&format!("/requests/{}", story.root))["status"],
        "cancelled"
    );
    live.check(&["tasks", "wait", "R1"], 1, &["R1 cancelled"]);
}
