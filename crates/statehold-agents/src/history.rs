//! Reads the history of a task, and limits how much of it a call sends.

use statehold_engine::api::leased::LeasedRequest;
use statehold_engine::kept::Raw;
use statehold_engine::{EngineError, StoredItem};

use crate::message::raw;

/// Most bytes of earlier exchanges that one call sends.
pub(crate) const HISTORY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most bytes read from a history. More than is sent, because some items are never sent.
const READ_BYTES_MAX: usize = 4 * HISTORY_BYTES_MAX;
/// First page size, small until the item sizes are known, and the largest page size.
const FIRST_PAGE: usize = 8;
const PAGE_MAX: usize = 500;
/// Name of the trace note about omitted exchanges.
pub(crate) const LEFT_OUT: &str = "history_left_out";

/// Returns the newest exchanges that fit, oldest first, and the number of omitted ones. An exchange is
/// kept whole or omitted.
pub(crate) fn newest_fitting<T>(
    mut exchanges: Vec<T>,
    bytes: impl Fn(&T) -> usize,
) -> (Vec<T>, usize) {
    let mut room = HISTORY_BYTES_MAX;
    let fitting = exchanges.iter().rev().take_while(|one| {
        let left = room.checked_sub(bytes(one));
        room = left.unwrap_or(0);
        left.is_some()
    });
    let left_out = exchanges.len() - fitting.count();
    (exchanges.split_off(left_out), left_out)
}

/// Items of a task before one request, oldest first: complete requests, in the agent view.
#[derive(Debug, Default)]
pub(crate) struct TaskHistory {
    pub(crate) items: Vec<StoredItem>,
    /// Whether older items were not read.
    pub(crate) is_cut: bool,
}

impl TaskHistory {
    pub(crate) async fn read(request: &LeasedRequest) -> Result<Self, EngineError> {
        let mut past = Self::default();
        let (mut bytes, mut cursor, mut page_size) = (0, None, FIRST_PAGE);
        loop {
            let page = request.history(cursor, page_size).await?;
            for item in page.items {
                if item.placed.request == request.ids.request {
                    continue;
                }
                let is_next = past
                    .items
                    .last()
                    .is_some_and(|last| last.placed.request != item.placed.request);
                if is_next && bytes >= READ_BYTES_MAX {
                    past.is_cut = true;
                    break;
                }
                bytes += item_bytes(&item);
                past.items.push(item);
            }
            cursor = page.next;
            if cursor.is_none() || past.is_cut {
                break;
            }
            // Estimate the next page size from the average item size.
            let room = READ_BYTES_MAX.saturating_sub(bytes);
            let average = bytes / past.items.len().max(1);
            page_size = (room / average.max(1)).clamp(FIRST_PAGE, PAGE_MAX);
        }
        past.items.reverse();
        Ok(past)
    }
}

fn item_bytes(item: &StoredItem) -> usize {
    let body = item.body.as_ref().map_or(0, Vec::len);
    let files = item.attachments.iter().flatten().map(Vec::len);
    body + files.sum::<usize>()
}

/// Trace note about omitted exchanges, and about older ones that were not read. None if everything was
/// sent.
pub(crate) fn left_out_note(exchanges: usize, is_cut: bool) -> Option<(&'static str, Raw)> {
    let mut note = serde_json::json!({ "exchanges": exchanges });
    if is_cut {
        note["and_all_before"] = true.into();
    }
    (exchanges > 0 || is_cut).then(|| (LEFT_OUT, raw(&note)))
}
