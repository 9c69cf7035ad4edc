//! State: how callers write it and see it.

mod input;
mod view;

use statehold_core::ids::SessionId;
use statehold_core::scope::{MergePolicy, Scope, merge};

use super::json::to_body;
use crate::engine::Engine;
use crate::error::EngineError;

pub use input::{SessionStateInput, StatePatchInput, StateWrite, StateWrites, key};
pub use view::{StateView, StateWritten};

impl Engine {
    /// Merges session keys with their values; the commit then expects the versions that were read.
    ///
    /// # Errors
    ///
    /// If a value does not merge.
    pub async fn merge_session_keys(
        &self,
        session: SessionId,
        mut writes: StateWrites,
    ) -> Result<StateWrites, EngineError> {
        let needs = |write: &StateWrite| {
            write.key.scope() == Scope::Session && write.merge != MergePolicy::Replace
        };
        if !writes.set.iter().any(needs) {
            return Ok(writes);
        }
        let there = self.session_values(session).await?;
        for write in writes.set.iter_mut().filter(|write| needs(write)) {
            let old = there.get(&write.key);
            let parse = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes);
            let (Ok(new), Ok(value)) = (
                parse(&write.value),
                old.map(|old| parse(&old.value)).transpose(),
            ) else {
                return Err(EngineError::NotJson);
            };
            let merged = merge(write.merge, value.as_ref(), &new).map_err(|source| {
                let key = write.key.clone();
                EngineError::Merge { key, source }
            })?;
            write.value = to_body(&merged);
            write.merge = MergePolicy::Replace;
            let version = old.map_or(0, |old| old.version);
            writes
                .if_versions
                .entry(write.key.clone())
                .or_insert(version);
        }
        Ok(writes)
    }
}
