//! The cascade storm: random trees of agents with many open holds, decided in any order while branches
//! complete, fail, are cancelled, dismissed or expire. After every record the statuses of all tasks and
//! requests, and the holds that each ancestor shows as pending, are compared with a [`Ledger`] that
//! works them out the slow way.

mod ledger;

use statehold_core::command::{Command, Context, Fenced, Outcome, Rejection, StartRequest};
use statehold_core::decide::step;
use statehold_core::hold::{
    CallTarget, DecisionKind, Hold, HoldKind, HoldStatus, NewDecision, NewHold, OnExpiry,
};
use statehold_core::ids::{HoldId, RequestId};
use statehold_core::item::{ItemKind, NewCallMark, NewItem, Visibility};
use statehold_core::mutant::{self, Mutant};
use statehold_core::principal::{Actor, Principal};
use statehold_core::record::{Event, Record};
use statehold_core::request::{LiveRequest, LiveStatus, RequestOutcome};
use statehold_core::session::SessionState;
use statehold_model::fixtures;
use uuid::Uuid;

pub use self::ledger::Ledger;

use crate::workload::Random;

/// How large a tree grows, and how long it storms.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Requests above the deepest one.
    pub depth_max: u16,
    /// Live children of one request.
    pub fan_out_max: usize,
    /// Holds that are open at once before the storm begins.
    pub holds: usize,
    /// Commands of the storm.
    pub steps: usize,
}

/// What a storm saw.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is counted by the name it has")]
pub struct Seen {
    pub records: usize,
    pub holds: usize,
    pub open_most: usize,
    pub deepest: u16,
    pub widest: usize,
    pub reused: usize,
    pub people: usize,
    pub expired: usize,
    pub cancelled: usize,
    pub completed: usize,
    pub failed: usize,
    pub stopped: usize,
    pub compared: usize,
}

impl Seen {
    /// Both together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            records: self.records + other.records,
            holds: self.holds + other.holds,
            open_most: self.open_most.max(other.open_most),
            deepest: self.deepest.max(other.deepest),
            widest: self.widest.max(other.widest),
            reused: self.reused + other.reused,
            people: self.people + other.people,
            expired: self.expired + other.expired,
            cancelled: self.cancelled + other.cancelled,
            completed: self.completed + other.completed,
            failed: self.failed + other.failed,
            stopped: self.stopped + other.stopped,
            compared: self.compared + other.compared,
        }
    }

    /// The same in a sentence.
    pub fn line(&self) -> String {
        format!(
            "{} records of {} holds (at most {} open at once, {} deep, {} wide, {} reused tasks): {} \
             decided by people, {} expired, {} cancelled; requests: {} completed, {} failed, {} \
             cancelled; {} statuses and lists of pending holds compared",
            self.records,
            self.holds,
            self.open_most,
            self.deepest,
            self.widest,
            self.reused,
            self.people,
            self.expired,
            self.cancelled,
            self.completed,
            self.failed,
            self.stopped,
            self.compared
        )
    }
}

/// Runs one storm, with a bug of the core if one is named.
///
/// # Errors
///
/// The first thing that is not as the ledger says, and after which record.
pub fn run(seed: u64, shape: Shape, bug: Option<Mutant>) -> Result<Seen, String> {
    mutant::with(bug, || {
        let mut storm = Storm::new(seed, shape);
        storm.run().map_err(|error| {
            let revision = storm.state.revision;
            format!("seed {seed}, after record {revision}: {error}")
        })?;
        Ok(storm.seen)
    })
}

struct Storm {
    shape: Shape,
    random: Random,
    state: SessionState,
    ledger: Ledger,
    seconds: i64,
    entropy: u64,
    seen: Seen,
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Act {
    Spawn,
    Ask,
    Decide,
    Expire,
    Complete,
    Fail,
    CancelRequest,
    CancelTask,
    Claim,
    Lapse,
}

/// While the tree grows, and while it storms; each with its weight.
const GROWING: [(Act, u64); 4] = [
    (Act::Spawn, 8),
    (Act::Ask, 10),
    (Act::Complete, 1),
    (Act::Claim, 1),
];
const STORMING: [(Act, u64); 10] = [
    (Act::Decide, 40),
    (Act::Complete, 14),
    (Act::Claim, 8),
    (Act::Expire, 8),
    (Act::Spawn, 6),
    (Act::Ask, 6),
    (Act::Fail, 4),
    (Act::Lapse, 3),
    (Act::CancelRequest, 2),
    (Act::CancelTask, 1),
];

impl Storm {
    fn new(seed: u64, shape: Shape) -> Self {
        let session = fixtures::session(1);
        Self {
            shape,
            random: Random::new(seed),
            state: SessionState::new(session),
            ledger: Ledger::default(),
            seconds: 1_000,
            entropy: 0,
            seen: Seen::default(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        self.send(&fixtures::create_session(), fixtures::client())?;
        self.start_root()?;
        // A tree whose branches are all busy stops growing; then the storm begins with less.
        for _ in 0..self.shape.holds * 20 {
            if self.state.holds.len() >= self.shape.holds {
                break;
            }
            self.act(&GROWING)?;
        }
        for _ in 0..self.shape.steps {
            if self.state.requests.is_empty() {
                self.start_root()?;
            }
            self.act(&STORMING)?;
        }
        Ok(())
    }

    fn act(&mut self, choices: &[(Act, u64)]) -> Result<(), String> {
        let total = choices.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.below(total);
        let mut chosen = choices[0].0;
        for (act, weight) in choices {
            chosen = *act;
            if at < *weight {
                break;
            }
            at -= weight;
        }
        match chosen {
            Act::Spawn => self.spawn(),
            Act::Ask => self.ask(),
            Act::Decide => self.decide(),
            Act::Expire => self.expire(),
            Act::Complete => self.complete(),
            Act::Fail => self.fail(),
            Act::CancelRequest => self.cancel_request(),
            Act::CancelTask => self.cancel_task(),
            Act::Claim => self.claim(),
            Act::Lapse => self.lapse(),
        }
    }

    fn start_root(&mut self) -> Result<(), String> {
        let root = StartRequest {
            lease_ttl_ms: Some(24 * 3_600 * 1_000),
            ..fixtures::start("coordinator")
        };
        self.send(&Command::StartRequest(root), fixtures::worker(1))
    }

    /// One of the live requests that fit, if there is one.
    fn pick(&mut self, fits: impl Fn(&LiveRequest) -> bool) -> Option<LiveRequest> {
        let found: Vec<RequestId> = self
            .state
            .requests
            .values()
            .filter(|live| fits(live))
            .map(|live| live.id)
            .collect();
        let at = self.random.below(found.len() as u64);
        let id = found.get(usize::try_from(at).ok()?)?;
        self.state.requests.get(id).cloned()
    }

    fn is_held_by_worker(live: &LiveRequest) -> bool {
        live.lease.is_some() && live.status != LiveStatus::Queued
    }

    fn spawn(&mut self) -> Result<(), String> {
        let Shape {
            depth_max,
            fan_out_max,
            ..
        } = self.shape;
        let parent = self.pick(|live| {
            Self::is_held_by_worker(live)
                && live.depth < depth_max
                && live.children.len() < fan_out_max
        });
        let Some(mut parent) = parent else {
            return Ok(());
        };
        // Left to chance alone, no tree is ever as wide or as deep as it may be.
        let far = self.random.below(6);
        if far < 2 {
            let fitting = self.state.requests.values().filter(|live| {
                Self::is_held_by_worker(live)
                    && live.depth < depth_max
                    && live.children.len() < fan_out_max
            });
            let farthest = fitting.max_by_key(|live| match far {
                0 => live.children.len(),
                _ => usize::from(live.depth),
            });
            parent = farthest.cloned().unwrap_or(parent);
        }
        // Few agents: a child often finds an idle task of its agent, or all of them busy.
        let agent = format!("agent-{}", self.random.below(2));
        let lease_ttl_ms = match self.random.below(8) {
            0 => None,
            1 => Some(5_000),
            _ => Some(24 * 3_600 * 1_000),
        };
        let child = StartRequest {
            parent: Some(fenced(&parent)),
            lease_ttl_ms,
            ..fixtures::start(&agent)
        };
        self.send(&Command::StartRequest(child), fixtures::worker(1))
    }

    fn ask(&mut self) -> Result<(), String> {
        let Some(live) = self.pick(|live| Self::is_held_by_worker(live) && live.holds.len() < 6)
        else {
            return Ok(());
        };
        self.entropy += 1;
        let id = HoldId::from_uuid(Uuid::from_u64_pair(0x7000, (2 << 62) | self.entropy));
        let is_approval = self.random.below(2) == 0;
        let call = NewItem {
            kind: ItemKind::ToolCall,
            visibility: Visibility::Hidden,
            role: None,
            body: fixtures::body("call"),
            attachments: Vec::new(),
            call: Some(NewCallMark::Call {
                gated: true,
                idempotent: self.random.below(3) > 0,
            }),
        };
        let expiries = [OnExpiry::Reject, OnExpiry::Dismiss, OnExpiry::Fail];
        let on_expiry = expiries[usize::try_from(self.random.below(3)).unwrap_or(0)];
        let on_expiry = if live.depth > 1 {
            on_expiry
        } else {
            OnExpiry::Reject
        };
        let expires_in_ms = match self.random.below(4) {
            0 => Some(60_000 + 1_000 * self.random.below(600)),
            _ => None,
        };
        let hold = NewHold {
            id,
            kind: if is_approval {
                HoldKind::Approval
            } else {
                HoldKind::Question
            },
            body: fixtures::body("hold"),
            call: is_approval.then_some(CallTarget::SameCommand(0)),
            digest: is_approval.then(|| fixtures::digest(&format!("action {id}"))),
            allowed: [].into(),
            need: 1,
            expires_in_ms,
            on_expiry,
            decide_by: None,
            effect: None,
            risk: None,
            policy: None,
        };
        let items = if is_approval { vec![call] } else { Vec::new() };
        let by = fenced(&live);
        self.send(&Command::OpenHold { by, hold, items }, fixtures::worker(1))
    }

    fn pick_hold(&mut self, fits: impl Fn(&Hold) -> bool) -> Option<Hold> {
        let found: Vec<&Hold> = self
            .state
            .holds
            .values()
            .filter(|hold| fits(hold))
            .collect();
        let at = usize::try_from(self.random.below(found.len() as u64)).ok()?;
        found.get(at).copied().cloned()
    }

    fn decide(&mut self) -> Result<(), String> {
        let Some(hold) = self.pick_hold(|_| true) else {
            return Ok(());
        };
        let mut kinds: Vec<DecisionKind> = hold.allowed.iter().copied().collect();
        let depth = self
            .state
            .requests
            .get(&hold.request)
            .map(|live| live.depth);
        if self.random.below(6) > 0 || depth < Some(2) {
            // A dismissal takes the whole branch with it: most decisions are others.
            kinds.retain(|kind| *kind != DecisionKind::Dismiss);
        }
        let at = usize::try_from(self.random.below(kinds.len() as u64)).unwrap_or(0);
        let Some(kind) = kinds.get(at).copied() else {
            return Ok(());
        };
        self.entropy += 1;
        let text = format!("decision {}", self.entropy);
        let decision = NewDecision {
            key: fixtures::digest(&text),
            fingerprint: fixtures::digest(&text),
            kind,
            digest: hold.digest,
            edited: (kind == DecisionKind::Edit).then(|| fixtures::digest("edited")),
            body: Some(fixtures::body("because")),
        };
        let hold = hold.id;
        self.send(
            &Command::DecideHold { hold, decision },
            fixtures::approver(1),
        )
    }

    fn expire(&mut self) -> Result<(), String> {
        self.seconds += i64::try_from(self.random.below(60)).unwrap_or(0);
        let now = fixtures::context(fixtures::client(), self.seconds, 0).now;
        let now = now.max(self.state.last_at);
        let Some(hold) = self.pick_hold(|hold| hold.is_due(now)) else {
            return Ok(());
        };
        let server = Actor::system(fixtures::name("t1"));
        self.send(&Command::ExpireHold { hold: hold.id }, server)
    }

    fn complete(&mut self) -> Result<(), String> {
        let is_done = |live: &LiveRequest| {
            live.status == LiveStatus::Running && live.depth > 0 && live.calls.is_empty()
        };
        let Some(live) = self.pick(is_done) else {
            return Ok(());
        };
        let close_task = self.random.below(5) == 0;
        let command = Command::CompleteRequest {
            by: fenced(&live),
            output: fixtures::output(),
            items: Vec::new(),
            state: statehold_core::command::StatePatch::default(),
            task_state: None,
            close_task,
            cancel_children: false,
        };
        self.send(&command, fixtures::worker(1))
    }

    /// Most branches that are cut are small, or little would be left to decide.
    fn branch_max(&mut self) -> usize {
        match self.random.below(8) {
            0 => usize::MAX,
            _ => 1,
        }
    }

    fn fail(&mut self) -> Result<(), String> {
        let most = self.branch_max();
        let may_fail = |live: &LiveRequest| {
            Self::is_held_by_worker(live)
                && live.depth > 1
                && live.holds.is_empty()
                && live.children.len() <= most
        };
        let Some(live) = self.pick(may_fail) else {
            return Ok(());
        };
        let command = Command::FailRequest {
            by: fenced(&live),
            error: fixtures::body("it broke"),
            cancel_children: true,
        };
        self.send(&command, fixtures::worker(1))
    }

    fn cancel_request(&mut self) -> Result<(), String> {
        let most = self.branch_max();
        let Some(live) = self.pick(|live| live.depth > 1 && live.children.len() <= most) else {
            return Ok(());
        };
        let request = live.id;
        self.send(&Command::CancelRequest { request }, fixtures::client())
    }

    fn cancel_task(&mut self) -> Result<(), String> {
        let most = self.branch_max();
        let Some(live) = self.pick(|live| live.depth > 1 && live.children.len() <= most) else {
            return Ok(());
        };
        let task = live.task;
        self.send(&Command::CancelTask { task }, fixtures::client())
    }

    fn claim(&mut self) -> Result<(), String> {
        let Some(live) = self.pick(|live| live.status == LiveStatus::Queued) else {
            return Ok(());
        };
        let command = Command::ClaimRequest {
            request: live.id,
            ttl_ms: 24 * 3_600 * 1_000,
        };
        self.send(&command, fixtures::worker(1))
    }

    fn lapse(&mut self) -> Result<(), String> {
        let now = fixtures::context(fixtures::client(), self.seconds, 0).now;
        let now = now.max(self.state.last_at);
        let is_lost = |live: &LiveRequest| {
            live.status == LiveStatus::Running && !live.has_live_lease(now, None)
        };
        let Some(live) = self.pick(is_lost) else {
            return Ok(());
        };
        let server = Actor::system(fixtures::name("t1"));
        let request = live.id;
        self.send(&Command::LapseLease { request }, server)
    }

    fn send(&mut self, command: &Command, actor: Actor) -> Result<(), String> {
        self.seconds += 1;
        self.entropy += 1;
        let ctx: Context = fixtures::context(actor, self.seconds, self.entropy);
        let tasks = self.state.tasks_opened;
        match step(&mut self.state, command, &ctx) {
            Ok(Outcome::Commit(record) | Outcome::CommitThenRefuse(record, _)) => {
                self.ledger.note(&record);
                self.count(&record, tasks);
                self.seen.compared += self.ledger.compare(&self.state)?;
                Ok(())
            }
            Ok(Outcome::AlreadyDone { .. }) => Err("done before, and nobody did it".to_owned()),
            // The tree is full; whatever else is refused is a mistake of the storm or of the core.
            Err(Rejection::Limit { .. }) => Ok(()),
            Err(rejection) => Err(format!("{command:?} was refused: {rejection}")),
        }
    }

    fn count(&mut self, record: &Record, tasks: u64) {
        let seen = &mut self.seen;
        seen.records += 1;
        for event in &record.content.events {
            match event {
                Event::HoldOpened { .. } => seen.holds += 1,
                Event::HoldDecided { decision, .. } => match decision.status {
                    HoldStatus::Expired => seen.expired += 1,
                    _ if decision.by == Principal::System => seen.cancelled += 1,
                    _ => seen.people += 1,
                },
                Event::RequestStarted { parent, .. } => {
                    let is_reuse = self.state.tasks_opened == tasks;
                    seen.reused += usize::from(parent.is_some() && is_reuse);
                }
                Event::RequestEnded { outcome, .. } => match outcome {
                    RequestOutcome::Completed => seen.completed += 1,
                    RequestOutcome::Failed => seen.failed += 1,
                    RequestOutcome::Cancelled => seen.stopped += 1,
                },
                _ => {}
            }
        }
        seen.open_most = seen.open_most.max(self.state.holds.len());
        for live in self.state.requests.values() {
            seen.deepest = seen.deepest.max(live.depth);
            seen.widest = seen.widest.max(live.children.len());
        }
    }
}

fn fenced(live: &LiveRequest) -> Fenced {
    Fenced {
        request: live.id,
        fence: live.fence,
    }
}
