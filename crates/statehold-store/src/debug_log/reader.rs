//! Reading the log, also while a server writes it. Reading changes no file.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{Aead, Payload};

use super::{DebugEntry, ENTRY_BYTES_MAX, FileHead, HEAD_BYTES, MAGIC, files, nonce, unavailable};
use crate::key_ring::KeyRing;
use crate::port::StoreError;

/// The next find of a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEntry {
    /// An entry.
    Entry(Box<DebugEntry>),
    /// The rest of a file cannot be read.
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// Nothing more for now.
    End,
}

/// Reads the entries of a data directory, the oldest first.
pub struct DebugLogReader {
    directory: PathBuf,
    ring: KeyRing,
    open: Option<OpenFile>,
    /// The number of the last file that was begun.
    last: Option<u64>,
}

impl std::fmt::Debug for DebugLogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DebugLogReader({})", self.directory.display())
    }
}

struct OpenFile {
    path: PathBuf,
    file: File,
    head: FileHead,
    cipher: XChaCha20Poly1305,
    entries: u64,
    /// Where the next entry begins.
    at: u64,
}

/// The next piece of a file.
enum Piece {
    Entry(Box<DebugEntry>),
    /// Nothing behind the last whole entry.
    Nothing,
    /// The beginning of an entry.
    Part,
    Damaged(&'static str),
}

impl DebugLogReader {
    /// Opens the log of a data directory for its owner: who can read the key ring.
    ///
    /// # Errors
    ///
    /// If the key ring is not there or cannot be read.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            directory: directory.to_owned(),
            ring: KeyRing::read(directory)?,
            open: None,
            last: None,
        })
    }

    /// The next entry. After [`ReadEntry::End`] it may be called again later.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn read_next(&mut self) -> Result<ReadEntry, StoreError> {
        loop {
            let Some(open) = &mut self.open else {
                match self.begin_next()? {
                    Some(found) => return Ok(found),
                    None if self.open.is_some() => continue,
                    None => return Ok(ReadEntry::End),
                }
            };
            let why = match open.read()? {
                Piece::Entry(entry) => return Ok(ReadEntry::Entry(entry)),
                // The newest file may grow; older ones do not.
                Piece::Nothing | Piece::Part if !self.has_newer()? => return Ok(ReadEntry::End),
                Piece::Nothing => {
                    self.open = None;
                    continue;
                }
                Piece::Part => "its last entry was cut by a crash",
                Piece::Damaged(why) => why,
            };
            let path = self.open.take().map(|open| open.path);
            return Ok(ReadEntry::Unreadable {
                file: path.unwrap_or_default(),
                why,
            });
        }
    }

    fn has_newer(&self) -> Result<bool, StoreError> {
        let found = files(&self.directory)?;
        Ok(found.last().map(|(number, _)| *number) > self.last)
    }

    /// Opens the next file, if there is one. Says so if it cannot be read.
    fn begin_next(&mut self) -> Result<Option<ReadEntry>, StoreError> {
        let found = files(&self.directory)?;
        let next = found
            .into_iter()
            .find(|(number, _)| Some(*number) > self.last);
        let Some((number, path)) = next else {
            return Ok(None);
        };
        let mut file = match File::open(&path) {
            Ok(file) => file,
            // It was the oldest one, and has just gone.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.last = Some(number);
                return self.begin_next();
            }
            Err(error) => return Err(unavailable(error)),
        };
        let mut head = [0; HEAD_BYTES];
        if let Err(error) = file.read_exact(&mut head) {
            if error.kind() != ErrorKind::UnexpectedEof {
                return Err(unavailable(error));
            }
            let before = self.last.replace(number);
            if self.has_newer()? {
                return self.begin_next();
            }
            // Its head is being written.
            self.last = before;
            return Ok(None);
        }
        self.last = Some(number);
        let unreadable = |why| {
            let file = path.clone();
            Ok(Some(ReadEntry::Unreadable { file, why }))
        };
        if !head.starts_with(MAGIC) {
            return unreadable("it is no debug log of this version");
        }
        let head = FileHead(head);
        let Some(key) = self.ring.get(head.key()) else {
            return unreadable("the secret that sealed it is not in the key ring");
        };
        self.open = Some(OpenFile {
            cipher: head.cipher(&key),
            path,
            file,
            head,
            entries: 0,
            at: HEAD_BYTES as u64,
        });
        Ok(None)
    }
}

impl OpenFile {
    fn read(&mut self) -> Result<Piece, StoreError> {
        let length = self.file.metadata().map_err(unavailable)?.len();
        let left = length.saturating_sub(self.at);
        if left == 0 {
            return Ok(Piece::Nothing);
        }
        if left < 4 {
            return Ok(Piece::Part);
        }
        self.file
            .seek(SeekFrom::Start(self.at))
            .map_err(unavailable)?;
        let mut size = [0; 4];
        self.file.read_exact(&mut size).map_err(unavailable)?;
        let size = u32::from_le_bytes(size);
        if size as usize > ENTRY_BYTES_MAX {
            return Ok(Piece::Damaged(
                "it is damaged behind its last readable entry",
            ));
        }
        if left < 4 + u64::from(size) {
            return Ok(Piece::Part);
        }
        let mut sealed = vec![0; size as usize];
        self.file.read_exact(&mut sealed).map_err(unavailable)?;
        let payload = Payload {
            msg: &sealed,
            aad: &self.head.0,
        };
        let json = self.cipher.decrypt(&nonce(self.entries), payload);
        let entry = json
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok());
        let Some(entry) = entry else {
            return Ok(Piece::Damaged(
                "it is damaged behind its last readable entry",
            ));
        };
        self.entries += 1;
        self.at += 4 + u64::from(size);
        Ok(Piece::Entry(entry))
    }
}
