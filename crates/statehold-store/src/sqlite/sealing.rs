//! Sealing a commit before it is queued: on the thread of the caller, so that the writing thread encrypts nothing.
//!
//! Everything that people, agents and tools have said goes under the key of the session's user, `app:` values under
//! that of the tenant. Texts by which rows are found, names of sessions and of users, get a keyed digest beside
//! them.

use std::sync::Arc;

use statehold_core::ids::UserId;
use statehold_core::name::Name;
use statehold_core::record::{Change, Event, Record};
use statehold_core::scope::Scope;
use statehold_core::session::Owner;

use super::sql::damaged;
use crate::codec;
use crate::commit::{Commit, FoundText, SharedChange, SharedWrite, StateWrite, TextColumns};
use crate::keys::KeyOwner;
use crate::port::StoreError;
use crate::seal::{LookupKind, SealKey, SealKeys};

/// The keys for the payloads of one session. None where nothing is sealed.
struct OwnerKeys {
    user: Option<Arc<SealKey>>,
    tenant: Option<Arc<SealKey>>,
}

impl OwnerKeys {
    /// Fails if a key is missing where payloads are sealed: it was deleted since the commit was decided.
    fn of(keys: &dyn SealKeys, owner: &Owner) -> Result<Self, StoreError> {
        if !keys.seals() {
            let (user, tenant) = (None, None);
            return Ok(Self { user, tenant });
        }
        let key = |owner| {
            let missing =
                || StoreError::Unavailable(format!("the key of {owner} was deleted").into());
            keys.key_of(&owner).ok_or_else(missing).map(Some)
        };
        Ok(Self {
            user: key(KeyOwner::User(owner.user))?,
            tenant: key(KeyOwner::Tenant(owner.tenant.clone()))?,
        })
    }

    fn of_scope(&self, scope: Scope) -> Option<&Arc<SealKey>> {
        match scope {
            Scope::App => self.tenant.as_ref(),
            Scope::User | Scope::Session | Scope::Temp => self.user.as_ref(),
        }
    }

    /// For each payload of a record, the key that seals it.
    fn of_bodies(&self, record: &Record) -> Vec<Option<&Arc<SealKey>>> {
        let events = record.content.events.iter();
        let keys = events.flat_map(|event| {
            let scope = match event {
                Event::SharedStatePut { key, .. } => key.scope(),
                _ => Scope::Session,
            };
            event
                .bodies()
                .into_iter()
                .map(move |_| self.of_scope(scope))
        });
        keys.collect()
    }
}

/// Whether a commit writes anything that is sealed.
fn has_text(commit: &Commit) -> bool {
    let is_set = |change: &Option<Change<String>>| matches!(change, Some(Change::Set(_)));
    let writes = &commit.writes;
    let is_put = |write: &StateWrite| matches!(write, StateWrite::Put { .. });
    let is_shared = |write: &SharedWrite| matches!(write.change, SharedChange::Put { .. });
    commit.answer.is_some()
        || commit.new_user.is_some()
        || !commit.record.bodies().is_empty()
        || is_set(&writes.name)
        || is_set(&writes.labels)
        || writes.state.iter().any(is_put)
        || writes.shared.iter().any(is_shared)
        || !writes.task_states.is_empty()
}

/// Seals everything that a commit writes, and makes the columns of its texts.
pub(super) fn prepare(commit: &mut Commit, keys: &dyn SealKeys) -> Result<(), StoreError> {
    let Some(owner) = commit.after.owner.clone() else {
        return Ok(());
    };
    commit.texts = texts(commit, &owner, keys);
    if !has_text(commit) {
        // Settling and deleting go on without the keys of the owner.
        return Ok(());
    }
    let sealing = OwnerKeys::of(keys, &owner)?;
    let user = sealing.user.as_ref();
    if let Some(answer) = &mut commit.answer {
        answer.body = seal(codec::plain(&answer.body), user);
    }
    if sealing.user.is_none() && sealing.tenant.is_none() {
        return Ok(());
    }
    let of_bodies = sealing.of_bodies(&commit.record);
    let key_of = |index: usize| of_bodies.get(index).copied().flatten().map(Arc::clone);
    commit.packed_bodies = codec::seal_bodies(&commit.packed_bodies, key_of)
        .map_err(|error| damaged("the payloads of a commit", error))?;
    let named = commit.record.bodies();
    for (digest, packed) in &mut commit.blobs {
        let index = named.iter().position(|name| name.digest == *digest);
        *packed = seal(
            std::mem::take(packed),
            index.and_then(|index| of_bodies[index]),
        );
    }
    for write in &mut commit.writes.state {
        if let StateWrite::Put { packed, .. } = write {
            *packed = seal(std::mem::take(packed), user);
        }
    }
    for write in &mut commit.writes.shared {
        if let SharedChange::Put { packed, .. } = &mut write.change {
            *packed = seal(std::mem::take(packed), sealing.of_scope(write.key.scope()));
        }
    }
    for (_, _, packed) in &mut commit.writes.task_states {
        *packed = seal(std::mem::take(packed), user);
    }
    Ok(())
}

fn seal(packed: Vec<u8>, key: Option<&Arc<SealKey>>) -> Vec<u8> {
    match key {
        Some(key) => codec::seal_packed(&packed, key),
        None => packed,
    }
}

fn texts(commit: &Commit, owner: &Owner, keys: &dyn SealKeys) -> TextColumns {
    let key = keys.key_of(&KeyOwner::User(owner.user));
    let sealing = key.as_ref().filter(|_| keys.seals());
    let column = |text: &String| seal(codec::plain(text.as_bytes()), sealing);
    let changed = |change: &Change<String>| match change {
        Change::Set(text) => Change::Set(FoundText {
            lookup: lookup(key.as_deref(), LookupKind::SessionName, text),
            column: column(text),
        }),
        Change::Clear => Change::Clear,
    };
    let labels = |change: &Change<String>| match change {
        Change::Set(text) => Change::Set(column(text)),
        Change::Clear => Change::Clear,
    };
    let new_user = commit.new_user.as_ref();
    TextColumns {
        name: commit.writes.name.as_ref().map(changed),
        labels: commit.writes.labels.as_ref().map(labels),
        new_user: new_user.map(|name| user_text(keys, &owner.tenant, owner.user, name)),
    }
}

/// The name of a user, sealed under the key of the user, to be found by those who have the key of the tenant.
pub(super) fn user_text(keys: &dyn SealKeys, tenant: &Name, user: UserId, name: &str) -> FoundText {
    let key = keys.key_of(&KeyOwner::User(user)).filter(|_| keys.seals());
    FoundText {
        lookup: user_lookup(keys, tenant, name),
        column: seal(codec::plain(name.as_bytes()), key.as_ref()),
    }
}

/// The bytes by which the name of a user is found.
pub(super) fn user_lookup(keys: &dyn SealKeys, tenant: &Name, name: &str) -> Vec<u8> {
    let key = keys.key_of(&KeyOwner::Tenant(tenant.clone()));
    lookup(key.as_deref(), LookupKind::UserName, name)
}

/// The bytes by which the name of a session is found.
pub(super) fn name_lookup(keys: &dyn SealKeys, user: UserId, name: &str) -> Vec<u8> {
    let key = keys.key_of(&KeyOwner::User(user));
    lookup(key.as_deref(), LookupKind::SessionName, name)
}

/// Whether a session with this name is found by these bytes. A store that was filled without keys finds it by its
/// name; without the key of the user nothing can be compared.
pub(super) fn is_name_lookup(
    keys: &dyn SealKeys,
    user: UserId,
    name: &str,
    found_by: Option<&[u8]>,
) -> bool {
    let Some(found_by) = found_by else {
        return false;
    };
    let key = keys.key_of(&KeyOwner::User(user));
    key.is_none_or(|key| {
        found_by == key.lookup(LookupKind::SessionName, name) || found_by == name.as_bytes()
    })
}

/// Without a key a text is found by itself.
fn lookup(key: Option<&SealKey>, kind: LookupKind, text: &str) -> Vec<u8> {
    match key {
        Some(key) => key.lookup(kind, text),
        None => text.as_bytes().to_vec(),
    }
}

/// The text of a column. None if it is empty, or the key is gone.
pub(super) fn open_text(
    packed: Option<&[u8]>,
    keys: &dyn SealKeys,
    place: &str,
) -> Result<Option<String>, StoreError> {
    let Some(packed) = packed else {
        return Ok(None);
    };
    let opened = codec::open(packed, keys).map_err(|error| damaged(place, error))?;
    let text = opened.map(String::from_utf8).transpose();
    text.map_err(|error| damaged(place, error))
}
