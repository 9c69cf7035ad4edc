//! Identifiers. Each is a `UUIDv7` behind its own type, so a task can never be passed where a request
//! is meant, and ids sort by creation time.
//!
//! The twelve `rand_a` bits carry the shard of the owning (tenant, app, user), so any id finds its
//! partition without a look-up. Ids are names, not secrets. Nothing here is random: the caller of
//! [`IdMint`] passes the entropy in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::name::serde_as_text;
use crate::time::Timestamp;

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text does not start with the prefix of this kind of id.
    #[error("an id of this kind starts with `{expected}_`")]
    Prefix {
        /// The prefix that was expected.
        expected: &'static str,
    },
    /// The text after the prefix is not 32 lower-case hexadecimal digits.
    #[error("after its prefix an id is 32 lower-case hexadecimal digits")]
    Body,
}

/// The length of an id: a prefix of three letters, an underscore and 32 digits.
const TEXT_BYTES: usize = 36;

/// Writes the text of an id. Records and answers have many, so it needs no format string and no memory.
fn encode<'a>(prefix: &str, id: &Uuid, text: &'a mut [u8; TEXT_BYTES]) -> &'a str {
    let (head, body) = text.split_at_mut(prefix.len() + 1);
    head[..prefix.len()].copy_from_slice(prefix.as_bytes());
    head[prefix.len()] = b'_';
    id.simple().encode_lower(body);
    std::str::from_utf8(text).expect("letters, digits and an underscore")
}

/// Declares an id type with its text prefix, for example `tsk_0192…`.
macro_rules! id_type {
    ($(#[doc = $text:literal])* $name:ident, $prefix:literal) => {
        $(#[doc = $text])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The text that every id of this kind starts with, before the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// Wraps a uuid.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The uuid inside.
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }

            /// When the id was minted, to the millisecond.
            pub fn minted_at(&self) -> Timestamp {
                let (high, _) = self.0.as_u64_pair();
                Timestamp::from_micros(0).plus_ms(high >> 16)
            }

            /// The partition of the owner of this object.
            pub fn shard(&self) -> Shard {
                Shard::of_uuid(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(encode(Self::PREFIX, &self.0, &mut [0; TEXT_BYTES]))
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let rest = text
                    .strip_prefix(Self::PREFIX)
                    .and_then(|rest| rest.strip_prefix('_'))
                    .ok_or(IdError::Prefix { expected: Self::PREFIX })?;
                // One text per id: the parser of uuids also takes other spellings.
                let is_plain = rest.len() == 32
                    && rest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                if !is_plain {
                    return Err(IdError::Body);
                }
                Uuid::try_parse(rest).map(Self).map_err(|_| IdError::Body)
            }
        }

        serde_as_text!($name, this => encode(Self::PREFIX, &this.0, &mut [0; TEXT_BYTES]));

        #[cfg(feature = "schema")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let docs = concat!($($text),*);
                let pattern = format!("^{}_[0-9a-f]{{32}}$", Self::PREFIX);
                crate::schema::text(docs.trim()).pattern(Some(pattern)).into()
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::ToSchema for $name {}
    };
}

id_type!(
    /// Id of a session, one conversation of one user with one app.
    SessionId, "ses"
);
id_type!(
    /// Id of a task, one job of one agent inside a session.
    TaskId, "tsk"
);
id_type!(
    /// Id of a request, one invocation of an agent within a task.
    RequestId, "req"
);
id_type!(
    /// Id of a hold, one reason why a request waits for a person.
    HoldId, "hld"
);
id_type!(
    /// Id of an item of a task's history. The id of a tool call is its execution key.
    ItemId, "itm"
);
id_type!(
    /// Pseudonym of a user. A table outside the log maps it to the user's name.
    UserId, "usr"
);
id_type!(
    /// Id of an API key.
    KeyId, "key"
);

/// The partition that an owner's objects live in: `hash(tenant, app, user) mod 4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard(u16);

impl Shard {
    /// The number of partitions. It can never change, because ids carry the partition.
    pub const COUNT: u16 = 4096;

    /// The partition of an owner.
    pub fn of_owner(tenant: &str, app: &str, user: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [tenant, app, user] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let digest = hash.finalize();
        Self(u16::from_be_bytes([digest[0], digest[1]]) % Self::COUNT)
    }

    /// The partition as a number below [`Shard::COUNT`].
    pub const fn number(self) -> u16 {
        self.0
    }

    fn of_uuid(uuid: &Uuid) -> Self {
        let bytes = uuid.as_bytes();
        Self(u16::from_be_bytes([bytes[6] & 0x0f, bytes[7]]))
    }
}

/// Makes the ids that one command needs, from entropy that was passed in.
#[derive(Debug, Clone)]
pub struct IdMint {
    now: Timestamp,
    shard: Shard,
    next: u64,
}

impl IdMint {
    /// A mint for one command. `entropy` must differ between commands of one millisecond.
    pub fn new(now: Timestamp, shard: Shard, entropy: u64) -> Self {
        Self {
            now,
            shard,
            next: entropy,
        }
    }

    /// The next id. Ids of one mint sort in the order they were made, except where the counter wraps.
    pub fn next_uuid(&mut self) -> Uuid {
        let millis = u64::try_from(self.now.as_micros() / 1000).unwrap_or(0) & 0xffff_ffff_ffff;
        let high = (millis << 16) | 0x7000 | u64::from(self.shard.0);
        let low = (self.next & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        self.next = self.next.wrapping_add(1);
        Uuid::from_u64_pair(high, low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_kind_its_shard_and_its_time() {
        let shard = Shard::of_owner("default", "shop", "bob");
        let mut mint = IdMint::new(Timestamp::from_micros(1_763_000_000_000_000), shard, 7);
        let first = TaskId::from_uuid(mint.next_uuid());
        let second = TaskId::from_uuid(mint.next_uuid());
        assert!(first < second);
        assert_eq!(first.shard(), shard);
        assert_eq!(first.as_uuid().get_version_num(), 7);
        assert_eq!(first.to_string().parse::<TaskId>(), Ok(first));
        assert_eq!(
            first.to_string().parse::<RequestId>(),
            Err(IdError::Prefix { expected: "req" })
        );
    }

    #[test]
    fn an_id_has_exactly_one_spelling() {
        for text in [
            "tsk_",
            "tsk_0192",
            "tsk_{0192}",
            "tsk_0192A3B4C5D67E8F9012345678901234",
        ] {
            assert_eq!(text.parse::<TaskId>(), Err(IdError::Body), "{text}");
        }
    }

    #[test]
    fn shards_separate_their_parts() {
        assert_ne!(
            Shard::of_owner("a", "bc", "d"),
            Shard::of_owner("ab", "c", "d")
        );
    }
}
