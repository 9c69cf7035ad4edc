//! What a session is, worked out from four things only: which request asked for which, which request
//! each hold belongs to, which of them have ended, and who has a lease. It reads what records say
//! happened and none of the statuses that they say followed from it.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::ids::{HoldId, RequestId, TaskId};
use statehold_core::record::{Event, Record};
use statehold_core::request::LiveStatus;
use statehold_core::session::{SessionState, SessionStatus};
use statehold_core::task::TaskStatus;
use statehold_core::time::Timestamp;

/// What is known of a live request.
#[derive(Debug, Clone)]
struct Known {
    task: TaskId,
    parent: Option<RequestId>,
    /// Until when its worker has it, if one does.
    leased_until: Option<Timestamp>,
    /// Whether it waited for something after the last record.
    waited: bool,
}

/// What is open, and what belongs to what.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Open tasks; whether each is the top of a tree.
    tasks: BTreeMap<TaskId, bool>,
    requests: BTreeMap<RequestId, Known>,
    holds: BTreeMap<HoldId, RequestId>,
}

impl Ledger {
    /// Writes down what a record says happened.
    pub fn note(&mut self, record: &Record) {
        for event in &record.content.events {
            match event {
                Event::TaskOpened { task, parent, .. } => {
                    self.tasks.insert(*task, parent.is_none());
                }
                Event::TaskClosed { task, .. } => {
                    self.tasks.remove(task);
                }
                Event::RequestStarted {
                    request,
                    task,
                    parent,
                    ..
                } => {
                    let known = Known {
                        task: *task,
                        parent: *parent,
                        leased_until: None,
                        waited: false,
                    };
                    self.requests.insert(*request, known);
                }
                Event::RequestEnded { request, .. } => {
                    self.requests.remove(request);
                }
                Event::RequestLeased { request, until, .. } => {
                    if let Some(known) = self.requests.get_mut(request) {
                        known.leased_until = Some(*until);
                    }
                }
                Event::LeaseLapsed { request } | Event::FenceRaised { request, .. } => {
                    if let Some(known) = self.requests.get_mut(request) {
                        known.leased_until = None;
                    }
                }
                Event::HoldOpened { hold, request, .. } => {
                    self.holds.insert(*hold, *request);
                }
                Event::HoldDecided { hold, .. } => {
                    self.holds.remove(hold);
                }
                _ => {}
            }
        }
        self.look_around(record.content.at);
    }

    /// Whoever stops waiting goes on with its worker, if that is still there.
    fn look_around(&mut self, at: Timestamp) {
        let busy: BTreeSet<RequestId> = self
            .requests
            .values()
            .filter_map(|known| known.parent)
            .chain(self.holds.values().copied())
            .collect();
        for (id, known) in &mut self.requests {
            let waits = busy.contains(id);
            if known.waited && !waits {
                known.leased_until = known.leased_until.filter(|until| at < *until);
            }
            known.waited = waits;
        }
    }

    /// Compares everything with what the core has. Returns how much was compared.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn compare(&self, state: &SessionState) -> Result<usize, String> {
        same("live requests", state.requests.keys(), self.requests.keys())?;
        same("open tasks", state.tasks.keys(), self.tasks.keys())?;
        same("open holds", state.holds.keys(), self.holds.keys())?;
        if let Some((hold, request)) = self
            .holds
            .iter()
            .find(|(_, request)| !self.requests.contains_key(request))
        {
            return Err(format!("{hold} is open, and its {request} has ended"));
        }
        let mut children: BTreeMap<RequestId, Vec<RequestId>> = BTreeMap::new();
        let mut live: BTreeMap<TaskId, RequestId> = BTreeMap::new();
        for (id, known) in &self.requests {
            if let Some(parent) = known.parent {
                children.entry(parent).or_default().push(*id);
            }
            if let Some(other) = live.insert(known.task, *id) {
                return Err(format!(
                    "{} has two live requests: {other} and {id}",
                    known.task
                ));
            }
        }
        let mut own: BTreeMap<RequestId, Vec<HoldId>> = BTreeMap::new();
        for (hold, request) in &self.holds {
            own.entry(*request).or_default().push(*hold);
        }
        for (id, known) in &self.requests {
            let wanted = if own.contains_key(id) {
                LiveStatus::Held
            } else if children.contains_key(id) {
                LiveStatus::Waiting
            } else if known.leased_until.is_some() {
                LiveStatus::Running
            } else {
                LiveStatus::Queued
            };
            let found = state.requests[id].status;
            if found != wanted {
                return Err(format!("{id} is {found:?} and should be {wanted:?}"));
            }
        }
        let mut tops = Vec::new();
        for (id, is_top) in &self.tasks {
            let mut pending = BTreeSet::new();
            if let Some(request) = live.get(id) {
                collect(*request, &own, &children, &mut pending);
            }
            let wanted = match live.get(id) {
                None => TaskStatus::Idle,
                Some(_) if pending.is_empty() => TaskStatus::Running,
                Some(_) => TaskStatus::Paused,
            };
            let found = state.tasks[id].status;
            if found != wanted {
                return Err(format!("{id} is {found:?} and should be {wanted:?}"));
            }
            let shown = state.pending_holds(*id);
            if shown.len() != pending.len() || !shown.iter().all(|hold| pending.contains(hold)) {
                return Err(format!(
                    "{id} shows {shown:?} as pending, and {pending:?} are"
                ));
            }
            tops.extend(is_top.then_some(wanted));
        }
        let wanted = if tops.contains(&TaskStatus::Paused) {
            SessionStatus::Paused
        } else if tops.contains(&TaskStatus::Running) {
            SessionStatus::Running
        } else {
            SessionStatus::Idle
        };
        let found = state.status();
        if found != wanted {
            return Err(format!("the session is {found:?} and should be {wanted:?}"));
        }
        Ok(self.requests.len() + 2 * self.tasks.len() + 1)
    }
}

/// The open holds at a request and below it.
fn collect(
    request: RequestId,
    own: &BTreeMap<RequestId, Vec<HoldId>>,
    children: &BTreeMap<RequestId, Vec<RequestId>>,
    pending: &mut BTreeSet<HoldId>,
) {
    pending.extend(own.get(&request).into_iter().flatten());
    for child in children.get(&request).into_iter().flatten() {
        collect(*child, own, children, pending);
    }
}

fn same<'a, T: PartialEq + std::fmt::Debug + 'a>(
    what: &str,
    found: impl Iterator<Item = &'a T>,
    wanted: impl Iterator<Item = &'a T>,
) -> Result<(), String> {
    let (found, wanted): (Vec<&T>, Vec<&T>) = (found.collect(), wanted.collect());
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{what}: {found:?}, and should be {wanted:?}"))
    }
}
