//! Numbers and warnings for operators: how requests end, leases that lapse, and calls to other services. All engines of
//! a process share them. The maps are bounded, and names come from declarations.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_store::{Commit, Durations};

pub use statehold_store::{BUCKET_SECONDS, DurationCounts};

use crate::locks::Lock;

/// How many names one map has at most. Further ones share an entry.
const NAMES_MAX: usize = 1_000;
/// How often one service or agent is warned about.
const WARN_EVERY: Duration = Duration::from_mins(1);

/// A kind of service that this server calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// An agent in another process.
    Agent,
    /// A language model.
    Model,
    /// A server with tools.
    ToolServer,
    /// The address that decisions for an agent are pushed to.
    Push,
}

impl Peer {
    /// Its name in metrics and logs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Model => "model",
            Self::ToolServer => "tool_server",
            Self::Push => "push",
        }
    }
}

/// How a call to another service ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// With an answer.
    Ok,
    /// A tool answered that it could not do what it was asked for.
    Refused,
    /// Without a usable answer. Has the reason in words of this server, or None if the log has it already.
    Failed(Option<String>),
    /// This server did not wait for the answer.
    Cancelled,
}

impl CallOutcome {
    /// Its name in metrics and traces.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Calls to one service by how they ended, and how long they took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the outcomes of a call")]
pub struct PeerCounts {
    pub ok: u64,
    pub refused: u64,
    pub failed: u64,
    pub cancelled: u64,
    /// From the first byte of a call to the last byte of its answer.
    pub took: DurationCounts,
}

#[derive(Debug, Default)]
struct PeerCalls {
    counts: PeerCounts,
    took: Durations,
}

/// Requests of an agent by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the outcomes of a request")]
pub struct EndedCounts {
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
}

/// Counts what operators watch.
#[derive(Debug, Default)]
pub struct Measures {
    leases_lapsed: AtomicU64,
    ended: Lock<BTreeMap<Name, EndedCounts>>,
    calls: Lock<BTreeMap<(Peer, Name), PeerCalls>>,
    call_warnings: Lock<BTreeMap<(Peer, Name), WarnLimit>>,
    turn_warnings: Lock<BTreeMap<Name, WarnLimit>>,
}

impl Measures {
    /// Counts a call to a service, and warns if it failed. Failures of agents are told with their turn.
    pub fn note_call(&self, (peer, name): (Peer, &Name), outcome: &CallOutcome, took: Duration) {
        let mut calls = self.calls.lock();
        let entry = entry_of(&mut calls, (peer, name.clone()), |other| (peer, other));
        entry.took.observe(took);
        let counts = &mut entry.counts;
        let count = match outcome {
            CallOutcome::Ok => &mut counts.ok,
            CallOutcome::Refused => &mut counts.refused,
            CallOutcome::Failed(_) => &mut counts.failed,
            CallOutcome::Cancelled => &mut counts.cancelled,
        };
        *count += 1;
        drop(calls);
        if let CallOutcome::Failed(Some(reason)) = outcome
            && peer != Peer::Agent
        {
            let mut limits = self.call_warnings.lock();
            let limit = entry_of(&mut limits, (peer, name.clone()), |other| (peer, other));
            let Some(failures) = limit.next(Instant::now()) else {
                return;
            };
            drop(limits);
            tracing::warn!(peer = peer.word(), %name, failures, reason, "calls to a service fail");
        }
    }

    /// Warns that the turns of an agent fail, with the code of the last failure.
    pub fn note_turn_failure(&self, agent: &Name, code: &str) {
        let mut limits = self.turn_warnings.lock();
        let limit = entry_of(&mut limits, agent.clone(), |other| other);
        let Some(failures) = limit.next(Instant::now()) else {
            return;
        };
        drop(limits);
        tracing::warn!(%agent, failures, code, "turns of an agent fail");
    }

    /// Counts what happened in a durable commit.
    pub(crate) fn note_commit(&self, events: &CommitEvents) {
        self.leases_lapsed
            .fetch_add(events.leases_lapsed, Ordering::Relaxed);
        if events.ended.is_empty() {
            return;
        }
        let mut ended = self.ended.lock();
        for (agent, outcome) in &events.ended {
            let counts = entry_of(&mut ended, agent.clone(), |other| other);
            let count = match outcome {
                RequestOutcome::Completed => &mut counts.completed,
                RequestOutcome::Failed => &mut counts.failed,
                RequestOutcome::Cancelled => &mut counts.cancelled,
            };
            *count += 1;
        }
    }

    /// How many leases ended without a heartbeat.
    pub fn leases_lapsed(&self) -> u64 {
        self.leases_lapsed.load(Ordering::Relaxed)
    }

    /// Requests that ended, by agent.
    pub fn ended(&self) -> BTreeMap<Name, EndedCounts> {
        self.ended.lock().clone()
    }

    /// Calls to other services.
    pub fn calls(&self) -> BTreeMap<(Peer, Name), PeerCounts> {
        let calls = self.calls.lock();
        let counts = calls.iter().map(|(peer, calls)| {
            let took = calls.took.counts();
            let counts = PeerCounts {
                took,
                ..calls.counts
            };
            (peer.clone(), counts)
        });
        counts.collect()
    }
}

/// The entry of a key. In a full map, keys that are new share one.
fn entry_of<K: Ord + Clone, V: Default>(
    map: &mut BTreeMap<K, V>,
    key: K,
    shared: impl FnOnce(Name) -> K,
) -> &mut V {
    let is_known = map.len() < NAMES_MAX || map.contains_key(&key);
    let key = if is_known { key } else { shared(other()) };
    map.entry(key).or_default()
}

/// Stands for all names that metrics do not tell apart.
///
/// # Panics
///
/// Never: the word is a name.
pub fn other() -> Name {
    "other".parse().expect("a name")
}

/// The events of a commit that are counted.
#[derive(Debug, Default)]
pub(crate) struct CommitEvents {
    leases_lapsed: u64,
    ended: Vec<(Name, RequestOutcome)>,
}

impl CommitEvents {
    /// The first record of a fork ends copies: nothing of it is counted.
    pub(crate) fn of(commit: &Commit, is_fork: bool) -> Self {
        if is_fork {
            return Self::default();
        }
        let events = commit.record.content.events.iter();
        let lapsed = events.filter(|event| matches!(event, Event::LeaseLapsed { .. }));
        let closed = &commit.changes.closed_tasks;
        let ended = commit.changes.ended_requests.iter().filter_map(|ended| {
            let open = commit.after.tasks.get(&ended.task);
            let closed = || closed.iter().find(|closed| closed.task.id == ended.task);
            let agent = match open {
                Some(task) => &task.agent,
                None => &closed()?.task.agent,
            };
            Some((agent.clone(), ended.outcome))
        });
        Self {
            leases_lapsed: lapsed.count() as u64,
            ended: ended.collect(),
        }
    }
}

/// Lets one warning through at a time, and counts the failures that it stands for.
#[derive(Debug, Default)]
pub struct WarnLimit {
    warned_at: Option<Instant>,
    failures: u64,
}

impl WarnLimit {
    /// Counts a failure. Returns how many a warning is due for, this one included; None if one was given a short time
    /// ago.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        self.failures += 1;
        let last = self.warned_at;
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY);
        is_due.then(|| {
            self.warned_at = Some(now);
            std::mem::take(&mut self.failures)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_keeps_failing_is_warned_about_once_a_minute() {
        let (mut limit, begun) = (WarnLimit::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(limit.next(at(0)), Some(1));
        for second in 1..60 {
            assert_eq!(limit.next(at(second)), None);
        }
        assert_eq!(limit.next(at(60)), Some(60), "with those in between");
        assert_eq!(limit.next(at(61)), None);
    }

    #[test]
    fn names_beyond_a_limit_share_one_entry() {
        let measures = Measures::default();
        for n in 0..NAMES_MAX + 50 {
            let name: Name = format!("agent-{n}").parse().expect("a name");
            measures.note_call((Peer::Agent, &name), &CallOutcome::Ok, Duration::ZERO);
        }
        let calls = measures.calls();
        assert_eq!(calls.len(), NAMES_MAX + 1);
        assert_eq!(calls[&(Peer::Agent, other())].ok, 50);
    }
}
