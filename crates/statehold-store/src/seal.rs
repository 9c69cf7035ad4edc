//! Sealing payloads at rest: everything that people, agents and tools have said is encrypted under the key of
//! its user (`app:` values under that of the tenant), so deleting that key makes it unreadable everywhere.
//!
//! A sealed text is the id of the key (8 bytes), a random nonce (24) and the XChaCha20-Poly1305 ciphertext,
//! which is 16 bytes longer than what it hides. It says itself which key opens it: a reader needs no more than
//! all keys that there are, and knows a payload whose key is gone from a damaged one.

use std::sync::Arc;

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::Sha256;
use statehold_core::digest::{Digest, PayloadKey};

use crate::keys::KeyOwner;

/// By how much a payload grows when it is sealed.
pub const SEAL_BYTES: usize = ID_BYTES + NONCE_BYTES + TAG_BYTES;

const ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Separates this key from the one that digests payloads.
const SALT: &[u8] = b"statehold payload seal v1";

/// Names the key of a sealed text. It is derived from the key and tells nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SealKeyId([u8; ID_BYTES]);

/// The key that seals the payloads of one user or tenant.
#[derive(Clone)]
pub struct SealKey {
    id: SealKeyId,
    cipher: XChaCha20Poly1305,
    lookup: PayloadKey,
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(…)")
    }
}

/// The keys that seal and open payloads.
pub trait SealKeys: Send + Sync {
    /// The key with this id. None if it was deleted or lost.
    fn seal_key(&self, id: SealKeyId) -> Option<Arc<SealKey>>;

    /// The key of an owner. None if the owner has none here.
    fn key_of(&self, owner: &KeyOwner) -> Option<Arc<SealKey>>;

    /// Whether new payloads are sealed.
    fn seals(&self) -> bool;
}

/// The texts that are found by a keyed digest. One text has another digest as another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupKind {
    /// The name of a session.
    SessionName,
    /// The name of a user.
    UserName,
}

/// No keys: every sealed payload is one whose key is gone.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoKeys;

impl SealKeys for NoKeys {
    fn seal_key(&self, _id: SealKeyId) -> Option<Arc<SealKey>> {
        None
    }

    fn key_of(&self, _owner: &KeyOwner) -> Option<Arc<SealKey>> {
        None
    }

    fn seals(&self) -> bool {
        false
    }
}

/// Why a sealed text cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The key was deleted or lost.
    #[error("the key that sealed it is gone")]
    KeyGone,
    /// These are not the bytes that were sealed.
    #[error("it is not what was sealed")]
    Damaged,
}

impl SealKey {
    /// Derives the key from the secret of its owner.
    ///
    /// # Panics
    ///
    /// Never: HKDF gives far more bytes.
    pub fn of(secret: &PayloadKey) -> Self {
        let (mut id, mut key, mut lookup) = ([0; ID_BYTES], [0; 32], [0; 32]);
        let derivation = Hkdf::<Sha256>::new(Some(SALT), secret.expose());
        derivation
            .expand(b"id", &mut id)
            .and_then(|()| derivation.expand(b"key", &mut key))
            .and_then(|()| derivation.expand(b"lookup", &mut lookup))
            .expect("HKDF gives up to 8160 bytes");
        Self {
            id: SealKeyId(id),
            cipher: XChaCha20Poly1305::new(&key.into()),
            lookup: PayloadKey::from_bytes(lookup),
        }
    }

    /// The digest that a text is found by, if it is stored sealed.
    pub fn lookup(&self, kind: LookupKind, text: &str) -> Vec<u8> {
        let kind = match kind {
            LookupKind::SessionName => "session name",
            LookupKind::UserName => "user name",
        };
        let named = [kind.as_bytes(), b"\0", text.as_bytes()].concat();
        Digest::keyed(&self.lookup, &named).as_bytes().to_vec()
    }

    /// The name of the key.
    pub fn id(&self) -> SealKeyId {
        self.id
    }

    /// Seals bytes. `bound_to` must be the same when they are opened.
    ///
    /// # Panics
    ///
    /// If the system has no random source.
    pub fn seal(&self, bound_to: &[u8], bytes: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).expect("the system has a random source");
        let payload = Payload {
            msg: bytes,
            aad: bound_to,
        };
        let ciphertext = self
            .cipher
            .encrypt(&XNonce::from(nonce), payload)
            .expect("limits keep payloads far below what the cipher can take");
        let mut sealed = Vec::with_capacity(bytes.len() + SEAL_BYTES);
        sealed.extend_from_slice(&self.id.0);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&ciphertext);
        sealed
    }
}

/// Opens what [`SealKey::seal`] made.
///
/// # Errors
///
/// If the key is gone, or the bytes are not what was sealed.
pub fn open(keys: &dyn SealKeys, bound_to: &[u8], sealed: &[u8]) -> Result<Vec<u8>, SealError> {
    let (id, rest) = sealed
        .split_first_chunk::<ID_BYTES>()
        .ok_or(SealError::Damaged)?;
    let (nonce, ciphertext) = rest
        .split_first_chunk::<NONCE_BYTES>()
        .ok_or(SealError::Damaged)?;
    let key = keys.seal_key(SealKeyId(*id)).ok_or(SealError::KeyGone)?;
    let payload = Payload {
        msg: ciphertext,
        aad: bound_to,
    };
    key.cipher
        .decrypt(&XNonce::from(*nonce), payload)
        .map_err(|_| SealError::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(Arc<SealKey>);

    impl SealKeys for One {
        fn seal_key(&self, id: SealKeyId) -> Option<Arc<SealKey>> {
            (self.0.id == id).then(|| Arc::clone(&self.0))
        }

        fn key_of(&self, _owner: &KeyOwner) -> Option<Arc<SealKey>> {
            Some(Arc::clone(&self.0))
        }

        fn seals(&self) -> bool {
            true
        }
    }

    fn key(secret: u8) -> SealKey {
        SealKey::of(&PayloadKey::from_bytes([secret; 32]))
    }

    #[test]
    fn what_was_sealed_is_opened_by_its_own_key_only() {
        for bytes in [&b""[..], b"x", &[7; 10_000]] {
            let sealed = key(1).seal(b"a", bytes);
            assert_eq!(sealed.len(), bytes.len() + SEAL_BYTES);
            let open = |secret, bound: &[u8]| open(&One(Arc::new(key(secret))), bound, &sealed);
            assert_eq!(open(1, b"a").as_deref(), Ok(bytes));
            assert_eq!(open(1, b"b"), Err(SealError::Damaged));
            assert_eq!(open(2, b"a"), Err(SealError::KeyGone));
        }
    }

    #[test]
    fn a_text_is_found_by_another_digest_under_each_key_and_as_each_kind() {
        let named = |secret, kind| key(secret).lookup(kind, "bob");
        let digests = [
            named(1, LookupKind::SessionName),
            named(2, LookupKind::SessionName),
            named(1, LookupKind::UserName),
        ];
        assert_eq!(digests[0], named(1, LookupKind::SessionName));
        assert_ne!(digests[0], digests[1]);
        assert_ne!(digests[0], digests[2]);
    }

    #[test]
    fn the_same_text_never_looks_the_same_twice() {
        assert_ne!(key(1).seal(b"", b"text"), key(1).seal(b"", b"text"));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let sealed = key(1).seal(b"", b"text");
        let keys = One(Arc::new(key(1)));
        for end in 0..sealed.len() {
            assert!(open(&keys, b"", &sealed[..end]).is_err(), "cut at {end}");
        }
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&keys, b"", &changed).is_err(), "bit {bit}");
        }
    }
}
