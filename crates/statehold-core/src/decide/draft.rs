//! The record in the making: events are folded into a copy of the state as they are written, so that
//! later parts of a decision see what earlier parts did.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use uuid::Uuid;

use crate::apply::apply_event;
use crate::command::{Context, Fenced, Rejection};
use crate::hold::{Decision, HoldStatus};
use crate::ids::{HoldId, IdMint, RequestId, TaskId};
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::principal::Principal;
use crate::record::{CommandName, Event, RECORD_VERSION, Record, RecordContent};
use crate::request::{LiveRequest, LiveStatus, RequestOutcome};
use crate::session::SessionState;
use crate::task::{CloseOn, Task, TaskStatus};
use crate::time::Timestamp;

/// A decision in the making.
pub(super) struct Draft<'a> {
    pub(super) ctx: &'a Context,
    /// The state with all events so far.
    pub(super) state: SessionState,
    /// The commit time: never earlier than the last.
    pub(super) at: Timestamp,
    seq: u64,
    events: Vec<Event>,
    mint: IdMint,
    /// Requests whose status may have changed, deepest first.
    unsettled: BTreeSet<(Reverse<u16>, RequestId)>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(state: &SessionState, ctx: &'a Context) -> Self {
        let at = if mutant::is_on(Mutant::ClockStepsBack) {
            ctx.now
        } else {
            ctx.now.max(state.last_at)
        };
        let skipped = u64::from(mutant::is_on(Mutant::SkipSequence) && state.revision == 3);
        Self {
            ctx,
            at,
            seq: state.revision + 1 + skipped,
            events: Vec::new(),
            mint: IdMint::new(at, state.session.shard(), ctx.entropy),
            unsettled: BTreeSet::new(),
            state: state.clone(),
        }
    }

    pub(super) fn fresh_uuid(&mut self) -> Uuid {
        self.mint.next_uuid()
    }

    pub(super) fn emit(&mut self, event: Event) {
        apply_event(&mut self.state, &event, self.seq, self.ctx.actor.principal);
        self.events.push(event);
    }

    /// The live request, or why it is not there.
    pub(super) fn live(&self, request: RequestId) -> Result<&LiveRequest, Rejection> {
        self.state
            .requests
            .get(&request)
            .ok_or_else(|| match self.ctx.loaded.request {
                Some((ended, outcome)) if ended == request => {
                    Rejection::RequestEnded { request, outcome }
                }
                _ => Rejection::NotFound,
            })
    }

    /// The open task, or why it is not there.
    pub(super) fn open_task(&self, task: TaskId) -> Result<&Task, Rejection> {
        self.state
            .tasks
            .get(&task)
            .ok_or_else(|| match self.ctx.loaded.task {
                Some(ended) if ended == task => Rejection::TaskFinal { task },
                _ => Rejection::NotFound,
            })
    }

    /// Lets only the holder of the current fence write, while the request is not waiting for a worker.
    pub(super) fn require_fence(&self, by: Fenced) -> Result<&LiveRequest, Rejection> {
        let live = self.live(by.request)?;
        if mutant::is_on(Mutant::SkipFence) {
            return Ok(live);
        }
        if by.fence != live.fence {
            return Err(Rejection::StaleFence {
                shown: by.fence,
                current: live.fence,
            });
        }
        match live.status {
            LiveStatus::Queued => Err(Rejection::NotLeased {
                request: by.request,
            }),
            LiveStatus::Running | LiveStatus::Held | LiveStatus::Waiting => {
                let holder = live.lease.map(|lease| lease.worker);
                if holder == Some(self.ctx.actor.principal) {
                    Ok(live)
                } else {
                    Err(Rejection::NotLeaseHolder)
                }
            }
        }
    }

    /// Whether the request's lease is live now, heartbeats included.
    pub(super) fn has_live_lease(&self, live: &LiveRequest) -> bool {
        live.has_live_lease(self.at, self.ctx.leases.get(&live.id).copied())
    }

    /// Notes that a request may have to change its status.
    pub(super) fn unsettle(&mut self, request: RequestId) {
        if let Some(live) = self.state.requests.get(&request) {
            self.unsettled.insert((Reverse(live.depth), request));
        }
    }

    /// Ends one request: its holds are cancelled, its task is free, its parent may wake.
    ///
    /// Children must have been ended before.
    pub(super) fn end_request(
        &mut self,
        request: RequestId,
        outcome: RequestOutcome,
        error: Option<crate::digest::BodyRef>,
    ) {
        let Some(live) = self.state.requests.get(&request) else {
            return;
        };
        let (task, parent) = (live.task, live.parent);
        for hold in live.holds.clone() {
            if mutant::is_on(Mutant::CancelKeepsHolds) {
                continue;
            }
            self.close_hold(hold, request, HoldStatus::Cancelled);
        }
        self.emit(Event::RequestEnded {
            request,
            outcome,
            error,
        });
        if self
            .state
            .tasks
            .get(&task)
            .is_some_and(|task| task.status != TaskStatus::Idle)
        {
            self.emit(Event::TaskStatusChanged {
                task,
                status: TaskStatus::Idle,
            });
        }
        if let Some(parent) = parent
            && !mutant::is_on(Mutant::ForgetParent)
        {
            self.unsettle(parent);
        }
        let close_on = self.state.tasks.get(&task).map(|task| task.close_on);
        match (close_on, outcome) {
            (Some(CloseOn::Reply), RequestOutcome::Completed) => {
                self.close_subtree(task, TaskStatus::Completed);
            }
            (Some(CloseOn::Failure), RequestOutcome::Failed) => {
                self.close_subtree(task, TaskStatus::Failed);
            }
            _ => {}
        }
    }

    /// Cancels a request and all requests below it, the deepest first.
    pub(super) fn cancel_request_tree(&mut self, request: RequestId) {
        self.cancel_children(request);
        self.end_request(request, RequestOutcome::Cancelled, None);
    }

    /// Cancels all requests below one.
    pub(super) fn cancel_children(&mut self, request: RequestId) {
        let children = self
            .state
            .requests
            .get(&request)
            .map(|live| live.children.clone())
            .unwrap_or_default();
        for child in children {
            self.cancel_request_tree(child);
        }
    }

    /// Ends a task and every open task below it. They must have no live request.
    pub(super) fn close_subtree(&mut self, task: TaskId, status: TaskStatus) {
        for below in self.subtree_deepest_first(task) {
            self.emit(Event::TaskClosed {
                task: below,
                status,
            });
        }
    }

    /// The open tasks at and below `task`, each before its parent.
    pub(super) fn subtree_deepest_first(&self, task: TaskId) -> Vec<TaskId> {
        let mut order = vec![task];
        let mut next = 0;
        while next < order.len() {
            let above = order[next];
            order.extend(
                self.state
                    .tasks
                    .values()
                    .filter(|task| task.parent.is_some_and(|link| link.task == above))
                    .map(|task| task.id),
            );
            next += 1;
        }
        order.reverse();
        order
    }

    /// Closes a hold that no person decided.
    pub(super) fn close_hold(&mut self, hold: HoldId, request: RequestId, status: HoldStatus) {
        let decision = Decision {
            status,
            by: Principal::System,
            key: None,
            fingerprint: None,
            released: None,
            right: None,
            shown: None,
            body: None,
        };
        self.emit(Event::HoldDecided {
            hold,
            request,
            decision,
            to_worker: false,
        });
        self.unsettle(request);
    }

    /// Updates the statuses of requests and tasks to match the holds and children they wait for, up
    /// to the root task.
    fn settle(&mut self) {
        while let Some((_, request)) = self.unsettled.pop_first() {
            let Some(live) = self.state.requests.get(&request) else {
                continue;
            };
            let (task, parent, depth) = (live.task, live.parent, live.depth);
            let wanted = self.wanted_status(live);
            let mut changed = false;
            if wanted != live.status {
                let is_wake = live.status == LiveStatus::Held;
                if !(mutant::is_on(Mutant::LostWake) && is_wake) {
                    self.emit(Event::RequestStatusChanged {
                        request,
                        status: wanted,
                    });
                    changed = true;
                }
            }
            let Some(open) = self.state.tasks.get(&task) else {
                continue;
            };
            let status = self.state.status_from_children(open);
            if status != open.status {
                let skipped = mutant::is_on(Mutant::CascadeLater)
                    && depth == 0
                    && status == TaskStatus::Paused
                    && wanted == LiveStatus::Waiting;
                if !skipped {
                    self.emit(Event::TaskStatusChanged { task, status });
                }
                changed = true;
            }
            let stops_short =
                mutant::is_on(Mutant::SkipAncestor) && depth == 1 && status == TaskStatus::Paused;
            if let Some(parent) = parent
                && changed
                && !stops_short
            {
                self.unsettle(parent);
            }
        }
    }

    fn wanted_status(&self, live: &LiveRequest) -> LiveStatus {
        if !live.holds.is_empty() {
            return LiveStatus::Held;
        }
        if !live.children.is_empty() {
            return LiveStatus::Waiting;
        }
        match live.status {
            LiveStatus::Queued | LiveStatus::Running => live.status,
            LiveStatus::Held | LiveStatus::Waiting if self.has_live_lease(live) => {
                LiveStatus::Running
            }
            LiveStatus::Held | LiveStatus::Waiting => LiveStatus::Queued,
        }
    }

    /// The revision that the record will have.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Completes the record.
    pub(super) fn finish(mut self, command: CommandName) -> Result<Record, Rejection> {
        self.settle();
        let bodies = self.events.iter().flat_map(Event::bodies);
        let largest = bodies.map(|body| body.bytes).max().unwrap_or(0);
        require_limit(
            "bytes of one payload",
            largest as usize,
            limits::PAYLOAD_BYTES_MAX as usize,
        )?;
        Ok(Record::seal(RecordContent {
            v: RECORD_VERSION,
            session: self.state.session,
            seq: self.seq,
            at: self.at,
            principal: self.ctx.actor.principal,
            command,
            events: self.events,
            prev_hash: self.state.head,
        }))
    }
}

/// Refuses a count beyond a limit.
pub(super) fn require_limit(
    limit: &'static str,
    found: usize,
    max: usize,
) -> Result<(), Rejection> {
    if found <= max {
        Ok(())
    } else {
        Err(Rejection::Limit {
            limit,
            max: max as u64,
        })
    }
}
