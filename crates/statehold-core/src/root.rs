//! Signed roots: entries of the audit stream that name the newest records of sessions and are
//! signed by the server.
//!
//! A chain whose end was cut off is a shorter valid chain. A root states how far the chains
//! reached, and an attacker without the signing key cannot forge another one. This module defines
//! the form of a root and the signed bytes; signing and verifying need a key and happen elsewhere.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::SessionId;
use crate::name::serde_as_text;

/// How many heads one root names at most; more than these are in several roots.
pub const HEADS_PER_ROOT_MAX: usize = 1_000;

/// Prefix of every signed message, so that no signature is valid in another context.
pub const ROOT_CONTEXT: &[u8] = b"statehold audit root v1\n";

/// The newest record that a session had when the root was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedHead {
    /// Hash of that record.
    pub hash: Digest,
    /// Its number.
    pub revision: u64,
    /// The session.
    pub session: SessionId,
}

/// A text that is not hexadecimal of the expected length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {digits} lower-case hexadecimal digits")]
pub struct HexError {
    what: &'static str,
    digits: usize,
}

/// Declares bytes of a fixed length whose text form is hexadecimal.
macro_rules! hex_bytes {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Wraps raw bytes.
            pub const fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// The raw bytes.
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&HEXLOWER.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({}…)", stringify!($name), HEXLOWER.encode(&self.0[..4]))
            }
        }

        impl FromStr for $name {
            type Err = HexError;

            fn from_str(text: &str) -> Result<Self, HexError> {
                let error = HexError { what: $what, digits: 2 * $bytes };
                let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| error)?;
                bytes.try_into().map(Self).map_err(|_| error)
            }
        }

        serde_as_text!($name);
    };
}

hex_bytes!(
    /// The public half of the key that roots are signed with.
    PublicKey, 32, "a public key"
);
hex_bytes!(
    /// An Ed25519 signature.
    Signature, 64, "a signature"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_text() {
        let key = PublicKey::from_bytes([0xab; 32]);
        let text = key.to_string();
        assert_eq!(text, "ab".repeat(32));
        assert_eq!(text.parse(), Ok(key));
        for wrong in ["", "ab", &text.to_uppercase(), &text[1..], "zz"] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
        let short = text.parse::<Signature>().expect_err("too short");
        assert_eq!(
            short.to_string(),
            "a signature is 128 lower-case hexadecimal digits"
        );
    }
}
