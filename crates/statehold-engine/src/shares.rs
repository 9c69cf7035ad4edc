//! Pools that all callers share, such as open streams or bytes in memory. A caller gets at most a part of a
//! pool, so that others always find room, and operators have a reserve of their own.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use statehold_core::digest::Digest;
use statehold_core::ids::UserId;
use statehold_core::principal::Principal;
use tokio::sync::oneshot;

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
    /// The tokens of all phases: a tool server may have those of many users.
    Phases,
}

impl Holder {
    fn of(caller: &Caller) -> Self {
        match caller.key {
            _ if caller.phase.is_some() => Self::Phases,
            Some(key) => Self::Key(key),
            None => Self::Principal(caller.principal),
        }
    }
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
    /// The callers that wait for units, in the order of their arrival.
    waiting: Vec<Waiting>,
    /// How often units were granted, and the number of the last grant of each holder, while some wait.
    grants: u64,
    last_grants: HashMap<Holder, u64>,
}

#[derive(Debug)]
struct Waiting {
    holder: Holder,
    all_max: usize,
    units: usize,
    granted: oneshot::Sender<Share>,
}

/// Units that a caller waits for. Dropping it gives up the place in the line.
pub type PendingShare = oneshot::Receiver<Share>;

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
        let mut share = self.none_for(Holder::of(caller), caller.reads_all());
        share.resize(units)?;
        Ok(share)
    }

    /// Waits in line for units. A caller that wants more than it may ever have gets all that it may have.
    ///
    /// Operators come first. Then callers get units in turn: first the one that has got none for the longest time,
    /// however many of its calls wait. A caller whose share is used up does not hold up others.
    pub fn line_up(&self, caller: &Caller, units: usize) -> PendingShare {
        let none = self.none_for(Holder::of(caller), caller.reads_all());
        let (granted, share) = oneshot::channel();
        let waiting = Waiting {
            holder: none.holder,
            all_max: none.all_max,
            units: units.min(self.0.own_max(none.holder)).min(none.all_max),
            granted,
        };
        self.0.used.lock().waiting.push(waiting);
        self.0.grant();
        share
    }

    /// No units yet, for the caller, or for a user whom the server itself serves.
    pub(crate) fn none_for_user(&self, caller: &Caller, user: UserId) -> Share {
        let holder = match caller.principal {
            Principal::System => Holder::Principal(Principal::User(user)),
            _ => Holder::of(caller),
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

impl Pool {
    /// The most units that one holder may have.
    fn own_max(&self, holder: Holder) -> usize {
        match holder {
            // The developer of a development server has it alone.
            Holder::Principal(Principal::Local) => self.max,
            Holder::Principal(_) | Holder::Key(_) | Holder::Phases => (self.max / EACH).max(1),
        }
    }

    /// Hands free units to the callers that wait for some.
    fn grant(self: &Arc<Self>) {
        let mut used = self.used.lock();
        used.waiting.retain(|waiting| !waiting.granted.is_closed());
        let mut granted = Vec::new();
        while let Some(next) = self.next(&used) {
            let next = used.waiting.remove(next);
            used.all += next.units;
            *used.by_holder.entry(next.holder).or_default() += next.units;
            used.grants += 1;
            let grant = used.grants;
            used.last_grants.insert(next.holder, grant);
            let share = Share {
                pool: Arc::clone(self),
                holder: next.holder,
                all_max: next.all_max,
                units: next.units,
            };
            granted.push((next.granted, share));
        }
        if used.waiting.is_empty() {
            used.last_grants.clear();
        }
        drop(used);
        for (caller, share) in granted {
            // The share of a caller that has gone away is given back.
            drop(caller.send(share));
        }
    }

    /// The place in the line of the caller whose turn it is, if there are enough units for it.
    fn next(&self, used: &Used) -> Option<usize> {
        let own = |waiting: &Waiting| used.by_holder.get(&waiting.holder).copied().unwrap_or(0);
        let last_grant = |waiting: &Waiting| used.last_grants.get(&waiting.holder);
        let in_line = used.waiting.iter().enumerate();
        let (place, next) = in_line
            .filter(|(_, waiting)| own(waiting) + waiting.units <= self.own_max(waiting.holder))
            .min_by_key(|(place, waiting)| {
                (Reverse(waiting.all_max), last_grant(waiting), *place)
            })?;
        (used.all + next.units <= next.all_max).then_some(place)
    }
}

impl Share {
    /// How many units it has.
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// Whether a caller waits for units of the pool.
    pub fn is_waited_for(&self) -> bool {
        let used = self.pool.used.lock();
        let mut waiting = used.waiting.iter();
        waiting.any(|waiting| !waiting.granted.is_closed())
    }

    /// Gives back all units but `units`.
    ///
    /// # Panics
    ///
    /// Never: giving back is always possible.
    pub fn shrink(&mut self, units: usize) {
        let fewer = self.units.min(units);
        self.resize(fewer).expect("giving back is always possible");
    }

    /// Takes further units, or gives some back.
    ///
    /// # Errors
    ///
    /// If the caller would have more than its share, or all units are taken. Nothing has changed then.
    pub(crate) fn resize(&mut self, units: usize) -> Result<(), PoolFull> {
        let mut used = self.pool.used.lock();
        let own = used.by_holder.get(&self.holder).copied().unwrap_or(0);
        let (all, own) = (used.all - self.units, own - self.units);
        if units > self.units && own + units > self.pool.own_max(self.holder) {
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
        let is_waited_for = !used.waiting.is_empty();
        drop(used);
        if is_waited_for {
            self.pool.grant();
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
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
    fn units_go_to_those_who_wait_in_turn() {
        let pool = Shares::new(64);
        let keys = ["ann", "bob", "cat", "dan", "eve"];
        let [ann, bob, cat, dan, eve] = keys.map(|key| caller(key, Role::Client));
        let take = |who: &Caller, units| pool.line_up(who, units).try_recv();
        let first = take(&ann, 100).expect("all that it may have");
        assert_eq!(first.units, 16);
        let mut over_share = pool.line_up(&ann, 1);
        let held = [(&bob, 16), (&cat, 16), (&dan, 10)].map(|(who, units)| take(who, units));
        let held = held.map(|share| share.expect("there are enough"));

        // 58 of the 60 units for clients are taken.
        let mut more = pool.line_up(&dan, 4);
        let mut gone = pool.line_up(&eve, 4);
        gone.close();
        let mut first_ever = pool.line_up(&eve, 4);
        let mut small = pool.line_up(&dan, 1);
        for waiting in [&mut more, &mut first_ever, &mut small, &mut over_share] {
            assert!(waiting.try_recv().is_err(), "a small one does not overtake");
        }
        let operator = caller("o", Role::Operator);
        let reserved = take(&operator, 4).expect("a reserve");
        drop(reserved);

        let [mut of_bob, ..] = held;
        of_bob.shrink(13);
        let _first_ever = first_ever.try_recv().expect("it had none yet");
        assert!(more.try_recv().is_err(), "one unit is left");
        drop(first);
        let _over_share = over_share.try_recv().expect("it got some longest ago");
        let _more = more
            .try_recv()
            .expect("it waited longer than the small one");
        let _small = small.try_recv().expect("there are enough");
        assert!(!of_bob.is_waited_for());
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
