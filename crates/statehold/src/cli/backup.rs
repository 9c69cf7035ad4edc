//! `statehold backup`: writes a data directory into one file.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::block_on;
use super::check::open_store;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The file to write. It must not exist.
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

impl BackupArgs {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let store = open_store(&self.data)?;
        block_on(store.backup(self.to.clone()))?.context("the backup was not made")?;
        let bytes = std::fs::metadata(&self.to)?.len();
        println!("{}  {bytes} bytes", self.to.display());
        eprintln!(
            "The backup does not include the key files `key-ring` and `user-keys`. Copy both separately: without \
             either, nobody can read what was said."
        );
        eprintln!(
            "Nor does it include `hold-keys`: holds with sealed arguments must be opened again after a restore."
        );
        Ok(Exit::Done)
    }
}
