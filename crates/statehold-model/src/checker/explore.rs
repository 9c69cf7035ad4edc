//! Runs the model over several scopes and sums up the findings.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::num::NonZero;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use statehold_core::invariant::Invariant;
use statehold_core::mutant::Mutant;
use stateright::{Checker, DiscoveryClassification, Expectation, Model};

use super::{Action, CoreModel, Scope, World};

/// The findings of an exploration.
#[derive(Debug, Default)]
pub struct Report {
    /// Distinct states over all scopes.
    pub states: usize,
    /// Steps taken between them.
    pub transitions: usize,
    /// Scopes that ran out of time.
    pub cut_short: Vec<&'static str>,
    /// Promises that were broken, each with a way there.
    pub broken: Vec<(&'static str, String)>,
    /// `sometimes` properties that never held: a promise had nothing to judge, or a situation that the
    /// scopes are made for did not occur.
    pub vacuous: Vec<&'static str>,
}

/// The findings in one scope.
struct Explored {
    name: &'static str,
    states: usize,
    transitions: usize,
    depth: usize,
    elapsed: Duration,
    is_cut_short: bool,
    met: Vec<&'static str>,
    broken: Vec<(&'static str, String)>,
}

/// Explores every scope, at most `limit` each, and tells `progress` a line after each.
///
/// As many scopes at once as there are processors: the checker shares the work inside a scope badly.
///
/// # Panics
///
/// If the checker does.
pub fn explore(scopes: Vec<Scope>, limit: Duration, mut progress: impl FnMut(String)) -> Report {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let at_once = processors.min(scopes.len());
    let threads = processors.div_ceil(at_once.max(1)).max(2);
    let mut report = Report::default();
    let mut met: BTreeSet<&'static str> = BTreeSet::new();
    let queue = Mutex::new(scopes.into_iter());
    let (sender, receiver) = mpsc::channel();
    thread::scope(|pool| {
        for _ in 0..at_once {
            let (queue, sender) = (&queue, sender.clone());
            pool.spawn(move || {
                while let Some(scope) = next(queue) {
                    let found = explore_one(scope, limit, threads);
                    sender.send(found).expect("somebody sums up");
                }
            });
        }
        drop(sender);
        for found in receiver {
            progress(format!(
                "{:>10} states {:>11} transitions  depth {:>2} {:>6.1} s  {}",
                found.states,
                found.transitions,
                found.depth,
                found.elapsed.as_secs_f64(),
                found.name,
            ));
            report.states += found.states;
            report.transitions += found.transitions;
            report.broken.extend(found.broken);
            report
                .cut_short
                .extend(found.is_cut_short.then_some(found.name));
            met.extend(found.met);
        }
    });
    report.vacuous = CoreModel::new(Scope::default())
        .properties()
        .iter()
        .filter(|property| property.expectation == Expectation::Sometimes)
        .map(|property| property.name)
        .filter(|name| !met.contains(name))
        .collect();
    report
}

fn next(queue: &Mutex<std::vec::IntoIter<Scope>>) -> Option<Scope> {
    queue.lock().expect("nobody panics with the queue").next()
}

fn explore_one(scope: Scope, limit: Duration, threads: usize) -> Explored {
    let (name, began) = (scope.name, Instant::now());
    // Only with several threads does the checker heed its timeout.
    let checker = CoreModel::new(scope)
        .checker()
        .threads(threads)
        .timeout(limit)
        .spawn_dfs()
        .join();
    let elapsed = began.elapsed();
    let (mut met, mut broken) = (Vec::new(), Vec::new());
    for (property, path) in checker.discoveries() {
        match checker.discovery_classification(property) {
            DiscoveryClassification::Example => met.push(property),
            DiscoveryClassification::Counterexample => {
                broken.push((property, format!("{:?}", path.into_actions())));
            }
        }
    }
    Explored {
        name,
        states: checker.unique_state_count(),
        transitions: checker.state_count(),
        depth: checker.max_depth(),
        elapsed,
        is_cut_short: elapsed >= limit,
        met,
        broken,
    }
}

/// A world in which a bug shows.
#[derive(Debug)]
pub struct Caught {
    /// The scope it belongs to.
    pub scope: &'static str,
    /// All promises that are broken in it.
    pub broken: Vec<Invariant>,
    /// The shortest way there.
    pub path: Vec<Action>,
}

/// Looks for the nearest world in which `mutant` breaks `promise`, among so many distinct `worlds`.
///
/// The checker's own breadth-first search continues after its first finding, and then reports the
/// last path to it, not the shortest.
pub fn hunt(mutant: Mutant, promise: Invariant, scope: Scope, worlds: usize) -> Option<Caught> {
    let scope_name = scope.name;
    let model = CoreModel::new(scope).with_mutant(mutant);
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut seen = HashSet::new();
    let mut pending: VecDeque<(World, Vec<Action>)> = VecDeque::new();
    pending.extend(model.init_states().into_iter().map(|world| (world, vec![])));
    let mut actions = Vec::new();
    while let Some((world, path)) = pending.pop_front() {
        model.actions(&world, &mut actions);
        for action in actions.drain(..) {
            let Some(next) = model.next_state(&world, action) else {
                continue;
            };
            let way = || path.iter().copied().chain([action]).collect();
            if next.broken & promise.bit() != 0 {
                let broken = Invariant::ALL.into_iter();
                return Some(Caught {
                    scope: scope_name,
                    broken: broken
                        .filter(|other| next.broken & other.bit() != 0)
                        .collect(),
                    path: way(),
                });
            }
            if seen.len() < worlds && seen.insert(hasher.hash_one(&next)) {
                pending.push_back((next, way()));
            }
        }
    }
    None
}
