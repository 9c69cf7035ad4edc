//! Copying a session and going back: by appending, never by taking away.

use super::*;
use crate::scope::StateKey;

fn put(name: &str, value: &str) -> Command {
    Command::PutState {
        patch: set(name, value),
        by: None,
    }
}

fn rewind(to: u64) -> Command {
    Command::Rewind { to }
}

fn key(text: &str) -> StateKey {
    text.parse().expect("a fixture key")
}

fn not_in_the_past(to: u64, current: u64) -> Rejection {
    Rejection::NotInThePast { to, current }
}

/// A turn that is over, in the task of agent `a1`.
fn turn(w: &mut World) {
    w.ok(starting(leased(start("a1")), |start| {
        start.output = Some(answer());
    }));
}

#[test]
fn a_fork_goes_on_with_the_chain_and_the_numbers() {
    let mut w = new_session();
    turn(&mut w);
    let mut copy = w.fork_at(2);
    assert_eq!(copy.state.session, session(2));
    assert_eq!(copy.state.revision, 3);
    let record = copy.records.last().expect("the fork is a record");
    assert_eq!(record.content.prev_hash, w.state.head);
    assert_eq!(
        record.content.events[0],
        Event::SessionForked {
            session: session(2),
            origin: session(1),
            at: 2,
            through: None,
        }
    );
    turn(&mut copy);
    copy.ok(start("a2"));
    copy.check("T1 idle completed, T2 running R3#0 queued");
    let seqs: Vec<_> = copy.items().iter().map(|(_, _, item)| item.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
}

#[test]
fn a_fork_has_tasks_of_its_own_in_the_same_tree() {
    let mut w = chain(3);
    for request in ["R3", "R2", "R1"] {
        w.ok(w.complete(request));
    }
    let copy = w.fork_at(w.records.len());
    copy.check(&w.picture());
    for task in ["T1", "T2", "T3"] {
        assert_ne!(copy.task(task), w.task(task));
    }
    for (child, parent) in [("T2", "T1"), ("T3", "T2")] {
        let link = copy.state.tasks[&copy.task(child)].parent;
        assert_eq!(link.map(|link| link.task), Some(copy.task(parent)));
    }
}

#[test]
fn a_fork_does_not_inherit_what_is_in_flight() {
    let w = held_chain(2);
    let copy = w.fork_at(w.records.len());
    copy.check("T1 idle cancelled, T2 idle cancelled");
    assert_eq!(copy.hold_status("R2.h1"), HoldStatus::Cancelled);
    w.check("T1 paused R1#1 waiting, T2 paused R2#1 held h1");
}

#[test]
fn a_worker_of_the_origin_cannot_write_into_the_copy() {
    let w = chain(1);
    let mut copy = w.fork_at(w.records.len());
    let ended = Rejection::RequestEnded {
        request: w.request("R1"),
        outcome: RequestOutcome::Cancelled,
    };
    for command in w.worker_commands("R1") {
        assert_eq!(copy.no(command), ended);
    }
}

#[test]
fn the_tasks_of_the_origin_are_unknown_to_the_copy() {
    let mut w = new_session();
    turn(&mut w);
    let mut copy = w.fork_at(2);
    assert_eq!(copy.no(w.go_on("T1", "a1")), Rejection::NotFound);
    copy.ok(copy.go_on("T1", "a1"));
}

#[test]
fn a_fork_can_begin_before_things_happened() {
    let mut w = new_session();
    w.ok(put("topic", "a"));
    turn(&mut w);
    w.ok(put("topic", "b"));
    let copy = w.fork_at(2);
    copy.check("");
    assert_eq!(copy.state.version_of(&key("topic")), 2);
    assert_eq!(w.state.version_of(&key("topic")), 4);
}

#[test]
fn a_session_is_no_copy_of_itself() {
    let mut w = new_session();
    let command = Command::Fork {
        session: session(1),
        through: None,
    };
    assert_eq!(w.no(command), Rejection::SessionExists);
    let command = Command::Fork {
        session: session(2),
        through: Some(session(2)),
    };
    assert_eq!(w.no(command), Rejection::SessionExists);
}

#[test]
fn a_fork_names_the_fork_that_it_was_asked_of_and_the_origin_only_once() {
    for (through, named) in [
        (None, None),
        (Some(session(1)), None),
        (Some(session(3)), Some(session(3))),
    ] {
        let mut w = new_session();
        let session = session(2);
        w.ok(Command::Fork { session, through });
        let record = w.records.last().expect("the fork is a record");
        assert!(matches!(
            record.content.events[0],
            Event::SessionForked { through, .. } if through == named
        ));
    }
}

#[test]
fn a_closed_session_can_be_copied_as_it_was_while_open() {
    let mut w = new_session();
    turn(&mut w);
    w.ok(close_session(false));
    let mut copy = w.fork_at(2);
    turn(&mut copy);
    copy.check("T1 idle completed");
}

#[test]
fn the_copy_of_a_closed_session_is_open() {
    let mut w = new_session();
    turn(&mut w);
    w.ok(close_session(false));
    let mut copy = w.fork_at(3);
    turn(&mut copy);
    copy.check("T2 idle completed");
}

#[test]
fn decisions_from_before_a_fork_are_known_in_the_copy() {
    let mut w = held_chain(1);
    w.ok(w.approve("R1.h1"));
    let decided_at = w.state.revision;
    let mut copy = w.fork_at(w.records.len());
    assert_eq!(copy.again(w.approve("R1.h1")), decided_at);
}

#[test]
fn a_rewind_stops_what_runs() {
    let mut w = new_session();
    turn(&mut w);
    w.ok(leased(start("a1")));
    w.ok(w.gate("R2"));
    w.check("T1 paused R2#1 held h1");
    w.ok(rewind(2));
    w.check("T1 idle cancelled");
    assert_eq!(w.hold_status("R2.h1"), HoldStatus::Cancelled);
}

#[test]
fn a_rewind_closes_the_tasks_opened_since() {
    let mut w = new_session();
    turn(&mut w);
    w.ok(leased(start("a2")));
    w.ok(leased(w.spawn("R2", "a3")));
    w.check("T1 idle completed, T2 running R2#1 waiting, T3 running R3#1 running");
    w.ok(rewind(2));
    w.check("T1 idle completed");
    assert_eq!(w.final_status("T2"), Some(TaskStatus::Cancelled));
    assert_eq!(w.final_status("T3"), Some(TaskStatus::Cancelled));
}

#[test]
fn a_rewind_says_which_items_it_takes_out() {
    let mut w = new_session();
    turn(&mut w);
    turn(&mut w);
    w.ok(rewind(2));
    let rewound = Event::Rewound {
        to: 2,
        items_kept: 2,
        items_until: 4,
    };
    let memory = crate::memory::Memory {
        exchanges: 1,
        record: 2,
        request: w.request("R1"),
    };
    let restored = Event::MemoryRestored {
        memory: Some(memory),
        path: "a1".parse().expect("a fixture path"),
    };
    assert_eq!(w.last_events(), [restored, rewound]);
    turn(&mut w);
    let seqs: Vec<_> = w.items().iter().map(|(_, _, item)| item.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6], "nothing is numbered twice");
}

#[test]
fn a_rewind_restores_deletes_and_leaves_keys() {
    let mut w = new_session();
    w.ok(put("kept", "a"));
    w.ok(put("changed", "a"));
    w.ok(put("removed", "a"));
    w.ok(put("changed", "b"));
    w.ok(put("added", "b"));
    let patch = StatePatch {
        delete: vec![key("removed")],
        ..StatePatch::default()
    };
    w.ok(Command::PutState { patch, by: None });
    w.ok(rewind(4));
    let restored = |name, from| Event::StateRestored {
        bytes: body("a").bytes,
        key: key(name),
        from,
    };
    let deleted = Event::StateDeleted {
        key: key("added"),
        request: None,
    };
    let rewound = Event::Rewound {
        to: 4,
        items_kept: 0,
        items_until: 0,
    };
    assert_eq!(
        w.last_events(),
        [
            deleted,
            restored("changed", 3),
            restored("removed", 4),
            rewound
        ]
    );
    let versions: Vec<_> = w
        .state
        .keys
        .iter()
        .map(|(key, version)| (key.as_str(), version.revision))
        .collect();
    assert_eq!(versions, [("changed", 8), ("kept", 2), ("removed", 8)]);
}

#[test]
fn a_restored_key_has_a_new_version_so_that_nobody_overwrites_blindly() {
    let mut w = new_session();
    w.ok(put("topic", "a"));
    w.ok(put("topic", "b"));
    w.ok(rewind(2));
    let mut patch = set("topic", "c");
    patch.if_versions.insert(key("topic"), 3);
    let refusal = w.no(Command::PutState { patch, by: None });
    assert!(matches!(
        refusal,
        Rejection::VersionConflict { found: 4, .. }
    ));
}

#[test]
fn a_rewind_goes_to_the_past_only() {
    let mut w = new_session();
    turn(&mut w);
    for to in [0, 2, 3, u64::MAX] {
        assert_eq!(w.no(rewind(to)), not_in_the_past(to, 2));
    }
    w.ok(rewind(1));
    w.check("");
}

#[test]
fn a_rewind_can_be_rewound() {
    let mut w = new_session();
    w.ok(put("topic", "a"));
    w.ok(put("topic", "b"));
    w.ok(rewind(2));
    w.ok(rewind(3));
    let back = Event::StateRestored {
        bytes: body("b").bytes,
        key: key("topic"),
        from: 3,
    };
    assert_eq!(w.last_events()[0], back);
}

#[test]
fn a_task_that_was_closed_stays_closed_after_a_rewind() {
    let mut w = new_session();
    turn(&mut w);
    w.ok(w.close_task("T1"));
    w.ok(rewind(2));
    w.check("");
    turn(&mut w);
    w.check("T2 idle completed");
}
