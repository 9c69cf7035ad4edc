//! For tests only, never published: fixtures, the model of the core, the reference model, the crash
//! harness and workloads.

pub mod crash;
pub mod fixtures;
pub mod model;
pub mod reference;
pub mod workload;
