//! The memory for the payloads of an answer: a caller takes it before they are read, so that no number of calls that
//! wait for it has them in memory.

use futures_util::future::BoxFuture;

use crate::error::EngineError;

/// Payloads of so many bytes together need no memory from a pool.
pub const SMALL_PAYLOAD_BYTES: u64 = 64 * 1024;
/// The payloads that a page of one answer has, unless one entry has more.
pub(crate) const ANSWER_PAGE_BYTES: u64 = 1024 * 1024;

/// The memory for the answer to one call.
pub trait AnswerMemory: Send + Sync {
    /// Waits in line for the memory of so many bytes of payloads, in place of what was taken before.
    ///
    /// # Errors
    ///
    /// [`EngineError::TooMany`] if others have it for too long.
    fn take(&self, bytes: u64) -> BoxFuture<'_, Result<(), EngineError>>;
}

/// Memory without a limit, for readers inside the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnmeteredMemory;

impl AnswerMemory for UnmeteredMemory {
    fn take(&self, _bytes: u64) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Takes the memory for payloads, unless they are small.
pub(crate) async fn take_unless_small(
    memory: &dyn AnswerMemory,
    bytes: u64,
) -> Result<(), EngineError> {
    if bytes > SMALL_PAYLOAD_BYTES {
        memory.take(bytes).await?;
    }
    Ok(())
}
