//! The thread that writes the log.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{Aead, Payload};

use super::{
    DebugEntry, DebugLogLimits, DroppedCount, ENTRY_BYTES_MAX, FILES_MAX, FileHead, HEAD_BYTES,
    NAME, PARTS, QueuedExchange, SYNC_AFTER, TIDY_AFTER, files, nonce, unavailable,
};
use crate::key_ring::KeyRing;
use crate::keys::{KeyFile, PayloadKeys as _, now};
use crate::port::StoreError;
use crate::private_file::sync_directory;

/// The file that entries are appended to.
struct OpenFile {
    file: File,
    head: FileHead,
    cipher: XChaCha20Poly1305,
    entries: u64,
    bytes: u64,
    /// Whether entries may not be on the disk yet.
    is_dirty: bool,
}

impl OpenFile {
    /// Whether an erasure has removed it: what is appended now would be lost.
    fn was_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }
}

pub(super) struct Writer {
    directory: PathBuf,
    keys: Arc<KeyFile>,
    limits: DebugLogLimits,
    queued: Arc<AtomicUsize>,
    dropped: Arc<DroppedCount>,
    open: Option<OpenFile>,
    /// The bytes of all files.
    bytes: u64,
    /// Whether the last write failed: a full disk is told once.
    is_failing: bool,
}

impl Writer {
    pub(super) fn new(
        directory: &Path,
        keys: Arc<KeyFile>,
        limits: DebugLogLimits,
        (queued, dropped): (Arc<AtomicUsize>, Arc<DroppedCount>),
    ) -> Result<Self, StoreError> {
        let mut writer = Self {
            directory: directory.to_owned(),
            keys,
            limits,
            queued,
            dropped,
            open: None,
            bytes: 0,
            is_failing: false,
        };
        writer.prune(0)?;
        Ok(writer)
    }

    /// Writes entries until the log is closed.
    pub(super) fn run(mut self, waiting: &Receiver<QueuedExchange>) {
        let (mut synced, mut tidied) = (Instant::now(), Instant::now());
        loop {
            let is_dirty = self.open.as_ref().is_some_and(|open| open.is_dirty);
            let patience = if is_dirty { SYNC_AFTER } else { TIDY_AFTER };
            match waiting.recv_timeout(patience) {
                Ok(queued) => {
                    self.queued
                        .fetch_sub(queued.exchange.bytes(), Ordering::Relaxed);
                    let keys = Arc::clone(&self.keys);
                    let written = keys.log_unless_erased(queued.user, || self.write(queued));
                    self.note_result(written.unwrap_or(Ok(())));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let synced = self.sync();
                    return self.note_result(synced);
                }
            }
            if synced.elapsed() >= SYNC_AFTER {
                let done = self.sync();
                self.note_result(done);
                synced = Instant::now();
            }
            if tidied.elapsed() >= TIDY_AFTER {
                let done = self.prune(0);
                self.note_result(done);
                tidied = Instant::now();
            }
        }
    }

    /// Logs a failure once, until something works again.
    fn note_result(&mut self, result: Result<(), StoreError>) {
        match result {
            Ok(()) => self.is_failing = false,
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(%error, "the debug log cannot be written: exchanges are dropped");
            }
            Err(_) => {}
        }
    }

    fn write(&mut self, queued: QueuedExchange) -> Result<(), StoreError> {
        let dropped = self.dropped.fresh.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "exchanges are missing in the debug log");
        }
        let entry = DebugEntry {
            at: queued.at,
            dropped,
            exchange: queued.exchange,
        };
        let written = self.append(&entry);
        if written.is_err() {
            // The next entry says that this one and those before it are missing.
            self.dropped.fresh.fetch_add(dropped, Ordering::Relaxed);
            self.dropped.add();
            // A partly written entry ends its file.
            self.open = None;
        }
        written
    }

    fn append(&mut self, entry: &DebugEntry) -> Result<(), StoreError> {
        let json = serde_json::to_vec(entry).expect("an entry is plain JSON");
        let size = 4 + json.len() + 16;
        if size > ENTRY_BYTES_MAX {
            return Err(StoreError::Unusable(
                "an exchange is too long for the debug log".to_owned(),
            ));
        }
        let size = size as u64;
        let part = self.limits.bytes_max / PARTS;
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.bytes + size > part && open.entries > 0)
        {
            self.sync()?;
            self.open = None;
        }
        if self.open.as_ref().is_some_and(OpenFile::was_removed) {
            self.open = None;
        }
        if self.open.is_none() || self.bytes + size > self.limits.bytes_max {
            self.prune(size)?;
        }
        if self.open.is_none() {
            self.open = Some(begin_file(&self.directory, &self.keys.ring())?);
            self.bytes += HEAD_BYTES as u64;
        }
        let open = self.open.as_mut().expect("it was opened just now");
        let payload = Payload {
            msg: &json,
            aad: &open.head.0,
        };
        let sealed = open
            .cipher
            .encrypt(&nonce(open.entries), payload)
            .map_err(|_| StoreError::Unusable("an exchange cannot be sealed".to_owned()))?;
        let length = u32::try_from(sealed.len()).expect("an entry is far below 4 GiB");
        let mut bytes = Vec::with_capacity(4 + sealed.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&sealed);
        open.file.write_all(&bytes).map_err(unavailable)?;
        open.entries += 1;
        open.bytes += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
        open.is_dirty = true;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(open) = self.open.as_mut().filter(|open| open.is_dirty) {
            open.file.sync_data().map_err(unavailable)?;
            open.is_dirty = false;
        }
        Ok(())
    }

    /// Removes the oldest files until all together, with `more` bytes, keep to the limits.
    fn prune(&mut self, more: u64) -> Result<(), StoreError> {
        let found = files(&self.directory)?;
        let newest = found.last().map(|(number, _)| *number);
        let mut kept = Vec::with_capacity(found.len());
        for (number, path) in found {
            let meta = match std::fs::metadata(&path) {
                Ok(meta) => meta,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unavailable(error)),
            };
            let age = meta.modified().ok().and_then(|at| {
                let at = at.duration_since(std::time::UNIX_EPOCH).ok()?;
                let now = u64::try_from(now().as_micros()).ok()?;
                Some(std::time::Duration::from_micros(now).saturating_sub(at))
            });
            let is_open = self.open.is_some() && Some(number) == newest;
            kept.push((path, meta.len(), age.unwrap_or_default(), is_open));
        }
        let mut bytes = more + kept.iter().map(|(_, bytes, ..)| bytes).sum::<u64>();
        let mut count = kept.len();
        for (path, size, age, is_open) in kept {
            let is_over =
                bytes > self.limits.bytes_max || count > FILES_MAX || age > self.limits.age_max;
            if is_open || !is_over {
                continue;
            }
            std::fs::remove_file(&path).map_err(unavailable)?;
            bytes = bytes.saturating_sub(size);
            count -= 1;
        }
        self.bytes = bytes - more;
        Ok(())
    }
}

fn begin_file(directory: &Path, ring: &KeyRing) -> Result<OpenFile, StoreError> {
    let last = files(directory)?.last().map_or(0, |(number, _)| *number);
    let key = ring.newest();
    let head = FileHead::new(key.id)?;
    let mut file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(directory.join(format!("{NAME}{:08}", last + 1)))
        .map_err(unavailable)?;
    file.write_all(&head.0).map_err(unavailable)?;
    sync_directory(directory)?;
    Ok(OpenFile {
        cipher: head.cipher(&key),
        file,
        head,
        entries: 0,
        bytes: HEAD_BYTES as u64,
        is_dirty: true,
    })
}
