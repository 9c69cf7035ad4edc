//! Answers of turns that a client knows as paused, and that have ended since: they come before the answer to its next
//! message.

use serde::Serialize;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::request::RequestOutcome;
use statehold_store::record_bytes;
use utoipa::ToSchema;

use super::{AgentReply, ReplyParts};
use crate::answer_memory::ANSWER_PAGE_BYTES;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::RequestHead;

/// The answer of a turn that a client knows as paused, and that has ended since.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ChatEarlier)]
pub struct EarlierAnswer {
    /// The turn.
    pub request: RequestId,
    /// Its answer.
    pub content: String,
}

/// Such a turn, before its answer is read.
#[derive(Debug, Clone)]
pub(super) struct EarlierTurn {
    pub(super) request: RequestId,
    alias: String,
    outcome: RequestOutcome,
    /// The record that has its answer, and the size of that record. None if the answer is a fixed text.
    answer: Option<(SessionId, u64, u64)>,
}

impl EarlierTurn {
    /// A turn that has ended.
    pub(super) async fn of(
        engine: &Engine,
        head: &RequestHead,
    ) -> Result<Option<Self>, EngineError> {
        let Some(end) = head.request.ended() else {
            return Ok(None);
        };
        let session = head.session.id;
        let answer = match end.outcome {
            RequestOutcome::Completed => {
                let record = engine.record_head(session, end.ended_by).await?;
                let bytes = record.as_ref().map_or(0, record_bytes);
                Some((session, end.ended_by, bytes))
            }
            RequestOutcome::Failed | RequestOutcome::Cancelled => None,
        };
        Ok(Some(Self {
            request: head.request.id(),
            alias: head.request.alias(),
            outcome: end.outcome,
            answer,
        }))
    }

    /// The size of the record that has its answer.
    pub(super) fn bytes(&self) -> u64 {
        self.answer.map_or(0, |(_, _, bytes)| bytes)
    }

    /// Reads the answer. The caller has taken the memory for it.
    pub(super) async fn read(&self, engine: &Engine) -> Result<EarlierAnswer, EngineError> {
        let (request, alias) = (self.request, &self.alias);
        let content = match (self.outcome, self.answer) {
            (RequestOutcome::Failed, _) => format!("{alias} failed after its pause."),
            (RequestOutcome::Cancelled, _) => format!("{alias} was cancelled."),
            (RequestOutcome::Completed, None) => String::new(),
            (RequestOutcome::Completed, Some((session, ended_by, _))) => {
                let finished = engine.record(session, ended_by).await?;
                AgentReply::of(request, finished.as_ref(), ReplyParts::default()).text
            }
        };
        Ok(EarlierAnswer { request, content })
    }
}

/// The first turns whose answers fit one page, one at least. The others come with a later call.
pub(super) fn fitting(mut turns: Vec<EarlierTurn>) -> Vec<EarlierTurn> {
    let mut bytes = 0;
    let fitting = turns.iter().take_while(|turn| {
        bytes += turn.bytes();
        bytes <= ANSWER_PAGE_BYTES
    });
    let fitting = fitting.count().max(1);
    turns.truncate(fitting);
    turns
}
