//! Runs the model over several scopes and sums up what was found.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use statehold_core::invariant::Invariant;
use stateright::{Checker, DiscoveryClassification, Model};

use super::{CoreModel, Scope};

/// What an exploration found.
#[derive(Debug, Default)]
pub struct Report {
    /// Distinct states over all scopes.
    pub states: usize,
    /// Steps taken between them.
    pub transitions: usize,
    /// Scopes that ran out of time.
    pub cut_short: Vec<&'static str>,
    /// Promises that were broken, each with the shortest way there that was seen.
    pub broken: Vec<(&'static str, String)>,
    /// Promises that no scope had anything to say about: their `sometimes` twin was never met.
    pub vacuous: Vec<&'static str>,
}

/// Explores every scope, at most `limit` each, and tells `progress` a line after each.
pub fn explore(scopes: Vec<Scope>, limit: Duration, mut progress: impl FnMut(String)) -> Report {
    let mut report = Report::default();
    let mut met: BTreeSet<&'static str> = BTreeSet::new();
    let mut twins = Vec::new();
    for scope in scopes {
        let (name, began) = (scope.name, Instant::now());
        let model = CoreModel::new(scope);
        let names: Vec<_> = model
            .properties()
            .iter()
            .map(|property| property.name)
            .collect();
        let checker = model.checker().threads(2).timeout(limit).spawn_dfs().join();
        let elapsed = began.elapsed();
        if elapsed >= limit {
            report.cut_short.push(name);
        }
        for (property, path) in checker.discoveries() {
            match checker.discovery_classification(property) {
                DiscoveryClassification::Example => {
                    met.insert(property);
                }
                DiscoveryClassification::Counterexample => {
                    report
                        .broken
                        .push((property, format!("{:?}", path.into_actions())));
                }
            }
        }
        report.states += checker.unique_state_count();
        report.transitions += checker.state_count();
        progress(format!(
            "{:>10} states {:>11} transitions  depth {:>2} {:>6.1} s  {name}",
            checker.unique_state_count(),
            checker.state_count(),
            checker.max_depth(),
            elapsed.as_secs_f64(),
        ));
        twins = names;
    }
    let pairs = twins.chunks(2).zip(Invariant::ALL);
    report.vacuous = pairs
        .filter(|(pair, _)| !met.contains(pair[1]))
        .map(|(_, invariant)| invariant.name())
        .collect();
    report
}
