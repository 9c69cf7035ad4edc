//! How much of the past is read, and how much of it goes with a call.

use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_engine::kept::Raw;
use statehold_engine::{Engine, EngineError, StoredItem};

use crate::words::raw;

/// The most that one call brings of earlier exchanges, in bytes.
pub(crate) const HISTORY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most that is read of a past. More than is sent: of what is kept, some is never sent.
const READ_BYTES_MAX: usize = 4 * HISTORY_BYTES_MAX;
/// How many items are read at a time: a few, until it is known how large they are.
const FIRST_PAGE: usize = 8;
const PAGE_MAX: usize = 500;
/// The note in the trace about what was left out.
pub(crate) const LEFT_OUT: &str = "history_left_out";

/// The newest exchanges that fit together, oldest first, and how many were left out. They are whole or
/// not there.
pub(crate) fn newest<T>(mut exchanges: Vec<T>, bytes: impl Fn(&T) -> usize) -> (Vec<T>, usize) {
    let mut room = HISTORY_BYTES_MAX;
    let fitting = exchanges.iter().rev().take_while(|one| {
        let left = room.checked_sub(bytes(one));
        room = left.unwrap_or(0);
        left.is_some()
    });
    let left_out = exchanges.len() - fitting.count();
    (exchanges.split_off(left_out), left_out)
}

/// What came before a request in its task, oldest first: whole requests, as the agent sees them.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) items: Vec<StoredItem>,
    /// Whether there is more than is read.
    pub(crate) is_cut: bool,
}

impl Past {
    pub(crate) async fn read(
        engine: &Engine,
        session: SessionId,
        task: TaskId,
        before: RequestId,
    ) -> Result<Self, EngineError> {
        let mut past = Self::default();
        let (mut bytes, mut cursor, mut page_size) = (0, None, FIRST_PAGE);
        loop {
            let page = engine.task_items(session, task, cursor, page_size).await?;
            for item in page.items {
                if item.placed.request == before {
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
                bytes += bytes_of(&item);
                past.items.push(item);
            }
            cursor = page.next;
            if cursor.is_none() || past.is_cut {
                break;
            }
            // As many more as there is room for, if they are as large as those so far.
            let room = READ_BYTES_MAX.saturating_sub(bytes);
            let average = bytes / past.items.len().max(1);
            page_size = (room / average.max(1)).clamp(FIRST_PAGE, PAGE_MAX);
        }
        past.items.reverse();
        Ok(past)
    }
}

fn bytes_of(item: &StoredItem) -> usize {
    let body = item.body.as_ref().map_or(0, Vec::len);
    let files = item.attachments.iter().flatten().map(Vec::len);
    body + files.sum::<usize>()
}

/// What the trace says about exchanges that were left out, and about those that were not even read. None
/// if nothing was left out.
pub(crate) fn left_out_note(exchanges: usize, is_cut: bool) -> Option<(&'static str, Raw)> {
    let mut note = serde_json::json!({ "exchanges": exchanges });
    if is_cut {
        note["and_all_before"] = true.into();
    }
    (exchanges > 0 || is_cut).then(|| (LEFT_OUT, raw(&note)))
}
