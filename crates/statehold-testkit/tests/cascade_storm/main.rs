//! Random trees of agents in a storm of decisions: every status and every list of pending holds is what
//! a naive derivation says, after every record; and once more over HTTP, in the tree that clients read.

mod over_http;

use std::panic::catch_unwind;

use statehold_core::mutant::Mutant;
use statehold_testkit::cascade_storm::{Seen, Shape, run};
use statehold_testkit::http::told_seed;

const SMALL: Shape = Shape {
    depth_max: 8,
    fan_out_max: 16,
    holds: 30,
    steps: 170,
};

/// Each takes its own decisions.
const SEEDS: u64 = 300;

#[test]
fn every_ancestor_is_as_a_naive_derivation_says_after_every_record() {
    let first = told_seed();
    let mut all = Seen::default();
    for seed in first..first + SEEDS {
        let seen = run(seed, SMALL, None).unwrap_or_else(|error| panic!("{error}"));
        all = all.and(&seen);
    }
    println!("{SEEDS} trees: {}", all.line());
    assert_eq!(all.deepest, 8, "no tree was as deep as it may be");
    let happened = [
        all.reused,
        all.people,
        all.expired,
        all.cancelled,
        all.completed,
        all.failed,
        all.stopped,
    ];
    assert!(happened.iter().all(|count| *count > 100), "{all:?}");
}

#[test]
fn a_thousand_holds_of_one_session_are_decided_in_any_order() {
    let shape = Shape {
        holds: 1_000,
        steps: 2_500,
        ..SMALL
    };
    run(told_seed(), shape, None).unwrap_or_else(|error| panic!("{error}"));
    // How large a tree becomes depends on its seed: of this one it is known.
    let seen = run(1, shape, None).unwrap_or_else(|error| panic!("{error}"));
    println!("one large tree: {}", seen.line());
    assert!(seen.open_most >= 1_000, "{seen:?}");
    assert_eq!(
        (seen.deepest, seen.widest),
        (8, 16),
        "not as large as it may be"
    );
    assert!(seen.people > 200, "{seen:?}");
}

/// Looks for a seed with which a bug is noticed.
fn noticed(bug: Mutant) -> Option<String> {
    (1..200).find_map(|seed| {
        let found = catch_unwind(|| run(seed, SMALL, Some(bug)));
        match found {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(format!("seed {seed}: the core gave up")),
        }
    })
}

#[test]
fn every_bug_of_the_cascade_is_noticed() {
    let bugs = [
        Mutant::SkipAncestor,
        Mutant::CascadeLater,
        Mutant::UnpauseAll,
        Mutant::RenameHold,
        Mutant::CancelKeepsHolds,
        Mutant::InboxMissesReused,
        Mutant::LostWake,
        Mutant::ForgetParent,
    ];
    for bug in bugs {
        let said = noticed(bug);
        let said = said.unwrap_or_else(|| panic!("nobody noticed {bug:?}"));
        println!("{bug:?}: {said:.160}");
        assert!(!said.contains("gave up"), "{bug:?}: {said}");
    }
}
