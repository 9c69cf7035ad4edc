//! Who is called: the agents that Statehold works for itself, and whatever it sends to agents in other
//! processes. It keeps HTTP clients out of the engine.

pub mod push;
mod router;
pub mod runner;
pub mod spec;
mod turn;
mod words;
