//! Random sequences of commands, on the core and on the reference: they must agree on every answer
//! and on the whole state after each command, and no promise may be broken.
//!
//! `STATEHOLD_SEQUENCES` is the number of sequences, `STATEHOLD_SEED` picks others than the usual.

mod author;
mod cases;
mod script;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::test_runner::{
    Config, RngAlgorithm, TestCaseError, TestCaseResult, TestRng, TestRunner,
};
use statehold_core::apply::apply;
use statehold_core::command::{Command, Context, Outcome, Rejection};
use statehold_core::decide;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::invariant::{
    CommandStep, Facts, Findings, Invariant, Observation, RecordStep, judge_all,
};
use statehold_core::item::{CallMark, Item};
use statehold_core::projection::project;
use statehold_core::record::{Event, Record};
use statehold_core::session::SessionState;
use statehold_core::task::TaskStatus;
use statehold_core::time::Timestamp;
use statehold_model::fixtures;
use statehold_model::reference::{Answer, KnownMark, World};

use author::{Memory, Sent};
use cases::Counts;
use script::{Act, Step};

const SEQUENCES: u32 = 400;
const SEED: u64 = 0x5EED;

#[test]
fn core_and_reference_agree_on_random_sequences() {
    let sequences = variable("STATEHOLD_SEQUENCES").unwrap_or(u64::from(SEQUENCES));
    let seed = variable("STATEHOLD_SEED").unwrap_or(SEED);
    let config = Config {
        cases: u32::try_from(sequences).expect("STATEHOLD_SEQUENCES fits 32 bits"),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let counts = RefCell::new(Counts::new());
    let findings = RefCell::new(Findings::default());
    println!("seed {seed}, {sequences} sequences");
    let result = TestRunner::new_with_rng(config, rng).run(&script::script(), |steps| {
        let mut run = Run::begin();
        for step in &steps {
            run.step(*step)?;
        }
        run.finish()?;
        for (name, count) in run.counts {
            *counts.borrow_mut().entry(name).or_default() += count;
        }
        findings.borrow_mut().add(run.findings);
        Ok(())
    });
    if let Err(error) = result {
        panic!("seed {seed}: {error}");
    }
    let counts = counts.into_inner();
    for (name, count) in &counts {
        println!("{count:>8}  {name}");
    }
    // Agreement about things that never happened says nothing. Short runs are let off.
    if sequences >= u64::from(SEQUENCES) {
        cases::require_seen(&counts, findings.into_inner());
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
    )
}

/// One sequence on both sides, with the engine's part: the clock, heartbeats, loading finished objects.
struct Run {
    state: SessionState,
    world: World,
    facts: Facts,
    records: Vec<Vec<u8>>,
    heartbeats: BTreeMap<RequestId, Timestamp>,
    now: Timestamp,
    entropy: u64,
    memory: Memory,
    counts: Counts,
    findings: Findings,
    trace: Vec<String>,
}

impl Run {
    fn begin() -> Self {
        let mut run = Self {
            state: SessionState::new(fixtures::session(1)),
            world: World::default(),
            facts: Facts::default(),
            records: Vec::new(),
            heartbeats: BTreeMap::new(),
            now: Timestamp::from_micros(1_000_000_000_000),
            entropy: 0,
            memory: Memory::default(),
            counts: Counts::new(),
            findings: Findings::default(),
            trace: Vec::new(),
        };
        let (command, actor) = (fixtures::create_session(), fixtures::client());
        run.send(&Sent { command, actor })
            .expect("the session begins");
        run
    }

    fn step(&mut self, step: Step) -> TestCaseResult {
        self.now = Timestamp::from_micros(self.now.as_micros() + step.clock_ms * 1_000);
        match step.act {
            Act::Heartbeat => self.heartbeat(),
            Act::Restart => self.restart(),
            Act::Dive => {
                let links = if step.dice.is_multiple_of(4) { 34 } else { 6 };
                for _ in 0..links {
                    let act = Act::Spawn;
                    let plain = Step {
                        act,
                        dice: 0,
                        clock_ms: 0,
                    };
                    let sent = author::command(plain, &self.world, &mut self.memory);
                    self.send(&sent)?;
                }
            }
            _ => {
                let sent = author::command(step, &self.world, &mut self.memory);
                if let Command::Fork { session, .. } = sent.command {
                    return self.fork(session, &sent);
                }
                return self.send(&sent);
            }
        }
        Ok(())
    }

    /// Every worker that still has its lease renews it.
    fn heartbeat(&mut self) {
        let ctx = self.context(&Sent {
            command: fixtures::create_session(),
            actor: fixtures::client(),
        });
        for request in 0..self.world.requests.len() {
            if self.world.is_live(request) && self.world.has_live_lease(request, &ctx) {
                self.extend(request);
            }
        }
        self.trace.push("heartbeat of all live leases".to_owned());
    }

    /// The server comes back: every lease that was not given up gets one full ttl.
    fn restart(&mut self) {
        for request in 0..self.world.requests.len() {
            if self.world.is_live(request) && self.world.requests[request].attended {
                self.extend(request);
            }
        }
        self.count("restart");
        self.trace.push("restart".to_owned());
    }

    fn extend(&mut self, request: usize) {
        if let Some(lease) = self.world.requests[request].leases.last() {
            let until = self.now.max(self.world.last_at).plus_ms(lease.ttl_ms);
            self.heartbeats
                .insert(self.world.request_id(request), until);
        }
    }

    fn context(&mut self, sent: &Sent) -> Context {
        self.entropy += 1 << 16;
        Context {
            now: self.now,
            actor: sent.actor.clone(),
            entropy: self.entropy,
            leases: self.heartbeats.clone(),
            loaded: self.world.loaded_for(&sent.command),
        }
    }

    fn send(&mut self, sent: &Sent) -> TestCaseResult {
        let ctx = self.context(sent);
        let command = &sent.command;
        let (before, world_before) = (self.state.clone(), self.world.clone());
        let result = decide::step(&mut self.state, command, &ctx);
        let answer = self.world.run(command, &ctx);
        self.note(sent, &result, ctx.now);
        if result.is_err() && !matches!(command, Command::DecideHold { .. }) {
            let refused = (command.clone(), sent.actor.clone());
            self.memory.refused.push(refused);
        }
        self.count(&format!("command {:?}", command.name()));
        self.require(agree(command, &result, &answer), || {
            format!("the core says {result:?}\nthe reference says {answer:?}")
        })?;
        let (result, after) = (&result, &self.state.clone());
        let step = CommandStep {
            before: &before,
            command,
            ctx: &ctx,
            result,
            after,
        };
        self.judge(&Observation::Command(step))?;
        match result {
            Ok(outcome) => {
                if let Some(record) = outcome.record() {
                    self.committed(&before, record)?;
                    for case in
                        cases::seen(&world_before, &self.world, &before, &self.state, record)
                    {
                        self.count(case);
                    }
                    if record.content.at > ctx.now {
                        self.count("committed while the clock was behind");
                    }
                }
                match outcome {
                    Outcome::Commit(_) => {}
                    Outcome::CommitThenRefuse(..) => self.count("committed, then refused"),
                    Outcome::AlreadyDone { .. } => self.count("already done"),
                }
            }
            Err(Rejection::Limit { limit, .. }) => self.count(&format!("refused Limit {limit}")),
            Err(rejection) => self.count(&format!("refused {}", first_word(rejection))),
        }
        self.compare_states()
    }

    fn committed(&mut self, before: &SessionState, record: &Record) -> TestCaseResult {
        let learned = self.world.learn(record);
        self.require(learned.is_ok(), || format!("{learned:?}"))?;
        let after = self.state.clone();
        let seen = Observation::Record(RecordStep {
            before,
            record,
            after: &after,
        });
        self.judge(&seen)?;
        self.facts.absorb(record);
        self.records.push(record.to_bytes());
        for event in &record.content.events {
            self.count(&format!("event {}", first_word(event)));
            let agrees = self.agrees(event);
            self.require(agrees, || {
                format!("the reference knows nothing of {event:?}")
            })?;
        }
        Ok(())
    }

    /// Whether the reference knows of things that leave the state as they happen.
    fn agrees(&self, event: &Event) -> bool {
        let world = &self.world;
        match event {
            Event::TaskClosed { task, status } => {
                world.task_named(*task).map(|task| world.task_status(task)) == Some(*status)
            }
            Event::RequestEnded {
                request, outcome, ..
            } => world
                .request_named(*request)
                .is_some_and(|request| world.requests[request].ended == Some(*outcome)),
            Event::HoldDecided { hold, decision, .. } => {
                world.hold_named(*hold).is_some_and(|hold| {
                    world.holds[hold].decided.map(|(known, _)| known) == Some(*decision)
                })
            }
            Event::ItemsAppended { items, request, .. } => {
                items.iter().all(|item| self.agrees_on_item(*request, item))
            }
            Event::Rewound {
                to,
                items_kept,
                items_until,
            } => *items_kept == world.items_at(*to) && *items_until == world.items.len() as u64,
            Event::StateRestored { bytes, key, from } => world.writes.iter().any(|write| {
                (&write.key, write.revision, write.bytes) == (key, *from, Some(*bytes))
            }),
            _ => true,
        }
    }

    fn agrees_on_item(&self, request: RequestId, item: &Item) -> bool {
        let Some(known) = self
            .world
            .item_named(item.id)
            .map(|at| &self.world.items[at])
        else {
            return false;
        };
        let same_mark = match (item.call, known.mark) {
            (None, None) => true,
            (
                Some(CallMark::Call { idempotent, gated }),
                Some(KnownMark::Call {
                    idempotent: i,
                    gated: g,
                }),
            ) => (idempotent, gated) == (i, g),
            (
                Some(CallMark::Result {
                    call,
                    outcome,
                    executed,
                }),
                Some(KnownMark::Result {
                    call: c,
                    outcome: o,
                    executed: e,
                }),
            ) => Some(call) == self.world.items[c].id && (outcome, executed) == (o, e),
            _ => false,
        };
        same_mark
            && known.kind == item.kind
            && known.visibility == item.visibility
            && known.role == item.role
            && self.world.request_id(known.request) == request
    }

    fn compare_states(&mut self) -> TestCaseResult {
        let expected = self.world.expected(&self.state);
        self.require(self.state == expected, || {
            let differs = |(a, b): &(String, String)| a != b;
            let pairs = lines(&self.state).into_iter().zip(lines(&expected));
            let pairs: Vec<_> = pairs.filter(differs).collect();
            format!("core and reference: {pairs:#?}")
        })?;
        let status = self.world.session_status();
        self.require(self.state.status() == status, || {
            format!("the session is {status:?}")
        })?;
        for task in 0..self.world.tasks.len() {
            let live = self.world.live_request_of(task);
            let reachable = live
                .map(|live| self.world.reachable_holds(live))
                .unwrap_or_default();
            let mut wanted: Vec<_> = reachable
                .iter()
                .filter_map(|hold| self.world.holds[*hold].id)
                .collect();
            let mut shown = self.state.pending_holds(self.world.task_id(task));
            wanted.sort_unstable();
            shown.sort_unstable();
            self.require(shown == wanted, || {
                format!("task T{} shows {shown:?}", task + 1)
            })?;
        }
        Ok(())
    }

    /// A copy goes its own way; here it is looked at and left.
    fn fork(&mut self, session: SessionId, sent: &Sent) -> TestCaseResult {
        let ctx = self.context(sent);
        let result = decide::decide(&self.state, &sent.command, &ctx);
        self.note(sent, &result, ctx.now);
        let expected = if sent.actor.tenant != fixtures::name("t1") || self.world.deleted {
            Some(Rejection::NotFound)
        } else if session == self.state.session {
            Some(Rejection::SessionExists)
        } else {
            None
        };
        self.require(result.as_ref().err() == expected.as_ref(), || {
            format!("the fork should end in {expected:?}, not {result:?}")
        })?;
        let Ok(Outcome::Commit(record)) = result else {
            return Ok(());
        };
        self.count("event SessionForked");
        let mut copy = self.state.clone();
        apply(&mut copy, &record);
        let before = self.state.clone();
        self.judge(&Observation::Record(RecordStep {
            before: &before,
            record: &record,
            after: &copy,
        }))?;
        let numbers = |state: &SessionState| {
            let mut numbers: Vec<u64> = state.tasks.values().map(|task| task.number).collect();
            numbers.sort_unstable();
            numbers
        };
        let is_idle = copy
            .tasks
            .values()
            .all(|task| task.status == TaskStatus::Idle);
        let is_copy = copy.requests.is_empty()
            && copy.holds.is_empty()
            && copy.keys == before.keys
            && copy.ttl == before.ttl
            && copy.session == session
            && copy.revision == before.revision + 1
            && numbers(&copy) == numbers(&before);
        self.require(is_idle && is_copy && !copy.closed, || {
            format!("the copy is {copy:#?}")
        })
    }

    fn finish(&mut self) -> TestCaseResult {
        let mut folded = SessionState::new(fixtures::session(1));
        for bytes in &self.records {
            let record = Record::from_bytes(bytes)
                .map_err(|error| TestCaseError::fail(format!("a record is unreadable: {error}")))?;
            let (projected, _) = project(&folded, &record);
            apply(&mut folded, &record);
            self.require(projected == folded, || {
                format!("with its rows listed it is {projected:#?}")
            })?;
        }
        self.require(folded == self.state, || {
            format!("folded again it is {folded:#?}")
        })
    }

    fn judge(&mut self, seen: &Observation<'_>) -> TestCaseResult {
        let findings = judge_all(&self.facts, seen);
        self.findings.add(findings);
        self.require(findings.broken == 0, || {
            let broken: Vec<&str> = findings.broken().map(Invariant::name).collect();
            format!("broken: {broken:?}")
        })
    }

    fn require(&self, holds: bool, otherwise: impl FnOnce() -> String) -> TestCaseResult {
        if holds {
            return Ok(());
        }
        Err(TestCaseError::fail(format!(
            "{}\nafter\n{}",
            otherwise(),
            self.trace.join("\n")
        )))
    }

    fn note(&mut self, sent: &Sent, result: &Result<Outcome, Rejection>, now: Timestamp) {
        let result = match result {
            Ok(Outcome::Commit(record)) => format!("commit {:?}", record.content.events),
            other => format!("{other:?}"),
        };
        let (at, by) = (now.as_micros() / 1_000, sent.actor.principal);
        let tenant = &sent.actor.tenant;
        self.trace.push(format!(
            "{at} {tenant} {by}: {:?}\n    -> {result}",
            sent.command
        ));
    }

    fn count(&mut self, name: &str) {
        *self.counts.entry(name.to_owned()).or_default() += 1;
    }
}

/// A state in parts, to show where two of them differ.
fn lines(state: &SessionState) -> Vec<String> {
    vec![
        format!(
            "{:?} {:?} {:?}",
            state.revision, state.last_at, state.closed
        ),
        format!("{:?} {:?} {:?}", state.deleted, state.ttl, state.expires_at),
        format!(
            "{:?}",
            (
                state.tasks_opened,
                state.requests_started,
                state.items_appended
            )
        ),
        format!("{:?}", state.tasks),
        format!("{:?}", state.requests),
        format!("{:?}", state.holds),
        format!("{:?}", state.keys),
    ]
}

/// Whether both sides give the same answer, with the same reason.
fn agree(command: &Command, result: &Result<Outcome, Rejection>, answer: &Answer) -> bool {
    match (result, answer) {
        (Ok(Outcome::Commit(_)), Answer::Done) => true,
        (Ok(Outcome::CommitThenRefuse(_, core)), Answer::Late(reference))
        | (Err(core), Answer::Refused(reference)) => same_reason(command, core, reference),
        (Ok(Outcome::AlreadyDone { revision: core }), Answer::Again { revision }) => {
            core == revision
        }
        _ => false,
    }
}

/// Reasons are compared with all they say, except where the wording is free or several are true.
fn same_reason(command: &Command, core: &Rejection, reference: &Rejection) -> bool {
    let is_free = match core {
        Rejection::HoldMalformed(_)
        | Rejection::ItemMalformed(_)
        | Rejection::CallNotReleased { .. }
        | Rejection::Limit { .. } => true,
        Rejection::TaskBusy { .. } => matches!(command, Command::CloseTask { .. }),
        _ => false,
    };
    core == reference
        || is_free && std::mem::discriminant(core) == std::mem::discriminant(reference)
}

/// The name of a variant.
fn first_word(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect()
}
