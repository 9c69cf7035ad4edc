//! Writing scoped state.

use std::collections::BTreeSet;

use super::draft::{Draft, require_limit};
use crate::command::{Fenced, Rejection, StatePatch};
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
    require_limit(
        "state keys in one call",
        patch.set.len() + patch.delete.len() + patch.if_versions.len(),
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
    require_limit(
        "session state keys",
        draft.state.keys.len(),
        limits::SESSION_KEYS_MAX,
    )
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
                let found = draft.state.keys.get(key).copied().unwrap_or(0);
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
