//! Answers while they are being written: in memory, for whoever watches. What counts is what is
//! committed; a draft that is lost with the process is written again.
//!
//! A draft is there while somebody has it open to write or follows it, and no longer: what is written
//! when nobody does is written nowhere.

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
    live: Mutex<HashMap<RequestId, Live>>,
}

#[derive(Debug, Default)]
struct Live {
    draft: Arc<Draft>,
    /// How many have it open or follow it.
    holders: usize,
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
    fn live(&self) -> MutexGuard<'_, HashMap<RequestId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(self: &Arc<Self>, request: RequestId) -> Held {
        let mut all = self.live();
        let live = all.entry(request).or_default();
        live.holders += 1;
        Held {
            drafts: Arc::clone(self),
            request,
            draft: Arc::clone(&live.draft),
        }
    }

    /// The draft of a request, if anybody has it.
    fn find(&self, request: RequestId) -> Option<Arc<Draft>> {
        self.live()
            .get(&request)
            .map(|live| Arc::clone(&live.draft))
    }

    /// Nothing more comes: the request has ended.
    pub(crate) fn end(&self, request: RequestId) {
        if let Some(live) = self.live().remove(&request) {
            let length = &live.draft.length;
            length.send_modify(|written| written.is_over = true);
        }
    }
}

/// Keeps a draft. The last one to go takes it along.
#[derive(Debug)]
struct Held {
    drafts: Arc<Drafts>,
    request: RequestId,
    draft: Arc<Draft>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = self.drafts.live();
        let Some(live) = all.get_mut(&self.request) else {
            return;
        };
        // Another may have taken the place of one that has ended.
        if !Arc::ptr_eq(&live.draft, &self.draft) {
            return;
        }
        live.holders -= 1;
        if live.holders == 0 {
            all.remove(&self.request);
        }
    }
}

/// A draft that somebody writes. Without it, what is written is kept only for those who follow.
#[derive(Debug)]
#[must_use = "it is open only as long as this is kept"]
pub struct OpenDraft {
    _held: Held,
}

impl Draft {
    fn text(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows the draft of one answer, from its beginning.
#[derive(Debug)]
pub struct DraftReader {
    held: Held,
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
        let text = self.held.draft.text();
        let piece = text.get(read..).unwrap_or_default().to_owned();
        drop(text);
        self.read += piece.len();
        Some(piece)
    }
}

impl Engine {
    /// Opens the draft of a live request's answer, to write it.
    pub fn open_draft(&self, request: RequestId) -> OpenDraft {
        OpenDraft {
            _held: self.inner().drafts.hold(request),
        }
    }

    /// Adds to the draft of a live request's answer, if somebody has it open or follows it.
    pub fn write_draft(&self, request: RequestId, piece: &str) {
        if piece.is_empty() {
            return;
        }
        let Some(draft) = self.inner().drafts.find(request) else {
            return;
        };
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
        let held = self.inner().drafts.hold(request);
        let length = held.draft.length.subscribe();
        DraftReader {
            held,
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

    async fn engine() -> Engine {
        let (store, keys) = (MemoryStore::new(), MemoryKeys::default());
        let options = EngineOptions::default();
        let engine = Engine::start(
            Shared::new(store),
            Shared::new(keys),
            Shared::new(SystemClock),
            options,
        );
        engine.await.expect("an engine in memory")
    }

    fn request(n: u128) -> RequestId {
        RequestId::from_uuid(uuid::Uuid::from_u128(n))
    }

    #[tokio::test]
    async fn whoever_follows_gets_every_piece_from_the_beginning_and_then_the_end() {
        let engine = engine().await;
        let (request, long) = (request(7), request(8));
        let _open = [engine.open_draft(request), engine.open_draft(long)];
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
        engine.write_draft(long, "begin ");
        engine.write_draft(long, &"x".repeat(DRAFT_BYTES_MAX));
        engine.write_draft(long, "end");
        let mut reader = engine.follow_draft(long);
        engine.forget_draft(long);
        assert_eq!(reader.next().await.as_deref(), Some("begin "));
        assert_eq!(reader.next().await, None);
        engine.shut_down().await;
    }
    #[tokio::test]
    async fn a_draft_that_nobody_has_is_nowhere() {
        let engine = engine().await;
        let request = request(7);
        let kept = || engine.inner().drafts.live().len();
        engine.write_draft(request, "nobody hears");
        assert_eq!(kept(), 0);

        // Whoever follows keeps what was written, also when the writer has gone.
        let open = engine.open_draft(request);
        engine.write_draft(request, "one ");
        let mut reader = engine.follow_draft(request);
        drop(open);
        engine.write_draft(request, "two");
        assert_eq!(reader.next().await.as_deref(), Some("one two"));

        // What has ended does not come back, neither by who still writes nor by who still follows.
        engine.forget_draft(request);
        engine.write_draft(request, "three");
        assert_eq!(reader.next().await, None);
        let late = engine.follow_draft(request);
        drop(reader);
        assert_eq!(kept(), 1);
        drop(late);
        assert_eq!(kept(), 0);
        engine.shut_down().await;
    }
}
