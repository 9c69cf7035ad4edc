//! For tests only, never published: fixtures, the model of the core, the reference model, the crash
//! harnesses of the store and of the server, a small HTTP client, and workloads.

pub mod cascade_storm;
pub mod crash;
pub mod duplicate_storm;
pub mod fixtures;
pub mod http;
pub mod http_crash;
pub mod model;
pub mod reference;
pub mod tool_worker;
pub mod workload;
