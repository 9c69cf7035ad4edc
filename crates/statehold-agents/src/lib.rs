//! Agents: executes the turns of hosted agents, and calls agents, models and tools in other processes.
//! Keeps HTTP clients out of the engine.

mod analytics;
mod chat;
mod conversations;
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

pub use secrets::is_named_secret;
