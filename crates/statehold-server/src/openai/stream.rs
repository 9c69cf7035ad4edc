//! The answer as a stream: pieces of the draft while the agent writes it, then the rest of the committed
//! answer. The stream ends only after the commit.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use statehold_core::ids::SessionId;
use statehold_engine::EngineError;
use statehold_engine::api::caller::KeyWatch;
use statehold_engine::api::json::to_body;
use statehold_engine::api::turn::{
    DeliveryReceipt, TurnEvent, TurnFollower, TurnHandle, TurnSnapshot,
};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendError;

use super::completion::{CompletionWriter, Ending, reply_of};
use super::errors::ErrorOut;
use super::refusal::with_session;
use super::stateless::{ScratchSession, needs_session};
use crate::http::call::{App, unauthenticated};
use crate::http::delivery::BodyPiece;
use crate::http::problem::Problem;
use crate::http::sse;

/// How often a comment keeps the connection awake.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Writes one stream.
pub(crate) struct StreamWriter {
    pub(crate) app: App,
    pub(crate) turn: TurnHandle,
    pub(crate) completion: CompletionWriter,
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

impl StreamWriter {
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
                _ => with_session(*problem, self.only_here),
            };
            let body = to_body(&ErrorOut::of(&problem));
            drop(self.send(&body, None).await);
        }
    }

    async fn write_turn(
        &mut self,
        mut follower: TurnFollower,
        mut first: Option<TurnEvent>,
    ) -> Result<(), StreamError> {
        self.send(&self.completion.first(), None).await?;
        self.send_text(&self.completion.earlier_text()).await?;
        loop {
            let event = match first.take() {
                Some(first) => first,
                None => self.next_event(&mut follower).await?,
            };
            match event {
                TurnEvent::Delta(piece) => {
                    self.drafted.push_str(&piece);
                    self.send_text(&piece).await?;
                }
                TurnEvent::Paused(snapshot) => {
                    let account = self.turn.account(&snapshot).await?;
                    let chunk = self.completion.paused(account.via, &snapshot.holds);
                    self.send(&chunk, self.receipt(&snapshot)).await?;
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
                    let (bytes, receipt) = (Bytes::from_static(sse::KEEP_ALIVE), None);
                    self.pieces.send(BodyPiece { bytes, receipt }).await?;
                }
            }
        }
    }

    /// Ends the stream with the error or the answer of the turn, or with its pause.
    async fn end(&self, snapshot: TurnSnapshot) -> Result<(), StreamError> {
        let receipt = self.receipt(&snapshot);
        let failure = self.turn.failure(&snapshot).await;
        if let Some(scratch) = &self.scratch {
            let end = (&self.turn, failure.is_some());
            self.app.failed_calls.settle(&self.app, scratch, end);
        }
        if let Some(failed) = failure {
            self.note_part();
            let problem = with_session(failed.into(), self.only_here);
            return self.send(&to_body(&ErrorOut::of(&problem)), receipt).await;
        }
        let is_paused = snapshot.is_paused();
        if is_paused && self.scratch.is_some() {
            return Err(needs_session().into());
        }
        let mut answer = reply_of(&snapshot, self.with_calls, &self.base);
        let text = std::mem::take(&mut answer.text);
        let rest = match text.strip_prefix(&self.drafted) {
            Some(rest) if !is_paused || self.drafted.is_empty() => rest.to_owned(),
            _ if text.is_empty() => text,
            // The committed answer counts, also where it differs from the draft.
            _ => format!("\n\n{text}"),
        };
        self.send_text(&rest).await?;
        let ending = Ending {
            answer,
            account: self.turn.account(&snapshot).await?,
            holds: snapshot.holds,
        };
        self.send(&self.completion.last(&ending), None).await?;
        if let Some(usage) = self.completion.usage(ending.account.usage) {
            self.send(&usage, None).await?;
        }
        self.send(b"[DONE]", receipt).await
    }

    /// The receipt for an answer that shows this snapshot. None for a turn without a session.
    fn receipt(&self, snapshot: &TurnSnapshot) -> Option<DeliveryReceipt> {
        let deliveries = &self.app.deliveries;
        let has_session = self.scratch.is_none();
        has_session.then(|| deliveries.receipt(&self.turn, &self.completion.earlier, snapshot))
    }

    /// Notes the text that the client has without an answer. It may send that text with its next call.
    fn note_part(&self) {
        if self.scratch.is_none() && !self.drafted.is_empty() {
            let text = format!("{}{}", self.completion.earlier_text(), self.drafted);
            self.app.deliveries.note_part(self.turn.request, &text);
        }
    }

    async fn send_text(&self, text: &str) -> Result<(), StreamError> {
        if text.is_empty() {
            return Ok(());
        }
        self.send(&self.completion.text(text), None).await
    }

    /// Sends one event.
    async fn send(&self, data: &[u8], receipt: Option<DeliveryReceipt>) -> Result<(), StreamError> {
        let mut event = Vec::with_capacity(data.len() + 8);
        sse::push_event(&mut event, None, None, data);
        let bytes = event.into();
        Ok(self.pieces.send(BodyPiece { bytes, receipt }).await?)
    }
}
