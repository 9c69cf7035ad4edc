//! The rules of Statehold as pure functions over sessions, tasks, requests, holds, items and state.
//!
//! [`decide::decide`] turns a command into the one record that it commits, or a rejection;
//! [`apply::apply`] folds a record into the state. Nothing in this crate reads a clock, a random
//! source, a file or a socket, and nothing is asynchronous: time, ids and entropy come in as
//! arguments. The promises are in [`invariant`], as predicates that the model checker, the property
//! tests and `statehold check` share.

pub mod apply;
pub mod command;
pub mod decide;
pub mod digest;
pub mod hold;
pub mod ids;
pub mod invariant;
pub mod item;
pub mod json_keys;
pub mod limits;
pub mod memory;
pub mod merge;
pub mod mutant;
pub mod name;
pub mod number;
pub mod principal;
pub mod projection;
pub mod record;
pub mod redact;
pub mod request;
pub mod root;
#[cfg(feature = "schema")]
mod schema;
pub mod scope;
pub mod session;
pub mod task;
pub mod tenant;
mod text;
pub mod time;
pub mod view;
