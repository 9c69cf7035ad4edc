//! The messages of a conversation, as one document of one revision.

use serde::Serialize;
use serde_json::{Value, json};
use statehold_core::ids::SessionId;
use statehold_engine::api::item::MessageView;
use statehold_engine::{EngineError, PageLimit, api};

use super::uri::{ConversationUri, Part, Range};
use crate::http::call::CallContext;
use crate::http::problem::Problem;

/// The most messages of one document.
const MESSAGES_MAX: usize = 10_000;
/// The most bytes of a document of several pages.
const DOCUMENT_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The messages of a revision, or the newest that fit a document.
#[derive(Debug, Serialize)]
pub(super) struct History {
    /// The revision that has them.
    pub(super) rev: u64,
    /// The messages, oldest first.
    pub(super) messages: Vec<MessageView>,
    /// The revision that the reader had.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<u64>,
    /// A rewind took out messages that the reader had: these are all that there are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reset: bool,
    /// Where the messages before these are.
    #[serde(skip_serializing_if = "Option::is_none")]
    earlier: Option<String>,
}

impl History {
    /// The messages as plain `{role, content}`.
    pub(super) fn plain(&self) -> Value {
        let plain =
            |message: &MessageView| json!({"role": message.role, "content": message.content});
        self.messages.iter().map(plain).collect()
    }
}

/// Reads the messages of a conversation.
pub(super) async fn read(
    context: &CallContext,
    session: SessionId,
    range: Range,
) -> Result<History, Problem> {
    match range {
        Range::Newest => document(context, session, None).await,
        Range::At { revision, before } => {
            document(context, session, Some((revision, before))).await
        }
        Range::After(after) => tail(context, session, after).await,
    }
}

/// As many of the newest messages as fit: of a revision and before a place, or of now.
async fn document(
    context: &CallContext,
    session: SessionId,
    at: Option<(u64, Option<u64>)>,
) -> Result<History, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let (rev, before) = if let Some(at) = at {
        at
    } else {
        // All messages of a document are of one revision, whatever is written meanwhile.
        (api::session::revision(engine, caller, session).await?, None)
    };
    let read = |page| api::past::messages(engine, caller, session, rev, (before, page));
    let (mut page, mut next) = context.read_page(MESSAGES_MAX, read).await?;
    if next.is_some() {
        // Again in one piece, now that it is known to be long.
        let limit = PageLimit {
            entries: MESSAGES_MAX,
            bytes: DOCUMENT_BYTES_MAX,
        };
        context.take_answer(limit.bytes).await?;
        match read(limit).await {
            Ok(whole) => (page, next) = whole,
            // The first message is longer than a document: it came alone, as the first page.
            Err(EngineError::PageTooSmall { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let earlier = next.map(|before| {
        let range = Range::At {
            revision: rev,
            before: Some(before),
        };
        ConversationUri::Part(session, Part::History(range)).to_string()
    });
    Ok(History {
        rev,
        messages: page.messages,
        after: None,
        reset: false,
        earlier,
    })
}

/// The messages that came after a revision.
async fn tail(context: &CallContext, session: SessionId, after: u64) -> Result<History, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let last = async |page| api::past::messages(engine, caller, session, after, (None, page)).await;
    let last = match after {
        // Before the first record there was nothing.
        0 => None,
        _ => context.read_page(1, last).await?.0.messages.pop(),
    };
    let mut history = document(context, session, None).await?;
    history.after = Some(after);
    let Some(last) = last.map(|last| last.seq) else {
        return Ok(history);
    };
    let known = history
        .messages
        .iter()
        .position(|message| message.seq == last);
    if let Some(known) = known {
        history.messages.drain(..=known);
        history.earlier = None;
    } else {
        // A rewind takes out the end of a conversation, so the last known message goes first.
        let is_older = |first: &MessageView| last < first.seq;
        let may_be_earlier = history.earlier.is_some();
        let is_cut = may_be_earlier && history.messages.first().is_some_and(is_older);
        history.reset = !is_cut;
    }
    Ok(history)
}
