//! The key file: the secrets under which payloads are digested and sealed, one per user or tenant, the
//! server's own secret, and the key with which it signs roots.
//!
//! It lies beside the data with mode 0600 and is not part of backups, so deleting a user's key makes every
//! digest of their payloads meaningless and every payload unreadable, everywhere, while the chains still
//! verify. One line per key: the owner, a space, the id of the secret of the key ring that wraps the key, a
//! colon, the wrapped key in hexadecimal digits, a space, and the time of creation in microseconds since
//! 1970. Payloads older than that time were digested under a deleted key. A line that the key ring cannot open
//! stays in the file: who puts the ring back has the key back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use data_encoding::HEXLOWER;
use statehold_core::digest::PayloadKey;
use statehold_core::ids::UserId;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;

use crate::debug_log;
use crate::key_ring::{KeyRing, RingKey, RingKeyId};
use crate::port::StoreError;
use crate::private_file::{LineFile, append_line, sync_directory, unavailable, unopened};
use crate::seal::{SealKey, SealKeyId, SealKeys};

/// Separates the keys that wrap from other keys of the ring.
const WRAP_SALT: &str = "statehold wrapped key v1";
const NONCE_BYTES: usize = 24;

/// Whose key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyOwner {
    /// A user: items, holds, session and `user:` state.
    User(UserId),
    /// A tenant: `app:` state.
    Tenant(Name),
    /// The server itself: values that it seals and hands out.
    Server,
    /// The server as the signer of roots of audit streams.
    Signer,
}

impl std::fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(user) => user.fmt(f),
            Self::Tenant(tenant) => write!(f, "tenant:{tenant}"),
            Self::Server => f.write_str("server"),
            Self::Signer => f.write_str("signer"),
        }
    }
}

/// Read access to existing keys.
pub trait KnownKeys: SealKeys {
    /// The key of an owner, if there is one.
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey>;

    /// The creation time of that key. Older digests were made under a deleted key.
    fn since(&self, owner: &KeyOwner) -> Option<Timestamp>;
}

/// The keys for payloads and root signatures.
pub trait PayloadKeys: KnownKeys + 'static {
    /// The secrets that seal what callers carry.
    fn ring(&self) -> Arc<KeyRing>;

    /// Adds a new secret to the key ring and wraps every key with it. What callers carry stays valid, for the
    /// older secrets still open. May block on disk.
    ///
    /// # Errors
    ///
    /// If the ring is full, or a file cannot be written.
    fn rotate_ring(&self) -> Result<(), StoreError>;

    /// Deletes the key of an owner for good: after `Ok` no file here contains it, even after a crash. Returns
    /// whether there was one. May block on disk.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    fn delete(&self, owner: &KeyOwner) -> Result<bool, StoreError>;

    /// Stores a key for an owner who has none, and returns the key that the owner has then. After `Ok` it
    /// survives a crash, so a digest never outlives its key by accident. May block on disk.
    ///
    /// # Errors
    ///
    /// If the key cannot be stored.
    fn keep(&self, owner: &KeyOwner, fresh: &UserKey) -> Result<PayloadKey, StoreError>;

    /// The key of an owner, made and stored if there is none. May block on disk.
    ///
    /// # Errors
    ///
    /// If a new key cannot be stored.
    fn get_or_create(&self, owner: &KeyOwner) -> Result<PayloadKey, StoreError> {
        match self.get(owner) {
            Some(key) => Ok(key),
            None => self.keep(owner, &UserKey::fresh()?),
        }
    }
}

/// A key and its creation time.
#[derive(Debug, Clone)]
pub struct UserKey {
    key: PayloadKey,
    since: Timestamp,
    seal: Arc<SealKey>,
}

impl UserKey {
    /// A new random key. No file has it until it is kept.
    ///
    /// # Errors
    ///
    /// If the operating system has no random bytes.
    pub fn fresh() -> Result<Self, StoreError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|source| StoreError::Unavailable(Box::new(source)))?;
        Ok(Self::of(PayloadKey::from_bytes(bytes), now()))
    }

    /// A given key that was made at this time.
    pub fn of(key: PayloadKey, since: Timestamp) -> Self {
        let seal = Arc::new(SealKey::of(&key));
        Self { key, since, seal }
    }

    /// The key that seals payloads.
    pub fn seal(&self) -> &Arc<SealKey> {
        &self.seal
    }

    /// The key itself.
    pub fn key(&self) -> &PayloadKey {
        &self.key
    }
}

/// The keys of one data directory.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    ring: Arc<KeyRing>,
    seals: bool,
    /// Held while the file is written, so that reading keys never waits for the disk.
    writing: Mutex<()>,
    /// Held while an entry of the debug log is written, and while its files are removed.
    logging: Mutex<()>,
    keys: RwLock<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    /// The newest is the last one. An owner whose key was lost for a while has several.
    by_owner: BTreeMap<String, Vec<UserKey>>,
    by_seal: HashMap<SealKeyId, Arc<SealKey>>,
    /// Lines that the key ring cannot open, by owner.
    unreadable: Vec<(String, String)>,
    /// Owners whose keys were deleted since the file was opened. They get no new one: a call in progress would bring
    /// back what was erased.
    deleted: HashSet<String>,
}

impl Keys {
    fn insert(&mut self, owner: String, key: UserKey) {
        self.by_seal.insert(key.seal.id(), Arc::clone(&key.seal));
        let keys = self.by_owner.entry(owner).or_default();
        keys.push(key);
        keys.sort_by_key(|key| key.since);
    }

    fn newest(&self, owner: &str) -> Option<&UserKey> {
        self.by_owner.get(owner)?.last()
    }
}

impl KeyFile {
    /// The name of the file in the data directory.
    pub const NAME: &'static str = "user-keys";

    /// Opens the key file of a data directory with its key ring, or begins them.
    ///
    /// # Errors
    ///
    /// If one cannot be read, is readable by others, or has a line that is not a key.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let ring = Arc::new(KeyRing::open(directory)?);
        let path = directory.join(Self::NAME);
        let mut file = LineFile::open(&path)?;
        // A line that opens is whole, in a copy that lost its last line feed. The key of a line that a crash has cut was
        // never used.
        match file.rest().map(|line| opens(&ring, line)) {
            Some(true) => file.end_rest()?,
            Some(false) => file.drop_rest()?,
            None => {}
        }
        sync_directory(directory)?;
        Self::of(path, ring, file.lines())
    }

    /// Reads the keys of a data directory, and changes nothing there. Without its key ring, all of them stay unreadable.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, is readable by others, or has a line that is not a key.
    pub fn read(directory: &Path) -> Result<Self, StoreError> {
        let has_ring = directory.join(KeyRing::NAME).exists();
        let ring = if has_ring {
            KeyRing::read(directory)?
        } else {
            KeyRing::in_memory()?
        };
        let path = directory.join(Self::NAME);
        let mut file = LineFile::read(&path)?;
        if file.rest().is_some_and(|line| opens(&ring, line)) {
            file = file.with_rest();
        }
        Self::of(path, Arc::new(ring), file.lines())
    }

    /// The keys in the whole lines of a file.
    fn of(path: PathBuf, ring: Arc<KeyRing>, lines: &str) -> Result<Self, StoreError> {
        let mut keys = Keys::default();
        for (line, number) in lines.lines().zip(1..) {
            let damaged = || {
                let file = path.display();
                StoreError::Unusable(format!(
                    "line {number} of the key file {file} is not a key, or `{}` has another secret under the same name; \
                     put copies of both files back",
                    KeyRing::NAME
                ))
            };
            let (owner, wrapped, since) = split_line(line).ok_or_else(damaged)?;
            match ring.get(wrapped.by) {
                Some(by) => {
                    let key = unwrap(&by, owner, &wrapped, since).ok_or_else(damaged)?;
                    keys.insert(owner.to_owned(), UserKey::of(key, since));
                }
                None => keys.unreadable.push((owner.to_owned(), line.to_owned())),
            }
        }
        Ok(Self {
            path,
            ring,
            seals: true,
            writing: Mutex::default(),
            logging: Mutex::default(),
            keys: RwLock::new(keys),
        })
    }

    /// Whether new payloads are sealed; they are by default.
    #[must_use]
    pub fn sealing(self, seals: bool) -> Self {
        Self { seals, ..self }
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        let keys = self.keys();
        keys.by_owner.is_empty() && keys.unreadable.is_empty()
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.keys().by_owner.len()
    }

    /// How many keys the file has that the key ring cannot open.
    pub fn unreadable(&self) -> usize {
        self.keys().unreadable.len()
    }

    /// Writes the whole file again, without the keys of one owner.
    fn rewrite(&self, keys: &Keys, but: Option<&str>) -> Result<(), StoreError> {
        let by = self.ring.newest();
        let kept = keys.by_owner.iter();
        let kept = kept.filter(|(owner, _)| Some(owner.as_str()) != but);
        let kept = kept.flat_map(|(owner, keys)| keys.iter().map(move |key| (owner, key)));
        let mut text: String = kept
            .map(|(owner, key)| line(&by, owner, key))
            .collect::<Result<_, _>>()?;
        for (owner, line) in &keys.unreadable {
            if Some(owner.as_str()) != but {
                text.push_str(line);
                text.push('\n');
            }
        }
        let fresh = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(unopened(&fresh))?;
        file.write_all(text.as_bytes()).map_err(unavailable)?;
        file.sync_all().map_err(unavailable)?;
        std::fs::rename(&fresh, &self.path).map_err(unavailable)?;
        self.path.parent().map_or(Ok(()), sync_directory)
    }

    /// One thread writes the file at a time.
    /// Writes an entry of the debug log about a user, unless that user was erased: entries that were queued then, or
    /// whose calls went on, would come after the files were removed.
    pub(crate) fn log_unless_erased<T>(
        &self,
        user: UserId,
        write: impl FnOnce() -> T,
    ) -> Option<T> {
        let _turn = self.log_turn();
        let is_erased = self
            .keys()
            .deleted
            .contains(&KeyOwner::User(user).to_string());
        (!is_erased).then(write)
    }

    fn log_turn(&self) -> MutexGuard<'_, ()> {
        self.logging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_turn(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // A panic elsewhere cannot leave the keys half changed: every change is an insert or a removal.
    fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SealKeys for KeyFile {
    fn seal_key(&self, id: SealKeyId) -> Option<Arc<SealKey>> {
        self.keys().by_seal.get(&id).map(Arc::clone)
    }

    fn key_of(&self, owner: &KeyOwner) -> Option<Arc<SealKey>> {
        let keys = self.keys();
        let newest = keys.newest(&owner.to_string());
        newest.map(|key| Arc::clone(&key.seal))
    }

    fn seals(&self) -> bool {
        self.seals
    }
}

impl KnownKeys for KeyFile {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        let keys = self.keys();
        keys.newest(&owner.to_string()).map(|key| key.key.clone())
    }

    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        let keys = self.keys();
        keys.newest(&owner.to_string()).map(|key| key.since)
    }
}

impl PayloadKeys for KeyFile {
    fn ring(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring)
    }

    fn rotate_ring(&self) -> Result<(), StoreError> {
        let _writing = self.write_turn();
        self.ring.rotate()?;
        self.rewrite(&self.keys(), None)
    }

    fn delete(&self, owner: &KeyOwner) -> Result<bool, StoreError> {
        let owner = owner.to_string();
        let _writing = self.write_turn();
        self.change().deleted.insert(owner.clone());
        // The log is sealed under the key ring, and has the words of the owner. First, so that a repetition comes by
        // here again if the process dies before the key is gone.
        if let Some(directory) = self.path.parent() {
            let _no_entry_meanwhile = self.log_turn();
            debug_log::remove_files(directory)?;
        }
        {
            let keys = self.keys();
            let is_unreadable = keys.unreadable.iter().any(|(of, _)| *of == owner);
            if !keys.by_owner.contains_key(&owner) && !is_unreadable {
                return Ok(false);
            }
            self.rewrite(&keys, Some(&owner))?;
        }
        let mut keys = self.change();
        keys.unreadable.retain(|(of, _)| *of != owner);
        for key in keys.by_owner.remove(&owner).into_iter().flatten() {
            keys.by_seal.remove(&key.seal.id());
        }
        Ok(true)
    }

    fn keep(&self, owner: &KeyOwner, fresh: &UserKey) -> Result<PayloadKey, StoreError> {
        let owner = owner.to_string();
        let _writing = self.write_turn();
        let keys = self.keys();
        if let Some(kept) = keys.newest(&owner) {
            return Ok(kept.key.clone());
        }
        if keys.deleted.contains(&owner) {
            return Err(StoreError::Unavailable(
                format!("the key of {owner} was deleted").into(),
            ));
        }
        drop(keys);
        append_line(&self.path, &line(&self.ring.newest(), &owner, fresh)?)?;
        self.change().insert(owner, fresh.clone());
        Ok(fresh.key.clone())
    }
}

/// A key as the file has it.
struct WrappedKey {
    by: RingKeyId,
    nonce: [u8; NONCE_BYTES],
    ciphertext: Vec<u8>,
}

fn line(by: &RingKey, owner: &str, kept: &UserKey) -> Result<String, StoreError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|source| StoreError::Unavailable(Box::new(source)))?;
    let since = kept.since.as_micros();
    let payload = Payload {
        msg: kept.key.expose(),
        aad: &bound_to(owner, kept.since),
    };
    let sealed = wrapping(by).encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.expect("a key can always be encrypted");
    let (nonce, sealed) = (HEXLOWER.encode(&nonce), HEXLOWER.encode(&sealed));
    Ok(format!("{owner} {}:{nonce}{sealed} {since}\n", by.id))
}

/// Whether a line has a key that the ring opens.
fn opens(ring: &KeyRing, line: &str) -> bool {
    let Some((owner, wrapped, since)) = split_line(line) else {
        return false;
    };
    let by = ring.get(wrapped.by);
    by.is_some_and(|by| unwrap(&by, owner, &wrapped, since).is_some())
}

fn split_line(line: &str) -> Option<(&str, WrappedKey, Timestamp)> {
    let mut words = line.split(' ');
    let (owner, wrapped, since) = (words.next()?, words.next()?, words.next()?);
    let (by, wrapped) = wrapped.split_once(':')?;
    let by = HEXLOWER.decode(by.as_bytes()).ok()?.try_into().ok()?;
    let wrapped = HEXLOWER.decode(wrapped.as_bytes()).ok()?;
    let (nonce, ciphertext) = wrapped.split_first_chunk::<NONCE_BYTES>()?;
    let wrapped = WrappedKey {
        by: RingKeyId::from_bytes(by),
        nonce: *nonce,
        ciphertext: ciphertext.to_vec(),
    };
    let since = Timestamp::from_micros(since.parse().ok()?);
    words.next().is_none().then_some((owner, wrapped, since))
}

fn unwrap(by: &RingKey, owner: &str, wrapped: &WrappedKey, since: Timestamp) -> Option<PayloadKey> {
    let payload = Payload {
        msg: &wrapped.ciphertext,
        aad: &bound_to(owner, since),
    };
    let key = wrapping(by).decrypt(&XNonce::from(wrapped.nonce), payload);
    Some(PayloadKey::from_bytes(key.ok()?.try_into().ok()?))
}

fn wrapping(by: &RingKey) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&by.derive(WRAP_SALT, &[]).into())
}

/// A wrapped key is valid for its owner and its time only.
fn bound_to(owner: &str, since: Timestamp) -> Vec<u8> {
    format!("{owner} {}", since.as_micros()).into_bytes()
}

pub(crate) fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "only notes since when a key is the one; nothing is decided by it"
    )]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use uuid::Uuid;

    use super::*;

    fn bob() -> KeyOwner {
        KeyOwner::User(UserId::from_uuid(Uuid::from_u128(1)))
    }

    fn tenant() -> KeyOwner {
        KeyOwner::Tenant("default".parse().expect("a name"))
    }

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let keys = KeyFile::open(directory.path()).expect("opens");
        let key = keys.get_or_create(&bob()).expect("made");
        assert_eq!(keys.get_or_create(&bob()).expect("found"), key);
        let again = KeyFile::open(directory.path()).expect("opens again");
        assert_eq!(again.get(&bob()), Some(key));
    }

    #[test]
    fn a_deleted_key_is_gone_for_ever() {
        let directory = tempfile::tempdir().expect("a directory");
        let keys = KeyFile::open(directory.path()).expect("opens");
        let key = keys.get_or_create(&bob()).expect("made");
        assert!(keys.delete(&bob()).expect("deleted"));
        assert!(!keys.delete(&bob()).expect("nothing to delete"));
        assert_eq!(keys.seal_key(SealKey::of(&key).id()).map(|_| ()), None);
        let text = std::fs::read_to_string(directory.path().join(KeyFile::NAME)).expect("reads");
        assert!(!text.contains(&bob().to_string()), "{text}");
        assert_eq!(
            KeyFile::open(directory.path()).expect("opens").get(&bob()),
            None
        );
    }

    #[test]
    fn a_line_cut_by_a_crash_is_dropped_and_damage_before_it_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(KeyFile::NAME);
        let keys = KeyFile::open(directory.path()).expect("opens");
        let key = keys.get_or_create(&bob()).expect("made");
        let whole = std::fs::read(&path).expect("reads");
        for end in 1..whole.len() {
            let cut = [&whole[..], &whole[..end]].concat();
            std::fs::write(&path, cut).expect("writes");
            let keys = KeyFile::open(directory.path()).expect("a cut line is no damage");
            assert_eq!(keys.get(&bob()), Some(key.clone()));
            keys.get_or_create(&tenant())
                .expect("a key is added after the cut");
            KeyFile::open(directory.path()).expect("and the file is whole again");
        }
        std::fs::write(&path, [b"damage\n", &whole[..]].concat()).expect("writes");
        let refused = KeyFile::open(directory.path()).expect_err("damage is refused");
        assert!(refused.to_string().contains("line 1"), "{refused}");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        KeyFile::open(directory.path()).expect("opens");
        let path = directory.path().join(KeyFile::NAME);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("chmod");
        let refused = KeyFile::open(directory.path()).expect_err("refused");
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }

    #[test]
    fn the_file_alone_does_not_tell_a_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let keys = KeyFile::open(directory.path()).expect("opens");
        let key = keys.get_or_create(&bob()).expect("made");
        let text = std::fs::read_to_string(directory.path().join(KeyFile::NAME)).expect("reads");
        assert!(!text.contains(&HEXLOWER.encode(key.expose())), "{text}");
    }

    #[test]
    fn a_rotated_ring_keeps_every_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let keys = KeyFile::open(directory.path()).expect("opens");
        let key = keys.get_or_create(&bob()).expect("made");
        let path = directory.path().join(KeyFile::NAME);
        keys.rotate_ring().expect("rotates");
        let fresh = keys.ring().newest().id;
        let other = keys.get_or_create(&tenant()).expect("made");
        let text = std::fs::read_to_string(&path).expect("reads");
        assert_eq!(text.matches(&format!(" {fresh}:")).count(), 2, "{text}");
        let again = KeyFile::open(directory.path()).expect("opens again");
        assert_eq!(again.get(&bob()), Some(key));
        assert_eq!(again.get(&tenant()), Some(other));
    }

    #[test]
    fn reading_the_keys_changes_no_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let keys = KeyFile::open(directory.path()).expect("opens");
        let key = keys.get_or_create(&bob()).expect("made");
        let (path, ring) = (keys.path.clone(), directory.path().join(KeyRing::NAME));
        let mut text = std::fs::read_to_string(&path).expect("reads");
        text.push_str("half a li");
        std::fs::write(&path, &text).expect("writes");
        let found = KeyFile::read(directory.path()).expect("reads");
        assert_eq!(found.get(&bob()), Some(key));
        std::fs::remove_file(&ring).expect("the ring is lost");
        let without = KeyFile::read(directory.path()).expect("reads");
        assert_eq!((without.count(), without.unreadable()), (0, 1));
        assert!(
            !ring.exists(),
            "a new ring would hide that the old one is lost"
        );
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), text);
    }

    #[test]
    fn a_lost_ring_takes_the_keys_with_it_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let ring = directory.path().join(KeyRing::NAME);
        let kept = directory.path().join("kept");
        let keys = KeyFile::open(directory.path()).expect("opens");
        let key = keys.get_or_create(&bob()).expect("made");
        std::fs::rename(&ring, &kept).expect("the ring is lost");
        let without = KeyFile::open(directory.path()).expect("it opens without the ring");
        assert_eq!((without.count(), without.unreadable()), (0, 1));
        assert!(!without.is_empty());
        let fresh = without
            .get_or_create(&tenant())
            .expect("new keys can be made");
        assert_eq!(without.get(&tenant()), Some(fresh));
        let newer = without
            .get_or_create(&bob())
            .expect("also for the same owner");
        std::fs::remove_file(&ring).expect("the new ring goes");
        std::fs::rename(&kept, &ring).expect("the ring is found");
        let again = KeyFile::open(directory.path()).expect("opens again");
        assert_eq!(again.get(&bob()), Some(key.clone()));
        again.rotate_ring().expect("rotates");
        let text = std::fs::read_to_string(directory.path().join(KeyFile::NAME)).expect("reads");
        assert_eq!(text.matches(&bob().to_string()).count(), 2, "{text}");
        let opens = |key: &PayloadKey| again.seal_key(SealKey::of(key).id()).is_some();
        assert!(opens(&key) && !opens(&newer));
    }
}
