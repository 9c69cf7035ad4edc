//! The feed of one session: every record, and between records the text of answers being written. It
//! holds positions in the log and in drafts, and no text.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use futures_util::future::select_all;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::record::{Event, Record};
use statehold_store::PageLimit;

use super::FeedEntry;
use crate::background::drafts::{DraftPiece, DraftReader};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// How many answers one reader follows at once. Further answers arrive only with their record.
const ANSWERS_MAX: usize = 16;

/// A record or a piece of an answer.
#[derive(Debug, Clone)]
pub(crate) enum SessionNews {
    /// A record.
    Record(FeedEntry),
    /// Text of an answer. It is recorded only when the answer completes.
    Delta(Delta),
}

/// A piece of an answer that is being written.
#[derive(Debug, Clone)]
pub(crate) struct Delta {
    /// The request being answered.
    pub(crate) request: RequestId,
    /// Its task.
    pub(crate) task: TaskId,
    /// The agent that answers.
    pub(crate) agent: Name,
    /// The piece, and its offset in the answer.
    pub(crate) piece: DraftPiece,
}

/// Reads a session from a revision.
#[derive(Debug)]
pub(crate) struct SessionFeed {
    engine: Engine,
    caller: Caller,
    session: SessionId,
    /// The revision of the last record read.
    after: u64,
    /// Whether the feed follows the answers that were in flight when it started.
    has_begun: bool,
    answers: BTreeMap<RequestId, LiveAnswer>,
}

#[derive(Debug)]
struct LiveAnswer {
    task: TaskId,
    agent: Name,
    draft: DraftReader,
}

impl LiveAnswer {
    fn delta(&mut self, request: RequestId) -> Option<SessionNews> {
        let piece = self.draft.take()?;
        Some(SessionNews::Delta(Delta {
            request,
            task: self.task,
            agent: self.agent.clone(),
            piece,
        }))
    }
}

impl SessionFeed {
    /// Follows a session from a revision.
    pub(crate) fn new(engine: Engine, caller: Caller, session: SessionId, after: u64) -> Self {
        Self {
            engine,
            caller,
            session,
            after,
            has_begun: false,
            answers: BTreeMap::new(),
        }
    }

    /// The news since the last call, with the records that fit `limit`. Text of an answer comes after the
    /// record that starts its request, and before the record that ends it.
    ///
    /// # Errors
    ///
    /// If the caller may not read the session, or no longer.
    pub(crate) async fn read(&mut self, limit: PageLimit) -> Result<Vec<SessionNews>, EngineError> {
        let engine = self.engine.clone();
        let state = engine.readable(&self.caller, self.session).await?;
        let newest = state.revision;
        let mut news = Vec::new();
        // Most calls return a few words, and do not read the store.
        let has_records = newest > self.after;
        if has_records {
            let feed = engine.feed(&self.caller, self.session, self.after, limit);
            for entry in feed.await? {
                let record = &entry.stored.record;
                // The store shows a commit shortly before it is announced. The set of live answers is as
                // of the announced revision, so stop there.
                if record.content.seq > newest {
                    break;
                }
                self.after = record.content.seq;
                news.extend(self.last_words(record));
                news.push(SessionNews::Record(entry));
            }
        }
        if has_records || !self.has_begun {
            self.has_begun = true;
            self.follow_answers().await?;
        }
        let answers = self.answers.iter_mut();
        news.extend(answers.filter_map(|(request, answer)| answer.delta(*request)));
        Ok(news)
    }

    /// The next unread text of the answers that a record ends. It was written before the record; the rest comes with
    /// the record.
    fn last_words(&mut self, record: &Record) -> Vec<SessionNews> {
        let ended = record
            .content
            .events
            .iter()
            .filter_map(|event| match event {
                Event::RequestEnded { request, .. } => Some(*request),
                _ => None,
            });
        ended
            .filter_map(|request| self.answers.remove(&request)?.delta(request))
            .collect()
    }

    /// Follows the answers being written now, newest first. Skips child requests: the parent passes on
    /// their text.
    async fn follow_answers(&mut self) -> Result<(), EngineError> {
        let state = self.engine.durable_state(self.session).await?;
        if state.revision <= self.after {
            // Keep the answer of a request that ended after `self.after`: its record and its last text
            // are still to come.
            self.answers
                .retain(|request, _| state.requests.contains_key(request));
        }
        let live = state.requests.values();
        let mut shown: Vec<_> = live
            .filter(|live| live.parent.is_none() && live.started_by <= self.after)
            .collect();
        shown.sort_unstable_by_key(|live| Reverse(live.number));
        for live in shown {
            let Some(task) = state.tasks.get(&live.task) else {
                continue;
            };
            if self.answers.len() >= ANSWERS_MAX {
                break;
            }
            if let Entry::Vacant(new) = self.answers.entry(live.id) {
                new.insert(LiveAnswer {
                    task: live.task,
                    agent: task.agent.clone(),
                    // If the request has ended meanwhile, the next call removes this reader.
                    draft: self.engine.follow_draft(live.id),
                });
            }
        }
        Ok(())
    }

    /// Waits until `read` may return news.
    pub(crate) async fn changed(&mut self) {
        let engine = self.engine.clone();
        let changed = engine.changed_after(self.session, self.after);
        let drafts = self.answers.values_mut().map(|answer| &mut answer.draft);
        let grown: Vec<_> = drafts.map(|draft| Box::pin(draft.grown())).collect();
        if grown.is_empty() {
            // The next `read` reports any error.
            drop(changed.await);
            return;
        }
        tokio::select! {
            changed = changed => drop(changed),
            _ = select_all(grown) => {}
        }
    }
}
