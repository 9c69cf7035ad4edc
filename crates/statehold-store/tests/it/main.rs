//! The adapters, each against the conformance suite.

#![cfg(feature = "suite")]

mod check;
mod memory;
mod sqlite;
