//! Credentials that people gave in answer to a hold: in memory until the next claim of the request,
//! never on disk, gone at a restart.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use statehold_core::ids::{HoldId, RequestId};

/// Credentials by the request they are for.
#[derive(Default)]
pub struct Credentials {
    given: Mutex<BTreeMap<RequestId, (HoldId, String)>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    /// Keeps what was given in answer to a hold, for the next claim.
    pub fn put(&self, request: RequestId, hold: HoldId, value: String) {
        self.lock().insert(request, (hold, value));
    }

    /// Hands out what was given, once.
    pub fn take(&self, request: RequestId) -> Option<String> {
        self.lock().remove(&request).map(|(_, value)| value)
    }

    /// Forgets what was given in answer to a hold whose decision did not stand.
    pub fn withdraw(&self, request: RequestId, hold: HoldId) {
        let mut given = self.lock();
        if given.get(&request).is_some_and(|(of, _)| *of == hold) {
            given.remove(&request);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<RequestId, (HoldId, String)>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
