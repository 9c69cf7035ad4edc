//! The embedded adapter keeps every promise.

use statehold_store::conformance_tests;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};

conformance_tests!(async || {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let store = SqliteStore::open(directory.path(), SqliteOptions::default());
    (store.expect("a new store opens"), directory)
});
