//! `statehold restore`: creates a data directory from a backup.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::SqliteStore;

use super::output::CliOutput;
use super::printable::cell;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The backup.
    #[arg(value_name = "FILE")]
    from: PathBuf,
    /// The data directory to create. It must not contain data.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl RestoreArgs {
    pub(super) fn run(&self, output: &CliOutput) -> anyhow::Result<Exit> {
        if !self.from.is_file() {
            let message = format!("there is no backup {}", self.from.display());
            return Err(Failure::new(Exit::NotFound, message)
                .hint("make one with: statehold backup --data DIR FILE")
                .into());
        }
        SqliteStore::restore(&self.from, &self.data).context("the backup was not restored")?;
        let data = cell(&self.data.display().to_string());
        output.line(&data)?;
        if !self.data.join(KeyFile::NAME).is_file() {
            output.note(&format!(
                "The key file `{}` is not part of a backup; put your copy into {data} before the \
                 server starts.",
                KeyFile::NAME
            ));
        }
        output.note(&format!("Look at it with: statehold check --data {data}"));
        Ok(Exit::Done)
    }
}
