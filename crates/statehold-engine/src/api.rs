//! All that a surface may call: one module per noun, one function per use case, from a caller and plain
//! input to a typed view. Rights are asked inside.
//!
//! Inputs and views have the names of the native API and are described for its document, so that every
//! surface that speaks JSON can take and show them as they are.

pub mod address;
pub mod agent;
pub mod annotation;
pub mod audit;
pub mod backup;
pub mod caller;
pub mod conversation;
pub mod event;
pub mod feed;
pub mod hold;
pub mod item;
pub mod json;
pub mod key;
pub mod key_ring;
pub mod memory;
pub mod message;
pub mod operations;
pub mod past;
pub mod request;
pub mod saved_agent;
pub mod schema;
pub mod session;
pub mod state;
pub mod task;
pub mod trace;
pub mod tree;
pub mod turn;
pub mod user;
pub mod watch;
pub mod work;
