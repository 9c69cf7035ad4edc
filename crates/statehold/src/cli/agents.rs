//! `statehold agents`: list and show the agents of a server, and reload its configuration.

mod list;
mod reload;
mod show;

use clap::Subcommand;
use serde_json::Value;

use super::block_on;
use super::globals::GlobalArgs;
use super::output::CliOutput;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// List the declared agents.
    List(list::AgentsListArgs),
    /// Print one agent: its kind, the agents it routes to, and the approval rules of its tools.
    Show(show::AgentsShowArgs),
    /// Make the server reload its configuration: agents, models and tool servers.
    Reload(reload::AgentsReloadArgs),
}

impl AgentsCommand {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
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

/// The agents that a coordinator calls.
fn chosen_agents(agent: &Value) -> Option<String> {
    let chosen = agent["agents"].as_array()?.iter();
    let chosen: Vec<&str> = chosen.filter_map(Value::as_str).collect();
    Some(chosen.join(", ")).filter(|chosen| !chosen.is_empty())
}
