//! Reads whose cost grows with the length of a session: folds of its log up to a revision. One runs at a time, so
//! that they leave a reading thread to everybody else, and each caller waits in line with one of its own.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::Caller;
use crate::commit::idempotency::digest;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::locks::{KeyLock, KeyedLocks};

/// The line in which long reads wait.
#[derive(Debug)]
pub(crate) struct LongReads {
    /// One place in the line for each principal.
    places: KeyedLocks,
    turn: Arc<Semaphore>,
}

impl Default for LongReads {
    fn default() -> Self {
        Self {
            places: KeyedLocks::default(),
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

/// The right to read, until it is dropped.
#[derive(Debug)]
pub(crate) struct LongRead {
    _turn: OwnedSemaphorePermit,
    _place: KeyLock,
}

impl Engine {
    /// Waits for the caller's turn to read long.
    pub(crate) async fn long_read(&self, caller: &Caller) -> Result<LongRead, EngineError> {
        let reads = &self.inner().long_reads;
        let principal = caller.principal.to_string();
        let place = digest(&[b"long read", principal.as_bytes()]);
        let place = reads.places.lock(place).await;
        let turn = Arc::clone(&reads.turn).acquire_owned().await;
        Ok(LongRead {
            _turn: turn.map_err(|_| EngineError::Stopping)?,
            _place: place,
        })
    }
}
