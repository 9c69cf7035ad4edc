//! How a command becomes durable: one order per session, idempotency keys, payloads, merges, and claims
//! in the same write.
//!
//! A command is decided on the newest state, durable or not, and put in line behind the commits it
//! builds on. Its answer leaves only when the revision it was decided on is durable, and so does a
//! refusal. When a commit fails, those that build on it fail too; nobody has been answered, so they
//! are decided again on what is really there.

mod attempt;
pub(crate) mod auto_claim;
mod behind;
pub(crate) mod call;
mod decide;
mod effects;
pub(crate) mod idempotency;
pub(crate) mod mailbox;
pub(crate) mod merge;
pub(crate) mod payloads;
pub(crate) mod write;
