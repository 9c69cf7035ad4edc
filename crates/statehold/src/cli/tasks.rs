//! `statehold tasks`: shows tasks and requests, waits for them, cancels them.

mod cancel;
mod show;
mod tree;
mod wait;

use clap::Subcommand;

use super::block_on;
use super::globals::GlobalArgs;
use super::output::CliOutput;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum TasksCommand {
    /// Draw tasks, their requests, and their open holds.
    Tree(tree::TasksTreeArgs),
    /// Print one task and the end of its history.
    Show(show::TasksShowArgs),
    /// Wait until a request, or the live request of a task, has ended.
    Wait(wait::TasksWaitArgs),
    /// Cancel a request or a task, and everything below it.
    Cancel(cancel::TasksCancelArgs),
}

impl TasksCommand {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
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
