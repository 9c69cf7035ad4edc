//! The messages of a conversation, as one document of one revision.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::api::conversation::ConversationPlace;
use statehold_engine::api::item::MessageView;
use statehold_engine::{EngineError, PageLimit, api};

use super::uri::{ConversationUri, HistoryQuery, Part, Range};
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
    /// Facts about the whole conversation, such as the intents of its user.
    metadata: BTreeMap<String, Box<RawValue>>,
    /// The revision that the reader had.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<u64>,
    /// A rewind took out messages that the reader had: these are all that there are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reset: bool,
    /// Where the messages before these are.
    #[serde(skip_serializing_if = "Option::is_none")]
    earlier: Option<String>,
    /// Answers of phases or annotations were left out, because they are too long.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

impl History {
    /// The messages as plain `{role, content}`.
    pub(super) fn plain(&self) -> Value {
        let plain = |message: &MessageView| {
            let mut plain = json!({"role": message.role, "content": message.content});
            if let Some(name) = &message.name {
                plain["name"] = json!(name);
            }
            plain
        };
        self.messages.iter().map(plain).collect()
    }
}

/// Reads the messages of a conversation. The token of a phase shows the answers of the phases before it, too.
pub(super) async fn read(
    context: &CallContext,
    session: SessionId,
    query: HistoryQuery,
) -> Result<History, Problem> {
    let own_turn = context.caller.phase.and_then(|phase| phase.turn);
    let turn = query.turn.or(own_turn);
    match query.range {
        Range::Newest => newest(context, session, turn).await,
        Range::At { revision, before } => {
            let place = ConversationPlace {
                revision,
                turn,
                before,
            };
            document(context, session, place).await
        }
        Range::After(after) => tail(context, session, after, turn).await,
    }
}

async fn newest(
    context: &CallContext,
    session: SessionId,
    turn: Option<RequestId>,
) -> Result<History, Problem> {
    // All messages of a document are of one revision, also while others write.
    let place = ConversationPlace {
        revision: api::session::revision(context.engine(), &context.caller, session).await?,
        turn,
        before: None,
    };
    document(context, session, place).await
}

/// As many of the newest messages of a place as fit.
async fn document(
    context: &CallContext,
    session: SessionId,
    place: ConversationPlace,
) -> Result<History, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::conversation::messages(engine, caller, session, place, page);
    let mut page = context.read_page(MESSAGES_MAX, read).await?;
    if page.next.is_some() || page.is_cut {
        // It is long: read it again in one piece. Answers of phases may be as long as the messages.
        let limit = PageLimit {
            entries: MESSAGES_MAX,
            bytes: DOCUMENT_BYTES_MAX,
        };
        let parts = if place.turn.is_some() { 2 } else { 1 };
        context.take_answer(parts * limit.bytes).await?;
        match read(limit).await {
            Ok(whole) => page = whole,
            // The first message is longer than a document: it came alone, as the first page.
            Err(EngineError::PageTooSmall { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let earlier = page.next.map(|before| {
        let range = Range::At {
            revision: place.revision,
            before: Some(before),
        };
        let turn = place.turn;
        let query = HistoryQuery { range, turn };
        ConversationUri::Part(session, Part::History(query)).to_string()
    });
    let known = api::annotation::metadata(engine, caller, session, Some(place.revision)).await?;
    Ok(History {
        rev: place.revision,
        messages: page.messages,
        metadata: known.metadata,
        after: None,
        reset: false,
        earlier,
        cut: page.is_cut,
    })
}

/// The messages that came after a revision.
async fn tail(
    context: &CallContext,
    session: SessionId,
    after: u64,
    turn: Option<RequestId>,
) -> Result<History, Problem> {
    let place = ConversationPlace {
        revision: after,
        turn,
        before: None,
    };
    let known = match (after, turn) {
        // Before the first record there was nothing.
        (0, _) => Vec::new(),
        // An answer of a phase is read some time after it was given, so all that the reader had is compared.
        (_, Some(_)) => document(context, session, place).await?.messages,
        (_, None) => {
            let (engine, caller) = (context.engine(), &context.caller);
            let last = |page| api::conversation::messages(engine, caller, session, place, page);
            context.read_page(1, last).await?.messages
        }
    };
    let known: BTreeSet<u64> = known.iter().map(|message| message.seq).collect();
    let mut history = newest(context, session, turn).await?;
    history.after = Some(after);
    let (Some(first), Some(last)) = (known.first(), known.last()) else {
        return Ok(history);
    };
    let has_last = history.messages.iter().any(|message| message.seq == *last);
    if has_last {
        let is_new = |message: &MessageView| {
            let seq = message.seq;
            if turn.is_some() {
                seq > *first && !known.contains(&seq)
            } else {
                seq > *last
            }
        };
        history.messages.retain(is_new);
        history.earlier = None;
    } else {
        // A rewind takes out the end of a conversation, so the last known message goes first.
        let is_older = |message: &MessageView| *last < message.seq;
        let may_be_earlier = history.earlier.is_some();
        let is_cut = may_be_earlier && history.messages.first().is_some_and(is_older);
        history.reset = !is_cut;
    }
    Ok(history)
}
