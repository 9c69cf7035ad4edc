//! The adapters, each against the conformance suite.

#![cfg(feature = "suite")]

mod memory;
mod sqlite;
