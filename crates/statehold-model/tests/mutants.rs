//! Every bug that the core can be told to have is noticed, and every promise notices one.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use statehold_core::invariant::Invariant;
use statehold_core::mutant::Mutant;
use statehold_model::checker::{Caught, Scope, hunt};

/// Distinct worlds to look at in a scope before the next one is tried.
const WORLDS: usize = 60_000;

/// Each bug, the promise that it breaks, and how the name of the scope that shows it begins.
const EXPECTED: [(Mutant, Invariant, &str); 40] = [
    (Mutant::DecideTwice, Invariant::SingleDecision, "two holds"),
    (
        Mutant::ReplayAnything,
        Invariant::DecisionIdempotence,
        "two holds",
    ),
    (
        Mutant::DoubleRelease,
        Invariant::AtMostOnceRelease,
        "two holds",
    ),
    (
        Mutant::ReleaseRejected,
        Invariant::AtMostOnceRelease,
        "two holds",
    ),
    (
        Mutant::RunUngated,
        Invariant::NoApprovalNoExecution,
        "two holds",
    ),
    (Mutant::SkipAncestor, Invariant::ExactPause, "cascade"),
    (Mutant::CascadeLater, Invariant::AtomicCascade, "cascade"),
    (Mutant::UnpauseAll, Invariant::ExactUnpause, "cascade"),
    (Mutant::RenameHold, Invariant::StableIdentity, "cascade"),
    (Mutant::ForeignParent, Invariant::Tree, "a hold below"),
    (Mutant::ReviveFinal, Invariant::TerminalIsFinal, "cascade"),
    (
        Mutant::CompleteUnclaimed,
        Invariant::LegalTransitions,
        "cascade",
    ),
    (Mutant::CancelKeepsHolds, Invariant::CancelCloses, "cascade"),
    (
        Mutant::ApproveLate,
        Invariant::ExpiryIsADecision,
        "two holds",
    ),
    (
        Mutant::ReopenExpired,
        Invariant::SingleDecision,
        "two holds",
    ),
    (
        Mutant::AckEarly,
        Invariant::AcknowledgedMeansDurable,
        "crashes",
    ),
    (Mutant::TornRecord, Invariant::PrefixRecovery, "crashes"),
    (
        Mutant::SnapshotForgetsVotes,
        Invariant::ReplayDeterminism,
        "two holds",
    ),
    (
        Mutant::ClockStepsBack,
        Invariant::MonotoneCommitTime,
        "two holds",
    ),
    (Mutant::SkipSequence, Invariant::DenseOrder, "cascade"),
    (Mutant::SkipFence, Invariant::Fencing, "lost leases"),
    (Mutant::KeepFence, Invariant::FencesGrow, "a restore"),
    (Mutant::CountVotesTwice, Invariant::Quorum, "two holds"),
    (Mutant::RequesterDecides, Invariant::Quorum, "two holds"),
    (Mutant::StarterDecides, Invariant::Quorum, "two holds"),
    (
        Mutant::InboxMissesReused,
        Invariant::InboxCompleteness,
        "a hold below",
    ),
    (Mutant::LeakHidden, Invariant::HiddenStaysHidden, "cascade"),
    (
        Mutant::ShowChildMessages,
        Invariant::HiddenStaysHidden,
        "cascade",
    ),
    (
        Mutant::AnyoneAppends,
        Invariant::HiddenIsAppendOnly,
        "cascade",
    ),
    (Mutant::SkipTenant, Invariant::TenantIsolation, "cascade"),
    (Mutant::StoreTemp, Invariant::ScopeLifetime, "cascade"),
    (Mutant::SkipVersions, Invariant::ScopeLifetime, "cascade"),
    (Mutant::DirtyRefusal, Invariant::RefusalIsClean, "cascade"),
    (Mutant::LostWake, Invariant::Progress, "two holds"),
    (Mutant::ForgetParent, Invariant::Progress, "a hold below"),
    (Mutant::ForkKeepsLive, Invariant::CancelCloses, "cascade"),
    (Mutant::MemoryMoves, Invariant::OneMemory, "a hold below"),
    (
        Mutant::EraseWhileLive,
        Invariant::HiddenWaitsForRequests,
        "hidden payloads",
    ),
    (
        Mutant::RememberFailures,
        Invariant::OneMemory,
        "a hold below",
    ),
    (Mutant::ForgetRunsBelow, Invariant::OneMemory, "a restore"),
];

#[test]
fn every_bug_is_noticed_and_every_promise_notices_one() {
    let listed: BTreeSet<_> = EXPECTED.iter().map(|(mutant, ..)| *mutant).collect();
    assert_eq!(listed, BTreeSet::from(Mutant::ALL), "a bug is not listed");
    let expected: BTreeSet<_> = EXPECTED.iter().map(|(_, promise, _)| *promise).collect();
    assert_eq!(
        expected,
        BTreeSet::from(Invariant::ALL),
        "nothing is expected to break a promise"
    );
    let mut missed = Vec::new();
    for ((mutant, promise, _), caught) in EXPECTED.iter().zip(hunt_all()) {
        match caught {
            Some(caught) => println!("{}", line(*mutant, *promise, &caught)),
            None => missed.push(format!("{mutant:?} does not break {:?}", promise.name())),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Hunts as many bugs at once as there are processors; the answers are in the order of the table.
fn hunt_all() -> Vec<Option<Caught>> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|pool| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            let (next, sender) = (&next, sender.clone());
            pool.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((mutant, promise, likely)) = EXPECTED.get(at) else {
                        return;
                    };
                    let caught = hunt_one(*mutant, *promise, likely);
                    sender.send((at, caught)).expect("somebody listens");
                }
            });
        }
        drop(sender);
    });
    let all: BTreeMap<usize, _> = receiver.into_iter().collect();
    all.into_values().collect()
}

/// Looks in the likely scope, then in the others.
fn hunt_one(mutant: Mutant, promise: Invariant, likely: &str) -> Option<Caught> {
    let (first, others): (Vec<_>, Vec<_>) = Scope::small()
        .into_iter()
        .partition(|scope| scope.name.starts_with(likely));
    assert_eq!(first.len(), 1, "{likely:?} names one scope");
    first
        .into_iter()
        .chain(others)
        .find_map(|scope| hunt(mutant, promise, scope, WORLDS))
}

fn line(mutant: Mutant, promise: Invariant, caught: &Caught) -> String {
    let others = caught.broken.iter().filter(|other| **other != promise);
    let mut broken = vec![promise.name()];
    broken.extend(others.map(|other| other.name()));
    format!(
        "{:>20} -> {} ({} steps, {})",
        format!("{mutant:?}"),
        broken.join(" + "),
        caught.path.len(),
        caught.scope
    )
}
