//! Ports of the engine besides the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use statehold_core::digest::PayloadKey;
use statehold_core::ids::{HoldId, RequestId};
use statehold_core::time::Timestamp;
use statehold_store::hold_keys::HoldKey;
use statehold_store::key_ring::KeyRing;
use statehold_store::keys::{KeyOwner, KnownKeys, UserKey};
use statehold_store::seal::{SealKey, SealKeyId, SealKeys};
use statehold_store::{BoxError, StoreError};

pub use statehold_store::hold_keys::HoldKeys;
pub use statehold_store::keys::PayloadKeys;

use crate::locks::Lock;

/// The source of time.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock. It may step; commit times never go back.
    fn now(&self) -> Timestamp;

    /// The steady clock: how much time has passed since some moment. It never steps.
    fn steady(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the one clock that everybody is handed"
        )]
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since.map_or(0, |since| since.as_micros());
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

/// The system clock with an offset that can change while it runs. For tests in which time passes or a
/// clock steps; never for production.
#[derive(Debug, Default)]
pub struct OffsetClock {
    offset_seconds: AtomicI64,
}

impl OffsetClock {
    /// The largest offset from the system clock: a hundred years.
    pub const OFFSET_SECONDS_MAX: i64 = 100 * 366 * 24 * 3_600;

    /// A clock that is `offset_seconds` ahead, or behind if negative; at most a hundred years.
    pub fn new(offset_seconds: i64) -> Self {
        let most = Self::OFFSET_SECONDS_MAX;
        Self {
            offset_seconds: offset_seconds.clamp(-most, most).into(),
        }
    }

    /// Adds to the offset and returns the new offset, limited to a hundred years either way.
    pub fn step(&self, seconds: i64) -> i64 {
        let most = Self::OFFSET_SECONDS_MAX;
        let moved = |offset: i64| offset.saturating_add(seconds).clamp(-most, most);
        let before = self
            .offset_seconds
            .update(Ordering::SeqCst, Ordering::SeqCst, moved);
        moved(before)
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> Timestamp {
        let offset = self.offset_seconds.load(Ordering::SeqCst);
        let micros = SystemClock.now().as_micros();
        Timestamp::from_micros(micros.saturating_add(offset.saturating_mul(1_000_000)))
    }
}

/// Keys in memory, for stores in memory. Nothing is sealed there.
#[derive(Debug)]
pub struct MemoryKeys {
    keys: Lock<BTreeMap<KeyOwner, PayloadKey>>,
    /// Owners who get no new key, because theirs was deleted.
    deleted: Lock<BTreeSet<KeyOwner>>,
    ring: Arc<KeyRing>,
}

impl Default for MemoryKeys {
    fn default() -> Self {
        Self {
            keys: Lock::default(),
            deleted: Lock::default(),
            ring: Arc::new(KeyRing::in_memory().expect("the system has a random source")),
        }
    }
}

impl SealKeys for MemoryKeys {
    fn seal_key(&self, _id: SealKeyId) -> Option<Arc<SealKey>> {
        None
    }

    fn key_of(&self, _owner: &KeyOwner) -> Option<Arc<SealKey>> {
        None
    }

    fn seals(&self) -> bool {
        false
    }
}

impl KnownKeys for MemoryKeys {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        self.keys.lock().get(owner).cloned()
    }

    /// Keys in memory never change, so all data was made under the current key.
    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        self.get(owner).map(|_| Timestamp::from_micros(0))
    }
}

impl PayloadKeys for MemoryKeys {
    fn ring(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring)
    }

    fn rotate_ring(&self) -> Result<(), StoreError> {
        self.ring.rotate().map(drop)
    }

    fn delete(&self, owner: &KeyOwner) -> Result<bool, StoreError> {
        self.deleted.lock().insert(owner.clone());
        Ok(self.keys.lock().remove(owner).is_some())
    }

    fn keep(&self, owner: &KeyOwner, fresh: &UserKey) -> Result<PayloadKey, StoreError> {
        let mut keys = self.keys.lock();
        if !keys.contains_key(owner) && self.deleted.lock().contains(owner) {
            let why = format!("the key of {owner} was deleted");
            return Err(StoreError::Unavailable(why.into()));
        }
        let kept = keys.entry(owner.clone());
        Ok(kept.or_insert_with(|| fresh.key().clone()).clone())
    }
}

/// Hold keys in memory, for stores in memory.
#[derive(Debug, Default)]
pub struct MemoryHoldKeys {
    keys: Lock<BTreeMap<HoldId, (RequestId, HoldKey)>>,
}

impl HoldKeys for MemoryHoldKeys {
    fn get(&self, hold: HoldId) -> Option<HoldKey> {
        self.keys.lock().get(&hold).map(|(_, key)| key.clone())
    }

    fn get_or_create(&self, hold: HoldId, request: RequestId) -> Result<HoldKey, StoreError> {
        let fresh = HoldKey::from_bytes(random()?);
        let mut keys = self.keys.lock();
        let (_, key) = keys.entry(hold).or_insert((request, fresh));
        Ok(key.clone())
    }

    fn destroy(&self, holds: &[HoldId]) -> Result<(), StoreError> {
        let mut keys = self.keys.lock();
        for hold in holds {
            keys.remove(hold);
        }
        Ok(())
    }

    fn of_request(&self, request: RequestId) -> Vec<HoldId> {
        let keys = self.keys.lock();
        let of = keys.iter().filter(|(_, (of, _))| *of == request);
        of.map(|(hold, _)| *hold).collect()
    }

    fn all(&self) -> Vec<(HoldId, RequestId)> {
        let keys = self.keys.lock();
        keys.iter().map(|(hold, (of, _))| (*hold, *of)).collect()
    }
}

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Unavailable(Box::new(error) as BoxError))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_with_an_offset_is_as_far_from_the_machine_as_it_was_moved() {
        let clock = OffsetClock::new(-10);
        let ahead = |clock: &OffsetClock| {
            let apart = clock.now().as_micros() - SystemClock.now().as_micros();
            (apart + 500_000).div_euclid(1_000_000)
        };
        assert_eq!(ahead(&clock), -10);
        assert_eq!(clock.step(3_610), 3_600);
        assert_eq!(ahead(&clock), 3_600);
        assert_eq!(clock.step(i64::MIN), -OffsetClock::OFFSET_SECONDS_MAX);
        assert_eq!(clock.step(i64::MAX), OffsetClock::OFFSET_SECONDS_MAX);
    }
}
