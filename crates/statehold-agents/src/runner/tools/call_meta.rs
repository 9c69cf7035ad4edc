//! Metadata of a tool call: ids and, for a tool that is an agent, access to the conversation.

use serde_json::json;
use statehold_engine::{EngineError, PageLimit};

use crate::gateway::traceparent;
use crate::mcp::{CallMeta, ConversationMeta};
use crate::runner::run::AgentRun;
use crate::spec::HistoryAccess;
use crate::turn::TurnError;

/// How long a token for a tool lasts, at the most. It ends with the turn before that, which may wait a day for a person.
const TOKEN_SECONDS: u64 = 48 * 60 * 60;
/// The messages that come with a call.
const INLINE_MESSAGES: PageLimit = PageLimit {
    entries: 1_000,
    bytes: 1024 * 1024,
};
impl AgentRun {
    /// Metadata of a call. None of it is recorded.
    pub(super) async fn call_meta(
        &self,
        conversation: &(HistoryAccess, Option<String>),
    ) -> Result<CallMeta, TurnError> {
        let ids = self.request.ids;
        Ok(CallMeta {
            session: ids.session.to_string(),
            task: ids.task.to_string(),
            request: ids.request.to_string(),
            turn: self.request.parent.map(|turn| turn.to_string()),
            traceparent: Some(traceparent(ids)),
            conversation: self.conversation_meta(conversation).await?,
        })
    }

    /// How a tool that is an agent reads the conversation.
    async fn conversation_meta(
        &self,
        (history, address): &(HistoryAccess, Option<String>),
    ) -> Result<Option<ConversationMeta>, TurnError> {
        Ok(match (history, address, self.conversation_reader()) {
            (HistoryAccess::Pinned | HistoryAccess::Live, Some(uri), Some(reader)) => {
                Some(ConversationMeta::Address {
                    uri: uri.clone(),
                    mcp_url: reader.mcp_url.clone(),
                    token: (reader.seal)(&self.request.read_token(TOKEN_SECONDS)),
                })
            }
            (HistoryAccess::Inline, _, _) => {
                let read = self.request.conversation(self.started_by, INLINE_MESSAGES);
                let (messages, has_earlier) = match read.await {
                    Ok(page) => (page.messages, page.next.is_some() || page.is_cut),
                    // The newest message alone is too long.
                    Err(EngineError::PageTooSmall { .. }) => (Vec::new(), true),
                    Err(error) => return Err(error.into()),
                };
                Some(ConversationMeta::Messages(json!({
                    "rev": self.started_by, "messages": messages, "has_earlier": has_earlier,
                })))
            }
            _ => None,
        })
    }
}
