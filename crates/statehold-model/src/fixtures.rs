//! Small values that tests are made of.

use std::collections::BTreeMap;

use statehold_core::command::{Command, Context, LoadedFacts, Output, StartRequest, StatePatch};
use statehold_core::digest::{BodyRef, Digest, PayloadKey};
use statehold_core::ids::{IdMint, KeyId, SessionId, Shard, UserId};
use statehold_core::name::Name;
use statehold_core::principal::{Actor, Principal};
use statehold_core::record::Change;
use statehold_core::session::Owner;
use statehold_core::task::CloseOn;
use statehold_core::time::Timestamp;
use uuid::Uuid;

/// The payload key of every fixture.
pub const PAYLOAD_KEY: PayloadKey = PayloadKey::from_bytes([7; 32]);

/// A name that is known to be one.
///
/// # Panics
///
/// If it is not.
pub fn name(text: &str) -> Name {
    text.parse().expect("a fixture name")
}

/// The n-th user.
pub fn user(n: u64) -> UserId {
    UserId::from_uuid(Uuid::from_u64_pair(0x7000, 0x8000_0000_0000_0000 | n))
}

/// The n-th key.
pub fn key(n: u64) -> KeyId {
    KeyId::from_uuid(Uuid::from_u64_pair(0x7000, 0x8000_0000_0001_0000 | n))
}

/// The n-th session, in the partition of the fixture owner.
pub fn session(n: u64) -> SessionId {
    let mut mint = IdMint::new(
        Timestamp::from_micros(0),
        Shard::of_owner("t1", "app", "bob"),
        n,
    );
    SessionId::from_uuid(mint.next_uuid())
}

/// The owner of the fixture sessions: user 1 of tenant `t1`.
pub fn owner() -> Owner {
    Owner {
        tenant: name("t1"),
        app: name("app"),
        user: user(1),
        agent: name("coordinator"),
    }
}

/// The session's user.
pub fn client() -> Actor {
    actor(Principal::User(user(1)), &["client"])
}

/// The owner of a backend that starts requests for the session's user. Also an approver.
pub fn backend_owner() -> Actor {
    actor(Principal::User(user(300)), &["approver"])
}

/// The n-th worker.
pub fn worker(n: u64) -> Actor {
    actor(Principal::Key(key(n)), &["worker"])
}

/// The n-th approver; never the session's user.
pub fn approver(n: u64) -> Actor {
    actor(Principal::User(user(100 + n)), &["approver"])
}

/// An actor of tenant `t1`.
pub fn actor(principal: Principal, roles: &[&str]) -> Actor {
    Actor {
        tenant: name("t1"),
        principal,
        roles: roles.iter().map(|role| name(role)).collect(),
        key_owner: None,
    }
}

/// A reference to a payload that says `text`.
pub fn body(text: &str) -> BodyRef {
    BodyRef::of(&PAYLOAD_KEY, text.as_bytes())
}

/// A digest that stands for `text`.
pub fn digest(text: &str) -> Digest {
    Digest::sha256(text.as_bytes())
}

/// A context without loaded facts, at `seconds` after the start of time.
pub fn context(actor: Actor, seconds: i64, entropy: u64) -> Context {
    Context {
        now: Timestamp::from_micros(seconds * 1_000_000),
        actor,
        entropy,
        leases: BTreeMap::new(),
        loaded: LoadedFacts::default(),
    }
}

/// The command that begins the fixture session.
pub fn create_session() -> Command {
    Command::CreateSession {
        owner: owner(),
        name: None,
        labels: None,
        state: StatePatch::default(),
        ttl: None,
        hidden_ttl_ms: None,
    }
}

/// The command by which a session keeps its hidden payloads `ms` milliseconds.
pub fn keep_hidden_for(ms: u64) -> Command {
    Command::PatchSession {
        labels: None,
        name: None,
        ttl: None,
        hidden_ttl_ms: Some(Change::Set(ms)),
    }
}

/// A plain invocation of `agent`.
pub fn start(agent: &str) -> StartRequest {
    StartRequest {
        chat: None,
        continues: None,
        agent: name(agent),
        task: None,
        parent: None,
        input: body("question"),
        attachments: Vec::new(),
        close_on: CloseOn::Never,
        lease_ttl_ms: None,
        items: Vec::new(),
        state: StatePatch::default(),
        output: None,
    }
}

/// An answer.
pub fn output() -> Output {
    Output {
        body: body("answer"),
        attachments: Vec::new(),
    }
}
