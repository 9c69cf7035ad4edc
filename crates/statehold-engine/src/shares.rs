//! Pools that all callers share, such as open streams or bytes in memory. A caller gets at most a part of a
//! pool, so that others always find room, and operators have a reserve of their own.

use std::collections::HashMap;
use std::sync::Arc;

use statehold_core::digest::Digest;
use statehold_core::ids::UserId;
use statehold_core::principal::Principal;

use crate::caller::Caller;
use crate::locks::Lock;

/// One holder gets at most this part of a pool: a fourth.
const EACH: usize = 4;
/// Operators alone get the last part of a pool: a sixteenth.
const RESERVE: usize = 16;

/// The caller that a share is counted for. A backend that acts for many users is one holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Key(Digest),
    Principal(Principal),
}

/// A pool of units.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    max: usize,
    used: Lock<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    by_holder: HashMap<Holder, usize>,
}

/// Units of a pool. Dropping it gives them back.
#[derive(Debug)]
pub struct Share {
    pool: Arc<Pool>,
    holder: Holder,
    /// How many units all holders may have when this one takes some.
    all_max: usize,
    units: usize,
}

/// Why a pool has no units for a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolFull {
    /// The caller has so many, and may not have more.
    OwnShare(usize),
    /// All callers together have all of them.
    All,
}

impl Shares {
    /// A pool.
    pub fn new(max: usize) -> Self {
        let used = Lock::default();
        Self(Arc::new(Pool { max, used }))
    }

    /// Takes units for a caller.
    ///
    /// # Errors
    ///
    /// If the caller has its share, or all units are taken.
    pub fn take(&self, caller: &Caller, units: usize) -> Result<Share, PoolFull> {
        let holder = match caller.key {
            Some(key) => Holder::Key(key),
            None => Holder::Principal(caller.principal),
        };
        let mut share = self.none_for(holder, caller.reads_all());
        share.resize(units)?;
        Ok(share)
    }

    /// No units yet, for the caller, or for a user whom the server itself serves.
    pub(crate) fn none_for_user(&self, caller: &Caller, user: UserId) -> Share {
        let holder = match (caller.principal, caller.key) {
            (Principal::System, _) => Holder::Principal(Principal::User(user)),
            (_, Some(key)) => Holder::Key(key),
            (principal, None) => Holder::Principal(principal),
        };
        self.none_for(holder, caller.reads_all())
    }

    fn none_for(&self, holder: Holder, is_operator: bool) -> Share {
        let max = self.0.max;
        let reserve = if is_operator { 0 } else { max / RESERVE };
        Share {
            pool: Arc::clone(&self.0),
            holder,
            all_max: max - reserve,
            units: 0,
        }
    }
}

impl Share {
    /// Takes further units, or gives some back.
    ///
    /// # Errors
    ///
    /// If the caller would have more than its share, or all units are taken. Nothing has changed then.
    pub(crate) fn resize(&mut self, units: usize) -> Result<(), PoolFull> {
        let mut used = self.pool.used.lock();
        let own = used.by_holder.get(&self.holder).copied().unwrap_or(0);
        let (all, own) = (used.all - self.units, own - self.units);
        // The developer of a development server has it alone.
        let own_max = match self.holder {
            Holder::Principal(Principal::Local) => self.pool.max,
            Holder::Principal(_) | Holder::Key(_) => (self.pool.max / EACH).max(1),
        };
        if units > self.units && own + units > own_max {
            return Err(PoolFull::OwnShare(own));
        }
        if units > self.units && all + units > self.all_max {
            return Err(PoolFull::All);
        }
        used.all = all + units;
        if own + units == 0 {
            used.by_holder.remove(&self.holder);
        } else {
            used.by_holder.insert(self.holder, own + units);
        }
        self.units = units;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0).expect("giving back is always possible");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::{Role, Roles};

    fn caller(key: &str, role: Role) -> Caller {
        let role = role.name().parse().expect("a role is a name");
        Caller {
            key: Some(Digest::sha256(key.as_bytes())),
            roles: Roles::from(
                [role]
                    .into_iter()
                    .collect::<std::collections::BTreeSet<_>>(),
            ),
            ..Caller::worker_of_server("default".parse().expect("a name"))
        }
    }

    #[test]
    fn a_key_gets_its_share_and_operators_have_a_reserve() {
        let pool = Shares::new(64);
        let mut taken = Vec::new();
        for key in ["a", "b", "c", "d"] {
            let who = caller(key, Role::Client);
            while let Ok(share) = pool.take(&who, 1) {
                taken.push(share);
            }
        }
        // Three whole shares of 16, and what is left without the reserve of 4.
        assert_eq!(taken.len(), 60);
        let stranger = caller("e", Role::Client);
        assert_eq!(pool.take(&stranger, 1).err(), Some(PoolFull::All));
        let own = caller("a", Role::Client);
        drop(taken.pop());
        assert_eq!(pool.take(&own, 1).err(), Some(PoolFull::OwnShare(16)));
        drop(pool.take(&stranger, 1).expect("a unit is free"));
        let operator = caller("o", Role::Operator);
        let reserved = [(); 5].map(|()| pool.take(&operator, 1).expect("a reserve"));
        assert_eq!(pool.take(&operator, 1).err(), Some(PoolFull::All));
        drop(reserved);
    }

    #[test]
    fn a_backend_has_one_share_for_all_its_users() {
        let pool = Shares::new(8);
        let backend = caller("backend", Role::Client);
        let for_user = |n| Caller {
            principal: Principal::User(UserId::from_uuid(uuid::Uuid::from_u128(n))),
            ..backend.clone()
        };
        let _first = pool.take(&for_user(1), 2).expect("its share");
        assert_eq!(
            pool.take(&for_user(2), 1).err(),
            Some(PoolFull::OwnShare(2))
        );
    }
}
