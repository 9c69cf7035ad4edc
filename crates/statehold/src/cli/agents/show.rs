//! `statehold agents show`.

use clap::Args;

use super::AgentInfo;
use crate::cli::answers::read;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct AgentsShowArgs {
    /// The name of the agent.
    name: statehold_core::name::Name,
}

impl AgentsShowArgs {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        let answer = client.get(&format!("/v1/agents/{}", self.name)).await?.body;
        if output.json {
            output.json(&answer)?;
            return Ok(Exit::Done);
        }
        let mut table = TextTable::new(&[]);
        for (name, value) in facts(read(&answer)?) {
            table.row(vec![TableCell::new(name).tone(TextTone::Dim), value]);
        }
        output.table(&table)?;
        Ok(Exit::Done)
    }
}

fn facts(agent: AgentInfo) -> Vec<(&'static str, TableCell)> {
    let mut facts = vec![
        ("agent", TableCell::new(&agent.name).tone(TextTone::Strong)),
        ("kind", TableCell::new(&agent.kind)),
        ("description", TableCell::optional(agent.description)),
        (
            "chat without a session",
            TableCell::new(&agent.openai_default),
        ),
    ];
    if !agent.agents.is_empty() {
        facts.push(("chooses from", TableCell::new(agent.agents.join(", "))));
    }
    for tool in &agent.tools {
        let approval = match tool.approval.as_str() {
            "always" => "every call needs an approval",
            "never" => "calls need no approval",
            "conditional" => "some calls need an approval, by their arguments",
            _ => "the worker decides whether to ask",
        };
        let name = match tool.name.as_str() {
            "*" => "every other tool",
            name => name,
        };
        facts.push(("tool", TableCell::new(format!("{name}: {approval}"))));
    }
    if let Some(has_address) = agent.has_resume_address {
        let how = if has_address { "pushed" } else { "by claim" };
        facts.push(("hears of decisions", TableCell::new(how)));
    }
    facts.push(("digest", TableCell::new(agent.digest)));
    facts
}
