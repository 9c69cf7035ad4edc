//! Tasks: open over many requests, reused while idle, final only when somebody ends them.

use super::*;

fn asking(command: Command, text: &str) -> Command {
    starting(command, |start| start.input = body(text))
}

fn answering(mut command: Command, text: &str) -> Command {
    if let Command::CompleteRequest { output, .. } = &mut command {
        output.body = body(text);
    }
    command
}

fn closing(mut command: Command) -> Command {
    if let Command::CompleteRequest { close_task, .. } = &mut command {
        *close_task = true;
    }
    command
}

fn closing_on(command: Command, policy: CloseOn) -> Command {
    starting(command, |start| start.close_on = policy)
}

/// What was said in a task.
fn said_in(w: &World, task: &str) -> Vec<BodyRef> {
    let task = w.task(task);
    let items = w.items().into_iter().filter(|(at, _, _)| *at == task);
    items.map(|(_, _, item)| item.body).collect()
}

fn bodies(texts: &[&str]) -> Vec<BodyRef> {
    texts.iter().map(|text| body(text)).collect()
}

/// One turn: the user asks the orchestrator as `top`, which asks an agent as `below`.
fn turn(w: &mut World, [top, below]: [&str; 2], agent: &str, question: &str, reply: &str) {
    w.ok(asking(leased(start("orchestrator")), question));
    w.ok(asking(leased(w.spawn(top, agent)), question));
    w.ok(answering(w.complete(below), reply));
    w.ok(answering(w.complete(top), reply));
}

const SUM: [&str; 2] = ["What's 2+2", "2+2 is 4"];
const WEATHER: [&str; 2] = ["What's the temperature in Rahway, NJ", "Sunny, 72"];
const ROOT: [&str; 2] = [
    "What's the square root of 121?",
    "The square root of 121 is 11",
];

#[test]
fn the_dialogue_of_the_seed_has_three_tasks_and_six_requests() {
    let mut w = new_session();
    turn(&mut w, ["R1", "R2"], "math", SUM[0], SUM[1]);
    turn(&mut w, ["R3", "R4"], "weather", WEATHER[0], WEATHER[1]);
    turn(&mut w, ["R5", "R6"], "math", ROOT[0], ROOT[1]);
    w.check("T1 idle completed, T2 idle completed, T3 idle completed");
    assert_eq!(w.state.requests_started, 6);
    assert_eq!(
        said_in(&w, "T1"),
        bodies(&[SUM, WEATHER, ROOT].concat()),
        "the orchestrator's history is the whole conversation"
    );
    assert_eq!(said_in(&w, "T2"), bodies(&[SUM, ROOT].concat()), "math");
    assert_eq!(said_in(&w, "T3"), bodies(&WEATHER), "weather");
}

#[test]
fn only_root_tasks_of_the_dialogue_are_visible() {
    let mut w = new_session();
    turn(&mut w, ["R1", "R2"], "math", SUM[0], SUM[1]);
    let root = w.task("T1");
    for (task, _, item) in w.items() {
        assert_eq!(item.visibility == Visibility::Visible, task == root);
    }
}

#[test]
fn a_reused_task_stays_where_it_was_first_spawned() {
    let mut w = new_session();
    turn(&mut w, ["R1", "R2"], "math", SUM[0], SUM[1]);
    turn(&mut w, ["R3", "R4"], "math", ROOT[0], ROOT[1]);
    let link = w.state.tasks[&w.task("T2")].parent;
    let link = link.expect("a child task has a parent");
    assert_eq!((link.task, link.request), (w.task("T1"), w.request("R1")));
}

#[test]
fn a_busy_task_makes_way_for_a_new_one() {
    let mut w = chain(1);
    w.ok(leased(w.spawn("R1", "math")));
    w.ok(leased(w.spawn("R1", "math")));
    w.check("T1 running R1#1 waiting, T2 running R2#1 running, T3 running R3#1 running");
    w.ok(w.complete("R3"));
    w.ok(w.complete("R2"));
    w.ok(w.spawn("R1", "math"));
    w.check("T1 running R1#1 waiting, T2 running R4#0 queued, T3 idle completed");
}

#[test]
fn agents_of_the_same_name_under_other_parents_have_other_tasks() {
    let mut w = chain(1);
    w.ok(leased(w.spawn("R1", "math")));
    w.ok(w.complete("R2"));
    w.ok(start("math"));
    w.check("T1 running R1#1 running, T2 idle completed, T3 running R3#0 queued");
}

#[test]
fn an_idle_task_can_be_named() {
    let mut w = chain(1);
    w.ok(w.complete("R1"));
    w.ok(w.go_on("T1", "a1"));
    w.check("T1 running R2#0 queued");
}

#[test]
fn a_busy_task_that_is_named_is_busy() {
    let mut w = chain(1);
    let busy = Rejection::TaskBusy {
        task: w.task("T1"),
        request: w.request("R1"),
    };
    assert_eq!(w.no(w.go_on("T1", "a1")), busy);
}

#[test]
fn a_task_cannot_be_taken_from_its_agent_or_its_parent() {
    let mut w = chain(2);
    w.ok(w.complete("R2"));
    let elsewhere = |task| Rejection::TaskElsewhere { task };
    assert_eq!(w.no(w.go_on("T2", "a2")), elsewhere(w.task("T2")));
    let task = w.task("T2");
    let other_agent = starting(w.spawn("R1", "a3"), |start| start.task = Some(task));
    assert_eq!(w.no(other_agent), elsewhere(task));
    let task = w.task("T1");
    let own_parent = starting(w.spawn("R1", "a1"), |start| start.task = Some(task));
    assert_eq!(w.no(own_parent), elsewhere(task));
}

#[test]
fn an_unknown_task_is_not_found() {
    let mut w = chain(1);
    let nowhere = TaskId::from_uuid(Uuid::from_u128(1));
    let command = starting(start("a1"), |start| start.task = Some(nowhere));
    assert_eq!(w.no(command), Rejection::NotFound);
    assert_eq!(
        w.no(Command::CloseTask { task: nowhere }),
        Rejection::NotFound
    );
    assert_eq!(
        w.no(Command::CancelTask { task: nowhere }),
        Rejection::NotFound
    );
}

#[test]
fn a_final_task_takes_nothing_any_more() {
    let mut w = chain(1);
    w.ok(w.complete("R1"));
    w.ok(w.close_task("T1"));
    let ended = Rejection::TaskFinal { task: w.task("T1") };
    assert_eq!(w.no(w.go_on("T1", "a1")), ended);
    assert_eq!(w.no(w.close_task("T1")), ended);
    assert_eq!(w.no(w.cancel_task("T1")), ended);
    w.ok(start("a1"));
    w.check("T2 running R2#0 queued");
}

#[test]
fn a_request_leaves_its_task_idle_however_it_ends() {
    let mut w = chain(1);
    w.ok(w.complete("R1"));
    w.check("T1 idle completed");
    w.ok(leased(start("a1")));
    w.ok(w.fail("R2"));
    w.check("T1 idle failed");
    w.ok(start("a1"));
    w.ok(w.cancel("R3"));
    w.check("T1 idle cancelled");
}

#[test]
fn closing_takes_the_idle_tasks_below_along() {
    let mut w = chain(3);
    w.ok(w.complete("R3"));
    w.ok(w.complete("R2"));
    w.ok(w.complete("R1"));
    w.ok(w.close_task("T1"));
    w.check("");
    for task in ["T1", "T2", "T3"] {
        assert_eq!(w.final_status(task), Some(TaskStatus::Completed));
    }
}

#[test]
fn closing_waits_for_live_requests_at_any_depth() {
    let mut w = chain(2);
    let busy = Rejection::TaskBusy {
        task: w.task("T2"),
        request: w.request("R2"),
    };
    assert_eq!(w.no(w.close_task("T1")), busy);
}

#[test]
fn cancelling_a_task_is_final_for_everything_below_it() {
    let mut w = held_chain(3);
    w.ok(w.cancel_task("T2"));
    w.check("T1 running R1#1 running");
    assert_eq!(w.final_status("T2"), Some(TaskStatus::Cancelled));
    assert_eq!(w.final_status("T3"), Some(TaskStatus::Cancelled));
    assert_eq!(w.outcome("R2"), Some(RequestOutcome::Cancelled));
    assert_eq!(w.outcome("R3"), Some(RequestOutcome::Cancelled));
    assert_eq!(w.hold_status("R3.h1"), HoldStatus::Cancelled);
}

#[test]
fn cancelling_a_task_ends_idle_tasks_below_it_too() {
    let mut w = chain(2);
    w.ok(w.complete("R2"));
    w.ok(w.cancel_task("T1"));
    w.check("");
    assert_eq!(w.final_status("T2"), Some(TaskStatus::Cancelled));
}

#[test]
fn a_cancelled_task_wakes_a_parent_whose_worker_has_gone() {
    let mut w = held_chain(2);
    w.lose_workers();
    w.ok(w.cancel_task("T2"));
    w.check("T1 running R1#1 queued");
}

#[test]
fn an_answer_can_close_its_task() {
    let mut w = chain(2);
    w.ok(closing(w.complete("R2")));
    w.check("T1 running R1#1 running");
    assert_eq!(w.final_status("T2"), Some(TaskStatus::Completed));
}

#[test]
fn a_task_may_close_with_its_first_reply() {
    let mut w = new_session();
    w.ok(closing_on(leased(start("a1")), CloseOn::Reply));
    w.ok(w.fail("R1"));
    w.check("T1 idle failed");
    w.ok(leased(start("a1")));
    w.ok(w.complete("R2"));
    w.check("");
    assert_eq!(w.final_status("T1"), Some(TaskStatus::Completed));
}

#[test]
fn a_task_may_close_with_its_first_failure() {
    let mut w = new_session();
    w.ok(closing_on(leased(start("a1")), CloseOn::Failure));
    w.ok(w.complete("R1"));
    w.check("T1 idle completed");
    w.ok(leased(start("a1")));
    w.ok(w.fail("R2"));
    w.check("");
    assert_eq!(w.final_status("T1"), Some(TaskStatus::Failed));
}

#[test]
fn a_hold_that_fails_its_request_counts_as_a_failure() {
    let mut w = new_session();
    w.ok(closing_on(leased(start("a1")), CloseOn::Failure));
    w.ok(w.gate_with("R1", |hold| {
        (hold.expires_in_ms, hold.on_expiry) = (Some(1_000), OnExpiry::Fail);
    }));
    w.wait_s(1);
    w.ok(w.expire("R1.h1"));
    assert_eq!(w.final_status("T1"), Some(TaskStatus::Failed));
}

#[test]
fn a_cancelled_request_closes_no_task_by_itself() {
    for policy in [CloseOn::Never, CloseOn::Reply, CloseOn::Failure] {
        let mut w = new_session();
        w.ok(closing_on(leased(start("a1")), policy));
        w.ok(w.cancel("R1"));
        w.check("T1 idle cancelled");
    }
}

#[test]
fn the_policy_of_a_task_is_that_of_its_first_request() {
    let mut w = chain(1);
    w.ok(w.complete("R1"));
    w.ok(closing_on(leased(start("a1")), CloseOn::Reply));
    w.ok(w.complete("R2"));
    w.check("T1 idle completed");
}

#[test]
fn closing_and_answering_at_once_closes_once() {
    let mut w = new_session();
    w.ok(closing_on(leased(start("a1")), CloseOn::Reply));
    w.ok(closing(w.complete("R1")));
    let closed = |event: &&Event| matches!(event, Event::TaskClosed { .. });
    assert_eq!(w.last_events().iter().filter(closed).count(), 1);
}
