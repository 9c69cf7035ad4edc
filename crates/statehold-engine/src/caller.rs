//! Who calls: a tenant, a principal, roles, and what the key is bound to.

use std::collections::BTreeSet;

use statehold_core::ids::UserId;
use statehold_core::name::Name;
use statehold_core::principal::{Actor, Principal};
use statehold_store::ApiKey;

/// What a key may do.
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

    /// The word for it.
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

/// The roles somebody holds, with those that only policies know (`role:x`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roles(BTreeSet<Name>);

impl Roles {
    /// Every role of the server.
    ///
    /// # Panics
    ///
    /// Never: the words for roles are names.
    pub fn all() -> Self {
        let names = Role::ALL.map(|role| role.name().parse().expect("a role is a name"));
        Self(names.into())
    }

    /// Whether a role is among them.
    pub fn has(&self, role: Role) -> bool {
        self.0.iter().any(|held| held.as_str() == role.name())
    }

    /// Whether there is a role among them that only policies know.
    pub fn has_own(&self) -> bool {
        let is_known = |name: &Name| Role::ALL.iter().any(|role| role.name() == name.as_str());
        self.0.iter().any(|name| !is_known(name))
    }

    /// The names.
    pub fn names(&self) -> &BTreeSet<Name> {
        &self.0
    }
}

impl From<BTreeSet<Name>> for Roles {
    fn from(names: BTreeSet<Name>) -> Self {
        Self(names)
    }
}

/// Whoever makes a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The isolation wall they live behind.
    pub tenant: Name,
    /// One identity per person or key.
    pub principal: Principal,
    /// What they may do.
    pub roles: Roles,
    /// The only user they act for.
    pub user: Option<UserId>,
    /// The only agents they work for; none means any.
    pub agents: BTreeSet<Name>,
}

impl Caller {
    /// The developer at the loopback of a development server: may do everything.
    pub fn local(tenant: Name) -> Self {
        Self {
            tenant,
            principal: Principal::Local,
            roles: Roles::all(),
            user: None,
            agents: BTreeSet::new(),
        }
    }

    /// The server, where it works for agents of its own, or looks at work on behalf of whoever will do
    /// it. It decides nothing.
    ///
    /// # Panics
    ///
    /// Never: the words for roles are names.
    pub fn worker_of_server(tenant: Name) -> Self {
        let worker = Role::Worker.name().parse().expect("a role is a name");
        Self {
            tenant,
            principal: Principal::System,
            roles: Roles([worker].into()),
            user: None,
            agents: BTreeSet::new(),
        }
    }

    /// Whoever came with this key. Two keys of one user are one principal.
    pub(crate) fn with_key(key: &ApiKey) -> Self {
        Self {
            tenant: key.tenant.clone(),
            principal: match key.user {
                Some(user) => Principal::User(user),
                None => Principal::Key(key.id),
            },
            roles: Roles(key.roles.clone()),
            user: key.user,
            agents: key.agents.clone(),
        }
    }

    /// Whether this is a backend that may act for each of its users.
    pub(crate) fn speaks_for_users(&self) -> bool {
        let is_plain_client = self.roles.names().len() == 1 && self.roles.has(Role::Client);
        self.user.is_none() && is_plain_client
    }

    /// The same backend, acting for one of its users. Only a key that is nothing but a client may
    /// speak for people: with more rights it could be several approvers at once.
    pub(crate) fn for_user(&self, user: UserId) -> Option<Self> {
        let may = self.speaks_for_users() || self.user == Some(user);
        may.then(|| Self {
            principal: Principal::User(user),
            user: Some(user),
            ..self.clone()
        })
    }

    /// Whether a role is held.
    pub fn has(&self, role: Role) -> bool {
        self.roles.has(role)
    }

    /// Whether they may read every session of the tenant, and traces.
    pub fn reads_all(&self) -> bool {
        self.has(Role::Operator) || self.has(Role::Admin)
    }

    /// Whether they may work for this agent.
    pub fn works_for(&self, agent: &Name) -> bool {
        self.has(Role::Worker) && (self.agents.is_empty() || self.agents.contains(agent))
    }

    /// Whether they act for this user as a client.
    pub fn acts_for(&self, user: UserId) -> bool {
        self.has(Role::Client) && self.user.is_none_or(|bound| bound == user)
    }

    /// What the core and the records know of them.
    pub fn actor(&self) -> Actor {
        Actor {
            tenant: self.tenant.clone(),
            principal: self.principal,
            roles: self.roles.names().clone(),
        }
    }
}
