//! Work beside calls: timers, and drafts of answers that are being written.

mod draft_stages;
pub(crate) mod drafts;
pub(crate) mod due;
pub(crate) mod session_time;
pub(crate) mod timers;
