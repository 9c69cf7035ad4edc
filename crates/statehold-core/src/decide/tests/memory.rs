//! The memory of an agent path, and the part of it that a request knows from its start to its end.

use super::*;
use crate::limits::AGENT_PATHS_MAX;
use crate::memory::{AgentPath, Memory};

impl World {
    /// The memory of a path: how many exchanges, and the newest.
    fn memory(&self, path: &str) -> Option<(u64, String)> {
        let path: AgentPath = path.parse().expect("a fixture path");
        self.state
            .memories
            .get(&path)
            .map(|memory| self.seen(memory))
    }

    /// The memory of a live request.
    fn knows(&self, request: &str) -> Option<(u64, String)> {
        let live = &self.state.requests[&self.request(request)];
        live.memory.as_ref().map(|memory| self.seen(memory))
    }

    fn seen(&self, memory: &Memory) -> (u64, String) {
        let mut requests = self.aliases.requests.iter();
        let newest = requests.find(|(_, id)| **id == memory.request);
        let newest = newest.expect("a request of this session").0;
        (memory.exchanges, newest.clone())
    }

    /// Calls a tool and records what came of it.
    fn run_tool(&mut self, request: &str) {
        let ran = result(CallTarget::SameCommand(0), CallOutcome::Ran);
        self.ok(self.append(request, &[repeatable_call(), ran]));
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "stories compare it with a memory that may be none"
)]
fn known(exchanges: u64, newest: &str) -> Option<(u64, String)> {
    Some((exchanges, newest.to_owned()))
}

#[test]
fn a_turn_beside_a_held_one_knows_everything_finished() {
    let mut w = new_session();
    w.ok(leased(start("llm")));
    w.ok(w.complete("R1"));
    w.ok(leased(start("llm")));
    w.ok(w.gate("R2"));
    w.ok(leased(start("llm")));
    assert_eq!(w.knows("R3"), known(1, "R1"));
    w.ok(w.complete("R3"));
    w.ok(leased(start("llm")));
    assert_eq!(w.knows("R4"), known(2, "R3"));
    assert_eq!(w.knows("R2"), known(1, "R1"), "fixed when it started");
    w.ok(w.approve("R2.h1"));
    let ran = result_of(w.call("R2"), CallOutcome::Ran);
    w.ok(w.append("R2", &[ran]));
    w.ok(w.complete("R2"));
    w.ok(leased(start("llm")));
    assert_eq!(w.knows("R5"), known(3, "R2"), "in the order of the ends");
    assert_eq!(w.knows("R4"), known(2, "R3"));
}

#[test]
fn parallel_turns_do_not_know_each_other_and_the_next_knows_all() {
    let mut w = new_session();
    for _ in 0..6 {
        w.ok(leased(start("llm")));
    }
    for request in ["R4", "R2", "R6", "R1", "R5", "R3"] {
        assert_eq!(w.knows(request), None);
        w.ok(w.complete(request));
    }
    w.ok(start("llm"));
    assert_eq!(w.knows("R7"), known(6, "R3"));
}

#[test]
fn a_path_is_fixed_when_its_task_opens() {
    let mut w = chain(3);
    let path = |w: &World, task: &str| w.state.tasks[&w.task(task)].path.to_string();
    assert_eq!(path(&w, "T3"), "a1/a2/a3");
    for request in ["R3", "R2", "R1"] {
        w.ok(w.complete(request));
    }
    let mut copy = w.fork_at(w.records.len());
    assert_eq!(path(&copy, "T3"), "a1/a2/a3");
    assert_eq!(copy.state.memories, w.state.memories, "a fork knows it too");
    copy.ok(leased(start("a1")));
    copy.ok(copy.spawn("R4", "a2"));
    assert_eq!(copy.knows("R5"), known(1, "R2"));
    assert_eq!(copy.memory("a2"), None, "the same agent elsewhere");
}

#[test]
fn a_failed_turn_is_known_only_if_a_tool_ran() {
    let mut w = new_session();
    w.ok(leased(start("llm")));
    w.ok(w.append("R1", &[repeatable_call()]));
    w.ok(w.fail("R1"));
    assert_eq!(w.memory("llm"), None, "nothing says that the tool ran");
    w.ok(leased(start("llm")));
    w.run_tool("R2");
    w.ok(w.fail("R2"));
    assert_eq!(w.memory("llm"), known(1, "R2"));
    w.ok(leased(start("llm")));
    w.run_tool("R3");
    w.ok(w.cancel("R3"));
    assert_eq!(w.memory("llm"), known(2, "R3"));
}

#[test]
fn a_refused_tool_did_not_run() {
    let mut w = held_chain(1);
    w.ok(w.decide("R1.h1", DecisionKind::Reject));
    let refused = result_of(w.call("R1"), CallOutcome::Refused);
    w.ok(w.append("R1", &[refused]));
    w.ok(w.cancel("R1"));
    assert_eq!(w.memory("a1"), None);
}

#[test]
fn one_record_may_end_several_exchanges_of_a_path() {
    let mut w = chain(1);
    for request in ["R2", "R3"] {
        w.ok(leased(w.spawn("R1", "a2")));
        w.run_tool(request);
    }
    w.ok(w.cancel("R1"));
    assert_eq!(w.memory("a1/a2"), known(2, "R3"));
}

#[test]
fn a_failed_turn_is_known_also_if_the_tool_ran_below_it() {
    let mut w = chain(3);
    w.run_tool("R3");
    w.ok(w.fail("R3"));
    w.ok(w.fail("R2"));
    assert_eq!(w.memory("a1/a2"), known(1, "R2"));
    assert_eq!(w.memory("a1"), None, "it has not ended");
    w.ok(w.fail("R1"));
    assert_eq!(w.memory("a1"), known(1, "R1"));
    w.ok(leased(start("a1")));
    w.ok(leased(w.spawn("R4", "a2")));
    w.ok(w.cancel("R4"));
    assert_eq!(w.memory("a1"), known(1, "R1"), "nothing ran in this one");
    w.ok(leased(start("a1")));
    w.ok(leased(w.spawn("R6", "a2")));
    w.run_tool("R7");
    w.ok(w.cancel("R6"));
    assert_eq!(w.memory("a1"), known(2, "R6"), "cancelled with its child");
}

#[test]
fn a_rewind_gives_back_the_memory_of_then() {
    let mut w = new_session();
    w.ok(leased(start("llm")));
    w.ok(w.complete("R1"));
    let then = w.state.revision;
    for request in ["R2", "R3"] {
        w.ok(leased(start("llm")));
        w.ok(w.complete(request));
    }
    w.ok(leased(start("other")));
    w.run_tool("R4");
    let later = w.state.revision;
    w.ok(Command::Rewind { to: then });
    assert_eq!(w.memory("llm"), known(1, "R1"));
    assert_eq!(
        w.memory("other"),
        None,
        "what the rewind cancels is rewound"
    );
    w.ok(leased(start("llm")));
    assert_eq!(w.knows("R5"), known(1, "R1"));
    w.ok(w.complete("R5"));
    assert_eq!(w.memory("llm"), known(2, "R5"));
    w.ok(Command::Rewind { to: later });
    assert_eq!(w.memory("llm"), known(1, "R1"), "the others stay rewound");
}

#[test]
fn a_fork_knows_what_it_cancels_if_a_tool_ran() {
    let mut w = chain(1);
    w.run_tool("R1");
    let copy = w.fork_at(w.records.len());
    assert_eq!(copy.memory("a1"), known(1, "R1"));
    assert_eq!(w.memory("a1"), None, "it goes on in the origin");
}

#[test]
fn a_path_too_many_is_refused_and_known_ones_go_on() {
    let mut w = new_session();
    let whole = |agent: &str| {
        starting(leased(start(agent)), |start| {
            (start.output, start.close_on) = (Some(answer()), CloseOn::Reply);
        })
    };
    for n in 0..AGENT_PATHS_MAX - 1 {
        w.ok(whole(&format!("a{n}")));
    }
    w.ok(leased(start("last")));
    let refused = Rejection::Limit {
        limit: "agent paths",
        max: AGENT_PATHS_MAX as u64,
    };
    assert_eq!(w.no(whole("more")), refused, "a live request counts");
    w.ok(leased(start("last")));
    w.ok(whole("a7"));
    w.ok(w.cancel(&format!("R{AGENT_PATHS_MAX}")));
    assert_eq!(w.no(start("more")), refused, "the other one is still there");
    w.ok(w.cancel(&format!("R{}", AGENT_PATHS_MAX + 1)));
    w.ok(whole("more"));
    assert_eq!(w.state.memories.len(), AGENT_PATHS_MAX);
}

#[test]
fn a_continuation_knows_what_the_failed_request_knew() {
    let mut w = new_session();
    w.ok(leased(start("llm")));
    w.ok(w.complete("R1"));
    w.ok(leased(start("llm")));
    w.run_tool("R2");
    w.ok(w.fail("R2"));
    assert_eq!(w.memory("llm"), known(2, "R2"), "its tool ran");
    w.ok(leased(w.go_on_from("T1", "llm", "R2")));
    assert_eq!(w.knows("R3"), known(1, "R1"));
    w.ok(w.fail("R3"));
    assert_eq!(w.memory("llm"), known(3, "R3"), "the tool ran for it too");
    w.ok(leased(w.go_on_from("T1", "llm", "R3")));
    assert_eq!(w.knows("R4"), known(1, "R1"));
    w.ok(w.complete("R4"));
    assert_eq!(w.memory("llm"), known(4, "R4"));
}

#[test]
fn only_the_newest_request_of_a_task_is_continued_and_only_once_and_if_it_failed() {
    let mut w = new_session();
    w.ok(leased(start("llm")));
    let live = w.no(w.go_on_from("T1", "llm", "R1"));
    assert!(matches!(live, Rejection::TaskBusy { .. }));
    w.ok(w.fail("R1"));
    let elsewhere = w.no(w.go_on_from("T1", "other", "R1"));
    assert!(matches!(elsewhere, Rejection::TaskElsewhere { .. }));
    w.ok(leased(w.go_on_from("T1", "llm", "R1")));
    w.ok(w.complete("R2"));
    assert_eq!(w.no(w.go_on_from("T1", "llm", "R1")), Rejection::NotFound);
    assert_eq!(w.no(w.go_on_from("T1", "llm", "R2")), Rejection::NotFound);
    w.ok(leased(w.go_on("T1", "llm")));
    w.ok(w.cancel("R3"));
    assert_eq!(w.no(w.go_on_from("T1", "llm", "R3")), Rejection::NotFound);
    w.ok(leased(w.go_on("T1", "llm")));
    w.ok(w.fail("R4"));
    let to = w.state.revision - 2;
    w.ok(Command::Rewind { to });
    assert_eq!(
        w.no(w.go_on_from("T1", "llm", "R4")),
        Rejection::NotFound,
        "taken back"
    );
}

#[test]
fn clients_see_the_input_of_the_first_attempt_only() {
    let mut w = new_session();
    w.ok(leased(start("llm")));
    w.ok(w.fail("R1"));
    w.ok(leased(w.go_on_from("T1", "llm", "R1")));
    w.ok(w.complete("R2"));
    let shown: Vec<Role> = w
        .items()
        .iter()
        .filter(|(.., item)| item.visibility == Visibility::Visible)
        .filter_map(|(.., item)| item.role)
        .collect();
    assert_eq!(shown, [Role::User, Role::Assistant]);
}
