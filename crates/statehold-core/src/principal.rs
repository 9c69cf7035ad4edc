//! Who acts, and who may decide a hold.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::hold::{DecideBy, Hold, Right, WhyNot};
use crate::ids::{IdError, KeyId, UserId};
use crate::mutant::{self, Mutant};
use crate::name::{Name, serde_as_text};

/// Identity of an actor. Records name people only in this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// The developer at the loopback of a development server.
    Local,
    /// The server itself: timers, recovery.
    System,
    /// An API key that is not bound to a user.
    Key(KeyId),
    /// A user. All API keys of one user stand for the same principal.
    User(UserId),
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::System => f.write_str("system"),
            Self::Key(key) => key.fmt(f),
            Self::User(user) => user.fmt(f),
        }
    }
}

impl FromStr for Principal {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text {
            "local" => Ok(Self::Local),
            "system" => Ok(Self::System),
            _ if text.starts_with(KeyId::PREFIX) => text.parse().map(Self::Key),
            _ => text.parse().map(Self::User),
        }
    }
}

serde_as_text!(Principal);

/// The sender of a command: tenant, principal and roles at that moment.
///
/// The server checks general rights. The core only checks who may decide a hold, because that right
/// is part of the meaning of an approval.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Actor {
    /// The isolation wall this actor lives behind.
    pub tenant: Name,
    /// One identity per person: two keys of one user are one principal.
    pub principal: Principal,
    /// The roles held, for example `approver`.
    pub roles: BTreeSet<Name>,
    /// The owner of the backend's key, if a backend acts for the principal.
    pub key_owner: Option<Principal>,
}

/// The role that may decide approvals when a policy names no other.
pub const APPROVER: &str = "approver";

impl Actor {
    /// The server itself, inside one tenant.
    pub fn system(tenant: Name) -> Self {
        Self {
            tenant,
            principal: Principal::System,
            roles: BTreeSet::new(),
            key_owner: None,
        }
    }

    fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|held| held.as_str() == role)
    }

    /// The right by which this actor may decide `hold`, in a session that belongs to `owner`.
    ///
    /// Where the policy says `user`, the session's user decides; everywhere else neither they do, nor the
    /// one who opened the hold, nor the people who started its request or one above it. The developer at a
    /// development server may do everything.
    ///
    /// # Errors
    ///
    /// Why they may not.
    ///
    /// # Panics
    ///
    /// Never: the word for approvers is a name.
    pub fn right_to_decide(&self, hold: &Hold, owner: UserId) -> Result<Right, WhyNot> {
        match self.principal {
            Principal::Local => return Ok(Right::Local),
            Principal::System => return Err(WhyNot::Server),
            Principal::Key(_) | Principal::User(_) => {}
        }
        if mutant::is_on(Mutant::RequesterDecides) {
            return Ok(Right::Role);
        }
        let is_owner = self.principal == Principal::User(owner);
        let role = match &hold.decide_by {
            DecideBy::User if is_owner => return Ok(Right::User),
            DecideBy::User | DecideBy::Other => APPROVER.parse().expect("approver is a name"),
            DecideBy::Role(role) => role.clone(),
        };
        if is_owner {
            Err(WhyNot::OwnSession)
        } else if self.principal == hold.opened_by {
            Err(WhyNot::OwnHold)
        } else if hold.starters.contains(&self.principal) && !mutant::is_on(Mutant::StarterDecides)
        {
            Err(WhyNot::OwnRequest)
        } else if self.has_role(role.as_str()) {
            Ok(Right::Role)
        } else {
            Err(WhyNot::NeedsRole(role))
        }
    }
}
