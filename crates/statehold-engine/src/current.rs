//! Something that is replaced as a whole while others use it. Whoever has looked goes on with what they
//! saw; whoever looks later sees what is there then.

use std::sync::{Arc, PoisonError, RwLock};

/// What counts now. Clones look at the same place.
pub struct Current<T>(Arc<RwLock<Arc<T>>>);

impl<T> Current<T> {
    /// What counts until something else is set.
    pub fn new(value: impl Into<Arc<T>>) -> Self {
        Self(Arc::new(RwLock::new(value.into())))
    }

    /// What counts now.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets what counts from now on.
    pub fn set(&self, value: impl Into<Arc<T>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value.into();
    }
}

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Default> Default for Current<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<Arc<T>> for Current<T> {
    fn from(value: Arc<T>) -> Self {
        Self::new(value)
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Current").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_looked_keeps_what_they_saw() {
        let current = Current::new(1);
        let (seen, other) = (current.get(), current.clone());
        other.set(2);
        assert_eq!((*seen, *current.get()), (1, 2));
    }
}
