//! `statehold agents list`.

use clap::Args;
use serde_json::Value;

use super::AgentInfo;
use crate::cli::answers::{elements, read};
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct AgentsListArgs {}

impl AgentsListArgs {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &CliOutput,
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
                0 => "No agents are declared. Declare one with a table [agents.NAME] in the \
                      configuration; workers need no declaration."
                    .to_owned(),
                count => format!("{count} declared. Look at one with: statehold agents show NAME"),
            });
        }
        Ok(Exit::Done)
    }
}

fn table(agents: &[Value]) -> anyhow::Result<TextTable> {
    let mut table = TextTable::new(&["AGENT", "KIND", "CHAT", "CHOOSES FROM", "DESCRIPTION"]);
    for agent in agents {
        let agent: AgentInfo = read(agent)?;
        let chosen = Some(agent.agents.join(", ")).filter(|chosen| !chosen.is_empty());
        table.row(vec![
            TableCell::new(&agent.name).tone(TextTone::Strong),
            TableCell::new(&agent.kind),
            TableCell::new(&agent.openai_default),
            TableCell::optional(chosen),
            TableCell::optional(agent.description),
        ]);
    }
    Ok(table)
}
