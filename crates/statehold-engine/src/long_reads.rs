//! Reads whose cost grows with the length of a session: folds of its log up to a revision. One runs at a time, so
//! that they leave a reading thread to everybody else, and each caller waits in line with one of its own.

use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::session::SessionState;
use tokio::sync::Semaphore;

use crate::caller::Caller;
use crate::commit::idempotency::digest;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::locks::KeyedLocks;

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

impl Engine {
    /// The state that a session had at an earlier revision, in the caller's turn.
    pub(crate) async fn load_past(
        &self,
        caller: &Caller,
        session: SessionId,
        revision: u64,
    ) -> Result<Option<SessionState>, EngineError> {
        let store = Arc::clone(&self.inner().store);
        let read = async move { store.load_at(session, revision).await };
        Ok(self.long_read(caller, read).await??)
    }

    /// Waits for the caller's turn, and reads. The turn lasts as long as the read, also if the call goes away:
    /// the reading thread is busy until then.
    pub(crate) async fn long_read<T: Send + 'static>(
        &self,
        caller: &Caller,
        read: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let reads = &self.inner().long_reads;
        let principal = caller.principal.to_string();
        let place = digest(&[b"long read", principal.as_bytes()]);
        let place = reads.places.lock(place).await;
        let turn = Arc::clone(&reads.turn).acquire_owned().await;
        let turn = (place, turn.map_err(|_| EngineError::Stopping)?);
        let read = async move {
            let _turn = turn;
            read.await
        };
        Ok(self.run_to_end(read).await)
    }
}
