//! The hidden items of a turn, for callers with the right to read traces, as far as they
//! are small enough to go with the answer.

use std::collections::BTreeSet;

use serde::Serialize;
use statehold_core::item::Visibility;
use statehold_core::tenant::TenantEvent;
use statehold_core::view::View;
use statehold_store::PageLimit;
use utoipa::ToSchema;

use super::{TurnHandle, TurnSnapshot};
use crate::answer_memory::SMALL_PAYLOAD_BYTES;
use crate::api::item::ItemView;
use crate::api::trace::require_reader;
use crate::caller::Caller;
use crate::error::EngineError;

/// How many hidden items go with an answer.
const ITEMS_MAX: usize = 200;
/// Bytes of their payloads. Answers of this size take no memory from the pool, so that the items need none beside
/// that of the answer itself.
const ITEM_BYTES_MAX: u64 = SMALL_PAYLOAD_BYTES;
/// How many items of the session are looked at. Other turns may have written some of them.
const ITEMS_READ_MAX: usize = 2_000;
/// How many items are read at a time.
const STEP: usize = 100;

/// The hidden items of a turn.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ChatDebug)]
pub struct TurnDebug {
    /// Tool calls, results, steps, notes and messages between agents, the oldest first.
    pub items: Vec<ItemView>,
    /// Some items are left out: the trace of the session has them.
    pub cut: bool,
}

impl TurnHandle {
    /// Reads the hidden items of the turn as the snapshot has it. The audit stream records the read.
    ///
    /// # Errors
    ///
    /// If the caller may not read traces.
    pub async fn debug(
        &self,
        caller: &Caller,
        snapshot: &TurnSnapshot,
    ) -> Result<TurnDebug, EngineError> {
        require_reader(caller)?;
        let session = self.session;
        let requests: BTreeSet<_> = snapshot.requests.iter().copied().collect();
        let mut debug = TurnDebug {
            items: Vec::new(),
            cut: false,
        };
        let (mut before, mut bytes_left, mut seen) = (None, ITEM_BYTES_MAX, 0);
        'pages: loop {
            let limit = PageLimit {
                entries: STEP,
                bytes: ITEM_BYTES_MAX,
            };
            let page = self
                .engine
                .items((session, 0), None, View::Trace, before, limit);
            let page = match page.await {
                // A long item is left out. Items are numbered without gaps, so the one before it is known.
                Err(EngineError::PageTooSmall { .. }) => {
                    let newest = match before {
                        Some(before) => before,
                        None => self.engine.durable_state(session).await?.items_appended + 1,
                    };
                    before = Some(newest.saturating_sub(1)).filter(|seq| *seq > 1);
                    (debug.cut, seen) = (true, seen + 1);
                    if before.is_none() || seen >= ITEMS_READ_MAX {
                        break;
                    }
                    continue;
                }
                page => page?,
            };
            for stored in &page.items {
                if stored.at < snapshot.started_at {
                    break 'pages;
                }
                let is_hidden = stored.placed.item.visibility == Visibility::Hidden;
                if !is_hidden || !requests.contains(&stored.placed.request) {
                    continue;
                }
                let left = bytes_left.checked_sub(stored.payload_bytes());
                match left.filter(|_| debug.items.len() < ITEMS_MAX) {
                    Some(left) => {
                        bytes_left = left;
                        debug.items.push(ItemView::of(stored));
                    }
                    None => debug.cut = true,
                }
            }
            (before, seen) = (page.next, seen + page.items.len());
            if seen >= ITEMS_READ_MAX && before.is_some() {
                debug.cut = true;
                break;
            }
            if before.is_none() {
                break;
            }
        }
        debug.items.reverse();
        let event = TenantEvent::TraceRead { session };
        self.host.audit(caller, event).await?;
        Ok(debug)
    }
}
