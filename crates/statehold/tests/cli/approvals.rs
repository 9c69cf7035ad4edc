//! `statehold approvals`, against the real server.

use std::time::Duration;

use serde_json::{Value, json};

use super::live::Live;
use super::remote::run;
use super::scripted::{Scripted, cut, json as answer};

#[test]
fn what_waits_is_listed_and_shown() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    let ended = live.check(&["approvals", "list"], 0, &[]);
    let rows: Vec<Vec<&str>> = ended
        .out
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    assert_eq!(
        rows[0],
        [
            "HOLD", "TITLE", "RISK", "ACTION", "AGENT", "FOR", "SESSION", "AGE", "EXPIRES"
        ]
    );
    assert_eq!(
        rows[1][..5],
        [
            "R2.h1",
            "Delete user 7",
            "high",
            "delete_user(user_id=7, cascade=false)",
            "ums-agent"
        ]
    );
    assert_eq!(rows[1][6], story.session);
    live.check(&["holds", "list", "--risk", "low", "--no-headers"], 0, &[]);
    let decided = live.check(
        &["holds", "list", "--status", "decided", "--no-headers"],
        0,
        &[],
    );
    assert_eq!(decided.out, "");
    live.check(
        &["holds", "list", "--status", "lost"],
        2,
        &["possible values"],
    );
    let listed = live.check(&["approvals", "list", "--json"], 0, &[]);
    let listed: Value = serde_json::from_str(&listed.out).expect("one document");
    assert_eq!(listed["holds"][0]["id"], hold.as_str());
    let shown = live.check(&["approvals", "show", "R2.h1"], 0, &[]);
    for line in [
        format!("id\t{hold}"),
        "title\tDelete user 7".to_owned(),
        "asked by\tums-agent".to_owned(),
        format!("session\t{}", story.session),
        "arg\t/user_id\t7\t".to_owned(),
        "allowed\tapprove,edit,reject,respond,dismiss".to_owned(),
    ] {
        assert!(
            shown.out.lines().any(|found| found == line),
            "no {line:?} in {}",
            shown.out
        );
    }
    assert!(shown.out.contains("then it is rejected"), "{}", shown.out);
    let shown = live.check(&["approvals", "show", "R2.h1", "--json"], 0, &[]);
    let shown: Value = serde_json::from_str(&shown.out).expect("one document");
    assert_eq!(shown["action"]["args"]["user_id"], 7);
}

#[test]
fn a_terminal_says_what_to_do_next() {
    let live = Live::start();
    let (code, screen) = live.run_on_terminal(&["approvals", "list"], "", &[]);
    assert_eq!(code, 0);
    assert!(screen.contains("Nothing waits."), "{screen}");
    let story = live.story("a");
    live.ask_to_delete(&story, "high");
    let (_, screen) = live.run_on_terminal(&["approvals", "list"], "", &[]);
    let name = format!("{}/R2.h1", &story.session[story.session.len() - 6..]);
    let next = format!("1 open. Decide with: statehold approvals approve {name}");
    assert!(screen.contains(&next), "{screen}");
    let (_, screen) = live.run_on_terminal(&["approvals", "show", "R2.h1"], "", &[]);
    let next = format!("statehold approvals approve {name} --confirm \"user 7\"");
    assert!(screen.contains(&next), "{screen}");
    // The hint works as it is printed, also while other sessions have a hold of this name.
    live.ask_to_delete(&live.story("b"), "high");
    let args = [
        "approvals",
        "approve",
        &name,
        "--confirm",
        "user 7",
        "--no-wait",
    ];
    live.check(&args, 0, &["✓ approved R2.h1"]);
}

#[test]
fn hostile_text_is_shown_and_not_obeyed() {
    let live = Live::start();
    let story = live.story("a");
    let action = json!({ "tool": "t", "call_id": "c1", "args": { "note": "a\u{202e}b\u{200b}\n\u{1b}[2J", "x\u{9b}": "\u{7}" } });
    live.ask(
        &story,
        &json!({ "kind": "approval", "title": "\u{1b}[31mred\u{202e}", "message": "m\u{1b}]0;t\u{7}\nn", "action": action }),
    );
    let hostile = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{202e}' | '\u{200b}')
    };
    for args in [
        &["approvals", "list"][..],
        &["approvals", "show", "R2.h1"],
        &["tasks", "tree", "a"],
        &["approvals", "approve", "R2.h1"],
        &["approvals", "watch", "--count", "1"],
    ] {
        let ended = live.run(args);
        let said = format!("{}{}", ended.out, ended.err);
        assert!(!said.contains(hostile), "{args:?}: {said:?}");
        assert!(!said.is_empty(), "{args:?}");
    }
    // On a terminal the only escapes are our own colours.
    let (_, screen) = live.run_on_terminal(&["approvals", "show", "R2.h1"], "", &[]);
    assert!(screen.contains("\\u{1b}[31mred\\u{202e}"), "{screen:?}");
    assert!(
        !screen.contains("\u{1b}[2J") && !screen.contains('\u{7}'),
        "{screen:?}"
    );
}

#[test]
fn an_approval_needs_a_yes_and_happens_once() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "low");
    live.check(
        &["approvals", "approve", "R2.h1"],
        2,
        &["there is no terminal to ask on", "--yes"],
    );
    assert_eq!(live.hold(&hold)["status"], "open");
    let done = live.check(
        &[
            "approvals",
            "approve",
            "R2.h1",
            "-y",
            "--no-wait",
            "--comment",
            "fine",
        ],
        0,
        &[],
    );
    assert_eq!(done.out, "✓ approved R2.h1 as local\n");
    for words in [
        "Delete user 7",
        "ums-agent for bob in demo",
        "low",
        "expires",
        "then it is rejected",
        "digest",
        "cascade",
        "last message",
    ] {
        assert!(done.err.contains(words), "no {words:?} in {}", done.err);
    }
    assert_eq!(live.hold(&hold)["decision"]["comment"], "fine");
    let again = live.check(&["approvals", "approve", "R2.h1", "-y"], 5, &[]);
    assert!(
        again
            .err
            .starts_with("error: R2.h1 was already decided: approved by local at 2"),
        "{}",
        again.err
    );
    let name = format!("{}/R2.h1", &story.session[story.session.len() - 6..]);
    let next =
        format!("nothing was run twice; see the decision with: statehold approvals show {name}");
    assert!(again.err.contains(&next), "{}", again.err);
    // A person who may read the task is told where its result is, and an approver gets no command
    // that fails.
    let show = ["approvals", "show", name.as_str()];
    let (_, screen) = live.run_on_terminal(&show, "", &[]);
    assert!(screen.contains("statehold tasks show tsk_"), "{screen}");
    let carol = live.key(&["approver"], Some("carol"));
    let carol = [("STATEHOLD_TOKEN", carol.as_str())];
    let (_, screen) = live.run_on_terminal(&show, "", &carol);
    assert!(screen.contains("approved by local"), "{screen}");
    assert!(!screen.contains("tasks show"), "{screen}");
    let again = live.check(&["approvals", "reject", &hold, "--json"], 5, &[]);
    let error: Value = serde_json::from_str(&again.err).expect("JSON");
    assert_eq!(error["error"]["kind"], "HOLD_DECIDED");
    assert_eq!(error["error"]["details"]["decided_by"], "local");
}

#[test]
fn high_risk_needs_its_text_in_a_script() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    let approve = |more: &[&str], code: i32, says: &[&str]| {
        let args = [&["approvals", "approve", "R2.h1", "--no-wait"], more].concat();
        live.check(&args, code, says)
    };
    approve(&[], 2, &["high risk", "--confirm \"user 7\""]);
    approve(&["-y"], 2, &["--yes is not enough", "--confirm \"user 7\""]);
    approve(&["--confirm", "user 8"], 2, &["does not match this action"]);
    approve(&["-y", "--confirm", ""], 2, &["does not match this action"]);
    assert_eq!(live.hold(&hold)["status"], "open");
    let other = "0".repeat(64);
    approve(&["--confirm", "user 7", "--digest", &other], 5, &["digest"]);
    assert_eq!(live.hold(&hold)["status"], "open");
    approve(&["--confirm", "user 7"], 0, &["✓ approved R2.h1"]);
}

#[test]
fn high_risk_is_typed_on_a_terminal_and_enter_alone_is_no() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    let args = ["approvals", "approve", "R2.h1", "--no-wait"];
    for wrong in ["\n", "y\n", "yes\n", "user 8\n", "\u{4}"] {
        let (code, screen) = live.run_on_terminal(&args, wrong, &[]);
        assert_eq!(code, 9, "{wrong:?}: {screen}");
        assert!(
            screen.contains("HIGH RISK") && screen.contains("nothing was decided"),
            "{screen}"
        );
    }
    assert_eq!(live.hold(&hold)["status"], "open");
    // A CI machine may have a terminal without a person in front of it.
    let (code, _) = live.run_on_terminal(&args, "user 7\n", &[("CI", "true")]);
    assert_eq!(code, 2);
    let (code, screen) = live.run_on_terminal(&args, "user 7\n", &[]);
    assert_eq!(code, 0, "{screen}");
    assert!(
        screen.contains("Type \"user 7\" to approve delete_user of R2.h1:"),
        "{screen}"
    );
    assert_eq!(live.hold(&hold)["status"], "approved");
}

#[test]
fn whoever_is_asked_sees_all_of_it() {
    let live = Live::start();
    let story = live.story("a");
    let long = "x".repeat(500) + "the end";
    let action = json!({ "tool": "run", "call_id": "c1", "args": { "script": "first\nlast", "note": long } });
    live.ask(
        &story,
        &json!({ "kind": "approval", "title": "Run", "action": action }),
    );
    let args = ["approvals", "approve", "R2.h1", "--quiet"];
    let (code, screen) = live.run_on_terminal(&args, "n\n", &[]);
    assert_eq!(code, 9, "{screen}");
    assert!(
        screen.contains("  │ last") && screen.contains("the end"),
        "{screen}"
    );
}

#[test]
fn of_two_approvals_at_once_one_wins() {
    let live = Live::start();
    let story = live.story("a");
    live.ask_to_delete(&story, "high");
    let args = [
        "approvals",
        "approve",
        "R2.h1",
        "--confirm",
        "user 7",
        "--no-wait",
    ];
    let ended = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| live.run(&args)));
        both.map(|one| one.join().expect("it ends"))
    });
    let mut codes = ended.each_ref().map(|ended| ended.code);
    codes.sort_unstable();
    assert_eq!(codes, [0, 5], "{ended:?}");
    let loser = ended.iter().find(|ended| ended.code == 5).expect("one");
    assert!(
        loser.err.contains("was already decided: approved by local"),
        "{}",
        loser.err
    );
}

#[test]
fn what_follows_a_decision_is_shown() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "low");
    let ended = std::thread::scope(|scope| {
        let decided = scope.spawn(|| live.run(&["approvals", "approve", "R2.h1", "-y"]));
        while live.get(&format!("/requests/{}", story.leaf))["status"] != "running" {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        live.finish(&story);
        decided.join().expect("it ends")
    });
    assert_eq!(live.hold(&hold)["status"], "approved");
    let (start, end) = (
        "✓ approved R2.h1 as local · R2 running → completed (",
        " ms) · T2, T1 resumed\n",
    );
    assert!(
        ended.out.starts_with(start) && ended.out.ends_with(end),
        "{ended:?}"
    );
}

#[test]
fn an_edit_runs_what_it_shows() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    let edit = |more: &[&str], code: i32, says: &[&str]| {
        let args = [&["approvals", "edit", "R2.h1", "--no-wait"], more].concat();
        live.check(&args, code, says)
    };
    edit(&[], 2, &["no editor", "--set"]);
    edit(&["--set", "user_id=7"], 2, &["nothing was changed"]);
    edit(&["--set", "user_id"], 2, &["is not an assignment"]);
    edit(&["--args", "{user"], 2, &["not JSON"]);
    // The text is that of what will run.
    edit(
        &["--set", "user_id=8", "--confirm", "user 7"],
        2,
        &["--confirm \"user 8\""],
    );
    edit(
        &["--set", "user_id=8", "--confirm", "user 8"],
        0,
        &["/user_id: 7 → 8", "/user_id: 7 → 8", "✓ edited R2.h1"],
    );
    let decided = live.hold(&hold);
    assert_eq!(
        decided["decision"]["args"],
        json!({ "user_id": 8, "cascade": false })
    );
}

#[test]
fn an_edit_that_does_not_fit_is_refused_before_the_question() {
    let live = Live::start();
    let story = live.story("a");
    let schema = json!({ "type": "object", "properties": {
        "amount": { "type": "integer", "maximum": 500 }, "lines": { "type": "array" } } });
    let args =
        json!({ "amount": 40, "lines": [{ "sku": "a", "count": 1 }, { "sku": "b", "count": 1 }] });
    let ask = |action: Value| {
        live.ask(
            &story,
            &json!({ "kind": "approval", "title": "Refund", "action": action }),
        )
    };
    let checked = ask(
        json!({ "tool": "refund", "call_id": "c1", "args": args.clone(), "args_schema": schema }),
    );
    let free = ask(json!({ "tool": "refund", "call_id": "c2", "args": args }));
    for (hold, set, says) in [
        (
            &checked,
            "amount=700",
            "/amount: 700 is greater than the maximum of 500",
        ),
        (
            &checked,
            "amount=abc",
            "/amount: \"abc\" is not of type \"integer\"",
        ),
        (&free, "amount=abc", "--set 'amount=\"abc\"'"),
    ] {
        let args = ["approvals", "edit", hold, "--set", set];
        let (code, screen) = live.run_on_terminal(&args, "y\n", &[]);
        assert_eq!(code, 2, "{screen}");
        assert!(screen.contains(says), "no {says:?} in {screen}");
        assert!(!screen.contains("[y/N]"), "{screen}");
        assert_eq!(live.hold(hold)["status"], "open");
    }
    let args = ["approvals", "edit", &checked, "--set", "/lines/1/count=2"];
    let (_, screen) = live.run_on_terminal(&args, "y\n", &[]);
    for says in ["/lines/1/count: 1 → 2", "at most 500", "digest before"] {
        assert!(screen.contains(says), "no {says:?} in {screen}");
    }
    // Nothing has run yet.
    let shown = live.check(&["approvals", "show", &checked], 0, &["edited to\t{"]);
    assert!(!shown.out.contains("ran with"), "{}", shown.out);
    let (_, screen) = live.run_on_terminal(&["approvals", "list", "--status", "decided"], "", &[]);
    assert!(
        screen.contains("DECISION") && screen.contains("edited by local"),
        "{screen}"
    );
}

#[test]
fn holds_of_one_title_are_told_apart_by_their_actions() {
    let live = Live::start();
    for path in ["/tmp/a", "/tmp/b"] {
        let action = json!({ "tool": "delete", "call_id": "c1", "args": { "path": path } });
        live.ask(
            &live.story(path),
            &json!({ "kind": "approval", "title": "delete needs an approval", "action": action }),
        );
    }
    let (_, screen) = live.converse_on_terminal(&["approvals", "list"], &[], &[], Some((80, 24)));
    for path in ["/tmp/a", "/tmp/b"] {
        let row = format!("delete(path=\"{path}\")");
        assert!(screen.contains(&row), "no {row} in {screen}");
    }
}

#[test]
fn an_editor_writes_the_arguments_on_a_terminal() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "low");
    let args = ["approvals", "edit", "R2.h1", "--no-wait"];
    let failing = [("EDITOR", "false")];
    let (code, screen) = live.run_on_terminal(&args, "y\n", &failing);
    assert_eq!(code, 1, "{screen}");
    let editor = [("EDITOR", "sed -i s/7/9/")];
    let (code, screen) = live.run_on_terminal(&args, "y\n", &editor);
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("/user_id: 7 → 9"), "{screen}");
    assert_eq!(live.hold(&hold)["decision"]["args"]["user_id"], 9);
}

#[test]
fn refusing_answering_and_dismissing_say_what_they_did() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    // A refusal is safe: a script needs no confirmation.
    let args = [
        "approvals",
        "reject",
        "R2.h1",
        "--comment",
        "wrong user",
        "--reason",
        "wrong_user",
        "--no-wait",
    ];
    live.check(&args, 0, &["✓ rejected R2.h1 as local"]);
    let decision = &live.hold(&hold)["decision"];
    assert_eq!(decision["comment"], "wrong user");
    assert_eq!(decision["reason"], "wrong_user");

    let question = live.ask(
        &story,
        &json!({ "kind": "question", "title": "Which Springfield?" }),
    );
    live.check(
        &["approvals", "approve", &question, "-y"],
        2,
        &["does not offer `approve`", "respond"],
    );
    live.check(
        &["approvals", "respond", &question],
        2,
        &["the answer is missing", "--content"],
    );
    live.check(
        &["approvals", "respond", &question, "Ohio", "--no-wait"],
        0,
        &["✓ answered R2.h2"],
    );
    assert_eq!(live.hold(&question)["decision"]["content"], "Ohio");

    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" }, "count": { "type": "integer" } }, "required": ["city"] });
    let form = json!({ "kind": "form", "title": "Where?", "response_schema": schema });
    let first = live.ask(&story, &form);
    live.check(
        &["approvals", "respond", &first, "--content", "{"],
        2,
        &["not JSON"],
    );
    let content = r#"{"city":"Rahway"}"#;
    live.check(
        &[
            "approvals",
            "respond",
            &first,
            "--content",
            content,
            "--no-wait",
        ],
        0,
        &[],
    );
    assert_eq!(
        live.hold(&first)["decision"]["content"],
        json!({ "city": "Rahway" })
    );
    let second = live.ask(&story, &form);
    let args = ["approvals", "respond", &second, "--no-wait"];
    let (code, screen) = live.run_on_terminal(&args, "Rahway\n3\n", &[]);
    assert_eq!(code, 0, "{screen}");
    let typed = json!({ "city": "Rahway", "count": 3 });
    assert_eq!(live.hold(&second)["decision"]["content"], typed);

    let last = live.ask(&story, &json!({ "kind": "question", "title": "Go on?" }));
    live.check(&["approvals", "dismiss", &last], 2, &["--yes"]);
    let dismissed = live.check(
        &["approvals", "dismiss", &last, "-y"],
        0,
        &["✓ dismissed R2.h5"],
    );
    assert!(dismissed.out.contains("R2 cancelled"), "{}", dismissed.out);
    assert_eq!(
        live.get(&format!("/requests/{}", story.leaf))["status"],
        "cancelled"
    );
}

#[test]
fn enter_alone_answers_nothing() {
    let live = Live::start();
    let story = live.story("a");
    let action = live.ask_to_delete(&story, "high");
    let question = live.ask(&story, &json!({ "kind": "question", "title": "Where?" }));
    let fields = json!({ "city": { "type": "string" }, "count": { "type": "integer" } });
    let form = |required: Value| {
        let schema = json!({ "type": "object", "properties": fields, "required": required });
        live.ask(
            &story,
            &json!({ "kind": "form", "title": "Where?", "response_schema": schema }),
        )
    };
    let (needed, optional) = (form(json!(["city"])), form(json!([])));
    for (hold, typed) in [
        (&action, "\n"),
        (&question, "\n"),
        (&question, "  \n"),
        (&needed, "\n"),
        (&optional, "\n\n"),
    ] {
        let args = ["approvals", "respond", hold];
        let (code, screen) = live.run_on_terminal(&args, typed, &[]);
        assert_eq!(code, 9, "{typed:?}: {screen}");
        assert!(screen.contains("nothing was decided"), "{screen}");
        assert_eq!(live.hold(hold)["status"], "open", "{typed:?}: {screen}");
    }
    let args = ["approvals", "watch"];
    let answers = [
        ("q quit", "m"),
        ("decides nothing): ", "\n"),
        ("Enter goes back to the list. ", "\n"),
        ("q quit", "q"),
    ];
    let (code, screen) = live.converse_on_terminal(&args, &answers, &[], Some((80, 24)));
    assert_eq!(code, 0, "{screen}");
    assert!(
        screen.contains("Result of delete_user, which does not run"),
        "{screen}"
    );
    assert_eq!(live.hold(&action)["status"], "open", "{screen}");
}

#[test]
fn a_rejection_and_a_result_on_a_terminal_show_the_hold_and_ask_first() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "high");
    for (args, question) in [
        (
            &["approvals", "reject", "R2.h1"][..],
            "Reject delete_user of R2.h1? [y/N] ",
        ),
        (
            &["approvals", "respond", "R2.h1", "done"],
            "Answer R2.h1 for delete_user, which does not run? [y/N] ",
        ),
    ] {
        let (code, screen) = live.run_on_terminal(args, "\n", &[]);
        assert_eq!(code, 9, "{screen}");
        let (card, _) = screen.split_once(question).expect("it asks");
        assert!(
            card.contains("HIGH RISK") && card.contains("cascade"),
            "{screen}"
        );
        assert_eq!(live.hold(&hold)["status"], "open", "{screen}");
    }
    let args = ["approvals", "reject", "R2.h1", "--no-wait"];
    let (code, screen) = live.run_on_terminal(&args, "y\n", &[]);
    assert_eq!(code, 0, "{screen}");
    assert_eq!(live.hold(&hold)["status"], "rejected", "{screen}");
}

#[test]
fn a_secret_answer_does_not_appear_on_the_screen() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask(
        &story,
        &json!({ "kind": "credential", "title": "The password?" }),
    );
    let args = ["approvals", "respond", &hold, "--no-wait"];
    let (code, screen) = live.answer_on_terminal(&args, "(not shown): ", "s3cret\n", &[]);
    assert_eq!(code, 0, "{screen}");
    assert!(!screen.contains("s3cret"), "{screen}");
}

#[test]
fn who_may_not_decide_learns_why_not() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "low");
    // Bob asked for it in his own session; he may not approve it himself.
    let bob = live.key(&["client", "approver"], Some("bob"));
    let ended = live.run_with(&bob, &["approvals", "approve", &hold, "-y"]);
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(ended.err.contains("R2.h1"), "{}", ended.err);
    let worker = live.key(&["worker"], None);
    let ended = live.run_with(&worker, &["approvals", "approve", &hold, "-y"]);
    assert!(matches!(ended.code, 3 | 4), "{ended:?}");
    // An approver reads no sessions, and needs none.
    let carol = live.key(&["approver"], Some("carol"));
    let listed = live.run_with(&carol, &["approvals", "list", "--no-headers"]);
    assert!(
        listed
            .out
            .starts_with("R2.h1\tDelete user 7\tlow\tdelete_user("),
        "{listed:?}"
    );
    for session in [&story.session, &story.session[..20]] {
        let name = format!("{session}/R2.h1");
        let shown = live.run_with(&carol, &["approvals", "show", &name]);
        assert_eq!(shown.code, 0, "{name}: {shown:?}");
    }
    let ended = live.run_with(&carol, &["approvals", "approve", "R2.h1", "-y"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(
        ended.out.starts_with("✓ approved R2.h1 as carol"),
        "{}",
        ended.out
    );
    assert!(ended.out.contains("R2 running"), "{}", ended.out);
}

#[test]
fn several_people_approve_one_after_the_other() {
    let live = Live::start();
    let story = live.story("a");
    let action = json!({ "tool": "wire", "call_id": "c1", "args": { "amount": 5 } });
    live.ask(
        &story,
        &json!({ "kind": "approval", "title": "Wire", "action": action, "quorum": 2 }),
    );
    let [carol, dave] = ["carol", "dave"].map(|user| live.key(&["approver"], Some(user)));
    let approve = ["approvals", "approve", "R2.h1", "-y", "--no-wait"];
    let first = live.run_with(&carol, &approve);
    assert!(
        first.out.contains("1 of 2 have approved R2.h1"),
        "{first:?}"
    );
    assert!(first.err.contains("0 of 2; each person once"), "{first:?}");
    let again = live.run_with(&carol, &approve);
    assert_eq!(again.code, 5, "{again:?}");
    assert!(again.err.contains("1 of 2: carol; each"), "{again:?}");
    assert!(
        again.err.contains("another person must approve too"),
        "{}",
        again.err
    );
    live.check(
        &["approvals", "show", "R2.h1"],
        0,
        &["approvals\t1 of 2: carol"],
    );
    let second = live.run_with(&dave, &approve);
    assert!(second.out.starts_with("✓ approved R2.h1"), "{second:?}");
}

#[test]
fn what_expired_cannot_be_decided_any_more() {
    let live = Live::start();
    let story = live.story("a");
    let action = json!({ "tool": "t", "call_id": "c1", "args": {} });
    let hold = live.ask(
        &story,
        &json!({ "kind": "approval", "title": "Now?", "action": action, "expires_in_seconds": 1 }),
    );
    // The request changes when the hold expires.
    live.get(&format!("/requests/{}?wait=20&until=changed", story.leaf));
    let ended = live.check(
        &["approvals", "approve", &hold, "-y"],
        5,
        &["without a decision"],
    );
    assert!(ended.err.contains("R2.h1 expired at 2"), "{}", ended.err);
    // The same if the server is the one who notices.
    let ended = live.check(
        &["approvals", "approve", &hold, "-y", "--key", "k1"],
        5,
        &[],
    );
    assert!(ended.err.contains("without a decision"), "{}", ended.err);
}

#[test]
fn the_same_key_is_the_same_decision() {
    let live = Live::start();
    let story = live.story("a");
    let hold = live.ask_to_delete(&story, "low");
    let args = [
        "approvals",
        "approve",
        &hold,
        "-y",
        "--key",
        "mine",
        "--json",
    ];
    let first = live.check(&args, 0, &[]);
    let second = live.check(&args, 0, &[]);
    assert_eq!(first.out, second.out);
    let decided: Value = serde_json::from_str(&first.out).expect("one document");
    assert_eq!(decided["status"], "approved");
    let args = ["approvals", "approve", &hold, "-y", "--key", "other"];
    live.check(&args, 5, &["was already decided: approved by local"]);
}

#[test]
fn a_lost_answer_is_asked_for_again_under_the_same_key() {
    let id = "hld_0198a000000070008000000000000001";
    let hold = json!({
        "id": id, "alias": "R2.h1", "kind": "approval", "status": "open", "session_id": "ses_1",
        "task_id": "tsk_1", "request_id": "req_1", "agent": "ums", "title": "t",
        "action": { "tool": "t", "args": {}, "digest": "d1" }, "allowed": ["approve"],
        "created_at": "2026-08-06T12:00:00Z",
    });
    let decided =
        json!({ "status": "approved", "decided_by": "local", "request_status": "queued" });
    let server = Scripted::start(vec![
        answer(200, &hold.to_string()),
        cut(),
        answer(503, "{}"),
        answer(200, &decided.to_string()),
    ]);
    let variables = [("STATEHOLD_URL", server.url.as_str())];
    let ended = run(&["approvals", "approve", id, "-y", "--no-wait"], &variables);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(
        ended.err.contains("sending the same decision again"),
        "{}",
        ended.err
    );
    let calls = &server.calls()[1..];
    assert_eq!(calls.len(), 3);
    let key = |at: usize| {
        let mut headers = calls[at].headers.lines();
        headers
            .find(|header| header.starts_with("idempotency-key: cli-"))
            .map(str::to_owned)
    };
    assert!(key(0).is_some());
    assert_eq!((key(0), key(0)), (key(1), key(2)));
    assert_eq!(calls[0].body, r#"{"decision":"approve","digest":"d1"}"#);
    assert_eq!(calls[0].body, calls[2].body);
}

#[test]
fn what_a_newer_server_says_is_shown() {
    let id = "hld_0198a000000070008000000000000001";
    let hold = json!({
        "id": id, "alias": "R8.h1", "kind": "approval", "status": "open", "session_id": "ses_1",
        "task_id": "tsk_1", "request_id": "req_1", "agent": "ums", "title": "t", "user": "bob",
        "app": "demo", "chain": "T1 ← R7 ← T4 ← R8", "may_decide": false, "why_not": "needs_role",
        "decide_by": "role:treasurer", "group": { "id": "g", "holds": 3, "decided": 2 },
        "action": { "tool": "pay", "args": { "card": "‹card›" }, "risk": "high", "digest": "d1",
                    "redactions": [{ "path": "/card", "rule": "card" }] },
        "allowed": ["approve"], "created_at": "2026-08-06T12:00:00Z", "unheard_of": {},
    });
    let server = Scripted::start(vec![answer(200, &hold.to_string()); 2]);
    let variables = [("STATEHOLD_URL", server.url.as_str())];
    let shown = run(&["approvals", "show", id], &variables);
    for line in [
        "for\tbob in demo",
        "chain\tT1 ← R7 ← T4 ← R8",
        "group\t2 of 3 decided",
        "redacted\t/card (card)",
        "arg\t/card\t\"‹card›\"\tredacted: card",
    ] {
        assert!(
            shown.out.lines().any(|found| found == line),
            "no {line:?} in {}",
            shown.out
        );
    }
    let ended = run(
        &["approvals", "approve", id, "--confirm", "pay"],
        &variables,
    );
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(ended.err.contains("the role `treasurer`"), "{}", ended.err);
}
