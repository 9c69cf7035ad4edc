//! A data directory seen from outside: is it in use, and by whom? Changes nothing in it.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use statehold_store::sqlite::LOCK_NAME;

use crate::run_file::{self, RunFile};

/// Whether a process has a data directory open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// A process that lives, and its id if the lock file says one.
    Process(Option<u32>),
}

/// Who has the data directory open. The operating system frees the lock of a process that died, so
/// an answer is about a process that lives, whatever ids are written where. Looking takes a shared
/// lock for a moment, so a server that starts in that very moment is refused and must start again.
pub(crate) fn holder(data: &Path) -> anyhow::Result<Holder> {
    let path = data.join(LOCK_NAME);
    let place = || format!("{} cannot be read", path.display());
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Holder::Nobody);
        }
        Err(error) => return Err(error).with_context(place),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Holder::Nobody),
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid).with_context(place)?;
            Ok(Holder::Process(pid.trim().parse().ok()))
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(place),
    }
}

/// The server that serves a data directory now. One that died is not returned, nor is a process
/// that has its id by chance.
pub(crate) fn server(data: &Path) -> anyhow::Result<Option<RunFile>> {
    let Some(run) = run_file::read(data)? else {
        return Ok(None);
    };
    Ok(match holder(data)? {
        Holder::Process(Some(pid)) if pid == run.pid => Some(run),
        Holder::Process(_) | Holder::Nobody => None,
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
        assert_eq!(holder(data).expect("nothing there"), Holder::Nobody);
        let store = SqliteStore::open(data, SqliteOptions::default()).expect("it opens");
        let held = Holder::Process(Some(std::process::id()));
        assert_eq!(holder(data).expect("a lock"), held);
        drop(store);
        assert_eq!(holder(data).expect("a lock"), Holder::Nobody);
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
        // It lives, but it is not the server: nobody has the data open.
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
