//! `statehold approvals`: what waits for a person, and deciding it.

mod arguments;
mod confirm;
mod decide;
mod edit;
mod list;
mod respond;
mod resume;
mod show;
mod watch;

use clap::Subcommand;

use super::answers::read;
use super::globals::Globals;
use super::hold::Hold;
use super::output::Output;
use super::{block_on, resolve};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum Approvals {
    /// List holds, the most urgent first.
    List(list::List),
    /// Print one hold: who asks for what, for whom, and what may be decided.
    Show(show::Show),
    /// Let the action run as it is shown.
    Approve(decide::Approve),
    /// Let the action run with other arguments.
    Edit(edit::Edit),
    /// Refuse the action. The agent goes on and learns that it was refused.
    Reject(decide::Reject),
    /// Answer a question or a form, or give the result instead of running the action.
    Respond(respond::Respond),
    /// Decide nothing: cancel the request that asks, with everything below it.
    Dismiss(decide::Dismiss),
    /// Follow what waits: drawn live on a terminal, a line per change in a pipe.
    Watch(watch::Watch),
}

impl Approvals {
    pub(super) fn run(self, globals: &Globals, output: &Output) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(async {
            match self {
                Self::List(list) => list.run(&client, output).await,
                Self::Show(show) => show.run(&client, output).await,
                Self::Approve(approve) => approve.run(&client, output).await,
                Self::Edit(edit) => edit.run(&client, output).await,
                Self::Reject(reject) => reject.run(&client, output).await,
                Self::Respond(respond) => respond.run(&client, output).await,
                Self::Dismiss(dismiss) => dismiss.run(&client, output).await,
                Self::Watch(watch) => watch.run(&client, output).await,
            }
        })?
    }
}

/// The hold that a text means.
async fn fetch(client: &Client, typed: &str) -> anyhow::Result<Hold> {
    let id = resolve::hold(client, typed).await?;
    read(&client.get(&format!("/v1/holds/{id}")).await?.body)
}
