//! The composition root: the only module that chooses a store, a clock and keys, and assembles a
//! server.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use statehold_agents::scratch::EngineFactory;
use statehold_core::name::Name;
use statehold_engine::debug_log::{DebugLog, DebugLogLimits};
use statehold_engine::policy::Policies;
use statehold_engine::trace::Traces;
use statehold_engine::{
    Clock, Credential, Engine, EngineOptions, MemoryKeys, OffsetClock, PayloadKeys, SystemClock,
};
use statehold_server::seal::Sealer;
use statehold_store::Store;
use statehold_store::hold_keys::HoldKeyFile;
use statehold_store::keys::KeyFile;
use statehold_store::memory::MemoryStore;
use statehold_store::sqlite::{DataDirectory, SqliteOptions, SqliteStore};

use crate::config::StoreConfig;

/// An engine and the sealer of its server.
pub(crate) struct EngineParts {
    pub(crate) engine: Engine,
    pub(crate) sealer: Sealer,
    /// The log of exchanges, if there is one.
    pub(crate) debug_log: Option<Arc<DebugLog>>,
}

/// Opens the engine of a data directory, and its debug log if that has bounds.
///
/// # Errors
///
/// If the directory is in use, or contains foreign data.
pub(crate) async fn on_disk(
    config: &StoreConfig,
    debug_log: Option<DebugLogLimits>,
    clock: Arc<dyn Clock>,
    (policies, traces): (Policies, Option<Arc<Traces>>),
) -> anyhow::Result<EngineParts> {
    let data = &config.data;
    let locked = DataDirectory::lock(data)?;
    let keys = Arc::new(KeyFile::open(data)?.sealing(config.encrypt));
    let options = SqliteOptions {
        readers: config.readers.get(),
        tail_bytes_max: config.tail_bytes_max,
        keys: Arc::<KeyFile>::clone(&keys),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open_locked(locked, options)?;
    if keys.is_empty() && store.last_place().await? > 0 {
        tracing::warn!(
            "the key file `user-keys` is empty or new, but there is data: everything that was said before \
             stays unreadable; stop the server and put the old `key-ring` and `user-keys` back"
        );
    }
    if keys.unreadable() > 0 {
        tracing::warn!(
            keys = keys.unreadable(),
            "the key ring cannot open some keys of `user-keys`: the text of these users stays unreadable; stop \
             the server and put the old `key-ring` back"
        );
    }
    let options = EngineOptions {
        policies: Arc::new(policies),
        hold_keys: Arc::new(HoldKeyFile::open(data)?),
        traces,
        ..EngineOptions::default()
    };
    let debug_log = debug_log.map(|limits| DebugLog::open(data, Arc::clone(&keys), limits));
    let debug_log = debug_log.transpose()?.map(Arc::new);
    let parts = start_engine(Arc::new(store), keys, clock, options).await?;
    Ok(EngineParts { debug_log, ..parts })
}

/// Starts an engine that keeps its data in memory.
///
/// # Errors
///
/// If the system has no random numbers.
pub(crate) async fn in_memory(
    clock: Arc<dyn Clock>,
    (policies, traces): (Policies, Option<Arc<Traces>>),
) -> anyhow::Result<EngineParts> {
    let options = EngineOptions {
        policies: Arc::new(policies),
        traces,
        ..EngineOptions::default()
    };
    start_engine(
        Arc::new(MemoryStore::new()),
        Arc::new(MemoryKeys::default()),
        clock,
        options,
    )
    .await
}

/// A factory of in-memory engines, whose data lives as long as the engine. Agents keep their
/// credentials there, and what they do is counted and traced with the rest.
pub(crate) fn make_in_memory(
    clock: Arc<dyn Clock>,
    policies: Policies,
    credentials: BTreeMap<Name, Credential>,
    engine: &Engine,
) -> EngineFactory {
    let (measures, traces) = (Arc::clone(engine.measures()), engine.traces().cloned());
    let turn_memories = engine.turn_memories().clone();
    let policies = Arc::new(policies);
    Arc::new(move || {
        let options = EngineOptions {
            policies: Arc::clone(&policies),
            measures: Arc::clone(&measures),
            traces: traces.clone(),
            turn_memories: turn_memories.clone(),
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

/// The clock of the server: the system clock, or one that callers may move.
pub(crate) fn clock(offset: Option<&Arc<OffsetClock>>) -> Arc<dyn Clock> {
    match offset {
        Some(clock) => Arc::clone(clock) as Arc<dyn Clock>,
        None => Arc::new(SystemClock),
    }
}

async fn start_engine(
    store: Arc<dyn Store>,
    keys: Arc<dyn PayloadKeys>,
    clock: Arc<dyn Clock>,
    options: EngineOptions,
) -> anyhow::Result<EngineParts> {
    let sealer = Sealer::new(keys.ring());
    let engine = Engine::start(store, keys, clock, options).await?;
    let tenant = "default".parse().context("the tenant has a name")?;
    engine.load_keys(&tenant).await?;
    Ok(EngineParts {
        engine,
        sealer,
        debug_log: None,
    })
}
