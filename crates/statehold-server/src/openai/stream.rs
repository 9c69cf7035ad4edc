//! The answer as a stream: pieces of the draft while the agent writes it, then the rest of the committed
//! answer. The stream ends only after the commit.

use std::time::Duration;

use bytes::Bytes;
use statehold_core::ids::SessionId;
use statehold_engine::EngineError;
use statehold_engine::api::caller::KeyWatch;
use statehold_engine::api::json::to_body;
use statehold_engine::api::turn::{
    AgentReply, DeliveryReceipt, TurnEvent, TurnFollower, TurnHandle, TurnOutcome, TurnSnapshot,
    pause_text,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::completion::{Ending, Voice};
use super::errors::ErrorOut;
use super::refusal::with_session;
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
    pub(crate) voice: Voice,
    /// The API key of the call: its revocation ends the stream.
    pub(crate) api_key: KeyWatch,
    /// The time until which the stream waits for a paused turn.
    pub(crate) wait_until: Instant,
    /// The address of the server, as the call names it.
    pub(crate) base: String,
    pub(crate) pieces: mpsc::Sender<BodyPiece>,
    /// The pieces of this turn's answer that have been sent.
    pub(crate) drafted: String,
    pub(crate) pauses: PausePolicy,
    /// Whether the agent may ask for calls of tools that the caller brought.
    pub(crate) with_calls: bool,
    /// The session, if a repeat of the call would create another one.
    pub(crate) only_here: Option<SessionId>,
}

/// How a stream treats a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PausePolicy {
    /// The client is told of the pause, and may come back for the answer.
    Told,
    /// The call fails: it has no session to come back to.
    Refused,
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

impl StreamWriter {
    /// Writes the stream. A broken stream does not stop the turn.
    pub(crate) async fn write(mut self) {
        let (api_key, pieces) = (self.api_key.clone(), self.pieces.clone());
        let ended = tokio::select! {
            biased;
            () = pieces.closed() => return,
            () = api_key.revoked() => Err(unauthenticated().into()),
            ended = self.write_turn() => ended,
        };
        if let Err(StreamError::Problem(problem)) = ended {
            let problem = match problem.status {
                401 => *problem,
                _ => with_session(*problem, self.only_here),
            };
            let body = to_body(&ErrorOut::of(&problem));
            drop(self.send(&body, None).await);
        }
    }

    async fn write_turn(&mut self) -> Result<(), StreamError> {
        let first = self.voice.first();
        self.send(&first, None).await?;
        let earlier = self.voice.earlier_text();
        self.send_text(&earlier).await?;
        let deadline = match self.pauses {
            PausePolicy::Told => self.wait_until,
            PausePolicy::Refused => Instant::now(),
        };
        let mut follower = self.turn.follow(deadline);
        loop {
            match self.next_event(&mut follower).await? {
                TurnEvent::Delta(piece) => {
                    self.drafted.push_str(&piece);
                    self.send_text(&piece).await?;
                }
                TurnEvent::Paused(snapshot) => self.tell_pause(&snapshot).await?,
                TurnEvent::Over(outcome) => return self.end(outcome).await,
            }
        }
    }

    /// Waits for the next event, and keeps the connection awake meanwhile.
    async fn next_event(&mut self, follower: &mut TurnFollower) -> Result<TurnEvent, StreamError> {
        let mut next = std::pin::pin!(follower.next());
        loop {
            tokio::select! {
                biased;
                event = &mut next => return Ok(event?),
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    let comment = Bytes::from_static(sse::KEEP_ALIVE);
                    self.hand_over(comment, None).await?;
                }
            }
        }
    }

    async fn end(&mut self, outcome: TurnOutcome) -> Result<(), StreamError> {
        match outcome {
            TurnOutcome::Answered(snapshot) => self.end_answered(&snapshot).await,
            TurnOutcome::Failed(snapshot, failed) => {
                let problem = with_session(failed.into(), self.only_here);
                let body = to_body(&ErrorOut::of(&problem));
                let receipt = self.receipt(&snapshot);
                self.send(&body, receipt).await
            }
            TurnOutcome::Paused(snapshot) => self.end_paused(&snapshot).await,
        }
    }

    async fn tell_pause(&mut self, snapshot: &TurnSnapshot) -> Result<(), StreamError> {
        let account = self.turn.account(snapshot).await?;
        let chunk = self.voice.paused(account.via, &snapshot.holds);
        let receipt = self.receipt(snapshot);
        self.send(&chunk, receipt).await
    }

    async fn end_answered(&mut self, snapshot: &TurnSnapshot) -> Result<(), StreamError> {
        let mut answer = if self.with_calls {
            AgentReply::with_calls(&snapshot.detail)
        } else {
            AgentReply::of(&snapshot.detail)
        };
        match answer.text.strip_prefix(&self.drafted) {
            Some(rest) => answer.text = rest.to_owned(),
            // The committed answer counts, also where it differs from the draft.
            None if !answer.text.is_empty() => answer.text.insert_str(0, "\n\n"),
            None => {}
        }
        let text = std::mem::take(&mut answer.text);
        self.send_text(&text).await?;
        let ending = Ending {
            answer,
            account: self.turn.account(snapshot).await?,
            holds: Vec::new(),
        };
        let receipt = self.receipt(snapshot);
        self.end_stream(&ending, receipt).await
    }

    async fn end_paused(&mut self, snapshot: &TurnSnapshot) -> Result<(), StreamError> {
        if self.pauses == PausePolicy::Refused {
            return Err(super::stateless::needs_session().into());
        }
        let mut text = pause_text(&snapshot.holds, &self.base);
        if !self.drafted.is_empty() {
            text.insert_str(0, "\n\n");
        }
        self.send_text(&text).await?;
        let ending = Ending {
            answer: AgentReply::default(),
            account: self.turn.account(snapshot).await?,
            holds: snapshot.holds.clone(),
        };
        let receipt = self.receipt(snapshot);
        self.end_stream(&ending, receipt).await
    }

    async fn end_stream(
        &mut self,
        ending: &Ending,
        receipt: Option<DeliveryReceipt>,
    ) -> Result<(), StreamError> {
        let last = self.voice.last(ending);
        self.send(&last, None).await?;
        if let Some(usage) = self.voice.usage(ending.account.usage) {
            self.send(&usage, None).await?;
        }
        self.send(b"[DONE]", receipt).await
    }

    /// The receipt for an answer that shows this snapshot. None for a turn without a session.
    fn receipt(&self, snapshot: &TurnSnapshot) -> Option<DeliveryReceipt> {
        let deliveries = &self.app.deliveries;
        (self.pauses == PausePolicy::Told)
            .then(|| deliveries.receipt(&self.turn, &self.voice.earlier, snapshot))
    }

    async fn send_text(&mut self, text: &str) -> Result<(), StreamError> {
        if text.is_empty() {
            return Ok(());
        }
        let chunk = self.voice.text(text);
        self.send(&chunk, None).await
    }

    /// Sends one event.
    async fn send(
        &mut self,
        data: &[u8],
        receipt: Option<DeliveryReceipt>,
    ) -> Result<(), StreamError> {
        let mut event = Vec::with_capacity(data.len() + 8);
        sse::push_event(&mut event, None, None, data);
        self.hand_over(event.into(), receipt).await
    }

    async fn hand_over(
        &mut self,
        bytes: Bytes,
        receipt: Option<DeliveryReceipt>,
    ) -> Result<(), StreamError> {
        let piece = BodyPiece { bytes, receipt };
        let sent = self.pieces.send(piece).await;
        sent.map_err(|_| StreamError::Disconnected)
    }
}
