//! A backup of a running server: a copy of everything that is stored, without keys.

use std::fs::File;

use statehold_core::tenant::TenantEvent;
use statehold_store::StoreError;
use tokio::sync::OwnedSemaphorePermit;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_admin;

/// A copy of everything as it was at one moment. The next one begins when this is dropped.
#[derive(Debug)]
pub struct Backup {
    /// The file, at its beginning. It has no name.
    pub file: File,
    /// Its length.
    pub bytes: u64,
    _turn: OwnedSemaphorePermit,
}

/// Copies everything that is stored, while calls go on, and notes it in the audit stream. One copy is made at a time,
/// because it takes as much space on the disk as the data.
///
/// # Errors
///
/// If the caller is not an admin, there is no room for the copy, or the store keeps its data in memory.
pub async fn make(engine: &Engine, caller: &Caller) -> Result<Backup, EngineError> {
    require_admin(caller)?;
    let inner = engine.inner();
    let turn = std::sync::Arc::clone(&inner.backups).acquire_owned().await;
    let turn = turn.map_err(|_| EngineError::Stopping)?;
    let copied = inner.store.copy().await;
    let file = copied.map_err(|error| match error {
        StoreError::Unusable(what) => EngineError::Invalid(what),
        error => EngineError::from(error),
    })?;
    let length = file
        .metadata()
        .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
    let bytes = length.len();
    let made = TenantEvent::BackupMade { bytes };
    engine.audit(caller, made).await?;
    tracing::info!(by = %caller.principal, bytes, "a backup was made");
    Ok(Backup {
        file,
        bytes,
        _turn: turn,
    })
}
