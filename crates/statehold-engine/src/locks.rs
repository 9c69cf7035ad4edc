//! Locks: one for values in memory, and one per key for calls that must not overlap.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use statehold_core::digest::Digest;
use tokio::sync::OwnedMutexGuard;

/// A plain mutex, never held across an await. A panic of a holder does not poison it.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

type LockMap = Lock<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>;

/// Locks by key. A lock exists as long as it has a holder or a waiter.
#[derive(Debug, Default)]
pub(crate) struct KeyedLocks(Arc<LockMap>);

impl KeyedLocks {
    /// Waits until no other call holds the lock of this key.
    pub(crate) async fn lock(&self, key: Digest) -> KeyLock {
        let lock = Arc::clone(self.0.lock().entry(key).or_default());
        // Created before waiting, so that a cancelled wait leaves no entry behind.
        let mut waiting = KeyLock {
            locks: Arc::clone(&self.0),
            key,
            guard: None,
        };
        waiting.guard = Some(lock.lock_owned().await);
        waiting
    }
}

/// The lock of one key, held or, while `guard` is None, awaited.
#[derive(Debug)]
pub(crate) struct KeyLock {
    locks: Arc<LockMap>,
    key: Digest,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut locks = self.locks.lock();
        let is_unused = |lock: &Arc<_>| Arc::strong_count(lock) == 1;
        if locks.get(&self.key).is_some_and(is_unused) {
            locks.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Digest {
        Digest::sha256(text.as_bytes())
    }

    #[tokio::test]
    async fn a_lock_is_forgotten_with_its_last_holder_or_waiter() {
        let locks = KeyedLocks::default();
        let both = [locks.lock(key("a")).await, locks.lock(key("b")).await];
        let mut waiting = Box::pin(locks.lock(key("b")));
        let waited = std::future::poll_fn(|context| {
            std::task::Poll::Ready(waiting.as_mut().poll(context).is_pending())
        });
        assert!(waited.await, "one holder at a time");
        drop(both);
        assert_eq!(locks.0.lock().len(), 1, "one is waited for");
        drop(waiting.await);
        assert!(locks.0.lock().is_empty());
        // A caller that stops waiting leaves nothing behind.
        let held = locks.lock(key("a")).await;
        let mut waiting = Box::pin(locks.lock(key("a")));
        let waited = std::future::poll_fn(|context| {
            std::task::Poll::Ready(waiting.as_mut().poll(context).is_pending())
        });
        assert!(waited.await);
        drop(held);
        drop(waiting);
        assert!(locks.0.lock().is_empty());
    }
}
