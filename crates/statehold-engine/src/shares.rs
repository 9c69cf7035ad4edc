//! Pools that all callers share, such as open streams or bytes in memory. A caller gets at most a part of a
//! pool, so that others always find room, and operators have a reserve of their own.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use statehold_core::digest::Digest;
use statehold_core::ids::UserId;
use statehold_core::principal::Principal;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};

use crate::caller::Caller;
use crate::locks::Lock;

/// One holder gets at most this part of a pool: a fourth.
const EACH: usize = 4;
/// An API key gets at most this part of a pool for all that the server does for its users, its own calls included: a
/// half. One backend with one key is the usual installation.
const EACH_ACCOUNT: usize = 2;
/// Operators alone get the last part of a pool: a sixteenth.
const RESERVE: usize = 16;

/// The caller that a share is counted for. A backend that acts for many users is one holder in its calls; in the work
/// that the server does for them, each of its users is one, and its key bounds them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    own: Party,
    /// The API key that all this is done for.
    account: Option<Digest>,
    is_operator: bool,
}

/// One of the parties that units are counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    Key(Digest),
    Principal(Principal),
    /// The tokens of all phases: a tool server may have those of many users.
    Phases,
    /// An API key with all its users.
    Account(Digest),
}

impl Holder {
    /// A caller.
    pub(crate) fn of(caller: &Caller) -> Self {
        let key = caller.key.or(caller.account);
        let (own, account) = match key {
            _ if caller.phase.is_some() => (Party::Phases, None),
            Some(key) => (Party::Key(key), Some(key)),
            None => (Party::Principal(caller.principal), None),
        };
        Self {
            own,
            account,
            is_operator: caller.reads_all(),
        }
    }

    /// A user whom the server itself serves.
    pub(crate) fn of_user(user: UserId) -> Self {
        Self {
            own: Party::Principal(Principal::User(user)),
            account: None,
            is_operator: false,
        }
    }

    /// A user whom the server itself serves because this caller began it. All stateless callers are one user, so each
    /// of their keys counts alone.
    pub(crate) fn of_user_of(user: UserId, caller: &Caller) -> Self {
        if caller.key.is_none() && caller.account.is_some() {
            return Self {
                is_operator: false,
                ..Self::of(caller)
            };
        }
        Self {
            account: caller.key,
            ..Self::of_user(user)
        }
    }

    /// The API key that all this is done for.
    pub(crate) fn account(&self) -> Option<Digest> {
        self.account
    }

    fn parties(&self) -> impl Iterator<Item = Party> + use<> {
        let account = self.account.map(Party::Account);
        [Some(self.own), account].into_iter().flatten()
    }

    /// The server itself.
    pub(crate) fn of_server() -> Self {
        Self {
            own: Party::Principal(Principal::System),
            account: None,
            is_operator: false,
        }
    }

    /// The party whose turn it is when several wait: a key with many users is one.
    pub(crate) fn in_turn(&self) -> Party {
        self.account.map_or(self.own, Party::Account)
    }
}

/// A pool of units.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    max: usize,
    /// The most units of one holder, and of one key with all its users.
    each: usize,
    each_account: usize,
    /// The units for operators alone.
    reserve: usize,
    used: Lock<Used>,
    /// Notified when units are given back.
    given_back: Notify,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    by_party: HashMap<Party, usize>,
    /// The callers that wait for units, in the order of their arrival.
    waiting: Vec<Waiting>,
    /// How often units were granted, and the number of the last grant of each party, while some wait.
    grants: u64,
    last_grants: HashMap<Party, u64>,
}

impl Used {
    fn by(&self, party: Party) -> usize {
        self.by_party.get(&party).copied().unwrap_or(0)
    }

    /// Changes the units of a holder from `before` to `now`.
    fn set(&mut self, holder: &Holder, before: usize, now: usize) {
        self.all = self.all - before + now;
        for party in holder.parties() {
            let units = self.by(party) - before + now;
            if units == 0 {
                self.by_party.remove(&party);
            } else {
                self.by_party.insert(party, units);
            }
        }
    }
}

#[derive(Debug)]
struct Waiting {
    holder: Holder,
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
    units: usize,
}

/// Units that were given back.
#[derive(Debug)]
pub struct ReleasedShare {
    pool: Shares,
    holder: Holder,
    units: usize,
}

impl ReleasedShare {
    /// Waits in line for as many units again.
    pub fn line_up(self) -> PendingShare {
        self.pool.line_up_for(self.holder, self.units)
    }
}

/// Why a pool has no units for a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolFull {
    /// The caller, or its key with all its users, has so many, and may not have more.
    OwnShare(usize),
    /// All callers together have all of them.
    All,
}

impl Shares {
    /// A pool.
    pub fn new(max: usize) -> Self {
        Self::of(max, [max / EACH, max / EACH_ACCOUNT], max / RESERVE)
    }

    /// A pool of turns, which callers get in turn. One with many calls may have all of them while no other waits; of a
    /// large pool a sixteenth is left for the others.
    pub fn of_turns(max: usize) -> Self {
        let each = max - max / RESERVE;
        Self::of(max, [each, each], 0)
    }

    fn of(max: usize, [each, each_account]: [usize; 2], reserve: usize) -> Self {
        let used = Lock::default();
        Self(Arc::new(Pool {
            max,
            each: each.max(1),
            each_account: each_account.max(1),
            reserve,
            used,
            given_back: Notify::new(),
        }))
    }

    /// Takes units for a caller.
    ///
    /// # Errors
    ///
    /// If the caller has its share, or all units are taken.
    pub fn take(&self, caller: &Caller, units: usize) -> Result<Share, PoolFull> {
        let mut share = self.none_for(Holder::of(caller));
        share.resize(units)?;
        Ok(share)
    }

    /// Waits in line for units. A caller that wants more than it may ever have gets all that it may have.
    ///
    /// Operators come first. Then callers get units in turn: first the one that has got none for the longest time,
    /// however many of its calls wait. A caller whose share is used up does not hold up others.
    pub fn line_up(&self, caller: &Caller, units: usize) -> PendingShare {
        self.line_up_for(Holder::of(caller), units)
    }

    /// Waits in line for units, like [`Shares::line_up`].
    pub(crate) fn line_up_for(&self, holder: Holder, units: usize) -> PendingShare {
        let (granted, share) = oneshot::channel();
        let waiting = Waiting {
            holder,
            units: units.min(self.0.holder_max(&holder)),
            granted,
        };
        self.0.used.lock().waiting.push(waiting);
        self.0.grant();
        share
    }

    /// Takes units, like [`Shares::take`].
    pub(crate) fn take_for(&self, holder: Holder, units: usize) -> Result<Share, PoolFull> {
        let mut share = self.none_for(holder);
        share.resize(units)?;
        Ok(share)
    }

    /// How many units are free.
    pub fn free(&self) -> usize {
        self.0.max - self.0.used.lock().all
    }

    /// How many units a party has.
    pub(crate) fn used_by(&self, party: Party) -> usize {
        self.0.used.lock().by(party)
    }

    /// Resolves when units are given back after this call.
    pub(crate) fn given_back(&self) -> Notified<'_> {
        self.0.given_back.notified()
    }

    /// No units yet.
    pub(crate) fn none_for(&self, holder: Holder) -> Share {
        Share {
            pool: Arc::clone(&self.0),
            holder,
            units: 0,
        }
    }
}

impl Pool {
    /// The most units that one party may have.
    fn party_max(&self, party: Party) -> usize {
        match party {
            // The developer of a development server has it alone.
            Party::Principal(Principal::Local) => self.max,
            Party::Principal(_) | Party::Key(_) | Party::Phases => self.each,
            Party::Account(_) => self.each_account,
        }
    }

    /// The most units that all may have when this holder takes some.
    fn all_max(&self, holder: &Holder) -> usize {
        if holder.is_operator {
            self.max
        } else {
            self.max - self.reserve
        }
    }

    /// The most units that a holder may ever have.
    fn holder_max(&self, holder: &Holder) -> usize {
        let all_max = self.all_max(holder);
        let of_parties = holder.parties().map(|party| self.party_max(party));
        of_parties.fold(all_max, usize::min)
    }

    /// Hands free units to the callers that wait for some.
    fn grant(self: &Arc<Self>) {
        let mut used = self.used.lock();
        used.waiting.retain(|waiting| !waiting.granted.is_closed());
        let mut granted = Vec::new();
        while let Some(next) = self.next(&used) {
            let next = used.waiting.remove(next);
            used.set(&next.holder, 0, next.units);
            used.grants += 1;
            let grant = used.grants;
            used.last_grants.insert(next.holder.in_turn(), grant);
            let share = Share {
                pool: Arc::clone(self),
                holder: next.holder,
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
        let has_room = |waiting: &Waiting| {
            let mut parties = waiting.holder.parties();
            parties.all(|party| used.by(party) + waiting.units <= self.party_max(party))
        };
        let last_grant = |waiting: &Waiting| used.last_grants.get(&waiting.holder.in_turn());
        let in_line = used.waiting.iter().enumerate();
        let (place, next) = in_line
            .filter(|(_, waiting)| has_room(waiting))
            .min_by_key(|(place, waiting)| {
                let is_operator = Reverse(waiting.holder.is_operator);
                (is_operator, last_grant(waiting), *place)
            })?;
        (used.all + next.units <= self.all_max(&next.holder)).then_some(place)
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

    /// Gives back all units, to line up for as many again.
    pub fn release(self) -> ReleasedShare {
        ReleasedShare {
            pool: Shares(Arc::clone(&self.pool)),
            holder: self.holder,
            units: self.units,
        }
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
        if units > self.units {
            for party in self.holder.parties() {
                let others = used.by(party) - self.units;
                if others + units > self.pool.party_max(party) {
                    return Err(PoolFull::OwnShare(others));
                }
            }
            if used.all - self.units + units > self.pool.all_max(&self.holder) {
                return Err(PoolFull::All);
            }
        }
        let is_less = units < self.units;
        used.set(&self.holder, self.units, units);
        self.units = units;
        let is_waited_for = !used.waiting.is_empty();
        drop(used);
        if is_less {
            self.pool.given_back.notify_waiters();
        }
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

    fn user(n: u128) -> UserId {
        UserId::from_uuid(uuid::Uuid::from_u128(n))
    }

    #[test]
    fn the_users_of_one_key_have_half_of_a_pool_together_and_those_of_another_the_rest() {
        let pool = Shares::new(64);
        let [one, other] = ["one", "other"].map(|key| caller(key, Role::Client));
        let mut taken = Vec::new();
        for n in 0..4 {
            let mut share = pool.none_for(Holder::of_user_of(user(n), &one));
            while share.resize(share.units + 1).is_ok() {}
            taken.push(share);
        }
        let units: Vec<usize> = taken.iter().map(|share| share.units).collect();
        assert_eq!(units, [16, 16, 0, 0], "a fourth each, a half together");
        assert_eq!(pool.take(&one, 1).err(), Some(PoolFull::OwnShare(32)));
        let mut of_other = pool.none_for(Holder::of_user_of(user(5), &other));
        assert_eq!(of_other.resize(16), Ok(()));
        // The same user through another key has one share still.
        let mut again = pool.none_for(Holder::of_user_of(user(0), &other));
        assert_eq!(again.resize(1), Err(PoolFull::OwnShare(16)));
        drop(taken);
        assert_eq!(again.resize(1), Ok(()));
    }

    #[test]
    fn each_key_of_stateless_callers_counts_alone() {
        let pool = Shares::new(64);
        let stateless = |key: &str| Caller {
            principal: Principal::User(user(1)),
            account: Some(Digest::sha256(key.as_bytes())),
            key: None,
            ..caller(key, Role::Client)
        };
        let mut first = pool.none_for(Holder::of_user_of(user(1), &stateless("one")));
        assert_eq!(first.resize(16), Ok(()));
        let mut second = pool.none_for(Holder::of_user_of(user(1), &stateless("two")));
        assert_eq!(second.resize(16), Ok(()), "another key has its own share");
        let mut more = pool.none_for(Holder::of_user_of(user(1), &stateless("one")));
        assert_eq!(more.resize(1), Err(PoolFull::OwnShare(16)));
    }

    #[test]
    fn turns_go_to_the_keys_that_wait_in_turn_and_some_of_many_are_left_for_others() {
        let [busy, other] = ["busy", "other"].map(|key| caller(key, Role::Client));
        let few = Shares::of_turns(4);
        let mut of_busy: Vec<_> = (0..6).map(|_| few.line_up(&busy, 1)).collect();
        let mut of_other = few.line_up(&other, 1);
        let granted = |pending: &mut PendingShare| pending.try_recv().ok();
        let mut running: Vec<Share> = of_busy.iter_mut().filter_map(granted).collect();
        assert_eq!((running.len(), of_other.try_recv().is_ok()), (4, false));
        // The busy key has waited longer. Then it is the turn of the other one.
        running.truncate(2);
        let of_other = of_other.try_recv();
        of_other.expect("it comes before the sixth of the busy key");

        let many = Shares::of_turns(32);
        let running: Vec<_> = (0..32).map(|_| many.take(&busy, 1).ok()).collect();
        assert_eq!(running.iter().flatten().count(), 30);
        many.take(&other, 2).expect("they are left for others");
    }

    #[test]
    fn a_backend_has_one_share_for_all_its_users() {
        let pool = Shares::new(8);
        let backend = caller("backend", Role::Client);
        let for_user = |n| Caller {
            principal: Principal::User(user(n)),
            ..backend.clone()
        };
        let _first = pool.take(&for_user(1), 2).expect("its share");
        assert_eq!(
            pool.take(&for_user(2), 1).err(),
            Some(PoolFull::OwnShare(2))
        );
    }
}
