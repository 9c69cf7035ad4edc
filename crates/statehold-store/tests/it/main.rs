//! The adapters, each against the conformance suite.

#![cfg(feature = "suite")]

mod check;
mod erase;
mod memory;
mod sqlite;
mod tampered;
