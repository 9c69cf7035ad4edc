//! Small values that the checks are made of.

use statehold_core::digest::Digest;
use statehold_core::ids::{IdMint, KeyId, SessionId, Shard, UserId};
use statehold_core::name::Name;
use statehold_core::principal::{Actor, Principal};
use statehold_core::scope::StateKey;
use statehold_core::session::Owner;
use statehold_core::tenant::TenantEvent;
use statehold_core::time::Timestamp;
use uuid::Uuid;

use crate::ApiKey;

/// A name that is known to be one.
pub fn name(text: &str) -> Name {
    text.parse().expect("a name of the suite")
}

/// A state key that is known to be one.
pub fn key(text: &str) -> StateKey {
    text.parse().expect("a state key of the suite")
}

/// So many seconds after the suite's first moment.
pub fn seconds(count: i64) -> Timestamp {
    Timestamp::from_micros(1_763_000_000_000_000 + count * 1_000_000)
}

/// The end of time, as far as the suite goes.
pub fn the_end() -> Timestamp {
    seconds(1_000_000_000)
}

/// The n-th user.
pub fn user(n: u64) -> UserId {
    UserId::from_uuid(uuid(1 << 32 | n))
}

/// The n-th session.
pub fn session(n: u64) -> SessionId {
    SessionId::from_uuid(uuid(2 << 32 | n))
}

fn uuid(n: u64) -> Uuid {
    let shard = Shard::of_owner("north", "shop", "bob");
    IdMint::new(seconds(0), shard, n).next_uuid()
}

/// User 1 of app `shop` of tenant `north`.
pub fn owner() -> Owner {
    owner_of("north", "shop", 1)
}

/// The n-th user of an app of a tenant.
pub fn owner_of(tenant: &str, app: &str, n: u64) -> Owner {
    Owner {
        tenant: name(tenant),
        app: name(app),
        user: user(n),
        agent: name("planner"),
    }
}

/// The user of a session.
pub fn client(owner: &Owner) -> Actor {
    actor(owner, Principal::User(owner.user), "client")
}

/// The n-th worker of the tenant.
pub fn worker(owner: &Owner, n: u64) -> Actor {
    let key = KeyId::from_uuid(uuid(3 << 32 | n));
    actor(owner, Principal::Key(key), "worker")
}

/// The n-th approver of the tenant, who is no session's user.
pub fn approver(owner: &Owner, n: u64) -> Actor {
    actor(owner, Principal::User(user(1_000 + n)), "approver")
}

/// The n-th API key of a tenant, as the store keeps it.
pub fn api_key(tenant: &str, n: u64) -> ApiKey {
    ApiKey {
        id: KeyId::from_uuid(uuid(3 << 32 | n)),
        tenant: name(tenant),
        secret: Digest::sha256(format!("key {n} of {tenant}").as_bytes()),
        name: Some(format!("key {n}")),
        roles: [name("worker")].into(),
        user: None,
        owner: Some(user(7)),
        agents: [name("planner")].into(),
        created_at: seconds(0),
        expires_at: Some(seconds(1_000)),
        revoked_at: None,
    }
}

/// What the audit stream says about a new key.
pub fn key_created(key: &ApiKey) -> TenantEvent {
    TenantEvent::KeyCreated {
        agents: key.agents.clone(),
        expires_at: key.expires_at,
        key: key.id,
        owner: key.owner,
        roles: key.roles.clone(),
        user: key.user,
    }
}

/// The server itself, inside the tenant.
pub fn system(owner: &Owner) -> Actor {
    Actor::system(owner.tenant.clone())
}

fn actor(owner: &Owner, principal: Principal, role: &str) -> Actor {
    Actor {
        tenant: owner.tenant.clone(),
        principal,
        roles: [name(role)].into(),
        key_owner: None,
    }
}
