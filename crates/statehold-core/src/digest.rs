//! Digests and canonical bytes.
//!
//! Records are hashed with plain SHA-256, so that anyone can verify a chain. Payloads are digested
//! with HMAC under the key of the user they belong to: deleting that key makes the digests say
//! nothing about the text, while the chain still verifies.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::ids::HoldId;
use crate::name::serde_as_text;
use crate::number::{InexactNumber, canonical_value, require_exact_arguments};

/// A digest of 32 bytes. Printed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest before the first record of a session.
    pub const ZERO: Self = Self([0; 32]);

    /// Wraps raw bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn encode<'a>(&self, text: &'a mut [u8; 64]) -> &'a str {
        HEXLOWER.encode_mut(&self.0, text);
        std::str::from_utf8(text).expect("hexadecimal digits")
    }

    /// SHA-256 of some bytes.
    pub fn sha256(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// HMAC-SHA-256 of some bytes under a payload key.
    ///
    /// # Panics
    ///
    /// Never: HMAC takes keys of any length.
    pub fn keyed(key: &PayloadKey, bytes: &[u8]) -> Self {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
        mac.update(bytes);
        Self(mac.finalize().into_bytes().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encode(&mut [0; 64]))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({}…)", HEXLOWER.encode(&self.0[..4]))
    }
}

/// A text that is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hexadecimal digits")]
pub struct DigestError;

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return Err(DigestError);
        }
        let decoded = HEXLOWER.decode_mut(text.as_bytes(), &mut bytes);
        decoded.map(|_| Self(bytes)).map_err(|_| DigestError)
    }
}

serde_as_text!(Digest, this => this.encode(&mut [0; 64]));

/// The secret under which one user's (or one tenant's) payloads are digested.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadKey([u8; 32]);

impl PayloadKey {
    /// Wraps 32 secret bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret bytes, for the key file.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for PayloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PayloadKey(…)")
    }
}

/// A payload in a record: its length and keyed digest, never its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyRef {
    /// Length of the payload in bytes, before compression.
    pub bytes: u32,
    /// HMAC under the owner's key.
    pub digest: Digest,
}

impl BodyRef {
    /// Describes a payload.
    ///
    /// # Panics
    ///
    /// If the payload is 4 GiB or longer; limits refuse such payloads long before.
    pub fn of(key: &PayloadKey, payload: &[u8]) -> Self {
        Self {
            digest: Digest::keyed(key, payload),
            bytes: u32::try_from(payload.len()).expect("limits keep payloads below 4 GiB"),
        }
    }
}

/// The canonical bytes (RFC 8785) of a value that serializes to JSON.
///
/// Integers of 2^53 or more become doubles: values from outside have [`canonical_value`].
///
/// # Panics
///
/// If the value cannot be JSON at all (a map with non-text keys); our own types always can.
pub fn canonical_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(value).expect("our own types always serialize to JSON")
}

/// The digest a person approves: SHA-256 over the canonical form of `{v, hold_id, tool, args}`.
///
/// # Errors
///
/// Refuses numbers that are not kept exactly: two readers would see two different actions.
pub fn action_digest(hold: HoldId, tool: &str, args: &Value) -> Result<Digest, InexactNumber> {
    require_exact_arguments(args)?;
    let action = serde_json::json!({ "v": 1, "hold_id": hold, "tool": tool, "args": args });
    Ok(Digest::sha256(&canonical_value(&action)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn digest_of(args: &Value) -> Result<Digest, InexactNumber> {
        action_digest(HoldId::from_uuid(Uuid::from_u128(1)), "transfer", args)
    }

    #[test]
    fn spellings_of_one_action_share_a_digest() {
        let a: Value = serde_json::from_str(r#"{"b":1e3,"a":"é"}"#).expect("valid");
        let b: Value = serde_json::from_str(r#"{"a":"\u00e9","b":1000}"#).expect("valid");
        assert_eq!(digest_of(&a), digest_of(&b));
    }

    #[test]
    fn different_actions_have_different_digests() {
        let base = digest_of(&json!({"amount": 40})).expect("exact");
        for other in [
            json!({"amount": "40"}),
            json!({"amount": 40.5}),
            json!({"amount": [40]}),
        ] {
            assert_ne!(digest_of(&other).expect("exact"), base, "{other}");
        }
        let other_hold = action_digest(
            HoldId::from_uuid(Uuid::from_u128(2)),
            "transfer",
            &json!({"amount": 40}),
        );
        assert_ne!(other_hold.expect("exact"), base);
    }

    #[test]
    fn doubles_that_readers_take_for_other_integers_are_refused() {
        for args in [
            json!(9_007_199_254_740_992.0),
            json!({"deep": [-9_007_199_254_740_992.0]}),
        ] {
            assert_eq!(digest_of(&args), Err(InexactNumber), "{args}");
        }
        assert!(digest_of(&json!(9_007_199_254_740_991_u64)).is_ok());
    }

    #[test]
    fn integers_of_64_bits_that_a_double_confuses_have_different_digests() {
        let of = |n: u64| digest_of(&json!({ "n": n })).expect("exact");
        assert_ne!(of(9_007_199_254_740_992), of(9_007_199_254_740_993));
        assert_ne!(of(u64::MAX), of(u64::MAX - 1));
        assert!(digest_of(&json!(i64::MIN)).is_ok());
    }
}
