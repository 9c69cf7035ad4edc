//! A cache of users' names and pseudonyms, in front of the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use statehold_core::ids::{IdMint, Shard, UserId};
use statehold_core::name::{Name, is_deceptive};
use statehold_core::principal::Principal;

use crate::caller::Caller;
use crate::engine::{Engine, entropy};
use crate::error::EngineError;
use crate::locks::Lock;

/// The longest name of a user, in bytes.
pub(crate) const USER_BYTES_MAX: usize = 256;
/// How many users are cached.
const HOT_USERS: usize = 50_000;

#[derive(Debug, Default)]
pub(crate) struct Users {
    known: Lock<UserCache>,
}

#[derive(Debug, Default)]
struct UserCache {
    ids: HashMap<(Name, String), UserId>,
    names: HashMap<UserId, String>,
}

impl Users {
    fn note(&self, tenant: &Name, name: &str, id: UserId) {
        let mut known = self.known.lock();
        if known.names.len() >= HOT_USERS {
            *known = UserCache::default();
        }
        known.ids.insert((tenant.clone(), name.to_owned()), id);
        known.names.insert(id, name.to_owned());
    }
}

impl Engine {
    /// The pseudonym of a user, created if the name is new.
    ///
    /// # Errors
    ///
    /// If the name is invalid, or the store fails.
    pub async fn user_id(&self, tenant: &Name, name: &str) -> Result<UserId, EngineError> {
        self.person_id(tenant, name, "user").await
    }

    /// The pseudonym of a person that a field of the input names, created if the name is new.
    pub(crate) async fn person_id(
        &self,
        tenant: &Name,
        name: &str,
        field: &str,
    ) -> Result<UserId, EngineError> {
        require_user_name(name, field)?;
        if let Some(id) = self.known_user(tenant, name).await? {
            return Ok(id);
        }
        let inner = self.inner();
        let shard = Shard::of_owner(tenant.as_str(), "", name);
        let mut mint = IdMint::new(inner.clock.now(), shard, entropy()?);
        let fresh = UserId::from_uuid(mint.next_uuid());
        let id = inner
            .store
            .intern_user(tenant.clone(), name.to_owned(), fresh)
            .await?;
        inner.users.note(tenant, name, id);
        Ok(id)
    }

    /// A pseudonym of a user that has none, for one call. It owns nothing.
    pub(crate) fn unstored_user(&self, name: &str) -> Result<UserId, EngineError> {
        require_user_name(name, "user")?;
        let shard = Shard::of_owner("", "", name);
        let mut mint = IdMint::new(self.inner().clock.now(), shard, entropy()?);
        Ok(UserId::from_uuid(mint.next_uuid()))
    }

    /// The pseudonym of a user, if the name is known.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn known_user(
        &self,
        tenant: &Name,
        name: &str,
    ) -> Result<Option<UserId>, EngineError> {
        let inner = self.inner();
        let at_hand = {
            let known = inner.users.known.lock();
            known.ids.get(&(tenant.clone(), name.to_owned())).copied()
        };
        if at_hand.is_some() {
            return Ok(at_hand);
        }
        let id = inner.store.user(tenant.clone(), name.to_owned()).await?;
        if let Some(id) = id {
            inner.users.note(tenant, name, id);
        }
        Ok(id)
    }

    /// The name of the person who acts, or the id of the key, or `local` or `system`.
    pub(crate) async fn principal_name(&self, caller: &Caller) -> Result<String, EngineError> {
        match caller.principal {
            Principal::User(user) => self.user_name(&caller.tenant, user).await,
            other => Ok(other.to_string()),
        }
    }

    /// The name behind a pseudonym; the pseudonym itself if the name was erased.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn user_name(&self, tenant: &Name, id: UserId) -> Result<String, EngineError> {
        let inner = self.inner();
        let at_hand = inner.users.known.lock().names.get(&id).cloned();
        if let Some(name) = at_hand {
            return Ok(name);
        }
        match inner.store.user_name(id).await? {
            Some(name) => {
                inner.users.note(tenant, &name, id);
                Ok(name)
            }
            None => Ok(id.to_string()),
        }
    }
}

impl Engine {
    /// The names behind pseudonyms, read in one query. Erased names are left out.
    pub(crate) async fn user_names(
        &self,
        users: BTreeSet<UserId>,
    ) -> Result<BTreeMap<UserId, String>, EngineError> {
        let inner = self.inner();
        let mut found = BTreeMap::new();
        let mut missing = Vec::new();
        {
            let known = inner.users.known.lock();
            for user in users {
                match known.names.get(&user) {
                    Some(name) => drop(found.insert(user, name.clone())),
                    None => missing.push(user),
                }
            }
        }
        if !missing.is_empty() {
            let names = inner.store.user_names(missing.clone()).await?;
            let names = missing.into_iter().zip(names);
            found.extend(names.filter_map(|(user, name)| Some((user, name?))));
        }
        Ok(found)
    }
}

/// Refuses names that are empty, padded or unprintable: people could confuse them with others.
fn require_user_name(name: &str, field: &str) -> Result<(), EngineError> {
    let is_plain = !name.is_empty()
        && name.len() <= USER_BYTES_MAX
        && name.trim() == name
        && !name.chars().any(is_deceptive);
    if is_plain {
        Ok(())
    } else {
        Err(EngineError::Invalid(format!(
            "`{field}` is 1 to 256 bytes of text without control or invisible characters, and does \
             not begin or end with a space"
        )))
    }
}
