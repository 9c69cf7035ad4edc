//! The key ring: the secrets of this installation, oldest first. The newest seals; all of them open.
//!
//! The file `key-ring` lies in the data directory with mode 0600 and is not part of backups. One line per
//! secret: its id of 8 hexadecimal digits, a space, 64 hexadecimal digits, a space, and the time of creation
//! in microseconds since 1970. Rotation adds a line; what older secrets sealed stays readable.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use data_encoding::HEXLOWER;
use hkdf::Hkdf;
use sha2::Sha256;
use statehold_core::time::Timestamp;

use crate::keys::{KeyFile, now};
use crate::port::StoreError;
use crate::private_file::{LineFile, append_line, sync_directory};

/// Names a secret of the ring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingKeyId([u8; 4]);

impl RingKeyId {
    /// Wraps the bytes of an id.
    pub const fn from_bytes(bytes: [u8; 4]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; 4] {
        &self.0
    }
}

impl std::fmt::Display for RingKeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl std::fmt::Debug for RingKeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingKeyId({self})")
    }
}

/// A secret of the ring. Nobody uses it as it is: each use has a key of its own, derived from it.
#[derive(Clone)]
pub struct RingKey {
    /// Its name in what was sealed.
    pub id: RingKeyId,
    /// When it was made.
    pub since: Timestamp,
    secret: [u8; 32],
}

impl std::fmt::Debug for RingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingKey({})", self.id)
    }
}

impl RingKey {
    fn fresh() -> Result<Self, StoreError> {
        let (mut id, mut secret) = ([0; 4], [0; 32]);
        getrandom::fill(&mut id)
            .and_then(|()| getrandom::fill(&mut secret))
            .map_err(|source| StoreError::Unavailable(Box::new(source)))?;
        Ok(Self {
            id: RingKeyId(id),
            since: now(),
            secret,
        })
    }

    /// A secret that is given from outside, for tests.
    pub const fn from_bytes(id: RingKeyId, secret: [u8; 32]) -> Self {
        Self {
            id,
            since: Timestamp::from_micros(0),
            secret,
        }
    }

    /// The key for one use. `salt` names the use, `info` what the key is for within it.
    ///
    /// # Panics
    ///
    /// Never: HKDF gives far more than 32 bytes.
    pub fn derive(&self, salt: &str, info: &[&[u8]]) -> [u8; 32] {
        let mut key = [0; 32];
        Hkdf::<Sha256>::new(Some(salt.as_bytes()), &self.secret)
            .expand_multi_info(info, &mut key)
            .expect("HKDF gives up to 8160 bytes");
        key
    }

    fn line(&self) -> String {
        let (secret, since) = (HEXLOWER.encode(&self.secret), self.since.as_micros());
        format!("{} {secret} {since}\n", self.id)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, secret, since) = (words.next()?, words.next()?, words.next()?);
        let key = Self {
            id: RingKeyId(HEXLOWER.decode(id.as_bytes()).ok()?.try_into().ok()?),
            secret: HEXLOWER.decode(secret.as_bytes()).ok()?.try_into().ok()?,
            since: Timestamp::from_micros(since.parse().ok()?),
        };
        words.next().is_none().then_some(key)
    }
}

/// The secrets of one installation, oldest first. There is always one.
#[derive(Debug)]
pub struct KeyRing {
    /// None for a ring in memory.
    path: Option<PathBuf>,
    keys: RwLock<Vec<RingKey>>,
}

impl KeyRing {
    /// The name of the file in the data directory.
    pub const NAME: &'static str = "key-ring";

    /// The length of a line without its line feed: id, secret, and the time in microseconds.
    const LINE_BYTES: usize = 8 + 1 + 64 + 1 + 16;

    /// How many secrets a ring may have: one a day for eleven years. Opening what callers carry looks for its secret
    /// among all of them.
    pub const SECRETS_MAX: usize = 4_096;

    /// Opens the ring of a data directory, or begins one with a first secret.
    ///
    /// # Errors
    ///
    /// If it cannot be read or written, can be read by others, or has a line that is not a secret.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(Self::NAME);
        let mut file = LineFile::open(&path)?;
        if let Some(rest) = file.rest() {
            if rest.len() >= Self::LINE_BYTES && RingKey::parse(rest).is_some() {
                // A copy that lost its last line feed.
                file.end_rest()?;
            } else if file.lines().is_empty()
                && std::fs::metadata(directory.join(KeyFile::NAME)).is_ok_and(|keys| keys.len() > 0)
            {
                let file = path.display();
                return Err(StoreError::Unusable(format!(
                    "the key ring {file} is cut; put a copy of it back, or move it away to begin without what it sealed"
                )));
            } else {
                // A crash can cut the last line; nothing was sealed under its secret.
                file.drop_rest()?;
            }
        }
        let keys = parse_lines(&path, file.lines())?;
        let is_new = keys.is_empty();
        let ring = Self {
            path: Some(path),
            keys: RwLock::new(keys),
        };
        if is_new {
            ring.rotate()?;
        }
        sync_directory(directory)?;
        Ok(ring)
    }

    /// Reads the ring of a data directory that a server may have open. Changes nothing.
    ///
    /// # Errors
    ///
    /// If there is none, it cannot be read, can be read by others, or has a line that is not a secret.
    pub fn read(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(Self::NAME);
        // The server may be adding a line behind the whole ones.
        let keys = parse_lines(&path, LineFile::read(&path)?.lines())?;
        if keys.is_empty() {
            let file = path.display();
            return Err(StoreError::Unusable(format!(
                "the key ring {file} is empty"
            )));
        }
        Ok(Self::of(keys))
    }

    /// A ring with one random secret that no file has.
    ///
    /// # Errors
    ///
    /// If the operating system has no random bytes.
    pub fn in_memory() -> Result<Self, StoreError> {
        Ok(Self::of(vec![RingKey::fresh()?]))
    }

    /// A ring of these secrets, oldest first, for tests.
    pub fn of(keys: Vec<RingKey>) -> Self {
        Self {
            path: None,
            keys: RwLock::new(keys),
        }
    }

    /// The secret that seals.
    ///
    /// # Panics
    ///
    /// Never: a ring has at least one secret.
    pub fn newest(&self) -> RingKey {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.last().expect("a ring has a secret").clone()
    }

    /// The secret with this id.
    pub fn get(&self, id: RingKeyId) -> Option<RingKey> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().rev().find(|key| key.id == id).cloned()
    }

    /// All secrets, oldest first.
    pub fn all(&self) -> Vec<RingKey> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.clone()
    }

    /// Adds a new secret, which seals from now on. After `Ok` it survives a crash. Blocks on disk.
    ///
    /// # Errors
    ///
    /// If it cannot be stored, or the ring is full.
    pub fn rotate(&self) -> Result<RingKeyId, StoreError> {
        let fresh = RingKey::fresh()?;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= Self::SECRETS_MAX {
            let most = Self::SECRETS_MAX;
            return Err(StoreError::Unusable(format!(
                "the key ring has its {most} secrets; it cannot be rotated again"
            )));
        }
        drop(keys);
        // Not under the lock: readers never wait for the disk.
        if let Some(path) = &self.path {
            append_line(path, &fresh.line())?;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.push(fresh.clone());
        Ok(fresh.id)
    }
}

/// The secrets of the whole lines of a file.
fn parse_lines(path: &Path, text: &str) -> Result<Vec<RingKey>, StoreError> {
    let lines = text.lines().zip(1..);
    let keys = lines.map(|(line, number)| {
        RingKey::parse(line).ok_or_else(|| {
            let file = path.display();
            StoreError::Unusable(format!("line {number} of the key ring {file} is not a key"))
        })
    });
    keys.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_secret_seals_and_older_ones_are_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let ring = KeyRing::open(directory.path()).expect("opens");
        let first = ring.newest();
        let second = ring.rotate().expect("rotates");
        assert_ne!(first.id, second);
        let again = KeyRing::open(directory.path()).expect("opens again");
        assert_eq!(again.newest().id, second);
        let found = again.get(first.id).expect("it is still there");
        assert_eq!(found.derive("use", &[b"x"]), first.derive("use", &[b"x"]));
        assert_ne!(found.derive("use", &[b"x"]), found.derive("use", &[b"y"]));
        assert_eq!(again.all().len(), 2);
    }

    #[test]
    fn a_line_cut_by_a_crash_is_dropped_and_damage_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(KeyRing::NAME);
        let first = KeyRing::open(directory.path()).expect("opens").newest().id;
        let whole = std::fs::read(&path).expect("reads");
        for end in 1..whole.len() - 1 {
            std::fs::write(&path, [&whole[..], &whole[..end]].concat()).expect("writes");
            let ring = KeyRing::open(directory.path()).expect("a cut line is no damage");
            assert_eq!(ring.all().len(), 1, "cut at {end}");
            assert_eq!(ring.newest().id, first);
        }
        std::fs::write(&path, [b"damage\n", &whole[..]].concat()).expect("writes");
        let refused = KeyRing::open(directory.path()).expect_err("damage is refused");
        assert!(refused.to_string().contains("line 1"), "{refused}");
    }

    #[test]
    fn a_copy_that_lost_its_last_line_feed_is_whole_and_a_cut_one_beside_keys_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(KeyRing::NAME);
        let id = KeyRing::open(directory.path()).expect("opens").newest().id;
        let whole = std::fs::read(&path).expect("reads");
        std::fs::write(&path, whole.trim_ascii_end()).expect("writes");
        let ring = KeyRing::open(directory.path()).expect("it is whole");
        assert_eq!((ring.newest().id, ring.all().len()), (id, 1));
        assert_eq!(std::fs::read(&path).expect("reads"), whole);
        std::fs::write(directory.path().join(KeyFile::NAME), "a key\n").expect("writes");
        for end in [1, 20, whole.len() - 2] {
            std::fs::write(&path, &whole[..end]).expect("writes");
            let refused = KeyRing::open(directory.path()).expect_err("refused");
            assert!(refused.to_string().contains("is cut"), "{refused}");
            assert_eq!(std::fs::read(&path).expect("reads"), &whole[..end]);
        }
    }

    #[test]
    fn a_ring_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        KeyRing::open(directory.path()).expect("opens");
        let path = directory.path().join(KeyRing::NAME);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("chmod");
        let refused = KeyRing::open(directory.path()).expect_err("refused");
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }
}
