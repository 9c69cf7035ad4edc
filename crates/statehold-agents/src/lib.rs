//! Agents: executes the turns of hosted agents, and calls agents, models and tools in other processes.
//! Keeps HTTP clients out of the engine.

mod analytics;
mod chat;
mod conversations;
pub mod dial_core;
mod display_text;
mod draft_writer;
mod exchange;
mod gateway;
mod history;
mod http;
mod json_line;
mod llm;
mod mcp;
mod message;
mod model;
pub mod outbound;
mod pipeline;
pub mod plain_state;
pub mod push;
mod router;
pub mod runner;
pub mod scratch;
mod secrets;
pub mod spec;
pub mod sse;
mod stages;
mod tls;
mod tool_policy;
pub mod traces;
mod turn;
mod turn_memory;
mod turn_watch;

pub use secrets::is_named_secret;
