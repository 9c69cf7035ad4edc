//! A data directory seen from outside: whether it is in use, and by which process; and its files.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use statehold_store::hold_keys::HoldKeyFile;
use statehold_store::key_ring::KeyRing;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{FILE_NAME, LOCK_NAME};

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

/// Gives the files that this process made in a data directory of another user to that user: the
/// server runs as the owner of its directory, and could not open files of root. Another user than
/// root can give nothing away.
///
/// # Errors
///
/// If a file cannot be given to its new owner.
pub(crate) fn hand_over(data: &Path) -> anyhow::Result<()> {
    let me = rustix::process::geteuid();
    let owner = std::fs::metadata(data)?;
    if !me.is_root() || owner.uid() == me.as_raw() {
        return Ok(());
    }
    let (wal, shm) = (format!("{FILE_NAME}-wal"), format!("{FILE_NAME}-shm"));
    let names = [
        FILE_NAME,
        &wal,
        &shm,
        KeyRing::NAME,
        KeyFile::NAME,
        HoldKeyFile::NAME,
        LOCK_NAME,
    ];
    for name in names {
        let path = data.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else {
            continue;
        };
        let file = File::from(file);
        let found = file.metadata()?;
        // The owner of the directory could have put a second name of another file of root there.
        if found.is_file() && found.nlink() == 1 && found.uid() == me.as_raw() {
            fchown(&file, Some(owner.uid()), Some(owner.gid())).with_context(|| {
                format!("{} cannot be given to user {}", path.display(), owner.uid())
            })?;
        }
    }
    Ok(())
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
    fn files_that_root_makes_in_a_directory_of_another_user_belong_to_that_user() {
        const OTHER: u32 = 54_321;
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        for name in [FILE_NAME, KeyRing::NAME, "other"] {
            std::fs::write(data.join(name), "").expect("a file");
        }
        std::fs::hard_link(data.join("other"), data.join(KeyFile::NAME)).expect("a second name");
        let owner = |name: &str| std::fs::metadata(data.join(name)).expect("a file").uid();
        let me = owner(FILE_NAME);
        let expected = match std::os::unix::fs::chown(data, Some(OTHER), Some(OTHER)) {
            Ok(()) => OTHER,
            // Only root can make a directory of another user, and only root can be wrong in one.
            Err(_) => me,
        };
        hand_over(data).expect("it is done");
        assert_eq!(owner(FILE_NAME), expected);
        assert_eq!(owner(KeyRing::NAME), expected);
        assert_eq!([owner("other"), owner(KeyFile::NAME)], [me; 2]);
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
