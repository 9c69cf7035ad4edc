//! `temp:` values: in memory, attached to a root request until it ends or pauses. Never on disk.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::command::Rejection;
use statehold_core::ids::RequestId;
use statehold_core::scope::StateKey;

use crate::error::EngineError;
use crate::locks::Lock;
use crate::shares::{Holder, Share, Shares};

/// The maximum size of the values of one root request, in bytes.
pub(crate) const TEMP_BYTES_MAX: usize = 1024 * 1024;

/// The maximum size of the values of all requests, in bytes.
const TOTAL_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Temps {
    kept: Lock<TempValues>,
    bytes: Shares,
}

impl Default for Temps {
    fn default() -> Self {
        Self {
            kept: Lock::default(),
            bytes: Shares::new(TOTAL_BYTES_MAX),
        }
    }
}

/// The values of a root request, and the bytes that they take.
type RootValues = (BTreeMap<StateKey, Vec<u8>>, Share);

#[derive(Debug, Default)]
struct TempValues {
    values: BTreeMap<RequestId, RootValues>,
    /// Live roots that lost their values in a pause.
    lost: BTreeSet<RequestId>,
}

impl Temps {
    /// The values of a root request.
    pub(crate) fn get(&self, root: RequestId) -> BTreeMap<StateKey, Vec<u8>> {
        let kept = self.kept.lock();
        let known = kept.values.get(&root);
        known.map(|(values, _)| values.clone()).unwrap_or_default()
    }

    /// Writes and removes values, all or none. All values of a root count for the holder that was the first to
    /// write one.
    pub(crate) fn put(
        &self,
        holder: Holder,
        root: RequestId,
        set: Vec<(StateKey, Vec<u8>)>,
        delete: &[StateKey],
    ) -> Result<(), EngineError> {
        let mut kept = self.kept.lock();
        let known = kept.values.entry(root).or_insert_with(|| {
            let none = self.bytes.none_for(holder);
            (BTreeMap::new(), none)
        });
        let mut values = known.0.clone();
        for key in delete {
            values.remove(key);
        }
        values.extend(set);
        let size = |(key, value): (&StateKey, &Vec<u8>)| key.as_str().len() + value.len();
        let bytes = values.iter().map(size).sum::<usize>();
        if bytes > TEMP_BYTES_MAX {
            let limit = "bytes of `temp:` values around one root request";
            let max = TEMP_BYTES_MAX as u64;
            return Err(Rejection::Limit { limit, max }.into());
        }
        known.1.resize(bytes).map_err(|_| {
            EngineError::TooMany(
                "running requests keep as many bytes of `temp:` values as they may; wait until some end",
            )
        })?;
        known.0 = values;
        Ok(())
    }

    /// Drops the values of a root request that ended or paused.
    pub(crate) fn drop_root(&self, root: RequestId, has_ended: bool) {
        let mut kept = self.kept.lock();
        let had = kept
            .values
            .remove(&root)
            .is_some_and(|(values, _)| !values.is_empty());
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
