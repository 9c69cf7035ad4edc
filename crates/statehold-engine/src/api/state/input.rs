//! Input of state writes.

use std::collections::BTreeMap;

use serde::Deserialize;
use statehold_core::command::{StateAppend, StatePatch, StateSet};
use statehold_core::ids::RequestId;
use statehold_core::limits::COMMAND_KEYS_MAX;
use statehold_core::scope::{KeyPrefix, MergePolicy, Scope, StateKey};
use utoipa::ToSchema;

use crate::api::json::{Raw, list_at_most, map_at_most};
use crate::commit::payloads::Payloads;
use crate::error::EngineError;
use crate::guard::state_rules::StateRules;

/// Changes of state.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PatchIn)]
pub struct StatePatchInput {
    /// Keys to write.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<StateKey, serde_json::Value>)]
    pub set: BTreeMap<String, Raw>,
    /// Keys to remove.
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = Vec<StateKey>)]
    pub delete: Vec<String>,
    /// Expected versions of keys; 0 means that the key does not exist.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<StateKey, u64>)]
    pub if_versions: BTreeMap<String, u64>,
    /// Merge policies: how to combine a new value with the stored one. Without one, the policy that the configuration
    /// gives the key counts, and `replace` if it gives none.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<StateKey, MergePolicy>)]
    pub merge: BTreeMap<String, MergePolicy>,
    /// Values to add to lists of the session: `{"items/": [1, 2]}` writes them under keys `items/` and 20 digits,
    /// which sort in the order in which they were added and are never used again.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<String, Vec<serde_json::Value>>)]
    pub append: BTreeMap<String, Vec<Raw>>,
    /// Beginnings of session keys: all of them are removed, except those that `set` writes.
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    pub delete_prefix: Vec<String>,
}

/// Changes of state, optionally by a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SessionPatchIn)]
pub struct SessionStateInput {
    /// Keys to write.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<StateKey, serde_json::Value>)]
    set: BTreeMap<String, Raw>,
    /// Keys to remove.
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = Vec<StateKey>)]
    delete: Vec<String>,
    /// Expected versions of keys; 0 means that the key does not exist.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<StateKey, u64>)]
    if_versions: BTreeMap<String, u64>,
    /// Merge policies: how to combine a new value with the stored one. Without one, the policy that the configuration
    /// gives the key counts, and `replace` if it gives none.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<StateKey, MergePolicy>)]
    merge: BTreeMap<String, MergePolicy>,
    /// Values to add to lists of the session: `{"items/": [1, 2]}` writes them under keys `items/` and 20 digits,
    /// which sort in the order in which they were added and are never used again.
    #[serde(
        default,
        deserialize_with = "map_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    #[schema(value_type = BTreeMap<String, Vec<serde_json::Value>>)]
    append: BTreeMap<String, Vec<Raw>>,
    /// Beginnings of session keys: all of them are removed, except those that `set` writes.
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_KEYS_MAX }, _, _>"
    )]
    delete_prefix: Vec<String>,
    /// The request that writes.
    pub request_id: Option<RequestId>,
    /// The fence of the request.
    pub fence: Option<u64>,
}

impl SessionStateInput {
    pub(crate) fn split(self) -> (StatePatchInput, Option<RequestId>, Option<u64>) {
        let patch = StatePatchInput {
            set: self.set,
            delete: self.delete,
            if_versions: self.if_versions,
            merge: self.merge,
            append: self.append,
            delete_prefix: self.delete_prefix,
        };
        (patch, self.request_id, self.fence)
    }
}

/// One key to write, before its value is stored as a payload.
#[derive(Debug, Clone)]
pub(crate) struct StateWrite {
    pub(crate) key: StateKey,
    pub(crate) value: Vec<u8>,
    /// None for the policy that the configuration gives the key.
    pub(crate) merge: Option<MergePolicy>,
}

/// A patch with validated keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateWrites {
    pub(crate) set: Vec<StateWrite>,
    pub(crate) delete: Vec<StateKey>,
    pub(crate) if_versions: BTreeMap<StateKey, u64>,
    pub(crate) append: Vec<(KeyPrefix, Vec<Vec<u8>>)>,
    pub(crate) delete_prefix: Vec<KeyPrefix>,
}

/// Parses a key. Routes of a single scope accept keys without its prefix.
pub(super) fn key_of(text: &str, scope: Option<Scope>) -> Result<StateKey, EngineError> {
    let bad = |detail: String| bad_key(text, detail);
    let (full, prefix) = (with_scope(text, scope), scope_prefix(scope));
    let key: StateKey = full.parse().map_err(|error| bad(format!("{error}")))?;
    match scope {
        Some(scope) if key.scope() != scope => {
            Err(bad(format!("this route writes `{prefix}` keys only")))
        }
        _ => Ok(key),
    }
}

/// Parses a key to read. Session keys that ADK's routes wrote may have a prefix that is no scope; a scope in other
/// letters is a mistake.
pub(super) fn read_key(text: &str, scope: Option<Scope>) -> Result<StateKey, EngineError> {
    let prefix = text.split_once(':').map(|(prefix, _)| prefix);
    let scopes = ["app", "user", "temp"];
    let is_scope = |prefix: &str| scopes.iter().any(|name| name.eq_ignore_ascii_case(prefix));
    if scope.is_some() || prefix.is_none_or(is_scope) {
        return key_of(text, scope);
    }
    StateKey::lenient(text).map_err(|error| bad_key(text, error.to_string()))
}

fn scope_prefix(scope: Option<Scope>) -> &'static str {
    match scope {
        Some(Scope::App) => "app:",
        Some(Scope::User) => "user:",
        _ => "",
    }
}

fn with_scope(text: &str, scope: Option<Scope>) -> String {
    if text.contains(':') {
        text.to_owned()
    } else {
        format!("{}{text}", scope_prefix(scope))
    }
}

fn bad_key(text: &str, detail: String) -> EngineError {
    let key = Some(clip(text));
    EngineError::BadStateKey { key, detail }
}

/// The beginning of keys to read. Unlike a key, it may end after the prefix of its scope, or be empty.
pub(super) fn prefix_text(text: &str, scope: Option<Scope>) -> Result<String, EngineError> {
    let full = with_scope(text, scope);
    let is_bare = matches!(full.as_str(), "" | "app:" | "user:" | "temp:");
    if !is_bare {
        read_key(&full, scope)?;
    }
    Ok(full)
}

/// Shortens a key for an error message.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

impl StatePatchInput {
    pub(crate) fn parse(self, scope: Option<Scope>) -> Result<StateWrites, EngineError> {
        let mut merges = BTreeMap::new();
        for (text, merge) in self.merge {
            merges.insert(key_of(&text, scope)?, merge);
        }
        let mut set = Vec::with_capacity(self.set.len());
        for (text, value) in self.set {
            let key = key_of(&text, scope)?;
            let merge = merges.remove(&key);
            let value = value.get().as_bytes().to_vec();
            set.push(StateWrite { key, value, merge });
        }
        if let Some(key) = merges.keys().next() {
            let detail = format!("`merge` names `{key}`, which `set` does not write");
            let key = Some(key.as_str().to_owned());
            return Err(EngineError::BadStateKey { key, detail });
        }
        let delete = self.delete.iter().map(|text| key_of(text, scope));
        let delete = delete.collect::<Result<Vec<_>, _>>()?;
        let mut if_versions = BTreeMap::new();
        for (text, version) in self.if_versions {
            if_versions.insert(key_of(&text, scope)?, version);
        }
        if scope.is_some() && !(self.append.is_empty() && self.delete_prefix.is_empty()) {
            let detail = "lists and prefixes are of session keys: use PATCH …/sessions/{id}/state";
            return Err(EngineError::bad_state(detail));
        }
        let mut append = Vec::with_capacity(self.append.len());
        for (text, values) in self.append {
            let list = KeyPrefix::of_list(&text).map_err(|error| bad_key(&text, error.to_string()));
            let values = values.iter().map(|value| value.get().as_bytes().to_vec());
            append.push((list?, values.collect()));
        }
        let delete_prefix = self.delete_prefix.iter().map(|text| {
            let prefix = text.parse::<KeyPrefix>();
            prefix.map_err(|error| bad_key(text, error.to_string()))
        });
        let delete_prefix = delete_prefix.collect::<Result<_, _>>()?;
        Ok(StateWrites {
            set,
            delete,
            if_versions,
            append,
            delete_prefix,
        })
    }
}

impl StateWrites {
    /// Whether some key has this scope.
    pub(crate) fn touches(&self, scope: Scope) -> bool {
        let mut keys = self.set.iter().map(|write| &write.key).chain(&self.delete);
        keys.any(|key| key.scope() == scope)
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty()
            && self.delete.is_empty()
            && self.append.is_empty()
            && self.delete_prefix.is_empty()
    }

    /// The lists, with the number of values that each gets.
    pub(crate) fn lists(&self) -> Vec<(KeyPrefix, usize)> {
        let lists = self.append.iter();
        lists
            .map(|(list, values)| (list.clone(), values.len()))
            .collect()
    }

    /// Removes and returns the `temp:` writes.
    pub(crate) fn take_temp(&mut self) -> (Vec<(StateKey, Vec<u8>)>, Vec<StateKey>) {
        let is_temp = |key: &StateKey| key.scope() == Scope::Temp;
        let set = self.set.extract_if(.., |write| is_temp(&write.key));
        let set = set.map(|write| (write.key, write.value)).collect();
        let delete = self.delete.extract_if(.., |key| is_temp(key)).collect();
        (set, delete)
    }

    /// Converts to the patch of the core.
    pub(crate) fn into_core(self, rules: &StateRules, payloads: &mut Payloads) -> StatePatch {
        let set = self.set.into_iter().map(|write| StateSet {
            value: payloads.put_value(&write.key, write.value),
            merge: write.merge.unwrap_or_else(|| rules.merge_of(&write.key)),
            key: write.key,
        });
        let set = set.collect();
        let append = self.append.into_iter().map(|(list, values)| {
            let values = values.into_iter().map(|value| payloads.put(value));
            let values = values.collect();
            StateAppend { list, values }
        });
        StatePatch {
            set,
            delete: self.delete,
            if_versions: self.if_versions,
            append: append.collect(),
            delete_prefix: self.delete_prefix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str, scope: Scope) -> Option<String> {
        let key = key_of(text, Some(scope)).ok()?;
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
