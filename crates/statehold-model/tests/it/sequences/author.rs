//! Turns the steps of a script into commands, as the world is at that moment.

use statehold_core::command::{
    Command, Fenced, Output, RecordTurn, StartRequest, StateAppend, StatePatch, StateSet,
};
use statehold_core::digest::{BodyRef, Digest};
use statehold_core::hold::{
    CallTarget, DecideBy, DecisionKind, Effect, HoldKind, NewDecision, NewHold, OnExpiry, Risk,
};
use statehold_core::ids::{HoldId, RequestId, TaskId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Role, Visibility};
use statehold_core::principal::{Actor, Principal};
use statehold_core::record::Change;
use statehold_core::request::{CallState, LiveStatus};
use statehold_core::scope::{KeyPrefix, MergePolicy, StateKey};
use statehold_core::session::{TimeToLive, TtlMode};
use statehold_core::task::{CloseOn, TaskStatus};
use statehold_model::fixtures;
use statehold_model::reference::World;
use uuid::Uuid;

use super::script::{Act, Dice, Step};

/// What the senders remember, so that they can send it again.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) refused: Vec<(Command, Actor)>,
    pub(super) decided: Vec<(HoldId, NewDecision, Actor)>,
    counter: u64,
}

/// A command with who sends it.
pub(super) struct Sent {
    pub(super) command: Command,
    pub(super) actor: Actor,
}

/// Turns a step into a command, as the world is now.
pub(super) fn command(step: Step, world: &World, memory: &mut Memory) -> Sent {
    let mut author = Author {
        dice: Dice(step.dice),
        world,
        memory,
    };
    author.memory.counter += 1;
    let mut sent = author.write(step.act);
    if author.dice.odd(60) {
        sent.actor.tenant = fixtures::name("t2");
    }
    sent
}

struct Author<'a> {
    dice: Dice,
    world: &'a World,
    memory: &'a mut Memory,
}

impl Author<'_> {
    fn fresh(&self) -> u64 {
        self.memory.counter
    }

    fn write(&mut self, act: Act) -> Sent {
        let written = match act {
            Act::Start => None,
            Act::Spawn => self.spawn(),
            Act::Claim => self.claim(),
            Act::Lapse => self.lapse(),
            Act::RaiseFence => self.raise_fence(),
            Act::Release => self.release(),
            Act::Append => self.append(),
            Act::Ask => self.ask(),
            Act::Decide => self.decide(),
            Act::DecideAgain => self.decide_again(),
            Act::Expire => self.expire(),
            Act::Complete => self.complete(),
            Act::Fail => self.fail(),
            Act::CancelRequest => self.cancel_request(),
            Act::CloseTask | Act::CancelTask => self.end_task(act),
            Act::Put => Some(self.put()),
            Act::Rewind => Some(self.rewind()),
            Act::Patch => Some((self.patch_session(), fixtures::client())),
            Act::ExpireSession => {
                let server = Actor::system(fixtures::name("t1"));
                Some((Command::ExpireSession, server))
            }
            Act::EraseHidden => {
                let server = Actor::system(fixtures::name("t1"));
                Some((Command::EraseHidden, server))
            }
            Act::DeleteSession => Some((Command::DeleteSession, fixtures::client())),
            Act::Close => {
                let cancel_live = self.dice.roll(3) == 0;
                Some((Command::CloseSession { cancel_live }, fixtures::client()))
            }
            Act::CreateAgain => Some((fixtures::create_session(), fixtures::client())),
            Act::Fork => {
                let n = if self.dice.odd(8) { 1 } else { 2 };
                let session = fixtures::session(n);
                let through = self.dice.odd(2).then(|| fixtures::session(3));
                Some((Command::Fork { session, through }, fixtures::client()))
            }
            Act::Resend => return self.resend(),
            Act::Heartbeat | Act::Restart | Act::Dive => {
                unreachable!("these are not single commands")
            }
        };
        // Where there is nothing to do it with, a worker does something else, or somebody asks the
        // first question.
        let written = match self.dice.roll(3) {
            _ if written.is_some() || act == Act::Start || self.leased().is_empty() => written,
            0 => self.ask(),
            1 => self.append(),
            _ => self.complete(),
        };
        let (command, actor) = written.unwrap_or_else(|| self.start());
        Sent { command, actor }
    }

    // Who and what.

    fn ttl(&mut self) -> u64 {
        if self.dice.odd(40) {
            10
        } else {
            self.dice.one(&[60_000, 1_000, 5_000, 2_000])
        }
    }

    fn worker(&mut self) -> Actor {
        let n = self.dice.roll(3) as u64;
        fixtures::worker(1 + n)
    }

    fn body(&self) -> BodyRef {
        fixtures::body(&format!("payload {}", self.fresh()))
    }

    /// Sometimes more than a record may refer to.
    fn maybe_huge(&mut self) -> BodyRef {
        let bytes = if self.dice.odd(80) { u32::MAX } else { 9 };
        BodyRef {
            bytes,
            ..self.body()
        }
    }

    fn requests_where(&self, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..self.world.requests.len())
            .filter(|at| self.world.is_live(*at) && is_wanted(*at))
            .collect()
    }

    /// Mostly one of the wanted ones; sometimes any that ever was.
    fn request(&mut self, wanted: &[usize]) -> Option<usize> {
        if wanted.is_empty() && !self.dice.odd(4) {
            return None;
        }
        if wanted.is_empty() || self.dice.odd(12) {
            let all: Vec<usize> = (0..self.world.requests.len()).rev().collect();
            return self.dice.pick(&all);
        }
        self.dice.pick(wanted)
    }

    /// A worker's writing hand: mostly the right worker with the right fence.
    fn hand(&mut self, request: usize) -> (Fenced, Actor) {
        let world = self.world;
        let fence = world.fence(request);
        let fence = match self.dice.roll(24) {
            21 => world.last_fence(request),
            22 => fence.saturating_sub(1),
            23 => fence + 1,
            _ => fence,
        };
        let holder = world.requests[request]
            .leases
            .last()
            .map(|lease| lease.worker);
        let actor = match holder {
            Some(worker) if !self.dice.odd(24) => fixtures::actor(worker, &["worker"]),
            _ => self.worker(),
        };
        (
            Fenced {
                request: world.request_id(request),
                fence,
            },
            actor,
        )
    }

    fn leased(&self) -> Vec<usize> {
        self.requests_where(|at| self.world.request_status(at) != LiveStatus::Queued)
    }

    fn running_or_waiting(&self) -> Vec<usize> {
        self.requests_where(|at| {
            matches!(
                self.world.request_status(at),
                LiveStatus::Running | LiveStatus::Waiting
            )
        })
    }

    fn unknown_request(&self) -> RequestId {
        RequestId::from_uuid(Uuid::from_u64_pair(
            0x7fff,
            0x8000_0000_0000_0000 | self.fresh(),
        ))
    }

    // Requests.

    fn new_request(&mut self, agents: &[&str]) -> StartRequest {
        let agent = self.dice.one(agents);
        let lease_ttl_ms = if self.dice.roll(4) == 3 {
            None
        } else {
            Some(self.ttl())
        };
        let close_on = self.dice.one(&[
            CloseOn::Never,
            CloseOn::Never,
            CloseOn::Reply,
            CloseOn::Failure,
        ]);
        let may_write = lease_ttl_ms.is_some() || self.dice.odd(8);
        let is_whole_turn = self.dice.odd(6) && may_write;
        let mut items = Vec::new();
        if self.dice.odd(5) && may_write {
            items = self.plain_items();
        }
        let mut state = StatePatch::default();
        if self.dice.odd(8) && may_write {
            state = self.patch();
        }
        let output = is_whole_turn.then(|| Output {
            body: self.body(),
            attachments: Vec::new(),
        });
        StartRequest {
            input: self.body(),
            lease_ttl_ms,
            close_on,
            items,
            state,
            output,
            ..fixtures::start(agent)
        }
    }

    /// A turn that ran elsewhere; now and then with an item that it may not have.
    fn recorded_turn(&mut self) -> RecordTurn {
        let mut items = Vec::new();
        for _ in 0..self.dice.roll(4) {
            let role = self.dice.one(&[Role::User, Role::Assistant]);
            let mut item = NewItem::message(role, self.body());
            if self.dice.odd(3) {
                item.visibility = Visibility::Hidden;
                (item.kind, item.role) = (ItemKind::Note, None);
            }
            if self.dice.odd(12) {
                item.kind = self.dice.one(&[ItemKind::Step, ItemKind::ToolCall]);
            }
            items.push(item);
        }
        let mut state = StatePatch::default();
        if self.dice.odd(3) {
            state = self.patch();
        }
        RecordTurn {
            agent: fixtures::name(self.dice.one(&["coordinator", "helper"])),
            request: None,
            items,
            state,
        }
    }

    fn start(&mut self) -> (Command, Actor) {
        if self.dice.odd(8) {
            return (Command::RecordTurn(self.recorded_turn()), self.worker());
        }
        let task = self.some_task(None);
        let mut start = self.new_request(&["coordinator", "helper"]);
        start.task = task;
        let known = task.and_then(|task| self.world.task_named(task));
        let failed = known.and_then(|task| self.world.tasks[task].failed);
        if self.dice.odd(2) {
            start.continues = failed.map(|request| self.world.request_id(request));
        }
        (Command::StartRequest(start), self.worker())
    }

    fn spawn(&mut self) -> Option<(Command, Actor)> {
        let mut leased = self.leased();
        if self.dice.roll(3) < 2 {
            let deepest = leased.iter().map(|at| self.world.depth(*at)).max();
            leased.retain(|at| Some(self.world.depth(*at)) == deepest);
        }
        let parent = self.request(&leased)?;
        let (by, actor) = self.hand(parent);
        let task = self.some_task(Some(self.world.requests[parent].task));
        let mut start = self.new_request(&["math", "ums"]);
        start.parent = Some(by);
        start.task = task;
        if let Some(at) = task.and_then(|task| self.world.task_named(task))
            && !self.dice.odd(8)
        {
            start.agent = self.world.tasks[at].agent.clone();
        }
        Some((Command::StartRequest(start), actor))
    }

    /// Mostly none; sometimes a task that could be gone on with, or any.
    fn some_task(&mut self, above: Option<usize>) -> Option<TaskId> {
        let world = self.world;
        let all = 0..world.tasks.len();
        let tasks: Vec<usize> = match self.dice.roll(16) {
            13 | 14 => all
                .filter(|task| world.task_above(*task) == above)
                .collect(),
            15 => all.collect(),
            _ => return None,
        };
        self.dice.pick(&tasks).map(|task| world.task_id(task))
    }

    fn claim(&mut self) -> Option<(Command, Actor)> {
        let waiting = self.requests_where(|at| {
            matches!(
                self.world.request_status(at),
                LiveStatus::Queued | LiveStatus::Running
            )
        });
        let queued = self.requests_where(|at| self.world.request_status(at) == LiveStatus::Queued);
        let wanted = if queued.is_empty() || self.dice.odd(3) {
            waiting
        } else {
            queued
        };
        let request = self.request(&wanted)?;
        let ttl_ms = self.ttl();
        let id = if self.dice.odd(50) {
            self.unknown_request()
        } else {
            self.world.request_id(request)
        };
        Some((
            Command::ClaimRequest {
                request: id,
                ttl_ms,
            },
            self.worker(),
        ))
    }

    fn lapse(&mut self) -> Option<(Command, Actor)> {
        let running =
            self.requests_where(|at| self.world.request_status(at) == LiveStatus::Running);
        let request = self.request(&running)?;
        let request = self.world.request_id(request);
        Some((
            Command::LapseLease { request },
            Actor::system(fixtures::name("t1")),
        ))
    }

    fn raise_fence(&mut self) -> Option<(Command, Actor)> {
        let live = self.requests_where(|_| true);
        let request = self.request(&live)?;
        let request = self.world.request_id(request);
        Some((
            Command::RaiseFence { request },
            Actor::system(fixtures::name("t1")),
        ))
    }

    fn release(&mut self) -> Option<(Command, Actor)> {
        let leased = self.leased();
        let request = self.request(&leased)?;
        let (by, actor) = self.hand(request);
        Some((Command::ReleaseLease { by }, actor))
    }

    fn append(&mut self) -> Option<(Command, Actor)> {
        let leased = self.leased();
        let request = self.request(&leased)?;
        let (by, actor) = self.hand(request);
        let items = self.items(request);
        let state = if self.dice.odd(5) {
            self.patch()
        } else {
            StatePatch::default()
        };
        let task_state = self.dice.odd(8).then(|| self.body());
        Some((
            Command::AppendItems {
                by,
                items,
                state,
                task_state,
            },
            actor,
        ))
    }

    fn complete(&mut self) -> Option<(Command, Actor)> {
        let wanted = self.running_or_waiting();
        let request = self.request(&wanted)?;
        let (by, actor) = self.hand(request);
        let command = Command::CompleteRequest {
            by,
            cancel_children: self.dice.odd(5),
            close_task: self.dice.odd(6),
            items: if self.dice.odd(4) {
                self.items(request)
            } else {
                Vec::new()
            },
            state: if self.dice.odd(6) {
                self.patch()
            } else {
                StatePatch::default()
            },
            task_state: None,
            output: Output {
                body: self.body(),
                attachments: Vec::new(),
            },
        };
        Some((command, actor))
    }

    fn fail(&mut self) -> Option<(Command, Actor)> {
        let wanted = self.running_or_waiting();
        let request = self.request(&wanted)?;
        let (by, actor) = self.hand(request);
        let (error, cancel_children) = (self.body(), self.dice.odd(4));
        Some((
            Command::FailRequest {
                by,
                error,
                cancel_children,
            },
            actor,
        ))
    }

    fn cancel_request(&mut self) -> Option<(Command, Actor)> {
        let live = self.requests_where(|_| true);
        let request = self.request(&live)?;
        let request = self.world.request_id(request);
        Some((Command::CancelRequest { request }, fixtures::client()))
    }

    fn end_task(&mut self, act: Act) -> Option<(Command, Actor)> {
        let open: Vec<usize> = (0..self.world.tasks.len())
            .filter(|task| match act {
                Act::CloseTask => self.world.task_status(*task) == TaskStatus::Idle,
                _ => self.world.tasks[*task].closed.is_none(),
            })
            .collect();
        let all: Vec<usize> = (0..self.world.tasks.len()).collect();
        let from = if open.is_empty() || self.dice.odd(6) {
            all
        } else {
            open
        };
        let task = self.dice.pick(&from).map(|task| self.world.task_id(task))?;
        let command = match act {
            Act::CloseTask => Command::CloseTask { task },
            _ => Command::CancelTask { task },
        };
        Some((command, fixtures::client()))
    }

    // Items.

    fn item(&self, kind: ItemKind, call: Option<NewCallMark>) -> NewItem {
        let (visibility, role) = match kind {
            ItemKind::Message => (Visibility::Visible, Some(Role::Assistant)),
            ItemKind::Step | ItemKind::Note => (Visibility::Visible, None),
            ItemKind::ToolCall | ItemKind::ToolResult => (Visibility::Hidden, None),
        };
        NewItem {
            kind,
            visibility,
            role,
            body: self.body(),
            attachments: Vec::new(),
            call,
        }
    }

    fn plain_items(&mut self) -> Vec<NewItem> {
        let gated = self.dice.odd(3);
        let idempotent = self.dice.odd(3);
        let call = self.item(
            ItemKind::ToolCall,
            Some(NewCallMark::Call { idempotent, gated }),
        );
        let note = self.item(self.dice_kind(), None);
        let outcome = CallOutcome::Ran;
        let target = CallTarget::SameCommand(self.dice.roll(6) % 4);
        let result = self.item(
            ItemKind::ToolResult,
            Some(NewCallMark::Result {
                call: target,
                outcome,
            }),
        );
        match self.dice.roll(4) {
            0 => vec![call],
            1 => vec![call, note],
            2 => vec![note],
            _ => vec![call, note, result],
        }
    }

    fn dice_kind(&self) -> ItemKind {
        match self.fresh() % 3 {
            0 => ItemKind::Message,
            1 => ItemKind::Step,
            _ => ItemKind::Note,
        }
    }

    /// Results of calls that are open, or new items; sometimes one that does not fit.
    fn items(&mut self, request: usize) -> Vec<NewItem> {
        let mut items = Vec::new();
        let open = self.world.open_calls(request);
        if !open.is_empty() && self.dice.roll(3) < 2 {
            let call = self.dice.one(&open);
            let fitting = match self.world.call_state(call) {
                CallState::Refused => CallOutcome::Refused,
                CallState::Answered => CallOutcome::Answered,
                _ => CallOutcome::Ran,
            };
            let outcome = if self.dice.odd(12) {
                CallOutcome::Answered
            } else {
                fitting
            };
            let id = self.world.items[call].id.expect("a record told it");
            let mark = NewCallMark::Result {
                call: CallTarget::Recorded(id),
                outcome,
            };
            items.push(self.item(ItemKind::ToolResult, Some(mark)));
            if self.dice.odd(24) {
                items.push(items[0].clone());
            }
        } else {
            items = self.plain_items();
        }
        match self.dice.roll(40) {
            36 => items.push(NewItem {
                role: None,
                ..self.item(ItemKind::Message, None)
            }),
            37 => items.push(self.item(ItemKind::ToolCall, None)),
            38 => items.push(NewItem {
                visibility: Visibility::Visible,
                ..self.item(
                    ItemKind::ToolCall,
                    Some(NewCallMark::Call {
                        idempotent: true,
                        gated: false,
                    }),
                )
            }),
            39 => items.push(NewItem {
                body: BodyRef {
                    bytes: u32::MAX,
                    ..self.body()
                },
                ..self.item(ItemKind::Note, None)
            }),
            _ => {}
        }
        items
    }

    // Holds.

    fn ask(&mut self) -> Option<(Command, Actor)> {
        let leased = self.leased();
        let request = self.request(&leased)?;
        let (by, actor) = self.hand(request);
        let kind = self.dice.one(&[
            HoldKind::Approval,
            HoldKind::Approval,
            HoldKind::Approval,
            HoldKind::Question,
            HoldKind::Form,
            HoldKind::Link,
            HoldKind::Credential,
            HoldKind::Reconcile,
        ]);
        let kind = if kind == HoldKind::Reconcile && !self.dice.odd(4) {
            HoldKind::Approval
        } else {
            kind
        };
        let (items, call) = self.gate(request, kind);
        let known: Vec<HoldId> = self.world.holds.iter().filter_map(|hold| hold.id).collect();
        let fresh = HoldId::from_uuid(Uuid::from_u64_pair(0x7000, 1 << 63 | self.fresh()));
        let id = if self.dice.odd(40) {
            self.dice.pick(&known).unwrap_or(fresh)
        } else {
            fresh
        };
        let has_digest = (kind == HoldKind::Approval) != self.dice.odd(60);
        let hold = NewHold {
            id,
            kind,
            body: self.maybe_huge(),
            call,
            digest: has_digest.then(|| fixtures::digest(&format!("action {id}"))),
            allowed: self.allowed(kind),
            need: self.need(kind),
            expires_in_ms: self
                .dice
                .one(&[None, Some(30_000), Some(2_000), None, Some(1)]),
            on_expiry: self.dice.one(&[
                OnExpiry::Reject,
                OnExpiry::Reject,
                OnExpiry::Dismiss,
                OnExpiry::Fail,
            ]),
            decide_by: self.dice.one(&[
                None,
                None,
                Some(DecideBy::User),
                Some(DecideBy::Role(fixtures::name("boss"))),
            ]),
            effect: self.dice.one(&[None, Some(Effect::Write)]),
            risk: self.dice.one(&[None, Some(Risk::Low), Some(Risk::High)]),
            policy: self.dice.one(&[None, Some(Digest::sha256(b"policy"))]),
        };
        Some((Command::OpenHold { by, hold, items }, actor))
    }

    /// The tool call that an approval is about: one that waits, or a new one.
    fn gate(&mut self, request: usize, kind: HoldKind) -> (Vec<NewItem>, Option<CallTarget>) {
        if kind != HoldKind::Approval {
            let items = if self.dice.odd(4) {
                self.plain_items()
            } else {
                Vec::new()
            };
            return (items, None);
        }
        let world = self.world;
        let mut proposed = world.open_calls(request);
        if !self.dice.odd(8) {
            proposed.retain(|call| {
                world.call_state(*call) == CallState::Proposed
                    && world.holds.iter().all(|hold| hold.call != Some(*call))
            });
        }
        if let Some(call) = self.dice.pick(&proposed) {
            return (Vec::new(), world.items[call].id.map(CallTarget::Recorded));
        }
        let gated = !self.dice.odd(30);
        let idempotent = self.dice.odd(4);
        let call = self.item(
            ItemKind::ToolCall,
            Some(NewCallMark::Call { idempotent, gated }),
        );
        let target = CallTarget::SameCommand(usize::from(self.dice.odd(40)));
        (vec![call], (!self.dice.odd(40)).then_some(target))
    }

    fn allowed(&mut self, kind: HoldKind) -> std::collections::BTreeSet<DecisionKind> {
        use DecisionKind::{Approve, Edit, Reject, Respond};
        match (self.dice.roll(10), kind) {
            (8, HoldKind::Question | HoldKind::Form) => [Respond].into(),
            (8, _) => [Approve, Reject].into(),
            (9, _) => [Edit, Reject].into(),
            _ => [].into(),
        }
    }

    fn need(&mut self, kind: HoldKind) -> u16 {
        match (self.dice.roll(40), kind) {
            (39, _) => 0,
            (38, _) => 33,
            (37, _) | (20..30, HoldKind::Approval) => 2,
            (30..35, HoldKind::Approval) => 3,
            _ => 1,
        }
    }

    fn decide(&mut self) -> Option<(Command, Actor)> {
        let world = self.world;
        let open: Vec<usize> = (0..world.holds.len())
            .filter(|at| world.holds[*at].decided.is_none())
            .collect();
        let all: Vec<usize> = (0..world.holds.len()).collect();
        let open_is_empty = open.is_empty();
        let from = if open.is_empty() || self.dice.odd(12) {
            all
        } else {
            open
        };
        if open_is_empty && !self.dice.odd(4) {
            return None;
        }
        let at = self.dice.pick(&from)?;
        let hold = &world.holds[at];
        let offered: Vec<DecisionKind> = hold
            .allowed
            .iter()
            .copied()
            .filter(|kind| *kind != DecisionKind::Dismiss || self.fresh().is_multiple_of(4))
            .collect();
        let votes_wanted = hold.need > 1 && self.dice.roll(4) < 3;
        let kind = match self.dice.roll(30) {
            29 => DecisionKind::Edit,
            28 => DecisionKind::Respond,
            _ if votes_wanted => DecisionKind::Approve,
            _ => self.dice.pick(&offered).unwrap_or(DecisionKind::Dismiss),
        };
        let actor = self.judge(&hold.decide_by);
        let digest = match self.dice.roll(16) {
            15 => Some(fixtures::digest("another action")),
            14 => None,
            _ => hold.digest,
        };
        let is_edit = (kind == DecisionKind::Edit) != self.dice.odd(40);
        let fresh = self.fresh();
        let needs_body = matches!(kind, DecisionKind::Edit | DecisionKind::Respond);
        let decision = NewDecision {
            key: fixtures::digest(&format!("decision key {fresh}")),
            fingerprint: fixtures::digest(&format!("decision {kind:?} {fresh}")),
            kind,
            digest,
            edited: is_edit.then(|| fixtures::digest(&format!("edited {fresh}"))),
            body: (needs_body != self.dice.odd(20)).then(|| self.body()),
        };
        let id = hold.id.expect("a record told it");
        self.memory
            .decided
            .push((id, decision.clone(), actor.clone()));
        Some((Command::DecideHold { hold: id, decision }, actor))
    }

    fn judge(&mut self, by: &DecideBy) -> Actor {
        let n = self.dice.roll(4) as u64;
        let boss = fixtures::actor(Principal::User(fixtures::user(200 + n)), &["boss"]);
        match (self.dice.roll(24), by) {
            (22, _) => self.worker(),
            (21, _) => fixtures::actor(Principal::Local, &[]),
            (20, _) => Actor::system(fixtures::name("t1")),
            // A worker whose key may also approve: it never decides what it opened itself.
            (19, _) => Actor {
                roles: fixtures::approver(0).roles,
                ..self.worker()
            },
            (23, _) | (0..12, DecideBy::User) => fixtures::client(),
            (_, DecideBy::Other | DecideBy::User) => fixtures::approver(n),
            (_, DecideBy::Role(_)) => boss,
        }
    }

    /// The same decision once more; or the same key for another decision, or by somebody else.
    fn decide_again(&mut self) -> Option<(Command, Actor)> {
        let recent: Vec<_> = self.memory.decided.iter().rev().take(12).cloned().collect();
        let (hold, mut decision, mut actor) = self.dice.pick(&recent)?;
        match self.dice.roll(5) {
            3 => decision.fingerprint = fixtures::digest("another decision"),
            4 => actor = fixtures::approver(9),
            _ => {}
        }
        Some((Command::DecideHold { hold, decision }, actor))
    }

    fn expire(&mut self) -> Option<(Command, Actor)> {
        let world = self.world;
        let with_deadline: Vec<usize> = (0..world.holds.len())
            .filter(|at| world.holds[*at].decided.is_none() && world.holds[*at].deadline.is_some())
            .collect();
        let all: Vec<usize> = (0..world.holds.len()).collect();
        let from = if with_deadline.is_empty() || self.dice.odd(8) {
            all
        } else {
            with_deadline
        };
        let hold = self.dice.pick(&from).and_then(|at| world.holds[at].id)?;
        let unknown = HoldId::from_uuid(Uuid::from_u64_pair(0x7fff, 1 << 63));
        let hold = if self.dice.odd(30) { unknown } else { hold };
        Some((
            Command::ExpireHold { hold },
            Actor::system(fixtures::name("t1")),
        ))
    }

    // State and sessions.

    fn key(&mut self) -> StateKey {
        let text = self.dice.one(&[
            "topic",
            "plan",
            "count",
            "draft",
            "topic",
            "plan",
            "app:flags",
            "user:language",
        ]);
        let text = if self.dice.odd(40) {
            "temp:chunk"
        } else {
            text
        };
        text.parse().expect("a state key")
    }

    fn patch(&mut self) -> StatePatch {
        let mut patch = StatePatch::default();
        for _ in 0..=self.dice.roll(2) {
            let key = self.key();
            if self.dice.odd(4) {
                patch.delete.push(key);
                continue;
            }
            let is_shared = key.as_str().contains(':');
            let merge = if self.dice.odd(if is_shared { 2 } else { 30 }) {
                MergePolicy::Append
            } else {
                MergePolicy::Replace
            };
            patch.set.push(StateSet {
                key,
                value: self.maybe_huge(),
                merge,
            });
        }
        if self.dice.odd(3) {
            let key = self.key();
            let now = self.world.keys_at(self.world.revision);
            let version = now.get(&key).map_or(0, |known| known.revision);
            let version = if self.dice.odd(5) {
                version + 1
            } else {
                version
            };
            patch.if_versions.insert(key, version);
        }
        if self.dice.odd(3) {
            let values = vec![self.maybe_huge(); self.dice.roll(3)];
            let list = KeyPrefix::of_list("list/").expect("a list");
            patch.append.push(StateAppend { list, values });
        }
        if self.dice.odd(6) {
            let prefix = self.dice.one(&["list/", "p", "t"]);
            patch.delete_prefix.push(prefix.parse().expect("a prefix"));
        }
        patch
    }

    fn put(&mut self) -> (Command, Actor) {
        let patch = self.patch();
        let leased = self.leased();
        let by = if self.dice.odd(2) {
            self.request(&leased)
        } else {
            None
        };
        match by.map(|request| self.hand(request)) {
            Some((by, actor)) => (
                Command::PutState {
                    patch,
                    by: Some(by),
                },
                actor,
            ),
            None => (Command::PutState { patch, by: None }, fixtures::client()),
        }
    }

    fn rewind(&mut self) -> (Command, Actor) {
        let current = usize::try_from(self.world.revision).expect("few revisions");
        let to = if self.dice.odd(8) {
            self.dice.one(&[0, current, current + 1])
        } else {
            current.saturating_sub(1 + self.dice.roll(current.max(1)))
        };
        (Command::Rewind { to: to as u64 }, fixtures::client())
    }

    /// Another name, other labels or another life; sometimes a life that no session may have.
    fn patch_session(&mut self) -> Command {
        let ms = self
            .dice
            .one(&[3_600_000, 3_600_000, 600_000, 60_000, 1_000]);
        let ms = if self.dice.odd(12) { ms / 2_000 } else { ms };
        let mode = self
            .dice
            .one(&[TtlMode::Sliding, TtlMode::Fixed, TtlMode::Sliding]);
        let ttl = match self.dice.roll(6) {
            0..3 => Some(Change::Set(TimeToLive { mode, ms })),
            3 => Some(Change::Clear),
            _ => None,
        };
        let name = match self.dice.roll(6) {
            0 => Some(Change::Set(self.maybe_huge())),
            1 => Some(Change::Clear),
            _ => None,
        };
        let labels = self.dice.odd(4).then(|| self.maybe_huge());
        let hidden_ttl_ms = match self.dice.roll(6) {
            0..3 => Some(Change::Set(self.dice.one(&[1_000, 2_000, 30_000, 500]))),
            3 => Some(Change::Clear),
            _ => None,
        };
        Command::PatchSession {
            labels,
            name,
            ttl,
            hidden_ttl_ms,
        }
    }

    /// A command that was refused, once more: by now it may be allowed.
    fn resend(&mut self) -> Sent {
        let recent: Vec<_> = self.memory.refused.iter().rev().take(12).cloned().collect();
        let again = self.dice.pick(&recent);
        let (command, actor) = again.unwrap_or_else(|| self.start());
        Sent { command, actor }
    }
}
