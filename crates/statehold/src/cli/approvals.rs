//! `statehold approvals`: list holds and decide them.

mod arguments;
mod card;
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
use super::globals::GlobalArgs;
use super::hold::HoldInfo;
use super::output::CliOutput;
use super::{block_on, resolve};
use crate::client::Client;
use crate::exit::Exit;

pub(super) use confirm::confirm_option;
pub(super) use list::suggested_command;

#[derive(Debug, Subcommand)]
pub(super) enum ApprovalsCommand {
    /// List holds, the most urgent first.
    List(list::ApprovalsListArgs),
    /// Print one hold: the agent, the action, the user, and the allowed decisions.
    Show(show::ApprovalsShowArgs),
    /// Approve: run the action as shown.
    Approve(decide::ApproveArgs),
    /// Approve the action with other arguments.
    Edit(edit::EditArgs),
    /// Reject the action. The agent continues and is told about the rejection.
    Reject(decide::RejectArgs),
    /// Answer a question or a form, or supply the result instead of running the action.
    Respond(respond::RespondArgs),
    /// Decide nothing: cancel the request that opened the hold, and everything below it.
    Dismiss(decide::DismissArgs),
    /// Follow open holds: drawn live on a terminal, one line per change in a pipe.
    Watch(watch::WatchArgs),
}

impl ApprovalsCommand {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
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

/// Fetches the hold that the user named.
async fn fetch(client: &Client, typed: &str) -> anyhow::Result<HoldInfo> {
    let id = resolve::hold(client, typed).await?;
    read(&client.get(&format!("/v1/holds/{id}")).await?.body)
}
