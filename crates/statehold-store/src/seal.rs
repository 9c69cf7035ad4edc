//! Sealing payloads at rest: everything that people, agents and tools have said is encrypted under the key of
//! its user (`app:` values under that of the tenant), so deleting that key makes it unreadable everywhere.
//!
//! A sealed text is the id of the key (8 bytes), a nonce (24) and the `XChaCha20-Poly1305` ciphertext,
//! which is 16 bytes longer than what it hides. It says itself which key opens it: a reader needs no more than
//! all keys that there are, and knows a payload whose key is gone from a damaged one.
//!
//! A turn writes about ten short payloads, so the fixed cost of each counts. `XChaCha20` is `ChaCha20` under a key that `HChaCha20`
//! makes of the first 16 bytes of the nonce. A process has one such beginning, drawn at random, and counts in the
//! other 8 bytes: it derives that key once for each of its keys.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use chacha20::{R20, hchacha};
use hkdf::Hkdf;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use sha2::Sha256;
use statehold_core::digest::{Digest, PayloadKey};

use crate::keys::KeyOwner;

/// By how much a payload grows when it is sealed.
pub const SEAL_BYTES: usize = ID_BYTES + NONCE_BYTES + TAG_BYTES;

const ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const BEGINNING_BYTES: usize = 16;

/// The nonces of this process: each is used once.
static NONCES: LazyLock<Nonces> = LazyLock::new(|| {
    let mut beginning = [0; BEGINNING_BYTES];
    getrandom::fill(&mut beginning).expect("the system has a random source");
    let used = AtomicU64::new(0);
    Nonces { beginning, used }
});

struct Nonces {
    beginning: [u8; BEGINNING_BYTES],
    used: AtomicU64,
}

/// Separates this key from the one that digests payloads.
const SALT: &[u8] = b"statehold payload seal v1";

/// Names the key of a sealed text. It is derived from the key and tells nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SealKeyId([u8; ID_BYTES]);

/// The key that seals the payloads of one user or tenant.
#[derive(Clone)]
pub struct SealKey {
    id: SealKeyId,
    secret: [u8; 32],
    /// The cipher for nonces of this process.
    cipher: LessSafeKey,
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
            cipher: cipher(&key, &NONCES.beginning),
            secret: key,
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
        let number = NONCES.used.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let mut sealed = Vec::with_capacity(bytes.len() + SEAL_BYTES);
        sealed.extend_from_slice(&self.id.0);
        sealed.extend_from_slice(&NONCES.beginning);
        sealed.extend_from_slice(&number);
        sealed.extend_from_slice(bytes);
        let text = &mut sealed[ID_BYTES + NONCE_BYTES..];
        let tag = self
            .cipher
            .seal_in_place_separate_tag(nonce(number), Aad::from(bound_to), text)
            .expect("limits keep payloads far below what the cipher can take");
        sealed.extend_from_slice(tag.as_ref());
        sealed
    }

    /// Opens a ciphertext in place. None if it is not what was sealed.
    fn open<'a>(
        &self,
        (beginning, number): (&[u8; BEGINNING_BYTES], [u8; 8]),
        bound_to: &[u8],
        ciphertext: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        let bound_to = Aad::from(bound_to);
        let opened = if *beginning == NONCES.beginning {
            let own = &self.cipher;
            own.open_in_place(nonce(number), bound_to, ciphertext)
        } else {
            let earlier = cipher(&self.secret, beginning);
            earlier.open_in_place(nonce(number), bound_to, ciphertext)
        };
        opened.ok()
    }
}

/// The cipher of a key for all nonces that begin so.
fn cipher(key: &[u8; 32], beginning: &[u8; BEGINNING_BYTES]) -> LessSafeKey {
    let derived = hchacha::<R20>(&(*key).into(), &(*beginning).into());
    let derived = UnboundKey::new(&CHACHA20_POLY1305, &derived);
    LessSafeKey::new(derived.expect("a derived key has 32 bytes"))
}

fn nonce(number: [u8; 8]) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number);
    Nonce::assume_unique_for_key(nonce)
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
    let (beginning, rest) = rest
        .split_first_chunk::<BEGINNING_BYTES>()
        .ok_or(SealError::Damaged)?;
    let (number, ciphertext) = rest.split_first_chunk::<8>().ok_or(SealError::Damaged)?;
    let key = keys.seal_key(SealKeyId(*id)).ok_or(SealError::KeyGone)?;
    let mut text = ciphertext.to_vec();
    let opened = key.open((beginning, *number), bound_to, &mut text);
    let bytes = opened.ok_or(SealError::Damaged)?.len();
    text.truncate(bytes);
    Ok(text)
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
    fn a_seal_is_xchacha20_poly1305_whichever_process_made_it() {
        use chacha20poly1305::aead::{Aead, Payload};
        use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
        let (key, msg, aad) = (key(1), &b"text"[..], &b"a"[..]);
        let whole = XChaCha20Poly1305::new(&key.secret.into());
        let sealed = key.seal(aad, msg);
        let (nonce, ciphertext) = sealed[ID_BYTES..].split_at(NONCE_BYTES);
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().expect("its length");
        let payload = Payload {
            msg: ciphertext,
            aad,
        };
        let opened = whole.decrypt(&XNonce::from(nonce), payload);
        assert_eq!(opened.as_deref(), Ok(msg));
        let nonce = [9; NONCE_BYTES];
        let elsewhere = whole.encrypt(&XNonce::from(nonce), Payload { msg, aad });
        let elsewhere = elsewhere.expect("a ciphertext");
        let sealed = [&key.id.0[..], &nonce, &elsewhere].concat();
        let keys = One(Arc::new(key));
        assert_eq!(open(&keys, aad, &sealed).as_deref(), Ok(msg));
    }

    #[test]
    fn no_two_seals_have_the_same_nonce() {
        let keys = [key(1), key(1), key(2)];
        let seals = (0..3_000).map(|n| keys[n % 3].seal(b"", b""));
        let nonces: std::collections::BTreeSet<Vec<u8>> = seals
            .map(|sealed| sealed[ID_BYTES..][..NONCE_BYTES].to_vec())
            .collect();
        assert_eq!(nonces.len(), 3_000);
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
