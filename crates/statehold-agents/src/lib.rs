//! Who is called: the agents that Statehold works for itself, and whatever it sends to agents in other
//! processes. It keeps HTTP clients out of the engine.

#[allow(dead_code, reason = "agents behind gateways are not run yet")]
mod chat;
#[allow(dead_code, reason = "agents behind gateways are not run yet")]
mod conversations;
#[cfg(test)]
mod fault_server;
#[allow(dead_code, reason = "agents behind gateways are not run yet")]
mod http;
mod llm;
mod mcp;
mod model;
pub mod push;
mod router;
pub mod runner;
pub mod spec;
#[allow(dead_code, reason = "agents behind gateways are not run yet")]
mod sse;
mod tls;
mod turn;
mod voice;
mod words;
