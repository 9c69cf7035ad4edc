//! The feed of one session as its readers see it: every record, and between the records the words of
//! answers that are being written. It holds places, in the log and in drafts, and no text.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use futures_util::future::select_all;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::record::{Event, Record};

use super::FeedEntry;
use crate::caller::Caller;
use crate::drafts::{DraftPiece, DraftReader};
use crate::engine::Engine;
use crate::error::EngineError;

/// How many answers one reader follows at once. Those beyond come with their record.
const ANSWERS_MAX: usize = 16;

/// Something new in a session.
#[derive(Debug, Clone)]
pub enum SessionNews {
    /// A record.
    Record(FeedEntry),
    /// Words of an answer. They are recorded when it is whole, if it ever is.
    Delta(Delta),
}

/// A piece of an answer that is being written.
#[derive(Debug, Clone)]
pub struct Delta {
    /// The request that is answered.
    pub request: RequestId,
    /// Its task.
    pub task: TaskId,
    /// Who answers.
    pub agent: Name,
    /// The piece, and how much of the answer came before it.
    pub piece: DraftPiece,
}

/// Reads a session from a revision on.
#[derive(Debug)]
pub struct SessionFeed {
    engine: Engine,
    caller: Caller,
    session: SessionId,
    /// The revision of the last record that was read.
    after: u64,
    /// Whether the answers that were being written at the beginning are followed.
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

impl Engine {
    /// Follows a session from a revision on.
    pub fn follow_session(&self, caller: Caller, session: SessionId, after: u64) -> SessionFeed {
        SessionFeed {
            engine: self.clone(),
            caller,
            session,
            after,
            has_begun: false,
            answers: BTreeMap::new(),
        }
    }
}

impl SessionFeed {
    /// What is new since the last call, at most so many records of it. The words of an answer come after
    /// the record that started its request, and before the one that ended it.
    ///
    /// # Errors
    ///
    /// If the caller may not read the session (any more).
    pub async fn read(&mut self, limit: usize) -> Result<Vec<SessionNews>, EngineError> {
        let engine = self.engine.clone();
        let newest = engine.require_readable(&self.caller, self.session).await?;
        let mut news = Vec::new();
        // Most calls are for a few words, and cost no look at the store.
        let has_records = newest > self.after;
        if has_records {
            let feed = engine.feed(&self.caller, self.session, self.after, limit);
            for entry in feed.await? {
                let record = &entry.stored.record;
                // The store shows a commit a moment before it is announced. Which answers are being
                // written is known as of what is announced.
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

    /// What is left to tell of the answers that a record ends. They were written before it was made.
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

    /// Follows the answers that are being written now, the newest first. Only those of requests without a
    /// parent: what a child says is its parent's to pass on.
    async fn follow_answers(&mut self) -> Result<(), EngineError> {
        let state = self.engine.durable_state(self.session).await?;
        if state.revision <= self.after {
            // Of a request that ended in between, the record is still to come, and its last words.
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
                    // If it has ended by now, the next call hears of that and lets go of it.
                    draft: self.engine.follow_draft(live.id),
                });
            }
        }
        Ok(())
    }

    /// Waits until there may be something to read.
    pub async fn changed(&mut self) {
        let engine = self.engine.clone();
        let changed = engine.changed_after(self.session, self.after);
        let drafts = self.answers.values_mut().map(|answer| &mut answer.draft);
        let grown: Vec<_> = drafts.map(|draft| Box::pin(draft.grown())).collect();
        if grown.is_empty() {
            // Whatever goes wrong shows at the next look.
            drop(changed.await);
            return;
        }
        tokio::select! {
            changed = changed => drop(changed),
            _ = select_all(grown) => {}
        }
    }
}
