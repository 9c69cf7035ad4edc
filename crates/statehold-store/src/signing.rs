//! Signing and verifying roots of audit streams, with Ed25519.

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use statehold_core::digest::PayloadKey;
use statehold_core::root::{PublicKey, Signature};
use statehold_core::tenant::{TenantEvent, TenantRecord};

/// The key that signs roots.
#[derive(Clone)]
pub struct RootSigner(SigningKey);

impl std::fmt::Debug for RootSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RootSigner")
            .field(&self.public_key())
            .finish()
    }
}

impl RootSigner {
    /// The signer whose secret is in the key file.
    pub fn new(secret: &PayloadKey) -> Self {
        Self(SigningKey::from_bytes(secret.expose()))
    }

    /// The public key that verifies its signatures.
    pub fn public_key(&self) -> PublicKey {
        PublicKey::from_bytes(self.0.verifying_key().to_bytes())
    }

    /// Signs the bytes of a root.
    pub fn sign(&self, bytes: &[u8]) -> Signature {
        Signature::from_bytes(self.0.sign(bytes).to_bytes())
    }
}

/// Whether a root carries the signature of the key that it names. Whose key that is, is for the
/// caller to know.
pub fn is_signed(root: &TenantRecord) -> bool {
    let TenantEvent::HeadsSigned {
        public_key,
        signature: Some(signature),
        ..
    } = &root.content.event
    else {
        return false;
    };
    let key = VerifyingKey::from_bytes(public_key.as_bytes());
    let signature = ed25519_dalek::Signature::from_bytes(signature.as_bytes());
    // The strict form has one verdict in every library: no odd keys, one spelling per signature.
    key.ok()
        .zip(root.signed_bytes())
        .is_some_and(|(key, bytes)| key.verify_strict(&bytes, &signature).is_ok())
}

#[cfg(test)]
mod tests {
    use statehold_core::digest::Digest;
    use statehold_core::ids::SessionId;
    use statehold_core::root::SignedHead;
    use statehold_core::tenant::{NewRoot, TenantHead};
    use statehold_core::time::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn root(signer: &RootSigner) -> TenantRecord {
        let head = SignedHead {
            hash: Digest::sha256(b"a record"),
            revision: 3,
            session: SessionId::from_uuid(Uuid::from_u128(7)),
        };
        let root = NewRoot {
            heads: vec![head],
            public_key: signer.public_key(),
            until: 9,
        };
        let tenant = "default".parse().expect("a name");
        let (before, now) = (TenantHead::default(), Timestamp::from_micros(5));
        TenantRecord::root_after(&before, tenant, now, root, |bytes| signer.sign(bytes))
    }

    #[test]
    fn whatever_is_changed_in_a_root_its_signature_is_wrong() {
        let signer = RootSigner::new(&PayloadKey::from_bytes([7; 32]));
        let root = root(&signer);
        assert!(is_signed(&root));
        let text = String::from_utf8(root.as_bytes().to_vec()).expect("text");
        let other = RootSigner::new(&PayloadKey::from_bytes([8; 32])).public_key();
        for (from, to) in [
            ("\"revision\":3", "\"revision\":2"),
            ("\"until\":9", "\"until\":8"),
            ("\"at\":5", "\"at\":6"),
            ("\"default\"", "\"another\""),
            ("\"seq\":1", "\"seq\":2"),
            (&signer.public_key().to_string(), &other.to_string()),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text, "{from}");
            let changed = TenantRecord::from_bytes(changed.as_bytes()).expect("still an entry");
            assert!(!is_signed(&changed), "{from}");
        }
        let (start, _) = text.split_once("\"signature\"").expect("it is signed");
        let (_, end) = text.split_once("\"until\"").expect("it says how far");
        let bare = format!("{start}\"until\"{end}");
        let bare = TenantRecord::from_bytes(bare.as_bytes()).expect("still an entry");
        assert!(!is_signed(&bare));
    }

    /// The bytes in `docs/formats/audit-v1.md`: another implementation must come to the same.
    #[test]
    fn the_example_of_the_format_is_signed_as_written() {
        let signer = RootSigner::new(&PayloadKey::from_bytes([7; 32]));
        let root = root(&signer);
        let hash = "27018a7b50e37818dae9c3cb053e9a5e24c8a0dbc178c0ddf3bc0d3b90e238e6";
        assert_eq!(root.hash.to_string(), hash);
    }
}
