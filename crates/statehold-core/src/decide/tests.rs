//! Stories about the core, one file per noun, told through a small driver.
//!
//! [`World`] plays the engine around one session: it keeps every record, finds the finished things
//! that a command names, moves a clock and names things by alias (`T1`, `R2`, `R2.h1`). Every
//! command and every record is judged by all invariants, and when a world ends its records must
//! fold to the state it ended with, so no story can forget to check that.

mod fork_rewind;
mod history;
mod holds;
mod memory;
mod requests;
mod sessions;
mod state;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::step;
use crate::apply::apply;
use crate::command::{
    Command, Context, DecidedHold, Fenced, LoadedFacts, Named, Outcome, Output, Past, Rejection,
    StartRequest, StatePatch,
};
use crate::digest::{BodyRef, Digest, PayloadKey};
use crate::hold::{CallTarget, DecisionKind, HoldKind, HoldStatus, NewDecision, NewHold, OnExpiry};
use crate::ids::{HoldId, IdMint, ItemId, KeyId, RequestId, SessionId, Shard, TaskId, UserId};
use crate::invariant::{CommandStep, Facts, Observation, RecordStep, judge_all};
use crate::item::{CallOutcome, Item, ItemKind, NewCallMark, NewItem, Role, Visibility};
use crate::name::Name;
use crate::principal::{Actor, Principal};
use crate::record::{Event, Record};
use crate::request::{Continuation, LiveRequest, RequestOutcome};
use crate::session::{Owner, SessionState};
use crate::task::{CloseOn, TaskStatus};
use crate::time::Timestamp;

/// The lease of every story, unless it says otherwise.
const LEASE_S: u64 = 60;

/// Ids within one command count up by one, so commands start far apart.
const ENTROPY_STEP: u64 = 1 << 20;

#[derive(Clone)]
struct World {
    state: SessionState,
    records: Vec<Record>,
    facts: Facts,
    now: Timestamp,
    entropy: u64,
    heartbeats: BTreeMap<RequestId, Timestamp>,
    decided: BTreeMap<HoldId, DecidedHold>,
    ended: BTreeMap<RequestId, RequestOutcome>,
    closed: BTreeMap<TaskId, TaskStatus>,
    /// Calls of which a claim learns that they gave no answer.
    unanswered: BTreeSet<ItemId>,
    aliases: Aliases,
}

#[derive(Clone, Default)]
struct Aliases {
    tasks: BTreeMap<String, TaskId>,
    requests: BTreeMap<String, RequestId>,
    holds: BTreeMap<String, HoldId>,
}

/// A world with an empty session.
fn new_session() -> World {
    let mut w = World::before_the_first_record();
    w.ok(create_session());
    w
}

/// A session with a chain of `depth` requests, `R1` at the top, each leased to worker 1. The agents
/// are called `a1`, `a2`, ….
fn chain(depth: u64) -> World {
    let mut w = new_session();
    w.ok(leased(start("a1")));
    for n in 2..=depth {
        w.ok(leased(w.spawn(&format!("R{}", n - 1), &format!("a{n}"))));
    }
    w
}

/// A chain of which the last request, `R{depth}`, waits for the approval of a tool call.
fn held_chain(depth: u64) -> World {
    let mut w = chain(depth);
    w.ok(w.gate(&format!("R{depth}")));
    w
}

/// What happens in a world.
impl World {
    fn before_the_first_record() -> Self {
        Self {
            state: SessionState::new(session(1)),
            records: Vec::new(),
            facts: Facts::default(),
            now: Timestamp::from_micros(1_000_000_000),
            entropy: 0,
            heartbeats: BTreeMap::new(),
            decided: BTreeMap::new(),
            ended: BTreeMap::new(),
            closed: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            aliases: Aliases::default(),
        }
    }

    /// The same world when its session was at `revision`.
    fn as_of(&self, revision: usize) -> Self {
        let mut past = Self::before_the_first_record();
        for record in &self.records[..revision] {
            let before = past.state.clone();
            apply(&mut past.state, record);
            past.keep(&before, record);
        }
        (past.now, past.entropy) = (self.now, self.entropy);
        past
    }

    /// The copy of this session at `revision`, as a world of its own.
    fn fork_at(&self, revision: usize) -> Self {
        let mut copy = self.as_of(revision);
        copy.ok(fork());
        copy
    }

    /// Commits a command of whoever usually sends it.
    #[track_caller]
    fn ok(&mut self, command: Command) -> &Record {
        self.ok_by(usual_actor(&command), command)
    }

    #[track_caller]
    fn ok_by(&mut self, actor: Actor, command: Command) -> &Record {
        match self.send(actor, command) {
            Ok(Outcome::Commit(_)) => self.records.last().expect("a record was just committed"),
            other => panic!("expected a commit, got {other:?}"),
        }
    }

    /// Refuses a command of whoever usually sends it, and says why.
    #[track_caller]
    fn no(&mut self, command: Command) -> Rejection {
        self.no_by(usual_actor(&command), command)
    }

    #[track_caller]
    fn no_by(&mut self, actor: Actor, command: Command) -> Rejection {
        match self.send(actor, command) {
            Err(rejection) => rejection,
            Ok(outcome) => panic!("expected a refusal, got {outcome:?}"),
        }
    }

    /// Answers a command of whoever usually sends it as done before, and says by which revision.
    #[track_caller]
    fn again(&mut self, command: Command) -> u64 {
        self.again_by(usual_actor(&command), command)
    }

    #[track_caller]
    fn again_by(&mut self, actor: Actor, command: Command) -> u64 {
        match self.send(actor, command) {
            Ok(Outcome::AlreadyDone { revision }) => revision,
            other => panic!("expected an answer from before, got {other:?}"),
        }
    }

    /// Commits the expiry that a late decision runs into, and says what the decider is told.
    #[track_caller]
    fn late(&mut self, command: Command) -> Rejection {
        match self.send(usual_actor(&command), command) {
            Ok(Outcome::CommitThenRefuse(_, rejection)) => rejection,
            other => panic!("expected an expiry, got {other:?}"),
        }
    }

    #[track_caller]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "stories build commands in place"
    )]
    fn send(&mut self, actor: Actor, command: Command) -> Result<Outcome, Rejection> {
        self.entropy += ENTROPY_STEP;
        let ctx = Context {
            now: self.now,
            actor,
            entropy: self.entropy,
            leases: self.heartbeats.clone(),
            loaded: self.loaded(&command),
        };
        let before = self.state.clone();
        let result = step(&mut self.state, &command, &ctx);
        self.judge(&Observation::Command(CommandStep {
            before: &before,
            command: &command,
            ctx: &ctx,
            result: &result,
            after: &self.state,
        }));
        if let Some(record) = result.as_ref().ok().and_then(Outcome::record) {
            self.keep(&before, record);
        }
        result
    }

    #[track_caller]
    fn judge(&self, seen: &Observation<'_>) {
        let broken: Vec<_> = judge_all(&self.facts, seen).broken().collect();
        assert!(broken.is_empty(), "broken: {broken:?} by {seen:#?}");
    }

    /// Judges a record that was just folded and remembers what is no longer in the state.
    #[track_caller]
    fn keep(&mut self, before: &SessionState, record: &Record) {
        self.judge(&Observation::Record(RecordStep {
            before,
            record,
            after: &self.state,
        }));
        self.facts.absorb(record);
        let revision = record.content.seq;
        for event in &record.content.events {
            self.aliases.learn(event);
            match event {
                Event::RequestEnded {
                    request, outcome, ..
                } => {
                    self.ended.insert(*request, *outcome);
                }
                Event::TaskClosed { task, status } => {
                    self.closed.insert(*task, *status);
                }
                Event::HoldDecided { hold, decision, .. } => {
                    // The last vote is the decision itself, so the hold before has the others.
                    let hold = before.holds[hold].clone();
                    let decided = DecidedHold {
                        hold,
                        decision: *decision,
                        revision,
                    };
                    self.decided.insert(decided.hold.id, decided);
                }
                _ => {}
            }
        }
        self.records.push(record.clone());
    }

    fn loaded(&self, command: &Command) -> LoadedFacts {
        let Named {
            hold,
            request,
            task,
            ..
        } = command.named();
        let past = match command {
            Command::Rewind { to } if *to < self.state.revision => {
                let then = fold(&self.records[..usize::try_from(*to).expect("a short story")]);
                let mut past = Past::from(&then);
                past.memories = fold(&self.records[..self.kept(*to)]).memories.clone();
                Some(past)
            }
            _ => None,
        };
        LoadedFacts {
            hold: hold.and_then(|id| self.decided.get(&id).cloned()),
            request: request.and_then(|id| Some((id, *self.ended.get(&id)?))),
            task: task.filter(|id| self.closed.contains_key(id)),
            continued: self.continued(command),
            past,
            unanswered: self.unanswered.clone(),
            ..LoadedFacts::default()
        }
    }

    /// The facts of a failed request, as it was before its end, for the request of a command that continues it.
    fn continued(&self, command: &Command) -> Option<Continuation> {
        let Command::StartRequest(start) = command else {
            return None;
        };
        let request = start.continues?;
        let states = (0..self.records.len()).map(|until| fold(&self.records[..until]));
        let mut live = states.filter_map(|state| state.requests.get(&request).cloned());
        let LiveRequest { memory, ran, .. } = live.next_back()?;
        Some(Continuation {
            memory,
            ran,
            request,
        })
    }

    /// The newest revision at or before this one that no rewind has taken back.
    fn kept(&self, revision: u64) -> usize {
        let mut kept = revision;
        for record in self.records.iter().rev() {
            for event in &record.content.events {
                match event {
                    Event::Rewound { to, .. } if record.content.seq > kept => kept = kept.min(*to),
                    _ => {}
                }
            }
        }
        usize::try_from(kept).expect("a short story")
    }

    fn wait_s(&mut self, seconds: u64) {
        self.now = self.now.plus_ms(seconds * 1_000);
    }

    fn step_clock_back_s(&mut self, seconds: i64) {
        self.now = Timestamp::from_micros(self.now.as_micros() - seconds * 1_000_000);
    }

    /// The holder of the lease says it is still there.
    fn heartbeat(&mut self, request: &str) {
        let until = self.now.plus_ms(LEASE_S * 1_000);
        self.heartbeats.insert(self.request(request), until);
    }

    /// Lets every lease run out.
    fn lose_workers(&mut self) {
        self.wait_s(LEASE_S);
    }
}

/// What a world looks like.
impl World {
    /// Compares all open tasks, each with its live request, fence and open holds.
    ///
    /// `T1 paused R1#2 held h1, T2 idle completed`: task 1 is paused because its request, claimed
    /// twice, waits for its first hold; task 2 has nothing to do since its last request completed.
    #[track_caller]
    fn check(&self, expected: &str) {
        assert_eq!(self.picture(), expected);
    }

    fn picture(&self) -> String {
        let mut tasks: Vec<_> = self.state.tasks.values().collect();
        tasks.sort_by_key(|task| task.number);
        let lines = tasks.into_iter().map(|task| {
            let mut words = vec![format!("T{}", task.number), word(task.status)];
            if let Some(live) = task.live.and_then(|id| self.state.requests.get(&id)) {
                words.push(format!("R{}#{}", live.number, live.fence));
                words.push(word(live.status));
                let numbers: BTreeSet<_> = live
                    .holds
                    .iter()
                    .map(|id| self.state.holds[id].number)
                    .collect();
                words.extend(numbers.iter().map(|number| format!("h{number}")));
            } else {
                words.extend(task.last_outcome.map(word));
            }
            words.join(" ")
        });
        lines.collect::<Vec<_>>().join(", ")
    }

    fn request(&self, alias: &str) -> RequestId {
        self.aliases.requests[alias]
    }

    fn task(&self, alias: &str) -> TaskId {
        self.aliases.tasks[alias]
    }

    fn hold(&self, alias: &str) -> HoldId {
        self.aliases.holds[alias]
    }

    fn outcome(&self, request: &str) -> Option<RequestOutcome> {
        self.ended.get(&self.request(request)).copied()
    }

    fn final_status(&self, task: &str) -> Option<TaskStatus> {
        self.closed.get(&self.task(task)).copied()
    }

    fn hold_status(&self, alias: &str) -> HoldStatus {
        let decided = self.decided.get(&self.hold(alias));
        decided.map_or(HoldStatus::Open, |decided| decided.decision.status)
    }

    fn last_events(&self) -> &[Event] {
        &self
            .records
            .last()
            .expect("something happened")
            .content
            .events
    }

    /// All items of the session with the task they belong to, in order.
    fn items(&self) -> Vec<(TaskId, RequestId, &Item)> {
        let events = self
            .records
            .iter()
            .flat_map(|record| &record.content.events);
        events
            .flat_map(|event| match event {
                Event::ItemsAppended {
                    task,
                    request,
                    items,
                } => items.iter().map(|item| (*task, *request, item)).collect(),
                _ => Vec::new(),
            })
            .collect()
    }

    /// The last tool call that a request recorded.
    fn call(&self, request: &str) -> ItemId {
        let id = self.request(request);
        let mut calls = self
            .items()
            .into_iter()
            .filter(|(_, by, item)| *by == id && item.kind == ItemKind::ToolCall);
        calls.next_back().expect("the request called a tool").2.id
    }

    /// The worker's proof, with the fence that counts now.
    fn fenced(&self, request: &str) -> Fenced {
        let request = self.request(request);
        let fence = self
            .state
            .requests
            .get(&request)
            .map_or(1, |live| live.fence);
        Fenced { request, fence }
    }
}

/// Commands, by alias.
impl World {
    fn spawn(&self, parent: &str, agent: &str) -> Command {
        Command::StartRequest(StartRequest {
            parent: Some(self.fenced(parent)),
            ..plain_start(agent)
        })
    }

    /// Goes on with a task that is named.
    fn go_on(&self, task: &str, agent: &str) -> Command {
        Command::StartRequest(StartRequest {
            task: Some(self.task(task)),
            ..plain_start(agent)
        })
    }

    /// Goes on from a failed request of a task.
    fn go_on_from(&self, task: &str, agent: &str, failed: &str) -> Command {
        let failed = self.request(failed);
        starting(self.go_on(task, agent), |start| {
            start.continues = Some(failed);
        })
    }

    fn claim(&self, request: &str) -> Command {
        Command::ClaimRequest {
            request: self.request(request),
            ttl_ms: LEASE_S * 1_000,
        }
    }

    fn lapse(&self, request: &str) -> Command {
        Command::LapseLease {
            request: self.request(request),
        }
    }

    fn raise_fence(&self, request: &str) -> Command {
        Command::RaiseFence {
            request: self.request(request),
        }
    }

    fn release(&self, request: &str) -> Command {
        Command::ReleaseLease {
            by: self.fenced(request),
        }
    }

    fn append(&self, request: &str, items: &[NewItem]) -> Command {
        Command::AppendItems {
            by: self.fenced(request),
            items: items.to_vec(),
            state: StatePatch::default(),
            task_state: None,
        }
    }

    /// Records a gated tool call and asks for its approval in one breath.
    fn gate(&self, request: &str) -> Command {
        self.gate_with(request, |_| {})
    }

    fn gate_with(&self, request: &str, change: impl FnOnce(&mut NewHold)) -> Command {
        let mut hold = NewHold {
            call: Some(CallTarget::SameCommand(0)),
            digest: Some(digest("action")),
            ..self.plain_hold(HoldKind::Approval)
        };
        change(&mut hold);
        Command::OpenHold {
            by: self.fenced(request),
            hold,
            items: vec![gated_call()],
        }
    }

    fn question(&self, request: &str) -> Command {
        self.question_with(request, |_| {})
    }

    fn question_with(&self, request: &str, change: impl FnOnce(&mut NewHold)) -> Command {
        let mut hold = self.plain_hold(HoldKind::Question);
        change(&mut hold);
        Command::OpenHold {
            by: self.fenced(request),
            hold,
            items: Vec::new(),
        }
    }

    fn plain_hold(&self, kind: HoldKind) -> NewHold {
        NewHold {
            id: HoldId::from_uuid(Uuid::from_u64_pair(0x7000, self.entropy)),
            kind,
            body: body("please decide"),
            call: None,
            digest: None,
            allowed: BTreeSet::new(),
            need: 1,
            expires_in_ms: None,
            on_expiry: OnExpiry::Reject,
            decide_by: None,
            effect: None,
            risk: None,
            policy: None,
        }
    }

    fn decide(&self, hold: &str, kind: DecisionKind) -> Command {
        self.decide_with(hold, kind, |_| {})
    }

    /// Decides as somebody does who has looked at the hold.
    fn decide_with(
        &self,
        hold: &str,
        kind: DecisionKind,
        change: impl FnOnce(&mut NewDecision),
    ) -> Command {
        let id = self.hold(hold);
        let seen = self.state.holds.get(&id);
        let seen = seen.or(self.decided.get(&id).map(|decided| &decided.hold));
        let mut decision = NewDecision {
            key: digest(hold),
            fingerprint: digest(&format!("{hold} {kind:?}")),
            kind,
            digest: seen.and_then(|hold| hold.digest),
            edited: (kind == DecisionKind::Edit).then(|| digest("edited action")),
            body: matches!(kind, DecisionKind::Edit | DecisionKind::Respond)
                .then(|| body("what a person says")),
        };
        change(&mut decision);
        Command::DecideHold { hold: id, decision }
    }

    fn approve(&self, hold: &str) -> Command {
        self.decide(hold, DecisionKind::Approve)
    }

    fn expire(&self, hold: &str) -> Command {
        Command::ExpireHold {
            hold: self.hold(hold),
        }
    }

    fn complete(&self, request: &str) -> Command {
        Command::CompleteRequest {
            by: self.fenced(request),
            output: answer(),
            items: Vec::new(),
            state: StatePatch::default(),
            task_state: None,
            close_task: false,
            cancel_children: false,
        }
    }

    fn fail(&self, request: &str) -> Command {
        Command::FailRequest {
            by: self.fenced(request),
            error: body("broken"),
            cancel_children: false,
        }
    }

    fn cancel(&self, request: &str) -> Command {
        Command::CancelRequest {
            request: self.request(request),
        }
    }

    fn close_task(&self, task: &str) -> Command {
        Command::CloseTask {
            task: self.task(task),
        }
    }

    fn cancel_task(&self, task: &str) -> Command {
        Command::CancelTask {
            task: self.task(task),
        }
    }

    /// Every command that a worker sends for its request.
    fn worker_commands(&self, request: &str) -> Vec<Command> {
        vec![
            self.append(request, &[say("still here")]),
            self.question(request),
            self.gate(request),
            self.spawn(request, "helper"),
            self.complete(request),
            self.fail(request),
            self.release(request),
            Command::PutState {
                patch: set("topic", "x"),
                by: Some(self.fenced(request)),
            },
        ]
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(
                fold(&self.records),
                self.state,
                "the records fold to the state"
            );
        }
    }
}

impl Aliases {
    fn learn(&mut self, event: &Event) {
        match event {
            Event::TaskOpened { task, number, .. } => {
                self.tasks.insert(format!("T{number}"), *task);
            }
            Event::TaskRenamed { from, to } => {
                for task in self.tasks.values_mut().filter(|task| *task == from) {
                    *task = *to;
                }
            }
            Event::RequestStarted {
                request, number, ..
            } => {
                self.requests.insert(format!("R{number}"), *request);
            }
            Event::HoldOpened {
                hold,
                number,
                request,
                ..
            } => {
                let above = self.requests.iter().find(|(_, id)| *id == request);
                let above = above.expect("a hold belongs to a request").0;
                self.holds.insert(format!("{above}.h{number}"), *hold);
            }
            _ => {}
        }
    }
}

fn word(status: impl std::fmt::Debug) -> String {
    format!("{status:?}").to_lowercase()
}

/// What recovery does: from the bytes of the records, without the state that was there.
fn fold(records: &[Record]) -> SessionState {
    let mut state = SessionState::new(session(1));
    for record in records {
        assert_eq!(
            record.as_bytes(),
            crate::digest::canonical_bytes(&record.content),
            "a field is not declared in the order of its name"
        );
        let read = Record::from_bytes(record.as_bytes()).expect("own records can be read");
        let items = Record::read_items(record.as_bytes()).expect("own records can be read");
        assert_eq!(items, record.content.items(), "read the short way");
        apply(&mut state, &read);
    }
    state
}

/// Who sends a command when nothing special happens.
fn usual_actor(command: &Command) -> Actor {
    match command {
        Command::StartRequest(start) if start.parent.is_some() || start.lease_ttl_ms.is_some() => {
            worker(1)
        }
        Command::RecordTurn(_)
        | Command::ClaimRequest { .. }
        | Command::ReleaseLease { .. }
        | Command::AppendItems { .. }
        | Command::OpenHold { .. }
        | Command::CompleteRequest { .. }
        | Command::FailRequest { .. }
        | Command::PutState { by: Some(_), .. } => worker(1),
        Command::DecideHold { .. } => approver(1),
        Command::LapseLease { .. }
        | Command::RaiseFence { .. }
        | Command::ExpireHold { .. }
        | Command::ExpireSession
        | Command::EraseHidden => Actor::system(name("t1")),
        Command::StartRequest(_)
        | Command::PutState { .. }
        | Command::CreateSession { .. }
        | Command::PatchSession { .. }
        | Command::CloseSession { .. }
        | Command::DeleteSession
        | Command::CancelRequest { .. }
        | Command::CloseTask { .. }
        | Command::CancelTask { .. }
        | Command::Fork { .. }
        | Command::Rewind { .. } => client(),
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("a fixture name")
}

fn user(n: u64) -> UserId {
    UserId::from_uuid(Uuid::from_u64_pair(0x7000, n))
}

fn session(n: u64) -> SessionId {
    let shard = Shard::of_owner("t1", "app", "bob");
    SessionId::from_uuid(IdMint::new(Timestamp::default(), shard, n).next_uuid())
}

fn actor(principal: Principal, roles: &[&str]) -> Actor {
    Actor {
        tenant: name("t1"),
        principal,
        roles: roles.iter().map(|role| name(role)).collect(),
        key_owner: None,
    }
}

/// The session's user.
fn client() -> Actor {
    actor(Principal::User(user(1)), &["client"])
}

fn worker(n: u64) -> Actor {
    let key = KeyId::from_uuid(Uuid::from_u64_pair(0x7000, n));
    actor(Principal::Key(key), &["worker"])
}

/// Somebody who may approve and is not the session's user.
fn approver(n: u64) -> Actor {
    actor(Principal::User(user(100 + n)), &["approver"])
}

/// The same person behind the wall of another tenant.
fn foreign(actor: Actor) -> Actor {
    Actor {
        tenant: name("t2"),
        ..actor
    }
}

fn body(text: &str) -> BodyRef {
    BodyRef::of(&PayloadKey::from_bytes([7; 32]), text.as_bytes())
}

fn digest(text: &str) -> Digest {
    Digest::sha256(text.as_bytes())
}

fn create_session() -> Command {
    Command::CreateSession {
        owner: Owner {
            tenant: name("t1"),
            app: name("app"),
            user: user(1),
            agent: name("coordinator"),
        },
        name: None,
        labels: None,
        state: StatePatch::default(),
        ttl: None,
        hidden_ttl_ms: None,
    }
}

fn close_session(cancel_live: bool) -> Command {
    Command::CloseSession { cancel_live }
}

fn fork() -> Command {
    Command::Fork {
        session: session(2),
        through: None,
    }
}

fn plain_start(agent: &str) -> StartRequest {
    StartRequest {
        chat: None,
        continues: None,
        agent: name(agent),
        task: None,
        parent: None,
        input: body("question"),
        attachments: Vec::new(),
        close_on: CloseOn::Never,
        lease_ttl_ms: None,
        items: Vec::new(),
        state: StatePatch::default(),
        output: None,
    }
}

fn start(agent: &str) -> Command {
    Command::StartRequest(plain_start(agent))
}

fn answer() -> Output {
    Output {
        body: body("answer"),
        attachments: Vec::new(),
    }
}

/// The same start, claimed in the same breath.
fn leased(command: Command) -> Command {
    starting(command, |start| start.lease_ttl_ms = Some(LEASE_S * 1_000))
}

/// The same start with something else about it.
fn starting(mut command: Command, change: impl FnOnce(&mut StartRequest)) -> Command {
    if let Command::StartRequest(start) = &mut command {
        change(start);
    }
    command
}

/// The same end, also of the children that still run.
fn with_children(mut command: Command) -> Command {
    if let Command::CompleteRequest {
        cancel_children, ..
    }
    | Command::FailRequest {
        cancel_children, ..
    } = &mut command
    {
        *cancel_children = true;
    }
    command
}

/// The same worker command, from a worker that shows another fence.
fn showing_fence(mut command: Command, fence: u64) -> Command {
    match &mut command {
        Command::StartRequest(StartRequest {
            parent: Some(by), ..
        })
        | Command::ReleaseLease { by }
        | Command::AppendItems { by, .. }
        | Command::OpenHold { by, .. }
        | Command::CompleteRequest { by, .. }
        | Command::FailRequest { by, .. }
        | Command::PutState { by: Some(by), .. } => by.fence = fence,
        other => panic!("{other:?} shows no fence"),
    }
    command
}

fn say(text: &str) -> NewItem {
    NewItem::message(Role::Assistant, body(text))
}

fn tool_item(kind: ItemKind, call: NewCallMark) -> NewItem {
    NewItem {
        kind,
        visibility: Visibility::Hidden,
        role: None,
        body: body("tool"),
        attachments: Vec::new(),
        call: Some(call),
    }
}

fn tool_call(idempotent: bool, gated: bool) -> NewItem {
    tool_item(ItemKind::ToolCall, NewCallMark::Call { idempotent, gated })
}

/// A call that must wait for a person.
fn gated_call() -> NewItem {
    tool_call(false, true)
}

/// A call that starts at once and must not run twice.
fn risky_call() -> NewItem {
    tool_call(false, false)
}

/// A call that starts at once and may be repeated.
fn repeatable_call() -> NewItem {
    tool_call(true, false)
}

fn result(call: CallTarget, outcome: CallOutcome) -> NewItem {
    tool_item(ItemKind::ToolResult, NewCallMark::Result { call, outcome })
}

/// What a recorded call came to.
fn result_of(call: ItemId, outcome: CallOutcome) -> NewItem {
    result(CallTarget::Recorded(call), outcome)
}

/// A patch that writes one key.
fn set(key: &str, value: &str) -> StatePatch {
    StatePatch {
        set: vec![state::write_of(key, value)],
        ..StatePatch::default()
    }
}
