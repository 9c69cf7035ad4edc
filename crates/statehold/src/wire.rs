//! The composition root: the one place that chooses a store, a clock and keys, and puts a server
//! together.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use statehold_engine::{
    Clock, Engine, EngineOptions, MemoryKeys, OffsetClock, PayloadKeys, SystemClock,
};
use statehold_server::seal::Sealer;
use statehold_store::Store;
use statehold_store::keys::{KeyFile, KeyOwner};
use statehold_store::memory::MemoryStore;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};

/// An engine on its store.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) sealer: Sealer,
}

/// The engine of a data directory.
///
/// # Errors
///
/// If the directory is in use, or what is in it is not ours.
pub(crate) async fn on_disk(
    data: &Path,
    readers: usize,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Parts> {
    let options = SqliteOptions {
        readers,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(data, options)?;
    let keys = KeyFile::open(data)?;
    if keys.is_empty() && store.last_place().await? > 0 {
        tracing::warn!(
            "the key file `user-keys` is empty or new, but there is data: payloads that were written \
             before cannot be verified any more, unless you stop and put the old file back"
        );
    }
    put_together(Arc::new(store), Arc::new(keys), clock).await
}

/// An engine whose data is gone when the process ends.
///
/// # Errors
///
/// If the system gives no random numbers.
pub(crate) async fn in_memory(clock: Arc<dyn Clock>) -> anyhow::Result<Parts> {
    put_together(
        Arc::new(MemoryStore::new()),
        Arc::new(MemoryKeys::default()),
        clock,
    )
    .await
}

/// The clock that everybody is handed: that of the machine, unless it is to be moved.
pub(crate) fn clock(offset: Option<&Arc<OffsetClock>>) -> Arc<dyn Clock> {
    match offset {
        Some(clock) => Arc::clone(clock) as Arc<dyn Clock>,
        None => Arc::new(SystemClock),
    }
}

async fn put_together(
    store: Arc<dyn Store>,
    keys: Arc<dyn PayloadKeys>,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Parts> {
    let secret = keys.get_or_create(&KeyOwner::Server)?;
    let sealer = Sealer::new(*secret.expose());
    let engine = Engine::start(store, keys, clock, EngineOptions::default()).await?;
    let tenant = "default".parse().context("the tenant has a name")?;
    engine.load_keys(&tenant).await?;
    Ok(Parts { engine, sealer })
}
