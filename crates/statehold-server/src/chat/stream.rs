//! The answer as a stream: pieces of the draft while the agent writes it, then the rest of the committed
//! answer. The stream ends only after the commit.
//!
//! The bytes are those of a [`TurnFormat`]; everything else is the same on every surface.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use statehold_core::ids::SessionId;
use statehold_engine::api::caller::KeyWatch;
use statehold_engine::api::turn::{
    DeliveryReceipt, TurnEvent, TurnFollower, TurnHandle, TurnSnapshot,
};
use statehold_engine::{EngineError, HoldDetail};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendError;

use super::refusal::with_session;
use super::stateless::{ScratchSession, needs_session};
use super::{ChatSurface, Ending, Preface, reply_of};
use crate::http::call::{App, unauthenticated};
use crate::http::delivery::BodyPiece;
use crate::http::problem::Problem;

/// How often a comment keeps the connection awake.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The bytes of a stream on one surface. Empty bytes are not sent.
pub(crate) trait TurnFormat: Send + Sync + 'static {
    /// Adds the headers of the stream.
    fn set_headers(&self, headers: &mut HeaderMap);
    /// The beginning, with the preface.
    fn begin(&mut self) -> Vec<u8>;
    /// A piece of the answer.
    fn text(&mut self, text: &str) -> Vec<u8>;
    /// A pause that the call waits for; more follows.
    fn pause(&mut self, via: Vec<String>, holds: &[HoldDetail]) -> Vec<u8>;
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
    pub(crate) preface: Preface,
    /// The API key of the call: its revocation ends the stream.
    pub(crate) api_key: KeyWatch,
    /// The address of the server, as the call names it.
    pub(crate) base: String,
    pub(crate) pieces: Sender<BodyPiece>,
    /// The pieces of this turn's answer that have been sent.
    pub(crate) drafted: String,
    /// The session in memory of a turn without a session. Such a call fails at a pause: the client cannot come
    /// back.
    pub(crate) scratch: Option<Arc<ScratchSession>>,
    /// The words of the surface, for a turn that needs a session.
    pub(crate) surface: &'static ChatSurface,
    /// Whether the agent may ask for calls of tools that the caller brought.
    pub(crate) with_calls: bool,
    /// The session, if a repeat of the call would create another one.
    pub(crate) only_here: Option<SessionId>,
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
        let (api_key, pieces) = (self.api_key.clone(), self.pieces.clone());
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
        let begin = self.format.begin();
        self.send(begin, None).await?;
        loop {
            let event = match first.take() {
                Some(first) => first,
                None => self.next_event(&mut follower).await?,
            };
            match event {
                TurnEvent::Delta(piece) => {
                    self.drafted.push_str(&piece);
                    let bytes = self.format.text(&piece);
                    self.send(bytes, None).await?;
                }
                TurnEvent::Paused(snapshot) => {
                    let account = self.turn.account(&snapshot).await?;
                    let bytes = self.format.pause(account.via, &snapshot.holds);
                    self.send(bytes, self.receipt(&snapshot)).await?;
                }
                TurnEvent::Over(snapshot) => return self.end(*snapshot).await,
            }
        }
    }

    /// Waits for the next event, and keeps the connection awake.
    async fn next_event(&self, follower: &mut TurnFollower) -> Result<TurnEvent, StreamError> {
        let mut next = std::pin::pin!(follower.next());
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
        let answer = reply_of(&snapshot, self.with_calls, &self.base);
        let rest = match answer.text.strip_prefix(&self.drafted) {
            Some(rest) if !is_paused || self.drafted.is_empty() => rest.to_owned(),
            _ if answer.text.is_empty() => String::new(),
            // The committed answer counts, also where it differs from the draft.
            _ => format!("\n\n{}", answer.text),
        };
        let ending = Ending::of(&self.turn, snapshot, answer).await?;
        let bytes = self.format.end(&rest, &ending);
        self.send(bytes, receipt).await
    }

    /// The receipt for an answer that shows this snapshot. None for a turn without a session.
    fn receipt(&self, snapshot: &TurnSnapshot) -> Option<DeliveryReceipt> {
        let deliveries = &self.app.deliveries;
        let has_session = self.scratch.is_none();
        has_session.then(|| deliveries.receipt(&self.turn, &self.preface.earlier, snapshot))
    }

    /// Notes the text that the client has without an answer. It may send that text with its next call.
    fn note_part(&self) {
        if self.scratch.is_none() && !self.drafted.is_empty() {
            let text = format!("{}{}", self.preface.text(), self.drafted);
            self.app.deliveries.note_part(self.turn.request, &text);
        }
    }

    async fn send(
        &self,
        bytes: Vec<u8>,
        receipt: Option<DeliveryReceipt>,
    ) -> Result<(), StreamError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bytes = Bytes::from(bytes);
        Ok(self.pieces.send(BodyPiece { bytes, receipt }).await?)
    }
}
