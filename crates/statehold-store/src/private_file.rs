//! Files that only their owner may read: keys, and the data.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::port::StoreError;

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
        Self::of(options.open(path).map_err(unavailable)?, path)
    }

    /// Opens a file for reading.
    pub(crate) fn read(path: &Path) -> Result<Self, StoreError> {
        Self::of(File::open(path).map_err(unavailable)?, path)
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
        .map_err(unavailable)?;
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
        .map_err(unavailable)
}

/// Makes the names in a directory survive a loss of power.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(unavailable)
}

/// The error of a store whose file cannot be read or written.
pub(crate) fn unavailable(source: std::io::Error) -> StoreError {
    if source.kind() == std::io::ErrorKind::StorageFull {
        return StoreError::Full;
    }
    StoreError::Unavailable(Box::new(source))
}
