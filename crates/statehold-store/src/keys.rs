//! The key file: the secrets under which payloads are digested, one per user or tenant, the key
//! under which the server seals values that it hands out, and the key with which it signs roots.
//!
//! It lies beside the data with mode 0600 and is not part of backups, so deleting a user's key
//! makes every digest of their payloads meaningless, everywhere, while the chains still verify. One
//! line per key: the owner, a space, 64 hexadecimal digits, a space, and the time of creation in
//! microseconds since 1970. Payloads older than that time were digested under a deleted key.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use data_encoding::HEXLOWER;
use statehold_core::digest::PayloadKey;
use statehold_core::ids::UserId;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;

use crate::port::StoreError;

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

/// Read access to existing keys, for verification.
pub trait KnownKeys: Send + Sync {
    /// The key of an owner, if there is one.
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey>;

    /// The creation time of that key. Older digests were made under a deleted key.
    fn since(&self, owner: &KeyOwner) -> Option<Timestamp>;
}

/// The keys for payload digests and root signatures.
pub trait PayloadKeys: KnownKeys + 'static {
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
        Ok(Self {
            key: PayloadKey::from_bytes(bytes),
            since: now(),
        })
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
    keys: Mutex<BTreeMap<String, UserKey>>,
}

impl KeyFile {
    /// The name of the file in the data directory.
    pub const NAME: &'static str = "user-keys";

    /// Opens the key file of a data directory, or begins one.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is readable by others, or has a line that is not a key.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(Self::NAME);
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .map_err(unavailable)?;
        require_private(&file, Self::NAME)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(unavailable)?;
        let mut keys = BTreeMap::new();
        // The file is appended to: a crash can cut the last line, whose key was never used.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(unavailable)?;
            file.sync_all().map_err(unavailable)?;
        }
        for (index, line) in text[..whole].lines().enumerate() {
            let Some((owner, kept)) = parse_line(line) else {
                return Err(StoreError::Unusable(format!(
                    "line {} of the key file {} is not a key",
                    index + 1,
                    path.display()
                )));
            };
            keys.insert(owner, kept);
        }
        sync_directory(directory)?;
        Ok(Self {
            path,
            keys: Mutex::new(keys),
        })
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Deletes a key.
    ///
    /// After `Ok` the file no longer contains the key, even after a crash.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn delete(&self, owner: &KeyOwner) -> Result<bool, StoreError> {
        let owner = owner.to_string();
        let mut keys = self.lock();
        if !keys.contains_key(&owner) {
            return Ok(false);
        }
        let kept = keys.iter().filter(|(name, _)| **name != owner);
        let text: String = kept.map(|(name, key)| line(name, key)).collect();
        let fresh = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(unavailable)?;
        file.write_all(text.as_bytes()).map_err(unavailable)?;
        file.sync_all().map_err(unavailable)?;
        std::fs::rename(&fresh, &self.path).map_err(unavailable)?;
        if let Some(directory) = self.path.parent() {
            sync_directory(directory)?;
        }
        keys.remove(&owner);
        Ok(true)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, UserKey>> {
        // A panic elsewhere cannot leave the map half changed: every change is one insert or remove.
        self.keys
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl KnownKeys for KeyFile {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        let keys = self.lock();
        keys.get(&owner.to_string()).map(|kept| kept.key.clone())
    }

    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        self.lock().get(&owner.to_string()).map(|kept| kept.since)
    }
}

impl PayloadKeys for KeyFile {
    fn keep(&self, owner: &KeyOwner, fresh: &UserKey) -> Result<PayloadKey, StoreError> {
        let owner = owner.to_string();
        let mut keys = self.lock();
        if let Some(kept) = keys.get(&owner) {
            return Ok(kept.key.clone());
        }
        let mut file = OpenOptions::new()
            .append(true)
            .open(&self.path)
            .map_err(unavailable)?;
        file.write_all(line(&owner, fresh).as_bytes())
            .map_err(unavailable)?;
        file.sync_all().map_err(unavailable)?;
        keys.insert(owner, fresh.clone());
        Ok(fresh.key.clone())
    }
}

fn line(owner: &str, kept: &UserKey) -> String {
    let key = HEXLOWER.encode(kept.key.expose());
    format!("{owner} {key} {}\n", kept.since.as_micros())
}

fn parse_line(line: &str) -> Option<(String, UserKey)> {
    let mut words = line.split(' ');
    let (owner, key, since) = (words.next()?, words.next()?, words.next()?);
    let key: [u8; 32] = HEXLOWER.decode(key.as_bytes()).ok()?.try_into().ok()?;
    let kept = UserKey {
        key: PayloadKey::from_bytes(key),
        since: Timestamp::from_micros(since.parse().ok()?),
    };
    words.next().is_none().then(|| (owner.to_owned(), kept))
}

fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "only notes since when a key is the one; nothing is decided by it"
    )]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

pub(crate) fn require_private(file: &File, name: &str) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata().map_err(unavailable)?.permissions().mode();
    let is_private = mode.trailing_zeros() >= 6;
    if is_private {
        Ok(())
    } else {
        Err(StoreError::Unusable(format!(
            "the key file can be read by others (mode {:o}); run: chmod 600 {name}",
            mode & 0o777,
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

fn unavailable(source: std::io::Error) -> StoreError {
    StoreError::Unavailable(Box::new(source))
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
        let text = std::fs::read_to_string(directory.path().join(KeyFile::NAME)).expect("reads");
        assert!(!text.contains(&HEXLOWER.encode(key.expose())));
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
}
