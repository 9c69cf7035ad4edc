//! Files that only their owner may read: keys, and the data.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::port::StoreError;

/// So much must fit before a full disk counts as free again.
const ROOM_BYTES: usize = 256 << 10;

/// A file of lines that is appended to, and its text. A crash can cut the last line.
pub(crate) struct LineFile {
    file: File,
    text: String,
    /// The length of the whole lines.
    whole: usize,
}

impl LineFile {
    /// Opens a file, or begins an empty one.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).append(true).create(true).mode(0o600);
        Self::of(options.open(path).map_err(unopened(path))?, path)
    }

    /// Opens a file for reading.
    pub(crate) fn read(path: &Path) -> Result<Self, StoreError> {
        Self::of(File::open(path).map_err(unopened(path))?, path)
    }

    fn of(mut file: File, path: &Path) -> Result<Self, StoreError> {
        require_private(&file, path)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(unavailable)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        Ok(Self { file, text, whole })
    }

    /// The whole lines.
    pub(crate) fn lines(&self) -> &str {
        &self.text[..self.whole]
    }

    /// The text behind the last line feed: a line in the making, or one that was cut.
    pub(crate) fn rest(&self) -> Option<&str> {
        let rest = &self.text[self.whole..];
        (!rest.is_empty()).then_some(rest)
    }

    /// Counts the rest as a whole line that lost its line feed, in this reading only.
    pub(crate) fn with_rest(self) -> Self {
        Self {
            whole: self.text.len(),
            ..self
        }
    }

    /// Ends the rest, a line that lost its line feed.
    pub(crate) fn end_rest(&mut self) -> Result<(), StoreError> {
        self.file.write_all(b"\n").map_err(unavailable)?;
        self.text.push('\n');
        self.whole = self.text.len();
        self.file.sync_all().map_err(unavailable)
    }

    /// Drops the rest, a line that was cut.
    pub(crate) fn drop_rest(&mut self) -> Result<(), StoreError> {
        self.file.set_len(self.whole as u64).map_err(unavailable)?;
        self.text.truncate(self.whole);
        self.file.sync_all().map_err(unavailable)
    }
}

/// Adds a line to a key file. If that fails, the file is as long as before.
pub(crate) fn append_line(path: &Path, line: &str) -> Result<(), StoreError> {
    let mut file = OpenOptions::new()
        .append(true)
        .open(path)
        .map_err(unopened(path))?;
    let before = file.metadata().map_err(unavailable)?.len();
    let appended = file
        .write_all(line.as_bytes())
        .and_then(|()| file.sync_all());
    appended.map_err(|error| {
        // Half a line would be damage in the middle once the next one is behind it.
        drop(file.set_len(before));
        unavailable(error)
    })
}

/// Requires that only its owner can read a key file.
pub(crate) fn require_private(file: &File, path: &Path) -> Result<(), StoreError> {
    let mode = file.metadata().map_err(unavailable)?.permissions().mode();
    let is_private = mode.trailing_zeros() >= 6;
    if is_private {
        Ok(())
    } else {
        Err(StoreError::Unusable(format!(
            "the key file can be read by others (mode {:o}); run: chmod 600 {}",
            mode & 0o777,
            path.display(),
        )))
    }
}

/// Makes a file that only its owner can read, if it is not there: hidden items lie in it as they are.
pub(crate) fn create_private(path: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    options
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map(drop)
        .map_err(unopened(path))
}

/// Writes some blocks to a file, and removes it again: free space that a quota or the file system
/// does not give counts for nothing.
pub(crate) fn check_room(path: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path).map_err(unopened(path))?;
    let written = (&file)
        .write_all(&vec![1; ROOM_BYTES])
        .and_then(|()| file.sync_all());
    std::fs::remove_file(path).map_err(unavailable)?;
    written.map_err(unavailable)
}

/// Makes the names in a directory survive a loss of power.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(unavailable)
}

/// The error of a store whose file cannot be opened. One without permission names the owner of the
/// file: a command that ran as another user may have made it.
pub(crate) fn unopened(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
    move |source| match source.kind() {
        std::io::ErrorKind::PermissionDenied => StoreError::Unusable(no_permission(path)),
        _ => unavailable(source),
    }
}

fn no_permission(path: &Path) -> String {
    let me = rustix::process::geteuid().as_raw();
    let directory = path.parent().unwrap_or(path);
    let (shown, directory) = (path.display(), directory.display());
    match std::fs::metadata(path) {
        Ok(found) => format!(
            "{shown} belongs to user {} (mode {:o}), and this process runs as user {me}; if that is the user of the \
             server, run: chown -R {me} {directory}",
            found.uid(),
            found.mode() & 0o777,
        ),
        Err(_) => {
            format!("{shown} cannot be opened by user {me}; see the owner with: ls -ld {directory}")
        }
    }
}

/// The error of a store whose file cannot be read or written.
pub(crate) fn unavailable(source: std::io::Error) -> StoreError {
    if source.kind() == std::io::ErrorKind::StorageFull {
        return StoreError::Full;
    }
    StoreError::Unavailable(Box::new(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_opened_is_named_with_its_owner_and_the_way_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key-ring");
        let denied = || std::io::ErrorKind::PermissionDenied.into();
        let said = unopened(&path)(denied()).to_string();
        assert!(said.contains("ls -ld "), "{said}");
        create_private(&path).expect("a file");
        let said = unopened(&path)(denied()).to_string();
        let (owner, place) = (file_owner(&path), directory.path().display());
        assert!(
            said.contains(&format!("key-ring belongs to user {owner} (mode 600)")),
            "{said}"
        );
        assert!(
            said.ends_with(&format!("chown -R {owner} {place}")),
            "{said}"
        );
        let full = unopened(&path)(std::io::ErrorKind::StorageFull.into());
        assert!(matches!(full, StoreError::Full));
    }

    fn file_owner(path: &Path) -> u32 {
        std::fs::metadata(path).expect("a file").uid()
    }
}
