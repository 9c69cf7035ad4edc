//! `statehold backup`: one file that can be copied and restored.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};

use super::block_on;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(super) struct Backup {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The file to write. It must not exist.
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

impl Backup {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        if !self.data.join(FILE_NAME).is_file() {
            bail!(
                "there is no data in {}; name the data directory with --data",
                self.data.display()
            );
        }
        let store = SqliteStore::open(&self.data, SqliteOptions::default())
            .context("the data cannot be opened")?;
        block_on(store.backup(self.to.clone()))?.context("the backup was not made")?;
        let bytes = std::fs::metadata(&self.to)?.len();
        println!("{}  {bytes} bytes", self.to.display());
        eprintln!("The key file `user-keys` is not part of it; keep a copy of that apart.");
        eprintln!(
            "Nor is `hold-keys`: actions that wait with sealed arguments must be asked again."
        );
        Ok(Exit::Done)
    }
}
