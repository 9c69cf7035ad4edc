//! The payloads of a command. Records name them only by keyed digest.

use serde_json::value::RawValue;
use statehold_core::digest::{BodyRef, Digest, PayloadKey};
use statehold_core::record::Record;
use statehold_store::StoredRecord;

use super::idempotency::digest;

/// Payloads by their name in the record.
#[derive(Debug, Clone)]
pub struct Payloads {
    user: PayloadKey,
    tenant: PayloadKey,
    /// A command has only a few payloads, so a linear search is faster than a map.
    bodies: Vec<(BodyRef, Vec<u8>)>,
}

impl Payloads {
    pub(crate) fn new(user: PayloadKey, tenant: PayloadKey) -> Self {
        Self {
            user,
            tenant,
            bodies: Vec::with_capacity(8),
        }
    }

    /// For commands that carry no payloads.
    pub fn none() -> Self {
        let none = PayloadKey::from_bytes([0; 32]);
        Self::new(none.clone(), none)
    }

    /// The payloads of a stored record that are not erased.
    pub(crate) fn of_stored(stored: &StoredRecord) -> Self {
        let named = stored.record.bodies();
        let bodies = named.into_iter().zip(&stored.bodies);
        Self {
            bodies: bodies
                .filter_map(|(name, body)| Some((name, body.clone()?)))
                .collect(),
            ..Self::none()
        }
    }

    /// Adds a payload of the user.
    pub fn put(&mut self, payload: Vec<u8>) -> BodyRef {
        let name = BodyRef::of(&self.user, &payload);
        self.bodies.push((name, payload));
        name
    }

    /// Adds JSON of the user, unchanged.
    pub(crate) fn put_json(&mut self, json: &RawValue) -> BodyRef {
        self.put(json.get().as_bytes().to_vec())
    }

    /// Adds an `app:` value, digested with the tenant's key.
    pub(crate) fn put_app(&mut self, payload: Vec<u8>) -> BodyRef {
        let name = BodyRef::of(&self.tenant, &payload);
        self.bodies.push((name, payload));
        name
    }

    /// A digest over parts under the key of the user.
    pub(crate) fn keyed_digest(&self, parts: &[&[u8]]) -> Digest {
        Digest::keyed(&self.user, digest(parts).as_bytes())
    }

    /// A payload by its name.
    pub fn get(&self, name: &BodyRef) -> Option<&[u8]> {
        let mut bodies = self.bodies.iter();
        bodies
            .find(|(known, _)| known == name)
            .map(|(_, body)| body.as_slice())
    }

    /// A record with its payloads.
    pub(crate) fn stored(&self, record: &Record) -> StoredRecord {
        StoredRecord {
            record: record.clone(),
            bodies: self.of(record).into_iter().map(Some).collect(),
        }
    }

    /// The payloads of a record, in its order.
    pub(crate) fn of(&self, record: &Record) -> Vec<Vec<u8>> {
        let named = record.bodies();
        let found = named.iter().map(|name| {
            let body = self.get(name);
            body.expect("a record names only what came with its command")
                .to_vec()
        });
        found.collect()
    }
}
