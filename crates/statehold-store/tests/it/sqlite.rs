//! The embedded adapter keeps every promise, and leaves a file that is what its log says.

use statehold_store::conformance_tests;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// A data directory that is checked when its store is closed.
struct Checked(TempDir);

impl Drop for Checked {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let report = SqliteStore::check(self.0.path(), &mut |_, _| {});
        let mut problems = report.expect("the file opens").problems;
        // Some checks write roots that are wrong, to see that they are noticed.
        problems.retain(|problem| problem.entry.is_none());
        assert_eq!(problems, [], "the file is not what its log says");
    }
}

conformance_tests!(async || {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let store = SqliteStore::open(directory.path(), SqliteOptions::default());
    (store.expect("a new store opens"), Checked(directory))
});
