//! How many holds are open in the requests behind each API key, whoever their users are. In memory only: holds that
//! were opened before a restart count for their user alone.

use std::collections::HashMap;

use statehold_core::digest::Digest;
use statehold_core::ids::HoldId;

use crate::locks::Lock;

/// The holds that were opened in this process.
#[derive(Debug, Default)]
pub(crate) struct HoldsByKey(Lock<OpenHolds>);

#[derive(Debug, Default)]
struct OpenHolds {
    keys: HashMap<HoldId, Digest>,
    counts: HashMap<Digest, usize>,
}

impl HoldsByKey {
    /// A hold was opened in a request behind this key.
    pub(crate) fn open(&self, hold: HoldId, key: Digest) {
        let mut open = self.0.lock();
        if open.keys.insert(hold, key).is_none() {
            *open.counts.entry(key).or_default() += 1;
        }
    }

    /// A hold was decided.
    pub(crate) fn close(&self, hold: HoldId) {
        let mut open = self.0.lock();
        let Some(key) = open.keys.remove(&hold) else {
            return;
        };
        if let Some(count) = open.counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                open.counts.remove(&key);
            }
        }
    }

    /// How many are open.
    pub(crate) fn count(&self, key: Digest) -> usize {
        self.0.lock().counts.get(&key).copied().unwrap_or(0)
    }
}
