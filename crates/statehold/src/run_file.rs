//! The run file: the process that serves a data directory, and its URL.
//!
//! A server writes it when it is ready and removes it when it stops cleanly, so a run file without
//! a process means an unclean stop. The file only informs people and `statehold status`; the lock
//! protects the data.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::data_directory::{open_existing, remove_existing};

/// The name of the file in the data directory.
pub(crate) const NAME: &str = "statehold.run";
/// The name of the file while it is being written.
const NEW_NAME: &str = "statehold.run.new";
const BYTES_MAX: u64 = 64 * 1024;

/// A running server, or the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunFile {
    pub(crate) pid: u32,
    pub(crate) url: String,
    /// RFC 3339.
    pub(crate) started_at: String,
}

/// Writes the run file atomically, over one that a crash left.
///
/// # Errors
///
/// If the directory cannot be written.
pub(crate) fn write(data: &Path, run: &RunFile) -> anyhow::Result<()> {
    let place = || format!("{} cannot be written", data.join(NAME).display());
    let new = data.join(NEW_NAME);
    // A leftover could be open to others, and the mode applies only to new files.
    remove_existing(&new)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .with_context(place)?;
    serde_json::to_writer(&mut file, run).with_context(place)?;
    file.write_all(b"\n").with_context(place)?;
    std::fs::rename(&new, data.join(NAME)).with_context(place)
}

/// Reads the run file of a data directory, if there is one.
///
/// # Errors
///
/// If the file cannot be read or is not a run file.
pub(crate) fn read(data: &Path) -> anyhow::Result<Option<RunFile>> {
    let path = data.join(NAME);
    let Some(file) = open_existing(&path)? else {
        return Ok(None);
    };
    let mut text = String::new();
    file.take(BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    serde_json::from_str(&text)
        .map(Some)
        .with_context(|| format!("{} is not a run file", path.display()))
}

/// Removes the run file: the server stops cleanly. A missing file is not an error.
///
/// # Errors
///
/// If the file exists and cannot be removed.
pub(crate) fn remove(data: &Path) -> anyhow::Result<()> {
    remove_existing(&data.join(NAME))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn run(pid: u32) -> RunFile {
        RunFile {
            pid,
            url: "http://127.0.0.1:7717".to_owned(),
            started_at: "2026-08-06T12:00:00Z".to_owned(),
        }
    }

    #[test]
    fn what_was_written_is_read_until_it_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        assert_eq!(read(data).expect("nothing yet"), None);
        write(data, &run(1)).expect("written");
        write(data, &run(2)).expect("written over");
        assert_eq!(read(data).expect("ours"), Some(run(2)));
        let mode = std::fs::metadata(data.join(NAME))
            .expect("there")
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        remove(data).expect("removed");
        remove(data).expect("nothing to remove");
        assert_eq!(read(data).expect("nothing left"), None);
        assert!(!data.join(NEW_NAME).exists());
    }

    #[test]
    fn a_file_of_somebody_else_is_not_believed() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join(NAME), "7").expect("a file");
        assert!(read(directory.path()).is_err());
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_run_file() {
        assert_eq!(read(Path::new("no such place")).expect("nothing"), None);
    }
}
