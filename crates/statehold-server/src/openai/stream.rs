//! The answer as it is written: pieces of the draft while there is one, then whatever the committed
//! answer has beyond it. The end is said only after the commit.

use std::time::Duration;

use bytes::Bytes;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::request::RequestOutcome;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::completion::{Ending, Voice};
use super::delivery::Piece;
use super::errors::ErrorOut;
use super::paused::sentence;
use super::refusal::with_session;
use super::said::{Account, Answer};
use super::told::Receipt;
use super::turn::Place;
use super::watch::{Look, stopping};
use crate::http::call::{App, unauthenticated};
use crate::http::problem::Problem;
use statehold_engine::api::json::to_body;

/// How often a comment keeps the connection awake.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A stream in the making.
pub(crate) struct Writer {
    pub(crate) app: App,
    pub(crate) place: Place,
    pub(crate) voice: Voice,
    /// The key it came with: the right to read goes with it.
    pub(crate) secret: Option<Digest>,
    /// How long a pause is waited for.
    pub(crate) wait_until: Instant,
    /// Where the server was called.
    pub(crate) base: String,
    pub(crate) pieces: mpsc::Sender<Piece>,
    /// What has been sent of this turn's answer.
    pub(crate) drafted: String,
    /// What to do about a pause.
    pub(crate) pauses: Pauses,
    /// Whether the caller brought tools that the agent may want to have called.
    pub(crate) with_calls: bool,
    /// The session, if the same call made again would make another.
    pub(crate) only_here: Option<SessionId>,
}

/// What a pause means for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pauses {
    /// It is told.
    Told,
    /// Nobody could be told later: the call is refused.
    Refused,
}

/// Why a stream ends early.
enum Early {
    /// The client is gone.
    Gone,
    /// Something is wrong.
    Wrong(Box<Problem>),
}

impl From<Problem> for Early {
    fn from(problem: Problem) -> Self {
        Self::Wrong(Box::new(problem))
    }
}

impl Writer {
    /// Writes the stream. Whatever happens to it, the turn goes on.
    pub(crate) async fn write(mut self) {
        let secret = self.secret;
        let (app, pieces) = (self.app.clone(), self.pieces.clone());
        let revoked = async {
            match secret {
                Some(secret) => app.revoked(secret).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            () = pieces.closed() => return,
            () = revoked => Err(unauthenticated().into()),
            ended = self.write_turn() => ended,
        };
        if let Err(Early::Wrong(problem)) = ended {
            let problem = match problem.status {
                401 => *problem,
                _ => with_session(*problem, self.only_here),
            };
            let body = to_body(&ErrorOut::of(&problem));
            drop(self.send(&body, None).await);
        }
    }

    async fn write_turn(&mut self) -> Result<(), Early> {
        let first = self.voice.first();
        self.send(&first, None).await?;
        let earlier = self.voice.earlier_text();
        self.send_text(&earlier).await?;
        let look = self.follow().await?;
        match look.sign.ended {
            Some((RequestOutcome::Completed, ..)) => self.end_answered(&look).await,
            Some(_) => {
                let problem = self.place.failure(&look).await;
                let problem = problem.unwrap_or_else(Problem::not_found);
                let problem = with_session(problem, self.only_here);
                let body = to_body(&ErrorOut::of(&problem));
                let receipt = self.receipt(&look);
                self.send(&body, receipt).await
            }
            None => self.end_paused(&look).await,
        }
    }

    /// Sends the draft as it grows, until the turn has ended, or is paused and nobody waits for that.
    async fn follow(&mut self) -> Result<Look, Early> {
        let place = self.place.clone();
        // Begun before looking, it misses nothing.
        let mut draft = place.engine.follow_draft(place.request);
        let mut is_drafted = true;
        let mut told = Vec::new();
        loop {
            let (look, revision) = place.glance().await?;
            let is_paused = look.as_ref().is_some_and(Look::is_paused);
            if let Some(look) = look {
                if look.sign.ended.is_some() {
                    place.engine.forget_draft(place.request);
                    return Ok(look);
                }
                let waits = Instant::now() < self.wait_until && self.pauses == Pauses::Told;
                if is_paused && !waits {
                    return Ok(look);
                }
                let holds = look.hold_ids();
                if is_paused && told != holds {
                    self.tell_pause(&look).await?;
                    told = holds;
                }
            }
            let changed = place.engine.changed_after(place.session, revision);
            let mut changed = std::pin::pin!(changed);
            let app = self.app.clone();
            let mut stopping_now = std::pin::pin!(app.engine.stopping());
            loop {
                let keep_alive = tokio::time::sleep(KEEP_ALIVE);
                tokio::select! {
                    biased;
                    piece = draft.next(), if is_drafted => match piece {
                        Some(piece) => {
                            self.drafted.push_str(&piece);
                            self.send_text(&piece).await?;
                        }
                        None => is_drafted = false,
                    },
                    changed = &mut changed => {
                        changed.map_err(Problem::from)?;
                        break;
                    }
                    () = &mut stopping_now => return Err(stopping().into()),
                    () = tokio::time::sleep_until(self.wait_until), if is_paused => break,
                    () = keep_alive => {
                        let comment = Bytes::from_static(b": still here\n\n");
                        self.hand_over(comment, None).await?;
                    }
                }
            }
        }
    }

    async fn tell_pause(&mut self, look: &Look) -> Result<(), Early> {
        let account = self.account(look).await?;
        let chunk = self.voice.paused(account.via, &look.holds);
        let receipt = self.receipt(look);
        self.send(&chunk, receipt).await
    }

    async fn end_answered(&mut self, look: &Look) -> Result<(), Early> {
        let mut answer = if self.with_calls {
            Answer::with_calls(&look.detail)
        } else {
            Answer::of(&look.detail)
        };
        match answer.text.strip_prefix(&self.drafted) {
            Some(rest) => answer.text = rest.to_owned(),
            // What was committed counts, whatever the draft said.
            None if !answer.text.is_empty() => answer.text.insert_str(0, "\n\n"),
            None => {}
        }
        let text = std::mem::take(&mut answer.text);
        self.send_text(&text).await?;
        let ending = Ending {
            answer,
            account: self.account(look).await?,
            holds: Vec::new(),
        };
        let receipt = self.receipt(look);
        self.end(&ending, receipt).await
    }

    async fn end_paused(&mut self, look: &Look) -> Result<(), Early> {
        if self.pauses == Pauses::Refused {
            return Err(super::stateless::needs_session().into());
        }
        let mut text = sentence(&look.holds, &self.base);
        if !self.drafted.is_empty() {
            text.insert_str(0, "\n\n");
        }
        self.send_text(&text).await?;
        let ending = Ending {
            answer: Answer::default(),
            account: self.account(look).await?,
            holds: look.holds.clone(),
        };
        let receipt = self.receipt(look);
        self.end(&ending, receipt).await
    }

    async fn end(&mut self, ending: &Ending, receipt: Option<Receipt>) -> Result<(), Early> {
        let last = self.voice.last(ending);
        self.send(&last, None).await?;
        if let Some(usage) = self.voice.usage(ending.account.usage) {
            self.send(&usage, None).await?;
        }
        self.send(b"[DONE]", receipt).await
    }

    async fn account(&self, look: &Look) -> Result<Account, Problem> {
        let place = &self.place;
        Ok(Account::of(&place.engine, &place.reader, &look.detail).await?)
    }

    /// What the client knows when it has all of this. None where nothing stays.
    fn receipt(&self, look: &Look) -> Option<Receipt> {
        (self.pauses == Pauses::Told)
            .then(|| Receipt::of(&self.app, &self.place, &self.voice.earlier, look))
    }

    async fn send_text(&mut self, text: &str) -> Result<(), Early> {
        if text.is_empty() {
            return Ok(());
        }
        let chunk = self.voice.text(text);
        self.send(&chunk, None).await
    }

    /// Sends one event.
    async fn send(&mut self, data: &[u8], receipt: Option<Receipt>) -> Result<(), Early> {
        let mut event = Vec::with_capacity(data.len() + 8);
        event.extend_from_slice(b"data: ");
        // JSON that came with line breaks keeps them; between its tokens a blank is as good.
        event.extend(data.iter().map(|byte| match byte {
            b'\n' | b'\r' => b' ',
            other => *other,
        }));
        event.extend_from_slice(b"\n\n");
        self.hand_over(event.into(), receipt).await
    }

    async fn hand_over(&mut self, bytes: Bytes, receipt: Option<Receipt>) -> Result<(), Early> {
        let piece = Piece { bytes, receipt };
        let sent = self.pieces.send(piece).await;
        sent.map_err(|_| Early::Gone)
    }
}
