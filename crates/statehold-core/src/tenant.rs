//! The audit stream of a tenant: events outside of sessions, in a hash chain of their own.
//!
//! Changes of keys and of addresses, reads of traces, erased users, and signed roots. Like the records of sessions,
//! its entries hold ids, enums,
//! numbers and times; never free text, never a key.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::{KeyId, SessionId, UserId};
use crate::name::Name;
use crate::principal::Principal;
use crate::record::{RECORD_VERSION, RecordError};
use crate::root::{PublicKey, ROOT_CONTEXT, Signature, SignedHead};
use crate::time::Timestamp;

/// One entry of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRecord {
    /// The content. `hash` covers its canonical bytes.
    pub content: TenantContent,
    /// SHA-256 of the canonical bytes of the content.
    pub hash: Digest,
    bytes: Arc<[u8]>,
}

/// The hashed part of an entry. Fields are declared in the order of their names: that is the format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantContent {
    /// When it was committed. Never earlier than the entry before.
    pub at: Timestamp,
    /// The event.
    pub event: TenantEvent,
    /// Hash of the entry before; zeros for the first.
    pub prev_hash: Digest,
    /// Who did it.
    pub principal: Principal,
    /// Its number in the stream: 1, 2, 3, …
    pub seq: u64,
    /// The tenant.
    pub tenant: Name,
    /// Format version.
    pub v: u8,
}

/// One thing that happened beside sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum TenantEvent {
    /// The server signed how far the chains of sessions, and this stream before it, have come.
    HeadsSigned {
        /// Newest records of sessions that changed since the root before, by session.
        heads: Vec<SignedHead>,
        /// The key that verifies the signature.
        public_key: PublicKey,
        /// The signature; absent only in the bytes that are signed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<Signature>,
        /// The place in the order of the store up to which every session is in this root or in one
        /// before it.
        until: u64,
    },
    /// A copy of everything that is stored was handed out.
    BackupMade {
        /// Its length.
        bytes: u64,
    },
    /// A key was made.
    KeyCreated {
        /// The agents it is bound to; none means any.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        agents: BTreeSet<Name>,
        /// When it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
        /// The key.
        key: KeyId,
        /// The person it belongs to, if it is not bound to a user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<UserId>,
        /// The roles it grants.
        roles: BTreeSet<Name>,
        /// The user it is bound to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<UserId>,
    },
    /// A key was revoked.
    KeyRevoked {
        /// The key.
        key: KeyId,
    },
    /// Decisions for an agent are pushed to an address.
    ResumeAddressSet {
        /// Salted digest of the address. The salt prevents guessing the address from the digest.
        address: Digest,
        /// The agent.
        agent: Name,
    },
    /// Decisions for an agent are no longer pushed.
    ResumeAddressRemoved {
        /// The agent.
        agent: Name,
    },
    /// The key ring got a new secret, and every key of a user was wrapped with it.
    KeyRingRotated {
        /// How many secrets the ring has now.
        secrets: u64,
    },
    /// A principal read the `trace` view.
    TraceRead {
        /// The session that was read.
        session: SessionId,
    },
    /// The sessions and values of a user were deleted, and then the key under which all of it was sealed.
    UserErased {
        /// How many sessions were deleted.
        sessions: u64,
        /// The pseudonym, which names nobody from now on.
        user: UserId,
    },
}

impl TenantRecord {
    /// The entry after one with this number, hash and time.
    ///
    /// # Panics
    ///
    /// Never: an entry always serializes to JSON.
    pub fn after(
        head: &TenantHead,
        tenant: Name,
        principal: Principal,
        now: Timestamp,
        event: TenantEvent,
    ) -> Self {
        Self::seal(TenantContent {
            at: now.max(head.at),
            event,
            prev_hash: head.hash,
            principal,
            seq: head.seq + 1,
            tenant,
            v: RECORD_VERSION,
        })
    }

    fn seal(content: TenantContent) -> Self {
        let bytes = serde_json::to_vec(&content).expect("entries always serialize to JSON");
        Self {
            content,
            hash: Digest::sha256(&bytes),
            bytes: bytes.into(),
        }
    }

    /// A signed root after an entry. `sign` is handed the bytes to sign.
    pub fn root_after(
        head: &TenantHead,
        tenant: Name,
        now: Timestamp,
        root: NewRoot,
        sign: impl FnOnce(&[u8]) -> Signature,
    ) -> Self {
        let event = TenantEvent::HeadsSigned {
            heads: root.heads,
            public_key: root.public_key,
            signature: None,
            until: root.until,
        };
        let unsigned = Self::after(head, tenant, Principal::System, now, event);
        let signed = sign(&[ROOT_CONTEXT, unsigned.as_bytes()].concat());
        let mut content = unsigned.content;
        if let TenantEvent::HeadsSigned { signature, .. } = &mut content.event {
            *signature = Some(signed);
        }
        Self::seal(content)
    }

    /// The bytes whose signature a root carries: all of the entry but the signature. None if the
    /// entry is not a root.
    pub fn signed_bytes(&self) -> Option<Vec<u8>> {
        let mut content = self.content.clone();
        let TenantEvent::HeadsSigned { signature, .. } = &mut content.event else {
            return None;
        };
        *signature = None;
        let unsigned = Self::seal(content);
        Some([ROOT_CONTEXT, unsigned.as_bytes()].concat())
    }

    /// The canonical bytes, as hashed, stored and exported.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads an entry back from its canonical bytes.
    ///
    /// # Errors
    ///
    /// Refuses unknown fields and any byte that is not in its canonical place.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let content: TenantContent = serde_json::from_slice(bytes).map_err(RecordError::Shape)?;
        if content.v != RECORD_VERSION {
            return Err(RecordError::Version {
                found: content.v.into(),
            });
        }
        let record = Self::seal(content);
        if record.as_bytes() == bytes {
            Ok(record)
        } else {
            Err(RecordError::NotCanonical)
        }
    }

    /// The head of the stream after this entry; the next entry continues from it.
    pub fn head(&self) -> TenantHead {
        TenantHead {
            seq: self.content.seq,
            hash: self.hash,
            at: self.content.at,
        }
    }
}

/// The content of a root before it is signed.
#[derive(Debug, Clone)]
pub struct NewRoot {
    /// Newest records of sessions, by session.
    pub heads: Vec<SignedHead>,
    /// The key that verifies the signature.
    pub public_key: PublicKey,
    /// The place up to which every session of the tenant is named.
    pub until: u64,
}

/// The end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantHead {
    /// How many entries there are.
    pub seq: u64,
    /// Hash of the last.
    pub hash: Digest,
    /// Time of the last.
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_root_signs_everything_but_its_signature() {
        let tenant: Name = "default".parse().expect("a name");
        let head = SignedHead {
            hash: Digest::sha256(b"a record"),
            revision: 3,
            session: SessionId::from_uuid(Uuid::from_u128(7)),
        };
        let root = NewRoot {
            heads: vec![head],
            public_key: PublicKey::from_bytes([1; 32]),
            until: 9,
        };
        let mut given = Vec::new();
        let before = TenantHead::default();
        let now = Timestamp::from_micros(5);
        let signed = TenantRecord::root_after(&before, tenant, now, root, |bytes| {
            given = bytes.to_vec();
            Signature::from_bytes([2; 64])
        });
        assert_eq!(signed.signed_bytes(), Some(given.clone()));
        let text = String::from_utf8(given).expect("text");
        assert!(
            text.starts_with("statehold audit root v1\n{\"at\":5,"),
            "{text}"
        );
        assert!(
            text.contains("\"prev_hash\"") && !text.contains("signature"),
            "{text}"
        );
        let canonical = crate::digest::canonical_bytes(&signed.content);
        assert_eq!(signed.as_bytes(), canonical);
        let read = TenantRecord::from_bytes(&canonical).expect("reads");
        assert_eq!(read.signed_bytes(), signed.signed_bytes());
    }

    #[test]
    fn entries_chain_and_have_one_spelling() {
        let tenant: Name = "default".parse().expect("a name");
        let key = KeyId::from_uuid(Uuid::from_u128(1));
        let made = TenantEvent::KeyCreated {
            agents: BTreeSet::new(),
            expires_at: None,
            key,
            owner: None,
            roles: ["admin".parse().expect("a name")].into(),
            user: None,
        };
        let now = Timestamp::from_micros(5);
        let first = TenantRecord::after(
            &TenantHead::default(),
            tenant.clone(),
            Principal::Local,
            now,
            made,
        );
        let earlier = Timestamp::from_micros(3);
        let revoked = TenantEvent::KeyRevoked { key };
        let second = TenantRecord::after(&first.head(), tenant, Principal::Local, earlier, revoked);
        assert_eq!(second.content.prev_hash, first.hash);
        assert_eq!((second.content.seq, second.content.at), (2, now));
        let canonical = crate::digest::canonical_bytes(&first.content);
        assert_eq!(first.as_bytes(), canonical);
        assert_eq!(TenantRecord::from_bytes(&canonical).expect("reads"), first);
        let spaced = String::from_utf8(canonical)
            .expect("text")
            .replace("\"v\":1", "\"v\": 1");
        assert!(TenantRecord::from_bytes(spaced.as_bytes()).is_err());
    }
}
