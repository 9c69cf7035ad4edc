//! Reads whose cost grows with what a caller has stored: folds of the log of a session up to a revision, searches
//! through sessions, and the steps of lists over many sessions. One of each kind runs at a time, so that they leave a reading thread to everybody else, and each
//! caller waits in line with one of its own.

use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::session::SessionState;
use statehold_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::Caller;
use crate::commit::idempotency::digest;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::locks::{KeyLock, KeyedLocks};

/// The line in which long reads of one kind wait.
#[derive(Debug)]
pub(crate) struct LongReads {
    /// One place in the line for each caller. A backend that acts for many users is one caller.
    places: KeyedLocks,
    turn: Arc<Semaphore>,
}

/// The turn of a caller to read, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadTurn {
    // In this order: the next caller in the line comes before the next read of the same one.
    _turn: OwnedSemaphorePermit,
    _place: KeyLock,
}

impl LongReads {
    /// Waits for the caller's turn.
    pub(crate) async fn turn(&self, caller: &Caller) -> Result<ReadTurn, EngineError> {
        let principal = caller.principal.to_string();
        let place = match &caller.key {
            Some(key) => digest(&[b"key", key.as_bytes()]),
            None => digest(&[b"principal", principal.as_bytes()]),
        };
        let place = self.places.lock(place).await;
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        Ok(ReadTurn {
            _turn: turn.map_err(|_| EngineError::Stopping)?,
            _place: place,
        })
    }
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
        let turn = self.inner().long_reads.turn(caller).await?;
        Ok(self.read_in(turn, read).await)
    }

    /// Waits for the caller's turn, and reads one step of a list over many sessions. A caller with many lists has one
    /// step at a time, and the turns of all callers alternate step by step.
    pub(crate) async fn list_step<T: Send + 'static>(
        &self,
        caller: &Caller,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, EngineError> {
        let turn = self.inner().list_steps.turn(caller).await?;
        Ok(self.read_in(turn, read).await?)
    }

    async fn read_in<T: Send + 'static>(
        &self,
        turn: ReadTurn,
        read: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let read = async move {
            let _turn = turn;
            read.await
        };
        self.run_to_end(read).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use statehold_core::digest::Digest;

    use super::*;

    fn caller(key: &str) -> Caller {
        Caller {
            key: Some(Digest::sha256(key.as_bytes())),
            ..Caller::worker_of_server("default".parse().expect("a name"))
        }
    }

    #[tokio::test]
    async fn a_caller_with_many_long_reads_holds_up_no_other_for_more_than_one() {
        let line = LongReads::default();
        let (eve, ann) = (caller("eve"), caller("ann"));
        let first = line.turn(&eve).await.expect("nobody else reads");
        let (mut second, mut third) = (pin!(line.turn(&eve)), pin!(line.turn(&eve)));
        let mut other = pin!(line.turn(&ann));
        let waiting = futures_util::future::poll_fn(|context| {
            let waits = [
                second.as_mut().poll(context).is_pending(),
                third.as_mut().poll(context).is_pending(),
                other.as_mut().poll(context).is_pending(),
            ];
            Poll::Ready(waits)
        });
        assert_eq!(waiting.await, [true; 3], "one read at a time");

        drop(first);
        let granted = futures_util::future::poll_fn(|context| {
            let of_eve = [
                second.as_mut().poll(context).is_ready(),
                third.as_mut().poll(context).is_ready(),
            ];
            Poll::Ready((of_eve, other.as_mut().poll(context)))
        });
        let (of_eve, of_ann) = granted.await;
        assert_eq!(
            of_eve, [false; 2],
            "its other reads wait behind the next caller"
        );
        let Poll::Ready(turn) = of_ann else {
            panic!("a caller waits for many reads of another")
        };
        drop(turn.expect("nobody stops"));
        drop(second.await.expect("nobody stops"));
        third.await.expect("nobody stops");
    }
}
