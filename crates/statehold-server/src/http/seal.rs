//! Sealed handles: page cursors and feed positions that go out to a caller and come back; and documents that a
//! caller keeps without reading them.
//!
//! A handle is opaque and valid only for the purpose, the caller and the filter it was sealed for. Any
//! other use gets the same error, so that a caller cannot probe. Expiry, if a handle needs one, belongs in
//! its content.
//!
//! The envelope is a version byte, four bytes that name the key, a random nonce of 24 bytes, and the
//! XChaCha20-Poly1305 ciphertext, together as URL-safe base64 without padding. Nonces of that length
//! may be drawn at random on every node without coordination.

use std::sync::Arc;

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use data_encoding::BASE64URL_NOPAD;
use statehold_engine::key_ring::{KeyRing, RingKey, RingKeyId};

/// The longest content of a handle. Cursors and positions are far below.
pub const CONTENT_BYTES_MAX: usize = 4096;
/// The longest document that can be sealed.
pub const DOCUMENT_BYTES_MAX: usize = 96 * 1024;

const VERSION: u8 = 1;
const KEY_ID_BYTES: usize = 4;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + KEY_ID_BYTES;

/// The longest text of sealed content with so many bytes.
const fn text_bytes_max(content: usize) -> usize {
    ((HEAD_BYTES + NONCE_BYTES + content + TAG_BYTES) * 4).div_ceil(3)
}

/// Separates these keys from other keys derived from the same secret.
const SALT: &str = "statehold handle v1";

/// A handle that was not given by this server to this caller for this use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the handle is not valid here; start again without it")]
pub struct BadHandle;

/// Seals and opens handles under the secrets of a key ring: the newest seals, all of them open.
#[derive(Debug, Clone)]
pub struct Sealer {
    ring: Arc<KeyRing>,
}

impl Sealer {
    /// Nodes that share a ring open each other's handles.
    pub fn new(ring: Arc<KeyRing>) -> Self {
        Self { ring }
    }

    /// Seals `content` for one purpose and for the values in `bound_to` (tenant, principal, digest of the
    /// filter; the order matters).
    ///
    /// # Panics
    ///
    /// If the content is longer than [`CONTENT_BYTES_MAX`], because `open` would refuse the handle, or if
    /// the system has no random source.
    pub fn seal(&self, purpose: &str, bound_to: &[&str], content: &[u8]) -> String {
        assert!(
            content.len() <= CONTENT_BYTES_MAX,
            "a handle holds a position, not a document"
        );
        self.sealed(purpose, bound_to, content)
    }

    /// Seals a document that a caller keeps. None if it has more than [`DOCUMENT_BYTES_MAX`].
    ///
    /// # Panics
    ///
    /// If the system has no random source.
    pub(crate) fn seal_document(
        &self,
        purpose: &str,
        bound_to: &[&str],
        content: &[u8],
    ) -> Option<String> {
        let fits = content.len() <= DOCUMENT_BYTES_MAX;
        fits.then(|| self.sealed(purpose, bound_to, content))
    }

    fn sealed(&self, purpose: &str, bound_to: &[&str], content: &[u8]) -> String {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).expect("the system has a random source");
        let key = self.ring.newest();
        let head = head(key.id);
        let payload = Payload {
            msg: content,
            aad: &associated_data(head, purpose, bound_to),
        };
        let ciphertext = cipher(&key, purpose)
            .encrypt(&XNonce::from(nonce), payload)
            .expect("so short a content can always be encrypted");

        let mut envelope = Vec::with_capacity(HEAD_BYTES + NONCE_BYTES + ciphertext.len());
        envelope.extend_from_slice(&head);
        envelope.extend_from_slice(&nonce);
        envelope.extend_from_slice(&ciphertext);
        BASE64URL_NOPAD.encode(&envelope)
    }

    /// Returns the content of a handle that was sealed for exactly this purpose and `bound_to`.
    ///
    /// # Errors
    ///
    /// [`BadHandle`] for any other handle, without a reason, so that a caller cannot probe.
    pub fn open(&self, purpose: &str, bound_to: &[&str], text: &str) -> Result<Vec<u8>, BadHandle> {
        self.opened(purpose, bound_to, (text, CONTENT_BYTES_MAX))
    }

    /// Returns a document that was sealed for exactly this purpose and `bound_to`.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub(crate) fn open_document(
        &self,
        purpose: &str,
        bound_to: &[&str],
        text: &str,
    ) -> Result<Vec<u8>, BadHandle> {
        self.opened(purpose, bound_to, (text, DOCUMENT_BYTES_MAX))
    }

    fn opened(
        &self,
        purpose: &str,
        bound_to: &[&str],
        (text, bytes_max): (&str, usize),
    ) -> Result<Vec<u8>, BadHandle> {
        if text.len() > text_bytes_max(bytes_max) {
            return Err(BadHandle);
        }
        // This encoding has one spelling per value: trailing bits must be zero, and neither padding
        // nor white space is skipped.
        let envelope = BASE64URL_NOPAD
            .decode(text.as_bytes())
            .map_err(|_| BadHandle)?;
        let (envelope_head, rest) = envelope
            .split_first_chunk::<HEAD_BYTES>()
            .ok_or(BadHandle)?;
        let [version, id @ ..] = *envelope_head;
        let key = self.ring.get(RingKeyId::from_bytes(id));
        let key = key.filter(|_| version == VERSION).ok_or(BadHandle)?;
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(BadHandle)?;
        let payload = Payload {
            msg: ciphertext,
            aad: &associated_data(*envelope_head, purpose, bound_to),
        };
        cipher(&key, purpose)
            .decrypt(&XNonce::from(*nonce), payload)
            .map_err(|_| BadHandle)
    }
}

fn head(key: RingKeyId) -> [u8; HEAD_BYTES] {
    let [a, b, c, d] = *key.as_bytes();
    [VERSION, a, b, c, d]
}

fn cipher(key: &RingKey, purpose: &str) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&key.derive(SALT, &[purpose.as_bytes()]).into())
}

/// The values that must match when the handle comes back. Each part is prefixed with its length, so that
/// `["ab", "c"]` and `["a", "bc"]` differ.
fn associated_data(head: [u8; HEAD_BYTES], purpose: &str, bound_to: &[&str]) -> Vec<u8> {
    let parts = || std::iter::once(&purpose).chain(bound_to);
    let bytes = parts().map(|part| 8 + part.len()).sum::<usize>();
    let mut data = Vec::with_capacity(HEAD_BYTES + bytes);
    data.extend_from_slice(&head);
    for part in parts() {
        data.extend_from_slice(&(part.len() as u64).to_le_bytes());
        data.extend_from_slice(part.as_bytes());
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSE: &str = "sessions page";
    const BOUND: [&str; 3] = ["acme", "key_1", "filter-digest"];

    fn key(id: u8, secret: [u8; 32]) -> RingKey {
        RingKey::from_bytes(RingKeyId::from_bytes([id; 4]), secret)
    }

    fn sealer_of(id: u8, secret: [u8; 32]) -> Sealer {
        Sealer::new(Arc::new(KeyRing::of(vec![key(id, secret)])))
    }

    fn sealer() -> Sealer {
        sealer_of(1, [7; 32])
    }

    #[track_caller]
    fn check_refused(purpose: &str, bound_to: &[&str], text: &str) {
        assert_eq!(
            sealer().open(purpose, bound_to, text),
            Err(BadHandle),
            "{purpose} {bound_to:?} {text}"
        );
    }

    #[test]
    fn nodes_with_the_same_key_open_a_sealed_handle() {
        for content in [&b""[..], b"x", b"ses_1/42", &[0; CONTENT_BYTES_MAX]] {
            let text = sealer().seal(PURPOSE, &BOUND, content);
            assert_eq!(
                sealer().open(PURPOSE, &BOUND, &text).as_deref(),
                Ok(content)
            );
        }
        let text = sealer().seal("", &[], b"unbound");
        assert_eq!(
            sealer().open("", &[], &text).as_deref(),
            Ok(&b"unbound"[..])
        );
    }

    #[test]
    fn a_handle_stands_in_a_query_as_it_is_and_never_looks_the_same_twice() {
        let (one, two) = (
            sealer().seal(PURPOSE, &BOUND, b"42"),
            sealer().seal(PURPOSE, &BOUND, b"42"),
        );
        assert_ne!(one, two);
        assert!(
            one.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        );
    }

    #[test]
    fn a_handle_of_another_caller_filter_or_purpose_is_refused() {
        let text = sealer().seal(PURPOSE, &BOUND, b"42");
        check_refused(PURPOSE, &["acme", "key_2", "filter-digest"], &text);
        check_refused(PURPOSE, &["other", "key_1", "filter-digest"], &text);
        check_refused(PURPOSE, &["acme", "key_1", "filter-digest-2"], &text);
        check_refused("holds page", &BOUND, &text);
        check_refused(PURPOSE, &["key_1", "acme", "filter-digest"], &text);
        check_refused(PURPOSE, &["acme", "key_1"], &text);
        check_refused(PURPOSE, &["acme", "key_1", "filter-digest", ""], &text);
        check_refused(PURPOSE, &[], &text);
    }

    #[test]
    fn parts_cannot_be_cut_at_another_place() {
        let text = sealer().seal("p", &["ab", "c"], b"42");
        check_refused("p", &["a", "bc"], &text);
        check_refused("p", &["abc"], &text);
        check_refused("pa", &["b", "c"], &text);
    }

    #[test]
    fn a_handle_under_another_key_is_refused() {
        let text = sealer_of(2, [8; 32]).seal(PURPOSE, &BOUND, b"42");
        check_refused(PURPOSE, &BOUND, &text);
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        let text = sealer().seal(PURPOSE, &BOUND, b"position");
        let envelope = BASE64URL_NOPAD.decode(text.as_bytes()).expect("our own");
        for bit in 0..envelope.len() * 8 {
            let mut changed = envelope.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            check_refused(PURPOSE, &BOUND, &BASE64URL_NOPAD.encode(&changed));
        }
    }

    #[test]
    fn any_other_character_is_refused_even_if_lax_decoders_read_the_same_bytes() {
        // 5 + 24 + 16 bytes and one of content leave unused bits in the last character.
        let text = sealer().seal(PURPOSE, &BOUND, b"p");
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        for index in 0..text.len() {
            for c in alphabet.chars() {
                let mut changed = text.clone();
                changed.replace_range(index..=index, c.encode_utf8(&mut [0; 4]));
                if changed != text {
                    check_refused(PURPOSE, &BOUND, &changed);
                }
            }
        }
        for changed in [
            format!("{text}="),
            format!("{text}=="),
            format!("{text}\n"),
            format!(" {text}"),
            format!("{text}A"),
            text.replacen(&text[..1], "%41", 1),
        ] {
            check_refused(PURPOSE, &BOUND, &changed);
        }
    }

    #[test]
    fn truncation_and_garbage_are_refused() {
        let text = sealer().seal(PURPOSE, &BOUND, b"position");
        for end in 0..text.len() {
            check_refused(PURPOSE, &BOUND, &text[..end]);
        }
        for garbage in ["", "A", "null", "é", "\0", "0".repeat(1 << 20).as_str()] {
            check_refused(PURPOSE, &BOUND, garbage);
        }
    }

    #[test]
    fn a_rotated_ring_opens_what_older_secrets_sealed() {
        let (old, new) = (key(1, [7; 32]), key(2, [8; 32]));
        let text = sealer().seal(PURPOSE, &BOUND, b"42");
        let rotated = Sealer::new(Arc::new(KeyRing::of(vec![old, new])));
        assert_eq!(
            rotated.open(PURPOSE, &BOUND, &text).as_deref(),
            Ok(&b"42"[..])
        );
        let text = rotated.seal(PURPOSE, &BOUND, b"43");
        check_refused(PURPOSE, &BOUND, &text);
    }

    #[test]
    fn the_sealer_does_not_print_its_key() {
        let secret = format!("{:?}", [7; 32]);
        assert!(!format!("{:?}", sealer()).contains(&secret));
    }
}
