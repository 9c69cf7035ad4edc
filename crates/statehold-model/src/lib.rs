//! For tests only, never published: judges the core and nothing else. `checker` explores small worlds
//! exhaustively, `reference` is a second opinion on the core, and `fixtures` are the values that both
//! are made of.
//!
//! It depends on no store, engine or server, so a change in the core is judged without compiling them.

pub mod checker;
pub mod fixtures;
pub mod reference;
