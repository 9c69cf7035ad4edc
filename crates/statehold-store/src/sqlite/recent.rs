//! Where the payloads of the newest commits are, so that one that comes again is stored once: the answer of
//! an agent that a router passes on, or the question that it passes down.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use rusqlite::Connection;
use statehold_core::digest::Digest;
use statehold_core::ids::UserId;

use super::sql::damaged;
use super::write::count_blob;
use crate::codec::{self, BodyPlace};
use crate::commit::Commit;
use crate::port::StoreError;

/// How many payloads are known. What is forgotten is stored again, nothing more.
const KNOWN_MAX: usize = 4_096;

/// A payload of a session: never that of another session, which may be erased before this one.
type Key = (i64, Digest);

/// Where a payload is stored.
#[derive(Clone, Copy)]
enum PayloadPlace {
    Row(BodyPlace),
    Blob,
}

/// Payloads that were stored a short time ago.
#[derive(Default)]
pub(super) struct Recent {
    places: HashMap<Key, PayloadPlace>,
    /// The keys, oldest first.
    order: VecDeque<Key>,
}

impl Recent {
    /// The payloads of a commit to a session of a user, with those that the session has named in place of
    /// repeated. None if there are none.
    pub(super) fn refer(
        &self,
        conn: &Connection,
        (pk, user): (i64, UserId),
        commit: &Commit,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut known: Vec<(usize, Vec<u8>)> = Vec::new();
        for one in commit.once.iter().filter(|one| !one.is_blob) {
            let stored = match self.places.get(&(pk, one.digest)) {
                Some(PayloadPlace::Row(place)) => codec::reference(*place),
                Some(PayloadPlace::Blob) if count_blob(conn, user, &one.digest)? => codec::blob(),
                Some(PayloadPlace::Blob) | None => continue,
            };
            known.push((one.index as usize, stored));
        }
        if known.is_empty() {
            return Ok(None);
        }
        let mut bodies = codec::split_bodies(&commit.packed_bodies)
            .map_err(|error| damaged("the payloads of a commit", error))?;
        for (index, stored) in &known {
            bodies[*index] = stored;
        }
        Ok(Some(bodies.concat()))
    }

    /// Notes where the payloads of a commit were stored.
    pub(super) fn learn(&mut self, pk: i64, log: i64, commit: &Commit) {
        if commit.writes.erased.is_some() {
            self.places.retain(|(session, _), _| *session != pk);
            return;
        }
        for one in &commit.once {
            // A reference leads to the bytes, never to another reference.
            if let Entry::Vacant(fresh) = self.places.entry((pk, one.digest)) {
                let (row, index) = (log, one.index);
                fresh.insert(if one.is_blob {
                    PayloadPlace::Blob
                } else {
                    PayloadPlace::Row(BodyPlace { row, index })
                });
                self.order.push_back((pk, one.digest));
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
