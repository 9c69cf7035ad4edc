//! `temp:` values: in memory, attached to a root request until it ends or pauses. Never on disk.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::command::Rejection;
use statehold_core::ids::RequestId;
use statehold_core::scope::StateKey;

use crate::error::EngineError;
use crate::locks::Lock;

/// The maximum size of the values of one root request, in bytes.
pub(crate) const TEMP_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Temps {
    kept: Lock<TempValues>,
}

#[derive(Debug, Default)]
struct TempValues {
    values: BTreeMap<RequestId, BTreeMap<StateKey, Vec<u8>>>,
    /// Live roots that lost their values in a pause.
    lost: BTreeSet<RequestId>,
}

impl Temps {
    /// The values of a root request.
    pub(crate) fn get(&self, root: RequestId) -> BTreeMap<StateKey, Vec<u8>> {
        self.kept
            .lock()
            .values
            .get(&root)
            .cloned()
            .unwrap_or_default()
    }

    /// Writes and removes values, all or none.
    pub(crate) fn put(
        &self,
        root: RequestId,
        set: Vec<(StateKey, Vec<u8>)>,
        delete: &[StateKey],
    ) -> Result<(), EngineError> {
        let mut kept = self.kept.lock();
        let mut values = kept.values.get(&root).cloned().unwrap_or_default();
        for key in delete {
            values.remove(key);
        }
        values.extend(set);
        let size = |(key, value): (&StateKey, &Vec<u8>)| key.as_str().len() + value.len();
        if values.iter().map(size).sum::<usize>() > TEMP_BYTES_MAX {
            let limit = "bytes of `temp:` values around one root request";
            let max = TEMP_BYTES_MAX as u64;
            return Err(Rejection::Limit { limit, max }.into());
        }
        kept.values.insert(root, values);
        Ok(())
    }

    /// Drops the values of a root request that ended or paused.
    pub(crate) fn drop_root(&self, root: RequestId, has_ended: bool) {
        let mut kept = self.kept.lock();
        let had = kept
            .values
            .remove(&root)
            .is_some_and(|values| !values.is_empty());
        if has_ended {
            kept.lost.remove(&root);
        } else if had {
            kept.lost.insert(root);
        }
    }

    /// Whether a live root request lost its values in a pause.
    pub(crate) fn is_lost(&self, root: RequestId) -> bool {
        self.kept.lock().lost.contains(&root)
    }
}
