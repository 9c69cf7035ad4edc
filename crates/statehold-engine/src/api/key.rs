//! API keys: create, list, revoke.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use statehold_core::ids::{KeyId, UserId};
use statehold_core::name::Name;
use statehold_store::ApiKey;
use utoipa::ToSchema;

use super::json::Time;
use super::request::parse_name;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_admin;
use crate::keys::{NewKey, require_sound};
use crate::read::Page;

/// A key to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyIn)]
pub struct KeyInput {
    /// A name for people.
    #[schema(min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// `client`, `worker`, `approver`, `operator`, `admin`, or roles that policies name.
    #[schema(value_type = Vec<Name>, min_items = 1)]
    pub roles: Vec<String>,
    /// The user that the key is bound to.
    #[schema(min_length = 1, max_length = 256)]
    pub user: Option<String>,
    /// The person that a key without a `user` belongs to. All keys of one person count as one: they do not
    /// approve what another one asked for, and do not vote twice.
    #[schema(min_length = 1, max_length = 256)]
    pub owner: Option<String>,
    /// The agents that the key is bound to.
    #[serde(default)]
    #[schema(value_type = Vec<Name>)]
    pub agents: Vec<String>,
    /// Seconds until the key expires; it never expires if left out.
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub expires_in_seconds: Option<u64>,
}

/// A key. Its secret is shown once, in the answer that creates it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Key)]
#[expect(missing_docs, reason = "fields are named as the API names them")]
pub struct KeyView {
    pub id: KeyId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[schema(value_type = Vec<Name>)]
    pub roles: BTreeSet<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<Name>, required = false)]
    pub agents: BTreeSet<Name>,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A page of keys.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct KeyList {
    /// The keys, oldest first, revoked ones included.
    pub keys: Vec<KeyView>,
    /// The `cursor` of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Creates a key. The answer is the only place that shows its secret.
///
/// # Errors
///
/// If the caller is not an admin, or the input is malformed.
pub async fn create(
    engine: &Engine,
    caller: &Caller,
    input: KeyInput,
) -> Result<KeyView, EngineError> {
    require_admin(caller)?;
    let person = async |name: &Option<String>, field: &str| match name {
        Some(name) => {
            let person = engine.named_user(&caller.tenant, name, field);
            person.await.map(Some)
        }
        None => Ok(None),
    };
    let user = person(&input.user, "user").await?;
    let owner = person(&input.owner, "owner").await?;
    let new = NewKey {
        name: input.name,
        roles: names(&input.roles, "roles")?,
        user: user.as_ref().map(|user| user.id),
        owner: owner.as_ref().map(|owner| owner.id),
        agents: names(&input.agents, "agents")?,
        expires_in_ms: input
            .expires_in_seconds
            .map(|seconds| seconds.saturating_mul(1_000)),
    };
    // A refused key leaves no row of its user.
    require_sound(&new)?;
    for person in [user, owner].iter().flatten() {
        engine.store_user(&caller.tenant, person).await?;
    }
    let issued = engine.create_key(caller, new).await?;
    let view = key_view(engine, &issued.key).await?;
    Ok(KeyView {
        key: Some(issued.secret),
        ..view
    })
}

fn names(texts: &[String], path: &str) -> Result<BTreeSet<Name>, EngineError> {
    texts.iter().map(|text| parse_name(text, path)).collect()
}

/// Refuses a caller who may not list keys, before anything of the call is looked at.
///
/// # Errors
///
/// If the caller is not an admin.
pub fn require_lister(caller: &Caller) -> Result<(), EngineError> {
    require_admin(caller)
}

async fn key_view(engine: &Engine, key: &ApiKey) -> Result<KeyView, EngineError> {
    let name = async |person: Option<UserId>| match person {
        Some(person) => engine.user_name(&key.tenant, person).await.map(Some),
        None => Ok(None),
    };
    Ok(KeyView {
        id: key.id,
        name: key.name.clone(),
        roles: key.roles.clone(),
        user: name(key.user).await?,
        owner: name(key.owner).await?,
        agents: key.agents.clone(),
        created_at: key.created_at.into(),
        expires_at: key.expires_at.map(Into::into),
        revoked_at: key.revoked_at.map(Into::into),
        key: None,
    })
}

/// A page of the keys of the tenant, oldest first, revoked ones included.
///
/// # Errors
///
/// If the caller is not an admin.
pub async fn list(
    engine: &Engine,
    caller: &Caller,
    after: Option<KeyId>,
    limit: usize,
) -> Result<Page<KeyView, KeyId>, EngineError> {
    // One more than the page shows whether another one follows.
    let mut keys = engine.keys(caller, after, limit + 1).await?;
    let has_more = keys.len() > limit;
    keys.truncate(limit);
    let next = keys.last().map(|key| key.id).filter(|_| has_more);
    let mut entries = Vec::with_capacity(keys.len());
    for key in &keys {
        entries.push(key_view(engine, key).await?);
    }
    Ok(Page { entries, next })
}

/// Revokes a key, at once.
///
/// # Errors
///
/// If the caller is not an admin, or there is no such key.
pub async fn revoke(engine: &Engine, caller: &Caller, key: KeyId) -> Result<(), EngineError> {
    engine.revoke_key(caller, key).await
}
