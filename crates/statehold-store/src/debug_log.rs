//! The debug log: the exchanges of turns with models, agents and tools, sealed in files beside the data.
//!
//! It is off unless somebody turns it on, not part of backups, and bounded in bytes and in age: the oldest file goes
//! first. Callers hand an exchange to a thread of its own and never wait: what does not fit into the queue is dropped
//! and counted, and the log says how much.
//!
//! A file is a head and entries. The head is the magic text, the id of a secret of the key ring (4 bytes) and a random
//! id of the file (16 bytes); the key of the file is derived from both. An entry is the length of its ciphertext (4
//! bytes, little-endian) and the XChaCha20-Poly1305 ciphertext of its JSON, with its number as the nonce and the head
//! as associated data. So a file that was cut, spliced or reordered does not open behind that place. Each start of a
//! server begins a new file: a crash cuts at most the last entry of a file.

mod reader;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::time::Timestamp;

use crate::key_ring::{RingKey, RingKeyId};
use crate::keys::{KeyFile, now};
use crate::port::StoreError;
use crate::private_file::{sync_directory, unavailable};

pub use reader::{DebugLogReader, ReadEntry};

/// How the names of the files begin. A number follows.
const NAME: &str = "debug-log.";
const MAGIC: &[u8; 8] = b"SHDBGL1\n";
const FILE_ID_BYTES: usize = 16;
const HEAD_BYTES: usize = MAGIC.len() + 4 + FILE_ID_BYTES;
/// Separates the keys of the files from other keys of the ring.
const SALT: &str = "statehold debug log v1";

/// The longest body that an entry keeps, in bytes. The rest is counted.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// The longest ciphertext: two bodies, each character of which may take six in JSON.
const ENTRY_BYTES_MAX: usize = 13 * BODY_BYTES_MAX;
/// The longest queue for the thread, in exchanges and in bytes.
const QUEUE_MAX: usize = 1_024;
const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How many parts the log is cut into, so that its oldest part can go.
const PARTS: u64 = 8;
/// How many files there are at most, however short.
const FILES_MAX: usize = 1_024;
/// How long an entry may wait for the disk, and how often old files are looked for.
const SYNC_AFTER: Duration = Duration::from_secs(1);
const TIDY_AFTER: Duration = Duration::from_mins(1);

/// With whom an exchange was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DebugPeer {
    /// A language model.
    Model,
    /// An agent in another process.
    Agent,
    /// A tool.
    Tool,
}

/// A body of an exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugBody {
    /// The text, as it was sent. Bytes that are no text are marked.
    pub text: String,
    /// How many bytes are left out at its end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One exchange: what was sent and what came back. It has no headers, so no credential is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugExchange {
    /// The turn that it belongs to.
    pub session: SessionId,
    /// Its task.
    pub task: TaskId,
    /// Its request.
    pub request: RequestId,
    /// The agent whose turn it is.
    pub agent: Name,
    /// With whom.
    pub with: DebugPeer,
    /// The method and the address without its query, or the tool server and the tool.
    pub target: String,
    /// The body that was sent.
    pub sent: DebugBody,
    /// The body that came back, as far as it came.
    pub received: DebugBody,
    /// The HTTP status, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there is no whole answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took, in milliseconds.
    pub ms: u64,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugEntry {
    /// When the exchange ended.
    pub at: Timestamp,
    /// How many exchanges were dropped since the entry before, because too many waited or the disk took none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// The exchange.
    pub exchange: DebugExchange,
}

/// The bounds of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugLogLimits {
    /// All files together, in bytes.
    pub bytes_max: u64,
    /// How old a file may be, counted from its last entry.
    pub age_max: Duration,
}

/// The log of a server that runs.
pub struct DebugLog {
    /// None once the log is being closed.
    queue: Option<SyncSender<QueuedExchange>>,
    queued: Arc<AtomicUsize>,
    dropped: Arc<DroppedCount>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for DebugLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DebugLog(…)")
    }
}

/// An exchange that waits for the thread.
struct QueuedExchange {
    at: Timestamp,
    /// The user whose turn it is.
    user: UserId,
    exchange: DebugExchange,
}

/// Exchanges that are not in the log.
#[derive(Debug, Default)]
struct DroppedCount {
    /// Since the entry before.
    fresh: AtomicU64,
    total: AtomicU64,
}

impl DroppedCount {
    fn add(&self) {
        self.fresh.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
    }
}

impl DebugExchange {
    /// About how much memory it takes while it waits.
    fn bytes(&self) -> usize {
        512 + self.target.len() + self.sent.text.len() + self.received.text.len()
    }
}

impl DebugLog {
    /// Begins the log of a data directory. The first file is made with the first entry.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read, or no thread can be started.
    pub fn open(
        directory: &Path,
        keys: Arc<KeyFile>,
        limits: DebugLogLimits,
    ) -> Result<Self, StoreError> {
        let (queue, waiting) = sync_channel(QUEUE_MAX);
        let (queued, dropped) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::<DroppedCount>::default(),
        );
        let counts = (Arc::clone(&queued), Arc::clone(&dropped));
        let writer = writer::Writer::new(directory, keys, limits, counts)?;
        let thread = std::thread::Builder::new()
            .name("debug-log".to_owned())
            .spawn(move || writer.run(&waiting))
            .map_err(unavailable)?;
        Ok(Self {
            queue: Some(queue),
            queued,
            dropped,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands an exchange of a user's turn to the log. Never waits.
    pub fn note(&self, user: UserId, exchange: DebugExchange) {
        let bytes = exchange.bytes();
        let before = self.queued.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= QUEUE_BYTES_MAX;
        let queued = QueuedExchange {
            at: now(),
            user,
            exchange,
        };
        let sent = match &self.queue {
            Some(queue) if fits => queue.try_send(queued),
            Some(_) | None => Err(TrySendError::Full(queued)),
        };
        if sent.is_err() {
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
            self.dropped.add();
        }
    }

    /// How many exchanges were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.total.load(Ordering::Relaxed)
    }
}

impl Drop for DebugLog {
    fn drop(&mut self) {
        drop(self.queue.take());
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // The thread writes the queue first, which is bounded.
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the debug log panicked");
        }
    }
}

/// The numbers and the names of the files in a directory, the oldest first.
fn files(directory: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unavailable)? {
        let entry = entry.map_err(unavailable)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Removes every file of the log in a data directory: they have what all users said. A server that writes the log
/// notices it and begins a new file.
///
/// # Errors
///
/// If a file cannot be removed.
pub(crate) fn remove_files(directory: &Path) -> Result<(), StoreError> {
    for (_, path) in files(directory)? {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(unavailable(error));
            }
            _ => {}
        }
    }
    sync_directory(directory)
}

/// The files of the log in a data directory, the oldest first.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn file_paths(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    Ok(files(directory)?
        .into_iter()
        .map(|(_, path)| path)
        .collect())
}

/// The first bytes of a file.
#[derive(Debug, Clone, Copy)]
struct FileHead([u8; HEAD_BYTES]);

impl FileHead {
    fn new(key: RingKeyId) -> Result<Self, StoreError> {
        let mut head = [0; HEAD_BYTES];
        let (magic, rest) = head.split_at_mut(MAGIC.len());
        magic.copy_from_slice(MAGIC);
        rest[..4].copy_from_slice(key.as_bytes());
        getrandom::fill(&mut rest[4..])
            .map_err(|source| StoreError::Unavailable(Box::new(source)))?;
        Ok(Self(head))
    }

    fn key(&self) -> RingKeyId {
        let id = &self.0[MAGIC.len()..MAGIC.len() + 4];
        RingKeyId::from_bytes(id.try_into().expect("four bytes"))
    }

    fn cipher(&self, key: &RingKey) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&key.derive(SALT, &[&self.0]).into())
    }
}

/// The nonce of an entry. The key of a file seals each number once.
fn nonce(number: u64) -> XNonce {
    let mut nonce = [0; 24];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    XNonce::from(nonce)
}

#[cfg(test)]
mod tests;
