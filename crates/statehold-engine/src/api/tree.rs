//! The tree of a session: tasks, their requests, and the child tasks of those. It is built from the newest
//! records, so a page costs the same in a long session as in a short one.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use statehold_core::digest::BodyRef;
use statehold_core::hold::HoldStatus;
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::record::{Event, Record};
use statehold_core::request::{LiveRequest, RequestOutcome, RequestStatus};
use statehold_core::session::SessionState;
use statehold_core::task::{Task, TaskStatus};
use statehold_store::{HoldSummary, PageLimit};
use utoipa::ToSchema;

use super::hold::{HoldRef, shown_title, title_in, title_of};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::people::sees_names;

/// Number of records read at a time, backwards.
const STEP: u64 = 64;

/// The tree of a session. A reused task is shown under each request that used it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Tree)]
pub struct TreeView {
    pub session_id: SessionId,
    pub revision: u64,
    pub tasks: Vec<TreeTaskView>,
    /// The value of `before` for the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// A task in the tree.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = TreeTask)]
pub struct TreeTaskView {
    pub id: TaskId,
    pub alias: String,
    pub agent: Name,
    pub status: TaskStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_request_id: Option<RequestId>,
    pub requests: Vec<TreeRequestView>,
}

/// A request in the tree.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = TreeRequest)]
pub struct TreeRequestView {
    pub id: RequestId,
    pub alias: String,
    pub status: RequestStatus,
    pub holds: Vec<HoldRef>,
    #[schema(no_recursion)]
    pub tasks: Vec<TreeTaskView>,
}

/// A request that the tree shows.
#[derive(Debug, Clone)]
struct TreeEntry {
    number: u64,
    task: TaskId,
    parent: Option<RequestId>,
    /// Known for a request that is live, or whose end was read from the log.
    status: Option<RequestStatus>,
}

impl TreeEntry {
    fn live(live: &LiveRequest) -> Self {
        Self {
            number: live.number,
            task: live.task,
            parent: live.parent,
            status: Some(live.status.into()),
        }
    }
}

/// The newest `limit` requests of a session and all live ones, as a tree; going back from `before`.
///
/// # Errors
///
/// If the caller may not read the session.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    before: Option<u64>,
    limit: usize,
) -> Result<TreeView, EngineError> {
    engine.session(caller, session).await?;
    let state = engine.durable_state(session).await?;
    let last = before.map_or(state.revision, |before| {
        before.saturating_sub(1).min(state.revision)
    });
    let LoggedRequests {
        mut requests,
        holds,
        before,
    } = started_requests(engine, session, last, limit).await?;
    // Live requests are always shown, however long ago they began.
    for live in state.requests.values() {
        requests.insert(live.id, TreeEntry::live(live));
    }
    add_ancestors(engine, &state, &mut requests).await?;
    add_statuses(engine, &mut requests).await?;
    let tree = Tree {
        tasks: known_tasks(engine, &state, &mut requests).await?,
        holds: holds_of(engine, caller, &state, (&requests, holds)).await?,
        requests,
    };
    Ok(TreeView {
        session_id: session,
        revision: state.revision,
        tasks: tree.root_tasks(),
        before,
    })
}

/// Requests that were started in some records, with the holds that were opened there.
#[derive(Default)]
struct LoggedRequests {
    requests: BTreeMap<RequestId, TreeEntry>,
    holds: BTreeMap<HoldId, LoggedHold>,
    /// Where the next page begins.
    before: Option<u64>,
}

/// A hold as a record opened it.
struct LoggedHold {
    request: RequestId,
    opened_at: u64,
    body: Option<BodyRef>,
    shown: HoldRef,
}

/// The newest `limit` requests that were started up to a revision. A page ends between two records: all
/// that a record started is shown together.
async fn started_requests(
    engine: &Engine,
    session: SessionId,
    mut last: u64,
    limit: usize,
) -> Result<LoggedRequests, EngineError> {
    let mut started = LoggedRequests::default();
    let mut decided: BTreeMap<HoldId, HoldStatus> = BTreeMap::new();
    let mut ended: BTreeMap<RequestId, RequestOutcome> = BTreeMap::new();
    // The ids that tasks of the origin have in a fork.
    let mut renamed: BTreeMap<TaskId, TaskId> = BTreeMap::new();
    'back: while last > 0 {
        let first = last.saturating_sub(STEP);
        let count = usize::try_from(last - first).unwrap_or(usize::MAX);
        let page = PageLimit::entries(count);
        let records = engine.inner().store.chain(session, first, page).await?;
        for Record { content, .. } in records.iter().rev() {
            if started.requests.len() >= limit {
                break 'back;
            }
            last = content.seq - 1;
            for event in content.events.iter().rev() {
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
                        let shown = HoldRef {
                            id: *hold,
                            alias: format!(".h{number}"),
                            kind: *kind,
                            status: decided.get(hold).copied().unwrap_or(HoldStatus::Open),
                            title: title_of(*kind, None),
                            expires_at: deadline.map(Into::into),
                            decided_by: None,
                        };
                        let logged = LoggedHold {
                            request: *request,
                            opened_at: content.seq,
                            body: *body,
                            shown,
                        };
                        started.holds.insert(*hold, logged);
                    }
                    Event::RequestStarted {
                        request,
                        number,
                        task,
                        parent,
                        ..
                    } => {
                        let entry = TreeEntry {
                            number: *number,
                            task: renamed.get(task).copied().unwrap_or(*task),
                            parent: *parent,
                            status: ended.get(request).map(|outcome| (*outcome).into()),
                        };
                        started.requests.insert(*request, entry);
                    }
                    Event::TaskRenamed { from, to } => {
                        let to = renamed.get(to).copied().unwrap_or(*to);
                        renamed.insert(*from, to);
                    }
                    _ => {}
                }
            }
        }
        last = last.min(first);
    }
    started.before = (last > 0).then_some(last + 1);
    Ok(started)
}

/// A request is shown under its parent, so the parents of all that is shown are shown too.
async fn add_ancestors(
    engine: &Engine,
    state: &SessionState,
    requests: &mut BTreeMap<RequestId, TreeEntry>,
) -> Result<(), EngineError> {
    loop {
        let missing: BTreeSet<RequestId> = requests
            .values()
            .filter_map(|entry| entry.parent)
            .filter(|parent| !requests.contains_key(parent))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        for id in missing {
            let entry = if let Some(live) = state.requests.get(&id) {
                TreeEntry::live(live)
            } else {
                let ended = engine.inner().store.ended_request(id).await?;
                let ended = ended.ok_or(EngineError::NotFound)?;
                TreeEntry {
                    number: ended.number,
                    task: ended.task,
                    parent: ended.parent,
                    status: Some(ended.outcome.into()),
                }
            };
            requests.insert(id, entry);
        }
    }
}

/// Requests of an older page may have ended in records that the page does not read.
async fn add_statuses(
    engine: &Engine,
    requests: &mut BTreeMap<RequestId, TreeEntry>,
) -> Result<(), EngineError> {
    for (id, entry) in requests {
        if entry.status.is_none() {
            let ended = engine.inner().store.ended_request(*id).await?;
            entry.status = ended.map(|ended| ended.outcome.into());
        }
    }
    Ok(())
}

/// All holds that the requests ever opened, each as it is now. The log knows the holds that a fork has
/// inherited; all others are read from the store, because an older page does not read the records that
/// decided them.
async fn holds_of(
    engine: &Engine,
    caller: &Caller,
    state: &SessionState,
    (requests, mut logged): (
        &BTreeMap<RequestId, TreeEntry>,
        BTreeMap<HoldId, LoggedHold>,
    ),
) -> Result<BTreeMap<RequestId, Vec<HoldRef>>, EngineError> {
    let ids = requests.keys().copied().collect();
    let mut rows = engine.inner().store.held_by(ids).await?;
    rows.retain(|row| row.session.id == state.session);
    for row in &rows {
        logged.remove(&row.hold.id);
    }
    let inherited = logged.values().map(|hold| (hold.opened_at, hold.body));
    let own = rows.iter().map(|row| (row.hold.opened_at, row.hold.body));
    let wanted = own.chain(inherited);
    let wanted = wanted.map(|(at, body)| (state.session, at, body));
    let titles = engine.read_payloads(wanted.collect(), title_in).await?;
    let title = |kind, place: (u64, Option<BodyRef>)| {
        let title = titles.get(&(state.session, place.0, place.1)).cloned();
        shown_title(kind, title.unwrap_or_default())
    };
    let mut holds: BTreeMap<HoldId, (RequestId, HoldRef)> = BTreeMap::new();
    for (id, mut hold) in logged {
        hold.shown.title = title(hold.shown.kind, (hold.opened_at, hold.body));
        if hold.shown.status == HoldStatus::Open && !state.holds.contains_key(&id) {
            hold.shown.status = HoldStatus::Cancelled;
        }
        holds.insert(id, (hold.request, hold.shown));
    }
    let deciders = rows.iter().filter_map(|row| Some(row.decision?.0.by));
    let names = engine.names_for(caller, deciders).await?;
    for HoldSummary { hold, decision, .. } in rows {
        let decision = decision.map(|(decision, _)| decision);
        let title = title(hold.kind, (hold.opened_at, hold.body));
        let mut shown = HoldRef::new(&hold, decision, title);
        shown.decided_by = decision
            .filter(|_| sees_names(caller, false))
            .map(|decision| names.of(&decision.by));
        holds.insert(hold.id, (hold.request, shown));
    }
    let mut by_request: BTreeMap<RequestId, Vec<HoldRef>> = BTreeMap::new();
    for (request, mut hold) in holds.into_values() {
        if let Some(entry) = requests.get(&request) {
            hold.alias = format!("R{}{}", entry.number, hold.alias);
            by_request.entry(request).or_default().push(hold);
        }
    }
    Ok(by_request)
}

/// All open tasks, and the closed ones that the requests belong to. An older page of a fork does not read which
/// task of the fork an open task of the origin became; it is found by its number.
async fn known_tasks(
    engine: &Engine,
    state: &SessionState,
    requests: &mut BTreeMap<RequestId, TreeEntry>,
) -> Result<BTreeMap<TaskId, (Task, TaskStatus)>, EngineError> {
    let open = state.tasks.keys().copied();
    let ids: BTreeSet<TaskId> = open
        .chain(requests.values().map(|entry| entry.task))
        .collect();
    let mut known = BTreeMap::new();
    for id in ids {
        match engine.find_task(state, id).await {
            Ok(task) => drop(known.insert(id, task)),
            Err(EngineError::NotFound) => {
                let own = inherited_task(engine, state, id).await?;
                requests.retain(|_, entry| entry.task != id || own.is_some());
                for entry in requests.values_mut().filter(|entry| entry.task == id) {
                    entry.task = own.unwrap_or(id);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(known)
}

/// The task of a fork that was an open task of its origin.
async fn inherited_task(
    engine: &Engine,
    state: &SessionState,
    id: TaskId,
) -> Result<Option<TaskId>, EngineError> {
    let Ok(origin) = engine.session_of_task(id).await else {
        return Ok(None);
    };
    let origin = engine.durable_state(origin).await?;
    let number = origin.tasks.get(&id).map(|task| task.number);
    let mut own = state.tasks.values();
    Ok(own
        .find(|task| Some(task.number) == number)
        .map(|task| task.id))
}

/// The parts of a tree. The limit on nested agent calls bounds its depth.
struct Tree {
    tasks: BTreeMap<TaskId, (Task, TaskStatus)>,
    requests: BTreeMap<RequestId, TreeEntry>,
    holds: BTreeMap<RequestId, Vec<HoldRef>>,
}

impl Tree {
    fn root_tasks(&self) -> Vec<TreeTaskView> {
        let mut shown: BTreeMap<Option<RequestId>, BTreeMap<u64, TaskId>> = BTreeMap::new();
        for entry in self.requests.values() {
            let number = self.tasks[&entry.task].0.number;
            let under = shown.entry(entry.parent).or_default();
            under.insert(number, entry.task);
        }
        // Show root tasks even if this page has none of their requests.
        for (task, _) in self.tasks.values() {
            if task.parent.is_none() {
                shown.entry(None).or_default().insert(task.number, task.id);
            }
        }
        self.tasks_under(None, &shown)
    }

    fn tasks_under(
        &self,
        parent: Option<RequestId>,
        shown: &BTreeMap<Option<RequestId>, BTreeMap<u64, TaskId>>,
    ) -> Vec<TreeTaskView> {
        let tasks = shown.get(&parent).into_iter().flatten();
        tasks
            .map(|(number, id)| {
                let (task, status) = &self.tasks[id];
                let mut requests: Vec<(&RequestId, &TreeEntry)> = self
                    .requests
                    .iter()
                    .filter(|(_, entry)| entry.task == *id && entry.parent == parent)
                    .collect();
                requests.sort_by_key(|(_, entry)| entry.number);
                let requests = requests.into_iter().map(|(id, entry)| TreeRequestView {
                    id: *id,
                    alias: format!("R{}", entry.number),
                    status: entry.status.unwrap_or(RequestStatus::Completed),
                    holds: self.holds.get(id).cloned().unwrap_or_default(),
                    tasks: self.tasks_under(Some(*id), shown),
                });
                TreeTaskView {
                    id: *id,
                    alias: format!("T{number}"),
                    agent: task.agent.clone(),
                    status: *status,
                    parent_request_id: parent,
                    requests: requests.collect(),
                }
            })
            .collect()
    }
}
