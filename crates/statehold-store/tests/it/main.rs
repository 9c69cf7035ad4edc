//! The adapters, each against the conformance suite.

#![cfg(feature = "suite")]

mod check;
mod damaged_columns;
mod erase;
mod fork_cost;
mod group;
mod list_cost;
mod memory;
mod memory_cost;
mod sqlite;
mod tail;
mod tampered;
mod updates;
