//! HTTP below the surfaces: connections, callers, bodies, problems, cursors, metrics.

pub mod accept;
pub(crate) mod call;
pub mod json;
pub(crate) mod metrics;
pub mod problem;
pub mod seal;
