//! Names and pseudonyms of users: a cache in front of the store, and the users whom it does not have yet.
//!
//! A new user gets a pseudonym in memory. The store gets it with the commit of the first session that is theirs,
//! so a call that is refused leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use statehold_core::digest::PayloadKey;
use statehold_core::ids::{IdMint, Shard, UserId};
use statehold_core::name::{Name, is_deceptive};
use statehold_core::principal::Principal;
use statehold_store::keys::{KeyOwner, UserKey};

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
    new: Arc<Lock<NewUsers>>,
}

/// The users whom calls in progress brought and the store does not have. A user is here as long as a call or a
/// commit holds them, so that all calls in progress know a user by the same pseudonym.
#[derive(Debug, Default)]
struct NewUsers {
    by_name: HashMap<(Name, String), Weak<Reservation>>,
    by_id: HashMap<UserId, Weak<Reservation>>,
}

/// A user whom the store does not have yet, with their pseudonym. Equal if the pseudonyms are.
#[derive(Clone)]
pub struct NewUser(Arc<Reservation>);

impl std::fmt::Debug for NewUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Logs have pseudonyms only.
        f.debug_tuple("NewUser").field(&self.id()).finish()
    }
}

struct Reservation {
    id: UserId,
    tenant: Name,
    name: String,
    payload_key: UserKey,
    all: Arc<Lock<NewUsers>>,
}

impl NewUser {
    pub(crate) fn id(&self) -> UserId {
        self.0.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }
}

impl PartialEq for NewUser {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for NewUser {}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        all.by_id.remove(&self.id);
        let name = (self.tenant.clone(), std::mem::take(&mut self.name));
        // Another call may have brought the user again meanwhile.
        let is_gone = |held: &Weak<Self>| held.strong_count() == 0;
        if all.by_name.get(&name).is_some_and(is_gone) {
            all.by_name.remove(&name);
        }
    }
}

/// A user whom a call names. Keep it until the commits of the call are decided.
#[derive(Debug, Clone)]
pub(crate) struct NamedUser {
    pub(crate) id: UserId,
    /// Set if the store does not have the user.
    pub(crate) new: Option<NewUser>,
}

#[derive(Debug, Default)]
struct UserCache {
    ids: HashMap<(Name, String), UserId>,
    names: HashMap<UserId, String>,
    /// Users whom an erasure since the start has begun to erase: nothing is committed in their name any more.
    erasing: HashSet<UserId>,
    /// Users whose erasure has ended. A call that read the name before must not bring it back.
    erased: HashSet<UserId>,
}

impl Users {
    /// The pseudonym of a user whom the store may not have: the one that another call in progress uses, or a new
    /// one.
    fn reserve(
        &self,
        tenant: &Name,
        name: &str,
        fresh: impl FnOnce() -> Result<UserId, EngineError>,
    ) -> Result<NewUser, EngineError> {
        let mut all = self.new.lock();
        let key = (tenant.clone(), name.to_owned());
        if let Some(held) = all.by_name.get(&key).and_then(Weak::upgrade) {
            return Ok(NewUser(held));
        }
        let reservation = Arc::new(Reservation {
            id: fresh()?,
            tenant: tenant.clone(),
            name: name.to_owned(),
            payload_key: UserKey::fresh()?,
            all: Arc::clone(&self.new),
        });
        all.by_id
            .insert(reservation.id, Arc::downgrade(&reservation));
        all.by_name.insert(key, Arc::downgrade(&reservation));
        Ok(NewUser(reservation))
    }

    /// The new user behind a pseudonym. None once the store has them.
    pub(crate) fn new_user(&self, id: UserId) -> Option<NewUser> {
        let all = self.new.lock();
        all.by_id.get(&id).and_then(Weak::upgrade).map(NewUser)
    }

    fn cached(&self, tenant: &Name, name: &str) -> Option<UserId> {
        let known = self.known.lock();
        known.ids.get(&(tenant.clone(), name.to_owned())).copied()
    }

    fn note(&self, tenant: &Name, name: &str, id: UserId) {
        let mut known = self.known.lock();
        if known.erased.contains(&id) {
            return;
        }
        if known.names.len() >= HOT_USERS {
            known.ids.clear();
            known.names.clear();
        }
        known.ids.insert((tenant.clone(), name.to_owned()), id);
        known.names.insert(id, name.to_owned());
    }

    /// From now on no caller commits anything in the name of this user.
    pub(crate) fn refuse_commits_of(&self, id: UserId) {
        self.known.lock().erasing.insert(id);
    }

    pub(crate) fn takes_commits_of(&self, id: UserId) -> bool {
        !self.known.lock().erasing.contains(&id)
    }

    pub(crate) fn is_gone(&self, id: UserId) -> bool {
        self.known.lock().erased.contains(&id)
    }

    /// Forgets an erased user. The next user of that name is somebody else.
    pub(crate) fn forget(&self, tenant: &Name, id: UserId) {
        let mut known = self.known.lock();
        known.erased.insert(id);
        if let Some(name) = known.names.remove(&id) {
            known.ids.remove(&(tenant.clone(), name));
        }
    }
}

impl Engine {
    /// The pseudonym of a user, stored if the name is new.
    ///
    /// # Errors
    ///
    /// If the name is invalid, or the store fails.
    pub async fn user_id(&self, tenant: &Name, name: &str) -> Result<UserId, EngineError> {
        let named = self.named_user(tenant, name, "user").await?;
        self.store_user(tenant, &named).await
    }

    /// Stores a user who owns no session yet: a key names them.
    pub(crate) async fn store_user(
        &self,
        tenant: &Name,
        named: &NamedUser,
    ) -> Result<UserId, EngineError> {
        let Some(new) = &named.new else {
            return Ok(named.id);
        };
        let inner = self.inner();
        // The name is stored under both keys.
        self.payload_key(KeyOwner::Tenant(tenant.clone())).await?;
        self.store_payload_key(new).await?;
        let name = new.name().to_owned();
        let id = inner.store.intern_user(tenant.clone(), name, new.id());
        let id = id.await?;
        inner.users.note(tenant, new.name(), id);
        Ok(id)
    }

    /// The user that a field of the input names. A user whom the store does not have is stored with the first
    /// commit that is theirs.
    pub(crate) async fn named_user(
        &self,
        tenant: &Name,
        name: &str,
        field: &str,
    ) -> Result<NamedUser, EngineError> {
        require_user_name(name, field)?;
        let inner = self.inner();
        if let Some(id) = inner.users.cached(tenant, name) {
            return Ok(NamedUser { id, new: None });
        }
        // Reserved before the store is asked: a call that brought the same user either still holds the
        // reservation, or its commit is durable and the store has the user.
        let new = inner.users.reserve(tenant, name, || {
            let shard = Shard::of_owner(tenant.as_str(), "", name);
            let mut mint = IdMint::new(inner.clock.now(), shard, entropy()?);
            Ok(UserId::from_uuid(mint.next_uuid()))
        })?;
        Ok(match self.known_user(tenant, name).await? {
            Some(id) => NamedUser { id, new: None },
            None => NamedUser {
                id: new.id(),
                new: Some(new),
            },
        })
    }

    /// The payload key of a user whom the store does not have yet. It is stored right before their first commit.
    pub(crate) fn new_payload_key(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        let KeyOwner::User(user) = owner else {
            return None;
        };
        let new = self.inner().users.new_user(*user)?;
        Some(new.0.payload_key.key().clone())
    }

    /// Stores the payload key of a new user, before the first commit that needs it.
    pub(crate) async fn store_payload_key(&self, new: &NewUser) -> Result<(), EngineError> {
        let (keys, new) = (Arc::clone(&self.inner().payload_keys), new.clone());
        let keep = move || keys.keep(&KeyOwner::User(new.id()), &new.0.payload_key);
        let kept = tokio::task::spawn_blocking(keep).await;
        kept.map_err(|_| EngineError::Stopping)??;
        Ok(())
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
        let at_hand = inner.users.cached(tenant, name);
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
        if let Some(new) = inner.users.new_user(id) {
            return Ok(new.name().to_owned());
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
