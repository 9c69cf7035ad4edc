//! `statehold tasks`: what agents work on, and waiting for it.

mod cancel;
mod show;
mod tree;
mod wait;

use clap::Subcommand;

use super::block_on;
use super::globals::Globals;
use super::output::Output;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum Tasks {
    /// Draw tasks, their requests, and what they wait for.
    Tree(tree::TreeOf),
    /// Print one task and the last of its history.
    Show(show::Show),
    /// Wait until a request, or the live request of a task, has ended.
    Wait(wait::Wait),
    /// Stop a request or a task for good, with everything below it.
    Cancel(cancel::Cancel),
}

impl Tasks {
    pub(super) fn run(self, globals: &Globals, output: &Output) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(async {
            match self {
                Self::Tree(tree) => tree.run(&client, output).await,
                Self::Show(show) => show.run(&client, output).await,
                Self::Wait(wait) => wait.run(&client, globals.timeout, output).await,
                Self::Cancel(cancel) => cancel.run(&client, output).await,
            }
        })?
    }
}
