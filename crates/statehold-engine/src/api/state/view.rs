//! State as callers see it.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::scope::StateKey;
use utoipa::ToSchema;

use crate::api::json::{Raw, raw_bytes};

/// State with the version of each value.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = State)]
pub struct StateView {
    #[schema(value_type = BTreeMap<StateKey, serde_json::Value>)]
    pub state: BTreeMap<String, Raw>,
    #[schema(value_type = BTreeMap<StateKey, u64>)]
    pub versions: BTreeMap<String, u64>,
    pub revision: u64,
}

impl StateView {
    pub(crate) fn of(
        values: impl Iterator<Item = (StateKey, Vec<u8>, u64)>,
        revision: u64,
    ) -> Self {
        let (mut state, mut versions) = (BTreeMap::new(), BTreeMap::new());
        for (key, value, version) in values {
            state.insert(key.to_string(), raw_bytes(&value));
            versions.insert(key.to_string(), version);
        }
        Self {
            state,
            versions,
            revision,
        }
    }
}

/// The result of a state write.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StateWritten {
    pub revision: u64,
    /// The versions of the written session keys. The store assigns the versions of shared keys later: read
    /// the state to see them.
    pub versions: BTreeMap<String, u64>,
}
