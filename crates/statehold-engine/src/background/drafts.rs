//! Answers while an agent writes them: in memory, for readers that follow them. Only the committed
//! answer counts; after a crash, the agent writes a lost draft again.
//!
//! A draft exists only while a writer or a reader has it. Writes to a draft without writer or reader are
//! dropped.
//!
//! A turn that resumes after a pause or a crash writes its answer from the beginning. While it repeats
//! the earlier text, readers get nothing. When it differs, the draft starts over as a new edition.

use std::collections::HashMap;
use std::sync::Arc;

use statehold_core::ids::RequestId;
use statehold_core::name::Name;
use statehold_core::redact::TextStream;
use statehold_core::session::Owner;
use tokio::sync::watch;

use super::draft_stages::{LogPosition, StageLog};
use crate::engine::Engine;
use crate::guard::redact::RedactionRules;
use crate::locks::Lock;
use crate::shares::{Share, Shares};
use crate::stage::StageChange;

/// The maximum size of one draft. Readers get the rest when the answer is committed.
const DRAFT_BYTES_MAX: usize = 1024 * 1024;

/// The bytes of all drafts. A slow reader keeps the draft that it follows, so each user has a share, and so have the
/// users of an API key together.
const ALL_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Drafts take their share in steps, so that most pieces do not ask for more.
const SHARE_STEP: usize = 16 * 1024;

/// The most text that a reader gets at a time. A reader that comes late gets the rest in further pieces.
const PIECE_BYTES_MAX: usize = 4 * 1024;

#[derive(Debug)]
pub(crate) struct Drafts {
    live: Lock<HashMap<RequestId, LiveDraft>>,
    bytes: Shares,
}

impl Default for Drafts {
    fn default() -> Self {
        Self {
            live: Lock::default(),
            bytes: Shares::new(ALL_BYTES_MAX),
        }
    }
}

#[derive(Debug, Default)]
struct LiveDraft {
    draft: Arc<Draft>,
    /// How many writers and readers have it.
    holders: usize,
}

#[derive(Debug, Default)]
struct Draft {
    text: Lock<DraftText>,
    /// The written length. Readers wait on it.
    length: watch::Sender<WrittenLength>,
}

#[derive(Debug, Default)]
struct DraftText {
    /// Whose answer it is, if that is known.
    agent: Option<Name>,
    /// Holds back what may become a secret. None before the first piece of a writer.
    redaction: Option<TextStream>,
    /// Counts how often the draft started over.
    edition: u64,
    text: String,
    /// How much of the text the current writer has written. An earlier writer wrote the rest; the
    /// current writer either repeats or replaces it.
    written_bytes: usize,
    /// Whether a piece did not fit. Later pieces are dropped, so that the text has no gap.
    is_full: bool,
    /// The stages beside the text.
    stages: StageLog,
    /// The memory of the draft, as a share of its user. None counts nothing.
    share: Option<Share>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct WrittenLength {
    edition: u64,
    bytes: usize,
    stages: LogPosition,
    is_over: bool,
}

impl Drafts {
    fn hold(self: &Arc<Self>, request: RequestId) -> DraftHandle {
        let mut all = self.live.lock();
        let live = all.entry(request).or_default();
        live.holders += 1;
        DraftHandle {
            drafts: Arc::clone(self),
            request,
            draft: Arc::clone(&live.draft),
        }
    }

    /// The draft of a request, if a writer or reader has it.
    fn find(&self, request: RequestId) -> Option<Arc<Draft>> {
        self.live
            .lock()
            .get(&request)
            .map(|live| Arc::clone(&live.draft))
    }

    /// Ends the draft: the request has ended.
    pub(crate) fn end(&self, request: RequestId) {
        if let Some(live) = self.live.lock().remove(&request) {
            let length = &live.draft.length;
            length.send_modify(|written| written.is_over = true);
        }
    }
}

/// Reference to a draft. Dropping the last one removes the draft.
#[derive(Debug)]
struct DraftHandle {
    drafts: Arc<Drafts>,
    request: RequestId,
    draft: Arc<Draft>,
}

impl Drop for DraftHandle {
    fn drop(&mut self) {
        let mut all = self.drafts.live.lock();
        let Some(live) = all.get_mut(&self.request) else {
            return;
        };
        // After the end of a request, a late reader may have created a new draft under its id.
        if !Arc::ptr_eq(&live.draft, &self.draft) {
            return;
        }
        live.holders -= 1;
        if live.holders == 0 {
            all.remove(&self.request);
        }
    }
}

/// A draft open for writing. Without a writer, the engine keeps the draft only for its readers.
#[derive(Debug)]
#[must_use = "it is open only as long as this is kept"]
pub struct OpenDraft {
    handle: DraftHandle,
}

impl OpenDraft {
    /// The draft of an answer of this agent: the configuration may say how that is redacted.
    pub fn by(self, agent: &Name) -> Self {
        self.handle.draft.text.lock().agent = Some(agent.clone());
        self
    }

    /// Counts the draft as one of this user, and of the key behind its request. A user whose drafts fill their share
    /// of the memory sees the rest of an answer when it is committed.
    pub fn counted_for(self, engine: &Engine, owner: &Owner) -> Self {
        let holder = engine
            .inner()
            .starters
            .holder_of(owner.user, self.handle.request);
        let share = self.handle.drafts.bytes.none_for(holder);
        self.handle.draft.text.lock().share.get_or_insert(share);
        self
    }
}

impl Draft {
    /// A writer starts at the first byte.
    fn begin(&self) {
        let mut text = self.text.lock();
        text.written_bytes = 0;
        text.is_full = false;
        text.redaction = None;
        text.stages.begin();
        self.announce(&text);
    }

    fn write(&self, piece: &str, rules: &RedactionRules) {
        let mut text = self.text.lock();
        if text.is_full {
            return;
        }
        let redactor = match &text.agent {
            Some(agent) => rules.of(agent),
            None => rules.of_any(),
        };
        let Some(redactor) = redactor else {
            text.add(piece);
            self.announce(&text);
            return;
        };
        let stream = &mut text.redaction;
        let stream = stream.get_or_insert_with(|| TextStream::new(redactor.clone()));
        let shown = stream.push(piece);
        text.is_full = stream.is_stopped();
        if !shown.is_empty() {
            text.add(&shown);
            self.announce(&text);
        }
    }

    fn write_stage(&self, change: StageChange, rules: &RedactionRules) {
        let mut text = self.text.lock();
        let redactor = match &text.agent {
            Some(agent) => rules.of(agent),
            None => rules.of_any(),
        };
        text.stages.write(change, redactor);
        text.take_memory(0);
        self.announce(&text);
    }

    fn restart_stages(&self) {
        let mut text = self.text.lock();
        text.stages.begin();
        self.announce(&text);
    }

    fn announce(&self, text: &DraftText) {
        self.length.send_modify(|written| {
            written.edition = text.edition;
            written.bytes = text.written_bytes;
            written.stages = text.stages.end();
        });
    }
}

impl DraftText {
    fn add(&mut self, piece: &str) {
        let known = self.text.get(self.written_bytes..).unwrap_or_default();
        if known.starts_with(piece) {
            self.written_bytes += piece.len();
            return;
        }
        let new = if let Some(new) = piece.strip_prefix(known) {
            new
        } else {
            self.text.truncate(self.written_bytes);
            self.edition += 1;
            piece
        };
        let is_too_long = self.text.len() + new.len() > DRAFT_BYTES_MAX;
        if is_too_long || !self.take_memory(new.len()) {
            self.is_full = true;
        } else {
            self.text.push_str(new);
        }
        self.written_bytes = self.text.len();
    }

    /// Takes the memory for the draft, and for so many bytes more. False if its user has too many drafts in memory.
    fn take_memory(&mut self, more: usize) -> bool {
        let bytes = self.text.len() + self.stages.bytes() + more;
        let Some(share) = &mut self.share else {
            return true;
        };
        bytes <= share.units() || share.resize(bytes.next_multiple_of(SHARE_STEP)).is_ok()
    }

    /// The next piece of the text after `place`; advances `place`.
    fn after(&self, place: &mut ReadPosition) -> Option<DraftPiece> {
        if place.edition != self.edition {
            *place = ReadPosition {
                edition: self.edition,
                read: 0,
            };
        }
        let unread = self.text.get(place.read..self.written_bytes);
        let unread = unread.filter(|text| !text.is_empty())?;
        let text = unread[..unread.floor_char_boundary(PIECE_BYTES_MAX)].to_owned();
        let read = place.read + text.len();
        let offset = std::mem::replace(&mut place.read, read);
        Some(DraftPiece { offset, text })
    }
}

/// The next part of a draft for a reader.
#[derive(Debug, Clone)]
pub enum DraftChange {
    /// Text, of bounded length.
    Text(String),
    /// A change of the stages.
    Stage(StageChange),
}

/// The next text for a reader, of bounded length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftPiece {
    /// How many bytes of the draft come before it. 0: the draft starts here, or starts over.
    pub offset: usize,
    /// The text.
    pub text: String,
}

/// How far a reader has read.
#[derive(Debug, Clone, Copy, Default)]
struct ReadPosition {
    edition: u64,
    read: usize,
}

impl ReadPosition {
    fn has_news(self, written: &WrittenLength) -> bool {
        written.edition != self.edition || written.bytes > self.read
    }
}

/// Follows the draft of one answer from its beginning.
#[derive(Debug)]
pub struct DraftReader {
    handle: DraftHandle,
    length: watch::Receiver<WrittenLength>,
    place: ReadPosition,
    stages: LogPosition,
}

impl DraftReader {
    /// Waits for the next piece of text. None if the request has ended, or if the draft
    /// started over: the reader may have passed its beginning on and cannot retract it.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            match self.next_change().await? {
                DraftChange::Text(text) => return Some(text),
                DraftChange::Stage(_) => {}
            }
        }
    }

    /// Waits for the next piece of text, or the next change of the stages. None as for `next`.
    pub async fn next_change(&mut self) -> Option<DraftChange> {
        loop {
            let (place, stages) = (self.place, self.stages);
            let news = |written: &WrittenLength| {
                written.is_over || place.has_news(written) || written.stages > stages
            };
            // The sender lives as long as the draft.
            let written = self.length.wait_for(news).await;
            let is_over = written.is_ok_and(|written| written.is_over);
            let piece = {
                let text = self.handle.draft.text.lock();
                if let Some(change) = text.stages.after(&mut self.stages) {
                    return Some(DraftChange::Stage(change));
                }
                if place.read > 0 && text.edition != place.edition {
                    return None;
                }
                text.after(&mut self.place)
            };
            match piece {
                Some(piece) => return Some(DraftChange::Text(piece.text)),
                None if is_over => return None,
                None => {}
            }
        }
    }

    /// The next piece of text, if there is any. After a draft started over, this is its beginning.
    pub fn take(&mut self) -> Option<DraftPiece> {
        self.handle.draft.text.lock().after(&mut self.place)
    }

    /// Waits until `take` may return text; forever if no more text comes.
    pub async fn grown(&mut self) {
        let place = self.place;
        drop(
            self.length
                .wait_for(|written| place.has_news(written))
                .await,
        );
    }
}

impl Engine {
    /// Opens the draft of a live request's answer, to write it from the beginning.
    pub fn open_draft(&self, request: RequestId) -> OpenDraft {
        let handle = self.inner().drafts.hold(request);
        handle.draft.begin();
        OpenDraft { handle }
    }

    /// Appends to the draft of a live request's answer, without its secrets: the end of a piece that may become one
    /// is held back until the next. Dropped if it has no writer and no reader.
    pub fn write_draft(&self, request: RequestId, piece: &str) {
        if piece.is_empty() {
            return;
        }
        if let Some(draft) = self.inner().drafts.find(request) {
            draft.write(piece, &self.policies().redaction);
        }
    }

    /// Changes the stages of a live request's draft, without their secrets. Dropped if it has no writer and no reader.
    pub fn write_stage(&self, request: RequestId, change: StageChange) {
        if let Some(draft) = self.inner().drafts.find(request) {
            draft.write_stage(change, &self.policies().redaction);
        }
    }

    /// Begins the stages of a live request's draft anew: their writer starts at the first stage.
    /// Readers get only the changes that they do not have yet.
    pub fn restart_stages(&self, request: RequestId) {
        if let Some(draft) = self.inner().drafts.find(request) {
            draft.restart_stages();
        }
    }

    /// Follows the draft of a request's answer. Call this before checking that the request is live, to
    /// miss nothing. If the request has ended, drop the reader.
    pub fn follow_draft(&self, request: RequestId) -> DraftReader {
        let handle = self.inner().drafts.hold(request);
        let length = handle.draft.length.subscribe();
        DraftReader {
            handle,
            length,
            place: ReadPosition::default(),
            stages: LogPosition::default(),
        }
    }

    /// Removes the draft of a request that has ended, for readers that followed it too late.
    pub fn forget_draft(&self, request: RequestId) {
        self.inner().drafts.end(request);
    }

    /// How many drafts are in memory.
    pub fn drafts_kept(&self) -> usize {
        self.inner().drafts.live.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc as Shared;

    use statehold_core::ids::UserId;
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
    async fn a_reader_gets_every_piece_from_the_beginning_and_then_the_end() {
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

        // A draft that is too long ends where it was cut, even if a later piece would fit.
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
    async fn a_draft_without_writer_or_reader_is_dropped() {
        let engine = engine().await;
        let request = request(7);
        let kept = || engine.drafts_kept();
        engine.write_draft(request, "nobody hears");
        assert_eq!(kept(), 0);

        // A reader keeps the draft after its writer has gone.
        let open = engine.open_draft(request);
        engine.write_draft(request, "one ");
        let mut reader = engine.follow_draft(request);
        drop(open);
        engine.write_draft(request, "two");
        assert_eq!(reader.next().await.as_deref(), Some("one two"));

        // Neither a late writer nor an old reader brings an ended draft back.
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

    #[track_caller]
    fn check_taken(reader: &mut DraftReader, expected: Option<(usize, &str)>) {
        let expected = expected.map(|(offset, text)| DraftPiece {
            offset,
            text: text.to_owned(),
        });
        assert_eq!(reader.take(), expected);
    }

    #[tokio::test]
    async fn readers_get_repeated_text_only_where_it_differs() {
        let engine = engine().await;
        let request = request(7);
        let first = engine.open_draft(request);
        let mut chat = engine.follow_draft(request);
        let mut feed = engine.follow_draft(request);
        engine.write_draft(request, "It is ");
        engine.write_draft(request, "süß");
        assert_eq!(chat.next().await.as_deref(), Some("It is süß"));
        check_taken(&mut feed, Some((0, "It is süß")));
        drop(first);

        // The same text again in other pieces, and more: existing readers get only the new part.
        let second = engine.open_draft(request);
        let mut late = engine.follow_draft(request);
        // Text that the new writer has not repeated yet is withheld: it may be replaced.
        check_taken(&mut late, None);
        engine.write_draft(request, "It");
        check_taken(&mut feed, None);
        check_taken(&mut late, Some((0, "It")));
        engine.write_draft(request, " is süß, ");
        check_taken(&mut feed, Some((11, ", ")));
        check_taken(&mut late, Some((2, " is süß, ")));
        assert_eq!(chat.next().await.as_deref(), Some(", "));
        drop(second);

        // Different text: the draft starts over. A reader that cannot retract the beginning ends.
        let _third = engine.open_draft(request);
        engine.write_draft(request, "It is s");
        engine.write_draft(request, "our.");
        feed.grown().await;
        check_taken(&mut feed, Some((0, "It is sour.")));
        check_taken(&mut late, Some((0, "It is sour.")));
        assert_eq!(chat.next().await, None);
        check_taken(&mut feed, None);
        engine.write_draft(request, " Sorry.");
        engine.forget_draft(request);
        check_taken(&mut feed, Some((11, " Sorry.")));
        assert_eq!(chat.next().await, None);
        assert_eq!(engine.drafts_kept(), 0);
        engine.shut_down().await;
    }

    #[tokio::test]
    async fn the_drafts_of_one_user_leave_memory_for_those_of_others() {
        let engine = engine().await;
        let owner = |n: u128| Owner {
            tenant: "default".parse().expect("a name"),
            app: "app".parse().expect("a name"),
            agent: "agent".parse().expect("a name"),
            user: UserId::from_uuid(uuid::Uuid::from_u128(n)),
        };
        let piece = "x".repeat(DRAFT_BYTES_MAX);
        let written = |n: u128, user: u128| {
            let open = engine.open_draft(request(n));
            let open = open.counted_for(&engine, &owner(user));
            engine.write_draft(request(n), &piece);
            let is_kept = engine.follow_draft(request(n)).take().is_some();
            (open, is_kept)
        };
        let count = ALL_BYTES_MAX / DRAFT_BYTES_MAX;
        let mut open: Vec<_> = (0..count as u128).map(|n| written(n, 1)).collect();
        let kept = open.iter().filter(|(_, is_kept)| *is_kept).count();
        assert_eq!(kept, count / 4, "the share of one user");
        let (other, is_kept) = written(1_000, 2);
        assert!(is_kept);
        // A draft that has ended gives its memory back.
        open.truncate(kept - 1);
        let (again, is_kept) = written(2_000, 1);
        assert!(is_kept);
        drop((other, again));
        engine.shut_down().await;
    }

    #[tokio::test]
    async fn a_late_reader_gets_a_long_draft_in_pieces() {
        let engine = engine().await;
        let request = request(7);
        let _open = engine.open_draft(request);
        let text = "é".repeat(5_000);
        engine.write_draft(request, "x");
        engine.write_draft(request, &text);
        let (mut chat, mut feed) = (engine.follow_draft(request), engine.follow_draft(request));
        engine.forget_draft(request);
        let (mut heard, mut pieces) = (String::new(), 0);
        while let Some(piece) = chat.next().await {
            assert!(piece.len() <= PIECE_BYTES_MAX);
            let taken = feed.take().expect("the same piece");
            assert_eq!((taken.offset, &taken.text), (heard.len(), &piece));
            heard.push_str(&piece);
            pieces += 1;
        }
        assert_eq!((heard.len(), pieces), (1 + text.len(), 3));
        engine.shut_down().await;
    }

    #[tokio::test]
    async fn a_draft_that_was_too_long_has_room_when_it_begins_again() {
        let engine = engine().await;
        let request = request(7);
        let mut feed = engine.follow_draft(request);
        let first = engine.open_draft(request);
        engine.write_draft(request, "begin ");
        engine.write_draft(request, &"x".repeat(DRAFT_BYTES_MAX));
        drop(first);
        let _second = engine.open_draft(request);
        engine.write_draft(request, "begin again");
        engine.write_draft(request, &"x".repeat(DRAFT_BYTES_MAX));
        engine.write_draft(request, "end");
        check_taken(&mut feed, Some((0, "begin again")));
        check_taken(&mut feed, None);
        engine.shut_down().await;
    }
}
