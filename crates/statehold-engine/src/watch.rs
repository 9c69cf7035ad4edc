//! Watches: which parts of a session have changed, for readers that keep copies of them. A commit tells its session's
//! watchers from memory, so that any number of them costs the store nothing.

use std::collections::HashMap;
use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::item::Visibility;
use statehold_core::record::Event;
use statehold_store::Commit;
use tokio::sync::watch;

use crate::api::annotation;
use crate::locks::Lock;

/// The revisions of a session at which its parts changed last, as far as its watchers were told. 0 means: not since they
/// began to watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartRevisions {
    /// Messages were added or annotated, or a rewind took some out; or the metadata changed.
    pub messages: u64,
    /// Session keys were written or removed.
    pub state: u64,
    /// Holds were opened, voted on or decided.
    pub holds: u64,
    /// Tasks or requests began, changed their status or ended.
    pub tasks: u64,
    /// Anything was committed.
    pub any: u64,
}

/// The parts of a session that a commit changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChangedParts(PartRevisions);

impl ChangedParts {
    pub(crate) fn of(commit: &Commit) -> Self {
        let content = &commit.record.content;
        let mut parts = PartRevisions {
            any: content.seq,
            ..PartRevisions::default()
        };
        for event in &content.events {
            let part = match event {
                Event::ItemsAppended { items, task, .. } => {
                    let is_visible = items
                        .iter()
                        .any(|item| item.visibility == Visibility::Visible);
                    let open = commit.after.tasks.get(task);
                    let mut closed = commit.changes.closed_tasks.iter();
                    let task = open.or_else(|| {
                        let found = closed.find(|closed| closed.task.id == *task);
                        found.map(|closed| &closed.task)
                    });
                    if !is_visible || task.is_some_and(|task| task.parent.is_some()) {
                        continue;
                    }
                    &mut parts.messages
                }
                Event::SessionForked { .. }
                | Event::Rewound { .. }
                | Event::PayloadsErased { .. } => {
                    parts.state = content.seq;
                    &mut parts.messages
                }
                Event::StatePut { key, .. } | Event::StateDeleted { key, .. } => {
                    if key.as_str().starts_with(annotation::KEY_PREFIX) {
                        parts.messages = content.seq;
                    }
                    &mut parts.state
                }
                Event::HoldOpened { .. }
                | Event::VoteRecorded { .. }
                | Event::HoldDecided { .. } => &mut parts.holds,
                Event::TaskOpened { .. }
                | Event::TaskStatusChanged { .. }
                | Event::TaskClosed { .. }
                | Event::RequestStarted { .. }
                | Event::RequestStatusChanged { .. }
                | Event::RequestEnded { .. } => &mut parts.tasks,
                _ => continue,
            };
            *part = content.seq;
        }
        Self(parts)
    }

    fn note(self, known: &mut PartRevisions) {
        let pairs = [
            (&mut known.messages, self.0.messages),
            (&mut known.state, self.0.state),
            (&mut known.holds, self.0.holds),
            (&mut known.tasks, self.0.tasks),
            (&mut known.any, self.0.any),
        ];
        for (known, new) in pairs {
            *known = new.max(*known);
        }
    }
}

/// The sessions that are watched.
#[derive(Debug, Default)]
pub(crate) struct Watches(Lock<HashMap<SessionId, watch::Sender<PartRevisions>>>);

impl Watches {
    /// Watches a session from now on.
    pub(crate) fn watch(self: &Arc<Self>, session: SessionId) -> Watched {
        let mut watched = self.0.lock();
        let sender = watched.entry(session).or_default();
        Watched {
            changes: Some(sender.subscribe()),
            session,
            watches: Arc::clone(self),
        }
    }

    /// Tells the watchers of a session about a durable commit.
    pub(crate) fn note(&self, session: SessionId, parts: ChangedParts) {
        if let Some(sender) = self.0.lock().get(&session) {
            sender.send_modify(|known| parts.note(known));
        }
    }
}

/// One watcher of a session.
#[derive(Debug)]
pub(crate) struct Watched {
    /// None only while it is dropped.
    changes: Option<watch::Receiver<PartRevisions>>,
    session: SessionId,
    watches: Arc<Watches>,
}

impl Watched {
    /// The changes that the watchers know of.
    pub(crate) fn known(&self) -> PartRevisions {
        let known = self.changes.as_ref().map(|changes| *changes.borrow());
        known.unwrap_or_default()
    }

    /// Waits for a commit that this watcher was not told about yet.
    pub(crate) async fn changed(&mut self) -> PartRevisions {
        let Some(changes) = &mut self.changes else {
            return PartRevisions::default();
        };
        // The sender lives as long as one of its receivers.
        drop(changes.changed().await);
        *changes.borrow_and_update()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watched = self.watches.0.lock();
        self.changes = None;
        let is_last = |sender: &watch::Sender<_>| sender.receiver_count() == 0;
        if watched.get(&self.session).is_some_and(is_last) {
            watched.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_burst_of_commits_is_one_change_and_nothing_is_left_of_the_last_watcher() {
        let watches = Arc::new(Watches::default());
        let session = SessionId::from_uuid(uuid::Uuid::from_u128(1));
        let mut one = watches.watch(session);
        for revision in 1..=3 {
            let parts = PartRevisions {
                messages: if revision == 2 { 2 } else { 0 },
                any: revision,
                ..PartRevisions::default()
            };
            watches.note(session, ChangedParts(parts));
        }
        let changed = one.changed().await;
        assert_eq!((changed.messages, changed.any), (2, 3));
        drop(one);
        assert!(watches.0.lock().is_empty());
    }
}
