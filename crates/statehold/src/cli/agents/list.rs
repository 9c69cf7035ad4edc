//! `statehold agents list`.

use clap::Args;
use serde_json::Value;

use super::chosen_agents;
use crate::cli::answers::elements;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct AgentsListArgs {}

impl AgentsListArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let answer = client.get("/v1/agents").await?.body;
        if output.json {
            return output.json(&answer);
        }
        let agents = elements(&answer, "agents");
        output.table(&table(agents))?;
        if output.is_terminal {
            output.note(&match agents.len() {
                0 => "No agents are declared. Declare one with a table [agents.NAME] in the \
                      configuration; workers need no declaration."
                    .to_owned(),
                count => format!("{count} declared. Look at one with: statehold agents show NAME"),
            });
        }
        Ok(Exit::Done)
    }
}

fn table(agents: &[Value]) -> TextTable {
    let mut table = TextTable::new(&["AGENT", "KIND", "CHAT", "CHOOSES FROM", "DESCRIPTION"])
        .spare(&["CHAT", "CHOOSES FROM"]);
    for agent in agents {
        table.row(vec![
            TableCell::of(&agent["name"]).tone(TextTone::Strong),
            TableCell::of(&agent["kind"]),
            TableCell::of(&agent["sessions"]),
            TableCell::optional(chosen_agents(agent)),
            TableCell::of(&agent["description"]),
        ]);
    }
    table
}
