//! How a command becomes durable: one order per session, idempotency keys, payloads, merges, and claims
//! in the same write.

pub(crate) mod auto_claim;
pub(crate) mod idempotency;
pub(crate) mod mailbox;
pub(crate) mod merge;
pub(crate) mod payloads;
