//! The composition root: the one place that chooses a store, a clock and keys, and puts a server
//! together.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use statehold_agents::scratch::EngineFactory;
use statehold_core::name::Name;
use statehold_engine::policy::Policies;
use statehold_engine::{
    Clock, Credential, Engine, EngineOptions, MemoryKeys, OffsetClock, PayloadKeys, SystemClock,
};
use statehold_server::seal::Sealer;
use statehold_store::Store;
use statehold_store::hold_keys::HoldKeyFile;
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
    policies: Policies,
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
    let options = EngineOptions {
        policies: Arc::new(policies),
        hold_keys: Arc::new(HoldKeyFile::open(data)?),
        ..EngineOptions::default()
    };
    put_together(Arc::new(store), Arc::new(keys), clock, options).await
}

/// An engine whose data is gone when the process ends.
///
/// # Errors
///
/// If the system gives no random numbers.
pub(crate) async fn in_memory(clock: Arc<dyn Clock>, policies: Policies) -> anyhow::Result<Parts> {
    let options = EngineOptions {
        policies: Arc::new(policies),
        ..EngineOptions::default()
    };
    put_together(
        Arc::new(MemoryStore::new()),
        Arc::new(MemoryKeys::default()),
        clock,
        options,
    )
    .await
}

/// Makes engines whose data is gone when nobody uses them any more. Agents have their own credentials
/// there too.
pub(crate) fn make_in_memory(
    clock: Arc<dyn Clock>,
    policies: Policies,
    credentials: BTreeMap<Name, Credential>,
) -> EngineFactory {
    let policies = Arc::new(policies);
    Arc::new(move || {
        let options = EngineOptions {
            policies: Arc::clone(&policies),
            ..EngineOptions::default()
        };
        let (clock, credentials) = (Arc::clone(&clock), credentials.clone());
        Box::pin(async move {
            let store = Arc::new(MemoryStore::new());
            let keys = Arc::new(MemoryKeys::default());
            let engine = Engine::start(store, keys, clock, options).await?;
            engine.set_service_credentials(credentials);
            Ok(engine)
        })
    })
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
    options: EngineOptions,
) -> anyhow::Result<Parts> {
    let secret = keys.get_or_create(&KeyOwner::Server)?;
    let sealer = Sealer::new(*secret.expose());
    let engine = Engine::start(store, keys, clock, options).await?;
    let tenant = "default".parse().context("the tenant has a name")?;
    engine.load_keys(&tenant).await?;
    Ok(Parts { engine, sealer })
}
