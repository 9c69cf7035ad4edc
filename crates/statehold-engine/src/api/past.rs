//! Sessions as they were: state and messages at an earlier revision, and the difference between two.

mod diff;

use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::scope::StateKey;
use statehold_core::view::View;
use statehold_store::{PageLimit, PastItemQuery, PastStateQuery};

use super::annotation::add_annotations;
use super::item::MessageView;
use super::session::MessagePage;
use super::state::{StateQuery, StateView};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

pub use diff::{
    AddedMessage, DiffInput, DiffPlace, PastValueView, RewindMark, SessionDiff, StateChange, diff,
};

/// Reads a page of the session keys that a session had at a revision. Values of its app and user are not part of a
/// session, so they have no place in its past. With the key after which the next page begins.
///
/// # Errors
///
/// If the caller may not read the session, or it has no such revision.
pub async fn state(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    at: u64,
    (after, limit): (Option<StateKey>, PageLimit),
) -> Result<(StateView, Option<StateKey>), EngineError> {
    let current = engine.readable(caller, session).await?.revision;
    require_revision("at", at, (1, current))?;
    let query = PastStateQuery {
        revision: at,
        after,
        limit,
    };
    let store = Arc::clone(&engine.inner().store);
    let read = async move { store.past_state(session, query).await };
    let page = engine.long_read(caller, read).await??;
    Ok(StateView::of(&StateQuery::default(), page, at))
}

/// The messages that a session had at a revision, in pages like those of [`super::session::messages`]. Messages that
/// a later rewind took out are there.
///
/// # Errors
///
/// If the caller may not read the session, or it has no such revision.
pub async fn messages(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    at: u64,
    (before, limit): (Option<u64>, PageLimit),
) -> Result<(MessagePage, Option<u64>), EngineError> {
    let state = engine.readable_conversation(caller, session).await?;
    let current = state.revision;
    require_revision("at", at, (1, current))?;
    let query = PastItemQuery {
        revision: at,
        view: View::Client,
        before,
        limit,
    };
    let (items, next) = engine.inner().store.items_at(session, query).await?;
    let mut messages: Vec<_> = items.iter().rev().map(MessageView::of).collect();
    let place = (session, at);
    let is_whole = add_annotations(engine, caller, place, &mut messages, limit.bytes).await?;
    let view = MessagePage {
        messages,
        revision: at,
        annotations_cut: !is_whole,
        next_cursor: None,
    };
    Ok((view, next))
}

/// Refuses a revision outside a range.
pub(crate) fn require_revision(
    name: &'static str,
    revision: u64,
    (first, current): (u64, u64),
) -> Result<(), EngineError> {
    if (first..=current).contains(&revision) {
        return Ok(());
    }
    Err(EngineError::UnknownRevision {
        name,
        first,
        current,
    })
}
