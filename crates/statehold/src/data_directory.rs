//! A data directory seen from outside: whether it is in use, and by which process; and its files.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::Context;
use statehold_store::sqlite::LOCK_NAME;

use crate::run_file::{self, RunFile};

/// The process that has a data directory open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectoryHolder {
    Free,
    /// A live process, and its id if the lock file has one.
    Process(Option<u32>),
}

/// Opens a file to read it. `None` if there is no such file.
pub(crate) fn open_existing(path: &Path) -> anyhow::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

/// Removes a file. A missing file is not an error.
pub(crate) fn remove_existing(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Finds the process that has the data directory open. The operating system frees the lock of a
/// dead process, so a held lock always means a live one, even if a stale id is written somewhere.
/// The check takes a shared lock for a moment; a server that starts in that moment is refused and
/// must start again.
pub(crate) fn holder(data: &Path) -> anyhow::Result<DirectoryHolder> {
    let path = data.join(LOCK_NAME);
    let place = || format!("{} cannot be read", path.display());
    let Some(mut file) = open_existing(&path)? else {
        return Ok(DirectoryHolder::Free);
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(DirectoryHolder::Free),
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid).with_context(place)?;
            Ok(DirectoryHolder::Process(pid.trim().parse().ok()))
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(place),
    }
}

/// The server of a data directory. A dead server is not returned, nor a process that reuses its id.
pub(crate) fn server(data: &Path) -> anyhow::Result<Option<RunFile>> {
    let Some(run) = run_file::read(data)? else {
        return Ok(None);
    };
    Ok(match holder(data)? {
        DirectoryHolder::Process(Some(pid)) if pid == run.pid => Some(run),
        DirectoryHolder::Process(_) | DirectoryHolder::Free => None,
    })
}

#[cfg(test)]
mod tests {
    use statehold_store::sqlite::{SqliteOptions, SqliteStore};

    use super::*;

    #[test]
    fn a_directory_is_held_while_its_store_is_open() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        assert_eq!(holder(data).expect("nothing there"), DirectoryHolder::Free);
        let store = SqliteStore::open(data, SqliteOptions::default()).expect("it opens");
        let held = DirectoryHolder::Process(Some(std::process::id()));
        assert_eq!(holder(data).expect("a lock"), held);
        drop(store);
        assert_eq!(holder(data).expect("a lock"), DirectoryHolder::Free);
    }

    #[test]
    fn only_the_process_that_holds_the_lock_is_the_server() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        let run = |pid| RunFile {
            pid,
            url: "http://127.0.0.1:1".to_owned(),
            started_at: "2026-08-06T12:00:00Z".to_owned(),
        };
        // The process lives but does not hold the lock, so it is not the server.
        run_file::write(data, &run(std::process::id())).expect("written");
        assert_eq!(server(data).expect("readable"), None);
        let store = SqliteStore::open(data, SqliteOptions::default()).expect("it opens");
        let found = server(data).expect("readable").map(|run| run.pid);
        assert_eq!(found, Some(std::process::id()));
        run_file::write(data, &run(1)).expect("written");
        assert_eq!(server(data).expect("readable"), None);
        drop(store);
    }
}
