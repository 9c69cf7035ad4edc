//! API keys. The audit stream records their creation and revocation.
//!
//! A key is 256 random bits, shown once; the store keeps only its digest. Only this process changes the
//! keys of its store, so all of them are in memory and a revocation takes effect at once.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use data_encoding::BASE32_NOPAD;
use statehold_core::digest::Digest;
use statehold_core::ids::{IdMint, KeyId, Shard, UserId};
use statehold_core::name::{Name, is_deceptive};
use statehold_core::tenant::TenantEvent;
use statehold_store::{ApiKey, TenantChange};

use crate::caller::Caller;
use crate::engine::{Engine, entropy};
use crate::error::EngineError;
use crate::guard::access::require_admin;
use crate::ports::random;

/// The prefix of every key.
pub const KEY_PREFIX: &str = "shk_";
/// The longest name of a key, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// The bounds of a key's lifetime: one second to ten years.
const LIFE_MS: std::ops::RangeInclusive<u64> = statehold_core::limits::SESSION_TTL_MS;
/// The maximum number of keys of one tenant.
const KEYS_MAX: usize = 100_000;
/// The most roles of a key, and the most agents that it is bound to.
const ROLES_MAX: usize = 32;
const AGENTS_MAX: usize = 256;
/// How many keys are read at a time.
const READ_AT_ONCE: usize = 500;

/// A key to create.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    /// A name for people.
    pub name: Option<String>,
    /// Its roles.
    pub roles: BTreeSet<Name>,
    /// The user it is bound to.
    pub user: Option<UserId>,
    /// The person it belongs to.
    pub owner: Option<UserId>,
    /// The agents it is bound to; empty means any.
    pub agents: BTreeSet<Name>,
    /// Its lifetime in milliseconds. None means no expiry.
    pub expires_in_ms: Option<u64>,
}

/// A key that was just created. Only here is its secret known.
#[derive(Clone)]
pub struct IssuedKey {
    /// The stored part.
    pub key: ApiKey,
    /// The secret.
    pub secret: String,
}

impl std::fmt::Debug for IssuedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedKey")
            .field("key", &self.key.id)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads all keys of a tenant into memory. Called once per served tenant.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn load_keys(&self, tenant: &Name) -> Result<usize, EngineError> {
        let (mut count, mut after) = (0, None);
        loop {
            let page = self
                .inner()
                .store
                .api_keys(tenant.clone(), after, READ_AT_ONCE);
            let page = page.await?;
            let Some(last) = page.last() else {
                return Ok(count);
            };
            after = Some(last.id);
            for key in page {
                count += usize::from(key.revoked_at.is_none());
                self.note_key(key);
            }
        }
    }

    /// Updates a key in memory after the store has committed it.
    pub(crate) fn note_key(&self, key: ApiKey) {
        let inner = self.inner();
        let mut keys = inner
            .api_keys
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = key.expires_at {
            inner
                .next_key_end
                .fetch_min(end.as_micros(), Ordering::Relaxed);
        }
        keys.insert(key.secret, Arc::new(key));
        drop(keys);
        inner.keys_changed.send_modify(|count| *count += 1);
    }

    /// Ends the keys whose time is over, in memory: they stay ended if the clock steps back. Calls that wait
    /// notice it like a revocation. Timers record it, see [`Engine::record_ended_keys`].
    pub(crate) fn end_expired_keys(&self) {
        let inner = self.inner();
        let now = inner.clock.now();
        if now.as_micros() < inner.next_key_end.load(Ordering::Relaxed) {
            return;
        }
        let mut keys = inner
            .api_keys
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mut next = i64::MAX;
        let mut ended = Vec::new();
        for key in keys.values_mut() {
            match key.expires_at.filter(|_| key.revoked_at.is_none()) {
                Some(end) if now >= end => {
                    Arc::make_mut(key).revoked_at = Some(end);
                    ended.push(ApiKey::clone(key));
                }
                Some(end) => next = next.min(end.as_micros()),
                None => {}
            }
        }
        inner.next_key_end.store(next, Ordering::Relaxed);
        drop(keys);
        if !ended.is_empty() {
            inner.ended_keys.lock().append(&mut ended);
            inner.keys_changed.send_modify(|count| *count += 1);
        }
    }

    /// Records the keys that have ended as revoked at their end, so that a restart with an earlier clock does not
    /// bring them back.
    pub(crate) async fn record_ended_keys(&self) -> Result<(), EngineError> {
        let ended = &self.inner().ended_keys;
        loop {
            let Some(key) = ended.lock().last().cloned() else {
                return Ok(());
            };
            let server = Caller::worker_of_server(key.tenant.clone());
            let (id, event) = (key.id, TenantEvent::KeyRevoked { key: key.id });
            self.append_audit(&server, event, Some(TenantChange::Key(key)))
                .await?;
            ended.lock().retain(|key| key.id != id);
        }
    }

    /// Loads a key that is not in memory yet: one of a tenant whose keys are not loaded.
    pub(crate) async fn load_key(&self, digest: Digest) -> Result<(), EngineError> {
        if self.known_key(digest).is_none()
            && let Some(key) = self.inner().store.api_key(digest).await?
        {
            self.note_key(key);
        }
        Ok(())
    }

    /// The caller of a key in memory, if the key is neither revoked nor expired.
    pub(crate) fn caller_of(&self, digest: Digest) -> Option<Caller> {
        self.end_expired_keys();
        let key = self.known_key(digest)?;
        key.revoked_at.is_none().then(|| Caller::with_key(&key))
    }

    /// Fails if the caller's key was revoked or has expired since the call was authenticated.
    pub(crate) fn require_valid_key(&self, caller: &Caller) -> Result<(), EngineError> {
        let Some(digest) = caller.key else {
            return Ok(());
        };
        self.end_expired_keys();
        match self.known_key(digest) {
            Some(key) if key.revoked_at.is_none() => Ok(()),
            _ => Err(EngineError::KeyEnded),
        }
    }

    fn known_key(&self, digest: Digest) -> Option<Arc<ApiKey>> {
        let keys = self.inner().api_keys.read();
        let keys = keys.unwrap_or_else(PoisonError::into_inner);
        keys.get(&digest).cloned()
    }

    pub(crate) fn knows_key(&self, digest: Digest) -> bool {
        self.known_key(digest).is_some()
    }

    /// Whether there is a key that is not revoked.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn has_keys(&self) -> Result<bool, EngineError> {
        Ok(self.inner().store.has_api_keys().await?)
    }

    /// Creates a key.
    ///
    /// # Errors
    ///
    /// If the caller is not an admin, or the key is invalid.
    pub async fn create_key(&self, caller: &Caller, new: NewKey) -> Result<IssuedKey, EngineError> {
        require_admin(caller)?;
        require_sound(&new)?;
        let inner = self.inner();
        if inner.store.api_key_count(caller.tenant.clone()).await? >= KEYS_MAX {
            return Err(EngineError::TooMany("a tenant has at most 100,000 keys"));
        }
        let secret = BASE32_NOPAD.encode(&random::<32>()?).to_lowercase();
        let secret = format!("{KEY_PREFIX}{secret}");
        let now = inner.clock.now();
        let shard = Shard::of_owner(caller.tenant.as_str(), "", "");
        let id = KeyId::from_uuid(IdMint::new(now, shard, entropy()?).next_uuid());
        let key = ApiKey {
            id,
            tenant: caller.tenant.clone(),
            secret: Digest::sha256(secret.as_bytes()),
            name: new.name,
            roles: new.roles,
            user: new.user,
            owner: new.owner,
            agents: new.agents,
            created_at: now,
            expires_at: new.expires_in_ms.map(|ms| now.plus_ms(ms)),
            revoked_at: None,
        };
        let event = TenantEvent::KeyCreated {
            agents: key.agents.clone(),
            expires_at: key.expires_at,
            key: id,
            owner: key.owner,
            roles: key.roles.clone(),
            user: key.user,
        };
        self.append_audit(caller, event, Some(TenantChange::Key(key.clone())))
            .await?;
        Ok(IssuedKey { key, secret })
    }

    /// Keys of the caller's tenant after one of them, oldest first, revoked ones included.
    ///
    /// # Errors
    ///
    /// If the caller is not an admin.
    pub async fn keys(
        &self,
        caller: &Caller,
        after: Option<KeyId>,
        limit: usize,
    ) -> Result<Vec<ApiKey>, EngineError> {
        require_admin(caller)?;
        let store = &self.inner().store;
        Ok(store.api_keys(caller.tenant.clone(), after, limit).await?)
    }

    /// The ids of the keys of the caller's tenant that `is_wanted` picks.
    ///
    /// # Errors
    ///
    /// If the caller is not an admin.
    pub async fn keys_where(
        &self,
        caller: &Caller,
        is_wanted: impl Fn(&ApiKey) -> bool,
    ) -> Result<Vec<KeyId>, EngineError> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.keys(caller, after, READ_AT_ONCE).await?;
            let Some(last) = page.last() else {
                return Ok(found);
            };
            after = Some(last.id);
            found.extend(page.iter().filter(|key| is_wanted(key)).map(|key| key.id));
        }
    }

    /// Revokes a key at once. Revoking it again changes nothing.
    ///
    /// # Errors
    ///
    /// If the caller is not an admin, or there is no such key.
    pub async fn revoke_key(&self, caller: &Caller, id: KeyId) -> Result<(), EngineError> {
        require_admin(caller)?;
        let key = self.inner().store.api_key_of(caller.tenant.clone(), id);
        let mut key = key.await?.ok_or(EngineError::NotFound)?;
        if key.revoked_at.is_some() {
            // The call that revoked it may not have updated memory yet.
            self.note_key(key);
            return Ok(());
        }
        key.revoked_at = Some(self.inner().clock.now());
        let event = TenantEvent::KeyRevoked { key: id };
        self.append_audit(caller, event, Some(TenantChange::Key(key)))
            .await?;
        Ok(())
    }
}

/// Refuses an invalid key.
pub(crate) fn require_sound(new: &NewKey) -> Result<(), EngineError> {
    let invalid = |text: &str| Err(EngineError::Invalid(text.to_owned()));
    let has_name = |name: &String| {
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(is_deceptive)
    };
    if new.roles.is_empty() {
        return invalid("`roles` names at least one of client, worker, approver, operator, admin");
    }
    if new.roles.len() > ROLES_MAX || new.agents.len() > AGENTS_MAX {
        return invalid("a key has at most 32 `roles` and 256 `agents`");
    }
    if new.name.as_ref().is_some_and(|name| !has_name(name)) {
        return invalid("`name` is 1 to 128 bytes without control or invisible characters");
    }
    if new.expires_in_ms.is_some_and(|ms| !LIFE_MS.contains(&ms)) {
        return invalid("`expires_in_seconds` is 1 to 316224000 (ten years)");
    }
    if new.user.is_some() && new.owner.is_some() {
        return invalid("a key with a `user` belongs to that user; leave `owner` out");
    }
    if !new.agents.is_empty() && !new.roles.iter().any(|role| role.as_str() == "worker") {
        return invalid("`agents` binds workers; add the role `worker`, or leave it out");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn living(expires_in_ms: u64) -> NewKey {
        NewKey {
            roles: BTreeSet::from(["client".parse().expect("a role is a name")]),
            expires_in_ms: Some(expires_in_ms),
            ..NewKey::default()
        }
    }

    #[test]
    fn a_key_lives_from_a_second_to_ten_years() {
        for ms in [*LIFE_MS.start(), *LIFE_MS.end()] {
            assert!(require_sound(&living(ms)).is_ok(), "{ms}");
        }
        for ms in [0, 999, LIFE_MS.end() + 1, u64::MAX] {
            assert!(require_sound(&living(ms)).is_err(), "{ms}");
        }
    }
}
