//! The effect of each command on the world of the reference, written from the text of the design. A
//! command works on a copy that is thrown away when it is refused, so it may write first and refuse
//! later.

use std::collections::BTreeSet;

use statehold_core::command::{
    Command, Context, Fenced, RecordTurn, Rejection, StartRequest, StatePatch,
};
use statehold_core::digest::BodyRef;
use statehold_core::hold::{DecideBy, HoldKind, HoldStatus, OnExpiry};
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::item::{ItemKind, NewItem, Role, Visibility};
use statehold_core::limits;
use statehold_core::record::Change;
use statehold_core::request::{CallState, Lease, LiveStatus, RequestOutcome};
use statehold_core::scope::StateKey;
use statehold_core::session::{Owner, TimeToLive};
use statehold_core::task::{CloseOn, TaskStatus};

use super::holds::{decided_by_nobody, decisions_of};
use super::{Answer, KeyWrite, KnownHold, KnownMark, KnownRequest, KnownTask, World};

pub(super) type Performed = Result<Answer, Rejection>;

impl World {
    /// Does a command on this copy. The revision and the time are already those of the new record.
    pub(super) fn perform(&mut self, command: &Command, ctx: &Context) -> Performed {
        if let Some(owner) = &self.owner
            && owner.tenant != ctx.actor.tenant
        {
            return Err(Rejection::NotFound);
        }
        let answer = match command {
            _ if self.deleted => return Err(Rejection::NotFound),
            Command::CreateSession {
                owner,
                state,
                ttl,
                hidden_ttl_ms,
                ..
            } => self.create(owner, state, (*ttl, *hidden_ttl_ms), ctx)?,
            _ if self.owner.is_none() => return Err(Rejection::NotFound),
            Command::DecideHold { hold, decision } => self.decide(*hold, decision, ctx)?,
            Command::ExpireSession if !self.is_over(ctx) => {
                return Err(Rejection::SessionNotExpired);
            }
            Command::ExpireSession | Command::DeleteSession => self.end_session(command)?,
            Command::EraseHidden => self.erase_hidden(ctx)?,
            _ if self.closed => return Err(Rejection::SessionClosed),
            _ if self.is_over(ctx) => return Err(Rejection::SessionExpired),
            _ => self.perform_while_open(command, ctx)?,
        };
        if answer == Answer::Done && payloads(command).any(|b| b.bytes > limits::PAYLOAD_BYTES_MAX)
        {
            let max = limits::PAYLOAD_BYTES_MAX.into();
            return Err(Rejection::Limit {
                limit: "payload",
                max,
            });
        }
        Ok(answer)
    }

    fn perform_while_open(&mut self, command: &Command, ctx: &Context) -> Performed {
        match command {
            Command::CloseSession { cancel_live } => self.close_session(*cancel_live)?,
            Command::StartRequest(start) => self.start(start, ctx)?,
            Command::RecordTurn(turn) => self.record_turn(turn, ctx)?,
            Command::ClaimRequest { request, ttl_ms } => self.claim(*request, *ttl_ms, ctx)?,
            Command::LapseLease { request } => self.lapse(*request, ctx)?,
            Command::RaiseFence { request } => {
                let request = self.live_named(*request)?;
                let known = &mut self.requests[request];
                known.restored_after.push(known.leases.len());
                known.attended = false;
            }
            Command::ReleaseLease { by } => {
                let request = self.fenced(*by, ctx)?;
                self.requests[request].attended = false;
            }
            Command::AppendItems {
                by, items, state, ..
            } => {
                let request = self.fenced(*by, ctx)?;
                self.write_items(request, items)?;
                self.write_state(state)?;
            }
            Command::OpenHold { by, hold, items } => self.open_hold(*by, hold, items, ctx)?,
            Command::ExpireHold { hold } => self.expire_hold(*hold)?,
            Command::CompleteRequest {
                by,
                items,
                state,
                close_task,
                cancel_children,
                ..
            } => {
                let request = self.finishable(*by, *cancel_children, ctx)?;
                self.write_items(request, items)?;
                self.write_message(request, Role::Assistant);
                self.write_state(state)?;
                self.end_with_children(request, RequestOutcome::Completed);
                if *close_task {
                    self.close_tasks_below(self.requests[request].task, TaskStatus::Completed);
                }
            }
            Command::FailRequest {
                by,
                cancel_children,
                ..
            } => {
                let request = self.finishable(*by, *cancel_children, ctx)?;
                self.end_with_children(request, RequestOutcome::Failed);
            }
            Command::CancelRequest { request } => {
                let request = self.live_named(*request)?;
                self.end_with_children(request, RequestOutcome::Cancelled);
            }
            Command::CloseTask { task } => self.close_task(*task)?,
            Command::CancelTask { task } => self.cancel_task(*task)?,
            Command::PutState { patch, by } => {
                by.map(|by| self.fenced(by, ctx)).transpose()?;
                self.write_state(patch)?;
            }
            Command::Rewind { to } => self.rewind(*to)?,
            Command::PatchSession {
                labels,
                name,
                ttl,
                hidden_ttl_ms,
            } => {
                let lives = ttl.is_some() || hidden_ttl_ms.is_some();
                if labels.is_none() && name.is_none() && !lives {
                    return Err(Rejection::EmptyPatch);
                }
                if let Some(ttl) = ttl {
                    self.live_for(ttl.value())?;
                }
                if let Some(ms) = hidden_ttl_ms {
                    self.keep_hidden_for(ms.value())?;
                }
            }
            Command::CreateSession { .. }
            | Command::ExpireSession
            | Command::EraseHidden
            | Command::DeleteSession
            | Command::DecideHold { .. }
            | Command::Fork { .. } => {
                unreachable!("done elsewhere; a fork makes another world")
            }
        }
        Ok(Answer::Done)
    }

    pub(super) fn is_over(&self, ctx: &Context) -> bool {
        let now = ctx.now.max(self.was_at);
        self.before()
            .expires_at()
            .is_some_and(|deadline| now >= deadline)
    }

    /// The world before this command, which has moved its times on already, and changed nothing else yet.
    fn before(&self) -> Self {
        Self {
            last_at: self.was_at,
            used_at: self.was_used_at,
            revision: self.revision - 1,
            ..self.clone()
        }
    }

    fn keep_hidden_for(&mut self, ms: Option<u64>) -> Result<(), Rejection> {
        if ms.is_some_and(|ms| !limits::SESSION_TTL_MS.contains(&ms)) {
            let (limit, max) = ("hidden life", *limits::SESSION_TTL_MS.end());
            return Err(Rejection::Limit { limit, max });
        }
        self.hidden_life = ms;
        Ok(())
    }

    fn erase_hidden(&mut self, ctx: &Context) -> Performed {
        let now = ctx.now.max(self.was_at);
        let deadline = self.before().hidden_expires_at();
        if deadline.is_none_or(|deadline| now < deadline) {
            return Err(Rejection::HiddenNotDue);
        }
        self.used_at = self.was_used_at;
        self.hidden_erased_by = Some(self.revision);
        if self.closed {
            (self.life, self.hidden_life) = (None, None);
        }
        Ok(Answer::Done)
    }

    fn live_for(&mut self, ttl: Option<TimeToLive>) -> Result<(), Rejection> {
        if let Some(ttl) = ttl
            && !limits::SESSION_TTL_MS.contains(&ttl.ms)
        {
            let max = *limits::SESSION_TTL_MS.end();
            return Err(Rejection::Limit { limit: "life", max });
        }
        self.life = ttl.map(|ttl| (ttl, self.last_at));
        Ok(())
    }

    fn end_session(&mut self, command: &Command) -> Performed {
        if !self.closed {
            self.close_session(true)?;
        }
        (self.life, self.hidden_life) = (None, None);
        if *command == Command::DeleteSession {
            self.deleted = true;
            let keys: Vec<_> = self.writes.iter().map(|write| write.key.clone()).collect();
            let (revision, bytes) = (self.revision, None);
            self.writes.extend(keys.into_iter().map(|key| KeyWrite {
                key,
                revision,
                bytes,
            }));
        }
        Ok(Answer::Done)
    }

    fn create(
        &mut self,
        owner: &Owner,
        state: &StatePatch,
        (ttl, hidden_ttl_ms): (Option<TimeToLive>, Option<u64>),
        ctx: &Context,
    ) -> Performed {
        if self.owner.is_some() {
            return Err(Rejection::SessionExists);
        }
        if owner.tenant != ctx.actor.tenant {
            return Err(Rejection::NotFound);
        }
        self.owner = Some(owner.clone());
        self.live_for(ttl)?;
        self.keep_hidden_for(hidden_ttl_ms)?;
        self.write_state(state)?;
        Ok(Answer::Done)
    }

    fn close_session(&mut self, cancel_live: bool) -> Result<(), Rejection> {
        let live = (0..self.requests.len())
            .filter(|request| self.is_live(*request))
            .count();
        if live > 0 && !cancel_live {
            return Err(Rejection::RequestsLive { live });
        }
        self.cancel_everything();
        for task in &mut self.tasks {
            task.closed.get_or_insert(TaskStatus::Completed);
        }
        self.closed = true;
        Ok(())
    }

    fn rewind(&mut self, to: u64) -> Result<(), Rejection> {
        let current = self.revision - 1;
        if to == 0 || to >= current {
            return Err(Rejection::NotInThePast { to, current });
        }
        self.cancel_everything();
        self.rewinds.push((self.revision, to));
        for task in &mut self.tasks {
            task.failed = None;
        }
        for task in 0..self.tasks.len() {
            if self.tasks[task].opened_at > to {
                self.close_tasks_below(task, TaskStatus::Cancelled);
            }
        }
        let (then, now) = (self.keys_at(to), self.keys_at(current));
        let all: BTreeSet<&StateKey> = then.keys().chain(now.keys()).collect();
        for key in all {
            if then.get(key) != now.get(key) {
                self.write_key(key, then.get(key).map(|then| then.bytes));
            }
        }
        Ok(())
    }

    fn cancel_everything(&mut self) {
        for request in 0..self.requests.len() {
            self.end_with_children(request, RequestOutcome::Cancelled);
        }
    }

    fn close_task(&mut self, id: TaskId) -> Result<(), Rejection> {
        let task = self.open_task_named(id)?;
        for below in 0..self.tasks.len() {
            if let Some(request) = self.live_request_of(below)
                && self.is_below(below, task)
            {
                let (task, request) = (self.task_id(below), self.request_id(request));
                return Err(Rejection::TaskBusy { task, request });
            }
        }
        self.close_tasks_below(task, TaskStatus::Completed);
        Ok(())
    }

    fn cancel_task(&mut self, id: TaskId) -> Result<(), Rejection> {
        let task = self.open_task_named(id)?;
        for request in 0..self.requests.len() {
            if self.is_below(self.requests[request].task, task) {
                self.end_with_children(request, RequestOutcome::Cancelled);
            }
        }
        self.close_tasks_below(task, TaskStatus::Cancelled);
        Ok(())
    }

    fn close_tasks_below(&mut self, top: usize, status: TaskStatus) {
        for task in 0..self.tasks.len() {
            if self.is_below(task, top) {
                self.tasks[task].closed.get_or_insert(status);
            }
        }
    }

    fn open_task_named(&self, id: TaskId) -> Result<usize, Rejection> {
        let task = self.task_named(id).ok_or(Rejection::NotFound)?;
        match self.tasks[task].closed {
            Some(_) => Err(Rejection::TaskFinal { task: id }),
            None => Ok(task),
        }
    }

    fn live_named(&self, id: RequestId) -> Result<usize, Rejection> {
        let request = self.request_named(id).ok_or(Rejection::NotFound)?;
        match self.requests[request].ended {
            Some(outcome) => Err(Rejection::RequestEnded {
                request: id,
                outcome,
            }),
            None => Ok(request),
        }
    }

    /// Rule 6, with rule 1: who shows the current fence may write unless the request is queued.
    pub(super) fn fenced(&self, by: Fenced, ctx: &Context) -> Result<usize, Rejection> {
        let request = self.live_named(by.request)?;
        let current = self.fence(request);
        if by.fence != current {
            return Err(Rejection::StaleFence {
                shown: by.fence,
                current,
            });
        }
        if self.request_status(request) == LiveStatus::Queued {
            return Err(Rejection::NotLeased {
                request: by.request,
            });
        }
        match self.lease(request) {
            Some(lease) if lease.worker == ctx.actor.principal => Ok(request),
            _ => Err(Rejection::NotLeaseHolder),
        }
    }

    fn finishable(
        &self,
        by: Fenced,
        cancel_children: bool,
        ctx: &Context,
    ) -> Result<usize, Rejection> {
        let request = self.fenced(by, ctx)?;
        let open = self.open_holds(request).len();
        let live = self.live_children(request).len();
        if open > 0 {
            Err(Rejection::HoldsOpen { open })
        } else if live > 0 && !cancel_children {
            Err(Rejection::ChildrenLive { live })
        } else {
            Ok(request)
        }
    }

    /// Ends a request and cancels every live request below it, with all their holds. Does nothing
    /// to one that has ended.
    pub(super) fn end_with_children(&mut self, request: usize, outcome: RequestOutcome) {
        if !self.is_live(request) {
            return;
        }
        for child in self.live_children(request) {
            self.end_with_children(child, RequestOutcome::Cancelled);
        }
        for hold in self.open_holds(request) {
            self.settle_hold(hold, decided_by_nobody(HoldStatus::Cancelled));
        }
        self.requests[request].ended = Some(outcome);
        let failed = (outcome == RequestOutcome::Failed).then_some(request);
        let task = self.requests[request].task;
        self.tasks[task].failed = failed;
        self.ends.push((request, self.revision));
        let task = self.requests[request].task;
        match (self.tasks[task].close_on, outcome) {
            (CloseOn::Reply, RequestOutcome::Completed) => {
                self.close_tasks_below(task, TaskStatus::Completed);
            }
            (CloseOn::Failure, RequestOutcome::Failed) => {
                self.close_tasks_below(task, TaskStatus::Failed);
            }
            _ => {}
        }
    }
}

/// Starting and taking requests.
impl World {
    fn start(&mut self, start: &StartRequest, ctx: &Context) -> Result<(), Rejection> {
        let writes = !start.items.is_empty() || !start.state.is_empty() || start.output.is_some();
        if writes && start.lease_ttl_ms.is_none() {
            return Err(Rejection::LeaseNeeded);
        }
        let parent = start.parent.map(|by| self.fenced(by, ctx)).transpose()?;
        if parent.is_some_and(|parent| self.depth(parent) >= usize::from(limits::DEPTH_MAX)) {
            let max = limits::DEPTH_MAX.into();
            return Err(Rejection::Limit {
                limit: "depth",
                max,
            });
        }
        let task = self.task_for(start, parent)?;
        let continues = self.tasks[task].failed.take();
        let continues = match start.continues {
            Some(id) if continues.map(|failed| self.request_id(failed)) != Some(id) => {
                return Err(Rejection::NotFound);
            }
            Some(_) => continues,
            None => None,
        };
        let request = self.requests.len();
        self.requests.push(KnownRequest {
            id: None,
            task,
            parent,
            started_by: self.revision,
            started_for: [Some(ctx.actor.principal), ctx.actor.key_owner],
            leases: Vec::new(),
            restored_after: Vec::new(),
            attended: false,
            waited: false,
            ended: None,
            continues,
        });
        if let Some(ttl_ms) = start.lease_ttl_ms {
            self.grant(request, ttl_ms, ctx)?;
        }
        self.write_input(request);
        self.write_items(request, &start.items)?;
        if start.output.is_some() {
            self.write_message(request, Role::Assistant);
        }
        self.write_state(&start.state)?;
        if start.output.is_some() {
            self.end_with_children(request, RequestOutcome::Completed);
        }
        Ok(())
    }

    /// Like a whole turn of a worker, except that all of its items come in the call, those of the user too.
    fn record_turn(&mut self, turn: &RecordTurn, ctx: &Context) -> Result<(), Rejection> {
        let is_plain = |item: &NewItem| match item.kind {
            ItemKind::Message => matches!(item.role, Some(Role::User | Role::Assistant)),
            ItemKind::Note => item.role.is_none() && item.visibility == Visibility::Hidden,
            ItemKind::ToolCall | ItemKind::ToolResult | ItemKind::Step => false,
        };
        let fits = |item: &NewItem| is_plain(item) && item.call.is_none();
        if turn.items.is_empty() || !turn.items.iter().all(fits) {
            return Err(Rejection::ItemMalformed("a recorded turn has other items"));
        }
        let start = StartRequest {
            agent: turn.agent.clone(),
            task: None,
            parent: None,
            input: turn.items[0].body,
            attachments: Vec::new(),
            chat: None,
            continues: None,
            close_on: CloseOn::Never,
            lease_ttl_ms: None,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        };
        let task = self.task_for(&start, None)?;
        self.tasks[task].failed = None;
        let request = self.requests.len();
        self.requests.push(KnownRequest {
            id: None,
            task,
            parent: None,
            started_by: self.revision,
            started_for: [Some(ctx.actor.principal), ctx.actor.key_owner],
            leases: Vec::new(),
            restored_after: Vec::new(),
            attended: false,
            waited: false,
            ended: None,
            continues: None,
        });
        self.grant(request, *limits::LEASE_MS.start(), ctx)?;
        for item in &turn.items {
            self.write_item(request, item.kind, item.visibility, item.role, None);
        }
        self.write_state(&turn.state)?;
        self.end_with_children(request, RequestOutcome::Completed);
        Ok(())
    }

    fn task_for(
        &mut self,
        start: &StartRequest,
        parent: Option<usize>,
    ) -> Result<usize, Rejection> {
        let above = parent.map(|parent| self.requests[parent].task);
        if let Some(id) = start.task {
            let task = self.open_task_named(id)?;
            if self.tasks[task].agent != start.agent || self.task_above(task) != above {
                return Err(Rejection::TaskElsewhere { task: id });
            }
            return match self.live_request_of(task) {
                Some(request) => Err(Rejection::TaskBusy {
                    task: id,
                    request: self.request_id(request),
                }),
                None => Ok(task),
            };
        }
        let idle = (0..self.tasks.len()).find(|task| {
            self.task_status(*task) == TaskStatus::Idle
                && self.tasks[*task].agent == start.agent
                && self.task_above(*task) == above
        });
        Ok(idle.unwrap_or_else(|| {
            self.tasks.push(KnownTask {
                id: None,
                agent: start.agent.clone(),
                spawned_by: parent,
                close_on: start.close_on,
                opened_at: self.revision,
                closed: None,
                failed: None,
            });
            self.tasks.len() - 1
        }))
    }

    fn claim(&mut self, id: RequestId, ttl_ms: u64, ctx: &Context) -> Result<(), Rejection> {
        // Check the call by itself before the state of the request.
        check_ttl(ttl_ms)?;
        let request = self.live_named(id)?;
        let status = self.request_status(request);
        let is_lost = status == LiveStatus::Running && !self.has_live_lease(request, ctx);
        if status != LiveStatus::Queued && !is_lost {
            return Err(Rejection::NotClaimable {
                request: id,
                status,
            });
        }
        let may_have_run: Vec<usize> = self
            .open_calls(request)
            .into_iter()
            .filter(|call| {
                let is_harmless = matches!(
                    self.items[*call].mark,
                    Some(KnownMark::Call {
                        idempotent: true,
                        ..
                    })
                );
                matches!(self.call_state(*call), CallState::Started { .. }) && !is_harmless
            })
            .collect();
        if may_have_run.is_empty() {
            return self.grant(request, ttl_ms, ctx);
        }
        let lost = self.requests[request].leases.last();
        let worker = lost.map_or(ctx.actor.principal, |lease| lease.worker);
        for call in may_have_run {
            let first = self.holds.iter().find(|hold| hold.call == Some(call));
            let hold = KnownHold {
                id: None,
                request,
                number: self.next_hold_number(request),
                opened_at: self.revision,
                kind: HoldKind::Reconcile,
                body: None,
                call: Some(call),
                digest: self.approved_digest(call),
                allowed: decisions_of(HoldKind::Reconcile),
                need: 1,
                decide_by: first.map_or(DecideBy::Other, |hold| hold.decide_by.clone()),
                effect: first.and_then(|hold| hold.effect),
                risk: first.and_then(|hold| hold.risk),
                policy: first.and_then(|hold| hold.policy),
                // The worker that made the call must not report its outcome as an approver.
                opened_by: worker,
                deadline: None,
                on_expiry: OnExpiry::Reject,
                votes: Vec::new(),
                decided: None,
                handed_over: false,
            };
            self.holds.push(hold);
        }
        // The request has no worker now: the core gave up the one before.
        self.requests[request].attended = false;
        Ok(())
    }

    fn grant(&mut self, request: usize, ttl_ms: u64, ctx: &Context) -> Result<(), Rejection> {
        check_ttl(ttl_ms)?;
        let (worker, until) = (ctx.actor.principal, self.last_at.plus_ms(ttl_ms));
        self.requests[request].leases.push(Lease {
            worker,
            ttl_ms,
            until,
        });
        self.requests[request].attended = true;
        Ok(())
    }

    fn lapse(&mut self, id: RequestId, ctx: &Context) -> Result<(), Rejection> {
        let request = self.live_named(id)?;
        let status = self.request_status(request);
        if status != LiveStatus::Running {
            return Err(Rejection::NotClaimable {
                request: id,
                status,
            });
        }
        if self.has_live_lease(request, ctx) {
            return Err(Rejection::LeaseLive { request: id });
        }
        self.requests[request].attended = false;
        Ok(())
    }
}

fn check_ttl(ttl_ms: u64) -> Result<(), Rejection> {
    if limits::LEASE_MS.contains(&ttl_ms) {
        return Ok(());
    }
    Err(Rejection::Limit {
        limit: "lease",
        max: *limits::LEASE_MS.end(),
    })
}

/// The payloads that a command brings along.
fn payloads(command: &Command) -> impl Iterator<Item = BodyRef> {
    let none = StatePatch::default();
    let (mut bodies, items, state): (Vec<BodyRef>, &[NewItem], &StatePatch) = match command {
        Command::CreateSession {
            name,
            labels,
            state,
            ..
        } => (name.iter().chain(labels).copied().collect(), &[], state),
        Command::PatchSession { labels, name, .. } => {
            let name = name.and_then(Change::value);
            (labels.iter().copied().chain(name).collect(), &[], &none)
        }
        Command::StartRequest(start) => {
            let output = start.output.iter().map(|output| output.body);
            (
                output.chain([start.input]).collect(),
                &start.items,
                &start.state,
            )
        }
        Command::RecordTurn(turn) => (Vec::new(), &turn.items, &turn.state),
        Command::AppendItems {
            items,
            state,
            task_state,
            ..
        } => (task_state.iter().copied().collect(), items, state),
        Command::OpenHold { hold, items, .. } => (vec![hold.body], items, &none),
        Command::DecideHold { decision, .. } => {
            (decision.body.iter().copied().collect(), &[], &none)
        }
        Command::CompleteRequest {
            output,
            items,
            state,
            task_state,
            ..
        } => (
            task_state.iter().copied().chain([output.body]).collect(),
            items,
            state,
        ),
        Command::FailRequest { error, .. } => (vec![*error], &[], &none),
        Command::PutState { patch, .. } => (Vec::new(), &[], patch),
        _ => (Vec::new(), &[], &none),
    };
    bodies.extend(items.iter().map(|item| item.body));
    bodies.extend(state.set.iter().map(|set| set.value));
    bodies.extend(state.append.iter().flat_map(|list| &list.values));
    bodies.into_iter()
}
