//! Who is called: the agents that Statehold works for itself, and whatever it sends to agents in other
//! processes. It keeps HTTP clients out of the engine.

mod chat;
mod conversations;
#[cfg(test)]
mod fault_server;
mod gateway;
mod history;
mod http;
mod llm;
mod mcp;
mod model;
pub mod outbound;
pub mod push;
mod router;
pub mod runner;
pub mod scratch;
mod secrets;
pub mod spec;
pub mod sse;
mod tls;
mod tool_policy;
mod turn;
mod voice;
mod words;
