//! The reference adapter keeps every promise.

use statehold_store::memory::MemoryStore;
use statehold_store::{conformance_tests, suite};

conformance_tests!(async || MemoryStore::new());

/// A store needs no runtime, and does not mind one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_suite_runs_inside_a_runtime() {
    suite::run(async || MemoryStore::new()).await;
}
