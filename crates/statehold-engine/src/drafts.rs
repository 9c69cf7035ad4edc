//! Answers while they are being written: in memory, for whoever watches. What counts is what is
//! committed; a draft that is lost with the process is written again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use statehold_core::ids::RequestId;
use tokio::sync::watch;

use crate::engine::Engine;

/// The most that is kept of one draft. Who watches gets the rest when the answer is committed.
const DRAFT_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Drafts {
    live: Mutex<HashMap<RequestId, Arc<Draft>>>,
}

#[derive(Debug, Default)]
struct Draft {
    text: Mutex<String>,
    /// How far it is written; closed when nothing more comes.
    length: watch::Sender<Written>,
    /// Whether a piece found no room: what came after it would not follow what is there.
    is_full: AtomicBool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Written {
    bytes: usize,
    is_over: bool,
}

impl Drafts {
    fn live(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Draft>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, request: RequestId) -> Arc<Draft> {
        Arc::clone(self.live().entry(request).or_default())
    }

    /// Nothing more comes: the request has ended.
    pub(crate) fn end(&self, request: RequestId) {
        if let Some(draft) = self.live().remove(&request) {
            draft.length.send_modify(|written| written.is_over = true);
        }
    }
}

impl Draft {
    fn text(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows the draft of one answer, from its beginning.
#[derive(Debug)]
pub struct DraftReader {
    draft: Arc<Draft>,
    length: watch::Receiver<Written>,
    read: usize,
}

impl DraftReader {
    /// What was written since the last call. None when nothing more comes, also because the request
    /// has ended.
    pub async fn next(&mut self) -> Option<String> {
        let read = self.read;
        let written = self
            .length
            .wait_for(|written| written.bytes > read || written.is_over)
            .await;
        let has_more = written.is_ok_and(|written| written.bytes > read);
        if !has_more {
            return None;
        }
        let text = self.draft.text();
        let piece = text.get(read..).unwrap_or_default().to_owned();
        drop(text);
        self.read += piece.len();
        Some(piece)
    }
}

impl Engine {
    /// Adds to the draft of a live request's answer.
    pub fn write_draft(&self, request: RequestId, piece: &str) {
        if piece.is_empty() {
            return;
        }
        let draft = self.inner().drafts.of(request);
        let mut text = draft.text();
        let has_room = text.len() + piece.len() <= DRAFT_BYTES_MAX;
        if !has_room || draft.is_full.load(Ordering::Relaxed) {
            draft.is_full.store(true, Ordering::Relaxed);
            return;
        }
        text.push_str(piece);
        let bytes = text.len();
        drop(text);
        draft.length.send_modify(|written| written.bytes = bytes);
    }

    /// Follows the draft of a request's answer. Begun before looking whether the request is live, it
    /// misses nothing; begun after its end, it must be dropped by whoever learns that.
    pub fn follow_draft(&self, request: RequestId) -> DraftReader {
        let draft = self.inner().drafts.of(request);
        let length = draft.length.subscribe();
        DraftReader {
            draft,
            length,
            read: 0,
        }
    }

    /// Forgets the draft of a request that has ended, for those who began to follow it too late.
    pub fn forget_draft(&self, request: RequestId) {
        self.inner().drafts.end(request);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc as Shared;

    use statehold_store::memory::MemoryStore;

    use super::*;
    use crate::engine::EngineOptions;
    use crate::ports::{MemoryKeys, SystemClock};

    #[tokio::test]
    async fn whoever_follows_gets_every_piece_from_the_beginning_and_then_the_end() {
        let (store, keys) = (MemoryStore::new(), MemoryKeys::default());
        let options = EngineOptions::default();
        let engine = Engine::start(
            Shared::new(store),
            Shared::new(keys),
            Shared::new(SystemClock),
            options,
        )
        .await
        .expect("an engine in memory");
        let request = RequestId::from_uuid(uuid::Uuid::from_u128(7));
        engine.write_draft(request, "one ");
        let mut reader = engine.follow_draft(request);
        assert_eq!(reader.next().await.as_deref(), Some("one "));
        engine.write_draft(request, "two");
        engine.write_draft(request, "");
        let mut late = engine.follow_draft(request);
        engine.forget_draft(request);
        assert_eq!(reader.next().await.as_deref(), Some("two"));
        assert_eq!(reader.next().await, None);
        assert_eq!(late.next().await.as_deref(), Some("one two"));
        assert_eq!(late.next().await, None);

        // A draft that is too long ends where it was cut, also if a later piece would fit.
        let long = RequestId::from_uuid(uuid::Uuid::from_u128(8));
        engine.write_draft(long, "begin ");
        engine.write_draft(long, &"x".repeat(DRAFT_BYTES_MAX));
        engine.write_draft(long, "end");
        let mut reader = engine.follow_draft(long);
        engine.forget_draft(long);
        assert_eq!(reader.next().await.as_deref(), Some("begin "));
        assert_eq!(reader.next().await, None);
        engine.shut_down().await;
    }
}
