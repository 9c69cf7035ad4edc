//! Agents in other processes, each called in the way it remembers: those that remember nothing get their
//! own exchanges back, those that keep a conversation get only what is new.
//!
//! What an agent says about itself is kept under its task and never read by the names in it.

mod conversations;
mod exchange;
mod openai;
mod pause;
mod raw_object;
mod remembered;
mod said;
mod shared;
mod state;
mod trail;

pub(crate) use conversations::Conversations;
pub(crate) use openai::Openai;
pub(crate) use remembered::Locks;
pub(crate) use trail::traceparent;

use serde::{Deserialize, Serialize};
use statehold_core::scope::StateKey;
use statehold_engine::kept::Raw;

use crate::http::CallError;
use crate::turn::TurnError;

/// The marked block with session values that stands before a message, for an agent that is no gateway.
pub(crate) fn shared_block(values: &[(StateKey, Raw)], text: &str) -> Option<String> {
    shared::block(shared::Told::of(values).as_ref(), text)
}

/// Something to note in the trace.
type Note = (&'static str, Raw);

/// A note that was recorded with a step.
#[derive(Debug, Serialize, Deserialize)]
struct RecordedNote {
    name: String,
    data: Raw,
}

/// The notes that gateways write beside those with the state.
const NOTES: [&str; 5] = [
    "conversation_recreated",
    crate::history::LEFT_OUT,
    "shared_context_clipped",
    "state_pruned",
    "state_set_aside",
];

fn recorded(notes: Vec<Note>) -> Vec<RecordedNote> {
    let notes = notes.into_iter().map(|(name, data)| RecordedNote {
        name: name.to_owned(),
        data,
    });
    notes.collect()
}

fn of_record(notes: Vec<RecordedNote>) -> Vec<Note> {
    let notes = notes.into_iter().filter_map(|note| {
        let name = NOTES.into_iter().find(|known| *known == note.name)?;
        Some((name, note.data))
    });
    notes.collect()
}

/// A call that brought no answer ends the turn, and only the turn.
fn failed(error: &CallError) -> TurnError {
    TurnError::failed(error.code(), error.to_string())
}

/// Whether a turn failed because the service does not know the conversation any more.
fn is_lost(error: &TurnError) -> bool {
    let lost = CallError::NotFound.code();
    matches!(error, TurnError::Failed(failure) if failure.code == lost)
}

/// A step that is recorded is never prepared, and one that is not always is.
fn unprepared() -> TurnError {
    TurnError::failed("internal", "a call was not prepared; ask again")
}
