//! State as callers see it.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::scope::StateKey;
use statehold_store::{StatePage, StateValue};
use utoipa::ToSchema;

use super::provenance::Provenance;
use super::query::StateQuery;
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
    /// The write that each value comes from, if the caller asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<StateKey, Provenance>>)]
    pub provenance: Option<BTreeMap<String, Provenance>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl StateView {
    /// A page of state, and the key after which the next page begins.
    pub(crate) fn of(
        query: &StateQuery,
        page: StatePage<StateValue>,
        revision: u64,
    ) -> (Self, Option<StateKey>) {
        let next = query.last(page.values.keys()).filter(|_| page.has_more);
        let next = next.cloned();
        let (mut state, mut versions) = (BTreeMap::new(), BTreeMap::new());
        for (key, found) in page.values {
            state.insert(key.to_string(), raw_bytes(&found.value));
            versions.insert(key.to_string(), found.version);
        }
        let view = Self {
            state,
            versions,
            revision,
            provenance: None,
            next_cursor: None,
        };
        (view, next)
    }
}

/// The result of a state write.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StateWritten {
    pub revision: u64,
    /// The versions of the written session keys. The store assigns the versions of shared keys later: read
    /// the state to see them.
    pub versions: BTreeMap<String, u64>,
    /// The keys of the values that were added to lists, in order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub appended: BTreeMap<String, Vec<String>>,
    /// The number of session keys that were removed.
    #[serde(default)]
    pub deleted: usize,
}
