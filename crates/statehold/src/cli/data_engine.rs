//! An engine on a data directory that no server has open. A person who can write the directory could do anything
//! with it anyway, so commands there have the rights of a local developer.

use std::path::{Path, PathBuf};

use anyhow::Context;
use statehold_core::name::Name;
use statehold_engine::policy::Policies;
use statehold_engine::{Caller, Engine};

use crate::config::StoreConfig;
use crate::data_directory::hand_over;
use crate::wire;

/// Opens a data directory, works on it, and waits until all changes are on disk.
pub(super) async fn with_data<T>(
    data: &Path,
    work: impl AsyncFnOnce(Engine, Caller) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let config = StoreConfig {
        data: PathBuf::from(data),
        ..StoreConfig::default()
    };
    let parts = wire::on_disk(
        &config,
        None,
        wire::clock(None),
        (Policies::default(), None),
    )
    .await?;
    // Now, in case this process is ended, and after the work, which can make files too.
    hand_over(data)?;
    let tenant: Name = "default".parse().context("the tenant has a name")?;
    let worked = work(parts.engine.clone(), Caller::local(tenant)).await;
    parts.engine.shut_down().await;
    hand_over(data)?;
    worked
}
