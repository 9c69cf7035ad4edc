//! The changes that a record makes to the tables that stores keep beside the log.
//!
//! Open tasks, live requests, open holds and key versions are the snapshot from which a session is
//! loaded; ended requests and decided holds are found by id. All of it is a function of the log, so
//! `statehold check` can compute it again and compare.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::apply::{apply_event, end_record};
use crate::command::DecidedHold;
use crate::hold::{Decision, Hold};
use crate::ids::{HoldId, RequestId, TaskId};
use crate::memory::{AgentPath, Memory};
use crate::name::Name;
use crate::record::{Event, Record};
use crate::request::{Continuation, LiveRequest, RequestOutcome};
use crate::session::SessionState;
use crate::task::{Task, TaskStatus};
use crate::time::Timestamp;

/// The stored row of an ended request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedRequest {
    /// The id.
    pub id: RequestId,
    /// The n of the alias `Rn`.
    pub number: u64,
    /// The task it belonged to.
    pub task: TaskId,
    /// The request that waited for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RequestId>,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// The memory that it had from its start to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Whether a tool ran for it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ran: bool,
    /// Whether a tool call of it may have run without a result.
    #[serde(default, skip_serializing_if = "is_false")]
    pub left_calls: bool,
    /// The record that started it.
    pub started_by: u64,
    /// The record that ended it.
    pub ended_by: u64,
    /// When it ended.
    pub ended_at: Timestamp,
}

impl EndedRequest {
    /// The facts that a request takes over which continues this one. None if it did not fail, or a tool call of it
    /// may have run without a result.
    pub fn continuation(&self) -> Option<Continuation> {
        let can_go_on = self.outcome == RequestOutcome::Failed && !self.left_calls;
        can_go_on.then_some(Continuation {
            memory: self.memory,
            ran: self.ran,
            request: self.id,
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

/// An exchange that a record ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedExchange {
    /// The path whose memory it is in.
    pub path: AgentPath,
    /// The request, and the task whose history has its items.
    pub request: RequestId,
    /// The task.
    pub task: TaskId,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// The record that started it.
    pub started_by: u64,
    /// The memory of the path before it.
    pub before: Option<Memory>,
}

/// The stored row of a final task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClosedTask {
    /// The task as it was.
    pub task: Task,
    /// Its final status.
    pub status: TaskStatus,
    /// The record that closed it.
    pub closed_by: u64,
}

/// The stored row of a decided hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClosedHold {
    /// The hold as it was, with its votes.
    pub hold: Hold,
    /// The decision that stands.
    pub decision: Decision,
    /// The record that decided it.
    pub decided_by: u64,
}

impl From<ClosedHold> for DecidedHold {
    fn from(closed: ClosedHold) -> Self {
        Self {
            hold: closed.hold,
            decision: closed.decision,
            revision: closed.decided_by,
        }
    }
}

/// The rows that one record changes. Unchanged rows are not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Open tasks that are new or different.
    pub open_tasks: Vec<Task>,
    /// Tasks that are final now.
    pub closed_tasks: Vec<ClosedTask>,
    /// Tasks that a fork gave new ids: old, new.
    pub renamed_tasks: Vec<(TaskId, TaskId)>,
    /// Live requests that are new or different, with their agent.
    pub live_requests: Vec<(LiveRequest, Name)>,
    /// Requests that have ended now.
    pub ended_requests: Vec<EndedRequest>,
    /// Open holds that are new or different.
    pub open_holds: Vec<Hold>,
    /// Holds that are decided now.
    pub closed_holds: Vec<ClosedHold>,
    /// Exchanges that have ended now, in order.
    pub exchanges: Vec<EndedExchange>,
    /// Memories that are different now, or gone.
    pub memories: Vec<(AgentPath, Option<Memory>)>,
}

/// Folds a record, and lists the rows that it changes. Returns the state after it.
pub fn project(before: &SessionState, record: &Record) -> (SessionState, Changes) {
    let content = &record.content;
    let mut changes = Changes::default();
    let mut after = before.clone();
    let mut touched = Touched::default();
    for event in &content.events {
        touched.note(event);
        match event {
            Event::RequestEnded {
                request, outcome, ..
            } => {
                if let Some(live) = after.requests.get(request) {
                    touched.note_request(live);
                    changes.ended_requests.push(EndedRequest {
                        id: live.id,
                        number: live.number,
                        task: live.task,
                        parent: live.parent,
                        outcome: *outcome,
                        memory: live.memory,
                        ran: live.ran,
                        left_calls: !live.calls.is_empty(),
                        started_by: live.started_by,
                        ended_by: content.seq,
                        ended_at: content.at,
                    });
                    if let Some(task) = after.tasks.get(&live.task)
                        && live.is_exchange(*outcome)
                    {
                        changes.exchanges.push(EndedExchange {
                            path: task.path.clone(),
                            request: live.id,
                            task: live.task,
                            outcome: *outcome,
                            started_by: live.started_by,
                            before: after.memories.get(&task.path).copied(),
                        });
                    }
                }
            }
            Event::TaskClosed { task, status } => {
                if let Some(task) = after.tasks.get(task) {
                    let (task, status) = (task.clone(), *status);
                    changes.closed_tasks.push(ClosedTask {
                        task,
                        status,
                        closed_by: content.seq,
                    });
                }
            }
            Event::Rewound { .. } => touched.tasks.extend(after.tasks.keys()),
            Event::TaskRenamed { from, to } => {
                changes.renamed_tasks.push((*from, *to));
                touched.tasks.extend(after.tasks.keys());
            }
            Event::HoldDecided { hold, decision, .. } => {
                if let Some(hold) = after.holds.get(hold) {
                    let (hold, decision) = (hold.clone(), *decision);
                    changes.closed_holds.push(ClosedHold {
                        hold,
                        decision,
                        decided_by: content.seq,
                    });
                }
            }
            _ => {}
        }
        apply_event(&mut after, event, content.seq, content.principal);
        if let Event::RequestStarted { request, .. } = event
            && let Some(live) = after.requests.get(request)
        {
            touched.note_request(live);
        }
    }
    end_record(&mut after, record);
    touched.list(before, &after, &mut changes);
    let ended = changes.exchanges.iter().map(|ended| &ended.path);
    let restored = content.events.iter().filter_map(restored_path);
    let paths: BTreeSet<_> = restored.chain(ended).collect();
    let memories = paths.into_iter().filter_map(|path| {
        let now = after.memories.get(path);
        (before.memories.get(path) != now).then(|| (path.clone(), now.copied()))
    });
    changes.memories = memories.collect();
    (after, changes)
}

fn restored_path(event: &Event) -> Option<&AgentPath> {
    match event {
        Event::MemoryRestored { path, .. } => Some(path),
        _ => None,
    }
}

/// The things that the events of a record may have changed.
#[derive(Default)]
struct Touched {
    tasks: BTreeSet<TaskId>,
    requests: BTreeSet<RequestId>,
    holds: BTreeSet<HoldId>,
}

impl Touched {
    fn note(&mut self, event: &Event) {
        match event {
            Event::TaskOpened { task, .. } | Event::TaskStatusChanged { task, .. } => {
                self.tasks.insert(*task);
            }
            Event::TaskRenamed { to, .. } => {
                self.tasks.insert(*to);
            }
            Event::RequestStarted { request, task, .. } => {
                self.requests.insert(*request);
                self.tasks.insert(*task);
            }
            Event::RequestLeased { request, .. }
            | Event::LeaseLapsed { request }
            | Event::FenceRaised { request, .. }
            | Event::LeaseReleased { request }
            | Event::RequestStatusChanged { request, .. }
            | Event::ItemsAppended { request, .. } => {
                self.requests.insert(*request);
            }
            Event::HoldOpened { hold, request, .. } | Event::HoldDecided { hold, request, .. } => {
                self.holds.insert(*hold);
                self.requests.insert(*request);
            }
            Event::VoteRecorded { hold, .. } => {
                self.holds.insert(*hold);
            }
            _ => {}
        }
    }

    /// A request that begins or ends changes its task and the request that waits for it.
    fn note_request(&mut self, live: &LiveRequest) {
        self.tasks.insert(live.task);
        self.requests.extend(live.parent);
    }

    fn list(self, before: &SessionState, after: &SessionState, changes: &mut Changes) {
        for task in self.tasks.iter().filter_map(|id| after.tasks.get(id)) {
            if before.tasks.get(&task.id) != Some(task) {
                changes.open_tasks.push(task.clone());
            }
        }
        for live in self.requests.iter().filter_map(|id| after.requests.get(id)) {
            if before.requests.get(&live.id) != Some(live)
                && let Some(task) = after.tasks.get(&live.task)
            {
                changes
                    .live_requests
                    .push((live.clone(), task.agent.clone()));
            }
        }
        for hold in self.holds.iter().filter_map(|id| after.holds.get(id)) {
            if before.holds.get(&hold.id) != Some(hold) {
                changes.open_holds.push(hold.clone());
            }
        }
    }
}
