//! Gateways to agents in other processes. An agent without memory gets its own exchanges back with each
//! call; an agent that stores a conversation gets only the new message.
//!
//! Agent state is stored with the agent's task and is not interpreted.

mod agent_reply;
mod call_headers;
mod conversation_record;
mod conversations;
mod exchange;
mod openai;
mod pause;
mod raw_object;
mod shared;
mod state;

pub(crate) use call_headers::traceparent;
pub(crate) use conversation_record::ConversationLocks;
pub(crate) use conversations::ConversationsAgent;
pub(crate) use openai::OpenaiAgent;

use serde::{Deserialize, Serialize};
use statehold_core::scope::StateKey;
use statehold_engine::kept::Raw;

use crate::http::EndpointError;
use crate::turn::TurnError;

/// Block of session values before a message, for an agent that is not behind a gateway.
pub(crate) fn shared_block(values: &[(StateKey, Raw)], text: &str) -> Option<String> {
    shared::block(shared::SharedContext::of(values).as_ref(), text)
}

/// A named note for the trace.
type TraceNote = (&'static str, Raw);

/// A trace note as recorded with a step.
#[derive(Debug, Serialize, Deserialize)]
struct RecordedNote {
    name: String,
    data: Raw,
}

/// Names of the notes that gateways record with their steps.
const NOTES: [&str; 5] = [
    "conversation_recreated",
    crate::history::LEFT_OUT,
    "shared_context_clipped",
    "state_pruned",
    "state_set_aside",
];

fn to_recorded(notes: Vec<TraceNote>) -> Vec<RecordedNote> {
    let notes = notes.into_iter().map(|(name, data)| RecordedNote {
        name: name.to_owned(),
        data,
    });
    notes.collect()
}

fn from_recorded(notes: Vec<RecordedNote>) -> Vec<TraceNote> {
    let notes = notes.into_iter().filter_map(|note| {
        let name = NOTES.into_iter().find(|known| *known == note.name)?;
        Some((name, note.data))
    });
    notes.collect()
}

/// Fails the turn with the error of a call.
fn turn_failure(error: &EndpointError) -> TurnError {
    TurnError::failed(error.code(), error.to_string())
}

/// Whether the turn failed because the service lost the conversation.
fn is_conversation_lost(error: &TurnError) -> bool {
    let lost = EndpointError::NotFound.code();
    matches!(error, TurnError::Failed(failure) if failure.code == lost)
}

/// Internal error: a step that is not recorded must have a prepared call.
fn not_prepared() -> TurnError {
    TurnError::failed("internal", "a call was not prepared; ask again")
}
