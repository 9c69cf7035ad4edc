//! The states that agents left in a turn, for a client that keeps them itself. They are hidden: only a surface whose
//! declaration of the agent says so shows them.

use serde::Deserialize;
use statehold_core::ids::RequestId;
use statehold_core::item::ItemKind;
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_store::{PageLimit, StoreError, StoredRecord};

use super::{TurnHandle, TurnSnapshot};
use crate::bodies::{AGENT_STATE_NOTE, ItemBody, Raw, payload};
use crate::error::EngineError;

/// How many requests of a turn are looked at, the newest.
const REQUESTS_MAX: usize = 32;
/// The longest end of a request that is read.
const RECORD_BYTES_MAX: u64 = 1024 * 1024;

/// The state that an agent left in a turn.
#[derive(Debug)]
pub struct TurnAgentState {
    /// The agent.
    pub agent: Name,
    /// Whether it is the agent at the root of the turn.
    pub is_root: bool,
    /// The state that came with its answer, as it wrote it.
    pub state: Option<Raw>,
    /// The private states of its path, as its kind keeps them.
    pub private: Vec<Vec<u8>>,
}

impl TurnHandle {
    /// The states of the agents that completed a request of the turn, in the order in which they were asked.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn agent_states(
        &self,
        snapshot: &TurnSnapshot,
    ) -> Result<Vec<TurnAgentState>, EngineError> {
        let (engine, session) = (&self.engine, self.session);
        let state = engine.durable_state(session).await?;
        let from = snapshot.requests.len().saturating_sub(REQUESTS_MAX);
        let mut states = Vec::new();
        for id in &snapshot.requests[from..] {
            let request = engine.find_request(&state, *id).await?;
            let Some(end) = request.ended() else {
                continue;
            };
            if end.outcome != RequestOutcome::Completed {
                continue;
            }
            let (task, ..) = engine.find_task(&state, request.task()).await?;
            let limit = PageLimit {
                entries: 1,
                bytes: RECORD_BYTES_MAX,
            };
            let before = end.ended_by.saturating_sub(1);
            let ended = match engine.inner().store.records(session, before, limit).await {
                Ok(page) => page.into_iter().next(),
                Err(StoreError::PageTooSmall { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            states.push(TurnAgentState {
                is_root: *id == self.request,
                state: ended.as_ref().and_then(|stored| state_in(stored, *id)),
                private: engine.private_states_of(session, &task.path).await?,
                agent: task.agent,
            });
        }
        Ok(states)
    }
}

/// The state in the note of the record that ended a request.
fn state_in(stored: &StoredRecord, of: RequestId) -> Option<Raw> {
    #[derive(Deserialize)]
    struct NoteData {
        state: Option<Raw>,
    }
    let events = stored.record.content.events.iter();
    let mut notes = events
        .filter_map(|event| match event {
            Event::ItemsAppended { request, items, .. } if *request == of => Some(items),
            _ => None,
        })
        .flatten()
        .filter(|item| item.kind == ItemKind::Note);
    notes.find_map(|note| {
        let body: ItemBody = serde_json::from_slice(payload(stored, note.body)?).ok()?;
        let is_state = body.name.as_deref() == Some(AGENT_STATE_NOTE);
        let data: NoteData = serde_json::from_str(body.data.filter(|_| is_state)?.get()).ok()?;
        data.state
    })
}
