//! Names, and the shapes that the core gives to the things of the reference: what an engine would
//! load for a command, and the state that the core should be in.

use std::sync::Arc;

use statehold_core::command::{Command, DecidedHold, LoadedFacts, Past};
use statehold_core::hold::{Hold, HoldKind};
use statehold_core::ids::{HoldId, ItemId, RequestId, TaskId};
use statehold_core::record::{Event, Record};
use statehold_core::request::{AskedAbout, Continuation, LiveRequest, OpenCall};
use statehold_core::session::SessionState;
use statehold_core::task::{ParentLink, Task};

use super::{KnownHold, KnownMark, World};

impl World {
    /// The place of a task.
    pub fn task_named(&self, id: TaskId) -> Option<usize> {
        self.tasks.iter().position(|task| task.id == Some(id))
    }

    /// The place of a request.
    pub fn request_named(&self, id: RequestId) -> Option<usize> {
        self.requests
            .iter()
            .position(|request| request.id == Some(id))
    }

    /// The place of a hold.
    pub fn hold_named(&self, id: HoldId) -> Option<usize> {
        self.holds.iter().position(|hold| hold.id == Some(id))
    }

    /// The place of an item.
    pub fn item_named(&self, id: ItemId) -> Option<usize> {
        self.items.iter().position(|item| item.id == Some(id))
    }

    /// Learns the ids that the core gave to new things. Aliases and item numbers tell which is
    /// which, so both sides must have counted alike.
    ///
    /// # Errors
    ///
    /// Says which new thing of the record is not known here, or has an id already.
    pub fn learn(&mut self, record: &Record) -> Result<(), String> {
        for event in &record.content.events {
            match event {
                Event::TaskOpened { task, number, .. } => {
                    let known = place(*number).and_then(|at| self.tasks.get_mut(at));
                    name(known.map(|known| &mut known.id), *task)?;
                }
                Event::RequestStarted {
                    request, number, ..
                } => {
                    let known = place(*number).and_then(|at| self.requests.get_mut(at));
                    name(known.map(|known| &mut known.id), *request)?;
                }
                Event::ItemsAppended { items, .. } => {
                    for item in items {
                        let known = place(item.seq).and_then(|at| self.items.get_mut(at));
                        name(known.map(|known| &mut known.id), item.id)?;
                    }
                }
                Event::HoldOpened {
                    hold,
                    number,
                    request,
                    ..
                } => {
                    let request = self.request_named(*request);
                    let known = self
                        .holds
                        .iter_mut()
                        .find(|known| Some(known.request) == request && known.number == *number);
                    name(known.map(|known| &mut known.id), *hold)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The state that the core should be in. The session's id and the head of the chain are taken
    /// from `like`: they say nothing about the world.
    ///
    /// # Panics
    ///
    /// If an id was not learned from its record.
    pub fn expected(&self, like: &SessionState) -> SessionState {
        let open_tasks = (0..self.tasks.len()).filter(|task| self.tasks[*task].closed.is_none());
        let requests = (0..self.requests.len()).filter(|request| self.is_live(*request));
        let holds = self.holds.iter().filter(|hold| hold.decided.is_none());
        SessionState {
            session: like.session,
            revision: self.revision,
            head: like.head,
            last_at: self.last_at,
            owner: self.owner.clone(),
            closed: self.closed,
            deleted: self.deleted,
            ttl: self.life.map(|(ttl, _)| ttl),
            expires_at: self.expires_at(),
            hidden_ttl_ms: self.hidden_life,
            hidden_expires_at: self.hidden_expires_at(),
            tasks_opened: self.tasks.len() as u64,
            requests_started: self.requests.len() as u64,
            items_appended: self.items.len() as u64,
            tasks: Arc::new(
                open_tasks
                    .map(|at| (self.task_id(at), self.task(at)))
                    .collect(),
            ),
            requests: Arc::new(
                requests
                    .map(|at| (self.request_id(at), self.request(at)))
                    .collect(),
            ),
            holds: Arc::new(
                holds
                    .map(|hold| self.hold(hold))
                    .map(|hold| (hold.id, hold))
                    .collect(),
            ),
            keys: Arc::new(self.keys_at(self.revision)),
            memories: Arc::new(self.memories_at(self.revision)),
        }
    }

    /// The id of a task.
    ///
    /// # Panics
    ///
    /// If no record told it.
    pub fn task_id(&self, task: usize) -> TaskId {
        self.tasks[task]
            .id
            .expect("a record told the id of the task")
    }

    /// The id of a request.
    ///
    /// # Panics
    ///
    /// If no record told it.
    pub fn request_id(&self, request: usize) -> RequestId {
        self.requests[request]
            .id
            .expect("a record told the id of the request")
    }

    fn item_id(&self, item: usize) -> ItemId {
        self.items[item]
            .id
            .expect("a record told the id of the item")
    }

    fn task(&self, task: usize) -> Task {
        let known = &self.tasks[task];
        let mut requests = self
            .requests
            .iter()
            .rev()
            .filter(|request| request.task == task);
        Task {
            id: self.task_id(task),
            number: task as u64 + 1,
            agent: known.agent.clone(),
            path: self.path(task),
            parent: known.spawned_by.map(|request| ParentLink {
                task: self.task_id(self.requests[request].task),
                request: self.request_id(request),
            }),
            status: self.task_status(task),
            live: self
                .live_request_of(task)
                .map(|request| self.request_id(request)),
            last_outcome: requests.find_map(|request| request.ended),
            failed: known.failed.map(|request| self.request_id(request)),
            close_on: known.close_on,
            opened_at: known.opened_at,
        }
    }

    fn request(&self, request: usize) -> LiveRequest {
        let known = &self.requests[request];
        let children = self.live_children(request);
        let holds = self.open_holds(request);
        let opened = self
            .holds
            .iter()
            .filter(|hold| hold.request == request)
            .count();
        LiveRequest {
            id: self.request_id(request),
            number: request as u64 + 1,
            started_by: known.started_by,
            starters: self.starters(request),
            task: self.task_id(known.task),
            parent: known.parent.map(|parent| self.request_id(parent)),
            depth: u16::try_from(self.depth(request)).expect("the tree is not that deep"),
            status: self.request_status(request),
            fence: self.fence(request),
            lease: self.lease(request).copied(),
            last_worker: known.leases.last().map(|lease| lease.worker),
            children: children
                .iter()
                .map(|child| self.request_id(*child))
                .collect(),
            holds: holds
                .iter()
                .filter_map(|hold| self.holds[*hold].id)
                .collect(),
            holds_opened: u32::try_from(opened).expect("there are not that many holds"),
            calls: self
                .open_calls(request)
                .into_iter()
                .map(|call| self.call(call))
                .collect(),
            ran: self.has_run(request),
            memory: self
                .memories_at(self.requests[self.first_attempt(request)].started_by - 1)
                .remove(&self.path(known.task)),
        }
    }

    /// The facts of the failed request that the request of a command continues.
    fn continued_by(&self, command: &Command) -> Option<Continuation> {
        let Command::StartRequest(start) = command else {
            return None;
        };
        let id = start.continues?;
        let failed = self.request_named(id)?;
        let LiveRequest { memory, ran, .. } = self.request(failed);
        Some(Continuation {
            memory,
            ran,
            request: id,
        })
    }

    fn call(&self, call: usize) -> (ItemId, OpenCall) {
        let Some(KnownMark::Call { idempotent, gated }) = self.items[call].mark else {
            unreachable!("only calls are open calls");
        };
        let state = self.call_state(call);
        let digest = self.approved_digest(call);
        let approval = self
            .holds
            .iter()
            .find(|hold| hold.call == Some(call) && hold.kind == HoldKind::Approval);
        let asked = approval.map(|hold| AskedAbout {
            decide_by: hold.decide_by.clone(),
            effect: hold.effect,
            policy: hold.policy,
            risk: hold.risk,
        });
        (
            self.item_id(call),
            OpenCall {
                idempotent,
                gated,
                state,
                digest,
                asked,
            },
        )
    }

    fn hold(&self, known: &KnownHold) -> Hold {
        Hold {
            id: known.id.expect("a record told the id of the hold"),
            number: known.number,
            request: self.request_id(known.request),
            task: self.task_id(self.requests[known.request].task),
            opened_at: known.opened_at,
            kind: known.kind,
            body: known.body,
            call: known.call.map(|call| self.item_id(call)),
            digest: known.digest,
            allowed: known.allowed.clone(),
            need: known.need,
            decide_by: known.decide_by.clone(),
            opened_by: known.opened_by,
            starters: self.starters(known.request),
            effect: known.effect,
            risk: known.risk,
            policy: known.policy,
            deadline: known.deadline,
            on_expiry: known.on_expiry,
            votes: known.votes.iter().copied().collect(),
        }
    }

    /// The finished things that a command names, as an engine would load them.
    pub fn loaded_for(&self, command: &Command) -> LoadedFacts {
        let (mut hold, mut request, mut task, mut past) = (None, None, None, None);
        match command {
            Command::StartRequest(start) => {
                task = start.task;
                request = start.parent.map(|by| by.request);
            }
            Command::ClaimRequest { request: named, .. }
            | Command::LapseLease { request: named }
            | Command::RaiseFence { request: named }
            | Command::CancelRequest { request: named } => request = Some(*named),
            Command::ReleaseLease { by }
            | Command::AppendItems { by, .. }
            | Command::CompleteRequest { by, .. }
            | Command::FailRequest { by, .. } => request = Some(by.request),
            Command::OpenHold { by, hold: new, .. } => {
                request = Some(by.request);
                hold = Some(new.id);
            }
            Command::PutState { by, .. } => request = by.map(|by| by.request),
            Command::DecideHold { hold: named, .. } | Command::ExpireHold { hold: named } => {
                hold = Some(*named);
            }
            Command::CloseTask { task: named } | Command::CancelTask { task: named } => {
                task = Some(*named);
            }
            Command::Rewind { to } => past = Some(*to),
            Command::CreateSession { .. }
            | Command::PatchSession { .. }
            | Command::RecordTurn(_)
            | Command::CloseSession { .. }
            | Command::ExpireSession
            | Command::EraseHidden
            | Command::DeleteSession
            | Command::Fork { .. } => {}
        }
        let past = past.filter(|to| (1..self.revision).contains(to));
        LoadedFacts {
            continued: self.continued_by(command),
            hold: hold.and_then(|id| self.decided_hold(id)),
            request: request
                .and_then(|id| Some((id, self.requests[self.request_named(id)?].ended?))),
            task: task.filter(|id| {
                self.task_named(*id)
                    .is_some_and(|task| self.tasks[task].closed.is_some())
            }),
            past: past.map(|to| Past {
                items_appended: self.items_at(to),
                keys: self.keys_at(to),
                memories: Arc::new(self.memories_kept(to)),
            }),
            ..LoadedFacts::default()
        }
    }

    fn decided_hold(&self, id: HoldId) -> Option<DecidedHold> {
        let known = &self.holds[self.hold_named(id)?];
        let (decision, revision) = known.decided?;
        Some(DecidedHold {
            hold: self.hold(known),
            decision,
            revision,
        })
    }
}

/// The index in its list of the object with this number.
fn place(number: u64) -> Option<usize> {
    usize::try_from(number).ok()?.checked_sub(1)
}

fn name<T: PartialEq + Copy + std::fmt::Debug>(
    known: Option<&mut Option<T>>,
    id: T,
) -> Result<(), String> {
    match known {
        None => Err(format!(
            "{id:?} is new to the core and unknown to the reference"
        )),
        Some(Some(other)) if *other != id => Err(format!("{id:?} was {other:?} before")),
        Some(known) => {
            *known = Some(id);
            Ok(())
        }
    }
}
