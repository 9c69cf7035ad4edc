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

fn open(options: SqliteOptions) -> (SqliteStore, Checked) {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let store = SqliteStore::open(directory.path(), options);
    (store.expect("a new store opens"), Checked(directory))
}

conformance_tests!(async || open(SqliteOptions::default()));

mod without_a_tail {
    use super::{SqliteOptions, conformance_tests, open};

    conformance_tests!(async || {
        open(SqliteOptions {
            tail_bytes_max: 0,
            ..SqliteOptions::default()
        })
    });
}

mod with_a_tail_for_few_rows {
    use super::{SqliteOptions, conformance_tests, open};

    conformance_tests!(async || {
        open(SqliteOptions {
            tail_bytes_max: 96 * 1024,
            ..SqliteOptions::default()
        })
    });
}
