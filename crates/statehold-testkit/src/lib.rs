//! For tests only, never published: the crash harnesses of the store and of the server, storms of
//! decisions, a small HTTP client, and workloads. The tests of the core alone are in `statehold-model`.

pub mod cascade_storm;
pub mod crash;
pub mod duplicate_storm;
pub mod hostile;
pub mod http;
pub mod http_crash;
pub mod tool_worker;
pub mod workload;
