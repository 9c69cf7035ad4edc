//! The tree of a session: tasks, their requests, the tasks those started. Built from the newest
//! records, so a long session costs as much as a short one.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::request::{LiveRequest, RequestOutcome, RequestStatus};
use statehold_core::session::SessionState;
use statehold_core::task::TaskStatus;
use statehold_core::time::Timestamp;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::holds::payload;

/// How many records are read at a time, going back.
const STEP: u64 = 200;

/// The tree.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The revision it was read at.
    pub revision: u64,
    /// Root tasks, in the order of their numbers.
    pub tasks: Vec<TreeTask>,
    /// Earlier requests end before this revision, if there are any.
    pub before: Option<u64>,
}

/// A task in the tree, with the requests that were started under one parent.
#[derive(Debug, Clone)]
pub struct TreeTask {
    /// The id.
    pub id: TaskId,
    /// The n of its alias.
    pub number: u64,
    /// Its agent.
    pub agent: Name,
    /// Its status.
    pub status: TaskStatus,
    /// The request under which it is shown.
    pub parent: Option<RequestId>,
    /// Its requests there.
    pub requests: Vec<TreeRequest>,
}

/// A request in the tree.
#[derive(Debug, Clone)]
pub struct TreeRequest {
    /// The id.
    pub id: RequestId,
    /// The n of its alias.
    pub number: u64,
    /// What it does, or how it ended.
    pub status: RequestStatus,
    /// Its holds.
    pub holds: Vec<TreeHold>,
    /// Tasks that it used.
    pub tasks: Vec<TreeTask>,
}

/// A hold in the tree.
#[derive(Debug, Clone)]
pub struct TreeHold {
    /// The id.
    pub id: HoldId,
    /// The n of its alias.
    pub number: u32,
    /// What is asked for.
    pub kind: HoldKind,
    /// How it is.
    pub status: HoldStatus,
    /// Title, message, action: as it was opened.
    pub body: Option<Vec<u8>>,
    /// When it expires.
    pub deadline: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Seen {
    number: u64,
    task: TaskId,
    parent: Option<RequestId>,
    outcome: Option<RequestOutcome>,
    holds: Vec<TreeHold>,
}

impl Engine {
    /// The newest `limit` requests of a session and what is live, as a tree; going back from `before`.
    ///
    /// # Errors
    ///
    /// If the caller may not read the session.
    pub async fn tree(
        &self,
        caller: &Caller,
        session: SessionId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Tree, EngineError> {
        let summary = self.readable(caller, session).await?;
        let state = self.durable_state(summary.id).await?;
        let mut requests: BTreeMap<RequestId, Seen> = BTreeMap::new();
        let mut last = before.map_or(state.revision, |before| {
            before.saturating_sub(1).min(state.revision)
        });
        let mut decided: BTreeMap<HoldId, HoldStatus> = BTreeMap::new();
        let mut ended: BTreeMap<RequestId, RequestOutcome> = BTreeMap::new();
        let mut opened: BTreeMap<RequestId, Vec<TreeHold>> = BTreeMap::new();
        // A page ends between two records: whatever a record started is shown together.
        'back: while last > 0 {
            let first = last.saturating_sub(STEP);
            let count = usize::try_from(last - first).unwrap_or(usize::MAX);
            let records = self.inner().store.records(session, first, count).await?;
            for stored in records.iter().rev() {
                if requests.len() >= limit {
                    break 'back;
                }
                last = stored.record.content.seq - 1;
                for event in stored.record.content.events.iter().rev() {
                    match event {
                        Event::RequestEnded {
                            request, outcome, ..
                        } => {
                            ended.entry(*request).or_insert(*outcome);
                        }
                        Event::HoldDecided { hold, decision, .. } => {
                            decided.entry(*hold).or_insert(decision.status);
                        }
                        Event::HoldOpened {
                            hold,
                            request,
                            kind,
                            number,
                            body,
                            deadline,
                            ..
                        } => {
                            let status = decided.get(hold).copied().unwrap_or(HoldStatus::Open);
                            opened.entry(*request).or_default().push(TreeHold {
                                id: *hold,
                                number: *number,
                                kind: *kind,
                                status,
                                body: payload(Some(stored), *body),
                                deadline: *deadline,
                            });
                        }
                        Event::RequestStarted {
                            request,
                            number,
                            task,
                            parent,
                        } => {
                            let mut holds = opened.remove(request).unwrap_or_default();
                            holds.sort_by_key(|hold| hold.number);
                            let seen = Seen {
                                number: *number,
                                task: *task,
                                parent: *parent,
                                outcome: ended.get(request).copied(),
                                holds,
                            };
                            requests.insert(*request, seen);
                        }
                        _ => {}
                    }
                }
            }
            last = last.min(first);
        }
        let before = (last > 0).then_some(last + 1);
        self.add_live(&state, &mut requests, &opened).await?;
        self.add_ancestors(&state, &mut requests).await?;
        let tasks = self.nest(&state, &requests).await?;
        Ok(Tree {
            revision: state.revision,
            tasks,
            before,
        })
    }

    /// What is live is always shown, however long ago it began.
    async fn add_live(
        &self,
        state: &SessionState,
        requests: &mut BTreeMap<RequestId, Seen>,
        opened: &BTreeMap<RequestId, Vec<TreeHold>>,
    ) -> Result<(), EngineError> {
        let is_missing = |live: &&LiveRequest| !requests.contains_key(&live.id);
        let missing: Vec<&LiveRequest> = state.requests.values().filter(is_missing).collect();
        let open = |live: &LiveRequest| {
            let holds = state.holds.values();
            let request = live.id;
            holds.filter(move |hold| hold.request == request)
        };
        let places = missing.iter().flat_map(|live| open(live));
        let places = places.map(|hold| (state.session, hold.opened_at));
        let records = self.records_of(places.collect()).await?;
        for live in missing {
            let mut holds: BTreeMap<u32, TreeHold> = open(live)
                .map(|hold| {
                    let record = records.get(&(state.session, hold.opened_at));
                    let shown = TreeHold {
                        id: hold.id,
                        number: hold.number,
                        kind: hold.kind,
                        status: HoldStatus::Open,
                        body: payload(record, hold.body),
                        deadline: hold.deadline,
                    };
                    (hold.number, shown)
                })
                .collect();
            for hold in opened.get(&live.id).into_iter().flatten() {
                holds.insert(hold.number, hold.clone());
            }
            let seen = Seen {
                number: live.number,
                task: live.task,
                parent: live.parent,
                outcome: None,
                holds: holds.into_values().collect(),
            };
            requests.insert(live.id, seen);
        }
        Ok(())
    }

    /// A request is shown under its parent, so the parents of what is shown are shown too.
    async fn add_ancestors(
        &self,
        state: &SessionState,
        requests: &mut BTreeMap<RequestId, Seen>,
    ) -> Result<(), EngineError> {
        loop {
            let missing: BTreeSet<RequestId> = requests
                .values()
                .filter_map(|seen| seen.parent)
                .filter(|parent| !requests.contains_key(parent))
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            for id in missing {
                let seen = if let Some(live) = state.requests.get(&id) {
                    Seen {
                        number: live.number,
                        task: live.task,
                        parent: live.parent,
                        outcome: None,
                        holds: Vec::new(),
                    }
                } else {
                    let ended = self.inner().store.ended_request(id).await?;
                    let ended = ended.ok_or(EngineError::NotFound)?;
                    Seen {
                        number: ended.number,
                        task: ended.task,
                        parent: ended.parent,
                        outcome: Some(ended.outcome),
                        holds: Vec::new(),
                    }
                };
                requests.insert(id, seen);
            }
        }
    }

    async fn nest(
        &self,
        state: &SessionState,
        requests: &BTreeMap<RequestId, Seen>,
    ) -> Result<Vec<TreeTask>, EngineError> {
        let mut known: BTreeMap<TaskId, (u64, Name, TaskStatus, bool)> = state
            .tasks
            .values()
            .map(|task| {
                let is_root = task.parent.is_none();
                (
                    task.id,
                    (task.number, task.agent.clone(), task.status, is_root),
                )
            })
            .collect();
        for seen in requests.values() {
            if !known.contains_key(&seen.task) {
                let closed = self.inner().store.closed_task(seen.task).await?;
                let closed = closed.ok_or(EngineError::NotFound)?;
                let (task, status) = (closed.task, closed.status);
                let is_root = task.parent.is_none();
                known.insert(task.id, (task.number, task.agent, status, is_root));
            }
        }
        let mut by_parent: BTreeMap<Option<RequestId>, BTreeMap<u64, TaskId>> = BTreeMap::new();
        for seen in requests.values() {
            let number = known[&seen.task].0;
            let shown = by_parent.entry(seen.parent).or_default();
            shown.insert(number, seen.task);
        }
        // Root tasks without a request in this page are shown all the same.
        for (id, (number, _, _, is_root)) in &known {
            if *is_root {
                by_parent.entry(None).or_default().insert(*number, *id);
            }
        }
        let builder = Builder {
            known: &known,
            requests,
            state,
            by_parent: &by_parent,
        };
        Ok(builder.tasks_under(None))
    }
}

/// Puts the pieces together. Depth is bounded by how deep agents may call agents.
struct Builder<'a> {
    known: &'a BTreeMap<TaskId, (u64, Name, TaskStatus, bool)>,
    requests: &'a BTreeMap<RequestId, Seen>,
    state: &'a SessionState,
    by_parent: &'a BTreeMap<Option<RequestId>, BTreeMap<u64, TaskId>>,
}

impl Builder<'_> {
    fn tasks_under(&self, parent: Option<RequestId>) -> Vec<TreeTask> {
        let tasks = self.by_parent.get(&parent).into_iter().flatten();
        tasks
            .map(|(number, id)| {
                let (_, agent, status, _) = &self.known[id];
                TreeTask {
                    id: *id,
                    number: *number,
                    agent: agent.clone(),
                    status: *status,
                    parent,
                    requests: self.requests_of(*id, parent),
                }
            })
            .collect()
    }

    fn requests_of(&self, task: TaskId, parent: Option<RequestId>) -> Vec<TreeRequest> {
        let mut found: Vec<(&RequestId, &Seen)> = self
            .requests
            .iter()
            .filter(|(_, seen)| seen.task == task && seen.parent == parent)
            .collect();
        found.sort_by_key(|(_, seen)| seen.number);
        found
            .into_iter()
            .map(|(id, seen)| TreeRequest {
                id: *id,
                number: seen.number,
                status: status_of(self.state, *id, seen.outcome),
                holds: seen.holds.clone(),
                tasks: self.tasks_under(Some(*id)),
            })
            .collect()
    }
}

fn status_of(
    state: &SessionState,
    id: RequestId,
    outcome: Option<RequestOutcome>,
) -> RequestStatus {
    match (state.requests.get(&id), outcome) {
        (Some(live), _) => live.status.into(),
        (None, Some(outcome)) => outcome.into(),
        (None, None) => RequestStatus::Completed,
    }
}
