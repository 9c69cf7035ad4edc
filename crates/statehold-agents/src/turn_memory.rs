//! The memory for the answers that a turn receives. A turn carries it, as it does its watch; calls outside of turns
//! take none.

use statehold_engine::TurnMemory;

use crate::http::EndpointError;

tokio::task_local! {
    static MEMORY: TurnMemory;
}

/// Runs a turn whose answers take this memory.
pub(crate) async fn with_turn_memory<T>(memory: TurnMemory, turn: impl Future<Output = T>) -> T {
    MEMORY.scope(memory, turn).await
}

/// Takes memory for so many bytes of an answer, until the turn ends.
///
/// # Errors
///
/// [`EndpointError::MemoryFull`]
pub(crate) fn take(bytes: usize) -> Result<(), EndpointError> {
    let taken = MEMORY.try_with(|memory| memory.take(bytes));
    match taken {
        Ok(taken) => taken.map_err(|_| EndpointError::MemoryFull),
        Err(_) => Ok(()),
    }
}
