//! Small values that the checks are made of.

use statehold_core::ids::{IdMint, KeyId, SessionId, Shard, UserId};
use statehold_core::name::Name;
use statehold_core::principal::{Actor, Principal};
use statehold_core::scope::StateKey;
use statehold_core::session::Owner;
use statehold_core::time::Timestamp;
use uuid::Uuid;

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

/// The server itself, inside the tenant.
pub fn system(owner: &Owner) -> Actor {
    Actor::system(owner.tenant.clone())
}

fn actor(owner: &Owner, principal: Principal, role: &str) -> Actor {
    Actor {
        tenant: owner.tenant.clone(),
        principal,
        roles: [name(role)].into(),
    }
}
