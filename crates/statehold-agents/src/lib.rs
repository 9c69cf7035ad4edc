//! Who is called: the agents that Statehold works for itself, and whatever it sends to agents in other
//! processes. It keeps HTTP clients out of the engine.

#[allow(dead_code, reason = "the runner that calls agents is not here yet")]
mod chat;
#[allow(dead_code, reason = "the runner that calls agents is not here yet")]
mod conversations;
#[cfg(test)]
mod fault_server;
#[allow(dead_code, reason = "the runner that calls agents is not here yet")]
mod http;
#[allow(
    dead_code,
    reason = "agents that are a model with tools are not run yet"
)]
mod mcp;
pub mod push;
mod router;
pub mod runner;
pub mod spec;
#[allow(dead_code, reason = "the runner that calls agents is not here yet")]
mod sse;
mod tls;
mod turn;
mod words;
