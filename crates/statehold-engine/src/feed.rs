//! Feeds: records in order, once each, from any revision. A feed reads from the store when notified, so
//! a slow reader holds only a position.

mod session;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use statehold_core::ids::{SessionId, TaskId};
use statehold_core::record::{Event, Record};
use statehold_store::{PageLimit, SessionSummary, StoreError, StoredRecord};
use tokio_util::sync::CancellationToken;

use crate::api::session::decider_in;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::is_own;
use crate::people::PeopleNames;

pub(crate) use session::{Delta, SessionFeed, SessionNews};

/// How many commits one call reads.
const SCAN_MAX: usize = 500;

/// One record of a feed.
#[derive(Debug, Clone)]
pub struct FeedEntry {
    /// The record with its payloads.
    pub stored: StoredRecord,
    /// Whether each task whose history grew is a root task.
    pub roots: BTreeMap<TaskId, bool>,
    /// The names of the people who decided its holds, as far as the reader may see them.
    pub names: PeopleNames,
}

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
        limit: PageLimit,
    ) -> Result<Vec<FeedEntry>, EngineError> {
        self.readable(caller, session).await?;
        let records = self.inner().store.records(session, after, limit).await?;
        self.entries(caller, records).await
    }

    /// The same records, without payloads.
    ///
    /// # Errors
    ///
    /// If the caller may not read the session.
    pub async fn chain(
        &self,
        caller: &Caller,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<Record>, EngineError> {
        self.readable(caller, session).await?;
        Ok(self.inner().store.chain(session, after, limit).await?)
    }

    async fn entries(
        &self,
        caller: &Caller,
        records: Vec<StoredRecord>,
    ) -> Result<Vec<FeedEntry>, EngineError> {
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
            let deciders = stored.record.content.events.iter().filter_map(decider_in);
            let names = self.names_for(caller, deciders).await?;
            entries.push(FeedEntry {
                stored,
                roots,
                names,
            });
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

    /// Records after a position from every session that the caller may list, and the position to
    /// continue from. The position advances even past commits that the caller may not see, and past damaged
    /// ones.
    pub(crate) async fn global_feed(
        &self,
        caller: &Caller,
        after: u64,
        limit: PageLimit,
    ) -> Result<(Vec<(u64, FeedEntry)>, u64), EngineError> {
        let store = &self.inner().store;
        let commits = store.committed(after, SCAN_MAX).await?;
        let mut owners: BTreeMap<SessionId, Option<SessionSummary>> = BTreeMap::new();
        let mut found = Vec::new();
        let (mut at, mut bytes) = (after, limit.bytes);
        for commit in commits {
            if found.len() == limit.entries {
                break;
            }
            let owner = match owners.entry(commit.session) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    new.insert(sound(store.session(commit.session).await)?.flatten())
                }
            };
            let is_shown = owner
                .as_ref()
                .is_some_and(|summary| is_own(caller, summary));
            if is_shown {
                let one = PageLimit { entries: 1, bytes };
                let records = store.records(commit.session, commit.revision - 1, one);
                let records = match records.await {
                    Err(StoreError::PageTooSmall { .. }) if !found.is_empty() => break,
                    records => sound(records)?.unwrap_or_default(),
                };
                let read = records.iter().map(StoredRecord::bytes);
                bytes = bytes.saturating_sub(read.sum());
                let entries = self.entries(caller, records).await?;
                found.extend(entries.into_iter().map(|entry| (commit.place, entry)));
            }
            at = commit.place;
        }
        Ok((found, at))
    }

    /// Resolves when the engine begins to stop. Streams must end then.
    pub async fn stopping(&self) {
        self.inner().stop.cancelled().await;
    }

    /// A token that is cancelled when the engine stops.
    pub fn stop_token(&self) -> CancellationToken {
        self.inner().stop.child_token()
    }
}

/// None if the data of a session is damaged, so that the feed of all sessions goes on without it.
fn sound<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Err(StoreError::Corrupt { .. }) => Ok(None),
        read => read.map(Some),
    }
}
