//! `statehold agents list`.

use clap::Args;
use serde_json::Value;

use super::Agent;
use crate::cli::answers::{elements, read};
use crate::cli::output::{Cell, Output, Table, Tone};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct List {}

impl List {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let answer = client.get("/v1/agents").await?.body;
        if output.json {
            output.json(&answer)?;
            return Ok(Exit::Done);
        }
        let agents = elements(&answer, "agents");
        output.table(&table(agents)?)?;
        if output.is_terminal {
            output.note(&match agents.len() {
                0 => "No agents are declared. Workers need no declaration; others have a table \
                      [agents.NAME] in the configuration."
                    .to_owned(),
                count => format!("{count} declared. Look at one with: statehold agents show NAME"),
            });
        }
        Ok(Exit::Done)
    }
}

fn table(agents: &[Value]) -> anyhow::Result<Table> {
    let mut table = Table::new(&["AGENT", "KIND", "CHAT", "CHOOSES FROM", "DESCRIPTION"]);
    for agent in agents {
        let agent: Agent = read(agent)?;
        let chosen = Some(agent.agents.join(", ")).filter(|chosen| !chosen.is_empty());
        table.row(vec![
            Cell::new(&agent.name).tone(Tone::Strong),
            Cell::new(&agent.kind),
            Cell::new(&agent.openai_default),
            Cell::optional(chosen),
            Cell::optional(agent.description),
        ]);
    }
    Ok(table)
}
