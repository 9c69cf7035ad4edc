//! Manages the keys of a data directory without a running server.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;
use statehold_engine::policy::Policies;
use statehold_engine::{ApiKey, Caller, Engine};

use super::keys::{CreatedKey, KeyInfo, KeyRequest, KeyService};
use crate::exit::{Exit, Failure};
use crate::wire;

/// Changes keys in place, with the rights of a local developer: a person who can write the
/// directory could do more anyway.
pub(super) struct OfflineKeys {
    engine: Engine,
    caller: Caller,
}

impl OfflineKeys {
    pub(super) async fn open(data: &Path) -> anyhow::Result<Self> {
        let parts = wire::on_disk(data, 1, wire::clock(None), Policies::default()).await?;
        let tenant: Name = "default".parse().context("the tenant has a name")?;
        Ok(Self {
            engine: parts.engine,
            caller: Caller::local(tenant),
        })
    }

    /// Waits until all changes are on disk.
    pub(super) async fn close(self) {
        self.engine.shut_down().await;
    }

    async fn key(&self, key: &ApiKey) -> anyhow::Result<KeyInfo> {
        let user = match key.user {
            Some(user) => Some(self.engine.user_name(&key.tenant, user).await?),
            None => None,
        };
        let words = |names: &BTreeSet<Name>| -> Vec<String> {
            names.iter().map(ToString::to_string).collect()
        };
        Ok(KeyInfo {
            id: key.id.to_string(),
            name: key.name.clone(),
            roles: words(&key.roles),
            user,
            agents: (!key.agents.is_empty()).then(|| words(&key.agents)),
            created_at: time(key.created_at),
            expires_at: key.expires_at.map(time),
            revoked_at: key.revoked_at.map(time),
        })
    }
}

impl KeyService for OfflineKeys {
    async fn create(&self, new: &KeyRequest) -> anyhow::Result<CreatedKey> {
        let names = |texts: &[String]| -> anyhow::Result<BTreeSet<Name>> {
            let names = texts.iter().map(|text| {
                let name: Result<Name, _> = text.parse();
                name.map_err(|error| Failure::usage(format!("{text:?}: {error}")).into())
            });
            names.collect()
        };
        let user = match &new.user {
            Some(user) => Some(self.engine.user_id(&self.caller.tenant, user).await?),
            None => None,
        };
        let key = statehold_engine::NewKey {
            name: new.name.clone(),
            roles: names(&new.roles)?,
            user,
            agents: names(new.agents.as_deref().unwrap_or_default())?,
            expires_in_ms: new.expires_in_seconds.map(|s| s.saturating_mul(1_000)),
        };
        let issued = self.engine.create_key(&self.caller, key).await?;
        Ok(CreatedKey {
            about: self.key(&issued.key).await?,
            key: issued.secret,
        })
    }

    async fn list(&self) -> anyhow::Result<Vec<KeyInfo>> {
        let mut keys = Vec::new();
        for key in self.engine.keys(&self.caller).await? {
            keys.push(self.key(&key).await?);
        }
        Ok(keys)
    }

    async fn revoke(&self, id: &str) -> anyhow::Result<()> {
        let missing = || Failure::new(Exit::NotFound, format!("there is no key {id}"));
        let parsed = id.parse().map_err(|_| missing())?;
        match self.engine.revoke_key(&self.caller, parsed).await {
            Err(statehold_engine::EngineError::NotFound) => Err(missing().into()),
            other => Ok(other?),
        }
    }
}

fn time(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_microsecond(at.as_micros());
    at.map_or_else(|_| String::new(), |at| at.to_string())
}
