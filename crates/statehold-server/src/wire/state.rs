//! State on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::command::{StatePatch, StateSet};
use statehold_core::ids::RequestId;
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_engine::Payloads;
use utoipa::ToSchema;

use super::Raw;
use super::schema::{RequestIdText, StateKeyText};
use crate::problem::{Code, Problem};

/// Writes of state.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchIn {
    /// Keys to write.
    #[serde(default)]
    #[schema(value_type = BTreeMap<StateKeyText, serde_json::Value>)]
    pub(crate) set: BTreeMap<String, Raw>,
    /// Keys to remove.
    #[serde(default)]
    #[schema(value_type = Vec<StateKeyText>)]
    pub(crate) delete: Vec<String>,
    /// Versions that must be there; 0 means none.
    #[serde(default)]
    #[schema(value_type = BTreeMap<StateKeyText, u64>)]
    pub(crate) if_versions: BTreeMap<String, u64>,
    /// How a value meets the one that is there.
    #[serde(default)]
    #[schema(value_type = BTreeMap<StateKeyText, MergeWire>)]
    pub(crate) merge: BTreeMap<String, MergeWire>,
}

/// Writes of state beside or under a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionPatchIn {
    /// Keys to write.
    #[serde(default)]
    #[schema(value_type = BTreeMap<StateKeyText, serde_json::Value>)]
    set: BTreeMap<String, Raw>,
    /// Keys to remove.
    #[serde(default)]
    #[schema(value_type = Vec<StateKeyText>)]
    delete: Vec<String>,
    /// Versions that must be there; 0 means none.
    #[serde(default)]
    #[schema(value_type = BTreeMap<StateKeyText, u64>)]
    if_versions: BTreeMap<String, u64>,
    /// How a value meets the one that is there.
    #[serde(default)]
    #[schema(value_type = BTreeMap<StateKeyText, MergeWire>)]
    merge: BTreeMap<String, MergeWire>,
    /// The request that writes.
    #[serde(default)]
    #[schema(value_type = Option<RequestIdText>)]
    pub(crate) request_id: Option<RequestId>,
    /// The fence of that request.
    #[serde(default)]
    pub(crate) fence: Option<u64>,
}

impl SessionPatchIn {
    pub(crate) fn split(self) -> (PatchIn, Option<RequestId>, Option<u64>) {
        let patch = PatchIn {
            set: self.set,
            delete: self.delete,
            if_versions: self.if_versions,
            merge: self.merge,
        };
        (patch, self.request_id, self.fence)
    }
}

/// How a value meets the one that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Merge)]
pub(crate) enum MergeWire {
    Replace,
    KeepFirst,
    Add,
    Append,
    Union,
    Patch,
}

impl From<MergeWire> for MergePolicy {
    fn from(wire: MergeWire) -> Self {
        match wire {
            MergeWire::Replace => Self::Replace,
            MergeWire::KeepFirst => Self::KeepFirst,
            MergeWire::Add => Self::Add,
            MergeWire::Append => Self::Append,
            MergeWire::Union => Self::Union,
            MergeWire::Patch => Self::Patch,
        }
    }
}

/// One key to write, before its value has a name.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) key: StateKey,
    pub(crate) value: Vec<u8>,
    pub(crate) merge: MergePolicy,
}

/// A patch whose keys are keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patch {
    pub(crate) set: Vec<Write>,
    pub(crate) delete: Vec<StateKey>,
    pub(crate) if_versions: BTreeMap<StateKey, u64>,
}

/// Reads a key. In the routes of one scope its prefix may be left out.
pub(crate) fn key(text: &str, scope: Option<Scope>) -> Result<StateKey, Problem> {
    let bad = |detail: String| Problem::new(Code::BadStateKey, detail).with("key", clip(text));
    let prefix = match scope {
        Some(Scope::App) => "app:",
        Some(Scope::User) => "user:",
        _ => "",
    };
    let full = if text.contains(':') {
        text.to_owned()
    } else {
        format!("{prefix}{text}")
    };
    let key: StateKey = full.parse().map_err(|error| bad(format!("{error}")))?;
    match scope {
        Some(scope) if key.scope() != scope => {
            Err(bad(format!("this route writes `{prefix}` keys only")))
        }
        _ => Ok(key),
    }
}

/// A key as an answer shows it back: not all of a long one.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

impl PatchIn {
    pub(crate) fn parse(self, scope: Option<Scope>) -> Result<Patch, Problem> {
        let mut merges = BTreeMap::new();
        for (text, merge) in self.merge {
            merges.insert(key(&text, scope)?, MergePolicy::from(merge));
        }
        let mut set = Vec::with_capacity(self.set.len());
        for (text, value) in self.set {
            let key = key(&text, scope)?;
            let merge = merges.remove(&key).unwrap_or_default();
            let value = value.get().as_bytes().to_vec();
            set.push(Write { key, value, merge });
        }
        if let Some(key) = merges.keys().next() {
            let detail = format!("`merge` names `{key}`, which `set` does not write");
            return Err(Problem::new(Code::BadStateKey, detail).with("key", key.as_str()));
        }
        let delete = self.delete.iter().map(|text| key(text, scope));
        let delete = delete.collect::<Result<Vec<_>, _>>()?;
        let mut if_versions = BTreeMap::new();
        for (text, version) in self.if_versions {
            if_versions.insert(key(&text, scope)?, version);
        }
        Ok(Patch {
            set,
            delete,
            if_versions,
        })
    }
}

impl Patch {
    /// Whether some key has this scope.
    pub(crate) fn touches(&self, scope: Scope) -> bool {
        let mut keys = self.set.iter().map(|write| &write.key).chain(&self.delete);
        keys.any(|key| key.scope() == scope)
    }

    /// Takes out what lives in memory.
    pub(crate) fn take_temp(&mut self) -> (Vec<(StateKey, Vec<u8>)>, Vec<StateKey>) {
        let is_temp = |key: &StateKey| key.scope() == Scope::Temp;
        let set = self.set.extract_if(.., |write| is_temp(&write.key));
        let set = set.map(|write| (write.key, write.value)).collect();
        let delete = self.delete.extract_if(.., |key| is_temp(key)).collect();
        (set, delete)
    }

    /// The patch as the core takes it.
    pub(crate) fn into_core(self, payloads: &mut Payloads) -> StatePatch {
        let set = self.set.into_iter().map(|write| StateSet {
            value: if write.key.scope() == Scope::App {
                payloads.put_app(write.value)
            } else {
                payloads.put(write.value)
            },
            key: write.key,
            merge: write.merge,
        });
        StatePatch {
            set: set.collect(),
            delete: self.delete,
            if_versions: self.if_versions,
        }
    }
}

/// State with the version of each value.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = State)]
pub(crate) struct StateOut {
    #[schema(value_type = BTreeMap<StateKeyText, serde_json::Value>)]
    pub(crate) state: BTreeMap<String, Raw>,
    #[schema(value_type = BTreeMap<StateKeyText, u64>)]
    pub(crate) versions: BTreeMap<String, u64>,
    pub(crate) revision: u64,
}

/// What a write of state came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StateWritten {
    pub(crate) revision: u64,
    /// The versions of the session keys that were written. Those of shared keys are given when they
    /// are stored: read them.
    pub(crate) versions: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str, scope: Scope) -> Option<String> {
        let key = key(text, Some(scope)).ok()?;
        Some(key.as_str().to_owned())
    }

    #[test]
    fn in_the_routes_of_one_scope_its_prefix_may_be_left_out() {
        assert_eq!(full("theme", Scope::User).as_deref(), Some("user:theme"));
        assert_eq!(
            full("user:theme", Scope::User).as_deref(),
            Some("user:theme")
        );
        assert_eq!(full("app:a:b", Scope::App).as_deref(), Some("app:a:b"));
    }

    #[test]
    fn in_the_routes_of_one_scope_other_prefixes_are_refused() {
        for text in ["user:theme", "temp:x", "App:x", "other:x", ":x", ""] {
            assert_eq!(full(text, Scope::App), None, "{text}");
        }
    }
}
