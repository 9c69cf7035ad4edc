//! HTTP below the surfaces: connections, callers, bodies and their delivery, problems, cursors, metrics.

pub mod accept;
pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod core_lookups;
pub(crate) mod delivery;
pub(crate) mod dial_caller;
pub(crate) mod error_form;
pub mod json;
pub(crate) mod metrics;
pub mod problem;
pub mod read_token;
pub mod seal;
pub(crate) mod shares;
pub(crate) mod sse;
pub(crate) mod turn_failure;
