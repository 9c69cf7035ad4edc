//! Writing scoped state.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::draft::{Draft, require_limit};
use crate::command::{Fenced, Rejection, StateAppend, StatePatch};
use crate::ids::RequestId;
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::record::Event;
use crate::scope::{MergePolicy, Scope, StateKey};

pub(super) fn put(
    draft: &mut Draft<'_>,
    patch: &StatePatch,
    by: Option<Fenced>,
) -> Result<(), Rejection> {
    if let Some(by) = by {
        draft.require_fence(by)?;
    }
    write(draft, patch, by.map(|by| by.request))
}

/// Writes a patch on behalf of a request that was let through, or of the caller.
pub(super) fn write(
    draft: &mut Draft<'_>,
    patch: &StatePatch,
    request: Option<RequestId>,
) -> Result<(), Rejection> {
    let written = patch.set.iter().map(|set| &set.key).chain(&patch.delete);
    let appended: usize = patch.append.iter().map(|list| list.values.len()).sum();
    require_limit(
        "state keys in one call",
        patch.set.len()
            + patch.delete.len()
            + patch.if_versions.len()
            + appended
            + patch.append.len()
            + patch.delete_prefix.len(),
        limits::COMMAND_KEYS_MAX,
    )?;
    let mut seen = BTreeSet::new();
    for key in written {
        if key.scope() == Scope::Temp && !mutant::is_on(Mutant::StoreTemp) {
            return Err(Rejection::TempKey { key: key.clone() });
        }
        if !seen.insert(key) {
            return Err(Rejection::DuplicateKey { key: key.clone() });
        }
    }
    require_versions(draft, patch)?;
    let bytes_before = draft.state.state_bytes();
    // First, so that one patch can replace a list by another one.
    delete_prefixes(draft, patch, request)?;
    for set in &patch.set {
        let key = set.key.clone();
        match key.scope() {
            Scope::App | Scope::User => {
                let expected = patch.if_versions.get(&key).copied();
                let operand = Some(set.value);
                draft.emit(Event::SharedStatePut {
                    key,
                    merge: set.merge,
                    operand,
                    expected,
                    request,
                });
            }
            Scope::Session | Scope::Temp if set.merge == MergePolicy::Replace => {
                draft.emit(Event::StatePut {
                    key,
                    value: set.value,
                    request,
                });
            }
            Scope::Session | Scope::Temp => return Err(Rejection::MergeOfSessionKey { key }),
        }
    }
    for key in &patch.delete {
        let key = key.clone();
        match key.scope() {
            Scope::App | Scope::User => {
                let expected = patch.if_versions.get(&key).copied();
                let merge = MergePolicy::Replace;
                draft.emit(Event::SharedStatePut {
                    key,
                    merge,
                    operand: None,
                    expected,
                    request,
                });
            }
            Scope::Session | Scope::Temp => {
                if draft.state.keys.contains_key(&key) {
                    draft.emit(Event::StateDeleted { key, request });
                }
            }
        }
    }
    append(draft, patch, request)?;
    require_limit(
        "session state keys",
        draft.state.keys.len(),
        limits::SESSION_KEYS_MAX,
    )?;
    let (bytes, max) = (draft.state.state_bytes(), limits::SESSION_STATE_BYTES_MAX);
    // A state that is too long already may shrink.
    if bytes > max && bytes > bytes_before {
        return Err(Rejection::StateTooLarge { bytes, max });
    }
    Ok(())
}

/// Removes every key with one of the prefixes, except those that the patch writes: a record changes a key once.
fn delete_prefixes(
    draft: &mut Draft<'_>,
    patch: &StatePatch,
    request: Option<RequestId>,
) -> Result<(), Rejection> {
    let mut bytes = 0;
    let set: BTreeSet<&StateKey> = patch.set.iter().map(|set| &set.key).collect();
    // All are found before the first is removed: removing copies the keys while they are borrowed.
    let mut removed = BTreeSet::new();
    for prefix in &patch.delete_prefix {
        let begin = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let keys = draft.state.keys.range::<str, _>(begin);
        let keys = keys.map(|(key, _)| key);
        let keys = keys.take_while(|key| key.as_str().starts_with(prefix.as_str()));
        for key in keys.filter(|key| !set.contains(key)) {
            // A key counts for each prefix that it has, so that the work is bounded too.
            bytes += key.as_str().len();
            require_limit(
                "bytes of the keys that one call removes by prefix",
                bytes,
                limits::REMOVED_KEY_BYTES_MAX,
            )?;
            removed.insert(key.clone());
        }
    }
    for key in removed {
        draft.emit(Event::StateDeleted { key, request });
    }
    Ok(())
}

/// Writes the elements of lists under numbered keys.
fn append(
    draft: &mut Draft<'_>,
    patch: &StatePatch,
    request: Option<RequestId>,
) -> Result<(), Rejection> {
    let revision = draft.seq();
    let mut lists = BTreeSet::new();
    for StateAppend { list, values } in &patch.append {
        if !lists.insert(list) {
            let key = list.element(revision, 0);
            return Err(Rejection::DuplicateKey { key });
        }
        for (index, value) in values.iter().enumerate() {
            let (key, value) = (list.element(revision, index), *value);
            // A caller may have written this key before its number came.
            if draft.state.keys.contains_key(&key) {
                return Err(Rejection::DuplicateKey { key });
            }
            draft.emit(Event::StatePut {
                key,
                value,
                request,
            });
        }
    }
    Ok(())
}

/// Session versions are compared here; the store compares those of shared keys as it commits.
fn require_versions(draft: &Draft<'_>, patch: &StatePatch) -> Result<(), Rejection> {
    let is_written =
        |key: &StateKey| patch.set.iter().any(|set| set.key == *key) || patch.delete.contains(key);
    for (key, expected) in &patch.if_versions {
        if *expected > limits::EXACT_INTEGER_MAX {
            let max = limits::EXACT_INTEGER_MAX;
            return Err(Rejection::Limit {
                limit: "an expected version",
                max,
            });
        }
        match key.scope() {
            Scope::App | Scope::User if is_written(key) => {}
            Scope::App | Scope::User => {
                return Err(Rejection::VersionWithoutWrite { key: key.clone() });
            }
            Scope::Temp => return Err(Rejection::TempKey { key: key.clone() }),
            Scope::Session => {
                let found = draft.state.version_of(key);
                if found != *expected && !mutant::is_on(Mutant::SkipVersions) {
                    let (key, expected) = (key.clone(), *expected);
                    return Err(Rejection::VersionConflict {
                        key,
                        expected,
                        found,
                    });
                }
            }
        }
    }
    Ok(())
}
