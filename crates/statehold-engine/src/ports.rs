//! What the engine needs from outside, beside a store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use statehold_core::digest::PayloadKey;
use statehold_core::ids::{HoldId, RequestId};
use statehold_core::time::Timestamp;
use statehold_store::hold_keys::{HoldKey, HoldKeyFile};
use statehold_store::keys::{KeyFile, KeyOwner};
use statehold_store::{BoxError, StoreError};

/// What time it is.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock. It may step; commit times never go back.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
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

/// The secrets under which payloads are digested.
pub trait PayloadKeys: Send + Sync + 'static {
    /// The key of an owner, if there is one.
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey>;

    /// The key of an owner, made if there is none. May wait for a disk.
    ///
    /// # Errors
    ///
    /// If a new key cannot be kept.
    fn get_or_create(&self, owner: &KeyOwner) -> Result<PayloadKey, StoreError>;
}

impl PayloadKeys for KeyFile {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        Self::get(self, owner)
    }

    fn get_or_create(&self, owner: &KeyOwner) -> Result<PayloadKey, StoreError> {
        Self::get_or_create(self, owner)
    }
}

/// Keys that live as long as the process, for stores that do too.
#[derive(Debug, Default)]
pub struct MemoryKeys {
    keys: Mutex<BTreeMap<KeyOwner, PayloadKey>>,
}

impl PayloadKeys for MemoryKeys {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.get(owner).cloned()
    }

    fn get_or_create(&self, owner: &KeyOwner) -> Result<PayloadKey, StoreError> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = keys.get(owner) {
            return Ok(key.clone());
        }
        let key = PayloadKey::from_bytes(random()?);
        keys.insert(owner.clone(), key.clone());
        Ok(key)
    }
}

/// The secrets under which the arguments of undecided and running actions are sealed.
pub trait HoldKeys: Send + Sync + 'static {
    /// The key of a hold, if there is one.
    fn get(&self, hold: HoldId) -> Option<HoldKey>;

    /// The key of a hold, made if there is none. May wait for a disk.
    ///
    /// # Errors
    ///
    /// If a new key cannot be kept.
    fn get_or_create(&self, hold: HoldId, request: RequestId) -> Result<HoldKey, StoreError>;

    /// Forgets keys for ever. May wait for a disk.
    ///
    /// # Errors
    ///
    /// If they cannot be removed.
    fn destroy(&self, holds: &[HoldId]) -> Result<(), StoreError>;

    /// The holds of a request that have keys.
    fn of_request(&self, request: RequestId) -> Vec<HoldId>;

    /// All holds that have keys, with their requests.
    fn all(&self) -> Vec<(HoldId, RequestId)>;
}

impl HoldKeys for HoldKeyFile {
    fn get(&self, hold: HoldId) -> Option<HoldKey> {
        Self::get(self, hold)
    }

    fn get_or_create(&self, hold: HoldId, request: RequestId) -> Result<HoldKey, StoreError> {
        Self::get_or_create(self, hold, request)
    }

    fn destroy(&self, holds: &[HoldId]) -> Result<(), StoreError> {
        Self::destroy(self, holds)
    }

    fn of_request(&self, request: RequestId) -> Vec<HoldId> {
        Self::of_request(self, request)
    }

    fn all(&self) -> Vec<(HoldId, RequestId)> {
        Self::all(self)
    }
}

/// Hold keys that live as long as the process, for stores that do too.
#[derive(Debug, Default)]
pub struct MemoryHoldKeys {
    keys: Mutex<BTreeMap<HoldId, (RequestId, HoldKey)>>,
}

impl MemoryHoldKeys {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<HoldId, (RequestId, HoldKey)>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HoldKeys for MemoryHoldKeys {
    fn get(&self, hold: HoldId) -> Option<HoldKey> {
        self.lock().get(&hold).map(|(_, key)| key.clone())
    }

    fn get_or_create(&self, hold: HoldId, request: RequestId) -> Result<HoldKey, StoreError> {
        let fresh = HoldKey::from_bytes(random()?);
        let mut keys = self.lock();
        let (_, key) = keys.entry(hold).or_insert((request, fresh));
        Ok(key.clone())
    }

    fn destroy(&self, holds: &[HoldId]) -> Result<(), StoreError> {
        let mut keys = self.lock();
        for hold in holds {
            keys.remove(hold);
        }
        Ok(())
    }

    fn of_request(&self, request: RequestId) -> Vec<HoldId> {
        let keys = self.lock();
        let of = keys.iter().filter(|(_, (of, _))| *of == request);
        of.map(|(hold, _)| *hold).collect()
    }

    fn all(&self) -> Vec<(HoldId, RequestId)> {
        let keys = self.lock();
        keys.iter().map(|(hold, (of, _))| (*hold, *of)).collect()
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Unavailable(Box::new(error) as BoxError))?;
    Ok(bytes)
}
