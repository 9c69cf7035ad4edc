//! How things are named: whole ids, parts of them, aliases, and aliases within a session.

use super::live::Live;

#[test]
fn a_hold_has_many_names_and_none_is_guessed() {
    let live = Live::start();
    let first = live.story("weekly report");
    let hold = live.ask_to_delete(&first, "low");
    let shows = |name: &str, id: &str| {
        let ended = live.run(&["approvals", "show", name]);
        assert_eq!(ended.code, 0, "{name}: {ended:?}");
        assert!(
            ended.out.starts_with(&format!("id\t{id}\n")),
            "{name}: {}",
            ended.out
        );
    };
    for name in ["R2.h1", "r2.H1", &hold, &hold[..30], &hold[4..]] {
        shows(name, &hold);
    }
    let second = live.story("b");
    let other = live.ask_to_delete(&second, "low");
    let ended = live.check(&["approvals", "show", "R2.h1"], 2, &["more than one hold"]);
    let short = |session: &str| format!("{}/R2.h1", &session[30..]);
    for session in [&first.session, &second.session] {
        assert!(ended.err.contains(&short(session)), "{}", ended.err);
    }
    for (session, name, id) in [
        (&first.session, "weekly report", &hold),
        (&second.session, "b", &other),
    ] {
        shows(&format!("{session}/R2.h1"), id);
        shows(&format!("{name}/R2.h1"), id);
        shows(&short(session), id);
        shows(&format!("..{}/r2.h1", &session[30..]), id);
        shows(&format!("{}/R2.h1", &session[30..]), id);
    }
    // A decided hold keeps its alias, so the alias alone stays ambiguous.
    live.check(&["approvals", "approve", &hold, "-y", "--no-wait"], 0, &[]);
    live.check(
        &["approvals", "approve", "R2.h1", "-y"],
        2,
        &["approved", "open"],
    );
    let (_, screen) = live.run_on_terminal(&["approvals", "list"], "", &[]);
    assert!(
        screen.contains(&format!("approvals approve {}", short(&second.session))),
        "{screen}"
    );
}

#[test]
fn what_is_not_there_is_not_found_and_what_is_no_name_is_said_to_be_none() {
    let live = Live::start();
    live.story("a");
    for name in [
        "R9.h9",
        "a/R9.h9",
        "hld_ffff",
        "hld_0198a000000070008000000000000001",
    ] {
        live.check(&["approvals", "show", name], 3, &["error: "]);
    }
    live.check(
        &["approvals", "show", "lost/R1.h1"],
        3,
        &["there is no session `lost`"],
    );
    for name in [
        "what",
        "T1",
        "ses_0198a000000070008000000000000001",
        "",
        "a/what",
    ] {
        live.check(
            &["approvals", "show", name],
            2,
            &["is not the name of a hold", "R8.h1"],
        );
    }
    let says = ["is not the name of a hold", "R1.h1"];
    live.check(&["approvals", "show", "R1"], 2, &says);
    live.check(&["tasks", "show", "T9"], 3, &["there is no task `T9`"]);
    live.check(&["tasks", "show", "R1"], 2, &["is not the name of a task"]);
}

#[test]
fn tasks_and_requests_are_named_in_the_same_ways() {
    let live = Live::start();
    let story = live.story("a b");
    let task = super::live::text(&live.get(&format!("/requests/{}", story.leaf)), "task_id");
    for name in [
        "T2",
        "a b/T2",
        "t2",
        &task,
        &task[..30],
        &format!("{}/T2", story.session),
    ] {
        let ended = live.check(&["tasks", "show", name], 0, &[]);
        assert!(
            ended.out.starts_with(&format!("task\tT2   {task}\n")),
            "{name}: {}",
            ended.out
        );
    }
    live.story("c");
    live.check(
        &["tasks", "show", "T2"],
        2,
        &["more than one task", "ums-agent"],
    );
    live.check(
        &["tasks", "wait", "R2", "--no-human"],
        2,
        &["more than one request or task"],
    );
    live.check(&["sessions", "show", "a b"], 0, &[&story.session]);
    // A beginning that two ids share.
    live.check(
        &["sessions", "show", "ses_0"],
        2,
        &["more than one session", &story.session],
    );
}
