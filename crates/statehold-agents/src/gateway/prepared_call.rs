//! The messages of a call to a chat service: with the exchanges that the agent knows, or the new message alone.

use serde::Deserialize;
use serde_json::{Map, Value};
use statehold_engine::bodies::Raw;

use super::briefing::Briefing;
use super::exchange;
use super::raw_object::RawObject;
use super::shared::{self, SharedContext};
use super::state::StateRules;
use super::{RECREATED, not_prepared};
use crate::history::PastExchanges;
use crate::runner::AgentRun;
use crate::turn::{TraceNote, TurnError};

/// A call that is ready to be sent.
pub(super) struct PreparedCall {
    pub(super) messages: Vec<Raw>,
    pub(super) extra: Map<String, Value>,
    pub(super) shared_context: Option<SharedContext>,
    pub(super) notes: Vec<TraceNote>,
}

/// History that a caller brought with its message.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CallerHistory {
    #[serde(default)]
    history: Vec<Raw>,
    /// Parameters of a stateless caller, which stores the history itself.
    pub(super) passthrough: Option<Map<String, Value>>,
    /// The new message as sent, if it is more than a user's text.
    last: Option<Raw>,
}

impl CallerHistory {
    pub(super) fn of(data: Option<&Raw>) -> Option<Self> {
        // States of agents in it may have numbers that only their agents can read.
        let caller = RawObject::parse(data?)?;
        let is_brought = caller.get("history").is_some() || caller.get("passthrough").is_some();
        if !is_brought {
            return None;
        }
        serde_json::from_str(data?.get()).ok()
    }
}

async fn shared_context(run: &AgentRun) -> Result<Option<SharedContext>, TurnError> {
    Ok(SharedContext::of(
        &run.state_values(&run.spec.import).await?,
    ))
}

/// Prepares the exchanges that the request knows, and the new message.
pub(super) async fn prepare_restored(run: &AgentRun) -> Result<PreparedCall, TurnError> {
    let past = PastExchanges::read(&run.request).await?;
    let first = past.first_data();
    let rules = StateRules::of(&run.spec);
    let restored = match rules.clone() {
        None => exchange::restore(&past, None),
        // Validating large states against schemas is slow, so do it off the async threads.
        Some(rules) => {
            let work = move || exchange::restore(&past, Some(&rules));
            let restored = tokio::task::spawn_blocking(work).await;
            restored.map_err(|_| not_prepared())?
        }
    };
    // A caller's history counts only if the agent knows nothing here. What a client brought along when its
    // session began is in the first input.
    let caller = if restored.messages.is_empty() {
        CallerHistory::of(run.input.data.as_ref())
    } else {
        let first = CallerHistory::of(first.as_ref()).filter(|_| !restored.is_cut);
        first.filter(|caller| caller.passthrough.is_none())
    };
    let mut caller = caller.unwrap_or_default();
    let history = std::mem::take(&mut caller.history);
    let bring = match rules {
        None => exchange::from_caller(history, None),
        Some(rules) => {
            let work = move || exchange::from_caller(history, Some(&rules));
            let brought = tokio::task::spawn_blocking(work).await;
            brought.map_err(|_| not_prepared())?
        }
    };
    let mut messages = bring.messages;
    messages.extend(restored.messages);
    let mut notes = restored.notes;
    notes.extend(bring.notes);
    let shared_context = if caller.last.is_none() {
        shared_context(run).await?
    } else {
        None
    };
    let new = caller.last.map(shared::guard_message);
    messages
        .push(new.unwrap_or_else(|| exchange::user_message(&run.input, shared_context.as_ref())));
    notes.extend(shared_context.as_ref().and_then(SharedContext::note));
    Ok(PreparedCall {
        messages,
        extra: caller.passthrough.unwrap_or_default(),
        shared_context,
        notes,
    })
}

/// Prepares the new message alone, or with the earlier exchanges that the agent does not know.
pub(super) async fn prepare_new(
    run: &AgentRun,
    is_recreated: bool,
    needs_briefing: bool,
) -> Result<PreparedCall, TurnError> {
    let briefing = if needs_briefing {
        Briefing::read(run).await?
    } else {
        Briefing::default()
    };
    let shared_context = shared_context(run).await?;
    let mut notes: Vec<TraceNote> = shared_context
        .as_ref()
        .and_then(SharedContext::note)
        .into_iter()
        .collect();
    notes.extend(briefing.note);
    if is_recreated {
        let reason = "the agent lost its session";
        let note = serde_json::json!({ "reason": reason, "briefed": needs_briefing });
        notes.push(TraceNote::new(RECREATED, &note));
    }
    Ok(PreparedCall {
        messages: vec![exchange::briefed_message(
            &run.input,
            shared_context.as_ref(),
            &briefing.block,
        )],
        extra: Map::new(),
        shared_context,
        notes,
    })
}
