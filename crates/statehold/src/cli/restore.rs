//! `statehold restore`: creates a data directory from a backup.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use statehold_store::StoreError;
use statehold_store::key_ring::KeyRing;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::SqliteStore;

use super::check;
use super::output::CliOutput;
use super::printable::cell;
use crate::data_directory::hand_over;
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
        let mut progress = check::progress(!output.json && !output.quiet);
        let report = match SqliteStore::restore(&self.from, &self.data, &mut progress) {
            Err(error @ StoreError::Corrupt { .. }) => {
                let message = "the backup is damaged, and was not restored";
                let failure = Failure::new(Exit::ProblemsFound, message).hint("use another backup");
                return Err(anyhow::Error::new(error).context(failure));
            }
            other => other.context("the backup was not restored")?,
        };
        hand_over(&self.data)?;
        let data = cell(&self.data.display().to_string());
        output.line(&data)?;
        output.note(&check::summary(&report));
        if report.unverified > 0 || !self.data.join(KeyFile::NAME).is_file() {
            output.note(&format!(
                "The key files `{}` and `{}` are not part of a backup: put your copies of both into {data} \
                 before the server starts. Without them nobody can read what was said. Then look with: \
                 statehold check --data {data}",
                KeyRing::NAME,
                KeyFile::NAME
            ));
        }
        Ok(Exit::Done)
    }
}
