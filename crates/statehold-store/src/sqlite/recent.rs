//! Where the payloads of the newest commits are, so that one that comes again is stored as a reference: the
//! answer of an agent that a router passes on, or the question that it passes down.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use statehold_core::digest::Digest;

use super::sql::damaged;
use crate::codec::{self, BodyPlace};
use crate::commit::Commit;
use crate::port::StoreError;

/// How many payloads are known. What is forgotten is stored again, nothing more.
const KNOWN_MAX: usize = 4_096;

/// A payload of a session: never that of another session, which may be erased before this one.
type Key = (i64, Digest);

/// Payloads that were stored a short time ago.
#[derive(Default)]
pub(super) struct Recent {
    places: HashMap<Key, BodyPlace>,
    /// The keys, oldest first.
    order: VecDeque<Key>,
}

impl Recent {
    /// The payloads of a commit to a session, with references in place of those that the session has. None
    /// if there are none.
    pub(super) fn refer(&self, pk: i64, commit: &Commit) -> Result<Option<Vec<u8>>, StoreError> {
        let known = commit.once.iter().filter_map(|(index, digest)| {
            let place = self.places.get(&(pk, *digest))?;
            Some((*index as usize, codec::reference(*place)))
        });
        let references: Vec<(usize, Vec<u8>)> = known.collect();
        if references.is_empty() {
            return Ok(None);
        }
        let mut bodies = codec::split_bodies(&commit.packed_bodies)
            .map_err(|error| damaged("the payloads of a commit", error))?;
        for (index, reference) in &references {
            bodies[*index] = reference;
        }
        Ok(Some(bodies.concat()))
    }

    /// Notes where the payloads of a commit were stored.
    pub(super) fn learn(&mut self, pk: i64, log: i64, commit: &Commit) {
        if commit.writes.erased.is_some() {
            self.places.retain(|(session, _), _| *session != pk);
            return;
        }
        for (index, digest) in &commit.once {
            // A reference leads to the bytes, never to another reference.
            if let Entry::Vacant(fresh) = self.places.entry((pk, *digest)) {
                fresh.insert(BodyPlace {
                    row: log,
                    index: *index,
                });
                self.order.push_back((pk, *digest));
            }
        }
        while self.order.len() > KNOWN_MAX {
            let oldest = self.order.pop_front();
            oldest.map(|key| self.places.remove(&key));
        }
    }

    /// Forgets everything, because commits that were learned were not kept.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
