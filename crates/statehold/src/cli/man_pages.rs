//! `statehold man-pages`: writes the man pages of all commands, for packages.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::command_line;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(super) struct ManPagesArgs {
    /// The folder to write into. It is made if it is not there.
    folder: PathBuf,
}

impl ManPagesArgs {
    pub(super) fn run(&self) -> anyhow::Result<Exit> {
        let place = || format!("writing man pages into {}", self.folder.display());
        std::fs::create_dir_all(&self.folder).with_context(place)?;
        clap_mangen::generate_to(command_line::command(), &self.folder).with_context(place)?;
        Ok(Exit::Done)
    }
}
