//! What the engine needs from outside, beside a store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use statehold_core::digest::PayloadKey;
use statehold_core::time::Timestamp;
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

/// The secrets under which payloads are digested and roots are signed.
pub trait PayloadKeys: Send + Sync + 'static {
    /// The key of an owner, if there is one.
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey>;

    /// The key of an owner, made if there is none. May wait for a disk.
    ///
    /// # Errors
    ///
    /// If a new key cannot be kept.
    fn get_or_create(&self, owner: &KeyOwner) -> Result<PayloadKey, StoreError>;

    /// Since when the key of an owner is the one. What is older was made under a key that is gone.
    fn since(&self, owner: &KeyOwner) -> Option<Timestamp>;
}

impl PayloadKeys for KeyFile {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        Self::get(self, owner)
    }

    fn get_or_create(&self, owner: &KeyOwner) -> Result<PayloadKey, StoreError> {
        Self::get_or_create(self, owner)
    }

    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        Self::since(self, owner)
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

    /// A key is as old as the process, and so is what was made under it.
    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        self.get(owner).map(|_| Timestamp::from_micros(0))
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Unavailable(Box::new(error) as BoxError))?;
    Ok(bytes)
}
