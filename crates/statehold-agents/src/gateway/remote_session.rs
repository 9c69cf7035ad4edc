//! The session that a chat service stores for a session and a path of agents.

use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_engine::bodies::Raw;

use super::conversation_record::{self, ConversationRecord, Gateway, SessionTag, is_zero};
use super::prepared_call::CallerHistory;
use crate::message::raw;
use crate::runner::AgentRun;
use crate::turn::TurnError;

/// The agent's session, as known to a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct RemoteSession {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    pub(super) generation: u32,
    /// The newest rewind of the local session when the agent's session began.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) rewind: u64,
}

impl RemoteSession {
    /// The session of the agent, and whether a new one has to be told of earlier exchanges: in a fork, after a
    /// rewind, or if the client brought them along.
    pub(super) async fn load(run: &AgentRun) -> Result<(Self, bool), TurnError> {
        let rewind = run.request.last_rewind().await?;
        let known = conversation_record::find_newest(run, Gateway::Openai).await?;
        let Some(known) = known else {
            let is_brought = CallerHistory::of(run.input.data.as_ref()).is_some();
            let remote = Self {
                rewind,
                ..Self::default()
            };
            return Ok((remote, is_brought));
        };
        let is_here =
            known.session == SessionTag::of(run.request.ids.session) && known.rewind == rewind;
        let remote = Self {
            rewind,
            generation: known.generation,
            session: known.conversation.filter(|_| is_here),
        };
        Ok((remote, !is_here))
    }

    /// Session state after the agent has answered in `session`.
    pub(super) fn answered_in(&self, session: Option<&str>) -> Result<Self, TurnError> {
        match (session, &self.session) {
            (Some(answered), Some(known)) if answered == known => Ok(self.clone()),
            (None, Some(_)) => Ok(self.clone()),
            (None, None) => {
                let message = "the agent names no session (header x-statehold-session, or \
                               statehold.session in the body), so it would remember nothing; declare it with memory = \"restore\"";
                Err(TurnError::failed("agent_names_no_session", message))
            }
            (Some(answered), _) => Ok(Self {
                session: Some(answered.to_owned()),
                generation: self.generation + 1,
                rewind: self.rewind,
            }),
        }
    }

    /// Private state of the task.
    pub(super) fn to_record(&self, here: SessionId) -> Raw {
        raw(&ConversationRecord {
            gateway: Gateway::Openai,
            session: SessionTag::of(here),
            generation: self.generation,
            rewind: self.rewind,
            conversation: self.session.clone(),
            remote_agent: None,
            is_another: self.generation > 1,
            needs_briefing: false,
        })
    }
}
