//! The embedded adapter keeps every promise, and leaves a file that is what its log says.

use std::sync::Arc;

use statehold_store::conformance_tests;
use statehold_store::keys::{KeyFile, KeyOwner, PayloadKeys};
use statehold_store::seal::{SealKey, SealKeyId, SealKeys};
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

/// Makes the key of every owner that comes by.
struct KeysOnDemand(KeyFile);

impl SealKeys for KeysOnDemand {
    fn seal_key(&self, id: SealKeyId) -> Option<Arc<SealKey>> {
        self.0.seal_key(id)
    }

    fn key_of(&self, owner: &KeyOwner) -> Option<Arc<SealKey>> {
        self.0.get_or_create(owner).expect("a key is made");
        self.0.key_of(owner)
    }

    fn seals(&self) -> bool {
        true
    }
}

fn open_sealed(tail_bytes_max: usize) -> (SqliteStore, Checked) {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let keys = KeyFile::open(directory.path()).expect("keys can be kept");
    let options = SqliteOptions {
        keys: Arc::new(KeysOnDemand(keys)),
        tail_bytes_max,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(directory.path(), options);
    (store.expect("a new store opens"), Checked(directory))
}

mod sealed {
    use super::{conformance_tests, open_sealed};

    conformance_tests!(async || open_sealed(64 * 1024 * 1024));
}

mod sealed_without_a_tail {
    use super::{conformance_tests, open_sealed};

    conformance_tests!(async || open_sealed(0));
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
