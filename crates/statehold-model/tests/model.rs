//! Every order in which things can happen, in small worlds.

use std::time::Duration;

use statehold_model::checker::{Scope, explore};

#[test]
fn every_promise_holds_in_every_reachable_state() {
    let limit = Duration::from_hours(1);
    let report = explore(Scope::small(), limit, |line| println!("{line}"));
    println!(
        "{:>10} states {:>11} transitions in all",
        report.states, report.transitions
    );
    assert!(report.broken.is_empty(), "broken: {:#?}", report.broken);
    assert!(
        report.vacuous.is_empty(),
        "never happened: {:?}",
        report.vacuous
    );
    assert!(
        report.cut_short.is_empty(),
        "not exhausted: {:?}",
        report.cut_short
    );
    assert!(
        report.states >= 250_000,
        "only {} distinct states; widen a scope",
        report.states
    );
}
