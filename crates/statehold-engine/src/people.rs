//! Names of people in views. Records, digests and logs have pseudonyms only; a view names people to the readers
//! whom one rule lets see names.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::ids::UserId;
use statehold_core::principal::Principal;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// Whether a caller sees the names of the people who act in a session or decide its holds: callers who may decide
/// the hold in question, and readers of traces. Clients and workers see pseudonyms.
pub(crate) fn sees_names(caller: &Caller, may_decide: bool) -> bool {
    may_decide || caller.reads_all()
}

/// The names of some people, as far as a reader may see them.
#[derive(Debug, Clone, Default)]
pub struct PeopleNames(BTreeMap<UserId, String>);

impl PeopleNames {
    /// The name of a person. The principal itself if it is no person, or its name is erased or hidden from the
    /// reader.
    pub(crate) fn of(&self, principal: &Principal) -> String {
        let name = user_of(principal).and_then(|user| self.0.get(&user));
        name.map_or_else(|| principal.to_string(), Clone::clone)
    }

    /// The names by principal, for pages whose records stay as they are.
    pub(crate) fn by_principal(self) -> BTreeMap<String, String> {
        let names = self.0.into_iter();
        names
            .map(|(user, name)| (Principal::User(user).to_string(), name))
            .collect()
    }
}

/// The person behind a principal.
pub(crate) fn user_of(principal: &Principal) -> Option<UserId> {
    match principal {
        Principal::User(user) => Some(*user),
        Principal::Key(_) | Principal::Local | Principal::System => None,
    }
}

impl Engine {
    /// The names behind principals that a caller reads. Empty for callers who see no names.
    pub(crate) async fn names_for(
        &self,
        caller: &Caller,
        principals: impl IntoIterator<Item = Principal>,
    ) -> Result<PeopleNames, EngineError> {
        if !sees_names(caller, false) {
            return Ok(PeopleNames::default());
        }
        let users = principals.into_iter().filter_map(|one| user_of(&one));
        let users: BTreeSet<UserId> = users.collect();
        if users.is_empty() {
            return Ok(PeopleNames::default());
        }
        Ok(PeopleNames(self.user_names(users).await?))
    }
}
