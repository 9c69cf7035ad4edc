//! Feeds: records in order, once each, from any revision. A feed reads from the store when notified, so
//! a slow reader holds only a position.

mod session;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use statehold_core::ids::{SessionId, TaskId};
use statehold_core::record::Event;
use statehold_store::{SessionSummary, StoredRecord};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::is_own;

pub use session::{Delta, SessionFeed, SessionNews};

/// How many commits one call reads.
const SCAN_MAX: usize = 500;

/// One record of a feed.
#[derive(Debug, Clone)]
pub struct FeedEntry {
    /// The record with its payloads.
    pub stored: StoredRecord,
    /// Whether each task whose history grew is a root task.
    pub roots: BTreeMap<TaskId, bool>,
}

/// A position in the order of all commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GlobalPosition(pub u64);

impl Engine {
    /// Records of a session after a revision, for a reader of its feed.
    ///
    /// # Errors
    ///
    /// If the caller may not read the session, or no longer.
    pub async fn feed(
        &self,
        caller: &Caller,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<FeedEntry>, EngineError> {
        self.require_readable(caller, session).await?;
        let records = self.inner().store.records(session, after, limit).await?;
        self.with_roots(records).await
    }

    async fn with_roots(&self, records: Vec<StoredRecord>) -> Result<Vec<FeedEntry>, EngineError> {
        let mut entries = Vec::with_capacity(records.len());
        let mut known = BTreeMap::new();
        for stored in records {
            let session = stored.record.content.session;
            let mut roots = BTreeMap::new();
            for event in &stored.record.content.events {
                match event {
                    Event::TaskOpened { task, parent, .. } => {
                        known.insert(*task, parent.is_none());
                    }
                    Event::ItemsAppended { task, .. } => {
                        let is_root = match known.get(task) {
                            Some(is_root) => *is_root,
                            None => self.is_root(session, *task).await?,
                        };
                        known.insert(*task, is_root);
                        roots.insert(*task, is_root);
                    }
                    _ => {}
                }
            }
            entries.push(FeedEntry { stored, roots });
        }
        Ok(entries)
    }

    async fn is_root(&self, session: SessionId, task: TaskId) -> Result<bool, EngineError> {
        let state = self.durable_state(session).await?;
        if let Some(open) = state.tasks.get(&task) {
            return Ok(open.parent.is_none());
        }
        let closed = self.inner().store.closed_task(task).await?;
        Ok(closed.is_some_and(|closed| closed.task.parent.is_none()))
    }

    /// The newest position in the order of all commits.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn last_position(&self) -> Result<GlobalPosition, EngineError> {
        Ok(GlobalPosition(self.inner().store.last_place().await?))
    }

    /// Records after a position from every session that the caller may list, and the position to
    /// continue from. The position advances even past commits that the caller may not see.
    ///
    /// # Errors
    ///
    /// If the caller may not list sessions.
    pub async fn global_feed(
        &self,
        caller: &Caller,
        after: GlobalPosition,
        limit: usize,
    ) -> Result<(Vec<(GlobalPosition, FeedEntry)>, GlobalPosition), EngineError> {
        crate::guard::access::require_lister(caller)?;
        let store = &self.inner().store;
        let commits = store.committed(after.0, SCAN_MAX).await?;
        let mut owners: BTreeMap<SessionId, Option<SessionSummary>> = BTreeMap::new();
        let mut found = Vec::new();
        let mut at = after;
        for commit in commits {
            if found.len() == limit {
                break;
            }
            at = GlobalPosition(commit.place);
            let owner = match owners.entry(commit.session) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(store.session(commit.session).await?),
            };
            let is_shown = owner
                .as_ref()
                .is_some_and(|summary| is_own(caller, summary));
            if is_shown {
                let records = store
                    .records(commit.session, commit.revision - 1, 1)
                    .await?;
                let entries = self.with_roots(records).await?;
                found.extend(entries.into_iter().map(|entry| (at, entry)));
            }
        }
        Ok((found, at))
    }

    /// Resolves when the engine begins to stop. Streams must end then.
    pub async fn stopping(&self) {
        self.inner().stop.cancelled().await;
    }
}

/// Subscription to commits of any session, from the moment it was made.
#[derive(Debug)]
pub struct News(tokio::sync::watch::Receiver<u64>);

impl News {
    /// Waits for the next commit.
    pub async fn arrives(&mut self) {
        // The sender lives as long as the engine.
        drop(self.0.changed().await);
    }
}

impl Engine {
    /// Subscribes to commits of any session.
    pub fn news(&self) -> News {
        News(self.inner().any_commit.subscribe())
    }
}
