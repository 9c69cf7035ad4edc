//! How much of the past goes with a call.

use statehold_engine::kept::Raw;

use crate::words::raw;

/// The most that one call brings of earlier exchanges, in bytes.
pub(crate) const HISTORY_BYTES_MAX: usize = 4 * 1024 * 1024;
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

/// What the trace says about it. None if nothing was left out.
pub(crate) fn left_out_note(exchanges: usize) -> Option<(&'static str, Raw)> {
    let note = || raw(&serde_json::json!({ "exchanges": exchanges }));
    (exchanges > 0).then(|| (LEFT_OUT, note()))
}
