//! How a command becomes durable: one order per session, idempotency keys, payloads, merges, and claims
//! in the same write.
//!
//! The engine decides a command on the newest state, durable or not, and queues it behind the commits that it
//! builds on. Its answer or refusal leaves only when the revision it was decided on is
//! durable. A failed commit fails those that build on it: their callers have no answer yet, so the engine
//! decides them again on the state that the store has.

pub(crate) mod auto_claim;
pub(crate) mod call;
mod decide;
mod effects;
pub(crate) mod idempotency;
pub(crate) mod kept_answers;
pub(crate) mod mailbox;
pub(crate) mod merge;
pub(crate) mod payloads;
pub(crate) mod queue;
pub(crate) mod write;
