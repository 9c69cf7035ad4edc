//! Which session a chat call is about: the one it names, a new one, or none.

use http::HeaderMap;
use statehold_core::ids::SessionId;

use super::request::{CompletionsIn, ConversationIn};
use crate::http::call::text;
use crate::http::problem::{Code, Problem};

/// The session that a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionChoice {
    /// An existing session.
    Session(SessionId),
    /// A new session.
    New,
    /// No session: nothing is kept.
    None,
    /// The call names none: the declaration of the agent decides.
    Unspecified,
}

impl SessionChoice {
    pub(crate) fn of(headers: &HeaderMap, chat: &CompletionsIn) -> Result<Self, Problem> {
        let header = text(headers, "x-statehold-session")?;
        let body = chat.conversation.as_ref().map(ConversationIn::text);
        let named = match (header, body) {
            (Some(header), Some(body)) if header != body => {
                let detail = "`x-statehold-session` and `conversation` differ; send one of them";
                return Err(Problem::new(Code::BadHeader, detail).with("path", "conversation"));
            }
            (named, other) => named.or(other),
        };
        match named {
            None => Ok(Self::Unspecified),
            Some("new") => Ok(Self::New),
            Some("none") => Ok(Self::None),
            // A text that is no id names no session.
            Some(id) => id
                .parse()
                .map(Self::Session)
                .map_err(|_| Problem::not_found()),
        }
    }
}
