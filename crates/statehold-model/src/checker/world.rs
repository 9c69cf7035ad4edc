//! The state of a modelled world, and what one action does to it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use statehold_core::apply::apply;
use statehold_core::command::{
    Command, Context, DecidedHold, Fenced, LoadedFacts, StatePatch, StateSet,
};
use statehold_core::decide;
use statehold_core::hold::{
    CallTarget, DecideBy, DecisionKind, Hold, HoldKind, NewDecision, NewHold, OnExpiry,
};
use statehold_core::ids::{HoldId, ItemId, RequestId, TaskId};
use statehold_core::invariant::{
    CommandStep, Facts, Findings, Observation, RecordStep, Recovery, judge_all,
};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Visibility};
use statehold_core::mutant::{self, Mutant};
use statehold_core::principal::Actor;
use statehold_core::record::{Event, Record};
use statehold_core::scope::MergePolicy;
use statehold_core::session::SessionState;
use statehold_core::time::Timestamp;
use uuid::Uuid;

use super::CoreModel;
use crate::fixtures;

/// How long a tick is. Leases and deadlines last one tick.
const TICK_MS: u64 = 10_000;

/// A modelled world: one session, its log, its clock, and the spent part of the scope's budget.
#[derive(Debug, Clone)]
pub struct World {
    /// The folded state.
    pub core: SessionState,
    /// The facts in the records, gathered independently of the core.
    pub facts: Arc<Facts>,
    /// Holds that were decided, as the store would load them. A function of the log.
    pub decided: Arc<BTreeMap<HoldId, DecidedHold>>,
    /// The records. One path to this world; not part of its identity.
    pub log: Arc<Vec<Record>>,
    /// The client's calls that have taken effect, each with its revision. The engine would keep their
    /// answers.
    pub started: BTreeMap<u8, u64>,
    /// The wall clock, in ticks.
    pub wall: u8,
    /// Until when leases were extended by a restart, in ticks.
    pub grace: u8,
    /// The last revision that is on disk.
    pub durable: u64,
    /// A digest of the records on disk, where they differ from the decided ones.
    pub on_disk: u64,
    /// The last revision that a caller was told about.
    pub acknowledged: u64,
    /// The spent part of the budget.
    pub spent: Spent,
    /// Broken promises, as bits.
    pub broken: u32,
}

/// How often each costly thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Spent {
    pub(super) spawns: u8,
    pub(super) holds: u8,
    pub(super) calls: u8,
    pub(super) claims: u8,
    pub(super) ticks: u8,
    pub(super) steps_back: u8,
    pub(super) crashes: u8,
    pub(super) restores: u8,
    pub(super) writes: u8,
    pub(super) ends: u8,
}

impl World {
    /// Two worlds are the same if they behave the same: their position in the log does not matter,
    /// only the records on disk and the lag of acknowledgements.
    fn identity(&self) -> impl Hash + PartialEq + '_ {
        let core = &self.core;
        (
            self.content(),
            (self.wall, self.grace, self.spent, self.broken),
            (core.revision - self.durable, self.on_disk),
            core.revision - self.acknowledged,
        )
    }

    /// The content of the records, without their numbers.
    fn content(&self) -> impl Hash + PartialEq + '_ {
        let (core, facts) = (&self.core, &*self.facts);
        let tasks = core.tasks.values().map(|task| {
            let above = (task.parent, &task.agent, task.close_on);
            (task.id, above, task.status, task.live, task.last_outcome)
        });
        let holds = core.holds.values().map(|hold| {
            let voters: Vec<_> = hold.votes.keys().collect();
            (hold.id, hold.kind, hold.on_expiry, voters)
        });
        let known = core.memories.iter();
        let known = known.map(|(path, memory)| (path, memory.exchanges, memory.request));
        (
            (tasks.collect::<Vec<_>>(), &core.requests),
            (holds.collect::<Vec<_>>(), &facts.holds),
            (&facts.ended, &facts.closed, &facts.calls, &facts.children),
            self.started.keys().collect::<Vec<_>>(),
            (core.closed, core.last_at, core.items_appended),
            core.hidden_expires_at,
            core.keys.len(),
            known.collect::<Vec<_>>(),
        )
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.identity().hash(hasher);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

/// One step of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The server erases hidden payloads, if they are due.
    EraseHidden,
    /// The client's n-th call arrives. It has an idempotency key: once it has taken effect, the engine
    /// answers its repetitions, and the core never sees them.
    Start(u8),
    /// A worker claims a request.
    Claim(RequestId, u64),
    /// The server gives up on a worker.
    Lapse(RequestId),
    /// A worker asks another agent, and takes that request itself if `leased`.
    Spawn {
        /// The asking request.
        by: Fenced,
        /// The agent that is asked.
        agent: &'static str,
        /// Whether the same worker takes it at once.
        leased: bool,
    },
    /// A worker asks a person.
    Hold(Fenced, Ask),
    /// A worker records a tool call that cannot be repeated.
    Call(Fenced),
    /// A worker records a result.
    Result(Fenced, ItemId, CallOutcome),
    /// A person decides a hold.
    Decide(HoldId, Person, DecisionKind),
    /// The server's timer fires.
    Expire(HoldId),
    /// A worker answers.
    Complete(Fenced),
    /// A worker fails.
    Fail(Fenced),
    /// The client stops a request.
    Cancel(RequestId),
    /// The client stops a task for good.
    CancelTask(TaskId),
    /// The client closes an idle task.
    CloseTask(TaskId),
    /// A worker writes a session key.
    Put(Fenced),
    /// Time passes.
    Tick,
    /// The wall clock steps back.
    StepBack,
    /// The disk confirms everything written so far.
    Sync,
    /// The process dies and comes back; the unsynced tail survives or not.
    Crash {
        /// Whether the tail happened to survive.
        keeps_tail: bool,
    },
    /// A backup of this moment is restored, and its workers go on.
    Restore,
    /// A caller tries a command that the core must refuse, or that must leave no trace here.
    Probe(Probe),
}

/// The hold that a worker opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// One approval, before the next tick.
    Approval,
    /// One approval; the request fails without a decision before the next tick.
    ApprovalOrFail,
    /// Two approvals, without a deadline.
    TwoApprovals,
    /// A question to the session's user.
    Question,
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Person {
    /// The n-th approver.
    Approver(u64),
    /// The n-th approver with another decision key: another click, not a retry.
    AgainApprover(u64),
    /// The session's user, who is also an approver elsewhere.
    Owner,
    /// The worker that opened the hold, with the role of an approver.
    Opener,
    /// The person behind the start of the request, who is also an approver.
    Starter,
}

/// Things that must be refused, tried in every world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Another tenant starts a request here.
    OtherTenant,
    /// A `temp:` key is written.
    TempKey,
    /// A key is written on a wrong version.
    WrongVersion,
    /// A client sends a tool result with its question.
    ClientToolResult,
    /// A finished task is asked again.
    FinalTask(TaskId),
    /// A task is asked from elsewhere in the tree.
    ForeignTask(TaskId),
    /// An unclaimed request is completed.
    Unclaimed(RequestId),
    /// The session is copied.
    Fork,
}

impl World {
    /// The fixture session, just created.
    pub fn new(model: &CoreModel) -> Self {
        let mut world = Self {
            core: SessionState::new(fixtures::session(1)),
            facts: Arc::default(),
            decided: Arc::default(),
            log: Arc::default(),
            started: BTreeMap::new(),
            wall: 0,
            grace: 0,
            durable: 0,
            on_disk: 0,
            acknowledged: 0,
            spent: Spent::default(),
            broken: 0,
        };
        let ctx = world.context(fixtures::client());
        model.deliver(&mut world, &fixtures::create_session(), &ctx);
        if model.scope.erases_hidden {
            model.deliver(&mut world, &fixtures::keep_hidden_for(TICK_MS), &ctx);
        }
        world.sync(model);
        world
    }

    /// The context of a command of `actor` now. It plays the engine: the sender of the command loads the
    /// finished objects.
    pub fn context(&self, actor: Actor) -> Context {
        let counters = [
            self.core.tasks_opened,
            self.core.requests_started,
            self.core.items_appended,
        ];
        let entropy = counters.iter().fold(1, |sum, counter| sum * 64 + counter);
        let grace = Timestamp::default().plus_ms(u64::from(self.grace) * TICK_MS);
        let leases = match self.grace {
            0 => BTreeMap::new(),
            _ => self.core.requests.keys().map(|id| (*id, grace)).collect(),
        };
        Context {
            now: Timestamp::default().plus_ms(u64::from(self.wall) * TICK_MS),
            actor,
            entropy,
            leases,
            loaded: LoadedFacts::default(),
        }
    }

    /// Decides, folds and judges.
    pub(super) fn step(&mut self, command: &Command, ctx: &Context) -> Findings {
        let before = self.core.clone();
        let result = decide::step(&mut self.core, command, ctx);
        let seen = CommandStep {
            before: &before,
            command,
            ctx,
            result: &result,
            after: &self.core,
        };
        let mut findings = judge_all(&self.facts, &Observation::Command(seen));
        let Some(record) = result.as_ref().ok().and_then(|outcome| outcome.record()) else {
            return findings;
        };
        let seen = RecordStep {
            before: &before,
            record,
            after: &self.core,
        };
        findings.add(judge_all(&self.facts, &Observation::Record(seen)));
        self.remember_decided(&before, record);
        let facts = Arc::make_mut(&mut self.facts);
        facts.absorb(record);
        Arc::make_mut(&mut self.log).push(record.clone());
        if mutant::is_on(Mutant::AckEarly) {
            self.acknowledged = self.core.revision;
        }
        findings
    }

    fn remember_decided(&mut self, before: &SessionState, record: &Record) {
        let mut votes = BTreeMap::new();
        for event in &record.content.events {
            match event {
                Event::VoteRecorded {
                    hold,
                    key,
                    fingerprint,
                    right,
                } => {
                    let revision = record.content.seq;
                    let (key, fingerprint, right) = (*key, *fingerprint, *right);
                    let vote = statehold_core::hold::Vote {
                        key,
                        fingerprint,
                        revision,
                        right,
                    };
                    votes.insert(*hold, (record.content.principal, vote));
                }
                Event::HoldDecided { hold, decision, .. } => {
                    let Some(mut was) = before.holds.get(hold).cloned() else {
                        continue;
                    };
                    if let Some((by, vote)) = votes.get(hold) {
                        was.votes.insert(*by, *vote);
                    }
                    let (decision, revision) = (*decision, record.content.seq);
                    let decided = DecidedHold {
                        hold: was,
                        decision,
                        revision,
                    };
                    Arc::make_mut(&mut self.decided)
                        .entry(*hold)
                        .or_insert(decided);
                }
                _ => {}
            }
        }
    }

    fn sync(&mut self, model: &CoreModel) {
        if model.scope.pipelined {
            let mut hasher = DefaultHasher::new();
            self.content().hash(&mut hasher);
            self.on_disk = hasher.finish();
        }
        self.durable = self.core.revision;
        self.acknowledged = self.core.revision;
    }

    /// Applies one action.
    pub(super) fn act(&mut self, model: &CoreModel, action: Action) {
        let before = self.core.revision;
        self.perform(model, action);
        // A refused command costs nothing; otherwise refusals would make worlds differ.
        let is_free = self.core.revision == before;
        let spent = match action {
            Action::Tick => &mut self.spent.ticks,
            Action::StepBack => &mut self.spent.steps_back,
            Action::Crash { .. } => &mut self.spent.crashes,
            _ if is_free => return,
            Action::Restore => &mut self.spent.restores,
            Action::Claim(..) => &mut self.spent.claims,
            Action::Spawn { .. } => &mut self.spent.spawns,
            Action::Hold(..) => &mut self.spent.holds,
            Action::Call(_) => &mut self.spent.calls,
            Action::Put(_) => &mut self.spent.writes,
            Action::Complete(_)
            | Action::Fail(_)
            | Action::Cancel(_)
            | Action::CancelTask(_)
            | Action::CloseTask(_) => &mut self.spent.ends,
            Action::Start(_)
            | Action::Lapse(_)
            | Action::Result(..)
            | Action::Decide(..)
            | Action::Expire(_)
            | Action::Sync
            | Action::EraseHidden
            | Action::Probe(_) => return,
        };
        *spent += 1;
    }

    #[expect(clippy::too_many_lines, reason = "one arm per action, nothing else")]
    fn perform(&mut self, model: &CoreModel, action: Action) {
        match action {
            Action::Start(n) => {
                let mut ctx = self.context(fixtures::client());
                ctx.actor.key_owner = Some(fixtures::backend_owner().principal);
                let start = fixtures::start("coordinator");
                let before = self.core.revision;
                model.deliver(self, &Command::StartRequest(start), &ctx);
                if self.core.revision > before {
                    self.started.insert(n, self.core.revision);
                }
            }
            Action::Claim(request, worker) => {
                let ctx = self.context(fixtures::worker(worker));
                model.deliver(
                    self,
                    &Command::ClaimRequest {
                        request,
                        ttl_ms: TICK_MS,
                    },
                    &ctx,
                );
            }
            Action::Lapse(request) => {
                let ctx = self.context(Actor::system(fixtures::name("t1")));
                model.deliver(self, &Command::LapseLease { request }, &ctx);
            }
            Action::Spawn { by, agent, leased } => {
                let ctx = self.context(self.holder(by.request));
                let mut start = fixtures::start(agent);
                start.parent = Some(by);
                start.lease_ttl_ms = leased.then_some(TICK_MS);
                model.deliver(self, &Command::StartRequest(start), &ctx);
            }
            Action::Hold(by, ask) => {
                let command = self.ask(by, ask);
                let ctx = self.context(self.holder(by.request));
                model.deliver(self, &command, &ctx);
            }
            Action::Call(by) => {
                let items = vec![call_item(false)];
                self.append(model, by, items);
            }
            Action::Result(by, call, outcome) => {
                let call = CallTarget::Recorded(call);
                let mark = NewCallMark::Result { call, outcome };
                self.append(model, by, vec![tool_item(ItemKind::ToolResult, mark)]);
            }
            Action::Decide(hold, person, kind) => {
                let (command, ctx) = self.decision(hold, person, kind);
                model.deliver(self, &command, &ctx);
            }
            Action::Expire(hold) => {
                let mut ctx = self.context(Actor::system(fixtures::name("t1")));
                ctx.loaded.hold = self.decided.get(&hold).cloned();
                model.deliver(self, &Command::ExpireHold { hold }, &ctx);
            }
            Action::Complete(by) => {
                let ctx = self.context(self.holder(by.request));
                model.deliver(self, &complete(by), &ctx);
            }
            Action::Fail(by) => {
                let ctx = self.context(self.holder(by.request));
                let error = fixtures::body("error");
                let command = Command::FailRequest {
                    by,
                    error,
                    cancel_children: true,
                };
                model.deliver(self, &command, &ctx);
            }
            Action::Cancel(request) => {
                let ctx = self.context(fixtures::client());
                model.deliver(self, &Command::CancelRequest { request }, &ctx);
            }
            Action::CancelTask(task) => {
                let ctx = self.context(fixtures::client());
                model.deliver(self, &Command::CancelTask { task }, &ctx);
            }
            Action::CloseTask(task) => {
                let ctx = self.context(fixtures::client());
                model.deliver(self, &Command::CloseTask { task }, &ctx);
            }
            Action::Put(by) => {
                let ctx = self.context(self.holder(by.request));
                let patch = patch("topic", None);
                model.deliver(
                    self,
                    &Command::PutState {
                        patch,
                        by: Some(by),
                    },
                    &ctx,
                );
            }
            Action::Tick => {
                self.wall += 1;
            }
            Action::StepBack => {
                self.wall -= 1;
            }
            Action::EraseHidden => {
                let ctx = self.context(Actor::system(fixtures::name("t1")));
                model.deliver(self, &Command::EraseHidden, &ctx);
            }
            Action::Sync => self.sync(model),
            Action::Crash { keeps_tail } => self.crash(model, keeps_tail),
            Action::Restore => {
                let ctx = self.context(Actor::system(fixtures::name("t1")));
                let live: Vec<RequestId> = self.core.requests.keys().copied().collect();
                for request in live {
                    model.deliver(self, &Command::RaiseFence { request }, &ctx);
                }
            }
            Action::Probe(probe) => self.probe(model, probe),
        }
        if !model.scope.pipelined {
            self.sync(model);
        }
    }

    /// The worker with the lease of a request, or worker 1.
    fn holder(&self, request: RequestId) -> Actor {
        let lease = self.core.requests.get(&request).and_then(|live| live.lease);
        lease.map_or_else(
            || fixtures::worker(1),
            |lease| fixtures::actor(lease.worker, &["worker"]),
        )
    }

    fn append(&mut self, model: &CoreModel, by: Fenced, items: Vec<NewItem>) {
        let ctx = self.context(self.holder(by.request));
        let state = StatePatch::default();
        model.deliver(
            self,
            &Command::AppendItems {
                by,
                items,
                state,
                task_state: None,
            },
            &ctx,
        );
    }

    fn ask(&self, by: Fenced, ask: Ask) -> Command {
        let id = HoldId::from_uuid(Uuid::from_u64_pair(
            0x7000,
            1 << 63 | self.facts.holds.len() as u64,
        ));
        let is_approval = ask != Ask::Question;
        let hold = NewHold {
            id,
            kind: if is_approval {
                HoldKind::Approval
            } else {
                HoldKind::Question
            },
            body: fixtures::body("may I?"),
            call: is_approval.then_some(CallTarget::SameCommand(0)),
            digest: is_approval.then(|| fixtures::digest(&id.to_string())),
            allowed: BTreeSet::new(),
            need: if ask == Ask::TwoApprovals { 2 } else { 1 },
            expires_in_ms: matches!(ask, Ask::Approval | Ask::ApprovalOrFail).then_some(TICK_MS),
            on_expiry: if ask == Ask::ApprovalOrFail {
                OnExpiry::Fail
            } else {
                OnExpiry::Reject
            },
            decide_by: (ask == Ask::TwoApprovals).then_some(DecideBy::Other),
            effect: None,
            risk: None,
            policy: None,
        };
        let items = if is_approval {
            vec![call_item(true)]
        } else {
            Vec::new()
        };
        Command::OpenHold { by, hold, items }
    }

    fn decision(&self, id: HoldId, person: Person, kind: DecisionKind) -> (Command, Context) {
        let opener = self.facts.holds.get(&id).map(|hold| hold.opened_by);
        let actor = match (person, opener) {
            (Person::Approver(n) | Person::AgainApprover(n), _) => fixtures::approver(n),
            (Person::Starter, _) => fixtures::backend_owner(),
            (Person::Opener, Some(opener)) => fixtures::actor(opener, &["approver"]),
            (Person::Owner | Person::Opener, _) => {
                fixtures::actor(fixtures::client().principal, &["approver"])
            }
        };
        let mut ctx = self.context(actor);
        ctx.loaded.hold = self.decided.get(&id).cloned();
        let hold: Option<&Hold> = self.core.holds.get(&id).or(ctx
            .loaded
            .hold
            .as_ref()
            .map(|decided| &decided.hold));
        let digest = hold.and_then(|hold| hold.digest);
        let decision = NewDecision {
            key: fixtures::digest(&format!("{person:?} {kind:?}")),
            fingerprint: fixtures::digest(&format!("{kind:?}")),
            kind,
            digest,
            edited: (kind == DecisionKind::Edit).then(|| fixtures::digest("edited")),
            body: matches!(kind, DecisionKind::Edit | DecisionKind::Respond)
                .then(|| fixtures::body("what a person says")),
        };
        (Command::DecideHold { hold: id, decision }, ctx)
    }

    fn crash(&mut self, model: &CoreModel, keeps_tail: bool) {
        let kept_until = if keeps_tail {
            self.core.revision
        } else {
            self.durable
        };
        let survived: Vec<Record> = self
            .log
            .iter()
            .filter(|record| record.content.seq <= kept_until)
            .cloned()
            .collect();
        let origin = SessionState::new(fixtures::session(1));
        let mut recovered = origin.clone();
        let mut facts = Facts::default();
        let mut rebuilt = Self {
            decided: Arc::default(),
            ..self.clone()
        };
        let torn = mutant::with(model.mutant, || mutant::is_on(Mutant::TornRecord));
        for record in &survived {
            let before = recovered.clone();
            let is_last = record.content.seq == kept_until;
            if torn && is_last && record.content.events.len() > 1 {
                let mut half = record.clone();
                half.content
                    .events
                    .truncate(record.content.events.len() / 2);
                apply(&mut recovered, &half);
            } else {
                apply(&mut recovered, record);
            }
            rebuilt.remember_decided(&before, record);
            facts.absorb(record);
        }
        self.started.retain(|_, revision| *revision <= kept_until);
        let seen = Recovery {
            acknowledged: self.acknowledged,
            origin: &origin,
            survived: &survived,
            recovered: &recovered,
        };
        let found = judge_all(&facts, &Observation::Recovery(seen));
        model
            .exercised
            .fetch_or(found.exercised, std::sync::atomic::Ordering::Relaxed);
        self.broken |= found.broken;
        self.core = recovered;
        self.facts = Arc::new(facts);
        self.decided = rebuilt.decided;
        self.log = Arc::new(survived);
        self.grace = self.wall + 1;
        if self.broken == 0 {
            self.sync(model);
        } else {
            self.durable = self.durable.min(self.core.revision);
            self.acknowledged = self.durable;
        }
    }

    fn probe(&mut self, model: &CoreModel, probe: Probe) {
        let mut ctx = self.context(fixtures::client());
        let mut start = fixtures::start("coordinator");
        let command = match probe {
            Probe::OtherTenant => {
                ctx.actor.tenant = fixtures::name("t2");
                Command::StartRequest(start)
            }
            Probe::TempKey => Command::PutState {
                patch: patch("temp:x", None),
                by: None,
            },
            Probe::WrongVersion => Command::PutState {
                patch: patch("topic", Some(999)),
                by: None,
            },
            Probe::ClientToolResult => {
                start.items = vec![call_item(false)];
                Command::StartRequest(start)
            }
            Probe::FinalTask(task) => {
                ctx.loaded.task = Some(task);
                start.task = Some(task);
                Command::StartRequest(start)
            }
            Probe::ForeignTask(task) => {
                start.task = Some(task);
                start.agent = self.core.tasks[&task].agent.clone();
                Command::StartRequest(start)
            }
            Probe::Unclaimed(request) => {
                ctx.actor = fixtures::worker(1);
                let fence = self.core.requests[&request].fence;
                complete(Fenced { request, fence })
            }
            Probe::Fork => Command::Fork {
                session: fixtures::session(2),
                through: None,
            },
        };
        // A probe acts on a copy of the world.
        let mut other = self.clone();
        model.deliver(&mut other, &command, &ctx);
        self.broken |= other.broken;
    }
}

fn complete(by: Fenced) -> Command {
    Command::CompleteRequest {
        by,
        output: fixtures::output(),
        items: Vec::new(),
        state: StatePatch::default(),
        task_state: None,
        close_task: false,
        cancel_children: false,
    }
}

fn patch(key: &str, version: Option<u64>) -> StatePatch {
    let key: statehold_core::scope::StateKey = key.parse().expect("a fixture key");
    let (value, merge) = (fixtures::body("value"), MergePolicy::Replace);
    StatePatch {
        if_versions: version
            .map(|version| (key.clone(), version))
            .into_iter()
            .collect(),
        set: vec![StateSet { key, value, merge }],
        ..StatePatch::default()
    }
}

fn call_item(gated: bool) -> NewItem {
    tool_item(
        ItemKind::ToolCall,
        NewCallMark::Call {
            idempotent: false,
            gated,
        },
    )
}

fn tool_item(kind: ItemKind, call: NewCallMark) -> NewItem {
    NewItem {
        kind,
        visibility: Visibility::Hidden,
        role: None,
        body: fixtures::body("tool"),
        attachments: Vec::new(),
        call: Some(call),
    }
}
