//! Beside sessions: users behind pseudonyms, keys, and the audit stream of a tenant.

use std::collections::BTreeMap;

use statehold_core::ids::{KeyId, UserId};
use statehold_core::name::Name;
use statehold_core::session::Owner;
use statehold_core::tenant::{TenantHead, TenantRecord};

use crate::port::{AddressChange, ApiKey, ResumeAddress, StoreError, TenantChange, TenantCommit};

#[derive(Debug, Default)]
pub(super) struct Tenants {
    users: BTreeMap<(Name, String), UserId>,
    keys: BTreeMap<KeyId, ApiKey>,
    streams: BTreeMap<Name, Vec<TenantRecord>>,
    addresses: BTreeMap<(Name, Name), ResumeAddress>,
}

impl Tenants {
    pub(super) fn intern_user(&mut self, tenant: Name, name: String, fresh: UserId) -> UserId {
        *self.users.entry((tenant, name)).or_insert(fresh)
    }

    /// Stores the user of a session that the same commit creates.
    pub(super) fn keep_user(&mut self, owner: &Owner, name: &str) -> Result<(), StoreError> {
        let known = self.intern_user(owner.tenant.clone(), name.to_owned(), owner.user);
        if known == owner.user {
            Ok(())
        } else {
            Err(StoreError::UserTaken { known })
        }
    }

    pub(super) fn user(&self, tenant: Name, name: String) -> Option<UserId> {
        self.users.get(&(tenant, name)).copied()
    }

    pub(super) fn user_name(&self, user: UserId) -> Option<String> {
        let mut users = self.users.iter();
        users
            .find(|(_, id)| **id == user)
            .map(|((_, name), _)| name.clone())
    }

    pub(super) fn commit(&mut self, commit: TenantCommit) -> Result<(), StoreError> {
        let content = &commit.record.content;
        let head = self.head(&content.tenant);
        if content.seq != head.seq + 1 || content.prev_hash != head.hash {
            return Err(StoreError::TenantConflict { found: head.seq });
        }
        match commit.change {
            Some(TenantChange::Key(key)) => drop(self.keys.insert(key.id, key)),
            Some(TenantChange::Address(AddressChange::Set(address))) => {
                let key = (address.tenant.clone(), address.agent.clone());
                self.addresses.insert(key, address);
            }
            Some(TenantChange::Address(AddressChange::Removed(agent))) => {
                self.addresses.remove(&(content.tenant.clone(), agent));
            }
            Some(TenantChange::UserForgotten(user)) => {
                let tenant = &content.tenant;
                self.users.retain(|(of, _), id| of != tenant || *id != user);
            }
            None => {}
        }
        let stream = self.streams.entry(content.tenant.clone()).or_default();
        stream.push(commit.record);
        Ok(())
    }

    pub(super) fn head(&self, tenant: &Name) -> TenantHead {
        let last = self.streams.get(tenant).and_then(|stream| stream.last());
        last.map(TenantRecord::head).unwrap_or_default()
    }

    pub(super) fn records(&self, tenant: &Name, after: u64, limit: usize) -> Vec<TenantRecord> {
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        let stream = self.streams.get(tenant).into_iter().flatten();
        stream.skip(skipped).take(limit).cloned().collect()
    }

    /// The tenants that have a stream.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.streams.keys()
    }

    pub(super) fn stream(&self, tenant: &Name) -> Vec<TenantRecord> {
        self.streams.get(tenant).cloned().unwrap_or_default()
    }

    pub(super) fn addresses(&self) -> Vec<ResumeAddress> {
        self.addresses.values().cloned().collect()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ApiKey> {
        self.keys.values()
    }

    pub(super) fn keys_of(&self, tenant: &Name) -> impl Iterator<Item = &ApiKey> {
        self.keys().filter(move |key| key.tenant == *tenant)
    }
}
