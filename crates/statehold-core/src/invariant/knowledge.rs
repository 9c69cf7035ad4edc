//! The memories of the agents of a session, derived from its records only.

use std::collections::BTreeMap;

use crate::ids::{RequestId, TaskId};
use crate::item::{CallMark, CallOutcome};
use crate::memory::{AgentPath, Memory};
use crate::record::{Event, Record};
use crate::request::RequestOutcome;

/// Every exchange that ever ended, and the memories now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Knowledge {
    now: Known,
    /// Every exchange: its path, the record that ended it, the request. In the order of their ends.
    ended: Vec<(AgentPath, u64, RequestId)>,
    /// Every rewind: its record, and the revision it went back to.
    rewinds: Vec<(u64, u64)>,
}

/// The memories at one moment, with the open tasks and live requests that the next record may end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Known {
    /// The memory of each path.
    pub(super) memories: BTreeMap<AgentPath, Memory>,
    /// The path of each open task.
    pub(super) paths: BTreeMap<TaskId, AgentPath>,
    /// The requests that have not ended.
    pub(super) live: BTreeMap<RequestId, Started>,
    /// The requests that failed.
    failed: BTreeMap<RequestId, Started>,
}

/// A request that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Started {
    path: Option<AgentPath>,
    /// The memory of its path before the record that started it.
    pub(super) knows: Option<Memory>,
    parent: Option<RequestId>,
    /// Whether a tool ran for it, or for a request below it.
    ran: bool,
}

impl Knowledge {
    pub(super) fn absorb(&mut self, record: &Record) {
        let mut now = self.now.clone();
        let mut ended = Vec::new();
        for event in &record.content.events {
            ended.extend(self.learn(&mut now, event, record.content.seq));
            if let Event::Rewound { to, .. } = event {
                self.rewinds.push((record.content.seq, *to));
            }
        }
        self.now = now;
        self.ended.extend(ended);
    }

    /// The memories after the next record.
    pub(super) fn after(&self, record: &Record) -> Known {
        let mut known = self.now.clone();
        for event in &record.content.events {
            self.learn(&mut known, event, record.content.seq);
        }
        known
    }

    /// Learns one event of record `seq`, and says which exchange it is the end of.
    fn learn(
        &self,
        known: &mut Known,
        event: &Event,
        seq: u64,
    ) -> Option<(AgentPath, u64, RequestId)> {
        match event {
            Event::TaskOpened {
                task,
                agent,
                parent,
                ..
            } => {
                let above = parent.and_then(|link| known.paths.get(&link.task));
                let path = AgentPath::of(above, agent);
                known.paths.insert(*task, path);
            }
            Event::TaskRenamed { from, to } => {
                let path = known.paths.remove(from);
                known.paths.extend(path.map(|path| (*to, path)));
            }
            Event::TaskClosed { task, .. } => {
                known.paths.remove(task);
            }
            Event::RequestStarted {
                request,
                task,
                parent,
                continues,
                ..
            } => {
                let path = known.paths.get(task).cloned();
                let memory = path.as_ref().and_then(|path| self.now.memories.get(path));
                let continued = continues.and_then(|from| known.failed.remove(&from.request));
                let started = Started {
                    knows: match &continued {
                        Some(continued) => continued.knows,
                        None => memory.copied(),
                    },
                    path,
                    parent: *parent,
                    ran: continued.is_some_and(|continued| continued.ran),
                };
                known.live.insert(*request, started);
            }
            Event::ItemsAppended { request, items, .. } => {
                let ran = items.iter().any(|item| {
                    let outcome = CallOutcome::Ran;
                    matches!(item.call, Some(CallMark::Result { outcome: o, .. }) if o == outcome)
                });
                let mut at = Some(*request).filter(|_| ran);
                while let Some(started) = at.and_then(|above| known.live.get_mut(&above)) {
                    started.ran = true;
                    at = started.parent;
                }
            }
            Event::RequestEnded {
                request, outcome, ..
            } => {
                let started = known.live.remove(request)?;
                if *outcome == RequestOutcome::Failed {
                    known.failed.insert(*request, started.clone());
                }
                let path = started.path?;
                if *outcome == RequestOutcome::Completed || started.ran {
                    add(&mut known.memories, &path, seq, *request);
                    return Some((path, seq, *request));
                }
            }
            Event::Rewound { to, .. } => known.memories = self.kept_by((seq, *to)),
            _ => {}
        }
        None
    }

    /// The memories after a rewind: the exchanges that neither it nor a rewind before it has taken back.
    fn kept_by(&self, rewind: (u64, u64)) -> BTreeMap<AgentPath, Memory> {
        let rewinds = self.rewinds.iter().chain([&rewind]);
        let is_kept = |ended: u64| {
            let mut over = rewinds.clone();
            over.all(|(record, to)| ended <= *to || ended > *record)
        };
        let mut memories = BTreeMap::new();
        for (path, ended, request) in &self.ended {
            if is_kept(*ended) {
                add(&mut memories, path, *ended, *request);
            }
        }
        memories
    }
}

fn add(
    memories: &mut BTreeMap<AgentPath, Memory>,
    path: &AgentPath,
    record: u64,
    request: RequestId,
) {
    let exchanges = Memory::count(memories.get(path).copied()) + 1;
    let newest = Memory {
        exchanges,
        record,
        request,
    };
    memories.insert(path.clone(), newest);
}
