//! The caller: its tenant, principal and roles, and the user and agents its key is bound to.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId, UserId};
use statehold_core::name::Name;
use statehold_core::principal::{Actor, Principal};
use statehold_store::ApiKey;

use crate::users::NewUser;

/// A role of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Works with the sessions of its user, in the client view.
    Client,
    /// Does the work of its agents, under fences.
    Worker,
    /// Decides holds.
    Approver,
    /// Reads everything of its tenant; traces are audited.
    Operator,
    /// Manages keys and `app:` state, and may do what an operator may.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Client,
        Self::Worker,
        Self::Approver,
        Self::Operator,
        Self::Admin,
    ];

    /// The role's name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Worker => "worker",
            Self::Approver => "approver",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// The roles of a caller, including custom roles that only policies use (`role:x`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roles(BTreeSet<Name>);

impl Roles {
    /// All roles of the server.
    ///
    /// # Panics
    ///
    /// Never: the words for roles are names.
    pub fn all() -> Self {
        let names = Role::ALL.map(|role| role.name().parse().expect("a role is a name"));
        Self(names.into())
    }

    /// Whether the caller has a role.
    pub fn has(&self, role: Role) -> bool {
        self.0.iter().any(|held| held.as_str() == role.name())
    }

    /// Whether the caller has a custom role.
    pub fn has_own(&self) -> bool {
        let is_known = |name: &Name| Role::ALL.iter().any(|role| role.name() == name.as_str());
        self.0.iter().any(|name| !is_known(name))
    }

    /// The names of the roles.
    pub fn names(&self) -> &BTreeSet<Name> {
        &self.0
    }
}

impl From<BTreeSet<Name>> for Roles {
    fn from(names: BTreeSet<Name>) -> Self {
        Self(names)
    }
}

/// The phase that a read token was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseScope {
    /// The request of the phase. The token ends with it.
    pub request: RequestId,
    /// The request of its coordinator. The token also reads the answers of the earlier phases of that turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<RequestId>,
}

/// The caller of an engine method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant. Callers never see data of another tenant.
    pub tenant: Name,
    /// The identity: one per person, or per key that belongs to no person.
    pub principal: Principal,
    /// The owner of the key of a backend that acts for a user.
    pub key_owner: Option<Principal>,
    /// The caller's roles.
    pub roles: Roles,
    /// If set, the only user the caller may act for.
    pub user: Option<UserId>,
    /// The same user, if the store does not have them yet.
    pub new_user: Option<NewUser>,
    /// The agents the caller may work for; empty means any.
    pub agents: BTreeSet<Name>,
    /// If set, the caller has a read token: it has no roles, and may read this session as its user does.
    pub only_session: Option<SessionId>,
    /// The phase of a pipeline that the read token was made for.
    pub phase: Option<PhaseScope>,
    /// The digest of the caller's API key. A call whose key ends while it waits does nothing more.
    pub key: Option<Digest>,
    /// The API key whose share of each pool counts what a caller without one takes: a call without a session runs in
    /// an engine that knows no keys.
    pub account: Option<Digest>,
}

impl Caller {
    /// The developer on the loopback address of a development server. Has every role.
    pub fn local(tenant: Name) -> Self {
        Self {
            tenant,
            principal: Principal::Local,
            key_owner: None,
            roles: Roles::all(),
            user: None,
            new_user: None,
            agents: BTreeSet::new(),
            only_session: None,
            phase: None,
            key: None,
            account: None,
        }
    }

    /// The server itself, when it runs its own agents or prepares a push. It may not decide holds.
    ///
    /// # Panics
    ///
    /// Never: the words for roles are names.
    pub fn worker_of_server(tenant: Name) -> Self {
        let worker = Role::Worker.name().parse().expect("a role is a name");
        Self {
            tenant,
            principal: Principal::System,
            key_owner: None,
            roles: Roles([worker].into()),
            user: None,
            new_user: None,
            agents: BTreeSet::new(),
            only_session: None,
            phase: None,
            key: None,
            account: None,
        }
    }

    /// The caller with this API key. Two keys of one person are the same principal.
    pub(crate) fn with_key(key: &ApiKey) -> Self {
        Self {
            tenant: key.tenant.clone(),
            principal: match key.user.or(key.owner) {
                Some(person) => Principal::User(person),
                None => Principal::Key(key.id),
            },
            key_owner: None,
            roles: Roles(key.roles.clone()),
            user: key.user,
            new_user: None,
            agents: key.agents.clone(),
            only_session: None,
            phase: None,
            key: Some(key.secret),
            account: None,
        }
    }

    /// The holder of a read token of a session of this user. `key` is the API key that the token was made with.
    pub(crate) fn with_read_token(
        (tenant, user): (Name, UserId),
        (session, phase): (SessionId, Option<PhaseScope>),
        key: Option<Digest>,
    ) -> Self {
        Self {
            tenant,
            principal: Principal::User(user),
            key_owner: None,
            roles: Roles::default(),
            user: Some(user),
            new_user: None,
            agents: BTreeSet::new(),
            only_session: Some(session),
            phase,
            key,
            account: None,
        }
    }

    /// Whether this is a backend that may act for each of its users.
    pub(crate) fn speaks_for_users(&self) -> bool {
        let is_plain_client = self.roles.names().len() == 1 && self.roles.has(Role::Client);
        self.user.is_none() && is_plain_client
    }

    /// The same backend, acting for one of its users. Only a key with the client role alone may act for
    /// users: with more roles it could pose as several approvers.
    pub(crate) fn for_user(&self, user: UserId) -> Option<Self> {
        let may_act = self.speaks_for_users() || self.user == Some(user);
        let is_owned = self.user.is_none() && matches!(self.principal, Principal::User(_));
        may_act.then(|| Self {
            principal: Principal::User(user),
            key_owner: is_owned.then_some(self.principal).or(self.key_owner),
            user: Some(user),
            ..self.clone()
        })
    }

    /// The caller in a session of this user: a backend that may act for its users acts for this one.
    pub(crate) fn in_session_of(&self, user: UserId) -> Self {
        self.for_user(user).unwrap_or_else(|| self.clone())
    }

    /// Whether the caller has a role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.has(role)
    }

    /// Whether the caller may read every session of the tenant, and traces.
    pub fn reads_all(&self) -> bool {
        self.has(Role::Operator) || self.has(Role::Admin)
    }

    /// Whether the caller may work for this agent.
    pub fn works_for(&self, agent: &Name) -> bool {
        self.has(Role::Worker) && (self.agents.is_empty() || self.agents.contains(agent))
    }

    /// Whether the caller is a worker that enters sessions only by the work of its agents: its key is
    /// bound to agents and has not the client role.
    pub(crate) fn is_confined(&self) -> bool {
        !self.agents.is_empty() && !self.has(Role::Client)
    }

    /// Whether the caller's key is bound to no user, or to this one.
    pub(crate) fn is_open_to(&self, user: UserId) -> bool {
        self.user.is_none_or(|bound| bound == user)
    }

    /// Whether the caller may act for this user as a client.
    pub fn acts_for(&self, user: UserId) -> bool {
        self.has(Role::Client) && self.is_open_to(user)
    }

    /// The caller as the core and the records know it.
    pub fn actor(&self) -> Actor {
        Actor {
            tenant: self.tenant.clone(),
            principal: self.principal,
            roles: self.roles.names().clone(),
            key_owner: self.key_owner,
        }
    }
}
