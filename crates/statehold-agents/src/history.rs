//! Reads the memory of a request, and limits how much of it a call sends.

use statehold_core::request::RequestOutcome;
use statehold_engine::bodies::{ItemBody, Raw, parse};
use statehold_engine::leased::LeasedRequest;
use statehold_engine::{EngineError, StoredItem};

use crate::turn::TraceNote;

/// Most bytes of earlier exchanges that one call sends.
pub(crate) const HISTORY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most bytes and exchanges read from a memory. More than is sent, because some items are never sent.
const READ_BYTES_MAX: u64 = 4 * HISTORY_BYTES_MAX as u64;
const EXCHANGES_MAX: usize = 10_000;
/// The words in the place of an answer that was not given, although a tool ran.
const FAILED: &str = "[This turn failed before it was answered.]";
const STOPPED: &str = "[This turn was stopped before it was answered.]";

/// Returns the newest exchanges that fit into some bytes, oldest first, and the number of omitted ones. An
/// exchange is kept whole or omitted.
pub(crate) fn newest_fitting<T>(
    mut exchanges: Vec<T>,
    bytes_max: usize,
    bytes: impl Fn(&T) -> usize,
) -> (Vec<T>, usize) {
    let mut room = bytes_max;
    let fitting = exchanges.iter().rev().take_while(|one| {
        let left = room.checked_sub(bytes(one));
        room = left.unwrap_or(0);
        left.is_some()
    });
    let left_out = exchanges.len() - fitting.count();
    (exchanges.split_off(left_out), left_out)
}

/// The memory of a request, oldest exchange first.
#[derive(Debug, Default)]
pub(crate) struct PastExchanges {
    pub(crate) exchanges: Vec<MemoryExchange>,
    /// Whether older exchanges were not read.
    pub(crate) is_cut: bool,
}

/// An exchange of a memory.
#[derive(Debug)]
pub(crate) struct MemoryExchange {
    /// Never empty, oldest first.
    pub(crate) items: Vec<StoredItem>,
    pub(crate) outcome: RequestOutcome,
}

impl MemoryExchange {
    /// The words in the place of the answer, if it ended without one after a tool had run for it.
    pub(crate) fn missing_answer(&self) -> Option<&'static str> {
        match self.outcome {
            RequestOutcome::Completed => None,
            RequestOutcome::Failed => Some(FAILED),
            RequestOutcome::Cancelled => Some(STOPPED),
        }
    }
}

impl PastExchanges {
    /// Reads the exchanges that a request knows. They stay the same until it ends, so its steps replay.
    pub(crate) async fn read(request: &LeasedRequest) -> Result<Self, EngineError> {
        let page = request.memory(EXCHANGES_MAX, READ_BYTES_MAX).await?;
        let mut past = Self {
            is_cut: page.rest.is_some(),
            ..Self::default()
        };
        for exchange in page.exchanges.into_iter().rev() {
            past.is_cut |= exchange.too_large;
            if !exchange.items.is_empty() {
                past.exchanges.push(MemoryExchange {
                    items: exchange.items,
                    outcome: exchange.outcome,
                });
            }
        }
        Ok(past)
    }

    /// The `data` of the first input: it has the messages that a client brought along when its session began,
    /// which come before the first exchange.
    pub(crate) fn first_data(&self) -> Option<Raw> {
        let first = self.exchanges.first().filter(|_| !self.is_cut)?;
        let body: ItemBody = parse(first.items.first()?.body.as_deref());
        // The data of an event is the event itself.
        body.data.filter(|_| body.event.is_none())
    }
}

/// Trace note about omitted exchanges, and about older ones that were not read. None if everything was
/// sent.
pub(crate) fn left_out_note(exchanges: usize, is_cut: bool) -> Option<TraceNote> {
    let mut note = serde_json::json!({ "exchanges": exchanges });
    if is_cut {
        note["and_all_before"] = true.into();
    }
    (exchanges > 0 || is_cut).then(|| TraceNote::new("history_left_out", &note))
}
