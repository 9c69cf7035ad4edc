//! `statehold agents`: which agents a server knows, what they are, and having them read again.

mod list;
mod reload;
mod show;

use clap::Subcommand;
use serde::Deserialize;

use super::block_on;
use super::globals::Globals;
use super::output::Output;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum Agents {
    /// List the agents that are declared.
    List(list::List),
    /// Print one agent: what it is, whom it chooses from, what its tools need.
    Show(show::Show),
    /// Have the server read its configuration again: agents, models and tool servers.
    Reload(reload::Reload),
}

impl Agents {
    pub(super) fn run(self, globals: &Globals, output: &Output) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(async {
            match self {
                Self::List(list) => list.run(&client, output).await,
                Self::Show(show) => show.run(&client, output).await,
                Self::Reload(reload) => reload.run(&client, output).await,
            }
        })?
    }
}

/// An agent as the server tells it. Fields that are not needed here are not read.
#[derive(Debug, Deserialize)]
struct Agent {
    name: String,
    kind: String,
    description: Option<String>,
    #[serde(default)]
    agents: Vec<String>,
    #[serde(default)]
    tools: Vec<Tool>,
    openai_default: String,
    digest: String,
    has_resume_address: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Tool {
    name: String,
    approval: String,
}
