//! The answer as a stream: pieces of the draft while the agent writes it, then the rest of the committed
//! answer. The stream ends only after the commit.
//!
//! The bytes are those of a [`TurnFormat`]; everything else is the same on every surface.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use sha2::{Digest as _, Sha256};
use statehold_core::ids::SessionId;
use statehold_engine::api::turn::{
    DeliveryReceipt, EarlierAnswer, ReplyParts, TurnEvent, TurnFollower, TurnHandle, TurnSnapshot,
};
use statehold_engine::stage::StageChange;
use statehold_engine::{CallCredential, EngineError, HoldDetail};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::oneshot;

use super::refusal::with_session;
use super::stateless::{ScratchSession, needs_session};
use super::{ChatSurface, Ending, Preface, TurnExtras, reply_of};
use crate::http::call::{App, CallContext, unauthenticated};
use crate::http::delivery::BodyPiece;
use crate::http::problem::Problem;
use crate::http::shares::SMALL_ANSWER_BYTES;

/// How often a comment keeps the connection awake.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How much of the text that was sent is remembered.
const DRAFT_BEGIN_BYTES: usize = 1024;

/// The bytes of a stream on one surface. Empty bytes are not sent.
pub(crate) trait TurnFormat: Send + Sync + 'static {
    /// Adds the headers of the stream.
    fn set_headers(&self, headers: &mut HeaderMap);
    /// The beginning, with the preface.
    fn begin(&mut self, preface: &Preface) -> Vec<u8>;
    /// A piece of the answer.
    fn text(&mut self, text: &str) -> Vec<u8>;
    /// A change of the stages of the turn. Most surfaces have no place for it.
    fn stage(&mut self, _change: &StageChange) -> Vec<u8> {
        Vec::new()
    }
    /// A pause that the call waits for; more follows.
    fn pause(&mut self, via: Vec<String>, holds: &[HoldDetail]) -> Vec<u8>;
    /// The end of such a pause: people have decided. Most surfaces say nothing.
    fn resume(&mut self) -> Vec<u8> {
        Vec::new()
    }
    /// The end. The text of the ending is the whole answer, `rest` the part that was not sent yet.
    fn end(&mut self, rest: &str, ending: &Ending) -> Vec<u8>;
    /// The end by an error.
    fn error(&mut self, problem: &Problem) -> Vec<u8>;
    /// Bytes that mean nothing, for an idle connection.
    fn keep_alive(&self) -> &'static [u8];
}

/// Writes one stream.
pub(crate) struct StreamWriter<F> {
    pub(crate) app: App,
    pub(crate) turn: TurnHandle,
    pub(crate) format: F,
    /// A line about a question that stays open.
    pub(crate) reminder: Option<String>,
    /// The call: its memory for answers, and its API key, whose revocation ends the stream.
    pub(crate) asked: CallContext,
    /// The key of the call, which ends with the stream.
    #[expect(dead_code, reason = "it is only owned")]
    pub(crate) own_key: Option<Arc<CallCredential>>,
    /// The address of the server, as the call names it.
    pub(crate) base: String,
    pub(crate) pieces: Sender<BodyPiece>,
    /// The pieces of this turn's answer that have been sent, and the beginning of the text before them.
    pub(crate) drafted: DraftedText,
    pub(crate) preface_begin: String,
    /// The session in memory of a turn without a session. Such a call fails at a pause: the client cannot come
    /// back.
    pub(crate) scratch: Option<Arc<ScratchSession>>,
    /// The words of the surface, for a turn that needs a session.
    pub(crate) surface: &'static ChatSurface,
    /// The parts of the reply that the caller gets.
    pub(crate) reply_parts: ReplyParts,
    /// Whether the last piece carries the hidden items of the turn.
    pub(crate) wants_debug: bool,
    pub(crate) extras: TurnExtras,
    /// The session, if a repeat of the call would create another one.
    pub(crate) only_here: Option<SessionId>,
}

/// A text that a stream has sent: not the text itself, which may be long, but enough to know it again.
#[derive(Debug, Default)]
pub(crate) struct SentText {
    bytes: usize,
    digest: Sha256,
}

impl SentText {
    pub(crate) fn push(&mut self, piece: &str) {
        self.bytes += piece.len();
        self.digest.update(piece.as_bytes());
    }

    /// The rest of a text that begins with this one.
    pub(crate) fn rest_of<'a>(&self, whole: &'a str) -> Option<&'a str> {
        let (begin, rest) = whole.split_at_checked(self.bytes)?;
        let is_same = Sha256::digest(begin.as_bytes()) == self.digest.clone().finalize();
        is_same.then_some(rest)
    }
}

/// The text that a stream has sent of an answer.
#[derive(Debug, Default)]
pub(crate) struct DraftedText {
    sent: SentText,
    /// Its beginning.
    begin: String,
}

impl DraftedText {
    fn push(&mut self, piece: &str) {
        self.sent.push(piece);
        let room = DRAFT_BEGIN_BYTES.saturating_sub(self.begin.len());
        self.begin
            .push_str(&piece[..piece.floor_char_boundary(room)]);
    }

    fn is_empty(&self) -> bool {
        self.sent.bytes == 0
    }

    /// The rest of an answer that begins with this text.
    fn rest_of<'a>(&self, answer: &'a str) -> Option<&'a str> {
        self.sent.rest_of(answer)
    }
}

/// Why a stream ends before its answer does.
enum StreamError {
    /// The client has disconnected.
    Disconnected,
    /// The stream ends with this problem.
    Problem(Box<Problem>),
}

impl From<Problem> for StreamError {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl From<EngineError> for StreamError {
    fn from(error: EngineError) -> Self {
        Problem::from(error).into()
    }
}

impl From<SendError<BodyPiece>> for StreamError {
    fn from(_: SendError<BodyPiece>) -> Self {
        Self::Disconnected
    }
}

impl<F: TurnFormat> StreamWriter<F> {
    /// Writes the stream. A broken stream does not stop the turn.
    pub(crate) async fn write(mut self, follower: TurnFollower, first: Option<TurnEvent>) {
        let (api_key, pieces) = (self.asked.api_key.clone(), self.pieces.clone());
        let ended = tokio::select! {
            biased;
            () = pieces.closed() => Err(StreamError::Disconnected),
            () = api_key.revoked() => Err(unauthenticated().into()),
            ended = self.write_turn(follower, first) => ended,
        };
        if ended.is_err() {
            self.note_part();
        }
        if let Err(StreamError::Problem(problem)) = ended {
            let problem = match problem.status {
                401 => *problem,
                _ => with_session(*problem, self.only_here, self.surface),
            };
            let bytes = self.format.error(&problem);
            drop(self.send(bytes, None).await);
        }
    }

    async fn write_turn(
        &mut self,
        mut follower: TurnFollower,
        mut first: Option<TurnEvent>,
    ) -> Result<(), StreamError> {
        let earlier = match &first {
            Some(TurnEvent::Over(snapshot)) => snapshot.earlier.clone(),
            _ => self.turn.earlier(&self.asked).await?,
        };
        let begin = self.begin(earlier);
        if first.is_some() {
            self.send(begin, None).await?;
        } else {
            self.send_and_release(begin, None).await?;
        }
        loop {
            let event = match first.take() {
                Some(first) => first,
                None => self.next_event(&mut follower).await?,
            };
            match event {
                TurnEvent::Delta(piece) => {
                    self.drafted.push(&piece);
                    let bytes = self.format.text(&piece);
                    self.send(bytes, None).await?;
                }
                TurnEvent::Stage(change) => {
                    let bytes = self.format.stage(&change);
                    self.send(bytes, None).await?;
                }
                TurnEvent::Paused(snapshot) => {
                    let receipt = self.receipt(&snapshot);
                    let TurnSnapshot { account, holds, .. } = *snapshot;
                    let bytes = self.format.pause(account.via, &holds);
                    drop(holds);
                    self.send_and_release(bytes, receipt).await?;
                }
                TurnEvent::Resumed => {
                    let bytes = self.format.resume();
                    self.send(bytes, None).await?;
                }
                TurnEvent::Over(snapshot) => return self.end(*snapshot).await,
            }
        }
    }

    /// Waits for the next event, and keeps the connection awake.
    async fn next_event(&self, follower: &mut TurnFollower) -> Result<TurnEvent, StreamError> {
        let mut next = std::pin::pin!(follower.next(&self.asked));
        loop {
            tokio::select! {
                biased;
                event = &mut next => return Ok(event?),
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    self.send(self.format.keep_alive().to_vec(), None).await?;
                }
            }
        }
    }

    /// Ends the stream with the error or the answer of the turn, or with its pause.
    async fn end(&mut self, snapshot: TurnSnapshot) -> Result<(), StreamError> {
        let receipt = self.receipt(&snapshot);
        let failure = self.turn.failure(&snapshot).await;
        if let Some(scratch) = &self.scratch {
            let end = (&self.turn, failure.is_some());
            self.app.failed_calls.settle(&self.app, scratch, end);
        }
        if let Some(failed) = failure {
            self.note_part();
            let problem = with_session(failed.into(), self.only_here, self.surface);
            let bytes = self.format.error(&problem);
            return self.send(bytes, receipt).await;
        }
        let is_paused = snapshot.is_paused();
        if is_paused && self.scratch.is_some() {
            return Err(needs_session(self.surface).into());
        }
        let mut answer = reply_of(&snapshot, self.reply_parts, &self.base);
        let mut state = answer.state.take();
        if self.scratch.is_none() {
            state = self
                .extras
                .plain_state(&self.app, &self.turn, &snapshot)
                .await?;
        }
        let carries = (snapshot.revision, state);
        let debug = if self.wants_debug {
            Some(self.turn.debug(&self.asked.caller, &snapshot).await?)
        } else {
            None
        };
        let mut ending = Ending::of(snapshot, self.reminder.take(), answer);
        ending.debug = debug;
        let (turn, extras) = (&self.turn, std::mem::take(&mut self.extras));
        extras.complete(
            &self.app,
            (turn, self.scratch.is_none()),
            carries,
            &mut ending,
        );
        let text = ending.answer.text.as_str();
        let rest = match self.drafted.rest_of(text) {
            Some(rest) if !is_paused || self.drafted.is_empty() => Cow::Borrowed(rest),
            _ if text.is_empty() => Cow::Borrowed(""),
            // The committed answer counts, also where it differs from the draft.
            _ => Cow::Owned(format!("\n\n{text}")),
        };
        let bytes = self.format.end(&rest, &ending);
        drop(rest);
        drop(ending);
        self.asked.slot.shrink_answer(bytes.len() as u64);
        self.send(bytes, receipt).await
    }

    /// The beginning of the stream. Its text does not stay in memory.
    fn begin(&mut self, earlier: Vec<EarlierAnswer>) -> Vec<u8> {
        let reminder = self.reminder.clone();
        let preface = Preface { earlier, reminder };
        let mut text = preface.text();
        text.truncate(text.floor_char_boundary(DRAFT_BEGIN_BYTES));
        text.shrink_to_fit();
        self.preface_begin = text;
        self.format.begin(&preface)
    }

    /// The receipt for an answer that shows this snapshot. None for a turn without a session.
    fn receipt(&self, snapshot: &TurnSnapshot) -> Option<DeliveryReceipt> {
        let deliveries = &self.app.deliveries;
        let has_session = self.scratch.is_none();
        has_session.then(|| deliveries.receipt(&self.turn, true, snapshot))
    }

    /// Notes the text that the client has without an answer. It may send that text with its next call.
    fn note_part(&self) {
        if self.scratch.is_none() && !self.drafted.is_empty() {
            let text = format!("{}{}", self.preface_begin, self.drafted.begin);
            self.app.deliveries.note_part(self.turn.request, &text);
        }
    }

    async fn send(
        &self,
        bytes: Vec<u8>,
        receipt: Option<DeliveryReceipt>,
    ) -> Result<(), StreamError> {
        self.send_piece(bytes, receipt, None).await
    }

    /// Sends a piece that may be long, and waits until the client has taken it: it is in the memory for answers
    /// until then.
    async fn send_and_release(
        &self,
        bytes: Vec<u8>,
        receipt: Option<DeliveryReceipt>,
    ) -> Result<(), StreamError> {
        if bytes.len() as u64 <= SMALL_ANSWER_BYTES {
            self.asked.slot.hold_answer(None);
            return self.send(bytes, receipt).await;
        }
        self.asked.slot.shrink_answer(bytes.len() as u64);
        let (taken, is_taken) = oneshot::channel();
        self.send_piece(bytes, receipt, Some(taken)).await?;
        // An error says that it was taken.
        drop(is_taken.await);
        self.asked.slot.hold_answer(None);
        Ok(())
    }

    async fn send_piece(
        &self,
        bytes: Vec<u8>,
        receipt: Option<DeliveryReceipt>,
        taken: Option<oneshot::Sender<()>>,
    ) -> Result<(), StreamError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let piece = BodyPiece {
            bytes: bytes.into(),
            receipt,
            taken,
        };
        Ok(self.pieces.send(piece).await?)
    }
}
