//! `statehold sessions`: lists, shows, follows, forks, rewinds and deletes sessions.

mod delete;
mod diff;
mod fork;
mod list;
mod rewind;
mod show;
mod tail;

use clap::Subcommand;

use super::block_on;
use super::globals::GlobalArgs;
use super::output::CliOutput;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum SessionsCommand {
    /// List sessions, the newest first.
    List(list::SessionsListArgs),
    /// Print one session: its facts, its open holds, and its messages.
    Show(show::SessionsShowArgs),
    /// Follow one session: one line per record.
    Tail(tail::SessionsTailArgs),
    /// Print the difference between two revisions: the keys that changed, and who wrote them.
    Diff(diff::SessionsDiffArgs),
    /// Copy one session as it was at a revision into a new one.
    Fork(fork::SessionsForkArgs),
    /// Take one session back to an earlier revision. Its records stay.
    Rewind(rewind::SessionsRewindArgs),
    /// Delete one session: cancel its live requests and remove every payload.
    Delete(delete::SessionsDeleteArgs),
}

impl SessionsCommand {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(async {
            match self {
                Self::List(list) => list.run(&client, output).await,
                Self::Show(show) => show.run(&client, output).await,
                Self::Tail(tail) => tail.run(&client, output).await,
                Self::Diff(diff) => diff.run(&client, output).await,
                Self::Fork(fork) => fork.run(&client, output).await,
                Self::Rewind(rewind) => rewind.run(&client, output).await,
                Self::Delete(delete) => delete.run(&client, output).await,
            }
        })?
    }
}
