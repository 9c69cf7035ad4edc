//! How large a modelled world is, and what may happen in it.

use statehold_core::command::Fenced;
use statehold_core::hold::DecisionKind;
use statehold_core::item::CallOutcome;
use statehold_core::request::{FENCE_RAISE, LiveRequest, LiveStatus};

use super::world::{Action, Ask, Person, Probe, World};

/// A budget for each costly thing, and the choices on offer.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Scope {
    /// The purpose of the scope, in a few words.
    pub name: &'static str,
    /// Calls of the client.
    pub starts: u8,
    /// Calls of agents by agents.
    pub spawns: u8,
    /// How deep agents call agents.
    pub depth: u16,
    /// The agents that may be called.
    pub agents: &'static [&'static str],
    /// Whether a called agent's request is claimed in the same breath.
    pub leased_spawns: bool,
    /// Holds.
    pub holds: u8,
    /// The holds that workers open.
    pub asks: &'static [Ask],
    /// Who decides.
    pub people: &'static [Person],
    /// Their possible decisions.
    pub decisions: &'static [DecisionKind],
    /// Tool calls that cannot be repeated.
    pub calls: u8,
    /// Whether results of tool calls are recorded.
    pub results: bool,
    /// Claims.
    pub claims: u8,
    /// Workers.
    pub workers: u64,
    /// Steps of the clock.
    pub ticks: u8,
    /// Steps of the clock backwards.
    pub steps_back: u8,
    /// Crashes.
    pub crashes: u8,
    /// Restores of a backup.
    pub restores: u8,
    /// Whether hidden payloads are erased a tick after the last use.
    pub erases_hidden: bool,
    /// Whether the disk confirms later than the decision.
    pub pipelined: bool,
    /// Writes of state.
    pub writes: u8,
    /// Requests and tasks that are ended by hand.
    pub ends: u8,
    /// Whether tasks may be cancelled and closed.
    pub ends_tasks: bool,
}

use DecisionKind::{Approve, Dismiss, Edit, Reject, Respond};

const EMPTY: Scope = Scope {
    name: "",
    starts: 1,
    spawns: 0,
    depth: 0,
    agents: &[],
    leased_spawns: true,
    holds: 0,
    asks: &[],
    people: &[],
    decisions: &[],
    calls: 0,
    results: true,
    claims: 1,
    workers: 1,
    ticks: 0,
    steps_back: 0,
    crashes: 0,
    restores: 0,
    erases_hidden: false,
    pipelined: false,
    writes: 0,
    ends: 0,
    ends_tasks: false,
};

/// The largest first, so that none is left alone at the end.
const SMALL: [Scope; 8] = [
    Scope {
        name: "two holds on one request, two approvers, a deadline",
        holds: 2,
        asks: &[
            Ask::TwoApprovals,
            Ask::Approval,
            Ask::ApprovalOrFail,
            Ask::Question,
        ],
        people: &[
            Person::Approver(1),
            Person::AgainApprover(1),
            Person::Approver(2),
            Person::Owner,
            Person::Opener,
            Person::Starter,
        ],
        decisions: &[Approve, Reject, Edit, Respond],
        ticks: 1,
        steps_back: 1,
        ..EMPTY
    },
    Scope {
        name: "calls of unknown outcome after a lost worker",
        holds: 1,
        asks: &[Ask::Approval],
        people: &[Person::Approver(1), Person::Opener, Person::Starter],
        decisions: &[Approve, Reject, Respond],
        calls: 1,
        claims: 3,
        workers: 2,
        ticks: 2,
        steps_back: 1,
        writes: 1,
        ..EMPTY
    },
    Scope {
        name: "cascade: depth 3 and a sibling, two holds",
        spawns: 3,
        depth: 2,
        agents: &["a"],
        holds: 2,
        asks: &[Ask::Approval],
        people: &[Person::Approver(1)],
        decisions: &[Approve, Dismiss],
        results: false,
        ends: 1,
        ends_tasks: true,
        ..EMPTY
    },
    Scope {
        name: "crashes with a disk that lags behind",
        spawns: 1,
        depth: 1,
        agents: &["a"],
        holds: 1,
        asks: &[Ask::TwoApprovals, Ask::Approval],
        people: &[Person::Approver(1), Person::Approver(2)],
        decisions: &[Approve, Reject],
        results: false,
        ticks: 1,
        crashes: 1,
        pipelined: true,
        ends: 1,
        ..EMPTY
    },
    Scope {
        name: "a hold below a reused child task",
        starts: 2,
        spawns: 2,
        depth: 1,
        agents: &["a"],
        holds: 1,
        asks: &[Ask::Approval],
        people: &[Person::Approver(1)],
        decisions: &[Approve, Dismiss],
        results: false,
        claims: 2,
        ends: 2,
        ..EMPTY
    },
    Scope {
        name: "lost leases of a parent and a child that is held",
        spawns: 1,
        depth: 1,
        agents: &["a"],
        leased_spawns: false,
        holds: 1,
        asks: &[Ask::Question],
        people: &[Person::Owner],
        decisions: &[Respond, Reject],
        claims: 4,
        workers: 2,
        ticks: 2,
        steps_back: 1,
        ends: 1,
        ..EMPTY
    },
    Scope {
        name: "a restore while requests run, wait and are held",
        spawns: 1,
        depth: 1,
        agents: &["a"],
        holds: 1,
        asks: &[Ask::Approval],
        people: &[Person::Approver(1)],
        decisions: &[Approve, Reject],
        claims: 3,
        workers: 2,
        restores: 2,
        ends: 1,
        ..EMPTY
    },
    Scope {
        name: "hidden payloads that are due beside a hold",
        starts: 2,
        holds: 1,
        asks: &[Ask::Question],
        people: &[Person::Owner],
        decisions: &[Respond],
        results: false,
        claims: 2,
        ticks: 2,
        steps_back: 1,
        erases_hidden: true,
        ends: 2,
        ..EMPTY
    },
];

impl Default for Scope {
    fn default() -> Self {
        EMPTY
    }
}

impl Scope {
    /// The worlds of the test command.
    pub fn small() -> Vec<Self> {
        SMALL.to_vec()
    }

    /// The same worlds, larger. Millions of states.
    pub fn deep() -> Vec<Self> {
        let mut scopes = Self::small();
        for scope in &mut scopes {
            scope.holds += 1;
            scope.spawns += u8::from(scope.spawns > 0);
            scope.ends += 1;
            scope.claims += 1;
            scope.depth += u16::from(scope.depth > 1);
        }
        scopes
    }

    /// Everything that can happen next.
    pub(super) fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let calls = (0..self.starts).filter(|n| !world.started.contains_key(n));
        actions.extend(calls.map(Action::Start));
        for live in world.core.requests.values() {
            self.worker_actions(world, live, actions);
        }
        self.people_actions(world, actions);
        self.ending_actions(world, actions);
        self.world_actions(world, actions);
        probes(world, actions);
    }

    fn worker_actions(&self, world: &World, live: &LiveRequest, actions: &mut Vec<Action>) {
        let spent = world.spent;
        let is_claimable = matches!(live.status, LiveStatus::Queued | LiveStatus::Running);
        if is_claimable && spent.claims < self.claims {
            actions.extend((1..=self.workers).map(|worker| Action::Claim(live.id, worker)));
        }
        if self.ticks > 0 {
            actions.push(Action::Lapse(live.id));
        }
        // A worker that was replaced does not know it yet.
        let stale = (live.fence > 1).then(|| live.fence - 1);
        // Nor does a worker of another copy of the data.
        let foreign = live.fence.checked_sub(FENCE_RAISE);
        for fence in [Some(live.fence), stale, foreign].into_iter().flatten() {
            let by = Fenced {
                request: live.id,
                fence,
            };
            if spent.spawns < self.spawns && live.depth < self.depth {
                let leased = self.leased_spawns;
                actions.extend(
                    self.agents
                        .iter()
                        .map(|agent| Action::Spawn { by, agent, leased }),
                );
            }
            if spent.holds < self.holds {
                actions.extend(self.asks.iter().map(|ask| Action::Hold(by, *ask)));
            }
            if spent.calls < self.calls {
                actions.push(Action::Call(by));
            }
            for call in live.calls.keys().filter(|_| self.results) {
                for outcome in [CallOutcome::Ran, CallOutcome::Refused] {
                    actions.push(Action::Result(by, *call, outcome));
                }
            }
            if spent.ends < self.ends {
                actions.extend([Action::Complete(by), Action::Fail(by)]);
            }
            if spent.writes < self.writes {
                actions.push(Action::Put(by));
            }
        }
    }

    /// Decisions arrive whenever they like, also for holds that were decided long ago.
    fn people_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for hold in world.facts.holds.keys() {
            for person in self.people {
                let decisions = self.decisions.iter();
                actions.extend(decisions.map(|kind| Action::Decide(*hold, *person, *kind)));
            }
            if self.ticks > 0 {
                actions.push(Action::Expire(*hold));
            }
        }
    }

    fn ending_actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.spent.ends >= self.ends {
            return;
        }
        actions.extend(
            world
                .core
                .requests
                .keys()
                .map(|request| Action::Cancel(*request)),
        );
        if self.ends_tasks {
            let tasks = world.core.tasks.keys();
            actions.extend(
                tasks.flat_map(|task| [Action::CancelTask(*task), Action::CloseTask(*task)]),
            );
        }
    }

    fn world_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let spent = world.spent;
        if spent.ticks < self.ticks {
            actions.push(Action::Tick);
        }
        if spent.steps_back < self.steps_back && world.wall > 0 {
            actions.push(Action::StepBack);
        }
        if spent.restores < self.restores {
            actions.push(Action::Restore);
        }
        if self.erases_hidden {
            actions.push(Action::EraseHidden);
        }
        if self.pipelined && world.durable < world.core.revision {
            actions.push(Action::Sync);
        }
        if spent.crashes < self.crashes {
            actions.push(Action::Crash { keeps_tail: false });
            actions.push(Action::Crash { keeps_tail: true });
        }
    }
}

fn probes(world: &World, actions: &mut Vec<Action>) {
    let mut probes = vec![
        Probe::OtherTenant,
        Probe::TempKey,
        Probe::WrongVersion,
        Probe::ClientToolResult,
    ];
    probes.extend(
        world
            .facts
            .closed
            .iter()
            .map(|task| Probe::FinalTask(*task)),
    );
    let children = world
        .core
        .tasks
        .values()
        .filter(|task| task.parent.is_some());
    probes.extend(children.map(|task| Probe::ForeignTask(task.id)));
    let queued = world
        .core
        .requests
        .values()
        .filter(|live| live.status == LiveStatus::Queued);
    probes.extend(queued.map(|live| Probe::Unclaimed(live.id)));
    if !world.core.requests.is_empty() {
        probes.push(Probe::Fork);
    }
    actions.extend(probes.into_iter().map(Action::Probe));
}
