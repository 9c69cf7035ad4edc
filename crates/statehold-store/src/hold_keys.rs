//! The file `hold-keys`: the secrets under which the arguments of undecided and running actions are
//! sealed, one per hold.
//!
//! It lies beside the data with mode 0600 and is not part of backups. The store writes and syncs a
//! key before its hold, and overwrites it with zeros and syncs when the action has ended; then the
//! arguments cannot be read from any copy of the data. The file is made of slots of 128 bytes: a
//! version byte, 15 zeros, the hold (16), the request (16), the key (32), 16 zeros, and the SHA-256
//! of all that (32). A slot of zeros is free; a slot with a wrong digest was torn by a crash before
//! its key was used, and is free too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, RequestId};
use uuid::Uuid;

use crate::port::StoreError;
use crate::private_file::{require_private, sync_directory, unavailable, unopened};

const SLOT_BYTES: usize = 128;
const VERSION: u8 = 1;
/// Where the parts of a slot begin.
const HOLD_AT: usize = 16;
const REQUEST_AT: usize = 32;
const KEY_AT: usize = 48;
const DIGEST_AT: usize = 96;
/// The most keys at one time: a million sealed actions.
const SLOTS_MAX: usize = 1 << 20;

/// The secret of one hold.
#[derive(Clone, PartialEq, Eq)]
pub struct HoldKey([u8; 32]);

impl HoldKey {
    /// Wraps 32 secret bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret bytes, for the cipher.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for HoldKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HoldKey(…)")
    }
}

/// The keys that seal the arguments of undecided and running actions.
pub trait HoldKeys: Send + Sync + 'static {
    /// The key of a hold, if there is one.
    fn get(&self, hold: HoldId) -> Option<HoldKey>;

    /// The key of a hold, made if there is none. After `Ok` it survives a crash. May block on disk.
    ///
    /// # Errors
    ///
    /// If a new key cannot be stored.
    fn get_or_create(&self, hold: HoldId, request: RequestId) -> Result<HoldKey, StoreError>;

    /// Destroys keys for good: after `Ok` no file contains them, even after a crash. May block on disk.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. Keys that were not overwritten are still there then.
    fn destroy(&self, holds: &[HoldId]) -> Result<(), StoreError>;

    /// The holds of a request that have keys.
    fn of_request(&self, request: RequestId) -> Vec<HoldId>;

    /// All holds that have keys, with their requests.
    fn all(&self) -> Vec<(HoldId, RequestId)>;
}

/// The hold keys of one data directory.
#[derive(Debug)]
pub struct HoldKeyFile {
    directory: PathBuf,
    slots: Mutex<Slots>,
    /// How many writes are known to be on disk. The lock is held during a sync, so a waiting writer
    /// finds its write already synced by the thread before it.
    synced: Mutex<u64>,
}

#[derive(Debug, Default)]
struct Slots {
    /// None until there is a key to keep.
    file: Option<Arc<File>>,
    keys: BTreeMap<HoldId, StoredHoldKey>,
    by_request: BTreeSet<(RequestId, HoldId)>,
    free: BTreeSet<usize>,
    /// How many slots the file has.
    count: usize,
    /// How many writes were made.
    written: u64,
}

#[derive(Debug)]
struct StoredHoldKey {
    slot: usize,
    request: RequestId,
    key: HoldKey,
}

impl HoldKeyFile {
    /// The name of the file in the data directory.
    pub const NAME: &'static str = "hold-keys";

    /// Opens the hold keys of a data directory. The file is made when there is a key to keep.
    ///
    /// # Errors
    ///
    /// If it cannot be read, can be read by others, or is of a newer version.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let mut slots = Slots::default();
        let path = directory.join(Self::NAME);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(mut file) => {
                require_private(&file, &path)?;
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).map_err(unavailable)?;
                slots.read(&bytes)?;
                slots.file = Some(Arc::new(file));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(unopened(&path)(error)),
        }
        Ok(Self {
            directory: directory.to_owned(),
            slots: Mutex::new(slots),
            synced: Mutex::new(0),
        })
    }
}

impl HoldKeys for HoldKeyFile {
    fn get(&self, hold: HoldId) -> Option<HoldKey> {
        self.lock().keys.get(&hold).map(|kept| kept.key.clone())
    }

    fn get_or_create(&self, hold: HoldId, request: RequestId) -> Result<HoldKey, StoreError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|source| StoreError::Unavailable(Box::new(source)))?;
        let key = HoldKey(bytes);
        let (file, write) = {
            let mut slots = self.lock();
            if let Some(kept) = slots.keys.get(&hold) {
                return Ok(kept.key.clone());
            }
            let file = slots.file(&self.directory)?;
            let slot = slots.free.first().copied().unwrap_or(slots.count);
            if slot >= SLOTS_MAX {
                return Err(StoreError::Full);
            }
            write_slot(&file, slot, &encode(hold, request, &key))?;
            slots.free.remove(&slot);
            slots.count = slots.count.max(slot + 1);
            let kept = StoredHoldKey {
                slot,
                request,
                key: key.clone(),
            };
            slots.insert(hold, kept);
            slots.written += 1;
            (file, slots.written)
        };
        if let Err(error) = self.sync(&file, write) {
            // The key may not survive a crash, so the caller must not use it; the next start frees
            // its slot.
            self.lock().remove(hold);
            return Err(error);
        }
        Ok(key)
    }

    fn destroy(&self, holds: &[HoldId]) -> Result<(), StoreError> {
        let (file, write) = {
            let mut slots = self.lock();
            let Some(file) = slots.file.clone() else {
                return Ok(());
            };
            for hold in holds {
                let Some(slot) = slots.keys.get(hold).map(|kept| kept.slot) else {
                    continue;
                };
                write_slot(&file, slot, &[0; SLOT_BYTES])?;
                slots.remove(*hold);
                slots.free.insert(slot);
                slots.written += 1;
            }
            (file, slots.written)
        };
        self.sync(&file, write)
    }

    fn of_request(&self, request: RequestId) -> Vec<HoldId> {
        let first = HoldId::from_uuid(Uuid::nil());
        let slots = self.lock();
        let from_there = slots.by_request.range((request, first)..);
        from_there
            .take_while(|(of, _)| *of == request)
            .map(|(_, hold)| *hold)
            .collect()
    }

    fn all(&self) -> Vec<(HoldId, RequestId)> {
        let slots = self.lock();
        let kept = slots.keys.iter();
        kept.map(|(hold, kept)| (*hold, kept.request)).collect()
    }
}

impl HoldKeyFile {
    /// Waits until a write is on disk. One sync serves all that were written before it.
    fn sync(&self, file: &File, write: u64) -> Result<(), StoreError> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if *synced >= write {
            return Ok(());
        }
        let written = self.lock().written;
        file.sync_data().map_err(unavailable)?;
        *synced = written;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn read(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.count = bytes.len() / SLOT_BYTES;
        for (slot, bytes) in bytes.chunks_exact(SLOT_BYTES).enumerate() {
            if bytes[..DIGEST_AT].iter().all(|byte| *byte == 0) || !is_whole(bytes) {
                self.free.insert(slot);
                continue;
            }
            if bytes[0] != VERSION {
                return Err(StoreError::Unusable(format!(
                    "the file {} was written by a newer version; use that version",
                    HoldKeyFile::NAME
                )));
            }
            let kept = StoredHoldKey {
                slot,
                request: RequestId::from_uuid(uuid_at(bytes, REQUEST_AT)),
                key: HoldKey(array_at(bytes, KEY_AT)),
            };
            let hold = HoldId::from_uuid(uuid_at(bytes, HOLD_AT));
            self.insert(hold, kept);
        }
        Ok(())
    }

    fn insert(&mut self, hold: HoldId, kept: StoredHoldKey) {
        self.by_request.insert((kept.request, hold));
        self.keys.insert(hold, kept);
    }

    fn remove(&mut self, hold: HoldId) {
        if let Some(kept) = self.keys.remove(&hold) {
            self.by_request.remove(&(kept.request, hold));
        }
    }

    /// The file, made if this is the first key.
    fn file(&mut self, directory: &Path) -> Result<Arc<File>, StoreError> {
        if let Some(file) = &self.file {
            return Ok(Arc::clone(file));
        }
        let path = directory.join(HoldKeyFile::NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(unopened(&path))?;
        sync_directory(directory)?;
        let file = Arc::new(file);
        self.file = Some(Arc::clone(&file));
        Ok(file)
    }
}

fn encode(hold: HoldId, request: RequestId, key: &HoldKey) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[0] = VERSION;
    bytes[HOLD_AT..REQUEST_AT].copy_from_slice(hold.as_uuid().as_bytes());
    bytes[REQUEST_AT..KEY_AT].copy_from_slice(request.as_uuid().as_bytes());
    bytes[KEY_AT..KEY_AT + 32].copy_from_slice(&key.0);
    let digest = Digest::sha256(&bytes[..DIGEST_AT]);
    bytes[DIGEST_AT..].copy_from_slice(digest.as_bytes());
    bytes
}

fn is_whole(bytes: &[u8]) -> bool {
    Digest::sha256(&bytes[..DIGEST_AT]).as_bytes() == &bytes[DIGEST_AT..]
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let part = &bytes[at..at + N];
    part.try_into().expect("a part of a slot has its length")
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    Uuid::from_bytes(array_at(bytes, at))
}

fn write_slot(file: &File, slot: usize, bytes: &[u8; SLOT_BYTES]) -> Result<(), StoreError> {
    let at = (slot * SLOT_BYTES) as u64;
    file.write_all_at(bytes, at).map_err(unavailable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn hold(n: u128) -> HoldId {
        HoldId::from_uuid(Uuid::from_u128(n))
    }

    fn request(n: u128) -> RequestId {
        RequestId::from_uuid(Uuid::from_u128(n))
    }

    fn bytes(directory: &Path) -> Vec<u8> {
        std::fs::read(directory.join(HoldKeyFile::NAME)).expect("reads")
    }

    #[test]
    fn a_key_is_made_once_found_again_and_gone_for_ever_when_destroyed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let keys = HoldKeyFile::open(path).expect("opens");
        assert!(!path.join(HoldKeyFile::NAME).exists(), "nothing to keep");
        keys.destroy(&[hold(1)]).expect("nothing to destroy");
        let one = keys.get_or_create(hold(1), request(9)).expect("made");
        let two = keys.get_or_create(hold(2), request(9)).expect("made");
        assert_eq!(keys.get_or_create(hold(1), request(9)).expect("found"), one);
        assert_eq!(keys.of_request(request(9)), [hold(1), hold(2)]);
        let mode = std::fs::metadata(path.join(HoldKeyFile::NAME)).expect("there");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        let again = HoldKeyFile::open(path).expect("opens again");
        assert_eq!(again.get(hold(2)), Some(two.clone()));
        again.destroy(&[hold(1), hold(3)]).expect("destroyed");
        assert_eq!(again.get(hold(1)), None);
        let on_disk = bytes(path);
        assert!(!on_disk.windows(32).any(|part| part == one.expose()));
        assert!(on_disk.windows(32).any(|part| part == two.expose()));
        // The slot is used again.
        again.get_or_create(hold(4), request(8)).expect("made");
        assert_eq!(bytes(path).len(), 2 * SLOT_BYTES);
        let last = HoldKeyFile::open(path).expect("opens");
        assert_eq!(last.all(), [(hold(2), request(9)), (hold(4), request(8))]);
    }

    #[test]
    fn a_slot_cut_by_a_crash_is_free() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let keys = HoldKeyFile::open(path).expect("opens");
        let one = keys.get_or_create(hold(1), request(1)).expect("made");
        keys.get_or_create(hold(2), request(1)).expect("made");
        let whole = bytes(path);
        for cut in SLOT_BYTES..whole.len() {
            // Cut short, and written in part over zeros.
            let mut padded = whole[..cut].to_vec();
            padded.resize(whole.len(), 0);
            for torn in [&whole[..cut], &padded[..]] {
                std::fs::write(path.join(HoldKeyFile::NAME), torn).expect("writes");
                let keys = HoldKeyFile::open(path).expect("no damage");
                assert_eq!(keys.get(hold(1)), Some(one.clone()));
                assert_eq!(keys.get(hold(2)), None, "cut at {cut}");
            }
        }
        let keys = HoldKeyFile::open(path).expect("opens");
        keys.get_or_create(hold(3), request(1)).expect("made");
        assert_eq!(bytes(path).len(), 2 * SLOT_BYTES);
    }

    #[test]
    fn many_keys_at_once_are_all_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let keys = HoldKeyFile::open(directory.path()).expect("opens");
        std::thread::scope(|scope| {
            for n in 0..16 {
                let keys = &keys;
                scope.spawn(move || keys.get_or_create(hold(n), request(n)).expect("made"));
            }
        });
        let again = HoldKeyFile::open(directory.path()).expect("opens");
        for n in 0..16 {
            assert_eq!(again.get(hold(n)), keys.get(hold(n)));
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_of_a_newer_version_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(HoldKeyFile::NAME);
        let keys = HoldKeyFile::open(directory.path()).expect("opens");
        keys.get_or_create(hold(1), request(1)).expect("made");
        let mut newer = bytes(directory.path());
        newer[0] = 2;
        let digest = Digest::sha256(&newer[..DIGEST_AT]);
        newer[DIGEST_AT..].copy_from_slice(digest.as_bytes());
        std::fs::write(&path, newer).expect("writes");
        let refused = HoldKeyFile::open(directory.path()).expect_err("refused");
        assert!(refused.to_string().contains("newer"), "{refused}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("chmod");
        let refused = HoldKeyFile::open(directory.path()).expect_err("refused");
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }
}
