//! A value that is atomically replaced while others read it. Readers keep the snapshot they loaded;
//! later readers load the new value.

use std::sync::{Arc, PoisonError, RwLock};

/// An atomically replaced value. Clones share it.
pub struct Swap<T>(Arc<RwLock<Arc<T>>>);

impl<T> Swap<T> {
    /// Starts with `value`.
    pub fn new(value: impl Into<Arc<T>>) -> Self {
        Self(Arc::new(RwLock::new(value.into())))
    }

    /// Loads a snapshot of the value.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the value. Snapshots that were loaded before do not change.
    pub fn set(&self, value: impl Into<Arc<T>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value.into();
    }
}

impl<T> Clone for Swap<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Default> Default for Swap<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<Arc<T>> for Swap<T> {
    fn from(value: Arc<T>) -> Self {
        Self::new(value)
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Swap<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Swap").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_the_snapshot_they_loaded() {
        let swap = Swap::new(1);
        let (seen, other) = (swap.get(), swap.clone());
        other.set(2);
        assert_eq!((*seen, *swap.get()), (1, 2));
    }
}
