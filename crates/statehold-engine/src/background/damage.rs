//! Damaged sessions. The engine refuses calls to them and leaves them out of its timers; everything else
//! goes on.

use std::collections::BTreeMap;

use statehold_core::ids::SessionId;
use statehold_store::StoreError;

use crate::locks::Lock;

/// The maximum number of damaged sessions that are remembered.
const SESSIONS_MAX: usize = 10_000;

/// The sessions that were found damaged, each with the place of the damage.
#[derive(Debug, Default)]
pub(crate) struct DamagedSessions {
    sessions: Lock<BTreeMap<SessionId, String>>,
}

impl DamagedSessions {
    /// Remembers a session whose data the store could not read, and names it in the log.
    pub(crate) fn note(&self, session: SessionId, error: &StoreError) {
        let StoreError::Corrupt { place, source } = error else {
            return;
        };
        let mut sessions = self.sessions.lock();
        if sessions.len() < SESSIONS_MAX && sessions.insert(session, place.clone()).is_none() {
            tracing::error!(
                session = %session, place, cause = %source,
                "a session is damaged; calls to it are refused, and its timers stand still"
            );
        }
    }

    /// Whether the session was found damaged.
    pub(crate) fn contains(&self, session: SessionId) -> bool {
        self.sessions.lock().contains_key(&session)
    }

    /// How many sessions are damaged.
    pub(crate) fn count(&self) -> usize {
        self.sessions.lock().len()
    }

    /// At most `limit` sessions that were found damaged.
    pub(crate) fn list(&self, limit: usize) -> Vec<SessionId> {
        self.sessions.lock().keys().copied().take(limit).collect()
    }

    /// Forgets a session that can be read again.
    pub(crate) fn forget(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }
}
