//! Damage that reads and writes of a store have met. A damaged session is refused; everything else goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use statehold_core::ids::SessionId;

use super::StoreError;

/// The maximum number of damaged sessions, and of damaged rows outside of sessions, that are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// The damage that was met since the start, each place named in the log once.
#[derive(Debug, Default)]
pub struct DamageLog {
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// Damaged sessions, and whether they can be used all the same.
    sessions: BTreeMap<SessionId, bool>,
    /// Places outside of sessions.
    rows: BTreeSet<String>,
}

/// How much damage was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DamageCounts {
    /// Damaged sessions.
    pub sessions: usize,
    /// Damaged rows that belong to no session, or to one that cannot be told.
    pub rows: usize,
}

impl DamageLog {
    /// Remembers damage that a read or a write has met. Other errors are none.
    pub fn note(&self, error: &StoreError) {
        let StoreError::Corrupt {
            session,
            place,
            source,
        } = error
        else {
            return;
        };
        let mut found = self.found();
        if let Some(session) = session {
            if found.sessions.len() < REMEMBERED_MAX && !found.sessions.contains_key(session) {
                found.sessions.insert(*session, true);
                tracing::error!(
                    %session, place, cause = %source,
                    "a session is damaged; calls that need the damaged data are refused"
                );
            }
        } else if found.rows.len() < REMEMBERED_MAX && found.rows.insert(place.clone()) {
            tracing::error!(place, cause = %source, "stored data is damaged and left out");
        }
    }

    /// Remembers a session that cannot be used, because its state cannot be read or its timers and claims cannot
    /// be committed: calls that need the damaged data are refused, and its timers and claims stand still.
    pub fn note_unusable(&self, session: SessionId, error: StoreError) -> StoreError {
        let error = error.in_session(session);
        if matches!(error, StoreError::Corrupt { .. }) {
            self.note(&error);
            let mut found = self.found();
            // The damage may be in the data of another session: the origin of a fork.
            if found.sessions.len() < REMEMBERED_MAX || found.sessions.contains_key(&session) {
                found.sessions.insert(session, false);
            }
        }
        error
    }

    /// Whether the session cannot be used.
    pub fn is_unusable(&self, session: SessionId) -> bool {
        self.found().sessions.get(&session) == Some(&false)
    }

    /// At most `limit` sessions that cannot be used.
    pub fn unusable(&self, limit: usize) -> Vec<SessionId> {
        let found = self.found();
        let unusable = found.sessions.iter().filter(|(_, is_usable)| !**is_usable);
        unusable.map(|(session, _)| *session).take(limit).collect()
    }

    /// Forgets a session that may be usable again.
    pub fn forget(&self, session: SessionId) {
        self.found().sessions.remove(&session);
    }

    /// How much damage was met.
    pub fn counts(&self) -> DamageCounts {
        let found = self.found();
        DamageCounts {
            sessions: found.sessions.len(),
            rows: found.rows.len(),
        }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
