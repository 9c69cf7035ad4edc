//! How many answers are kept for idempotency keys, in all and for each caller. The store keeps them for a day; this
//! counts them by the hour, so that one caller with a key for each of its calls leaves room for the keys of others.
//! The counts of callers begin anew with the process, and that of all answers does not.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use statehold_core::principal::Principal;
use statehold_core::time::Timestamp;

use crate::caller::Caller;
use crate::error::EngineError;
use crate::locks::Lock;
use crate::shares::Holder;

/// The maximum number of answers kept. Beyond it the engine refuses new keys until old answers expire.
const KEPT_MAX: u64 = 5_000_000;
/// One caller gets at most this part of them: a fourth.
const EACH: u64 = 4;
/// Operators alone get the last part: a sixteenth.
const RESERVE: u64 = 16;

const HOUR_MICROS: i64 = 3_600 * 1_000_000;
/// The hours in which a kept answer may have been given: those of a day, and the one that has just begun.
const HOURS: i64 = 25;

/// The answers that are kept, as far as this process knows.
#[derive(Debug)]
pub(crate) struct KeptAnswers {
    max: u64,
    all: AtomicU64,
    by_holder: Lock<HolderCounts>,
}

#[derive(Debug, Default)]
struct HolderCounts {
    counts: HashMap<Holder, HourlyCounts>,
    /// The hour in which old counts were dropped last.
    swept: i64,
}

/// Hours since 1970 with the answers that were given in them, oldest first.
type HourlyCounts = VecDeque<(i64, u64)>;

impl KeptAnswers {
    /// So many are kept when the process begins.
    pub(crate) fn new(all: u64) -> Self {
        Self::with_max(all, KEPT_MAX)
    }

    fn with_max(all: u64, max: u64) -> Self {
        Self {
            max,
            all: AtomicU64::new(all),
            by_holder: Lock::default(),
        }
    }

    /// Refuses another answer of a caller that has its share, or if all are taken.
    pub(crate) fn require_room(&self, caller: &Caller, now: Timestamp) -> Result<(), EngineError> {
        let reserve = if caller.reads_all() {
            0
        } else {
            self.max / RESERVE
        };
        if self.all.load(Ordering::Relaxed) >= self.max - reserve {
            return Err(EngineError::TooMany(
                "too many idempotency keys were used in a day; try again later, or without one",
            ));
        }
        let is_shared = !matches!(caller.principal, Principal::System | Principal::Local);
        if is_shared && self.of(Holder::of(caller), now) >= self.max / EACH {
            return Err(EngineError::TooMany(
                "this key has used as many idempotency keys in a day as one key may; try again later, or without one",
            ));
        }
        Ok(())
    }

    /// The answers that a holder was given in the last day.
    fn of(&self, holder: Holder, now: Timestamp) -> u64 {
        let first = hour_of(now) - HOURS;
        let by_holder = self.by_holder.lock();
        let hours = by_holder.counts.get(&holder).into_iter().flatten();
        let counts = hours.filter(|(hour, _)| *hour > first);
        counts.map(|(_, count)| count).sum()
    }

    /// Counts an answer that is kept now.
    pub(crate) fn note(&self, holder: Holder, now: Timestamp) {
        self.all.fetch_add(1, Ordering::Relaxed);
        let hour = hour_of(now);
        let mut by_holder = self.by_holder.lock();
        if by_holder.swept < hour {
            by_holder.swept = hour;
            by_holder.counts.retain(|_, counts| {
                counts.retain(|(counted, _)| *counted > hour - HOURS);
                !counts.is_empty()
            });
        }
        let counts = by_holder.counts.entry(holder).or_default();
        match counts.back_mut() {
            // A clock that goes back counts for the later hour.
            Some((last, count)) if *last >= hour => *count += 1,
            _ => counts.push_back((hour, 1)),
        }
    }

    /// The store has forgotten so many.
    pub(crate) fn forget(&self, count: usize) {
        let forget = |kept: u64| Some(kept.saturating_sub(count as u64));
        let forgotten = self
            .all
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, forget);
        debug_assert!(forgotten.is_ok(), "it always has a result");
    }
}

fn hour_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(HOUR_MICROS)
}

#[cfg(test)]
mod tests {
    use statehold_core::digest::Digest;

    use super::super::idempotency::KEPT_MS;
    use super::*;
    use crate::caller::{Role, Roles};

    fn caller(key: &str, role: Role) -> Caller {
        let role = role.name().parse().expect("a role is a name");
        Caller {
            key: Some(Digest::sha256(key.as_bytes())),
            roles: Roles::from(std::collections::BTreeSet::from([role])),
            principal: Principal::Key(statehold_core::ids::KeyId::from_uuid(
                uuid::Uuid::from_u128(1),
            )),
            ..Caller::worker_of_server("default".parse().expect("a name"))
        }
    }

    #[test]
    fn a_key_keeps_a_fourth_of_the_answers_for_a_day_and_operators_have_a_reserve() {
        let kept = KeptAnswers::with_max(0, 64);
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        let (eve, ann) = (caller("eve", Role::Client), caller("ann", Role::Client));
        let keep = |who: &Caller, now: Timestamp| {
            let room = kept.require_room(who, now);
            if room.is_ok() {
                kept.note(Holder::of(who), now);
            }
            room.is_ok()
        };
        let of_eve = (0..30).filter(|minutes| keep(&eve, start.plus_ms(minutes * 60_000)));
        assert_eq!(of_eve.count(), 16);
        assert!(keep(&ann, start), "another key goes on");
        let half_a_day = start.plus_ms(KEPT_MS / 2);
        assert!(!keep(&eve, half_a_day));
        let next_day = start.plus_ms(KEPT_MS + 2 * 3_600_000);
        assert!(keep(&eve, next_day), "its old ones have expired");

        for n in 0..42 {
            assert!(keep(&caller(&format!("key {n}"), Role::Client), next_day));
        }
        assert!(!keep(&ann, next_day), "all but the reserve are kept");
        assert!(keep(&caller("o", Role::Operator), next_day));
        kept.forget(17);
        assert!(keep(&ann, next_day), "the store has forgotten some");
        assert_eq!(
            kept.by_holder.lock().counts.len(),
            45,
            "of the last day alone"
        );
    }
}
